//! The rest of a body that no handler read.
//!
//! Over HTTP/2, a request that is answered before its body has arrived is reset, and some clients then show the reset
//! instead of the answer. So the agent still reads the rest of a small body, for a moment.

use hyper::body::{Body, Bytes, Frame, SizeHint};
use std::future::poll_fn;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::time::timeout;
use tokio_util::task::TaskTracker;

/// How many bytes of the rest are read.
const REST_BYTES_MAX: usize = 64 * 1024;
/// How long reading the rest may take.
const REST_TIME_MAX: Duration = Duration::from_secs(1);

/// A request's body. If it is dropped before its end, a task reads what is left.
pub(super) struct UnreadBody<B: Body<Data = Bytes> + Unpin + Send + 'static> {
    /// `None`: the body has ended.
    body: Option<B>,
    tasks: TaskTracker,
}

impl<B: Body<Data = Bytes> + Unpin + Send + 'static> UnreadBody<B> {
    pub(super) fn new(body: B, tasks: TaskTracker) -> Self {
        Self { body: (!body.is_end_stream()).then_some(body), tasks }
    }
}

impl<B: Body<Data = Bytes> + Unpin + Send + 'static> Body for UnreadBody<B> {
    type Data = Bytes;
    type Error = B::Error;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, B::Error>>> {
        let Some(body) = &mut self.body else { return Poll::Ready(None) };
        let frame = std::task::ready!(Pin::new(body).poll_frame(cx));
        if !matches!(frame, Some(Ok(_))) {
            self.body = None;
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.body.as_ref().is_none_or(Body::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        self.body.as_ref().map_or_else(|| SizeHint::with_exact(0), Body::size_hint)
    }
}

impl<B: Body<Data = Bytes> + Unpin + Send + 'static> Drop for UnreadBody<B> {
    fn drop(&mut self) {
        let Some(body) = self.body.take().filter(|body| !body.is_end_stream()) else { return };
        self.tasks.spawn(async move {
            let _ = timeout(REST_TIME_MAX, read_rest(body)).await;
        });
    }
}

/// Reads at most [`REST_BYTES_MAX`].
async fn read_rest<B: Body<Data = Bytes> + Unpin>(mut body: B) {
    let mut read = 0;
    while read < REST_BYTES_MAX {
        match poll_fn(|cx| Pin::new(&mut body).poll_frame(cx)).await {
            Some(Ok(frame)) => read += frame.data_ref().map_or(0, Bytes::len),
            Some(Err(_)) | None => return,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::convert::Infallible;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    /// A body of `left` pieces of 1 KiB, which counts the pieces that were read.
    struct Pieces {
        left: usize,
        read: Arc<AtomicUsize>,
    }

    impl Body for Pieces {
        type Data = Bytes;
        type Error = Infallible;

        fn poll_frame(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
            if self.left == 0 {
                return Poll::Ready(None);
            }
            self.left -= 1;
            self.read.fetch_add(1, Ordering::Relaxed);
            Poll::Ready(Some(Ok(Frame::data(Bytes::from_static(&[0; 1024])))))
        }
    }

    async fn read_of(pieces: usize, by_handler: usize) -> usize {
        let (read, tasks) = (Arc::new(AtomicUsize::new(0)), TaskTracker::new());
        let mut body = UnreadBody::new(Pieces { left: pieces, read: Arc::clone(&read) }, tasks.clone());
        for _ in 0..by_handler {
            let _ = poll_fn(|cx| Pin::new(&mut body).poll_frame(cx)).await;
        }
        drop(body);
        tasks.close();
        tasks.wait().await;
        read.load(Ordering::Relaxed)
    }

    #[tokio::test]
    async fn a_small_body_is_read_to_its_end_and_a_large_one_is_not() {
        assert_eq!([read_of(3, 0).await, read_of(3, 1).await, read_of(3, 9).await], [3, 3, 3]);
        assert_eq!(read_of(1000, 0).await, 64);
    }
}

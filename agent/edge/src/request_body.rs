//! The body of a REST request, which must arrive in time. The handlers' extractors limit its length. (Messages of gRPC
//! are limited where they are decoded.)

use hyper::body::{Body, Bytes, Frame, SizeHint};
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::time::{Instant, Sleep, sleep_until};

/// How long a body may take to arrive.
const BODY_TIME_MAX: Duration = Duration::from_secs(60);

/// A body with a time limit.
pub(super) struct RequestBody<B> {
    body: B,
    until: Instant,
    /// Only once the body is waited for: most have arrived with their heads, or have no byte.
    timer: Option<Pin<Box<Sleep>>>,
}

impl<B> RequestBody<B> {
    pub(super) fn new(body: B) -> Self {
        Self { body, until: Instant::now() + BODY_TIME_MAX, timer: None }
    }
}

impl<B> Body for RequestBody<B>
where
    B: Body<Data = Bytes> + Unpin,
    B::Error: std::error::Error + Send + Sync + 'static,
{
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, io::Error>>> {
        match Pin::new(&mut self.body).poll_frame(cx) {
            Poll::Ready(frame) => Poll::Ready(frame.map(|frame| frame.map_err(io::Error::other))),
            Poll::Pending => {
                let late = || io::Error::new(io::ErrorKind::TimedOut, "the request's body did not arrive in time");
                let until = self.until;
                let timer = self.timer.get_or_insert_with(|| Box::pin(sleep_until(until)));
                timer.as_mut().poll(cx).map(|()| Some(Err(late())))
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::convert::Infallible;
    use std::future::poll_fn;

    /// A body that never comes.
    struct Silent;

    impl Body for Silent {
        type Data = Bytes;
        type Error = Infallible;

        fn poll_frame(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
            Poll::Pending
        }
    }

    #[tokio::test]
    async fn a_body_that_does_not_arrive_is_given_up() {
        let mut body = RequestBody { body: Silent, until: Instant::now() + Duration::from_millis(5), timer: None };
        let frame = poll_fn(|cx| Pin::new(&mut body).poll_frame(cx)).await.unwrap();
        assert_eq!(frame.unwrap_err().kind(), io::ErrorKind::TimedOut);
    }
}

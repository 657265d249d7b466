//! The byte stream of one connection, with its place. It can be cut, and a peer that reads nothing loses the connection.

use super::counts::OpenConnection;
use super::places::Place;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Sleep, sleep};
use tokio_util::sync::{CancellationToken, WaitForCancellationFutureOwned};

/// How long a write may wait without progress.
const WRITE_TIME_MAX: Duration = Duration::from_secs(60);

/// A stream that holds its place as long as it lives, also after an upgrade to a WebSocket.
pub(super) struct GuardedStream<S> {
    stream: S,
    /// Completes when the agent breaks the connection.
    cut_off: Pin<Box<WaitForCancellationFutureOwned>>,
    /// Runs while a write waits for the peer.
    waiting: Option<Pin<Box<Sleep>>>,
    write_time_max: Duration,
    _held: (Place, OpenConnection),
}

impl<S> GuardedStream<S> {
    /// `cut` breaks the connection.
    pub(super) fn new(stream: S, cut: &CancellationToken, held: (Place, OpenConnection)) -> Self {
        let cut_off = Box::pin(cut.child_token().cancelled_owned());
        Self { stream, cut_off, waiting: None, write_time_max: WRITE_TIME_MAX, _held: held }
    }

    fn check(&mut self, cx: &mut Context<'_>) -> io::Result<()> {
        match self.cut_off.as_mut().poll(cx) {
            Poll::Pending => Ok(()),
            Poll::Ready(()) => Err(io::Error::new(io::ErrorKind::ConnectionAborted, "the agent stops")),
        }
    }

    /// Limits how long the result of a write is pending.
    fn limited<T>(&mut self, cx: &mut Context<'_>, written: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        if written.is_ready() {
            self.waiting = None;
            return written;
        }
        let most = self.write_time_max;
        let waiting = self.waiting.get_or_insert_with(|| Box::pin(sleep(most)));
        waiting.as_mut().poll(cx).map(|()| Err(io::Error::new(io::ErrorKind::TimedOut, "the peer takes nothing")))
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for GuardedStream<S> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        self.check(cx)?;
        Pin::new(&mut self.stream).poll_read(cx, buf)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for GuardedStream<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        self.check(cx)?;
        let written = Pin::new(&mut self.stream).poll_write(cx, buf);
        self.limited(cx, written)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }

    fn poll_write_vectored(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bufs: &[io::IoSlice<'_>]) -> Poll<io::Result<usize>> {
        self.check(cx)?;
        let written = Pin::new(&mut self.stream).poll_write_vectored(cx, bufs);
        self.limited(cx, written)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }
}

#[cfg(test)]
mod tests {
    use super::super::counts::Counts;
    use super::super::places::{Places, Source};
    use super::*;
    use std::time::Instant;
    use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex};
    use tokio::time::timeout;

    fn guarded(stream: DuplexStream, cut: &CancellationToken) -> GuardedStream<DuplexStream> {
        let place = Places::new(1, 1).take(Source::of([127, 0, 0, 1].into())).unwrap();
        GuardedStream::new(stream, cut, (place, Counts::default().open()))
    }

    #[tokio::test]
    async fn a_peer_that_takes_nothing_loses_the_connection_and_a_slow_one_keeps_it() {
        const WRITE_TIME_MAX: Duration = Duration::from_millis(50);
        // The peer pauses less than the limit, and in all longer. Returns the stream and what was written to it, and
        // the peer and its longest pause.
        let slow = async || {
            let (ours, mut theirs) = duplex(4);
            let mut stream = guarded(ours, &CancellationToken::new());
            stream.write_time_max = WRITE_TIME_MAX;
            let reads = async {
                let mut pause_max = Duration::ZERO;
                for _ in 0..8 {
                    let began = Instant::now();
                    tokio::time::sleep(WRITE_TIME_MAX / 5).await;
                    // After a failed write there may be no more to read.
                    let _read = timeout(WRITE_TIME_MAX, theirs.read_u8()).await;
                    pause_max = pause_max.max(began.elapsed());
                }
                (theirs, pause_max)
            };
            let (written, (theirs, pause_max)) = tokio::join!(stream.write_all(&[7; 12]), reads);
            (stream, written, theirs, pause_max)
        };
        // A machine that stalls makes longer pauses.
        for attempt in 0.. {
            let (mut stream, written, _theirs, pause_max) = slow().await;
            if written.is_err() && pause_max >= WRITE_TIME_MAX && attempt < 100 {
                continue;
            }
            written.unwrap();
            assert_eq!(stream.write_all(&[7; 12]).await.unwrap_err().kind(), io::ErrorKind::TimedOut);
            break;
        }
    }

    #[tokio::test]
    async fn a_connection_that_is_cut_carries_nothing_more() {
        let (ours, _theirs) = duplex(4);
        let cut = CancellationToken::new();
        let mut stream = guarded(ours, &cut);
        let (read, ()) = tokio::join!(stream.read_u8(), async { cut.cancel() });
        assert_eq!(read.unwrap_err().kind(), io::ErrorKind::ConnectionAborted);
        assert_eq!(stream.write_all(b"a").await.unwrap_err().kind(), io::ErrorKind::ConnectionAborted);
    }
}

//! The socket's connections, so many of each user: anybody may connect, and nobody may take all descriptors.

use crate::places::{Place, Places};
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{UnixListener, UnixStream};
use tokio_stream::Stream;
use tonic::transport::server::{Connected, UdsConnectInfo};

/// Connections of one user at once.
const OF_ONE_USER: usize = 128;
/// Connections of root at once: services that act for many.
const OF_ROOT: usize = 1024;
/// After a connection that could not be taken (no descriptors, for one).
const PAUSE: Duration = Duration::from_millis(50);

/// Connections as they come; those beyond a user's number are closed.
pub(super) fn accept(listener: UnixListener) -> impl Stream<Item = io::Result<Connection>> {
    futures::stream::unfold((listener, Places::default()), |(listener, places)| async {
        loop {
            match listener.accept().await {
                Ok((stream, _)) => {
                    if let Some(place) = stream.peer_cred().ok().and_then(|c| take(&places, c.uid())) {
                        return Some((Ok(Connection { stream, _place: place }), (listener, places)));
                    }
                }
                Err(error) => {
                    tracing::warn!(%error, "a connection to the socket cannot be taken");
                    tokio::time::sleep(PAUSE).await;
                }
            }
        }
    })
}

fn take(places: &Places, uid: u32) -> Option<Place> {
    let most = if uid == 0 { OF_ROOT } else { OF_ONE_USER };
    let place = places.take(uid, most);
    if place.is_none() {
        tracing::debug!(uid, most, "a connection more than one user may have: closed");
    }
    place
}

/// One connection, in its place.
pub(super) struct Connection {
    stream: UnixStream,
    _place: Place,
}

impl Connected for Connection {
    type ConnectInfo = UdsConnectInfo;

    fn connect_info(&self) -> Self::ConnectInfo {
        self.stream.connect_info()
    }
}

impl AsyncRead for Connection {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, buf)
    }
}

impl AsyncWrite for Connection {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }

    fn poll_write_vectored(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bufs: &[io::IoSlice<'_>]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures::StreamExt;
    use tokio::io::AsyncReadExt;

    #[tokio::test]
    async fn one_connection_too_many_is_closed_and_served_again_once_one_ends() {
        let path = std::env::temp_dir().join(format!("lattice-connections-{}.sock", std::process::id()));
        let _ = std::fs::remove_file(&path);
        let listener = UnixListener::bind(&path).unwrap();
        let most = if nix::unistd::geteuid().is_root() { OF_ROOT } else { OF_ONE_USER };
        let mut accepted = std::pin::pin!(accept(listener));
        // Both ends are this process's, whose soft limit may be 1024: the places are taken without descriptors.
        let first = UnixStream::connect(&path).await.unwrap();
        let one = accepted.next().await.unwrap().unwrap();
        let rest: Vec<Place> = one._place.more(most - 1);
        let mut refused = UnixStream::connect(&path).await.unwrap();
        let mut nothing = [0; 1];
        tokio::select! {
            _ = accepted.next() => panic!("taken beyond the limit"),
            read = refused.read(&mut nothing) => assert_eq!(read.unwrap(), 0, "closed"),
        }
        drop((first, one));
        let _again = UnixStream::connect(&path).await.unwrap();
        assert!(accepted.next().await.unwrap().is_ok());
        drop(rest);
        let _ = std::fs::remove_file(&path);
    }
}

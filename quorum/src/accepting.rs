//! Connections accepted under TLS, each with the certificate that is in force at that moment. Those that fail are counted.

use crate::credentials::Credentials;
use crate::identity::Connected;
use crate::refused::Cause;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, mpsc};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;
use tokio_stream::wrappers::ReceiverStream;
use tokio_util::sync::CancellationToken;

/// How long a handshake may take.
const HANDSHAKE_MAX: Duration = Duration::from_secs(5);
/// Handshakes at once.
const HANDSHAKES_MAX: usize = 256;
/// Pause where nothing can be accepted: out of descriptors, mostly.
const PAUSE: Duration = Duration::from_millis(100);

/// The connections of a listener, until `stop`.
pub(crate) fn incoming(listener: TcpListener, credentials: Credentials, stop: CancellationToken) -> ReceiverStream<io::Result<Accepted>> {
    let (accepted, connections) = mpsc::channel(HANDSHAKES_MAX);
    tokio::spawn(async move {
        let turns = Arc::new(Semaphore::new(HANDSHAKES_MAX));
        loop {
            let accepting = async {
                let turn = Arc::clone(&turns).acquire_owned().await;
                (turn, listener.accept().await)
            };
            let (turn, stream) = tokio::select! {
                () = stop.cancelled() => return,
                both = accepting => both,
            };
            let (stream, remote) = match stream {
                Ok(accepted) => accepted,
                Err(error) => {
                    tracing::debug!(%error, "a connection cannot be accepted");
                    tokio::time::sleep(PAUSE).await;
                    continue;
                }
            };
            let (accepted, credentials) = (accepted.clone(), credentials.clone());
            tokio::spawn(async move {
                match tokio::time::timeout(HANDSHAKE_MAX, handshake(stream, &credentials)).await {
                    // The server is stopping where nobody takes it.
                    Ok(Ok(stream)) => drop(accepted.send(Ok(stream)).await),
                    Ok(Err(error)) => {
                        if let Some(cause) = Cause::of(&error) {
                            credentials.refused().count(cause, &format_args!("{remote}: {error}"));
                        }
                    }
                    Err(_) => credentials.refused().count(Cause::Handshake, &format_args!("{remote}: the handshake took too long")),
                }
                drop(turn);
            });
        }
    });
    ReceiverStream::new(connections)
}

async fn handshake(stream: TcpStream, credentials: &Credentials) -> io::Result<Accepted> {
    stream.set_nodelay(true)?;
    let stream = TlsAcceptor::from(credentials.server()).accept(stream).await?;
    let peer = Connected::by(stream.get_ref().1.peer_certificates().unwrap_or_default());
    Ok(Accepted { stream, peer })
}

/// A connection and who is at its other end.
#[derive(Debug)]
pub(crate) struct Accepted {
    stream: TlsStream<TcpStream>,
    peer: Connected,
}

impl tonic::transport::server::Connected for Accepted {
    type ConnectInfo = Connected;

    fn connect_info(&self) -> Connected {
        self.peer.clone()
    }
}

impl AsyncRead for Accepted {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, buf)
    }
}

impl AsyncWrite for Accepted {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, buf)
    }

    fn poll_write_vectored(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bufs: &[io::IoSlice<'_>]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

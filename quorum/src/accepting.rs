//! Accepts connections with TLS, each with the current certificate. Failures are counted.
//!
//! ```text
//!   accept ──▶ unfinished: waits for its first record ──▶ handshake ──▶ served
//!                  │ 2 s                                    │ 5 s in all
//!                  ╰── closed for a newer connection, from this address or from one with fewer handshakes
//! ```
//!
//! Anybody who can reach a port may leave any number of handshakes unfinished. They never block
//! others: when the limit is reached, an unfinished handshake is closed, and accepting does not
//! wait for it. Addresses of members and nodes have a separate limit that strangers cannot use up.
//! If one address has too many, its oldest handshake is closed, first those that have not sent a
//! complete first record. An attacker at an agent's address would have to open
//! [`HandshakeLimits::of_address_max`] connections during the agent's one handshake.

pub(crate) mod known;
mod unfinished;

use known::KnownAddresses;
use lattice_pki::connected::Connected;
use lattice_pki::credentials::Credentials;
use lattice_pki::identity::Role;
use lattice_pki::refused::Cause;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;
use tokio::task::{JoinHandle, JoinSet};
use tokio_rustls::LazyConfigAcceptor;
use tokio_rustls::server::TlsStream;
use tokio_stream::wrappers::ReceiverStream;
use tokio_util::sync::CancellationToken;
use unfinished::{HandshakeLimits, HandshakePermit, Unfinished};

/// Timeout of a handshake.
const HANDSHAKE_MAX: Duration = Duration::from_secs(5);
/// Timeout of a handshake's first record.
const FIRST_RECORD_MAX: Duration = Duration::from_secs(2);
/// How long a connection with an already revoked certificate stays open: each call on it is refused
/// with that reason.
const REVOKED_MAX: Duration = Duration::from_secs(1);
/// Pause after accepting failed, usually because there are no free file descriptors.
const ACCEPT_RETRY_PAUSE: Duration = Duration::from_millis(100);
/// Largest number of connections with a finished handshake that the server has not taken yet.
const ACCEPTED_MAX: usize = 256;

/// The ports of a member, by users.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Port {
    /// For agents, thousands of them at once.
    Agents,
    /// For the other members.
    Members,
}

impl Port {
    fn handshake_limits(self) -> HandshakeLimits {
        match self {
            // Many agents may share an address. If all of them connect at once, accepting waits a
            // moment for handshakes in progress.
            Self::Agents => {
                HandshakeLimits { known_max: 1024, strangers_max: 256, of_address_max: 256, age_min: Duration::from_millis(100) }
            }
            Self::Members => HandshakeLimits { known_max: 256, strangers_max: 64, of_address_max: 64, age_min: Duration::ZERO },
        }
    }

    /// Whether the port is for the owner of this certificate.
    fn is_for(self, peer: &Connected) -> bool {
        match (self, peer.role()) {
            (Self::Agents, Some(Role::Quorum | Role::Api | Role::Node)) | (Self::Members, Some(Role::Quorum)) => true,
            (Self::Members, Some(Role::Api | Role::Node)) | (_, Some(Role::Operator | Role::Service) | None) => false,
        }
    }
}

/// The accepted connections of a listener, and the task that accepts them until `stop`; the open
/// handshakes end with it.
pub(crate) fn incoming(
    listener: TcpListener,
    port: Port,
    known: Arc<KnownAddresses>,
    credentials: Credentials,
    stop: CancellationToken,
) -> (ReceiverStream<io::Result<Accepted>>, JoinHandle<()>) {
    let (accepted, connections) = mpsc::channel(ACCEPTED_MAX);
    let accepting = tokio::spawn(async move {
        let unfinished = Unfinished::new(port.handshake_limits());
        let mut handshakes = JoinSet::new();
        loop {
            let stream = tokio::select! {
                () = stop.cancelled() => return,
                Some(_) = handshakes.join_next() => continue,
                stream = listener.accept() => stream,
            };
            let (stream, remote) = match stream {
                Ok(accepted) => accepted,
                Err(error) => {
                    tracing::debug!(%error, "a connection cannot be accepted");
                    tokio::time::sleep(ACCEPT_RETRY_PAUSE).await;
                    continue;
                }
            };
            let permit = unfinished.enter(remote.ip(), known.is_known(remote.ip())).await;
            let (accepted, credentials, known) = (accepted.clone(), credentials.clone(), Arc::clone(&known));
            handshakes.spawn(async move {
                let refuse = |why: &str| credentials.refused().count(Cause::Handshake, &format_args!("{remote}: {why}"));
                let done = tokio::select! {
                    () = permit.needed_by_another() => return refuse("its handshake was not finished, and others need its place"),
                    done = tokio::time::timeout(HANDSHAKE_MAX, handshake(stream, remote, &permit, &credentials)) => done,
                };
                drop(permit);
                match done {
                    Ok(Ok(stream)) => {
                        if port.is_for(&stream.peer) {
                            known.learn(remote.ip());
                        }
                        // An error means that the server is stopping.
                        drop(accepted.send(Ok(stream)).await);
                    }
                    Ok(Err(error)) => {
                        if let Some(cause) = Cause::of(&error) {
                            credentials.refused().count(cause, &format_args!("{remote}: {error}"));
                        }
                    }
                    Err(_) => refuse("the handshake took too long"),
                }
            });
        }
    });
    (ReceiverStream::new(connections), accepting)
}

async fn handshake(stream: TcpStream, remote: SocketAddr, permit: &HandshakePermit, credentials: &Credentials) -> io::Result<Accepted> {
    stream.set_nodelay(true)?;
    let hello = LazyConfigAcceptor::new(rustls::server::Acceptor::default(), stream);
    let Ok(hello) = tokio::time::timeout(FIRST_RECORD_MAX, hello).await else {
        credentials.refused().count(Cause::Handshake, &format_args!("{remote}: its first record took too long"));
        return Err(io::ErrorKind::TimedOut.into());
    };
    let hello = hello?;
    permit.record_hello();
    let stream = hello.into_stream(credentials.server()).await?;
    let peer = Connected::by(stream.get_ref().1.peer_certificates().unwrap_or_default(), credentials.revoked().clone());
    let revoked = Box::pin(peer.clone().until_revoked(REVOKED_MAX));
    Ok(Accepted { stream, peer, revoked, is_over: false })
}

/// A connection and its peer. It ends when the peer's certificate is revoked: with a new
/// certificate the peer reconnects.
pub(crate) struct Accepted {
    stream: TlsStream<TcpStream>,
    peer: Connected,
    revoked: Pin<Box<dyn Future<Output = ()> + Send>>,
    /// Whether the certificate has been revoked.
    is_over: bool,
}

impl tonic::transport::server::Connected for Accepted {
    type ConnectInfo = Connected;

    fn connect_info(&self) -> Connected {
        self.peer.clone().at(self.stream.get_ref().0.peer_addr().ok())
    }
}

impl AsyncRead for Accepted {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        self.is_over = self.is_over || self.revoked.as_mut().poll(cx).is_ready();
        if self.is_over {
            return Poll::Ready(Err(io::Error::new(io::ErrorKind::ConnectionAborted, "its certificate is revoked")));
        }
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

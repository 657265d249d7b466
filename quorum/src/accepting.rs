//! Connections accepted under TLS, each with the certificate that is in force at that moment. Those that fail are counted.
//!
//! ```text
//!   accept ──▶ unfinished: waits for its first record ──▶ shakes hands ──▶ served
//!                  │ 2 s                                    │ 5 s in all
//!                  ╰── a newer one of the same address, or of an address with fewer, needs the place: closed
//! ```
//!
//! Whoever reaches a port may leave handshakes unfinished there, as many as it likes. None of them keeps a place that another one
//! needs: accepting never waits for them. Addresses of members and of nodes have places of their own, which no stranger takes. Of an
//! address with too many the oldest goes, first those that have said nothing whole yet; an attacker beside an agent, on its
//! address, would have to open [`Places::of_address_max`] connections while the agent's one handshake lasts.

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
use tokio_rustls::LazyConfigAcceptor;
use tokio_rustls::server::TlsStream;
use tokio_stream::wrappers::ReceiverStream;
use tokio_util::sync::CancellationToken;
use unfinished::{Place, Places, Unfinished};

/// How long a handshake may take.
const HANDSHAKE_MAX: Duration = Duration::from_secs(5);
/// How long its first record may take.
const FIRST_RECORD_MAX: Duration = Duration::from_secs(2);
/// How long a connection stands whose certificate was revoked before: each call on it is refused with that reason.
const REVOKED_MAX: Duration = Duration::from_secs(1);
/// Pause where nothing can be accepted: out of descriptors, mostly.
const PAUSE: Duration = Duration::from_millis(100);
/// Connections whose handshake is over and that the server has not taken yet.
const ACCEPTED_MAX: usize = 256;

/// Who may connect to a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Port {
    /// Agents, thousands of them at once.
    Agents,
    /// The other members.
    Members,
}

impl Port {
    fn places(self) -> Places {
        match self {
            // Many agents may share an address. Where all of them come at once, accepting waits a moment for those that are being served.
            Self::Agents => Places { known_max: 1024, strangers_max: 256, of_address_max: 256, patience: Duration::from_millis(100) },
            Self::Members => Places { known_max: 256, strangers_max: 64, of_address_max: 64, patience: Duration::ZERO },
        }
    }

    /// Whether who has shown this certificate is one whom the port is for.
    fn is_for(self, peer: &Connected) -> bool {
        match (self, peer.role()) {
            (Self::Agents, Some(Role::Quorum | Role::Api | Role::Node)) | (Self::Members, Some(Role::Quorum)) => true,
            (Self::Members, Some(Role::Api | Role::Node)) | (_, Some(Role::Operator) | None) => false,
        }
    }
}

/// The connections of a listener, until `stop`.
pub(crate) fn incoming(
    listener: TcpListener,
    port: Port,
    known: Arc<KnownAddresses>,
    credentials: Credentials,
    stop: CancellationToken,
) -> ReceiverStream<io::Result<Accepted>> {
    let (accepted, connections) = mpsc::channel(ACCEPTED_MAX);
    tokio::spawn(async move {
        let unfinished = Unfinished::new(port.places());
        loop {
            let stream = tokio::select! {
                () = stop.cancelled() => return,
                stream = listener.accept() => stream,
            };
            let (stream, remote) = match stream {
                Ok(accepted) => accepted,
                Err(error) => {
                    tracing::debug!(%error, "a connection cannot be accepted");
                    tokio::time::sleep(PAUSE).await;
                    continue;
                }
            };
            let place = unfinished.enter(remote.ip(), known.is_known(remote.ip())).await;
            let (accepted, credentials, known) = (accepted.clone(), credentials.clone(), Arc::clone(&known));
            tokio::spawn(async move {
                let refuse = |why: &str| credentials.refused().count(Cause::Handshake, &format_args!("{remote}: {why}"));
                let done = tokio::select! {
                    () = place.needed_by_another() => return refuse("its handshake was not finished, and others need its place"),
                    done = tokio::time::timeout(HANDSHAKE_MAX, handshake(stream, remote, &place, &credentials)) => done,
                };
                drop(place);
                match done {
                    Ok(Ok(stream)) => {
                        if port.is_for(&stream.peer) {
                            known.learn(remote.ip());
                        }
                        // The server is stopping where nobody takes it.
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
    ReceiverStream::new(connections)
}

async fn handshake(stream: TcpStream, remote: SocketAddr, place: &Place, credentials: &Credentials) -> io::Result<Accepted> {
    stream.set_nodelay(true)?;
    let hello = LazyConfigAcceptor::new(rustls::server::Acceptor::default(), stream);
    let Ok(hello) = tokio::time::timeout(FIRST_RECORD_MAX, hello).await else {
        credentials.refused().count(Cause::Handshake, &format_args!("{remote}: its first record took too long"));
        return Err(io::ErrorKind::TimedOut.into());
    };
    let hello = hello?;
    place.said_hello();
    let stream = hello.into_stream(credentials.server()).await?;
    let peer = Connected::by(stream.get_ref().1.peer_certificates().unwrap_or_default(), credentials.revoked().clone());
    let revoked = Box::pin(peer.clone().counts_no_more(REVOKED_MAX));
    Ok(Accepted { stream, peer, revoked, is_over: false })
}

/// A connection and who is at its other end. It ends when their certificate is revoked: with another one they connect anew.
pub(crate) struct Accepted {
    stream: TlsStream<TcpStream>,
    peer: Connected,
    revoked: Pin<Box<dyn Future<Output = ()> + Send>>,
    /// Whether that has come.
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

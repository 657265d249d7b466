//! The socket's connections, limited for each user: any user may connect, and none may take all
//! descriptors. A connection that does not send the opening of HTTP/2 in time is closed.

use lattice_agent_common::user_quota::{UserQuota, UserSlot};
use lattice_model::access::Scopes;
use lattice_model::access_token::TokenId;
use lattice_model::{Principal, Timestamp};
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::{getsockopt, sockopt};
use std::collections::BTreeSet;
use std::fmt;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::unix::UCred;
use tokio::net::{UnixListener, UnixStream};
use tokio::time::{Sleep, sleep};
use tokio_stream::Stream;
use tokio_util::sync::{CancellationToken, WaitForCancellationFutureOwned};
use tonic::transport::server::Connected;

/// How many connections one user may have at once.
const USER_CONNECTIONS_MAX: usize = 128;
/// How many connections root may have at once: services that act for many.
const ROOT_CONNECTIONS_MAX: usize = 1024;
/// The pause after a connection that could not be accepted, for example for lack of descriptors.
const ACCEPT_RETRY_PAUSE: Duration = Duration::from_millis(50);
/// What every HTTP/2 client sends at once: 24 bytes that identify the protocol, and the head of its
/// settings.
const OPENING_BYTES: usize = 24 + 9;
/// How long a client may take to send that.
const OPENING_TIME_MAX: Duration = Duration::from_secs(5);

/// Accepts connections and counts them in `quota`; those beyond a user's limit are closed. `cut`
/// breaks all of them.
pub(super) fn accept(listener: UnixListener, quota: UserQuota, cut: CancellationToken) -> impl Stream<Item = io::Result<Connection>> {
    futures::stream::unfold((listener, quota, cut), |(listener, quota, cut)| async {
        loop {
            match listener.accept().await {
                Ok((stream, _)) => {
                    let Ok(credentials) = stream.peer_cred() else { continue };
                    if let Some(place) = take(&quota, credentials.uid()) {
                        let peer = LocalPeer { credentials, process: Process::of(&stream) };
                        let opening = Some(Opening { left: OPENING_BYTES, until: Box::pin(sleep(OPENING_TIME_MAX)) });
                        let cut_off = Box::pin(cut.child_token().cancelled_owned());
                        return Some((Ok(Connection { stream, peer, opening, cut_off, _slot: place }), (listener, quota, cut)));
                    }
                }
                Err(error) => {
                    tracing::warn!(%error, "a connection to the socket cannot be accepted");
                    tokio::time::sleep(ACCEPT_RETRY_PAUSE).await;
                }
            }
        }
    })
}

fn take(quota: &UserQuota, uid: u32) -> Option<UserSlot> {
    let most = if uid == 0 { ROOT_CONNECTIONS_MAX } else { USER_CONNECTIONS_MAX };
    let place = quota.take(uid, most);
    if place.is_none() {
        tracing::debug!(uid, most, "one user has too many connections: the newest is closed");
    }
    place
}

/// Who is at the other end of a connection: in the extensions of each request.
#[derive(Clone, Debug)]
pub enum Peer {
    /// A process of this machine.
    Local(LocalPeer),
    /// A caller on the network, whom a token identified.
    Network(Arc<NetworkPeer>),
}

impl Peer {
    /// The account's uid and gid.
    pub fn account(&self) -> (u32, u32) {
        match self {
            Self::Local(peer) => (peer.credentials.uid(), peer.credentials.gid()),
            Self::Network(peer) => (peer.principal.uid, peer.principal.gid),
        }
    }

    /// The caller on the network; `None`: a process of this machine.
    pub fn network(&self) -> Option<&NetworkPeer> {
        match self {
            Self::Local(_) => None,
            Self::Network(peer) => Some(peer),
        }
    }
}

/// A caller on the network.
#[derive(Clone, Debug)]
pub struct NetworkPeer {
    /// The token's account, as this machine knows it; never root.
    pub principal: Principal,
    /// What the token opens.
    pub scopes: Scopes,
    /// The tenants that the token makes the account a member of.
    pub tenants: BTreeSet<String>,
    /// How the caller proved who it is.
    pub authentication: Authentication,
    /// When the token expires. Streams end then, too.
    pub expires_at: Timestamp,
}

/// How a caller on the network proved who it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Authentication {
    /// By a token of an OpenID Connect provider.
    Oidc { issuer: String, subject: String },
    /// By a token of the cluster.
    Token { id: TokenId, name: String },
    /// By the certificate of a service account.
    Certificate { name: String },
}

impl Authentication {
    /// The cluster's token that proved it; `None`: something else did.
    pub(super) fn token(&self) -> Option<TokenId> {
        match self {
            Self::Token { id, .. } => Some(*id),
            Self::Oidc { .. } | Self::Certificate { .. } => None,
        }
    }

    /// What the caller presented, for people.
    pub(super) fn noun(&self) -> &'static str {
        match self {
            Self::Oidc { .. } | Self::Token { .. } => "token",
            Self::Certificate { .. } => "certificate",
        }
    }
}

impl fmt::Display for Authentication {
    /// For records: `token ID`, `login SUBJECT of ISSUER`, or `certificate NAME`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Oidc { issuer, subject } => write!(f, "login {subject} of {issuer}"),
            Self::Token { id, .. } => write!(f, "token {id}"),
            Self::Certificate { name } => write!(f, "certificate {name}"),
        }
    }
}

/// The process that connected to the socket.
#[derive(Clone, Debug)]
pub struct LocalPeer {
    pub(super) credentials: UCred,
    process: Process,
}

/// The process itself: its pid may have been reused.
#[derive(Clone, Debug)]
enum Process {
    /// A descriptor of the process, by `SO_PEERPIDFD`.
    Held(Arc<OwnedFd>),
    /// Linux before 6.5 gives only the pid.
    Number,
    Gone,
}

impl Process {
    fn of(stream: &UnixStream) -> Self {
        match getsockopt(stream, sockopt::PeerPidfd) {
            Ok(pidfd) => Self::Held(Arc::new(pidfd)),
            Err(Errno::ENOPROTOOPT) => Self::Number,
            Err(_) => Self::Gone,
        }
    }
}

impl LocalPeer {
    /// Whether the process that connected has ended. If so, what was read with its pid may be about
    /// another process.
    pub fn is_gone(&self) -> bool {
        match &self.process {
            Process::Held(pidfd) => poll(&mut [PollFd::new(pidfd.as_fd(), PollFlags::POLLIN)], PollTimeout::ZERO) != Ok(0),
            Process::Number => false,
            Process::Gone => true,
        }
    }
}

/// One connection, with its place in the user's limit.
pub(super) struct Connection {
    stream: UnixStream,
    peer: LocalPeer,
    opening: Option<Opening>,
    /// Completes when the agent breaks the connection. Otherwise the caller could mistake an answer
    /// whose task was stopped for a complete one.
    cut_off: Pin<Box<WaitForCancellationFutureOwned>>,
    _slot: UserSlot,
}

impl Connection {
    fn check(&mut self, cx: &mut Context<'_>) -> io::Result<()> {
        match self.cut_off.as_mut().poll(cx) {
            Poll::Pending => Ok(()),
            Poll::Ready(()) => Err(io::Error::new(io::ErrorKind::ConnectionAborted, "the agent stops")),
        }
    }
}

/// What must still arrive before this is an HTTP/2 connection.
struct Opening {
    left: usize,
    until: Pin<Box<Sleep>>,
}

impl Connected for Connection {
    type ConnectInfo = Peer;

    fn connect_info(&self) -> Self::ConnectInfo {
        Peer::Local(self.peer.clone())
    }
}

impl AsyncRead for Connection {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        self.check(cx)?;
        let before = buf.filled().len();
        let read = Pin::new(&mut self.stream).poll_read(cx, buf);
        let Some(opening) = &mut self.opening else { return read };
        if read.is_pending() {
            ready!(opening.until.as_mut().poll(cx));
            return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
        }
        opening.left = opening.left.saturating_sub(buf.filled().len() - before);
        if opening.left == 0 {
            self.opening = None;
        }
        read
    }
}

impl AsyncWrite for Connection {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        self.check(cx)?;
        Pin::new(&mut self.stream).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }

    fn poll_write_vectored(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bufs: &[io::IoSlice<'_>]) -> Poll<io::Result<usize>> {
        self.check(cx)?;
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
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    #[tokio::test]
    async fn one_connection_too_many_is_closed_and_served_again_once_one_ends() {
        let path = std::env::temp_dir().join(format!("lattice-connections-{}.sock", std::process::id()));
        let _ = std::fs::remove_file(&path);
        let listener = UnixListener::bind(&path).unwrap();
        let most = if nix::unistd::geteuid().is_root() { ROOT_CONNECTIONS_MAX } else { USER_CONNECTIONS_MAX };
        let quota = UserQuota::default();
        let mut accepted = std::pin::pin!(accept(listener, quota.clone(), CancellationToken::new()));
        // Both ends are this process's, whose soft limit may be 1024: the slots are taken without
        // descriptors.
        let first = UnixStream::connect(&path).await.unwrap();
        let one = accepted.next().await.unwrap().unwrap();
        let uid = nix::unistd::geteuid().as_raw();
        let rest: Vec<UserSlot> = (1..most).map(|_| quota.take(uid, most).unwrap()).collect();
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

    #[tokio::test]
    async fn a_connection_that_is_cut_carries_nothing_more() {
        let path = std::env::temp_dir().join(format!("lattice-cut-{}.sock", std::process::id()));
        let _ = std::fs::remove_file(&path);
        let cut = CancellationToken::new();
        let mut accepted = std::pin::pin!(accept(UnixListener::bind(&path).unwrap(), UserQuota::default(), cut.clone()));
        let mut client = UnixStream::connect(&path).await.unwrap();
        let mut connection = accepted.next().await.unwrap().unwrap();
        connection.write_all(b"before").await.unwrap();
        let reading = async {
            let read = connection.read(&mut [0; 1]).await.map_err(|error| error.kind());
            (read, connection.write(b"after").await.map_err(|error| error.kind()))
        };
        let (ended, ()) = tokio::join!(reading, async { cut.cancel() });
        assert_eq!(ended, (Err(io::ErrorKind::ConnectionAborted), Err(io::ErrorKind::ConnectionAborted)));
        drop(connection);
        let mut received = Vec::new();
        client.read_to_end(&mut received).await.unwrap();
        assert_eq!(received, b"before");
        let _ = std::fs::remove_file(&path);
    }

    #[tokio::test]
    async fn a_peer_whose_process_ended_is_gone_even_if_a_child_holds_the_connection() {
        let path = std::env::temp_dir().join(format!("lattice-gone-{}.sock", std::process::id()));
        let _ = std::fs::remove_file(&path);
        let mut accepted = std::pin::pin!(accept(UnixListener::bind(&path).unwrap(), UserQuota::default(), CancellationToken::new()));
        // The client hands the connection on to a process that outlives it.
        let connects = "import os, socket, sys, time\ns = socket.socket(socket.AF_UNIX)\ns.connect(sys.argv[1])\n\
                        if os.fork() == 0: time.sleep(60)\nsys.stdin.read()\n";
        let mut command = tokio::process::Command::new("python3");
        command.args(["-c", connects]).arg(&path).stdin(std::process::Stdio::piped()).process_group(0);
        let mut child = command.spawn().unwrap();
        let group = nix::unistd::Pid::from_raw(child.id().unwrap().cast_signed());
        let connection = accepted.next().await.unwrap().unwrap();
        let peer = connection.connect_info();
        let Peer::Local(peer) = peer else { panic!("a process of this machine") };
        assert!(!peer.is_gone());
        drop(child.stdin.take());
        child.wait().await.unwrap();
        assert!(peer.is_gone(), "its child still has the connection");
        nix::sys::signal::killpg(group, nix::sys::signal::Signal::SIGKILL).unwrap();
        let _ = std::fs::remove_file(&path);
    }
}

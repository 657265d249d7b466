//! The mesh: one QUIC endpoint per agent, mutual TLS, streams only.
//!
//! A peer's identity is its certificate (common name = node id, organisational unit = role). An
//! agent dials a peer under the node's name, so that an agent at a wrong address is not mistaken
//! for another one. Connections are kept and shared; a stream costs no handshake.
//!
//! | task | ends | queues |
//! |---|---|---|
//! | one that accepts, one per accepted connection | with [`Mesh::close`] or the connection | incoming streams 256 |
//! | one that follows this agent's certificate, one that closes connections of revoked peers | with [`Mesh::close`] | |

pub mod binding;
pub mod branch;
pub mod call;
pub mod checkpoint;
pub mod conformance;
pub mod diagnosis;
pub mod fact;
pub mod frame;
#[cfg(test)]
mod fuzz;
pub mod gpu_usage;
pub mod history;
pub mod input;
pub mod launch;
pub mod monitor;
pub mod open;
pub mod ranks;
pub mod shape;
pub mod signal;
pub mod steps;
pub mod terminal;
#[cfg(test)]
mod tests;
pub mod usage;

use frame::FrameError;
use lattice_model::NodeId;
use lattice_pki::credentials::{Credentials, Material};
use lattice_pki::identity::{Caller, Revoked, Role, Shown};
use lattice_pki::refused::Cause;
use nix::sys::socket::{setsockopt, sockopt};
use parking_lot::Mutex;
use quinn::{
    ClientConfig, Connection, ConnectionError, Endpoint, EndpointConfig, RecvStream, SendStream, ServerConfig, TokioRuntime,
    TransportConfig, VarInt,
};
use std::collections::HashMap;
use std::io;
use std::net::{SocketAddr, UdpSocket};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use thiserror::Error;
use tokio::sync::{mpsc, watch};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

/// Streams that one peer may have open at once.
const STREAMS_PER_PEER: u32 = 4096;
/// A connection ends after this long without a packet from the peer; keep-alives are sent three
/// times as often.
const IDLE_TIMEOUT: Duration = Duration::from_secs(3);
/// Timeout of a dial.
const DIAL_TIMEOUT: Duration = Duration::from_secs(3);
/// Size of the socket's receive buffer in bytes, with the kernel's overhead for each packet. With
/// the default of 208 KiB, packets of a fence were dropped and sent again when the agent waited for
/// a processor (docs/benchmarks.md).
const RECEIVE_BUFFER_BYTES: usize = 4 << 20;
/// Incoming streams that may wait for the agent.
const INCOMING_QUEUE_LEN: usize = 256;

/// Why no stream could be opened.
#[derive(Debug, Error)]
pub enum MeshError {
    #[error("TLS of the mesh: {0}")]
    Tls(String),
    #[error("the mesh cannot listen on {address}")]
    Listen {
        address: SocketAddr,
        #[source]
        source: std::io::Error,
    },
    #[error("{address:?} is not the address of an agent's mesh")]
    Address { address: String },
    #[error("node {node} does not answer at {address}: {why}")]
    Unreachable { node: NodeId, address: String, why: String },
}

/// Why a request to another node could not be sent over the mesh.
#[derive(Debug, Error)]
pub enum UnreachedNode {
    #[error("its address is not known")]
    NoAddress,
    #[error(transparent)]
    Open(#[from] MeshError),
    #[error(transparent)]
    Frame(#[from] FrameError),
}

/// Why another node did not answer a request over the mesh.
#[derive(Debug, Error)]
pub enum UnansweredNode {
    #[error("its mesh address is unknown: neither gossip nor the quorum has it")]
    NoAddress,
    #[error(transparent)]
    Open(#[from] MeshError),
    #[error(transparent)]
    Ask(FrameError),
    #[error("its agent does not answer: it is stopping, or cannot be reached")]
    Unreachable(#[source] FrameError),
    #[error(transparent)]
    Malformed(FrameError),
    #[error("it does not answer in time")]
    Timeout,
    #[error("its message has a format that this version does not know")]
    UnknownForm,
    /// The other node's own reason, without control characters.
    #[error("{why}")]
    Refused { why: String },
}

impl UnansweredNode {
    /// The error of reading an answer.
    pub fn reading(error: FrameError) -> Self {
        match error {
            FrameError::Ended | FrameError::Io(_) => Self::Unreachable(error),
            FrameError::Version(_) | FrameError::TooLarge(_) | FrameError::Malformed => Self::Malformed(error),
        }
    }
}

/// A stream that a peer opened.
pub struct Incoming {
    pub peer: Caller,
    pub send: SendStream,
    pub recv: RecvStream,
}

/// A cloneable handle on the endpoint.
#[derive(Clone)]
pub struct Mesh {
    endpoint: Endpoint,
    credentials: Credentials,
    /// The TLS configuration for new connections.
    dialling: watch::Receiver<ClientConfig>,
    connections: Arc<Connections>,
    counts: Arc<Counts>,
    tasks: TaskTracker,
    stop: CancellationToken,
}

/// Connections that this agent opened, by node and address.
type Connections = Mutex<HashMap<(NodeId, String), Connection>>;

/// Counters for metrics.
#[derive(Debug, Default)]
struct Counts {
    opened: AtomicU64,
    accepted: AtomicU64,
    failed: AtomicU64,
}

/// A snapshot of the mesh's counters.
#[derive(Clone, Copy, Debug, Default)]
pub struct Counted {
    /// Open connections that this agent dialled.
    pub connections: u64,
    /// Streams opened by this agent, and streams accepted from peers.
    pub opened: u64,
    pub accepted: u64,
    /// Streams that could not be opened.
    pub failed: u64,
}

/// A stream that is being opened.
pub type Opening<'a> = Pin<Box<dyn Future<Output = Result<(SendStream, RecvStream), MeshError>> + Send + 'a>>;

impl Mesh {
    /// Listens until `stop`, and hands over the streams that peers open. A new certificate is used
    /// from the next connection on; open connections stay.
    pub fn listen(
        address: SocketAddr,
        credentials: &Credentials,
        stop: CancellationToken,
    ) -> Result<(Self, mpsc::Receiver<Incoming>), MeshError> {
        let mut material = credentials.material();
        let (server, client) = tls_configs(&material.borrow_and_update())?;
        let endpoint = endpoint(server, address).map_err(|source| MeshError::Listen { address, source })?;
        let (dial, dialling) = watch::channel(client);
        let listening = endpoint.clone();
        let stop = stop.child_token();
        let stopped = stop.clone();
        let tasks = TaskTracker::new();
        tasks.spawn(async move {
            while let Some(Ok(())) = stopped.run_until_cancelled(material.changed()).await {
                match tls_configs(&material.borrow_and_update()) {
                    Ok((server, client)) => {
                        listening.set_server_config(Some(server));
                        dial.send_replace(client);
                    }
                    Err(error) => tracing::error!(%error, "the mesh keeps its old certificate"),
                }
            }
        });
        let (send, receive) = mpsc::channel(INCOMING_QUEUE_LEN);
        let (counts, connections) = (Arc::new(Counts::default()), Arc::<Connections>::default());
        tasks.spawn(close_revoked(Arc::clone(&connections), credentials.clone(), stop.clone()));
        let serving = tasks.clone();
        tasks.spawn(accept(endpoint.clone(), credentials.clone(), send, Arc::clone(&counts), serving, stop.clone()));
        Ok((Self { endpoint, credentials: credentials.clone(), dialling, connections, counts, tasks, stop }, receive))
    }

    /// Opens a stream to `node`, whose mesh is at `address`, over an open connection or a new one.
    ///
    /// Boxed, so that dialling is compiled here and not in each crate that awaits it.
    pub fn open<'a>(&'a self, node: &'a NodeId, address: &'a str) -> Opening<'a> {
        Box::pin(async move {
            let opened = self.dial(node, address).await;
            let counter = if opened.is_ok() { &self.counts.opened } else { &self.counts.failed };
            counter.fetch_add(1, Ordering::Relaxed);
            opened
        })
    }

    /// A snapshot of the counters.
    pub fn counted(&self) -> Counted {
        let load = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let connections = self.connections.lock();
        let standing = connections.values().filter(|connection| connection.close_reason().is_none()).count();
        let Counts { opened, accepted, failed } = &*self.counts;
        Counted { connections: standing as u64, opened: load(opened), accepted: load(accepted), failed: load(failed) }
    }

    async fn dial(&self, node: &NodeId, address: &str) -> Result<(SendStream, RecvStream), MeshError> {
        let unreachable = |why: String| MeshError::Unreachable { node: node.clone(), address: address.to_owned(), why };
        let key = (node.clone(), address.to_owned());
        let known = self.connections.lock().get(&key).cloned();
        if let Some(connection) = known
            && let Ok(stream) = within(DIAL_TIMEOUT, connection.open_bi()).await.map_err(|e| unreachable(e.to_string()))?
        {
            return Ok(stream);
        }
        let socket = tokio::net::lookup_host(address).await.ok().and_then(|mut a| a.next());
        let socket = socket.ok_or_else(|| MeshError::Address { address: address.to_owned() })?;
        let config = self.dialling.borrow().clone();
        let connecting = self.endpoint.connect_with(config, socket, node.as_str()).map_err(|e| unreachable(e.to_string()))?;
        let connection = tokio::time::timeout(DIAL_TIMEOUT, connecting).await;
        let connection = connection.map_err(|_| unreachable("no answer".to_owned()))?.map_err(|e| {
            count(&self.credentials, socket, &e);
            unreachable(e.to_string())
        })?;
        let shown = shown(&connection);
        if let Some(Err(revoked)) = shown.as_ref().map(|shown| self.credentials.revoked().check(shown)) {
            refuse_revoked(&connection, &self.credentials, &revoked);
            return Err(unreachable(revoked.to_string()));
        }
        if !shown.is_some_and(|shown| shown.caller.name == node.as_str() && is_agent(&shown.caller)) {
            connection.close(VarInt::from_u32(1), b"the certificate is not of the node that was called");
            let error = unreachable("the agent at this address has another node's certificate".to_owned());
            self.credentials.refused().count(Cause::Name, &error);
            return Err(error);
        }
        let opened = within(DIAL_TIMEOUT, connection.open_bi()).await.map_err(|e| unreachable(e.to_string()))?;
        let stream = opened.map_err(|e| unreachable(e.to_string()))?;
        self.connections.lock().insert(key, connection);
        Ok(stream)
    }

    /// Closes all connections, and waits a moment for the tasks that serve them.
    pub async fn close(&self) {
        self.endpoint.close(VarInt::from_u32(0), b"the agent stops");
        self.stop.cancel();
        self.tasks.close();
        let over = async { tokio::join!(self.endpoint.wait_idle(), self.tasks.wait()) };
        let _ = tokio::time::timeout(Duration::from_millis(200), over).await;
    }
}

/// An endpoint with a receive buffer for the packets that arrive while this process waits for a
/// processor.
fn endpoint(server: ServerConfig, address: SocketAddr) -> io::Result<Endpoint> {
    let socket = UdpSocket::bind(address)?;
    // Only CAP_NET_ADMIN may exceed `net.core.rmem_max`; without it, the buffer is as large as that
    // allows.
    setsockopt(&socket, sockopt::RcvBufForce, &RECEIVE_BUFFER_BYTES)
        .or_else(|_| setsockopt(&socket, sockopt::RcvBuf, &RECEIVE_BUFFER_BYTES))?;
    Endpoint::new(EndpointConfig::default(), Some(server), socket, Arc::new(TokioRuntime))
}

fn tls_configs(material: &Material) -> Result<(ServerConfig, ClientConfig), MeshError> {
    let tls_error = |e: &dyn std::fmt::Display| MeshError::Tls(e.to_string());
    let mut transport = TransportConfig::default();
    let idle = IDLE_TIMEOUT.try_into().map_err(|e| tls_error(&e))?;
    transport.max_idle_timeout(Some(idle)).keep_alive_interval(Some(IDLE_TIMEOUT / 3));
    transport.max_concurrent_bidi_streams(VarInt::from_u32(STREAMS_PER_PEER)).max_concurrent_uni_streams(VarInt::from_u32(0));
    let transport = Arc::new(transport);
    let server = material.server(frame::ALPN).map_err(|e| tls_error(&e))?;
    let quic = quinn::crypto::rustls::QuicServerConfig::try_from(server).map_err(|e| tls_error(&e))?;
    let mut server = ServerConfig::with_crypto(Arc::new(quic));
    server.transport_config(Arc::clone(&transport));
    let client = material.client(frame::ALPN).map_err(|e| tls_error(&e))?;
    let quic = quinn::crypto::rustls::QuicClientConfig::try_from(client).map_err(|e| tls_error(&e))?;
    let mut client = ClientConfig::new(Arc::new(quic));
    client.transport_config(transport);
    Ok((server, client))
}

/// Limits the wait for a new stream: the peer allows none while it has its maximum open.
async fn within<T>(limit: Duration, stream: impl Future<Output = T>) -> Result<T, StreamTimeout> {
    tokio::time::timeout(limit, stream).await.map_err(|_| StreamTimeout { limit })
}

#[derive(Debug, Error)]
#[error("no stream could be opened within {} s: {STREAMS_PER_PEER} are open already, or the peer does not respond", .limit.as_secs())]
struct StreamTimeout {
    limit: Duration,
}

/// The peer's certificate, as TLS verified it.
fn shown(connection: &Connection) -> Option<Shown> {
    let certificates = connection.peer_identity()?.downcast::<Vec<rustls::pki_types::CertificateDer<'static>>>().ok()?;
    Shown::from_certificates(&certificates).ok()
}

fn refuse_revoked(connection: &Connection, credentials: &Credentials, revoked: &Revoked) {
    let why = revoked.to_string();
    credentials.refused().count(Cause::Revoked, &format_args!("{}: {why}", connection.remote_address()));
    connection.close(VarInt::from_u32(1), why.as_bytes());
}

/// Closes the connections that this agent dialled once the peer's certificate is revoked.
async fn close_revoked(connections: Arc<Connections>, credentials: Credentials, stop: CancellationToken) {
    let mut changes = credentials.revoked().changes();
    while let Some(Ok(())) = stop.run_until_cancelled(changes.changed()).await {
        let _seen = changes.borrow_and_update();
        connections.lock().retain(|_, connection| match shown(connection).map(|shown| credentials.revoked().check(&shown)) {
            Some(Err(revoked)) => {
                refuse_revoked(connection, &credentials, &revoked);
                false
            }
            Some(Ok(())) | None => true,
        });
    }
}

/// Whether the peer is another agent: neither a member nor a person.
fn is_agent(peer: &Caller) -> bool {
    matches!(peer.role, Role::Api | Role::Node)
}

/// Counts a handshake that this agent refused; not one that the peer refused.
fn count(credentials: &Credentials, remote: SocketAddr, error: &ConnectionError) {
    if let ConnectionError::TransportError(error) = error {
        // The last byte of such a code is the TLS alert (RFC 9001, 4.8).
        let code = u64::from(error.code);
        if let (1, Ok(alert)) = (code >> 8, u8::try_from(code & 0xff)) {
            credentials.refused().count(Cause::of_alert(alert), &format_args!("{remote}: {error}"));
        }
    }
}

async fn accept(
    endpoint: Endpoint,
    credentials: Credentials,
    send: mpsc::Sender<Incoming>,
    counts: Arc<Counts>,
    tasks: TaskTracker,
    stop: CancellationToken,
) {
    loop {
        let incoming = tokio::select! {
            () = stop.cancelled() => return,
            incoming = endpoint.accept() => incoming,
        };
        let Some(incoming) = incoming else { return };
        tasks.spawn(serve(incoming, credentials.clone(), send.clone(), Arc::clone(&counts), stop.clone()));
    }
}

async fn serve(
    incoming: quinn::Incoming,
    credentials: Credentials,
    send: mpsc::Sender<Incoming>,
    counts: Arc<Counts>,
    stop: CancellationToken,
) {
    let remote = incoming.remote_address();
    let connection = match incoming.await {
        Ok(connection) => connection,
        Err(error) => {
            tracing::debug!(%remote, %error, "a peer's handshake with the mesh failed");
            count(&credentials, remote, &error);
            return;
        }
    };
    let Some(shown) = shown(&connection).filter(|shown| is_agent(&shown.caller)) else {
        credentials.refused().count(Cause::Role, &format_args!("{remote}: a certificate with a node's name and role is needed"));
        connection.close(VarInt::from_u32(1), b"a certificate with a node's name and role is needed");
        return;
    };
    let mut revoked = Box::pin(credentials.revoked().until_revoked(&shown));
    loop {
        let stream = tokio::select! {
            biased;
            () = stop.cancelled() => return,
            revoked = &mut revoked => return refuse_revoked(&connection, &credentials, &revoked),
            stream = connection.accept_bi() => stream,
        };
        let Ok((reply, recv)) = stream else { return };
        counts.accepted.fetch_add(1, Ordering::Relaxed);
        if send.send(Incoming { peer: Caller::clone(&shown.caller), send: reply, recv }).await.is_err() {
            return;
        }
    }
}

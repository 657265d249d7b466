//! The mesh: one QUIC endpoint per agent, mutual TLS, streams only.
//!
//! A peer is who its certificate says (common name = node id, organisational unit = role). A connection is dialled
//! under the node's name, so that an agent at the wrong address is not taken for another. Connections are kept and
//! shared; a stream costs no handshake.

pub mod binding;
pub mod frame;
pub mod terminal;

use crate::tls::MeshTls;
use lattice_model::NodeId;
use lattice_quorum::identity::Caller;
use quinn::{Connection, Endpoint, RecvStream, SendStream, TransportConfig, VarInt};
use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use thiserror::Error;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

/// Streams that one peer may have open at once.
const STREAMS_PER_PEER: u32 = 4096;
/// A peer that says nothing for so long is gone; keep-alives go out three times as often.
const IDLE: Duration = Duration::from_secs(3);
/// How long a dial may take.
const DIAL: Duration = Duration::from_secs(3);
/// Incoming streams waiting for the agent.
const INCOMING: usize = 256;

/// Why no stream could be had.
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
    #[error("{address:?} is not an address of a mesh")]
    Address { address: String },
    #[error("node {node} does not answer at {address}: {why}")]
    Unreachable { node: NodeId, address: String, why: String },
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
    connections: Arc<Mutex<HashMap<(NodeId, String), Connection>>>,
}

impl Mesh {
    /// Listens, and hands over the streams that peers open until `stop`.
    pub fn listen(address: SocketAddr, tls: &MeshTls, stop: CancellationToken) -> Result<(Self, mpsc::Receiver<Incoming>), MeshError> {
        let tls_error = |e: &dyn std::fmt::Display| MeshError::Tls(e.to_string());
        let mut server = tls.server().map_err(|e| tls_error(&e))?;
        server.alpn_protocols = vec![frame::ALPN.to_vec()];
        let mut client = tls.client().map_err(|e| tls_error(&e))?;
        client.alpn_protocols = vec![frame::ALPN.to_vec()];
        let mut transport = TransportConfig::default();
        let idle = IDLE.try_into().map_err(|e| tls_error(&e))?;
        transport.max_idle_timeout(Some(idle)).keep_alive_interval(Some(IDLE / 3));
        transport.max_concurrent_bidi_streams(VarInt::from_u32(STREAMS_PER_PEER)).max_concurrent_uni_streams(VarInt::from_u32(0));
        let transport = Arc::new(transport);
        let quic = quinn::crypto::rustls::QuicServerConfig::try_from(server).map_err(|e| tls_error(&e))?;
        let mut server_config = quinn::ServerConfig::with_crypto(Arc::new(quic));
        server_config.transport_config(Arc::clone(&transport));
        let quic = quinn::crypto::rustls::QuicClientConfig::try_from(client).map_err(|e| tls_error(&e))?;
        let mut client_config = quinn::ClientConfig::new(Arc::new(quic));
        client_config.transport_config(transport);
        let mut endpoint = Endpoint::server(server_config, address).map_err(|source| MeshError::Listen { address, source })?;
        endpoint.set_default_client_config(client_config);
        let (send, receive) = mpsc::channel(INCOMING);
        tokio::spawn(accept(endpoint.clone(), send, stop));
        Ok((Self { endpoint, connections: Arc::default() }, receive))
    }

    /// Opens a stream to `node`, whose mesh is at `address`, over the connection that there is or a new one.
    pub async fn open(&self, node: &NodeId, address: &str) -> Result<(SendStream, RecvStream), MeshError> {
        let unreachable = |why: String| MeshError::Unreachable { node: node.clone(), address: address.to_owned(), why };
        let key = (node.clone(), address.to_owned());
        let known = self.connections.lock().unwrap_or_else(PoisonError::into_inner).get(&key).cloned();
        if let Some(connection) = known
            && let Ok(stream) = within(DIAL, connection.open_bi()).await.map_err(&unreachable)?
        {
            return Ok(stream);
        }
        let socket = tokio::net::lookup_host(address).await.ok().and_then(|mut a| a.next());
        let socket = socket.ok_or_else(|| MeshError::Address { address: address.to_owned() })?;
        let connecting = self.endpoint.connect(socket, node.as_str()).map_err(|e| unreachable(e.to_string()))?;
        let connection = tokio::time::timeout(DIAL, connecting).await;
        let connection = connection.map_err(|_| unreachable("no answer".to_owned()))?.map_err(|e| unreachable(e.to_string()))?;
        let stream = within(DIAL, connection.open_bi()).await.map_err(&unreachable)?.map_err(|e| unreachable(e.to_string()))?;
        self.connections.lock().unwrap_or_else(PoisonError::into_inner).insert(key, connection);
        Ok(stream)
    }

    /// Says good-bye to all peers.
    pub async fn close(&self) {
        self.endpoint.close(VarInt::from_u32(0), b"the agent stops");
        let _ = tokio::time::timeout(Duration::from_millis(200), self.endpoint.wait_idle()).await;
    }
}

/// A stream waits for the peer's leave. It gives none where so many are open already.
async fn within<T>(limit: Duration, stream: impl Future<Output = T>) -> Result<T, String> {
    let full =
        |_| format!("no stream could be opened within {} s: {STREAMS_PER_PEER} are open already, or it is not heard", limit.as_secs());
    tokio::time::timeout(limit, stream).await.map_err(full)
}

async fn accept(endpoint: Endpoint, send: mpsc::Sender<Incoming>, stop: CancellationToken) {
    loop {
        let incoming = tokio::select! {
            () = stop.cancelled() => return,
            incoming = endpoint.accept() => incoming,
        };
        let Some(incoming) = incoming else { return };
        tokio::spawn(serve(incoming, send.clone(), stop.clone()));
    }
}

async fn serve(incoming: quinn::Incoming, send: mpsc::Sender<Incoming>, stop: CancellationToken) {
    let remote = incoming.remote_address();
    let connection = match incoming.await {
        Ok(connection) => connection,
        Err(error) => {
            tracing::debug!(%remote, %error, "a peer's handshake with the mesh failed");
            return;
        }
    };
    let certificates = connection.peer_identity().and_then(|i| i.downcast::<Vec<rustls::pki_types::CertificateDer<'static>>>().ok());
    let Some(peer) = certificates.and_then(|c| Caller::from_certificates(&c).ok()) else {
        connection.close(VarInt::from_u32(1), b"a certificate with a node's name and role is needed");
        return;
    };
    loop {
        let stream = tokio::select! {
            () = stop.cancelled() => return,
            stream = connection.accept_bi() => stream,
        };
        let Ok((reply, recv)) = stream else { return };
        if send.send(Incoming { peer: peer.clone(), send: reply, recv }).await.is_err() {
            return;
        }
    }
}

//! A client for an agent's API, on its Unix socket or on the network.

mod error;
mod network;

pub use error::ConnectError;
pub use network::{Access, normalize};

use crate::MESSAGE_BYTES_MAX;
use crate::operator::{Credential, Signed};
use crate::v1::accounting_service_client::AccountingServiceClient;
use crate::v1::admin_service_client::AdminServiceClient;
use crate::v1::allocation_service_client::AllocationServiceClient;
use crate::v1::application_service_client::ApplicationServiceClient;
use crate::v1::checkpoint_endpoint_client::CheckpointEndpointClient;
use crate::v1::dag_service_client::DagServiceClient;
use crate::v1::lease_service_client::LeaseServiceClient;
use crate::v1::node_service_client::NodeServiceClient;
use crate::v1::reservation_service_client::ReservationServiceClient;
use crate::v1::session_service_client::SessionServiceClient;
use crate::v1::v_cluster_service_client::VClusterServiceClient;
use crate::v1::watch_service_client::WatchServiceClient;
use hyper_util::rt::TokioIo;
use network::{Address, Connector};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::net::{TcpStream, UnixStream};
use tonic::codegen::http::{HeaderValue, Uri};
use tonic::transport::{Channel, Endpoint};

/// Silence on a connection of the network after which the agent is asked whether it is there, and how long it may take to
/// answer. A machine that is gone does not close its connections.
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(20);
const KEEPALIVE_TIMEOUT: Duration = Duration::from_secs(20);

/// A connection, shared by its clones and by the service clients created from it.
#[derive(Clone, Debug)]
pub struct Client {
    channel: Signed<Channel>,
}

impl Client {
    /// Connects to `unix:/path`, or to `https://host:port` without a token.
    ///
    /// # Errors
    /// See [`ConnectError`]; its messages name the remedy.
    pub async fn connect(endpoint: &str) -> Result<Self, ConnectError> {
        Self::connect_with(endpoint, &Access::default()).await
    }

    /// Connects to `unix:/path`, for which `access` does not matter, or to `https://host:port`.
    ///
    /// # Errors
    /// See [`ConnectError`]; its messages name the remedy.
    pub async fn connect_with(endpoint: &str, access: &Access) -> Result<Self, ConnectError> {
        let no_endpoint = || ConnectError::Endpoint { endpoint: endpoint.to_owned() };
        let Some(path) = endpoint.strip_prefix("unix:") else {
            let address = Address::parse(endpoint).ok_or_else(no_endpoint)?;
            return Box::pin(Self::over_network(endpoint, address, access)).await;
        };
        // `unix:///path` is the URI form.
        let path = path.strip_prefix("//").unwrap_or(path);
        if !path.starts_with('/') {
            return Err(no_endpoint());
        }
        Self::over_unix(endpoint, Path::new(path)).await
    }

    async fn over_unix(endpoint: &str, path: &Path) -> Result<Self, ConnectError> {
        // Connect here first, because tonic's error would hide the system's error; the connector
        // then uses this stream.
        let stream = UnixStream::connect(path).await.map_err(|source| {
            let endpoint = endpoint.to_owned();
            if source.kind() == io::ErrorKind::PermissionDenied {
                ConnectError::Denied { endpoint, source }
            } else {
                ConnectError::NoAgent { endpoint, source }
            }
        })?;
        let first = Arc::new(Mutex::new(Some(stream)));
        let path: PathBuf = path.to_owned();
        let connector = tower::service_fn(move |_| {
            let ready = first.lock().unwrap_or_else(PoisonError::into_inner).take();
            let path = path.clone();
            async move {
                let stream = match ready {
                    Some(stream) => stream,
                    None => UnixStream::connect(path).await?,
                };
                Ok::<_, io::Error>(TokioIo::new(stream))
            }
        });
        // The authority is a placeholder: nobody resolves it.
        let channel = Endpoint::from_static("http://agent.lattice")
            .connect_with_connector(connector)
            .await
            .map_err(|source| ConnectError::Transport { endpoint: endpoint.to_owned(), source })?;
        Ok(Self { channel: Signed::new(channel) })
    }

    async fn over_network(endpoint: &str, address: Address, access: &Access) -> Result<Self, ConnectError> {
        let bearer = access.token.as_deref().map(bearer).transpose()?;
        let no_endpoint = || ConnectError::Endpoint { endpoint: endpoint.to_owned() };
        let origin: Uri = address.url().parse().map_err(|_| no_endpoint())?;
        // tonic would want to do TLS itself for a URI with https.
        let plain = Endpoint::from_shared(format!("http://{}", address.authority())).map_err(|_| no_endpoint())?;
        let connector = Connector::new(endpoint, address, access)?;
        // Connect here first, because tonic's error would hide ours; the connector then uses this stream.
        let first = Arc::new(Mutex::new(Some(connector.connect().await?)));
        let connector = tower::service_fn(move |_| {
            let ready = first.lock().unwrap_or_else(PoisonError::into_inner).take();
            let connector = connector.clone();
            async move {
                let stream = match ready {
                    Some(stream) => stream,
                    None => connector.connect().await?,
                };
                Ok::<_, ConnectError>(TokioIo::new(stream))
            }
        });
        let channel = plain
            .origin(origin)
            .http2_keep_alive_interval(KEEPALIVE_INTERVAL)
            .keep_alive_timeout(KEEPALIVE_TIMEOUT)
            .connect_with_connector(connector)
            .await
            .map_err(|source| ConnectError::Transport { endpoint: endpoint.to_owned(), source })?;
        Ok(Self { channel: Signed::new(channel).with_bearer(bearer) })
    }

    /// The same connection, with calls signed by this operator's credential.
    #[must_use]
    pub fn with_operator(&self, credential: Credential) -> Self {
        Self { channel: self.channel.with(credential) }
    }

    /// Submissions, their progress, logs and launches.
    pub fn allocations(&self) -> AllocationServiceClient<Signed<Channel>> {
        AllocationServiceClient::new(self.channel.clone())
            .max_decoding_message_size(MESSAGE_BYTES_MAX)
            .max_encoding_message_size(MESSAGE_BYTES_MAX)
    }

    /// Checkpoint calls of applications.
    pub fn application(&self) -> ApplicationServiceClient<Signed<Channel>> {
        ApplicationServiceClient::new(self.channel.clone())
            .max_decoding_message_size(MESSAGE_BYTES_MAX)
            .max_encoding_message_size(MESSAGE_BYTES_MAX)
    }

    /// Nodes, the status of the agent, gossip.
    pub fn nodes(&self) -> NodeServiceClient<Signed<Channel>> {
        NodeServiceClient::new(self.channel.clone())
            .max_decoding_message_size(MESSAGE_BYTES_MAX)
            .max_encoding_message_size(MESSAGE_BYTES_MAX)
    }

    /// Leases for external programs.
    pub fn leases(&self) -> LeaseServiceClient<Signed<Channel>> {
        LeaseServiceClient::new(self.channel.clone())
            .max_decoding_message_size(MESSAGE_BYTES_MAX)
            .max_encoding_message_size(MESSAGE_BYTES_MAX)
    }

    /// Interactive sessions.
    pub fn sessions(&self) -> SessionServiceClient<Signed<Channel>> {
        SessionServiceClient::new(self.channel.clone())
            .max_decoding_message_size(MESSAGE_BYTES_MAX)
            .max_encoding_message_size(MESSAGE_BYTES_MAX)
    }

    /// Queues and their tenants.
    pub fn vclusters(&self) -> VClusterServiceClient<Signed<Channel>> {
        VClusterServiceClient::new(self.channel.clone())
            .max_decoding_message_size(MESSAGE_BYTES_MAX)
            .max_encoding_message_size(MESSAGE_BYTES_MAX)
    }

    /// Nodes that are set aside for a time.
    pub fn reservations(&self) -> ReservationServiceClient<Signed<Channel>> {
        ReservationServiceClient::new(self.channel.clone())
            .max_decoding_message_size(MESSAGE_BYTES_MAX)
            .max_encoding_message_size(MESSAGE_BYTES_MAX)
    }

    /// DAGs.
    pub fn dags(&self) -> DagServiceClient<Signed<Channel>> {
        DagServiceClient::new(self.channel.clone())
            .max_decoding_message_size(MESSAGE_BYTES_MAX)
            .max_encoding_message_size(MESSAGE_BYTES_MAX)
    }

    /// Watches of nodes, allocations and leases.
    pub fn watches(&self) -> WatchServiceClient<Signed<Channel>> {
        WatchServiceClient::new(self.channel.clone())
            .max_decoding_message_size(MESSAGE_BYTES_MAX)
            .max_encoding_message_size(MESSAGE_BYTES_MAX)
    }

    /// Ended work of any age, and its store.
    pub fn accounting(&self) -> AccountingServiceClient<Signed<Channel>> {
        AccountingServiceClient::new(self.channel.clone())
            .max_decoding_message_size(MESSAGE_BYTES_MAX)
            .max_encoding_message_size(MESSAGE_BYTES_MAX)
    }

    /// The quorum and its audit log.
    pub fn admin(&self) -> AdminServiceClient<Signed<Channel>> {
        AdminServiceClient::new(self.channel.clone())
            .max_decoding_message_size(MESSAGE_BYTES_MAX)
            .max_encoding_message_size(MESSAGE_BYTES_MAX)
    }
}

/// The header that carries a token. It is never shown.
fn bearer(token: &str) -> Result<HeaderValue, ConnectError> {
    let is_token = !token.is_empty() && token.bytes().all(|byte| byte.is_ascii_graphic());
    let mut value = HeaderValue::try_from(format!("Bearer {token}")).ok().filter(|_| is_token).ok_or(ConnectError::Token)?;
    value.set_sensitive(true);
    Ok(value)
}

/// A client for an application's own endpoint on an existing connection; it opens no other
/// connection. `message_bytes_max`: largest message to accept.
///
/// # Errors
/// The connection broke.
pub async fn checkpoint_endpoint(
    stream: TcpStream,
    message_bytes_max: usize,
) -> Result<CheckpointEndpointClient<Channel>, tonic::transport::Error> {
    let once = Arc::new(Mutex::new(Some(stream)));
    let connector = tower::service_fn(move |_| {
        let stream = once.lock().unwrap_or_else(PoisonError::into_inner).take();
        async move { stream.map(TokioIo::new).ok_or_else(|| io::Error::other("the application's connection is closed")) }
    });
    let channel = Endpoint::from_static("http://application.lattice").connect_with_connector(connector).await?;
    Ok(CheckpointEndpointClient::new(channel).max_decoding_message_size(message_bytes_max))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn connect(endpoint: &str) -> Result<Client, ConnectError> {
        tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(Client::connect(endpoint))
    }

    #[test]
    fn a_missing_agent_is_reported_with_a_remedy() {
        let error = connect("unix:/nonexistent/agent.sock").unwrap_err();
        assert!(matches!(error, ConnectError::NoAgent { .. }), "{error:?}");
        assert!(error.to_string().starts_with("no agent answers at unix:/nonexistent/agent.sock"), "{error}");
        assert!(error.to_string().contains("lattice doctor"), "{error}");
    }

    #[test]
    fn other_forms_of_endpoints_are_refused() {
        for bad in ["", "agent.sock", "unix:agent.sock", "unix:", "https://a:b", "http://127.0.0.1:1"] {
            assert!(matches!(connect(bad).unwrap_err(), ConnectError::Endpoint { .. }), "{bad:?}");
        }
    }

    #[test]
    fn only_a_word_is_a_token_and_it_is_not_shown() {
        for bad in ["", "two words", "line\n", "lättice"] {
            assert!(matches!(bearer(bad), Err(ConnectError::Token)), "{bad:?}");
        }
        let value = bearer("lattice_0123").unwrap();
        assert_eq!((value.to_str().unwrap(), format!("{value:?}").as_str()), ("Bearer lattice_0123", "Sensitive"));
    }
}

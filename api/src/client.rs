//! A client for an agent's API on its Unix socket.

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
use crate::v1::session_service_client::SessionServiceClient;
use crate::v1::v_cluster_service_client::VClusterServiceClient;
use crate::v1::watch_service_client::WatchServiceClient;
use hyper_util::rt::TokioIo;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use thiserror::Error;
use tokio::net::{TcpStream, UnixStream};
use tonic::transport::{Channel, Endpoint};

/// Why connecting failed.
#[derive(Debug, Error)]
pub enum ConnectError {
    /// The endpoint has an unknown form.
    #[error("{endpoint:?} is not an endpoint: write unix:/path/of/agent.sock")]
    Endpoint {
        /// The given endpoint.
        endpoint: String,
    },
    /// No process listens on the socket.
    #[error("no agent answers at {endpoint}: is lattice-agent running on this machine? `lattice doctor` checks that")]
    NoAgent {
        /// The endpoint.
        endpoint: String,
        /// The error of the operating system.
        #[source]
        source: io::Error,
    },
    /// The socket exists, but this user may not use it.
    #[error("may not connect to {endpoint}: its permissions do not allow this user")]
    Denied {
        /// The endpoint.
        endpoint: String,
        /// The error of the operating system.
        #[source]
        source: io::Error,
    },
    /// The connection was established, but the transport failed.
    #[error("no agent answers at {endpoint}: is another program listening there?")]
    Transport {
        /// The endpoint.
        endpoint: String,
        /// The transport's error.
        #[source]
        source: tonic::transport::Error,
    },
}

/// A connection, shared by its clones and by the service clients created from it.
#[derive(Clone, Debug)]
pub struct Client {
    channel: Signed<Channel>,
}

impl Client {
    /// Connects to `unix:/path`.
    ///
    /// # Errors
    /// See [`ConnectError`]; its messages name the remedy.
    pub async fn connect(endpoint: &str) -> Result<Self, ConnectError> {
        let no_endpoint = || ConnectError::Endpoint { endpoint: endpoint.to_owned() };
        let path = endpoint.strip_prefix("unix:").ok_or_else(no_endpoint)?;
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
        for bad in ["", "agent.sock", "unix:agent.sock", "unix:", "https://a:1", "http://127.0.0.1:1"] {
            assert!(matches!(connect(bad).unwrap_err(), ConnectError::Endpoint { .. }), "{bad:?}");
        }
    }
}

//! Keys and certificates, and what is made of them for tonic.

use crate::identity::QUORUM_NAME;
use std::path::PathBuf;
use std::time::Duration;
use thiserror::Error;
use tonic::transport::{Certificate, Channel, ClientTlsConfig, Endpoint, Identity, ServerTlsConfig};

/// A peer that does not answer a ping for as long as this is taken for dead.
const PING_TIMEOUT: Duration = Duration::from_secs(1);
/// How often a connection is pinged.
const PING_INTERVAL: Duration = Duration::from_secs(1);
/// How long a connection may take to come about.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);

/// One identity and the authority that it trusts, all PEM.
#[derive(Clone)]
pub struct ClientTls {
    /// The authority's certificate.
    pub ca: String,
    /// The own certificate (chain).
    pub cert: String,
    /// Its key.
    pub key: String,
}

impl std::fmt::Debug for ClientTls {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ClientTls").finish_non_exhaustive()
    }
}

/// TLS that cannot be used.
#[derive(Debug, Error)]
pub enum TlsError {
    #[error("{}: cannot be read", path.display())]
    Read {
        path: PathBuf,
        #[source]
        source: std::io::Error,
    },
    #[error("{endpoint:?} is not an address (host:port)")]
    Endpoint {
        endpoint: String,
        #[source]
        source: tonic::transport::Error,
    },
    #[error("certificate, key or authority cannot be used")]
    Material(#[source] tonic::transport::Error),
}

/// Where certificate, key and authority lie.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct TlsFiles {
    /// The authority's certificate, PEM.
    pub ca: PathBuf,
    /// The own certificate, PEM.
    pub cert: PathBuf,
    /// Its key, PEM, mode 0600.
    pub key: PathBuf,
}

impl TlsFiles {
    /// Reads all three.
    pub fn read(&self) -> Result<ClientTls, TlsError> {
        let read = |path: &PathBuf| std::fs::read_to_string(path).map_err(|source| TlsError::Read { path: path.clone(), source });
        Ok(ClientTls { ca: read(&self.ca)?, cert: read(&self.cert)?, key: read(&self.key)? })
    }
}

impl ClientTls {
    /// A connection to a member that must show the name `name`, made when it is first used and again after each loss.
    pub(crate) fn channel(&self, endpoint: &str, name: &str) -> Result<Channel, TlsError> {
        use_ring();
        let tls = ClientTlsConfig::new()
            .ca_certificate(Certificate::from_pem(&self.ca))
            .identity(Identity::from_pem(&self.cert, &self.key))
            .domain_name(name);
        let endpoint = Endpoint::from_shared(format!("https://{endpoint}"))
            .map_err(|source| TlsError::Endpoint { endpoint: endpoint.to_owned(), source })?
            .tls_config(tls)
            .map_err(TlsError::Material)?
            .connect_timeout(CONNECT_TIMEOUT)
            .tcp_nodelay(true)
            .http2_keep_alive_interval(PING_INTERVAL)
            .keep_alive_timeout(PING_TIMEOUT)
            .initial_stream_window_size(1 << 20)
            .initial_connection_window_size(4 << 20);
        Ok(endpoint.connect_lazy())
    }

    /// A connection to any member's service.
    pub(crate) fn quorum_channel(&self, endpoint: &str) -> Result<Channel, TlsError> {
        self.channel(endpoint, QUORUM_NAME)
    }

    /// For a member's listeners: every client must show a certificate of the authority.
    pub(crate) fn server(&self) -> ServerTlsConfig {
        use_ring();
        ServerTlsConfig::new()
            .identity(Identity::from_pem(&self.cert, &self.key))
            .client_ca_root(Certificate::from_pem(&self.ca))
            .timeout(Duration::from_secs(5))
    }
}

/// Every TLS connection of this process rests on ring.
fn use_ring() {
    // Another part of the process may have installed it already; it is the same one.
    let _already = rustls::crypto::ring::default_provider().install_default();
}

//! Connections to an agent on the network: TCP, then TLS with a certificate that is verified.

use super::error::ConnectError;
use rustls::crypto::ring::default_provider;
use rustls::{CertificateError, ClientConfig, RootCertStore};
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tokio::net::{TcpStream, lookup_host};
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tonic::codegen::http::Uri;

/// The port of an endpoint that names none.
const PORT_DEFAULT: u16 = 50051;

/// Timeout of a connection: resolving the name, TCP and TLS together.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// How to reach agents on the network, and as whom.
#[derive(Clone, Default)]
pub struct Access {
    /// A file with the certificates of the authorities that are trusted (PEM). `None`: those of this machine.
    pub ca: Option<PathBuf>,
    /// A file with an own certificate and its key (PEM), for agents that demand one besides the token.
    pub certificate: Option<PathBuf>,
    /// The token that is sent with each call.
    pub token: Option<String>,
}

/// Without the token.
impl std::fmt::Debug for Access {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { ca, certificate, token } = self;
        let token = token.as_ref().map(|_| "[secret]");
        f.debug_struct("Access").field("ca", ca).field("certificate", certificate).field("token", &token).finish()
    }
}

/// The whole form of an endpoint on the network: `https://host:port`. `None`: it has another form.
/// A host with a port but without a scheme counts as `https`.
pub fn normalize(endpoint: &str) -> Option<String> {
    Address::parse(endpoint).map(|address| address.url())
}

/// Host and port of an endpoint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Address {
    /// A name, or an address without brackets.
    host: String,
    port: u16,
}

impl Address {
    pub(super) fn parse(endpoint: &str) -> Option<Self> {
        let whole = if endpoint.contains("://") { endpoint.to_owned() } else { format!("https://{endpoint}") };
        let uri: Uri = whole.parse().ok()?;
        let authority = uri.authority()?;
        let is_bare = matches!(uri.path(), "" | "/") && uri.query().is_none() && !authority.as_str().contains('@');
        let port = match authority.port_u16() {
            Some(port) => port,
            // Without a scheme, the port distinguishes a host from a mistyped path. A port that is no number is none.
            None if endpoint.contains("://") && authority.as_str() == authority.host() => PORT_DEFAULT,
            None => return None,
        };
        let host = authority.host();
        let host = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host).to_ascii_lowercase();
        (is_bare && uri.scheme_str() == Some("https") && !host.is_empty()).then_some(Self { host, port })
    }

    pub(super) fn url(&self) -> String {
        format!("https://{}", self.authority())
    }

    /// `host:port`, as it is in a URL.
    pub(super) fn authority(&self) -> String {
        let Self { host, port } = self;
        if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") }
    }
}

/// Opens connections to one endpoint.
#[derive(Clone)]
pub(super) struct Connector {
    endpoint: String,
    address: Address,
    name: ServerName<'static>,
    tls: TlsConnector,
}

impl Connector {
    pub(super) fn new(endpoint: &str, address: Address, access: &Access) -> Result<Self, ConnectError> {
        let no_endpoint = |_| ConnectError::Endpoint { endpoint: endpoint.to_owned() };
        let name = ServerName::try_from(address.host.clone()).map_err(no_endpoint)?;
        let tls = tls(access.ca.as_deref(), access.certificate.as_deref())?;
        Ok(Self { endpoint: endpoint.to_owned(), address, name, tls: TlsConnector::from(Arc::new(tls)) })
    }

    /// Opens a connection within [`CONNECT_TIMEOUT`].
    pub(super) async fn connect(&self) -> Result<TlsStream<TcpStream>, ConnectError> {
        let late = |_| ConnectError::Timeout { endpoint: self.endpoint.clone(), seconds: CONNECT_TIMEOUT.as_secs() };
        timeout(CONNECT_TIMEOUT, self.connect_without_timeout()).await.map_err(late)?
    }

    async fn connect_without_timeout(&self) -> Result<TlsStream<TcpStream>, ConnectError> {
        let stream = self.connect_tcp().await?;
        self.tls.connect(self.name.clone(), stream).await.map_err(|source| handshake_error(self.endpoint.clone(), source))
    }

    async fn connect_tcp(&self) -> Result<TcpStream, ConnectError> {
        let endpoint = || self.endpoint.clone();
        let addresses = lookup_host((self.address.host.as_str(), self.address.port)).await;
        let addresses = addresses.map_err(|source| ConnectError::UnknownHost { endpoint: endpoint(), source })?;
        let stream = connect_first(&addresses.collect::<Vec<_>>(), CONNECT_TIMEOUT).await.map_err(|source| match source.kind() {
            io::ErrorKind::NotFound => ConnectError::UnknownHost { endpoint: endpoint(), source },
            io::ErrorKind::TimedOut => ConnectError::Timeout { endpoint: endpoint(), seconds: CONNECT_TIMEOUT.as_secs() },
            _ => ConnectError::Unreachable { endpoint: endpoint(), source },
        })?;
        // Keys and their echo are small packets. Without the option they are only slower.
        let _ = stream.set_nodelay(true);
        Ok(stream)
    }
}

/// Connects to the first of these addresses that accepts. Each gets an equal part of the time, because one that does not
/// answer, such as IPv6 where it is not routed, must leave time for the others. No address at all is `NotFound`.
async fn connect_first(addresses: &[SocketAddr], time: Duration) -> io::Result<TcpStream> {
    let mut last = io::ErrorKind::NotFound.into();
    let part = time / u32::try_from(addresses.len().max(1)).unwrap_or(u32::MAX);
    for address in addresses {
        match timeout(part, TcpStream::connect(address)).await {
            Ok(Ok(stream)) => return Ok(stream),
            Ok(Err(error)) => last = error,
            Err(_) => last = io::ErrorKind::TimedOut.into(),
        }
    }
    Err(last)
}

fn handshake_error(endpoint: String, source: io::Error) -> ConnectError {
    match source.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>()) {
        Some(rustls::Error::InvalidCertificate(problem)) => match problem {
            CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. } => {
                ConnectError::OtherName { endpoint, source }
            }
            CertificateError::Expired
            | CertificateError::ExpiredContext { .. }
            | CertificateError::NotValidYet
            | CertificateError::NotValidYetContext { .. } => ConnectError::NotValidNow { endpoint, source },
            _ => ConnectError::Untrusted { endpoint, source },
        },
        _ => ConnectError::Handshake { endpoint, source },
    }
}

/// TLS with HTTP/2, which trusts the authorities in the file `ca`, or those of this machine, and shows the certificate in
/// the file `certificate`, or none.
fn tls(ca: Option<&Path>, certificate: Option<&Path>) -> Result<ClientConfig, ConnectError> {
    let cannot = |source| ConnectError::Tls { source };
    let roots = match ca {
        Some(path) => roots_of_file(path)?,
        None => roots_of_machine()?,
    };
    let config = ClientConfig::builder_with_provider(Arc::new(default_provider()));
    let config = config.with_safe_default_protocol_versions().map_err(cannot)?.with_root_certificates(roots);
    let mut config = match certificate {
        Some(path) => {
            let (chain, key) = own_certificate(path)?;
            config.with_client_auth_cert(chain, key).map_err(cannot)?
        }
        None => config.with_no_client_auth(),
    };
    config.alpn_protocols = vec![b"h2".to_vec()];
    Ok(config)
}

fn own_certificate(path: &Path) -> Result<(Vec<CertificateDer<'static>>, PrivateKeyDer<'static>), ConnectError> {
    let unusable = |source| ConnectError::OwnCertificate { path: path.to_owned(), source };
    let pem = std::fs::read(path).map_err(|error| unusable(Some(error)))?;
    let chain: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&pem).collect();
    let chain = chain.ok().filter(|chain| !chain.is_empty()).ok_or_else(|| unusable(None))?;
    let key = PrivateKeyDer::from_pem_slice(&pem).map_err(|_| unusable(None))?;
    Ok((chain, key))
}

fn roots_of_file(path: &Path) -> Result<RootCertStore, ConnectError> {
    let unusable = |source| ConnectError::Authorities { path: path.to_owned(), source };
    let pem = std::fs::read(path).map_err(|error| unusable(Some(error)))?;
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_slice_iter(&pem) {
        let certificate = certificate.map_err(|_| unusable(None))?;
        roots.add(certificate).map_err(|_| unusable(None))?;
    }
    if roots.is_empty() { Err(unusable(None)) } else { Ok(roots) }
}

fn roots_of_machine() -> Result<RootCertStore, ConnectError> {
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    if roots.is_empty() { Err(ConnectError::NoAuthorities) } else { Ok(roots) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn endpoints_of_the_network_have_one_whole_form() {
        for (given, whole) in [
            ("https://head.example.org", Some("https://head.example.org:50051")),
            ("https://head:443/", Some("https://head:443")),
            ("https://HEAD:443", Some("https://head:443")),
            ("head.example.org:50051", Some("https://head.example.org:50051")),
            ("https://[::1]:8443", Some("https://[::1]:8443")),
            ("https://10.0.0.1", Some("https://10.0.0.1:50051")),
            ("http://head:50051", None),
            ("https://head:50051/path", None),
            ("https://head:50051?x", None),
            ("https://me@head:50051", None),
            ("https://head:70000", None),
            ("https://head:", None),
            ("https://", None),
            ("head", None),
            ("unix:agent.sock", None),
            ("unix:/run/agent.sock", None),
            ("", None),
        ] {
            assert_eq!(normalize(given).as_deref(), whole, "{given}");
        }
    }

    #[test]
    fn a_file_without_an_authority_is_refused_with_its_path() {
        let error = |path: &str| tls(Some(Path::new(path)), None).map(drop).unwrap_err().to_string();
        for path in ["/nonexistent/ca.crt", "/etc/passwd"] {
            assert!(error(path).starts_with(&format!("the file {path} has no certificate")), "{}", error(path));
        }
    }

    #[test]
    fn each_problem_of_a_certificate_has_its_own_remedy() {
        let of = |problem| {
            let source = io::Error::other(rustls::Error::InvalidCertificate(problem));
            handshake_error("https://head:1".to_owned(), source).to_string()
        };
        assert!(of(CertificateError::UnknownIssuer).contains("LATTICE_CA"));
        assert!(of(CertificateError::NotValidForName).contains("for another name"));
        assert!(of(CertificateError::Expired).contains("clock"));
        assert!(of(CertificateError::NotValidYet).contains("clock"));
        let garbage = handshake_error("https://head:1".to_owned(), io::Error::other("corrupt message"));
        assert!(garbage.to_string().contains("is another program listening there?"), "{garbage}");
    }

    #[test]
    fn the_next_address_of_a_host_is_tried() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
            let there = listener.local_addr().unwrap();
            let closed: SocketAddr = "127.0.0.1:1".parse().unwrap();
            let stream = connect_first(&[closed, there], CONNECT_TIMEOUT).await.unwrap();
            assert_eq!(stream.peer_addr().unwrap(), there);
            let refused = connect_first(&[closed], CONNECT_TIMEOUT).await.unwrap_err();
            assert_eq!(refused.kind(), io::ErrorKind::ConnectionRefused);
            assert_eq!(connect_first(&[], CONNECT_TIMEOUT).await.unwrap_err().kind(), io::ErrorKind::NotFound);
        });
    }

    #[test]
    fn a_token_is_not_shown() {
        let access = Access { token: Some("lattice_0123".to_owned()), ..Access::default() };
        assert!(!format!("{access:?}").contains("0123"));
    }
}

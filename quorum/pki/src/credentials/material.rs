//! A certificate with its key and the trusted authority, in the form that TLS needs.

use crate::identity::{Caller, CallerError};
use crate::tls::{ClientTls, TlsError};
use rustls::client::{Resumption, verify_server_cert_signed_by_trust_anchor};
use rustls::crypto::CryptoProvider;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, UnixTime};
use rustls::server::{NoServerSessionStorage, ParsedCertificate, WebPkiClientVerifier};
use rustls::{ClientConfig, RootCertStore, ServerConfig};
use std::sync::Arc;
use std::time::{Duration, SystemTime};
use x509_parser::prelude::{FromDer, X509Certificate};

/// HTTP/2 as an ALPN protocol name.
const H2: &[u8] = b"h2";

/// The validity period of a certificate, in seconds since 1970.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Validity {
    pub from: i64,
    pub until: i64,
}

impl Validity {
    /// The validity of a certificate of any authority.
    pub fn of(certificate: &CertificateDer<'_>) -> Result<Self, CallerError> {
        let (_, leaf) = X509Certificate::from_der(certificate).map_err(|_| CallerError::Unreadable)?;
        Ok(Self { from: leaf.validity().not_before.timestamp(), until: leaf.validity().not_after.timestamp() })
    }

    /// Its total length.
    pub fn life(self) -> Duration {
        Duration::from_secs(u64::try_from(self.until - self.from).unwrap_or_default())
    }

    /// Whether it has begun. A certificate whose validity has not begun was signed while a clock
    /// was ahead: no peer accepts it.
    pub(super) fn has_begun(self) -> bool {
        self.from <= now()
    }

    /// The remaining time; `None`: it has expired.
    pub fn left(self) -> Option<Duration> {
        u64::try_from(self.until - now()).ok().filter(|left| *left > 0).map(Duration::from_secs)
    }

    /// Whether two thirds of it have passed.
    pub fn is_due(self) -> bool {
        now() >= self.due()
    }

    pub(super) fn due(self) -> i64 {
        self.from + (self.until - self.from) / 3 * 2
    }
}

/// Credentials from one reading of the files.
pub struct Material {
    /// The PEM texts as read.
    pub pem: ClientTls,
    /// The identity in the certificate.
    pub own: Caller,
    pub valid: Validity,
    roots: Arc<RootCertStore>,
    chain: Vec<CertificateDer<'static>>,
    key: PrivateKeyDer<'static>,
    pub(super) grpc_server: Arc<ServerConfig>,
    pub(super) grpc_client: Arc<ClientConfig>,
}

impl std::fmt::Debug for Material {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Material").field("own", &self.own).field("valid", &self.valid).finish_non_exhaustive()
    }
}

impl Material {
    /// Decodes the texts, and checks that key and certificate belong together.
    pub fn new(pem: ClientTls) -> Result<Self, TlsError> {
        let bad = |what, why: String| TlsError::Pem { what, why };
        let mut roots = RootCertStore::empty();
        for root in CertificateDer::pem_slice_iter(pem.ca.as_bytes()) {
            roots.add(root.map_err(|e| bad("authority's certificate", e.to_string()))?)?;
        }
        let chain: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem.cert.as_bytes()).collect();
        let chain = chain.map_err(|e| bad("certificate", e.to_string()))?;
        if chain.is_empty() || roots.is_empty() {
            return Err(bad(if chain.is_empty() { "certificate" } else { "authority's certificate" }, "the file holds none".to_owned()));
        }
        let key = PrivateKeyDer::from_pem_slice(pem.key.as_bytes()).map_err(|e| bad("key", e.to_string()))?;
        let own = Caller::from_certificates(&chain)?;
        let valid = Validity::of(&chain[0])?;
        let roots = Arc::new(roots);
        let grpc_server = Arc::new(server(&roots, &chain, &key, H2)?);
        let grpc_client = Arc::new(client(&roots, &chain, &key, H2)?);
        Ok(Self { pem, own, valid, roots, chain, key, grpc_server, grpc_client })
    }

    /// The TLS configuration for listening: clients must present a certificate of the authority.
    pub fn server(&self, protocol: &[u8]) -> Result<ServerConfig, TlsError> {
        server(&self.roots, &self.chain, &self.key, protocol)
    }

    /// The TLS configuration for connecting.
    pub fn client(&self, protocol: &[u8]) -> Result<ClientConfig, TlsError> {
        client(&self.roots, &self.chain, &self.key, protocol)
    }

    /// The end certificate.
    pub fn leaf(&self) -> &CertificateDer<'static> {
        &self.chain[0]
    }

    /// Checks that peers which trust the same authority would accept it now.
    pub fn verified(&self) -> Result<(), TlsError> {
        self.verify(self.leaf(), &self.chain[1..])
    }

    /// Checks that the trusted authority has issued this certificate, and that it is valid now.
    pub fn verify(&self, certificate: &CertificateDer<'_>, chain: &[CertificateDer<'_>]) -> Result<(), TlsError> {
        let leaf = ParsedCertificate::try_from(certificate)?;
        let algorithms = provider().signature_verification_algorithms.all;
        Ok(verify_server_cert_signed_by_trust_anchor(&leaf, &self.roots, chain, UnixTime::now(), algorithms)?)
    }
}

fn server(
    roots: &Arc<RootCertStore>,
    chain: &[CertificateDer<'static>],
    key: &PrivateKeyDer<'static>,
    protocol: &[u8],
) -> Result<ServerConfig, TlsError> {
    let verifier = WebPkiClientVerifier::builder_with_provider(Arc::clone(roots), provider()).build()?;
    let builder = ServerConfig::builder_with_provider(provider()).with_protocol_versions(&[&rustls::version::TLS13])?;
    let mut config = builder.with_client_cert_verifier(verifier).with_single_cert(chain.to_vec(), key.clone_key())?;
    config.alpn_protocols = vec![protocol.to_vec()];
    config.session_storage = Arc::new(NoServerSessionStorage {});
    config.send_tls13_tickets = 0;
    Ok(config)
}

fn client(
    roots: &Arc<RootCertStore>,
    chain: &[CertificateDer<'static>],
    key: &PrivateKeyDer<'static>,
    protocol: &[u8],
) -> Result<ClientConfig, TlsError> {
    let builder = ClientConfig::builder_with_provider(provider()).with_protocol_versions(&[&rustls::version::TLS13])?;
    let mut config = builder.with_root_certificates(Arc::clone(roots)).with_client_auth_cert(chain.to_vec(), key.clone_key())?;
    config.alpn_protocols = vec![protocol.to_vec()];
    config.resumption = Resumption::disabled();
    Ok(config)
}

pub(super) fn now() -> i64 {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs().cast_signed()
}

fn provider() -> Arc<CryptoProvider> {
    Arc::new(rustls::crypto::ring::default_provider())
}

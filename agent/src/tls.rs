//! The agent's certificate for the mesh, and whom it believes. Names and roles are read as the quorum reads them.

use lattice_quorum::identity::Caller;
use lattice_quorum::tls::ClientTls;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::{ClientConfig, RootCertStore, ServerConfig};
use std::sync::Arc;
use thiserror::Error;

/// Certificates that cannot be used.
#[derive(Debug, Error)]
pub enum TlsError {
    #[error("the {what} cannot be read: {why}")]
    Pem { what: &'static str, why: String },
    #[error("{0}")]
    Rustls(#[from] rustls::Error),
    #[error("{0}")]
    Verifier(#[from] rustls::server::VerifierBuilderError),
}

/// One identity and its authority, decoded.
pub struct MeshTls {
    roots: Arc<RootCertStore>,
    chain: Vec<CertificateDer<'static>>,
    key: PrivateKeyDer<'static>,
}

impl MeshTls {
    /// Decodes what the files hold.
    pub fn new(pem: &ClientTls) -> Result<Self, TlsError> {
        let bad = |what, why: String| TlsError::Pem { what, why };
        let mut roots = RootCertStore::empty();
        for root in CertificateDer::pem_slice_iter(pem.ca.as_bytes()) {
            roots.add(root.map_err(|e| bad("CA certificate", e.to_string()))?)?;
        }
        let chain: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem.cert.as_bytes()).collect();
        let chain = chain.map_err(|e| bad("certificate", e.to_string()))?;
        if chain.is_empty() || roots.is_empty() {
            return Err(bad(if chain.is_empty() { "certificate" } else { "CA certificate" }, "the file holds none".to_owned()));
        }
        let key = PrivateKeyDer::from_pem_slice(pem.key.as_bytes()).map_err(|e| bad("key", e.to_string()))?;
        Ok(Self { roots: Arc::new(roots), chain, key })
    }

    /// Who our own certificate says that we are.
    pub fn own(&self) -> Result<Caller, lattice_quorum::identity::CallerError> {
        Caller::from_certificates(&self.chain)
    }

    /// For listening: clients must show a certificate of the cluster's CA.
    pub fn server(&self) -> Result<ServerConfig, TlsError> {
        let verifier = WebPkiClientVerifier::builder_with_provider(Arc::clone(&self.roots), provider()).build()?;
        let builder = ServerConfig::builder_with_provider(provider()).with_protocol_versions(&[&rustls::version::TLS13])?;
        Ok(builder.with_client_cert_verifier(verifier).with_single_cert(self.chain.clone(), self.key.clone_key())?)
    }

    /// For dialling.
    pub fn client(&self) -> Result<ClientConfig, TlsError> {
        let builder = ClientConfig::builder_with_provider(provider()).with_protocol_versions(&[&rustls::version::TLS13])?;
        Ok(builder.with_root_certificates(Arc::clone(&self.roots)).with_client_auth_cert(self.chain.clone(), self.key.clone_key())?)
    }
}

fn provider() -> Arc<rustls::crypto::CryptoProvider> {
    Arc::new(rustls::crypto::ring::default_provider())
}

//! The peer of a connection, and whether its certificate is valid.

use crate::identity::{Caller, CallerError, Role, Shown};
use crate::revoked::RevocationList;
use rustls::pki_types::CertificateDer;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

/// The peer of a connection: read once, after TLS has verified it.
#[derive(Clone, Debug)]
pub struct Connected {
    shown: Result<Shown, CallerError>,
    /// Its certificate.
    pub certificate: Option<Arc<CertificateDer<'static>>>,
    revoked: RevocationList,
    /// Its address; `None`: unknown.
    pub address: Option<IpAddr>,
}

impl Connected {
    /// The role in its certificate; `None`: the certificate contains no identity.
    pub fn role(&self) -> Option<Role> {
        self.shown.as_ref().ok().map(|shown| shown.caller.role)
    }

    /// Returns when its certificate is revoked; never if the certificate contains no identity. If
    /// it is already revoked, returns after `patience`: until then its calls are refused with that
    /// reason.
    pub async fn until_revoked(self, patience: Duration) {
        let Ok(shown) = &self.shown else { return std::future::pending().await };
        match self.revoked.check(shown) {
            Ok(()) => drop(self.revoked.until_revoked(shown).await),
            Err(_) => tokio::time::sleep(patience).await,
        }
    }

    /// The same peer with this address.
    pub fn at(self, address: Option<SocketAddr>) -> Self {
        Self { address: address.map(|address| address.ip()), ..self }
    }

    /// The peer with this verified certificate chain.
    pub fn by(chain: &[CertificateDer<'_>], revoked: RevocationList) -> Self {
        let certificate = chain.first().map(|der| Arc::new(der.clone().into_owned()));
        Self { shown: Shown::from_certificates(chain), certificate, revoked, address: None }
    }
}

impl Caller {
    /// The sender of this gRPC request, if its certificate is valid.
    pub fn of<T>(request: &tonic::Request<T>) -> Result<Arc<Self>, CallerError> {
        let peer = request.extensions().get::<Connected>().ok_or(CallerError::NoCertificate)?;
        let shown = peer.shown.as_ref().map_err(Clone::clone)?;
        peer.revoked.check(shown)?;
        Ok(Arc::clone(&shown.caller))
    }
}

//! Who is at the other end of a connection, and whether its certificate counts.

use crate::identity::{Caller, CallerError, Role, Shown};
use crate::revoked::RevocationList;
use rustls::pki_types::CertificateDer;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

/// Who is at the other end of a connection: read once, when TLS has verified it.
#[derive(Clone, Debug)]
pub struct Connected {
    shown: Result<Shown, CallerError>,
    /// Its certificate.
    pub certificate: Option<Arc<CertificateDer<'static>>>,
    revoked: RevocationList,
    /// Its address; `None`: not known.
    pub address: Option<IpAddr>,
}

impl Connected {
    /// What its certificate entitles to; `None` where it names nobody.
    pub fn role(&self) -> Option<Role> {
        self.shown.as_ref().ok().map(|shown| shown.caller.role)
    }

    /// Returns when its certificate is revoked. Where it is already, after `patience`: its
    /// calls are refused with that reason until then.
    pub async fn counts_no_more(self, patience: Duration) {
        let Ok(shown) = &self.shown else { return std::future::pending().await };
        match self.revoked.check(shown) {
            Ok(()) => drop(self.revoked.until_revoked(shown).await),
            Err(_) => tokio::time::sleep(patience).await,
        }
    }

    /// The same, at this address.
    pub fn at(self, address: Option<SocketAddr>) -> Self {
        Self { address: address.map(|address| address.ip()), ..self }
    }

    /// What the verified chain of a connection says.
    pub fn by(chain: &[CertificateDer<'_>], revoked: RevocationList) -> Self {
        let certificate = chain.first().map(|der| Arc::new(der.clone().into_owned()));
        Self { shown: Shown::from_certificates(chain), certificate, revoked, address: None }
    }
}

impl Caller {
    /// Who sent this gRPC request, with a certificate that counts.
    pub fn of<T>(request: &tonic::Request<T>) -> Result<Arc<Self>, CallerError> {
        let peer = request.extensions().get::<Connected>().ok_or(CallerError::NoCertificate)?;
        let shown = peer.shown.as_ref().map_err(Clone::clone)?;
        peer.revoked.check(shown)?;
        Ok(Arc::clone(&shown.caller))
    }
}

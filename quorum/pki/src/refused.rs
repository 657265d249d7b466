//! What came from somebody who may not, counted: a wrong certificate shows itself here.

use rustls::{AlertDescription, CertificateError, Error};
use std::fmt::Display;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};

/// Why it was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    /// The certificate's name is not the one that the caller speaks for.
    Name,
    /// The certificate's role does not entitle to the call.
    Role,
    /// The certificate was revoked.
    Revoked,
    /// The certificate's time is over.
    Expired,
    /// The certificate is of another authority.
    Authority,
    /// No handshake came about otherwise: no certificate, no TLS, too slow.
    Handshake,
    /// The member's files are of before a recovery of the quorum, or of after one that this member does not know.
    Generation,
    /// A heartbeat that is no newer than the last one of its session: sent again by whoever recorded it.
    Replayed,
}

impl Cause {
    /// Why this process ended a handshake; `None` where the peer did, or the connection broke.
    pub fn of(error: &io::Error) -> Option<Self> {
        Some(match error.get_ref()?.downcast_ref::<Error>()? {
            Error::InvalidCertificate(CertificateError::Expired | CertificateError::ExpiredContext { .. }) => Self::Expired,
            Error::InvalidCertificate(CertificateError::UnknownIssuer | CertificateError::BadSignature) => Self::Authority,
            Error::InvalidCertificate(CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. }) => Self::Name,
            Error::AlertReceived(_) => return None,
            _ => Self::Handshake,
        })
    }

    /// The same, told by the alert that this process sent.
    pub fn of_alert(alert: u8) -> Self {
        match AlertDescription::from(alert) {
            AlertDescription::CertificateExpired => Self::Expired,
            // All else that it is sent for cannot be, in a certificate of an authority that is trusted.
            AlertDescription::BadCertificate => Self::Name,
            AlertDescription::UnknownCA | AlertDescription::DecryptError => Self::Authority,
            _ => Self::Handshake,
        }
    }
}

/// How often, since this process began.
#[derive(Debug, Default)]
pub struct Refused {
    name: AtomicU64,
    role: AtomicU64,
    revoked: AtomicU64,
    expired: AtomicU64,
    authority: AtomicU64,
    handshake: AtomicU64,
    generation: AtomicU64,
    replayed: AtomicU64,
}

impl Refused {
    /// One more. Why is in the log of the first, second, fourth and so on: nobody is to fill it.
    pub fn count(&self, cause: Cause, why: &dyn Display) {
        let counter = match cause {
            Cause::Name => &self.name,
            Cause::Role => &self.role,
            Cause::Revoked => &self.revoked,
            Cause::Expired => &self.expired,
            Cause::Authority => &self.authority,
            Cause::Handshake => &self.handshake,
            Cause::Generation => &self.generation,
            Cause::Replayed => &self.replayed,
        };
        let times = counter.fetch_add(1, Ordering::Relaxed) + 1;
        if times.is_power_of_two() {
            tracing::warn!(?cause, times, %why, "refused");
        }
    }

    /// Those that happened at all, in words.
    pub fn told(&self) -> Vec<(String, u64)> {
        let all = [
            ("certificates of another name", &self.name),
            ("certificates of another role", &self.role),
            ("revoked certificates", &self.revoked),
            ("expired certificates", &self.expired),
            ("certificates of another authority", &self.authority),
            ("other failed handshakes", &self.handshake),
            ("messages of another generation", &self.generation),
            ("heartbeats that came again", &self.replayed),
        ];
        let counts = all.into_iter().map(|(what, counter)| (what.to_owned(), counter.load(Ordering::Relaxed)));
        counts.filter(|(_, count)| *count > 0).collect()
    }
}

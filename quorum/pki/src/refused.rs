//! Counts of refused peers: they reveal wrong certificates.

use rustls::{AlertDescription, CertificateError, Error};
use std::fmt::Display;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};

/// The cause of a refusal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    /// The certificate's name differs from the name that the caller claims.
    Name,
    /// The certificate's role does not permit the call.
    Role,
    /// The certificate was revoked.
    Revoked,
    /// The certificate has expired.
    Expired,
    /// The certificate was issued by another authority.
    Authority,
    /// The handshake failed for another reason: no certificate, no TLS, too slow.
    Handshake,
    /// The member's files date from before a recovery of the quorum, or from a later one unknown to
    /// this member.
    Generation,
    /// A heartbeat that is not newer than the last one of its session: a replay of a recorded one.
    Replayed,
}

impl Cause {
    /// Why this process ended a handshake; `None`: the peer ended it, or the connection broke.
    pub fn of(error: &io::Error) -> Option<Self> {
        Some(match error.get_ref()?.downcast_ref::<Error>()? {
            Error::InvalidCertificate(CertificateError::Expired | CertificateError::ExpiredContext { .. }) => Self::Expired,
            Error::InvalidCertificate(CertificateError::UnknownIssuer | CertificateError::BadSignature) => Self::Authority,
            Error::InvalidCertificate(CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. }) => Self::Name,
            Error::AlertReceived(_) => return None,
            _ => Self::Handshake,
        })
    }

    /// As [`Self::of`], from the alert that this process sent.
    pub fn of_alert(alert: u8) -> Self {
        match AlertDescription::from(alert) {
            AlertDescription::CertificateExpired => Self::Expired,
            // Other reasons for this alert cannot occur with a certificate of a trusted authority.
            AlertDescription::BadCertificate => Self::Name,
            AlertDescription::UnknownCA | AlertDescription::DecryptError => Self::Authority,
            _ => Self::Handshake,
        }
    }
}

/// The counts since this process started.
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
    /// Adds one. The reason is logged for the first, second, fourth and so on, so that nobody can
    /// fill the log.
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

    /// The causes that have occurred, with their counts.
    pub fn counts(&self) -> Vec<(String, u64)> {
        let all = [
            ("certificates of another name", &self.name),
            ("certificates of another role", &self.role),
            ("revoked certificates", &self.revoked),
            ("expired certificates", &self.expired),
            ("certificates of another authority", &self.authority),
            ("other failed handshakes", &self.handshake),
            ("messages of another generation", &self.generation),
            ("repeated heartbeats", &self.replayed),
        ];
        let counts = all.into_iter().map(|(what, counter)| (what.to_owned(), counter.load(Ordering::Relaxed)));
        counts.filter(|(_, count)| *count > 0).collect()
    }
}

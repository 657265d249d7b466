//! The identity of a peer: the name (CN) and role (OU) in its certificate, and the DNS names in
//! certificates of each role.

use crate::refused::Cause;
use lattice_model::Timestamp;
use rustls::pki_types::CertificateDer;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;
use thiserror::Error;
use x509_parser::prelude::{FromDer, X509Certificate};

/// The DNS name in every certificate.
pub const ANY_NAME: &str = "lattice";
/// The DNS name in members' certificates only: an agent requires it of a peer that it treats as the
/// quorum.
pub const QUORUM_NAME: &str = "quorum.lattice";

/// The role of a certificate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Role {
    /// A quorum member.
    Quorum,
    /// An agent.
    Node,
    /// An agent that may also schedule, and authenticate users.
    Api,
    /// A person who operates the cluster. The certificate signs requests ([`crate::operator`]); it
    /// cannot open connections.
    Operator,
    /// A program, which calls the API on the network as an account of the site. It cannot connect to members, nor to
    /// other agents' mesh.
    Service,
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Quorum => "quorum",
            Self::Node => "node",
            Self::Api => "api",
            Self::Operator => "operator",
            Self::Service => "service",
        })
    }
}

/// The text is not the name of a role.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{0:?} is not a role: quorum, node, api, operator or service")]
pub struct RoleError(pub String);

impl FromStr for Role {
    type Err = RoleError;

    fn from_str(text: &str) -> Result<Self, RoleError> {
        match text {
            "quorum" => Ok(Self::Quorum),
            "node" => Ok(Self::Node),
            "api" => Ok(Self::Api),
            "operator" => Ok(Self::Operator),
            "service" => Ok(Self::Service),
            other => Err(RoleError(other.chars().take(40).collect())),
        }
    }
}

/// The prefix of the names in service accounts' certificates. No machine's name has it.
pub const ACCOUNT_PREFIX: &str = "account-";

/// The common name of a member's certificate.
pub fn member_name(id: u64) -> String {
    format!("member-{id}")
}

/// A peer, as named in its verified certificate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Caller {
    /// Its common name: a node's id, or `member-<id>`.
    pub name: String,
    /// Its role.
    pub role: Role,
}

/// A revoked certificate.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("the certificate of {name} is revoked, like all of this name issued before {before}; issue a new one by `lattice quorum ca issue`")]
pub struct Revoked {
    /// The name.
    pub name: String,
    /// Certificates of this name issued before this time are revoked.
    pub before: Timestamp,
}

/// Why a certificate does not identify a peer.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum CallerError {
    #[error("the connection carries no client certificate")]
    NoCertificate,
    #[error("the client certificate cannot be read")]
    Unreadable,
    #[error("the client certificate has no {0}")]
    Lacks(&'static str),
    #[error("the client certificate's role: {0}")]
    Role(#[from] RoleError),
    #[error(transparent)]
    Revoked(#[from] Revoked),
}

impl CallerError {
    /// The cause under which the refusal is counted.
    pub fn cause(&self) -> Cause {
        match self {
            Self::Revoked(_) => Cause::Revoked,
            Self::NoCertificate | Self::Unreadable | Self::Lacks(_) | Self::Role(_) => Cause::Name,
        }
    }
}

impl Caller {
    /// The member's id; `None`: the name is not a member's.
    pub fn member(&self) -> Option<u64> {
        let id = self.name.strip_prefix("member-")?.parse().ok()?;
        (self.role == Role::Quorum && member_name(id) == self.name).then_some(id)
    }

    /// The account of a service; `None`: the peer is not a service account.
    pub fn account(&self) -> Option<&str> {
        self.name.strip_prefix(ACCOUNT_PREFIX).filter(|_| self.role == Role::Service)
    }

    /// Reads name and role from the end certificate of a chain verified by TLS.
    pub fn from_certificates(chain: &[CertificateDer<'_>]) -> Result<Self, CallerError> {
        let der = chain.first().ok_or(CallerError::NoCertificate)?;
        let (_, certificate) = X509Certificate::from_der(der).map_err(|_| CallerError::Unreadable)?;
        let subject = certificate.subject();
        let name = subject.iter_common_name().next().and_then(|a| a.as_str().ok()).ok_or(CallerError::Lacks("common name"))?;
        let unit = subject.iter_organizational_unit().next().and_then(|a| a.as_str().ok());
        let role = unit.ok_or(CallerError::Lacks("role (organizational unit)"))?.parse()?;
        Ok(Self { name: name.to_owned(), role })
    }
}

/// The format of the built-in authority's serial numbers: these bytes, the time of issue
/// (milliseconds since 1970, 8 bytes, big-endian), and 8 random bytes.
const SERIAL_MARK: [u8; 2] = *b"Lt";
const SERIAL_BYTES: usize = 18;

/// A serial number for a certificate issued at this time.
pub fn serial(issued: Timestamp) -> Vec<u8> {
    let chance = rand::random::<[u8; 8]>();
    [&SERIAL_MARK[..], &issued.0.to_be_bytes(), &chance].concat()
}

/// The parts of a certificate that decide whether it is revoked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shown {
    /// The identity in it.
    pub caller: Arc<Caller>,
    /// The time of issue: from its serial number, or the beginning of its validity if another
    /// authority issued it.
    pub issued: Timestamp,
}

impl Shown {
    /// Reads these parts from the end certificate of a chain verified by TLS.
    ///
    /// # Errors
    /// [`CallerError`] if the certificate does not identify a peer.
    pub fn from_certificates(chain: &[CertificateDer<'_>]) -> Result<Self, CallerError> {
        let caller = Arc::new(Caller::from_certificates(chain)?);
        let der = chain.first().ok_or(CallerError::NoCertificate)?;
        let (_, certificate) = X509Certificate::from_der(der).map_err(|_| CallerError::Unreadable)?;
        let of_us = Some(certificate.raw_serial()).filter(|serial| serial.len() == SERIAL_BYTES);
        let of_serial = of_us.and_then(|serial| serial.strip_prefix(&SERIAL_MARK)?.first_chunk()).map(|ms| u64::from_be_bytes(*ms));
        let begins = || u64::try_from(certificate.validity().not_before.timestamp()).unwrap_or_default().saturating_mul(1000);
        Ok(Self { caller, issued: Timestamp(of_serial.unwrap_or_else(begins)) })
    }
}

//! The proof that an operator made a request: the operator's certificate, and a signature over the
//! method and the time with its key.
//!
//! An agent forwards it with the request, so that the quorum need not trust the agent. It is valid
//! for one API method and for five minutes. For an export of the audit log it is valid for an hour,
//! because each page of the export is a request.

use crate::time::Timestamp;
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// Largest difference between the clocks of the signer and the verifier, in either direction: as in
/// Kerberos (RFC 4120, 1.6).
pub const CLOCK_SKEW_MAX: Duration = Duration::from_secs(300);
/// The method that exports the audit log.
pub const EXPORT_AUDIT: &str = "AdminService/ExportAudit";
/// Longest duration of one export.
pub const EXPORT_MAX: Duration = Duration::from_secs(3600);
/// The prefix of all signed data: a signature that this key made for another purpose is not valid
/// here.
const CONTEXT: &[u8] = b"lattice operator token 1\0";

/// Who makes the request, its method, and when.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OperatorToken {
    /// The operator's certificate (X.509, DER).
    #[serde(with = "serde_bytes")]
    pub certificate: Vec<u8>,
    /// The API method, for example `NodeService/SetHold`.
    pub method: String,
    /// When it was signed, by the clock of the operator's machine.
    pub signed_at: Timestamp,
    /// ECDSA over P-256 with SHA-256 of [`signed_bytes`] (ASN.1 DER, RFC 3279).
    #[serde(with = "serde_bytes")]
    pub signature: Vec<u8>,
}

/// The bytes to sign.
pub fn signed_bytes(method: &str, signed_at: Timestamp) -> Vec<u8> {
    [CONTEXT, &signed_at.0.to_be_bytes(), method.as_bytes()].concat()
}

//! The proof that an operator asked for something: their certificate, and a signature of the method and the time with its key.
//!
//! An agent passes it on with the request, so that the quorum need not believe the agent. It is good for one method of the API and
//! for five minutes; one for an export of the audit log for an hour, since each page of it is asked for.

use crate::time::Timestamp;
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// By how much the clocks of who signs and who verifies may differ, in either direction: as in Kerberos (RFC 4120, 1.6).
pub const CLOCK_SKEW_MAX: Duration = Duration::from_secs(300);
/// The method by which the audit log is exported.
pub const EXPORT_AUDIT: &str = "AdminService/ExportAudit";
/// How long one export may take.
pub const EXPORT_MAX: Duration = Duration::from_secs(3600);
/// What every signature begins with: a signature that this key made for another purpose is of no use here.
const CONTEXT: &[u8] = b"lattice operator token 1\0";

/// Who asks, for what, and when.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OperatorToken {
    /// The operator's certificate (X.509, DER).
    #[serde(with = "serde_bytes")]
    pub certificate: Vec<u8>,
    /// The method of the API, `NodeService/SetHold`.
    pub method: String,
    /// When it was signed, by the clock of the operator's machine.
    pub signed_at: Timestamp,
    /// ECDSA over P-256 with SHA-256 of [`signed_bytes`] (ASN.1 DER, RFC 3279).
    #[serde(with = "serde_bytes")]
    pub signature: Vec<u8>,
}

/// What is signed.
pub fn signed_bytes(method: &str, signed_at: Timestamp) -> Vec<u8> {
    [CONTEXT, &signed_at.0.to_be_bytes(), method.as_bytes()].concat()
}

//! A signature of the audit chain up to one of its records.

use crate::audit_chain::AuditHead;
use lattice_model::{AuditAction, AuditRecord, MemberId};
use serde::{Deserialize, Serialize};

/// A signature of the chain up to one of its records.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SignedHead {
    /// The last covered record.
    pub seq: u64,
    /// Its hash.
    pub hash: String,
    /// The member that signed.
    pub member: MemberId,
    /// The public key, 64 hexadecimal digits.
    pub key: String,
    /// Ed25519 over [`Self::message`], 128 hexadecimal digits.
    pub signature: String,
}

impl SignedHead {
    /// The record, without the signature.
    pub fn head(&self) -> AuditHead {
        AuditHead { seq: self.seq, hash: self.hash.clone() }
    }

    /// The message to sign: four lines of text, each ending with a newline.
    pub fn message(cluster: &str, seq: u64, hash: &str) -> String {
        format!("lattice-audit-head/1\n{cluster}\n{seq}\n{hash}\n")
    }

    /// Parses a record of [`AuditAction::HeadSigned`]; `None` for any other record or content.
    pub fn of(record: &AuditRecord) -> Option<Self> {
        (record.action == AuditAction::HeadSigned).then(|| serde_json::from_str(&record.detail).ok()).flatten()
    }
}

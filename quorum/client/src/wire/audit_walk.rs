//! The state of a verification of the audit log, carried from one answer to the next request.

use lattice_ledger::AuditHead;
use lattice_model::MemberId;
use serde::{Deserialize, Serialize};

/// How far the chain has been verified, and what was found. A walk verifies one member's disk.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AuditWalk {
    /// The member whose disk is verified.
    pub member: MemberId,
    /// The first verified record; 0: none was verified yet.
    pub begins: u64,
    /// The last verified record.
    pub head: AuditHead,
    /// Number of verified signatures.
    pub signatures: u64,
    /// The last record covered by a signature.
    pub signed: u64,
    /// The recorded keys, in order of introduction.
    pub keys: Vec<KeyPeriod>,
    /// Whether the end of the chain was reached.
    pub done: bool,
}

/// A key, and the range of records in which it may sign. For a key that was introduced before the first
/// verified record, `since` is the record before that one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeyPeriod {
    /// The key's member.
    pub member: MemberId,
    /// The public key, 64 hexadecimal digits.
    pub key: String,
    /// The record that introduced it.
    pub since: u64,
    /// The record that replaced it.
    pub until: Option<u64>,
}

impl AuditWalk {
    /// A walk that starts with the first record on the member's disk.
    pub fn new(member: MemberId) -> Self {
        Self { member, begins: 0, head: AuditHead::default(), signatures: 0, signed: 0, keys: Vec::new(), done: false }
    }
}

//! A walk over the audit log, from one answer to the next question.

use lattice_ledger::AuditHead;
use lattice_model::MemberId;
use serde::{Deserialize, Serialize};

/// How far the chain was walked, and what was found. A walk is of one member's disk.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AuditWalk {
    /// Whose disk.
    pub member: MemberId,
    /// The last record that was checked.
    pub head: AuditHead,
    /// Signatures that were checked.
    pub signatures: u64,
    /// The chain is signed up to this record.
    pub signed: u64,
    /// The keys that were on record, in the order in which they came.
    pub keys: Vec<KeyPeriod>,
    /// Whether the end of the chain is reached.
    pub done: bool,
}

/// A key and what it may have signed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeyPeriod {
    /// Whose key.
    pub member: MemberId,
    /// Its public half, 64 hexadecimal digits.
    pub key: String,
    /// The record that introduced it.
    pub since: u64,
    /// The record that replaced it.
    pub until: Option<u64>,
}

impl AuditWalk {
    /// Begins before the first record.
    pub fn new(member: MemberId) -> Self {
        Self { member, head: AuditHead::default(), signatures: 0, signed: 0, keys: Vec::new(), done: false }
    }
}

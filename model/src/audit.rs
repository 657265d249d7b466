//! What happened, for ever. Each record carries the hash of the one before it; see the quorum's `ledger`.

use crate::ids::{AllocationId, NodeId, Revision};
use crate::time::Timestamp;
use serde::{Deserialize, Serialize};

/// One entry of the audit log.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AuditRecord {
    /// Its place in the chain, from 1 without a gap.
    pub seq: u64,
    /// The ledger's revision that made it.
    pub revision: Revision,
    /// When, by the command's own time.
    pub at: Timestamp,
    /// Who: a user's name, `node:<id>`, or `quorum`.
    pub actor: String,
    /// What.
    pub action: AuditAction,
    /// The allocation it is about.
    pub allocation: Option<AllocationId>,
    /// The node it is about.
    pub node: Option<NodeId>,
    /// What a reader should know besides, for people.
    pub detail: String,
    /// SHA-256 of the record before it (64 zeros for the first), 64 hexadecimal digits.
    pub previous: String,
    /// SHA-256 over all fields above in their serialised order, 64 hexadecimal digits.
    pub hash: String,
}

/// The kinds of audited action.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum AuditAction {
    ClusterBootstrapped,
    NodeRegistered,
    NodeStateChanged,
    AllocationSubmitted,
    AllocationClaimed,
    AllocationRunning,
    AllocationEnded,
    AllocationRequeued,
    CancelRequested,
    PrologueFailed,
    ShareReleased,
    LeaseGranted,
    LeaseReleased,
    MembersChanged,
}

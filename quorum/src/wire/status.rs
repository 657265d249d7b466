//! How the members stand.

use crate::store::room::Shortage;
use lattice_model::{AllocationState, Generation, MemberId, NodeId, NodeState, Revision, Timestamp};
use serde::{Deserialize, Serialize};

/// How the members stand, as one of them sees it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct QuorumStatus {
    pub cluster: String,
    /// The member that answers.
    pub member: MemberId,
    pub leader: Option<MemberId>,
    pub term: u64,
    pub generation: Generation,
    pub revision: Revision,
    pub members: Vec<MemberStatus>,
    pub nodes: Vec<(NodeState, u32)>,
    pub allocations: Vec<(AllocationState, u32)>,
    pub audit_records: u64,
    pub at: Timestamp,
    /// What the member that answers refused to callers whose certificate does not fit, and how often since it began.
    #[serde(default)]
    pub refused: Vec<(String, u64)>,
    /// The committed cluster level.
    #[serde(default)]
    pub level: u32,
    /// After a recovery: nodes that are not Down and have not said yet what they run.
    #[serde(default)]
    pub awaited: Vec<NodeId>,
    /// How far those are who are told what happens to nodes.
    #[serde(default)]
    pub notified: Vec<NotifyStanding>,
    /// Nodes that fell silent together, so that none of them is declared Down; only the leader knows it.
    #[serde(default)]
    pub held_back: u64,
}

/// One way of notification in a [`QuorumStatus`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NotifyStanding {
    /// The setting that it is configured with.
    pub way: String,
    /// Everything up to this audit record was taken.
    pub upto: u64,
    /// Why nothing more is taken at present; only the leader knows it.
    #[serde(default)]
    pub trouble: Option<String>,
}

/// One member in a [`QuorumStatus`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemberStatus {
    pub id: MemberId,
    /// Where agents reach it, `host:port`.
    pub service: String,
    /// Where members reach it, `host:port`.
    pub raft: String,
    /// Whether it votes; one that does not is learning.
    pub votes: bool,
    /// The last log index known to be on its disk; `None` where this member does not know.
    pub matched: Option<u64>,
    /// The highest cluster level that it can follow; `None` where this member does not know.
    #[serde(default)]
    pub level: Option<u32>,
    /// When its certificate ends; `None` where this member does not know.
    #[serde(default)]
    pub certificate_until: Option<Timestamp>,
    /// What its disk lacks, as far as this member knows.
    #[serde(default)]
    pub shortage: Option<Shortage>,
    /// `leader`, `follower`, or `silent` (as the leader sees it), or `unknown` (asked of a follower).
    pub standing: String,
}

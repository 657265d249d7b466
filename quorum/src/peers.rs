//! Messages between members, besides Raft's.

use lattice_ledger::AuditHead;
use lattice_ledger::shortage::Shortage;
use lattice_model::{AuditRecord, Generation, Incarnation, MemberId, NodeId, Timestamp};
use lattice_quorum_client::wire::{ClockAlarm, HeldKeys, NodeHealth};
use lattice_store::roster::Roster;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// A member's summary for the leader about the agents that have sessions with it; once a second, in
/// memory only.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HeartbeatSummary {
    pub from: MemberId,
    /// The nodes whose heartbeats arrived since the last summary: incarnation, and age in milliseconds.
    pub heartbeats: Vec<(NodeId, Incarnation, u64)>,
    /// The gossip keys reported by some of them in these incarnations, unless the leader of this
    /// term already has them.
    pub keys: Vec<(NodeId, HeldKeys)>,
    /// The health reported by some of them, under the same conditions.
    pub health: Vec<(NodeId, NodeHealth)>,
    /// The highest cluster level that this member supports.
    pub level: u32,
    /// When its certificate expires.
    pub certificate_until: Timestamp,
    /// The shortage of its disk. The answer contains all members' shortages.
    pub shortage: Option<Shortage>,
    /// Answers of agents with sessions here about silent nodes: the silent node, and the node of the
    /// agent that reaches it.
    pub alive_in_gossip: Vec<(NodeId, NodeId)>,
}

/// The leader's answer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SummaryAnswer {
    /// The shortages of all members' disks.
    pub shortages: BTreeMap<u64, Shortage>,
    /// Nodes that agents must be asked about.
    pub silent: Vec<NodeId>,
    /// The problem with the members' clocks, if any.
    pub clocks: Option<ClockAlarm>,
}

/// A request to another member for the audit records after this one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AuditPageRequest {
    /// The last known record.
    pub after: u64,
}

/// Some audit records in order, and how far the sender's state reaches.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AuditPage {
    /// The last record of the sender's state.
    pub head: AuditHead,
    /// The generation of the sender's state.
    pub generation: Generation,
    /// The record before the first one on the sender's disk. Earlier ones are in the archive.
    pub base: AuditHead,
    /// Records after the requested one; empty if there are none.
    pub records: Vec<AuditRecord>,
}

/// A member asks another one for its identity and its membership.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RosterQuestion {
    pub cluster: String,
    /// The asking member.
    pub from: u64,
    /// Its committed membership, as far as it knows.
    pub roster: Roster,
}

/// The answer to a [`RosterQuestion`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RosterAnswer {
    pub cluster: String,
    /// The answering member.
    pub member: u64,
    /// Whether its log is empty.
    pub pristine: bool,
    /// Its committed membership, as far as it knows.
    pub roster: Roster,
}

//! What members tell each other beside Raft.

use crate::roster::Roster;
use lattice_ledger::AuditHead;
use lattice_ledger::shortage::Shortage;
use lattice_model::{AuditRecord, Incarnation, MemberId, NodeId, Timestamp};
use lattice_quorum_client::wire::{ClockAlarm, HeldKeys, NodeHealth};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// What a member tells the leader about the agents that have a session with it, once a second, in memory only.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HeartbeatSummary {
    pub from: MemberId,
    /// Each node heard of since the last summary: its incarnation and how many milliseconds ago.
    pub heard: Vec<(NodeId, Incarnation, u64)>,
    /// The gossip keys that some of them say they have, in the same lives: where the leader of this term was not told so yet.
    pub keys: Vec<(NodeId, HeldKeys)>,
    /// How some of them say their nodes are, likewise.
    pub health: Vec<(NodeId, NodeHealth)>,
    /// The highest cluster level that this member can follow.
    pub level: u32,
    /// When its certificate ends.
    pub certificate_until: Timestamp,
    /// What its disk lacks. Answered with what each member's lacks.
    pub shortage: Option<Shortage>,
    /// What agents with a session there said of silent nodes: which node, and who hears it.
    pub words: Vec<(NodeId, NodeId)>,
}

/// What the leader answers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SummaryAnswer {
    /// What each member's disk lacks.
    pub shortages: BTreeMap<u64, Shortage>,
    /// Nodes that agents are to be asked about.
    pub silent: Vec<NodeId>,
    /// What is amiss with the members' clocks.
    pub clocks: Option<ClockAlarm>,
}

/// From a member to another one: send the audit records behind this one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AuditPageRequest {
    /// The last record that is known.
    pub after: u64,
}

/// Some audit records, in order, and how far the sender's state goes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AuditPage {
    /// The last record of the sender's state.
    pub head: AuditHead,
    /// Records behind the one that was named; none where there are no more.
    pub records: Vec<AuditRecord>,
}

/// One member asks another who it is and who the members are.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RosterQuestion {
    pub cluster: String,
    /// Who asks.
    pub from: u64,
    /// What is committed, as far as it knows.
    pub roster: Roster,
}

/// The answer to a [`RosterQuestion`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RosterAnswer {
    pub cluster: String,
    /// Who answers.
    pub member: u64,
    /// Whether its log is empty.
    pub pristine: bool,
    /// What is committed, as far as it knows.
    pub roster: Roster,
}

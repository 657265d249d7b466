//! What can be committed.

use super::Action;
use crate::wire::Refusal;
use lattice_model::conformance::Components;
use lattice_model::{AllocationId, Boot, Epoch, Incarnation, NodeAddresses, NodeId, NodeState, Resources, Timestamp};
use serde::{Deserialize, Serialize};
use std::fmt;

/// A command with the time at which the leader proposed it: the only time that applying it knows.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Command {
    /// When the leader proposed it.
    pub at: Timestamp,
    /// What is to be done.
    pub action: Action,
}

/// A way in which others are told what happens to nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum NotifyWay {
    /// HTTP.
    Webhook,
    /// A program.
    Hook,
}

impl fmt::Display for NotifyWay {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Webhook => "notify_url",
            Self::Hook => "notify_hook",
        })
    }
}

/// What a command is for. Where there is too little room on the disk, the less urgent are refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Urgency {
    /// It begins something, or can wait.
    New,
    /// It ends work, gives something back, or keeps nodes in touch.
    Keeps,
    /// It may bring a member to the lead that has room.
    Mends,
}

/// One step of a change of the members. The membership itself is Raft's; this is for the audit log.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum MembersStep {
    /// A member begins to learn.
    Learn { id: u64, service: String, raft: String },
    /// From now on these vote.
    Vote { voters: Vec<u64> },
    /// A member without a vote is forgotten.
    Forget { id: u64 },
    /// Another member is to lead.
    HandOver { to: u64 },
}

impl fmt::Display for MembersStep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Learn { id, service, raft } => write!(f, "member {id} (service {service}, raft {raft}) learns"),
            Self::Vote { voters } => {
                let voters: Vec<String> = voters.iter().map(u64::to_string).collect();
                write!(f, "members {} vote", voters.join(", "))
            }
            Self::Forget { id } => write!(f, "member {id} leaves the cluster"),
            Self::HandOver { to } => write!(f, "member {to} is to lead"),
        }
    }
}

/// An agent's registration; see [`crate::wire::Up::Register`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Registration {
    /// Who.
    pub node: NodeId,
    /// Under which boot.
    pub boot: Boot,
    /// With how much.
    pub size: Resources,
    /// Reached where.
    pub addresses: NodeAddresses,
    /// Whether it takes work.
    pub schedulable: bool,
    /// The incarnation it had before; 0 where it is not known.
    pub incarnation: Incarnation,
    /// Whether this is a new life of the agent.
    pub new_life: bool,
    /// What its kernel cannot limit; see [`lattice_model::Node::unlimited`].
    pub unlimited: Vec<String>,
    /// What work may ask for of it; see [`lattice_model::Node::features`].
    pub features: Vec<String>,
    /// An agent that lost its memory: what it found of its work, and nothing else of it is left. `None`: it remembers.
    pub found: Option<Vec<(AllocationId, Epoch)>>,
    /// Who carries its session; see [`lattice_model::Node::through`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub through: Option<NodeId>,
    /// Whether it has the site's hook that wipes the node.
    pub wipes: bool,
    /// Why it gets no work, as its agent finds it: it is never Ready. `None`: it is well.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unwell: Option<String>,
    /// What its software and firmware are, where that was said already.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub conformance: Option<Components>,
    /// Whether the leader that proposes it admits every node (its `node_admission`). It overwrites what others wrote here.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub automatic: bool,
    /// From which address it came: for the leader's list of nodes that wait for admission. It is never in the log.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from: Option<String>,
}

/// Where the leader's clocks see a node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeStanding {
    /// Which node.
    pub node: NodeId,
    /// The incarnation that was (not) heard: a node that registered meanwhile is left alone.
    pub incarnation: Incarnation,
    /// Where it stands.
    pub state: NodeState,
    /// Why, for people.
    pub reason: String,
}

/// What a granted command did.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Outcome {
    /// It is done, or was already.
    Done,
    /// The claim holds.
    Claimed { epoch: Epoch },
    /// The agent is registered.
    Registered { incarnation: Incarnation, report_seq: u64 },
    /// The lease is held.
    Leased { token: u64 },
    /// The report counts as heard, so that those behind it are; what it says is refused, for this reason.
    Unheeded(Refusal),
    /// This gossip key is brought in.
    KeyAdded { id: u32 },
}

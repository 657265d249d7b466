//! What the cluster has agreed about one node.

use crate::ids::{AllocationId, Boot, Epoch, Incarnation, NodeId, Revision};
use crate::resources::Resources;
use crate::time::Timestamp;
use serde::{Deserialize, Serialize};
use std::fmt;

/// Where a node stands. Holds stand beside it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum NodeState {
    /// Registered, not yet heard of since.
    Booting,
    /// Takes work.
    Ready,
    /// Silent for longer than the heartbeat window, or unwell: keeps its work, gets no more.
    Degraded,
    /// Silent for longer than the grace as well.
    Down,
}

impl fmt::Display for NodeState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Booting => "Booting",
            Self::Ready => "Ready",
            Self::Degraded => "Degraded",
            Self::Down => "Down",
        })
    }
}

/// What keeps new work off a node, beside its state.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hold {
    /// Which.
    pub kind: HoldKind,
    /// Who set it.
    pub by: String,
    /// Why.
    pub reason: String,
    /// When.
    pub since: Timestamp,
}

/// The kinds of [`Hold`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum HoldKind {
    /// No new work.
    Cordon,
    /// As a cordon, for a node that is not trusted or is broken.
    Quarantine,
}

impl HoldKind {
    /// The kind of this name.
    pub fn from_name(name: &str) -> Option<Self> {
        [Self::Cordon, Self::Quarantine].into_iter().find(|kind| kind.to_string() == name)
    }

    /// The command that lifts it.
    pub fn exit(self) -> &'static str {
        match self {
            Self::Cordon => "lattice node uncordon",
            Self::Quarantine => "lattice node unquarantine",
        }
    }
}

impl fmt::Display for HoldKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Cordon => "cordon",
            Self::Quarantine => "quarantine",
        })
    }
}

/// Where a node's agent is reached.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeAddresses {
    /// The mesh (QUIC), `host:port`.
    pub mesh: String,
    /// Gossip (UDP), `host:port`.
    pub gossip: String,
}

/// A share of an allocation's earlier epoch that its node has not yet released.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Leaving {
    /// Whose it was.
    pub allocation: AllocationId,
    /// Under which epoch.
    pub epoch: Epoch,
    /// How much of the node.
    pub resources: Resources,
}

/// One node as the quorum holds it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Node {
    /// Its id.
    pub id: NodeId,
    /// Its registered size, committed: shares never exceed it.
    pub size: Resources,
    /// Where its agent is reached.
    pub addresses: NodeAddresses,
    /// Whether it takes work at all (a login node does not).
    pub schedulable: bool,
    /// The boot it registered under.
    pub boot: Boot,
    /// Its agent's present incarnation.
    pub incarnation: Incarnation,
    /// Where it stands.
    pub state: NodeState,
    /// Why it stands there, for people; empty when Ready.
    pub state_reason: String,
    /// Since when it stands there.
    pub state_since: Timestamp,
    /// What its kernel cannot limit for work (`memory`, `pids`, …), as the agent registered it.
    #[serde(default)]
    pub unlimited: Vec<String>,
    /// What it has that work may ask for (`nvme_scratch`, `gpu`, …), as the agent registered it: see [`crate::constraint`].
    #[serde(default)]
    pub features: Vec<String>,
    /// What keeps new work off it.
    #[serde(default)]
    pub holds: Vec<Hold>,
    /// Work that lost its claim or was requeued and that the agent has not yet reported as taken away: it still counts.
    #[serde(default)]
    pub leaving: Vec<Leaving>,
    /// The vCluster that has it as its own; empty: none, and it is [`crate::DEFAULT_VCLUSTER`]'s.
    #[serde(default)]
    pub home: String,
    /// The revision at which its holds or state last changed: claims are conditional on it.
    pub hold_revision: Revision,
    /// The sequence number of its agent's last acknowledged report, within the incarnation.
    pub report_seq: u64,
    /// The ledger's revision at its last change.
    pub revision: Revision,
}

impl Node {
    /// Why no new work may be placed here, as far as the quorum knows.
    pub fn unclaimable(&self) -> Option<String> {
        if !self.schedulable {
            return Some("takes no work (schedulable: false)".to_owned());
        }
        if let Some(hold) = self.holds.first() {
            return Some(format!("is under {} by {} since {}: {}", hold.kind, hold.by, hold.since, hold.reason));
        }
        match self.state {
            NodeState::Ready => None,
            NodeState::Booting | NodeState::Degraded | NodeState::Down => {
                let reason = if self.state_reason.is_empty() { String::new() } else { format!(": {}", self.state_reason) };
                Some(format!("is {}{reason}", self.state))
            }
        }
    }
}

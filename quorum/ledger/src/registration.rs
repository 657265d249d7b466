//! What an agent registers with, and the node states that the leader's clocks propose.

use lattice_model::conformance::Components;
use lattice_model::{AllocationId, Boot, Epoch, Incarnation, NodeAddresses, NodeId, NodeState, Resources};
use serde::{Deserialize, Serialize};

/// An agent's registration; see `wire::Up::Register`.
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

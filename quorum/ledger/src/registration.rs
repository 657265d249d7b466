//! The content of an agent's registration, and the node states that the leader's clocks propose.

use lattice_model::conformance::Components;
use lattice_model::{AllocationId, Boot, Epoch, Incarnation, Locality, NodeAddresses, NodeId, NodeState, Resources};
use serde::{Deserialize, Serialize};

/// An agent's registration; see `lattice_quorum_client::wire::Up::Register`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Registration {
    /// The node.
    pub node: NodeId,
    /// Its boot id.
    pub boot: Boot,
    /// Its size.
    pub size: Resources,
    /// Its addresses.
    pub addresses: NodeAddresses,
    /// Whether it accepts work.
    pub schedulable: bool,
    /// The previous incarnation; 0 if unknown.
    pub incarnation: Incarnation,
    /// Whether the agent has been restarted.
    pub new_life: bool,
    /// The node's incarnation in the quorum, as far as the agent knows; `None`: it knows none. Another boot or a lost state
    /// takes work only from this incarnation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replaces: Option<Incarnation>,
    /// The resources that its kernel cannot limit; see [`lattice_model::Node::unenforced_limits`].
    pub unenforced_limits: Vec<String>,
    /// The features that work may request; see [`lattice_model::Node::features`].
    pub features: Vec<String>,
    /// The part of the network that it is in; see [`lattice_model::Node::topology_group`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub topology_group: Option<String>,
    /// A summary of its wiring; see [`lattice_model::Node::locality`].
    #[serde(default, skip_serializing_if = "Locality::is_unknown")]
    pub locality: Locality,
    /// From an agent that lost its state: the work that it found; no other work of it is left.
    /// `None`: it has its state.
    pub found: Option<Vec<(AllocationId, Epoch)>>,
    /// The node that relays its session; see [`lattice_model::Node::relay_node`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub relay_node: Option<NodeId>,
    /// Whether it is configured with the site's wipe hook.
    pub has_wipe_hook: bool,
    /// Why its agent considers it unfit for work, so that it does not become Ready. `None`: it is
    /// well.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unwell: Option<String>,
    /// Its software and firmware, if known already.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub conformance: Option<Components>,
    /// Whether the proposing leader admits every node (its `node_admission`). The leader overwrites
    /// any earlier value.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub automatic: bool,
    /// The address that it came from, for the leader's list of nodes that wait for admission. Never
    /// in the log.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from: Option<String>,
}

/// A node state proposed by the leader's clocks.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeStateChange {
    /// The node.
    pub node: NodeId,
    /// The incarnation that the proposal refers to: a node that has registered again meanwhile is
    /// not changed.
    pub incarnation: Incarnation,
    /// The proposed state.
    pub state: NodeState,
    /// The reason, for people.
    pub reason: String,
}

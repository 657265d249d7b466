//! How things stand of which the leader remembers a part: gossip keys, leases, admissions.

use lattice_model::{NodeId, Resources, Timestamp};
use serde::{Deserialize, Serialize};

/// The gossip keys, without their secrets, and how far the agents are with them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeyringStanding {
    /// The older one first.
    pub keys: Vec<KeyStanding>,
    /// Nodes that are not Down: those that count.
    pub nodes: u64,
    /// Nodes that the next step of a rotation waits for; the first 16 of them.
    pub awaited: Vec<NodeId>,
    /// How many they are.
    pub awaited_all: u64,
}

/// One key in a [`KeyringStanding`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeyStanding {
    pub id: u32,
    /// When it was brought in; `None`: it is the one of the agents' configuration.
    pub made_at: Option<Timestamp>,
    /// By whom.
    pub made_by: Option<String>,
    pub role: KeyRole,
    /// Nodes that open with it, as they last told this leader.
    pub have: u64,
    /// Nodes that seal with it.
    pub seal: u64,
}

/// What a key does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum KeyRole {
    /// It is given to the nodes, which open with it; it will seal.
    BroughtIn,
    Seals,
    /// It sealed until now.
    Opens,
}

/// A lease as the leader sees it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeaseStanding {
    pub name: String,
    pub holder: NodeId,
    /// For whom the holder's agent vouches; `None`: for itself.
    pub user: Option<String>,
    pub token: u64,
    pub ttl_ms: u64,
    /// How long it lives from now if it is not renewed, by the leader's clock; `None` where that has not begun.
    pub left_ms: Option<u64>,
    /// Why nobody should go on holding a lease at this node.
    pub bad: Option<String>,
}

/// Which nodes wait for admission, as the leader remembers it, and which admitted names have not registered.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct AdmissionsStanding {
    /// The one that asked last first.
    pub waiting: Vec<WaitingNode>,
    /// By name.
    pub admitted: Vec<AdmittedNode>,
}

/// A node that registers and is refused.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WaitingNode {
    pub node: NodeId,
    /// From which address its session came, where that is known.
    pub from: Option<String>,
    /// The node that carries its session, where it reaches no member itself.
    pub through: Option<NodeId>,
    /// What it says that it has.
    pub size: Resources,
    /// When it asked first and last.
    pub since: Timestamp,
    pub asked: Timestamp,
}

/// A name that is admitted and under which no node has registered yet.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AdmittedNode {
    pub node: NodeId,
    pub by: String,
    pub at: Timestamp,
    pub reason: String,
}

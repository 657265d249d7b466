//! States that are partly in the leader's memory: gossip keys, leases, admissions.

use lattice_model::{NodeId, Resources, Timestamp};
use serde::{Deserialize, Serialize};

/// The gossip keys without their secrets, and the progress of a rotation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeyringStatus {
    /// The keys, the older one first.
    pub keys: Vec<KeyStatus>,
    /// Number of nodes that are neither revoked nor Down, Booting or Failed: a rotation waits for
    /// such nodes.
    pub nodes: u64,
    /// The first 16 nodes that the next step of a rotation waits for.
    pub awaited: Vec<NodeId>,
    /// Number of all nodes that the next step waits for.
    pub awaited_count: u64,
}

/// One key in a [`KeyringStatus`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeyStatus {
    pub id: u32,
    /// When it was introduced; `None`: it is the key of the agents' configuration.
    pub created_at: Option<Timestamp>,
    /// Who introduced it.
    pub created_by: Option<String>,
    pub role: KeyRole,
    /// Number of nodes that decrypt with it, according to their latest reports to this leader.
    pub decrypting_nodes: u64,
    /// Number of nodes that encrypt with it.
    pub encrypting_nodes: u64,
}

/// The role of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum KeyRole {
    /// It is being distributed to the nodes, which decrypt with it; later it will encrypt.
    Distributing,
    /// Nodes encrypt and decrypt with it.
    Encrypt,
    /// The previous encryption key; still used to decrypt.
    Decrypt,
}

/// A lease. Only the leader's list contains `left_ms` and `problem`; in a watch both are `None`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeaseStatus {
    pub name: String,
    pub holder: NodeId,
    /// The user on whose behalf it is held; `None`: the holder's agent itself.
    pub user: Option<String>,
    pub token: u64,
    pub ttl_ms: u64,
    /// Time until it expires without a renewal, in milliseconds of the leader's clock; `None`: the
    /// clock has not started, or this is not the leader's list.
    pub left_ms: Option<u64>,
    /// Why its holder should lose the lease; `None`: there is no reason.
    pub problem: Option<String>,
}

/// Nodes that wait for admission, from the leader's memory, and admitted names that have not
/// registered.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct AdmissionsStatus {
    /// Ordered by their latest attempt, the newest first.
    pub waiting: Vec<WaitingNode>,
    /// Ordered by name.
    pub admitted: Vec<AdmittedNode>,
}

/// A node whose registration is refused because it is not admitted, or was removed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WaitingNode {
    pub node: NodeId,
    /// The address from which its session came, if known.
    pub from: Option<String>,
    /// The node that relays its session if it cannot reach a member itself.
    pub relay_node: Option<NodeId>,
    /// Its reported size.
    pub size: Resources,
    /// The times of its first and its latest attempt.
    pub since: Timestamp,
    pub last_attempt: Timestamp,
}

/// An admitted name that has not registered yet.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AdmittedNode {
    pub node: NodeId,
    pub by: String,
    pub at: Timestamp,
    pub reason: String,
}

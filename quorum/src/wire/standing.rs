//! How things stand that are listed: gossip keys, tenants, vClusters, network domains, services, limits, leases,
//! admissions.

use crate::ledger::ClusterLimits;
use lattice_model::network::DomainState;
use lattice_model::{AllocationId, NodeId, Resources, Tenant, Timestamp, VCluster, VniPool};
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;

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

/// A tenant and what it has.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TenantStanding {
    pub tenant: Tenant,
    /// Nodes that its allocations have.
    pub nodes: u32,
    /// Its allocations that have nodes.
    pub allocations: u32,
}

/// A vCluster and what it has.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct VClusterStanding {
    pub vcluster: VCluster,
    /// Its own nodes; of `default` all that are no other one's.
    pub nodes: BTreeSet<NodeId>,
    /// Its allocations that wait.
    pub pending: u32,
    /// Its allocations that have nodes.
    pub running: u32,
    /// The node whose agent serves its queue at present.
    pub served_by: Option<NodeId>,
}

/// The pool of VNIs and what of it is in use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct VniPoolStanding {
    pub pool: VniPool,
    /// Domains that have one of its numbers.
    pub used: u32,
    /// Domains that have a number which it had once.
    pub outside: u32,
}

/// A network domain as the leader sees it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DomainStanding {
    pub tenant: String,
    pub name: String,
    pub vni: u32,
    /// Its allocations that have nodes.
    pub members: Vec<AllocationId>,
    pub state: DomainState,
    /// For how long it keeps its number without work.
    pub grace_ms: u64,
    /// Where none has: nodes that have not said yet that nothing of its work is left there.
    pub nodes: Vec<NodeId>,
}

/// A name under which running allocations of a tenant offer something.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServiceStanding {
    pub tenant: String,
    pub name: String,
    pub endpoints: u32,
    /// By how many allocations.
    pub allocations: u32,
}

/// Limits of the whole cluster, and what there is of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LimitsStanding {
    pub limits: ClusterLimits,
    /// Nodes that are claimed for sensitive use.
    pub sensitive_nodes: u32,
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

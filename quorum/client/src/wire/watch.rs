//! A watch: what is wanted to be told of, and what is told.

use super::standing::LeaseStanding;
use lattice_ledger::{ClusterLimits, WatchPlace};
use lattice_model::{Allocation, AllocationId, Generation, Node, Revision, Tenant, VCluster, VniPool};
use serde::{Deserialize, Serialize};

/// Opens a watch.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WatchRequest {
    /// Whether nodes are wanted (all of them).
    pub nodes: bool,
    /// Which allocations are wanted.
    pub allocations: WatchAllocations,
    /// Of these, this user's alone.
    pub uid: Option<u32>,
    /// Whether tenants are wanted (all of them).
    pub tenants: bool,
    /// Whether leases are wanted (all of them).
    pub leases: bool,
    /// Whether vClusters are wanted (all of them).
    pub vclusters: bool,
    /// Whether network domains and the pool of their numbers are wanted.
    pub domains: bool,
    /// Whether the limits of the cluster and its users are wanted.
    pub limits: bool,
    /// What the watcher has already, of the same kinds of things: only what came after is told. `None`: it has nothing.
    pub since: Option<WatchPlace>,
}

impl WatchRequest {
    /// A watch of nothing yet.
    pub fn nothing() -> Self {
        let allocations = WatchAllocations::None;
        Self {
            nodes: false,
            allocations,
            uid: None,
            tenants: false,
            leases: false,
            vclusters: false,
            domains: false,
            limits: false,
            since: None,
        }
    }
}

/// Which allocations a watch is about.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum WatchAllocations {
    None,
    /// All that have not ended; one that ends is sent once more, ended.
    Live,
    /// This one, ended or not.
    One(AllocationId),
}

/// What a watch says, in the order of revisions. A watcher that is too slow is cut off.
///
/// ```text
///   from nothing:  Start, Changes … complete (the list)    then Changes for each entry that concerns it
///   since a place: Changes … up to now                     then the same; or StartAgain, and the end
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum WatchMessage {
    /// A list begins: all that is watched, as of `revision`. What was known before counts no more. The list itself comes as
    /// [`WatchMessage::Changes`].
    Start { generation: Generation, revision: Revision },
    /// A part of what the entry of this revision changed, or of the list; it counts once the last part is there (`complete`).
    /// Then everything up to that revision is known: a watch may be opened with `since` there, at any member. Without a
    /// change it says that nothing up to there concerns this watch.
    Changes { revision: Revision, changes: Vec<Change>, complete: bool },
    /// What came after the place that the watcher has is not known here any more: it starts again, from a list.
    StartAgain { why: String },
}

/// One thing that changed, or that a list has.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Change {
    /// This node changed (or is new).
    Node(Box<Node>),
    /// This allocation changed (or is new).
    Allocation(Box<Allocation>),
    /// This tenant changed (or is new).
    Tenant(Box<Tenant>),
    /// The tenant of this name was deleted.
    TenantDeleted(String),
    /// This lease was granted, or its time to live changed. Renewals are not told, nor how long it lives from now, nor what
    /// speaks against its holder.
    Lease(Box<LeaseStanding>),
    /// The lease of this name ended.
    LeaseEnded(String),
    /// This vCluster changed (or is new).
    VCluster(Box<VCluster>),
    /// The vCluster of this name was deleted.
    VClusterDeleted(String),
    /// This network domain has this number from now on. Who is in it is not told.
    Domain { tenant: String, name: String, vni: u32 },
    /// Its number is free again.
    DomainReleased { tenant: String, name: String },
    /// The pool that such numbers are from.
    VniPool(VniPool),
    /// The limits of the cluster and its users.
    Limits(ClusterLimits),
}

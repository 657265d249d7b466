//! Watches: what a watcher subscribes to, and the messages that it receives.

use super::leader_status::LeaseStatus;
use lattice_ledger::{ClusterLimits, WatchCursor};
use lattice_model::{
    Allocation, AllocationId, DayUse, Generation, Node, NodeId, PhasesChange, Reservation, Revision, Tenant, VCluster, VniPool,
};
use serde::{Deserialize, Serialize};

/// Opens a watch.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WatchRequest {
    /// Whether to watch nodes (all of them).
    pub nodes: bool,
    /// Which allocations to watch.
    pub allocations: WatchAllocations,
    /// If set, only allocations of this user.
    pub uid: Option<u32>,
    /// Whether to watch tenants (all of them), and their recorded use.
    pub tenants: bool,
    /// Whether to watch leases (all of them).
    pub leases: bool,
    /// Whether to watch vClusters and reservations (all of them).
    pub vclusters: bool,
    /// Whether to watch network domains and the VNI pool.
    pub domains: bool,
    /// Whether to watch the limits of the cluster and its users.
    pub limits: bool,
    /// The place up to which the watcher has all these records: only later changes are sent. `None`:
    /// it has nothing.
    pub since: Option<WatchCursor>,
}

impl WatchRequest {
    /// A request without any subscription.
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

/// Which allocations to watch.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum WatchAllocations {
    None,
    /// All that have not ended; an allocation that ends is sent once more in its final state, and
    /// once more when its last share is released.
    Live,
    /// This one, ended or not.
    One(AllocationId),
}

/// The messages of a watch, in the order of revisions. A watcher that is too slow is disconnected.
///
/// ```text
///   from nothing:  Start, Changes … complete (the list)    then Changes for each entry that concerns it
///   since a place: Changes … up to now                     then the same; or Resync, and the end
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum WatchMessage {
    /// The beginning of a list: everything watched, as of `revision`. It replaces everything known
    /// before. The list itself follows as [`WatchMessage::Changes`].
    Start { generation: Generation, revision: Revision },
    /// A part of the changes of the entry with this revision, or of the list; valid once the last
    /// part has arrived (`complete`). Then everything up to that revision is known, and a watch may
    /// be opened with `since` at this place, at any member. An empty message: nothing up to that
    /// revision concerns this watch.
    Changes { revision: Revision, changes: Vec<Change>, complete: bool },
    /// The changes after the watcher's place have been dropped: it must start again with a list.
    Resync { why: String },
}

/// A changed record, or a record of a list.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Change {
    /// This node changed (or is new).
    Node(Box<Node>),
    /// The node of this name was removed.
    NodeRemoved(NodeId),
    /// This allocation changed (or is new).
    Allocation(Box<Allocation>),
    /// Only the phases of shares and the usage of this allocation changed. The watcher has its record
    /// from the list, or from an earlier change. Exception: the list of [`WatchAllocations::Live`]
    /// lacks the allocation if it had ended before; then the watcher ignores this change.
    ///
    /// The agent of a node gets only the phases of its own share.
    Phases(Box<PhasesChange>),
    /// This tenant changed (or is new).
    Tenant(Box<Tenant>),
    /// The tenant of this name was deleted.
    TenantDeleted(String),
    /// This lease was granted, or its time to live changed. Renewals, the remaining time and problems
    /// of its holder are not sent.
    Lease(Box<LeaseStatus>),
    /// The lease of this name ended.
    LeaseEnded(String),
    /// This vCluster changed (or is new).
    VCluster(Box<VCluster>),
    /// The vCluster of this name was deleted.
    VClusterDeleted(String),
    /// This reservation changed (or is new). Sent with vClusters.
    Reservation(Box<Reservation>),
    /// The reservation of this name was deleted.
    ReservationDeleted(String),
    /// This network domain has this VNI from now on. Its members are not sent.
    Domain { tenant: String, name: String, vni: u32 },
    /// This network domain was removed: its VNI is free again.
    DomainReleased { tenant: String, name: String },
    /// The VNI pool.
    VniPool(VniPool),
    /// The limits of the cluster and its users.
    Limits(ClusterLimits),
    /// The new recorded use of this tenant on these days; other days are unchanged. Sent with tenants.
    /// It excludes running work, which the watcher knows.
    TenantUse { tenant: String, days: Vec<DayUse> },
}

//! Test data, for this crate and for crates that use it.

mod full_ledger;

pub use full_ledger::full_ledger;

use crate::{Action, Command, EndedLimitsChange, Ledger, QuotaChange, Registration, ReservationChange, UserLimitsChange, VClusterChange};
use lattice_model::access::RootMay;
use lattice_model::conformance::Components;
use lattice_model::{
    Allocation, AllocationId, AllocationSpec, Boot, Incarnation, Locality, NodeAddresses, NodeId, Principal, RequeuePolicy, Resources,
    SchedulerKind, SharePolicy, Timestamp, test_builders,
};
use uuid::Uuid;

/// The size of each node.
pub const SIZE: Resources = Resources { cores: 8, memory_bytes: 64, gpus: 2 };

/// A specification for this many nodes.
pub fn spec(nodes: u32, requeue: RequeuePolicy, requeues_max: u32) -> AllocationSpec {
    AllocationSpec { nodes, requeue, requeues_max, ..test_builders::spec() }
}

/// A user.
pub fn user(uid: u32) -> Principal {
    Principal { name: format!("u{uid}"), uid, gid: uid, groups: vec![] }
}

/// A node's name.
pub fn node(number: u8) -> NodeId {
    format!("n{number}").parse().unwrap()
}

/// An agent's registration.
pub fn registration(number: u8, boot: u128, incarnation: u64, new_life: bool) -> Registration {
    Registration {
        node: node(number),
        boot: Boot(Uuid::from_u128(boot)),
        size: SIZE,
        addresses: NodeAddresses { mesh: format!("n{number}:1"), gossip: format!("n{number}:2") },
        schedulable: true,
        incarnation: Incarnation(incarnation),
        new_life,
        replaces: None,
        unenforced_limits: vec![],
        features: vec![],
        topology_group: None,
        locality: Locality::default(),
        found: None,
        relay_node: None,
        has_wipe_hook: false,
        unwell: None,
        conformance: None,
        automatic: true,
        from: None,
    }
}

/// An empty ledger of this level.
pub fn of_level(level: u32) -> Ledger {
    Ledger { level, ..Ledger::default() }
}

/// A submitted allocation of two nodes.
pub fn allocation() -> Allocation {
    Allocation::submitted(AllocationId(Uuid::from_u128(7)), spec(2, RequeuePolicy::Always, 1), user(1), Timestamp(9))
}

/// A command.
pub fn command() -> Command {
    Command { at: Timestamp(5), action: Action::GrantLease { name: "l".into(), holder: node(1), ttl_ms: 1000, user: None } }
}

/// What a node is made of.
pub fn components() -> Components {
    [("kernel".to_owned(), "6.1".to_owned())].into()
}

/// The creation of a vCluster.
pub fn vcluster_change() -> VClusterChange {
    let nodes = Some([node(1)].into());
    VClusterChange {
        name: "v".into(),
        create: Some(SchedulerKind::InteractiveFifo),
        tenant: Some("t".into()),
        nodes,
        ..VClusterChange::default()
    }
}

/// The creation of a reservation of node 1 for an hour.
pub fn reservation_change() -> ReservationChange {
    ReservationChange {
        name: "course".into(),
        create: true,
        nodes: Some([node(1)].into()),
        start: Some(Timestamp(1000)),
        end: Some(Timestamp(3_601_000)),
        tenants: Some(["t".to_owned()].into()),
        users: Some([("u".to_owned(), 1)].into()),
        comment: Some("for people".into()),
        ..ReservationChange::default()
    }
}

/// A change of the cluster's limits: the fields of [`Action::SetLimits`]. By default nothing changes.
#[derive(Clone, Copy, Default)]
pub struct LimitsChange {
    pub sensitive_pool_size: QuotaChange,
    pub users: UserLimitsChange,
    pub budget_period_days: Option<u32>,
    pub share_policy: Option<SharePolicy>,
    pub ended: EndedLimitsChange,
    pub dag_size: Option<u32>,
    pub root_may: Option<RootMay>,
}

impl LimitsChange {
    /// The command of this requester.
    pub fn by(self, by: &str) -> Action {
        let Self { sensitive_pool_size, users, budget_period_days, share_policy, ended, dag_size, root_may } = self;
        Action::SetLimits { sensitive_pool_size, users, budget_period_days, share_policy, ended, dag_size, root_may, by: by.to_owned() }
    }
}

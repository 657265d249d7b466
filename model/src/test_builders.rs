//! Builders for tests of all crates: one plain value of each kind of record. A test changes the
//! fields that it is about.

use crate::{
    Allocation, AllocationId, AllocationSpec, AllocationState, Boot, DesiredShare, Entrypoint, Epoch, Incarnation, Locality, Node,
    NodeAddresses, NodeState, Principal, Resources, Revision, Timestamp,
};
use std::path::Path;
use std::sync::Arc;
use uuid::Uuid;

/// `true` on one node.
pub fn spec() -> AllocationSpec {
    AllocationSpec::new("a", Entrypoint::Command { argv: vec!["true".into()] }, Path::new("/"))
}

/// A user who is not root.
pub fn user() -> Principal {
    Principal { name: "u".into(), uid: 1000, gid: 1000, groups: vec![] }
}

/// [`spec`] of [`user`], submitted at the first moment.
pub fn allocation(id: AllocationId) -> Allocation {
    Allocation::submitted(id, spec(), user(), Timestamp(0))
}

/// The spec of the allocation, to change it.
pub fn spec_of(allocation: &mut Allocation) -> &mut AllocationSpec {
    Arc::make_mut(&mut allocation.spec)
}

/// The share of a running [`allocation`] under its first claim. It has no nodes and no resources
/// yet.
pub fn desired_share(allocation: AllocationId) -> DesiredShare {
    DesiredShare {
        allocation,
        epoch: Epoch(1),
        owner: user(),
        state: AllocationState::Running,
        resources: Resources::default(),
        nodes: crate::NodeList::default(),
        spec: spec(),
        vni: None,
        requeue_count: 0,
        run_lease_ms: None,
        restore: None,
        preempt: None,
        telemetry: None,
        lane: None,
        replica: None,
        parents: Vec::new(),
        number: 0,
        cores: Vec::new(),
        started_at: None,
    }
}

/// A schedulable node of two cores and 1 GiB.
pub fn node(id: &str, state: NodeState) -> Node {
    Node {
        id: id.parse().expect("a test names its nodes validly"),
        size: Resources { cores: 2, memory_bytes: 1 << 30, gpus: 0 },
        addresses: NodeAddresses::default(),
        schedulable: true,
        boot: Boot(Uuid::nil()),
        incarnation: Incarnation(1),
        state,
        state_reason: String::new(),
        state_since: Timestamp(0),
        unenforced_limits: vec![],
        features: vec![],
        topology_group: None,
        locality: Locality::default(),
        holds: vec![],
        leaving: vec![],
        relay_node: None,
        home: String::new(),
        conformance: None,
        has_wipe_hook: false,
        wipe: None,
        drain_requested_at: None,
        hold_revision: Revision(1),
        report_seq: 0,
        revision: Revision(1),
    }
}

//! Nodes as the scheduler sees them, without agents.

use lattice_model::{Boot, Incarnation, Locality, Node, NodeAddresses, NodeId, NodeState, Resources, Revision, Timestamp};
use uuid::Uuid;

/// A node of this size that is Ready.
pub fn ready_node(number: u32, size: Resources) -> Node {
    let id: NodeId = format!("n{number:05}").parse().expect("a name of letters and digits");
    Node {
        id,
        size,
        addresses: NodeAddresses::default(),
        schedulable: true,
        boot: Boot(Uuid::nil()),
        incarnation: Incarnation(1),
        state: NodeState::Ready,
        state_reason: String::new(),
        state_since: Timestamp(0),
        unenforced_limits: vec![],
        features: vec!["gpu".into(), "run_lease".into()],
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

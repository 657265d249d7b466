//! Which allocation owns which part of a node.

use crate::allocation_state::AllocationState;
use crate::checkpoint::CheckpointRef;
use crate::dependency::OutputPlace;
use crate::ids::{AllocationId, Epoch, Generation, NodeId, Revision};
use crate::node_list::NodeList;
use crate::preemption::Preemption;
use crate::principal::Principal;
use crate::resources::Resources;
use crate::scaling::ReplicaOf;
use crate::spec::AllocationSpec;
use crate::task_group::LaneOf;
use crate::telemetry::TelemetryOrder;
use crate::time::Timestamp;
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// One allocation's part of one node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Share {
    /// The node.
    pub node: NodeId,
    /// How much of the node; the registered size for a whole node.
    pub resources: Resources,
    /// How far the node has prepared or released it.
    pub phase: SharePhase,
}

/// The life of a share, as its node reports it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum SharePhase {
    /// Claimed; the node is preparing it or will.
    Claimed,
    /// Image, mounts, scope and shim are ready.
    Prepared,
    /// Nothing of it is left on the node: the share no longer counts against the node's size.
    Released,
}

/// A scheduler's proposal for one allocation; committed as a whole or not at all.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Claim {
    /// The allocation that it is for.
    pub allocation: AllocationId,
    /// The requeue count that the scheduler saw. The claim is refused if the count has changed.
    pub requeue_count: u32,
    /// The fencing token of the scheduler's lease.
    pub lease_token: u64,
    /// The nodes in rank order, each with the amount of resources and the hold revision that the
    /// scheduler saw.
    pub shares: Vec<ClaimShare>,
    /// The work ahead of it in its queue for which the same request has a claim. If that claim was refused and the
    /// work still waits, this one is refused: the plan assumed that it begins.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub after: Option<AllocationId>,
    /// The name in the certificate of the agent that proposes the claim; that agent need not hold
    /// the lease. A member sets it and overwrites any earlier value. `None`: no member has received
    /// the claim yet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub by: Option<String>,
    /// The walltime that it gets, if that is less than requested but not less than its minimum. `None`: the requested
    /// one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub walltime: Option<Duration>,
}

/// One node of a [`Claim`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClaimShare {
    /// The node.
    pub node: NodeId,
    /// How much of it.
    pub resources: Resources,
    /// [`crate::Node::hold_revision`] as the scheduler saw it.
    pub hold_revision: Revision,
}

/// What one node must do for one allocation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DesiredShare {
    /// The allocation.
    pub allocation: AllocationId,
    /// The epoch of the claim.
    pub epoch: Epoch,
    /// Its owner.
    pub owner: Principal,
    /// Staging (prepare) or Running (start). An allocation that must end is no longer in the list.
    pub state: AllocationState,
    /// How much of this node.
    pub resources: Resources,
    /// All its nodes in rank order; the first is the head.
    pub nodes: NodeList,
    /// What to run.
    pub spec: AllocationSpec,
    /// The VNI of its network domain.
    pub vni: Option<u32>,
    /// Number of requeues.
    pub requeue_count: u32,
    /// Length of its run lease in milliseconds; `None`: it has no lease and continues even without
    /// contact to the quorum.
    pub run_lease_ms: Option<u64>,
    /// The checkpoint that it starts from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub restore: Option<CheckpointRef>,
    /// Set if it must save itself and release its nodes; the head carries this out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub preempt: Option<Preemption>,
    /// Set if its work must be measured in more detail; each of its nodes does so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub telemetry: Option<TelemetryOrder>,
    /// Set if it is a lane of a task group: it runs the group's tasks, one after another.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lane: Option<LaneOf>,
    /// Set if it is a replica of a scaled service.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replica: Option<ReplicaOf>,
    /// The output directories of its parents.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub parents: Vec<ParentOutput>,
    /// The job number: see [`crate::Allocation::number`]. A lane has that of its task group, a replica that of
    /// its service. 0: none is known.
    #[serde(default)]
    pub number: u64,
    /// The cores of its nodes in rank order, as runs: a number of nodes, and the cores of each.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub cores: Vec<(u32, u32)>,
    /// When it began to run under this claim, as the quorum recorded it; `None`: it has not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub started_at: Option<Timestamp>,
}

/// The output directory of an allocation on which another one depends.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ParentOutput {
    /// The allocation.
    pub id: AllocationId,
    /// Where its directory is.
    pub place: OutputPlace,
}

/// Everything that one node must do. A list with an older (generation, revision) than the latest
/// one seen is ignored.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DesiredList {
    /// The quorum's generation.
    pub generation: Generation,
    /// The ledger's revision.
    pub revision: Revision,
    /// The shares, by allocation.
    pub shares: Vec<DesiredShare>,
    /// The number of the wipe that the node must carry out. If set, nothing is left on the node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wipe: Option<u64>,
    /// Ended claims on this node whose release the node has not reported yet. The node may not know
    /// of one of them: the claim was made and ended while the node was offline, or the node's disk
    /// was restored to an earlier state.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub leaving: Vec<(AllocationId, Epoch)>,
}

//! Who owns what of a node.

use crate::allocation_state::AllocationState;
use crate::checkpoint::CheckpointRef;
use crate::ids::{AllocationId, Epoch, Generation, NodeId, Revision};
use crate::preemption::Preemption;
use crate::principal::Principal;
use crate::resources::Resources;
use crate::spec::AllocationSpec;
use crate::telemetry::TelemetryOrder;
use serde::{Deserialize, Serialize};

/// One allocation's part of one node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Share {
    /// The node.
    pub node: NodeId,
    /// How much of it; the registered size for a whole node.
    pub resources: Resources,
    /// How far the node is with it.
    pub phase: SharePhase,
}

/// A share's life, as its node reports it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum SharePhase {
    /// Claimed; the node prepares or will.
    Claimed,
    /// Image, mounts, scope and shim are there.
    Prepared,
    /// Nothing of it is left on the node: the share no longer counts against it.
    Released,
}

/// What a scheduler proposes for one allocation, all or nothing.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Claim {
    /// For whom.
    pub allocation: AllocationId,
    /// The requeue count that the scheduler saw: another one refuses the claim.
    pub requeue_count: u32,
    /// The fencing token of the scheduler's lease.
    pub lease_token: u64,
    /// The nodes in rank order, each with the amount and the hold revision that the scheduler saw.
    pub shares: Vec<ClaimShare>,
    /// The name in the certificate of the agent that proposes it, which need not hold the lease: a member writes it there, whatever was
    /// there before. `None`: no member has seen it yet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub by: Option<String>,
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

/// What one node is to do for one allocation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DesiredShare {
    /// The allocation.
    pub allocation: AllocationId,
    /// Under which epoch.
    pub epoch: Epoch,
    /// Whose it is.
    pub owner: Principal,
    /// Its state: Staging (prepare), Running (go). One that is to end is no longer in the list.
    pub state: AllocationState,
    /// How much of this node.
    pub resources: Resources,
    /// All its nodes in rank order with the addresses of their meshes (`host:port`); the first is the head.
    pub nodes: Vec<(NodeId, String)>,
    /// What to run.
    pub spec: AllocationSpec,
    /// The number of its network domain.
    pub vni: Option<u32>,
    /// How often it was requeued.
    pub requeue_count: u32,
    /// How long its run lease is, in milliseconds; `None`: it has none, and goes on whatever is cut off.
    pub run_lease_ms: Option<u64>,
    /// The checkpoint that it begins from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub restore: Option<CheckpointRef>,
    /// That it is to save itself, and to give its nodes back: its head's to do.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub preempt: Option<Preemption>,
    /// That its work is to be measured more closely: each of its nodes does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub telemetry: Option<TelemetryOrder>,
}

/// Everything that one node is to do. An older (generation, revision) than the last one seen is ignored.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DesiredList {
    /// The quorum's generation.
    pub generation: Generation,
    /// The ledger's revision.
    pub revision: Revision,
    /// The shares, by allocation.
    pub shares: Vec<DesiredShare>,
    /// The number of the wipe that the node is to carry out: nothing is left on it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wipe: Option<u64>,
    /// Claims of this node that are over, and that it has not yet said it is free of. It may never have heard of one: claimed and
    /// ended while it was away, or forgotten with a disk that was put back to what it was before.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub leaving: Vec<(AllocationId, Epoch)>,
}

//! What the cluster has agreed about one allocation.

use crate::allocation_state::AllocationState;
use crate::attempt::{self, Attempt};
use crate::checkpoint::CheckpointRef;
use crate::claim::Share;
use crate::end_reason::EndReason;
use crate::hostlist;
use crate::ids::{AllocationId, CheckpointId, Epoch, NodeId, Revision};
use crate::preemption::Preemption;
use crate::principal::Principal;
use crate::spec::AllocationSpec;
use crate::telemetry::TelemetryOrder;
use crate::time::Timestamp;
use crate::work_usage::WorkUsage;
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// A node whose prologue failed for an allocation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Exclusion {
    /// The node.
    pub node: NodeId,
    /// Why it failed, last time.
    pub why: String,
    /// How often it failed there.
    pub failures: u32,
    /// It is not claimed for the allocation before this time of the leader's clock. `None`: it may be claimed again.
    pub until: Option<Timestamp>,
}

/// A walltime that was changed after the submission.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WalltimeChange {
    /// As it was submitted; `None`: a service.
    pub submitted: Option<Duration>,
}

/// One allocation as the quorum holds it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Allocation {
    /// Its id.
    pub id: AllocationId,
    /// What was asked for; its walltime is the present one ([`Self::walltime_change`]).
    pub spec: AllocationSpec,
    /// That its walltime is another one than it was submitted with.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub walltime_change: Option<WalltimeChange>,
    /// Who asked.
    pub owner: Principal,
    /// Where it stands.
    pub state: AllocationState,
    /// Why it ended, or why it is back in the queue.
    pub reason: Option<EndReason>,
    /// When the submission was committed. Kept over requeues.
    pub submitted_at: Timestamp,
    /// When its nodes were claimed, last time.
    pub claimed_at: Option<Timestamp>,
    /// When it began to run, last time.
    pub started_at: Option<Timestamp>,
    /// When it ended for good.
    pub ended_at: Option<Timestamp>,
    /// The epoch of its present or last claim; 0 before the first.
    pub epoch: Epoch,
    /// Its shares, in rank order: the first one's node is the head. Kept after its end, as history.
    pub shares: Vec<Share>,
    /// The number of its network domain under its present or last claim.
    pub vni: Option<u32>,
    /// How often it was requeued, but for claims under which it never began.
    pub requeue_count: u32,
    /// Claims in a row that were soon over.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub quick_requeues: u32,
    /// Requeued: it is not claimed before this time of the leader's clock.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub waits_until: Option<Timestamp>,
    /// Its claims that are over, the oldest first: the last ones ([`attempt::ATTEMPTS_KEPT_MAX`]).
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub attempts: Vec<Attempt>,
    /// Nodes whose prologue failed for it since it last ran.
    pub excluded: Vec<Exclusion>,
    /// Its last whole checkpoint.
    pub checkpoint: Option<CheckpointRef>,
    /// That it is to give the nodes of its present claim back.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub preemption: Option<Preemption>,
    /// The last request that it gave nodes back for: said again, it means nothing to the claim that it has since.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub preempted_by: Option<CheckpointId>,
    /// How often it was preempted.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub preempted_count: u32,
    /// Held until somebody resumes it: it waits for no nodes.
    #[serde(default, skip_serializing_if = "is_not")]
    pub held: bool,
    /// That the work of its present claim is measured more closely than usual.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub telemetry: Option<TelemetryOrder>,
    /// What the work of its present or last claim used of the nodes that have released it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub usage: Option<WorkUsage>,
    /// The ledger's revision at its last change.
    pub revision: Revision,
}

impl Allocation {
    /// One that was just submitted, at no revision yet.
    pub fn submitted(id: AllocationId, spec: AllocationSpec, owner: Principal, at: Timestamp) -> Self {
        let held = spec.hold;
        Self {
            id,
            spec,
            walltime_change: None,
            owner,
            state: AllocationState::Pending,
            reason: None,
            submitted_at: at,
            claimed_at: None,
            started_at: None,
            ended_at: None,
            epoch: Epoch(0),
            shares: Vec::new(),
            vni: None,
            requeue_count: 0,
            quick_requeues: 0,
            waits_until: None,
            attempts: Vec::new(),
            excluded: Vec::new(),
            checkpoint: None,
            preemption: None,
            preempted_by: None,
            preempted_count: 0,
            held,
            telemetry: None,
            usage: None,
            revision: Revision(0),
        }
    }

    /// The node where its script runs and its launches are headed, once it has one.
    pub fn head(&self) -> Option<&NodeId> {
        self.shares.first().map(|s| &s.node)
    }

    /// Whether this is what it was submitted as.
    pub fn was_submitted_as(&self, spec: &AllocationSpec) -> bool {
        match &self.walltime_change {
            Some(change) => AllocationSpec { walltime: change.submitted, ..self.spec.clone() } == *spec,
            None => self.spec == *spec,
        }
    }

    /// Whether it waits for nodes.
    pub fn waits(&self) -> bool {
        self.state.is_without_nodes() && !self.held
    }

    /// That this node is not claimed for it now.
    pub fn exclusion(&self, node: &NodeId) -> Option<&Exclusion> {
        self.excluded.iter().find(|excluded| excluded.node == *node && excluded.until.is_some())
    }

    /// Its nodes in rank order.
    pub fn nodes(&self) -> impl Iterator<Item = &NodeId> {
        self.shares.iter().map(|s| &s.node)
    }

    /// The number of its present or last claim, 1 for the first; `None`: it waits for one.
    pub fn attempt_number(&self) -> Option<u32> {
        let before = self.attempts.last().map_or(0, |a| a.number);
        (!self.shares.is_empty()).then_some(before.saturating_add(1))
    }

    /// Moves its present claim to those that are over. Without nodes there is none, and nothing happens.
    pub fn close_attempt(&mut self, ended_at: Timestamp, reason: &EndReason, by: &str) {
        let (Some(number), Some(head)) = (self.attempt_number(), self.head().cloned()) else { return };
        let closed = Attempt {
            number,
            epoch: self.epoch,
            head,
            nodes: hostlist::fold(self.nodes()),
            claimed_at: self.claimed_at.take(),
            started_at: self.started_at.take(),
            ended_at,
            reason: reason.clone(),
            by: by.to_owned(),
        };
        self.shares.clear();
        attempt::keep(&mut self.attempts, closed);
    }

    /// `RUNNING` time so far or in all, in milliseconds.
    pub fn elapsed_ms(&self, now: Timestamp) -> Option<u64> {
        self.started_at.map(|start| self.ended_at.unwrap_or(now).since_ms(start))
    }
}

fn is_zero(count: &u32) -> bool {
    *count == 0
}

fn is_not(flag: &bool) -> bool {
    !flag
}

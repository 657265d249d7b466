//! Why allocations are in their state: a short text for lists, and a longer one for `explain`.

use super::groups::first_waiting;
use super::{Api, isolation, scaling};
use lattice_api::v1;
use lattice_membership::cluster::Cluster;
use lattice_model::{
    Allocation, AllocationId, AllocationState, EndReason, MemoryKill, Node, NodeId, PreemptCause, RequeuePolicy, SharePhase, hostlist,
};
use lattice_scheduler::{Outlook, clip};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use tonic::Status;

/// The short texts, from this agent's view of the cluster.
pub(super) struct StatusMessages<'a> {
    cluster: &'a Cluster,
    /// `None`: none of the allocations waits, or this agent does not know the whole cluster.
    outlook: Option<Arc<Outlook>>,
    /// Of each task group and scaled service among them: its first lane or replica that waits.
    parts: BTreeMap<AllocationId, &'a Allocation>,
}

impl<'a> StatusMessages<'a> {
    /// For these allocations.
    ///
    /// # Errors
    /// If the outlook could not be computed.
    pub async fn of(cluster: &'a Cluster, api: &Api, allocations: impl Iterator<Item = &Allocation>) -> Result<Self, Status> {
        let (mut waiting, mut groups) = (Vec::new(), BTreeSet::new());
        for allocation in allocations.filter(|a| !a.state.is_terminal()) {
            if allocation.is_group() {
                groups.insert(allocation.id);
            } else if allocation.waits() {
                waiting.push(allocation.id);
            }
        }
        let parts = if groups.is_empty() { BTreeMap::new() } else { first_waiting(cluster, &groups) };
        waiting.extend(parts.values().map(|part| part.id));
        let outlook = if api.context.work.directory.knows_all() && !waiting.is_empty() {
            let outlook = api.outlooks.on(cluster, api.membership.gossiped(), &waiting).await;
            Some(outlook.map_err(|error| Status::internal(error.to_string()))?)
        } else {
            None
        };
        Ok(Self { cluster, outlook, parts })
    }

    /// The texts without the scheduler's outlook, which takes a while to compute if much work
    /// waits.
    pub fn without_outlook(cluster: &'a Cluster) -> Self {
        Self { cluster, outlook: None, parts: BTreeMap::new() }
    }

    /// Why an allocation that was shown cannot begin whatever nodes are free, in a sentence.
    pub fn obstacle(&self, allocation: &Allocation) -> Option<&str> {
        self.outlook.as_ref()?.get(&allocation.id)?.obstacle.as_deref()
    }

    /// Why the first lane of a task group, or the first replica of a scaled service, waits.
    fn part_reason(&self, group: &Allocation) -> Option<&str> {
        let part = self.parts.get(&group.id)?;
        Some(&self.outlook.as_ref()?.get(&part.id)?.reason)
    }

    /// The text for a task group or a scaled service that is neither held nor waits for others.
    fn group_message(&self, group: &Allocation) -> String {
        let reason = self.part_reason(group);
        match group.scaling.as_deref().filter(|_| !group.state.is_terminal()) {
            Some(state) => scaling::brief(state, reason),
            None => reason.map(|reason| format!("lanes wait: {reason}")).unwrap_or_default(),
        }
    }

    /// An allocation as a list shows it.
    pub fn shown(&self, allocation: &Allocation) -> v1::Allocation {
        let mut shown = lattice_api::allocation::to_proto(allocation);
        if allocation.waits() {
            // An allocation that this agent's watch does not show yet has no place in the queue.
            if let Some(expected) = self.outlook.as_ref().and_then(|outlook| outlook.get(&allocation.id)) {
                shown.status_message.clone_from(&expected.reason);
                shown.queue_position = expected.place.unwrap_or(0);
                shown.expected_start_ms = expected.start.map(|start| start.0);
                shown.score = expected.score;
                shown.class_in_queue = expected.score.map(|_| expected.class_in_queue.into());
            }
        } else {
            let text = with_nodes(allocation, self.cluster);
            shown.status_message = clip(if text.is_empty() { self.group_message(allocation) } else { text });
            // It waits for this time before it waits for nodes.
            let waits = allocation.dependencies.as_ref().filter(|_| !allocation.held && !allocation.state.is_terminal());
            shown.expected_start_ms = waits.and_then(|all| all.begin).map(|begin| begin.0);
        }
        shown
    }
}

/// The text for an allocation that has nodes, is held or waits for others; empty if nothing is
/// wrong.
fn with_nodes(allocation: &Allocation, cluster: &Cluster) -> String {
    match allocation.state {
        AllocationState::Pending | AllocationState::Suspended if allocation.held => {
            format!("held: `lattice resume {}`", allocation.id.short())
        }
        AllocationState::Pending | AllocationState::Suspended => allocation.awaits().unwrap_or_default(),
        AllocationState::Staging | AllocationState::Running => {
            let silent = isolation::brief(allocation, &cluster.nodes);
            let prepared = allocation.shares.len() - allocation.shares.count(SharePhase::Claimed);
            match allocation.state {
                _ if !silent.is_empty() => silent,
                _ if allocation.preemption.as_ref().is_some_and(|order| order.cause == PreemptCause::ScaleDown) => {
                    "leaves: fewer replicas are wanted".to_owned()
                }
                _ if allocation.preemption.is_some() => "gives its nodes back".to_owned(),
                AllocationState::Staging => format!("preparing, {prepared} of {} ready", allocation.shares.len()),
                _ => String::new(),
            }
        }
        AllocationState::Completed | AllocationState::Failed | AllocationState::Cancelled => String::new(),
    }
}

/// The explanation for an allocation that does not wait for nodes.
pub(super) fn status_message(allocation: &Allocation, cluster: &Cluster) -> String {
    let nodes = hostlist::fold(allocation.nodes());
    match allocation.state {
        AllocationState::Pending | AllocationState::Suspended if !allocation.held => {
            allocation.awaits().unwrap_or_else(|| "waits for nodes".to_owned())
        }
        AllocationState::Pending => {
            let awaited = allocation.awaits().map_or_else(String::new, |awaited| format!("; it also {awaited}"));
            // Only groups and services run while they are held: by lanes and replicas that have nodes.
            let held = match allocation.shown_state() == AllocationState::Running {
                true if allocation.is_scaled_service() => "; replicas that have nodes still run",
                true => "; tasks that lanes hold still run",
                false => "",
            };
            format!("is held; `lattice resume {}` lets it wait for nodes{awaited}{held}", allocation.id.short())
        }
        AllocationState::Suspended => {
            let why = allocation.reason.as_ref().map_or_else(String::new, |reason| format!(" ({reason})"));
            let from =
                allocation.checkpoint.as_ref().map_or_else(|| "its beginning".to_owned(), |c| format!("checkpoint {}", c.id.short()));
            format!("has given its nodes back{why} and is held; `lattice resume {}` lets it continue from {from}", allocation.id.short())
        }
        AllocationState::Staging => {
            let waited_for = allocation.shares.iter().filter(|s| s.phase == SharePhase::Claimed).map(|s| s.node);
            let describe = |node: &NodeId| {
                let unwell = cluster.nodes.get(node).and_then(Node::unclaimable).map(|why| format!(" ({why})"));
                format!("{node}{}", unwell.unwrap_or_default())
            };
            let waited_for: Vec<String> = waited_for.map(describe).collect();
            format!(
                "its nodes {nodes} prepare scratch, the site's prologue, image, mounts, scope and shim; not ready yet: {}",
                waited_for.join(", ")
            )
        }
        AllocationState::Running => match &allocation.preemption {
            Some(preemption) => format!("runs on {nodes}; {preemption}"),
            None => format!("runs on {nodes}"),
        },
        AllocationState::Completed | AllocationState::Failed | AllocationState::Cancelled => {
            let why = allocation.reason.as_ref().map_or_else(String::new, EndReason::to_string);
            let hint = match &allocation.reason {
                Some(EndReason::OutOfMemory { kill: MemoryKill { limit_bytes: Some(_), .. }, .. }) => "; ask for more with --mem",
                Some(
                    EndReason::WalltimeExceeded
                    | EndReason::Preempted { .. }
                    | EndReason::NodeLost { .. }
                    | EndReason::Exited { code: 126 | 127 },
                ) if allocation.lane.is_some() => "; its tasks run in another lane",
                Some(EndReason::Cancelled { .. }) => "",
                Some(_) if allocation.replica.is_some() => "; another replica takes its place while the service goes on",
                Some(EndReason::WalltimeExceeded) => "; ask for more with --walltime",
                Some(EndReason::Preempted { saved: Err(_), .. }) if allocation.spec.checkpoint.is_none() => {
                    "; --checkpoint=signal has such work asked to save itself first"
                }
                Some(EndReason::Preempted { .. }) if allocation.spec.requeue == RequeuePolicy::Always => "",
                Some(EndReason::Preempted { .. }) => "; --requeue=always puts such work back into the queue",
                Some(EndReason::Exited { code: 126 }) => "; 126: the program was found but could not be executed",
                Some(EndReason::Exited { code: 127 }) => "; 127: the program was not found",
                Some(EndReason::ProbeFailed { .. }) => "; --requeue=always puts such a service back into the queue",
                Some(EndReason::NodeLost { .. }) => "; --requeue puts such work back into the queue",
                Some(EndReason::TasksFailed { .. }) => "; `lattice retry` submits these once more",
                Some(EndReason::DeadlineMissed { .. }) => "; submit it again with a later --deadline, or with --walltime-min",
                Some(EndReason::DependencyUnmet { .. }) => "; submit it again when what it depends on is as it must be",
                Some(_) | None => "",
            };
            format!("ended {}: {why}{hint}", allocation.state)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lattice_model::{Drain, ReplicaOf, Scaling, TaskGroup, Timestamp, test_builders};

    #[test]
    fn a_held_group_says_that_its_lanes_still_run() {
        let mut group = Allocation { held: true, ..test_builders::allocation(AllocationId(uuid::Uuid::from_u128(1 << 96))) };
        test_builders::spec_of(&mut group).tasks = Some(Box::new(TaskGroup::parse("0-9").unwrap()));
        let text = |group: &Allocation| status_message(group, &Cluster::default());
        assert_eq!(text(&group), "is held; `lattice resume 00000001` lets it wait for nodes");
        let group = Allocation { started_at: Some(Timestamp(1)), ..group };
        assert_eq!(text(&group), "is held; `lattice resume 00000001` lets it wait for nodes; tasks that lanes hold still run");
        let mut service = Allocation { spec: test_builders::allocation(group.id).spec, ..group };
        let scaling = Scaling { replicas_min: 1, replicas_max: 4, policy: None, drain: Drain::default() };
        test_builders::spec_of(&mut service).scaling = Some(Box::new(scaling));
        assert_eq!(text(&service), "is held; `lattice resume 00000001` lets it wait for nodes; replicas that have nodes still run");
    }
    #[test]
    fn an_ended_replica_is_replaced_unless_somebody_ended_it() {
        let plain = Allocation { state: AllocationState::Failed, ..test_builders::allocation(AllocationId(uuid::Uuid::from_u128(1))) };
        let replica = Some(Box::new(ReplicaOf { service: AllocationId(uuid::Uuid::from_u128(2)), number: 0 }));
        let replica = Allocation { replica, ..plain.clone() };
        let text = |of: &Allocation, reason| status_message(&Allocation { reason: Some(reason), ..of.clone() }, &Cluster::default());
        let failed = || EndReason::Exited { code: 127 };
        assert!(text(&plain, failed()).ends_with("; 127: the program was not found"));
        assert!(text(&replica, failed()).ends_with("; another replica takes its place while the service goes on"));
        let cancelled = EndReason::Cancelled { by: "ada".to_owned() };
        assert!(text(&replica, cancelled).ends_with("ada"));
    }
}

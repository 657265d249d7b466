//! Short texts for lists: why live allocations are in their state.

use super::tasks::first_waiting_lanes;
use super::{Api, isolation};
use lattice_api::v1;
use lattice_membership::cluster::Cluster;
use lattice_model::{Allocation, AllocationId, AllocationState, SharePhase};
use lattice_scheduler::{Outlook, clip};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use tonic::Status;

/// The texts, from this agent's view of the cluster.
pub(super) struct StatusMessages<'a> {
    cluster: &'a Cluster,
    /// `None`: nothing of it waits, or the view does not contain everything that it waits for.
    outlook: Option<Arc<Outlook>>,
    /// Of each task group among them: its first lane that waits.
    lanes: BTreeMap<AllocationId, &'a Allocation>,
}

impl<'a> StatusMessages<'a> {
    /// For these allocations.
    ///
    /// # Errors
    /// If the outlook could not be computed.
    pub async fn of(cluster: &'a Cluster, api: &Api, allocations: impl Iterator<Item = &Allocation>) -> Result<Self, Status> {
        let (mut waiting, mut groups) = (Vec::new(), BTreeSet::new());
        for allocation in allocations.filter(|a| !a.state.is_terminal()) {
            if allocation.is_task_group() {
                groups.insert(allocation.id);
            } else if allocation.waits() {
                waiting.push(allocation.id);
            }
        }
        let lanes = if groups.is_empty() { BTreeMap::new() } else { first_waiting_lanes(cluster, &groups) };
        waiting.extend(lanes.values().map(|lane| lane.id));
        let outlook = if api.context.work.directory.knows_all() && !waiting.is_empty() {
            let outlook = api.outlooks.on(cluster, api.membership.gossiped(), &waiting).await;
            Some(outlook.map_err(|error| Status::internal(error.to_string()))?)
        } else {
            None
        };
        Ok(Self { cluster, outlook, lanes })
    }

    /// Why an allocation that was shown cannot begin whatever nodes are free, in a sentence.
    pub fn obstacle(&self, allocation: &Allocation) -> Option<&str> {
        self.outlook.as_ref()?.get(&allocation.id)?.obstacle.as_deref()
    }

    /// Why the first lane of a task group waits.
    fn lane_reason(&self, group: &Allocation) -> Option<&str> {
        let lane = self.lanes.get(&group.id)?;
        Some(&self.outlook.as_ref()?.get(&lane.id)?.reason)
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
            let of_lane = || self.lane_reason(allocation).map(|reason| format!("lanes wait: {reason}")).unwrap_or_default();
            shown.status_message = clip(if text.is_empty() { of_lane() } else { text });
        }
        shown
    }
}

/// The text for one that has nodes, is held or waits for others; empty if nothing is wrong.
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
                _ if allocation.preemption.is_some() => "gives its nodes back".to_owned(),
                AllocationState::Staging => format!("preparing, {prepared} of {} ready", allocation.shares.len()),
                _ => String::new(),
            }
        }
        AllocationState::Completed | AllocationState::Failed | AllocationState::Cancelled => String::new(),
    }
}

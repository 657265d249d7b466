//! Short texts for lists: why live allocations are in their state.

use super::{Api, isolation};
use lattice_api::v1;
use lattice_membership::Membership;
use lattice_membership::cluster::Cluster;
use lattice_model::{Allocation, AllocationState, SharePhase};
use lattice_scheduler::{Outlook, clip};

/// The texts, from this agent's view of the cluster. The outlook is computed when the first waiting
/// allocation needs it.
pub(super) struct StatusMessages<'a> {
    cluster: &'a Cluster,
    membership: &'a Membership,
    /// Whether the view contains everything that a waiting allocation waits for.
    knows_all: bool,
    outlook: Option<Outlook>,
}

impl<'a> StatusMessages<'a> {
    pub fn of(cluster: &'a Cluster, api: &'a Api) -> Self {
        Self { cluster, membership: &api.membership, knows_all: api.context.work.directory.knows_all(), outlook: None }
    }

    /// Why an allocation that was shown cannot begin whatever nodes are free, in a sentence.
    pub fn obstacle(&self, allocation: &Allocation) -> Option<&str> {
        self.outlook.as_ref()?.get(&allocation.id)?.obstacle.as_deref()
    }

    /// An allocation as a list shows it.
    pub fn shown(&mut self, allocation: &Allocation) -> v1::Allocation {
        let mut shown = lattice_api::allocation::to_proto(allocation);
        if allocation.waits() {
            if !self.knows_all {
                return shown;
            }
            let outlook = self
                .outlook
                .get_or_insert_with(|| Outlook::of(&self.cluster.with_alive(self.membership.alive()), lattice_agent_common::clock::now()));
            // An allocation that this agent's watch does not show yet has no place in the queue.
            if let Some(expected) = outlook.get(&allocation.id) {
                shown.status_message.clone_from(&expected.reason);
                shown.queue_position = expected.place.unwrap_or(0);
                shown.expected_start_ms = expected.start.map(|start| start.0);
                shown.score = expected.score;
                shown.class_in_queue = expected.score.map(|_| expected.class_in_queue.into());
            }
        } else {
            shown.status_message = clip(with_nodes(allocation, self.cluster));
        }
        shown
    }
}

/// The text for one that has nodes, or is held; empty if nothing is wrong.
fn with_nodes(allocation: &Allocation, cluster: &Cluster) -> String {
    match allocation.state {
        AllocationState::Pending | AllocationState::Suspended => format!("held: `lattice resume {}`", allocation.id.short()),
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

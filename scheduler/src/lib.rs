//! The scheduler: from a frozen view of the cluster to placements and reasons. Each vCluster's
//! queue is served first come, first served, with whole nodes or shares of them.
//!
//! [`place`] decides and [`explain`] gives reasons. Both call `why_not`, so the reason shown is the
//! reason of the decision.

#![forbid(unsafe_code)]

pub mod broker;
mod choice;
mod conformity;
mod domains;
mod holdings;
mod misfit;
mod outlook;
mod possible;
mod quotas;
mod settling;
mod user_running;
mod view;
mod why_not;

pub use holdings::Holdings;
pub use misfit::{Misfit, misfit};
pub use outlook::{Expected, Judge, Outlook, REASON_CHARS_MAX, Waits, clip};
pub use view::View;
pub use why_not::WhyNot;

use domains::Domains;
use lattice_model::claim::ClaimShare;
use lattice_model::count::counted;
use lattice_model::{Allocation, Claim, Node, NodeId, VCluster, hostlist};
use possible::{possible, possible_nodes};
use quotas::Quotas;
use settling::Settling;
use std::collections::BTreeSet;
use user_running::RunningOfUsers;
use view::queue;
use why_not::why_not;

/// The longest list of nodes in an explanation, in bytes; instead of a longer one, only the number
/// of nodes is given.
const NODE_LIST_BYTES_MAX: usize = 200;

/// The claims to propose now, for the vClusters for which `token_of` gives the lease's token. Each
/// queue is served first come, first served: the first allocation that does not fit blocks all
/// behind it. An allocation does not block others if
///
/// * too few registered nodes could ever serve it, without those that are excluded for it
/// * it would exceed the quotas of its tenant, also because too few of the nodes that the tenant
///   uses already have enough free for it
/// * its user has as many running allocations as one user may have
/// * there is no VNI for its network domain
/// * an earlier attempt of it may still run somewhere, and it must not run twice
/// * it was requeued and waits for a certain time
pub fn place(view: &View, token_of: impl Fn(&str) -> Option<u64>) -> Vec<Claim> {
    let mut quotas = Quotas::of(view);
    let mut domains = Domains::of(view);
    let mut running = RunningOfUsers::of(view);
    let settling = Settling::of(view);
    let mut held = Holdings::of(view.nodes.values(), view.allocations.values());
    let mut claims = Vec::new();
    let mut blocked = BTreeSet::new();
    for allocation in queue(view) {
        let queue = view.queue_of(allocation);
        let Some(lease_token) = token_of(queue).filter(|_| !blocked.contains(queue)) else { continue };
        let wanted = allocation.spec.nodes as usize;
        if possible(view, allocation) < wanted || quotas.keeps_off(allocation).is_some() || domains.keeps_off(allocation).is_some() {
            continue;
        }
        if running.keeps_off(allocation).is_some() {
            continue;
        }
        if allocation.waits_until.is_some() || settling.keeps_off(allocation).is_some() {
            continue;
        }
        let named = view.named(allocation);
        let mut free: Vec<&Node> = view.nodes.values().filter(|n| VCluster::may_use(named, n)).collect();
        free.retain(|n| why_not(view, &held, n, allocation).is_none());
        let free_and_used: Vec<&Node> = free.iter().copied().filter(|n| quotas.is_used(allocation, n)).collect();
        let Some(free) = choice::choose(free, &held, &quotas, allocation) else {
            if choice::over_quota(possible_nodes(view, allocation), &free_and_used, &quotas, allocation).is_none() {
                blocked.insert(queue);
            }
            continue;
        };
        quotas.take(allocation, free.iter().map(|n| &n.id));
        domains.take(allocation);
        running.take(allocation);
        let amount = |node: &Node| allocation.spec.amount_of(&node.size);
        for node in &free {
            held.take(&node.id, allocation.id, allocation.epoch, amount(node));
        }
        let share = |node: &&Node| ClaimShare { node: node.id.clone(), resources: amount(node), hold_revision: node.hold_revision };
        claims.push(Claim {
            allocation: allocation.id,
            requeue_count: allocation.requeue_count,
            lease_token,
            shares: free.iter().map(share).collect(),
            by: None,
        });
    }
    claims
}

/// The claim for an allocation that is about to be submitted, if it can be placed at once: then one
/// commit records both. `None` also if other work waits in its queue, because that comes first.
pub fn place_newcomer(mut view: View, newcomer: Allocation, lease_token: u64) -> Option<Claim> {
    let queue = view.queue_of(&newcomer).to_owned();
    if view.somebody_waits(&queue) {
        return None;
    }
    view.allocations.insert(newcomer.id, newcomer);
    place(&view, |name| (name == queue).then_some(lease_token)).pop()
}

/// Why a pending allocation cannot begin whatever nodes are free, in one sentence: quotas of its
/// tenant or user, no VNI for its network domain, an earlier attempt that may still run, or a time
/// for which it waits. `None`: nothing of this blocks it.
pub fn headroom(view: &View, allocation: &Allocation) -> Option<String> {
    Judge::of(view).blocked(allocation).map(|(why, _)| why)
}

/// Why a pending allocation waits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Explanation {
    /// The reason in one sentence.
    pub summary: String,
    /// For each node that is not free for it, the reason.
    pub nodes: Vec<(NodeId, WhyNot)>,
}

/// Explains why `allocation` is not placed, from the same view and by the same rules as [`place`].
pub fn explain(view: &View, allocation: &Allocation) -> Explanation {
    let judge = Judge::of(view);
    let (free, nodes) = judge.sort_nodes(allocation);
    let waits = judge.waits(allocation, judge.ahead(allocation), judge.possible(allocation), || judge.count_free(&free, allocation));
    Explanation { summary: which_queue(view, allocation) + &waits.summary(&allocation.spec), nodes }
}

/// Names the queue and its nodes, if there are several queues.
fn which_queue(view: &View, allocation: &Allocation) -> String {
    if view.vclusters.is_empty() {
        return String::new();
    }
    let named = view.named(allocation);
    let nodes: Vec<&NodeId> = view.nodes.values().filter(|n| VCluster::may_use(named, n)).map(|n| &n.id).collect();
    let folded = hostlist::fold(nodes.iter().copied());
    let shown = if nodes.is_empty() || folded.len() > NODE_LIST_BYTES_MAX { counted(nodes.len(), "node") } else { folded };
    format!("in the queue of vCluster {} ({shown}): ", VCluster::queue(named))
}

#[cfg(test)]
mod tests;

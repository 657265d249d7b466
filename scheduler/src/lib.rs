//! From a frozen view of the cluster to placements and reasons. First come first served in each vCluster's queue, whole nodes
//! or shares of them.
//!
//! [`place`] decides and [`explain`] tells, and both ask [`why_not`]: the reason shown is the reason decided by.

pub mod broker;
mod conformity;
mod domains;
mod holdings;
mod misfit;
mod outlook;
mod quotas;
mod settling;
mod user_running;

pub use holdings::Holdings;
pub use misfit::{Misfit, misfit};
pub use outlook::{Expected, Judge, Outlook, REASON_CHARS_MAX, Waits, clip};

use domains::Domains;
use lattice_model::claim::ClaimShare;
use lattice_model::count::counted;
use lattice_model::{Allocation, AllocationId, Claim, Exclusion, Node, NodeId, Resources, Tenant, Timestamp, VCluster, VniPool, hostlist};
use quotas::Quotas;
use settling::Settling;
use std::collections::{BTreeMap, BTreeSet};
use user_running::RunningOfUsers;

/// What a scheduler knows at one moment. Free = size − committed shares; gossip can only subtract.
#[derive(Clone, Debug, Default)]
pub struct View {
    /// All nodes, by id.
    pub nodes: BTreeMap<NodeId, Node>,
    /// All allocations that have not ended, and ended ones that still hold shares.
    pub allocations: BTreeMap<AllocationId, Allocation>,
    /// Tenants with quotas, by name.
    pub tenants: BTreeMap<String, Tenant>,
    /// vClusters, by name; `default` has no record.
    pub vclusters: BTreeMap<String, VCluster>,
    /// Network domains that have a number, by tenant and name.
    pub domains: BTreeMap<(String, String), u32>,
    /// Where such numbers come from; `None`: it is not known.
    pub vni_pool: Option<VniPool>,
    /// Allocations of one user that may hold nodes at once; `None`: any number.
    pub user_running: Option<u32>,
    /// Nodes that this agent's gossip shows alive.
    pub alive: BTreeSet<NodeId>,
}

impl View {
    /// The vCluster that an allocation names, where there is one of that name.
    fn named(&self, allocation: &Allocation) -> Option<&VCluster> {
        self.vclusters.get(&allocation.spec.vcluster)
    }

    /// The vCluster in whose queue an allocation stands.
    pub fn queue_of(&self, allocation: &Allocation) -> &str {
        VCluster::queue(self.named(allocation))
    }

    /// What waits in a vCluster's queue, in the order in which it is served.
    pub fn waiting_in(&self, vcluster: &str) -> Vec<&Allocation> {
        queue(self).into_iter().filter(|a| self.queue_of(a) == vcluster).collect()
    }
}

/// Bytes of a list of nodes in an explanation.
const NODES_TOLD_BYTES_MAX: usize = 200;

/// Why a node is not taken for an allocation, as the scheduler sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WhyNot {
    /// It is of another vCluster.
    Foreign(String),
    /// The quorum's record of the node speaks against it.
    Unclaimable(String),
    /// Gossip does not show it alive.
    NotAlive,
    /// Another allocation has it, or is to have it, or a part of it where a whole one is wanted.
    Taken(AllocationId),
    /// Less of it is free than is wanted.
    Full {
        /// What is free.
        free: Resources,
        /// What is wanted of it.
        wanted: Resources,
    },
    /// Its prologue failed for this very allocation, for which it is not taken before then.
    Excluded {
        /// Why it failed.
        why: String,
        /// By the leader's clock.
        until: Timestamp,
    },
    /// It is not what is asked for, whatever is free of it.
    Lacks(String),
}

impl std::fmt::Display for WhyNot {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Foreign(why) | Self::Unclaimable(why) => f.write_str(why),
            Self::NotAlive => f.write_str("is not seen alive by gossip"),
            Self::Taken(by) => write!(f, "is taken by allocation {}", by.short()),
            Self::Full { free, wanted } => write!(f, "has too little free: {}", wanted.short_of(free)),
            Self::Lacks(what) => f.write_str(what),
            Self::Excluded { why, until } => write!(
                f,
                "is excluded until {until}, because its prologue failed for this allocation ({why}); it is taken before that once its checks \
                 are well again, it has booted, or a hold of it is lifted"
            ),
        }
    }
}

/// Why `node` cannot be taken for `allocation` now; `None`: it can.
fn why_not(view: &View, held: &Holdings, node: &Node, allocation: &Allocation) -> Option<WhyNot> {
    if let Some(why) = VCluster::keeps_off(view.named(allocation), node) {
        return Some(WhyNot::Foreign(why));
    }
    if let Some(why) = node.unclaimable() {
        return Some(WhyNot::Unclaimable(why));
    }
    if let Some(Exclusion { why, until: Some(until), .. }) = allocation.exclusion(&node.id) {
        return Some(WhyNot::Excluded { why: why.clone(), until: *until });
    }
    if let Some(what) = allocation.spec.lacked_by(node) {
        return Some(WhyNot::Lacks(what));
    }
    let (free, wanted) = (node.size.minus(&held.committed(&node.id)), allocation.spec.amount_of(&node.size));
    match held.largest(&node.id) {
        Some((by, part)) if allocation.spec.share.is_none() || part == node.size => return Some(WhyNot::Taken(by)),
        Some(_) | None if !free.holds(&wanted) => return Some(WhyNot::Full { free, wanted }),
        Some(_) | None => {}
    }
    (!view.alive.contains(&node.id)).then_some(WhyNot::NotAlive)
}

/// The pending allocations in the order in which they are served: by submission, then id.
fn queue(view: &View) -> Vec<&Allocation> {
    let mut queue: Vec<&Allocation> = view.allocations.values().filter(|a| a.waits()).collect();
    queue.sort_by_key(|a| (a.submitted_at, a.id));
    queue
}

/// The claims to propose now, for the vClusters of which `token_of` has the lease's token. First come first served in
/// each queue: the first one that does not fit keeps all behind it waiting there. These keep nobody waiting:
///
/// * one that cannot fit in this cluster as it is registered: it waits for nodes to be added
/// * one whose tenant's quotas leave no room for it
/// * one whose user has as many running allocations as one user may have
/// * one for whose network domain there is no number
/// * one of which an earlier attempt may still run somewhere, and which must not run twice
/// * one that was requeued and waits
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
        if free.len() < wanted {
            blocked.insert(queue);
            continue;
        }
        if allocation.spec.share.is_some() {
            // Where it leaves least: nodes that are whole stay whole for those who want them so.
            let left = |n: &&Node| {
                let free = n.size.minus(&held.committed(&n.id));
                (free.gpus, free.cores, free.memory_bytes)
            };
            free.sort_by_key(left);
        }
        free = conformity::in_order(free, &allocation.spec);
        if free.len() < wanted {
            blocked.insert(queue);
            continue;
        }
        free.truncate(wanted);
        if quotas.keeps_off_these(allocation, &free).is_some() {
            continue;
        }
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

/// The claim for an allocation that is about to be submitted, where it could be placed at once: it then need not wait
/// for two commits. `None` where anybody waits already in its queue, who comes first.
pub fn place_newcomer(mut view: View, newcomer: Allocation, lease_token: u64) -> Option<Claim> {
    let queue = view.queue_of(&newcomer).to_owned();
    if view.allocations.values().any(|a| a.waits() && view.queue_of(a) == queue) {
        return None;
    }
    view.allocations.insert(newcomer.id, newcomer);
    place(&view, |name| (name == queue).then_some(lease_token)).pop()
}

/// How many nodes of the cluster could ever serve the allocation: registered, of its vCluster, schedulable, large enough, with
/// what it asks for, not excluded for it now.
fn possible(view: &View, allocation: &Allocation) -> usize {
    possible_where(view, allocation, |node| allocation.exclusion(&node.id).is_none())
}

/// The same among those nodes that are `wanted`.
fn possible_where(view: &View, allocation: &Allocation, wanted: impl Fn(&Node) -> bool) -> usize {
    let named = view.named(allocation);
    let fits =
        |n: &&Node| misfit::never_serves(named, &allocation.spec, n).is_none() && allocation.spec.lacked_by(n).is_none() && wanted(n);
    let fit: Vec<&Node> = view.nodes.values().filter(fits).collect();
    conformity::together(&fit, &allocation.spec)
}

/// What keeps a pending allocation off whatever nodes there are, in the documents' words. `None`: its tenant's quotas leave
/// room, its user may have one more running, there is a number for its network domain, no earlier attempt stands in its
/// way, and it waits for no time.
pub fn headroom(view: &View, allocation: &Allocation) -> Option<String> {
    Judge::of(view).kept_off(allocation).map(|(why, _)| why)
}

/// Why a pending allocation waits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Explanation {
    /// In one sentence.
    pub summary: String,
    /// What each node that was not free lacks.
    pub nodes: Vec<(NodeId, WhyNot)>,
}

/// Tells why `allocation` is not placed, from the same view and the same rule.
pub fn explain(view: &View, allocation: &Allocation) -> Explanation {
    let judge = Judge::of(view);
    let (free, nodes) = judge.sort_nodes(allocation);
    let waits =
        judge.waits(allocation, judge.ahead(allocation), judge.possible(allocation), || conformity::together(&free, &allocation.spec));
    Explanation { summary: which_queue(view, allocation) + &waits.summary(&allocation.spec), nodes }
}

/// How many nodes of this cluster are excluded for it; which, and when the first of them may be taken again.
fn excluded(view: &View, allocation: &Allocation) -> Option<(usize, String)> {
    let standing = || allocation.excluded.iter().filter(|e| view.nodes.contains_key(&e.node)).filter_map(|e| Some((&e.node, e.until?)));
    let first = standing().map(|(_, until)| until).min()?;
    let nodes = hostlist::fold(standing().map(|(node, _)| node));
    Some((standing().count(), format!("{nodes}, whose prologue failed, until {first} or until the trouble there is over")))
}

/// The queue and its nodes, where there are several queues.
fn which_queue(view: &View, allocation: &Allocation) -> String {
    if view.vclusters.is_empty() {
        return String::new();
    }
    let named = view.named(allocation);
    let nodes: Vec<&NodeId> = view.nodes.values().filter(|n| VCluster::may_use(named, n)).map(|n| &n.id).collect();
    let folded = hostlist::fold(nodes.iter().copied());
    let told = if nodes.is_empty() || folded.len() > NODES_TOLD_BYTES_MAX { counted(nodes.len(), "node") } else { folded };
    format!("in the queue of vCluster {} ({told}): ", VCluster::queue(named))
}

#[cfg(test)]
mod tests;

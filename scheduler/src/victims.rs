//! Which running work is asked to save itself and give its nodes back, so that work of a higher class
//! begins sooner.
//!
//! ```text
//!   cost   = time to save itself + what is lost if it cannot + nearness to its end   (node-seconds)
//!   value  = how much sooner the other begins                                        (node-seconds)
//!
//!   value > cost, and at most VICTIMS_MAX victims ─▶ they are preempted
//!   all of them use nodes lent to them, at most DEBTORS_MAX ─▶ the same, whatever the cost
//! ```
//!
//! The rules are those of the specification ("Preemption policy"). Waiting, backfill and a
//! reservation that begins soon come first: work preempts only if its reservation begins later than
//! the victims could have saved themselves. Work on nodes that the beneficiary's vCluster lent is
//! preempted first, whatever its class and its cost.

use crate::borrowing::borrowed;
use crate::classes::Class;
use crate::draft::{Draft, Service};
use crate::grouping;
use crate::node_set::NodeSet;
use crate::score::{FIRST_SIZE_MEMORY_PART, Scorer};
use crate::span::{Span, duration_ms};
use lattice_model::preemption::{DEBTORS_MAX, VICTIMS_MAX};
use lattice_model::{Allocation, AllocationId, Epoch, Preemption, SchedulerKind, millis};
use std::collections::{BTreeMap, BTreeSet};

/// How long saving itself is assumed to take, in seconds, if the bandwidth of the store is not known.
const SAVING_S_DEFAULT: f64 = 60.0;
/// How long the end of work takes, in seconds: SIGTERM, and SIGKILL after a grace.
const ENDING_S: f64 = 30.0;
/// Work that ends by its walltime within this is left to end.
const NEAR_COMPLETION_MS: u64 = 5 * 60_000;
/// How many candidates are considered for one allocation, the cheapest first.
const CANDIDATES_MAX: usize = 1000;
/// Past this part of its walltime, all that work has computed counts as cost.
const NEARLY_DONE: f64 = 0.9;

/// Work that may be preempted.
struct Candidate<'a> {
    allocation: &'a Allocation,
    nodes: Vec<usize>,
    saving_s: f64,
    cost_node_s: f64,
    /// The nodes that another vCluster lent to it.
    borrowed: Vec<usize>,
    /// Its tenant has used more than its share and its burst allowance: it is preempted before others.
    is_over_burst: bool,
}

/// Work that is preempted for other work.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PreemptedFor {
    /// The allocation that begins sooner.
    pub beneficiary: AllocationId,
    /// The allocations that give their nodes back, with the epochs of their claims.
    pub victims: Vec<(AllocationId, Epoch)>,
}

/// The work that may be preempted. It is collected once a search could find some: most plans need none.
pub struct Victims<'a> {
    /// No candidate, and no work that leaves, is of a lower class than this.
    class_least: u8,
    /// Whether any vCluster borrows: otherwise no node is lent.
    may_be_lent: bool,
    found: Option<Found<'a>>,
}

impl<'a> Victims<'a> {
    pub fn of(state: &Draft<'a>) -> Self {
        let view = state.view;
        // Work that leaves a node may be waiting again.
        let of_leaving = state.columns.leaving.iter().flat_map(|node| &state.nodes[node].leaving);
        let of_leaving = of_leaving.filter_map(|leaving| view.allocations.get(&leaving.allocation));
        let classes = state.kept.held.classes.keys().copied().chain(of_leaving.map(|a| a.spec.preemption_class));
        let may_be_lent = view.vclusters.values().any(|vcluster| vcluster.borrows);
        Self { class_least: classes.min().unwrap_or(u8::MAX), may_be_lent, found: None }
    }

    /// The victims that let an allocation begin before its reservation, if they cost less than that
    /// is worth. A plan chooses no victim twice. `reserved_ms`: when the reservation begins, if that
    /// is known. `looks` counts how often a node is looked at.
    pub fn choose(
        &mut self,
        state: &Draft<'a>,
        scorer: &Scorer<'_>,
        of_class: (usize, &Class),
        allocation: &Allocation,
        (whom, reserved_ms): (Whom, Option<u64>),
        looks: &mut usize,
    ) -> Choice {
        if !self.may_be_lent && whom.below(state, allocation) <= self.class_least {
            return Choice::Nothing;
        }
        let found = self.found.get_or_insert_with(|| Found::of(state, scorer));
        found.choose(state, of_class, allocation, (whom, reserved_ms), looks)
    }
}

/// All candidates of a view, without those that the plan has chosen already.
struct Found<'a> {
    candidates: Vec<Candidate<'a>>,
    /// The lowest class of all candidates, and of work that leaves: work of this class or a lower one
    /// preempts only work that has borrowed nodes.
    lowest_class: u8,
    /// Lent nodes of work that leaves.
    returned: BTreeSet<usize>,
    /// Shares of work that gives its nodes back already, or has ended and not released them yet, by
    /// work and node.
    leaving: BTreeSet<(AllocationId, usize)>,
    /// Searches without a result, by class of equal requests, preemption class and nodes: the earliest
    /// end in milliseconds. A plan only takes nodes, so a search until that end or later fails again.
    in_vain: BTreeMap<(usize, u8, u32), u64>,
}

impl<'a> Found<'a> {
    fn of(state: &Draft<'a>, scorer: &Scorer<'_>) -> Self {
        let with_nodes = || state.kept.holders.values().map(|allocation| &**allocation);
        let leaves = |a: &&Allocation| a.state.is_terminal() || a.preemption.as_deref().is_some_and(Preemption::stands);
        let leaving = leaving(state, with_nodes().filter(leaves));
        let candidate = |allocation: &'a Allocation| {
            let nodes: Vec<usize> = allocation.nodes().filter_map(|node| state.columns.index.get(node).copied()).collect();
            let borrowed = borrowed(state, allocation, &nodes);
            let saving_s = giving_back_s(allocation, state.view.checkpoint_bytes_per_second);
            let cost_node_s = cost_node_s(state, allocation, saving_s);
            Candidate { allocation, nodes, borrowed, saving_s, cost_node_s, is_over_burst: scorer.is_over_burst(allocation) }
        };
        let running = with_nodes().filter(|a| !a.state.is_terminal());
        let mut candidates: Vec<Candidate<'_>> = running.map(candidate).filter(|c| is_eligible(state, c)).collect();
        candidates.sort_by(|a, b| {
            let by_cost = || a.cost_node_s.total_cmp(&b.cost_node_s).then_with(|| a.allocation.id.cmp(&b.allocation.id));
            b.is_over_burst.cmp(&a.is_over_burst).then_with(by_cost)
        });
        let class = |id: &AllocationId| state.view.allocations.get(id).map(|allocation| allocation.spec.preemption_class);
        let classes = candidates.iter().map(|c| c.allocation.spec.preemption_class).chain(leaving.iter().filter_map(|(id, _)| class(id)));
        let lowest_class = classes.min().unwrap_or(u8::MAX);
        let returned = leaving.iter().filter(|(id, node)| is_lent(state, *id, *node)).map(|(_, node)| *node).collect();
        Self { candidates, lowest_class, returned, leaving, in_vain: BTreeMap::new() }
    }

    /// See [`Victims::choose`].
    fn choose(
        &mut self,
        state: &Draft<'_>,
        (number, class): (usize, &Class),
        allocation: &Allocation,
        (whom, reserved_ms): (Whom, Option<u64>),
        looks: &mut usize,
    ) -> Choice {
        let of_class = whom.below(state, allocation);
        // It has borrowed nodes that this allocation could use.
        let is_debtor = |c: &Candidate<'_>| c.borrowed.iter().any(|node| class.candidates.contains(*node));
        let is_owed = || self.returned.iter().any(|node| class.candidates.contains(*node)) || self.candidates.iter().any(is_debtor);
        if of_class <= self.lowest_class && !is_owed() {
            return Choice::Nothing;
        }
        let until_ms = state.now_ms.saturating_add(duration_ms(&allocation.spec));
        let key = (number, of_class, allocation.spec.nodes);
        if self.in_vain.get(&key).is_some_and(|earliest_ms| *earliest_ms <= until_ms) {
            return Choice::Nothing;
        }
        let search = Search { state, class, allocation, until_ms, leaving: &self.leaving };
        let of_lower_class = |c: &&Candidate<'_>| {
            c.allocation.spec.preemption_class < of_class && c.nodes.iter().any(|node| class.candidates.contains(*node))
        };
        let debtors: Vec<&Candidate<'_>> = self.candidates.iter().filter(|c| is_debtor(c)).take(CANDIDATES_MAX).collect();
        let is_service = |c: &Candidate<'_>| state.view.scheduler_of(state.view.queue_of(c.allocation)) == SchedulerKind::ServiceBinPack;
        let others = self.candidates.iter().filter(|c| !is_debtor(c) && !is_service(c)).filter(of_lower_class);
        let useful: Vec<&Candidate<'_>> = debtors.iter().copied().chain(others).take(CANDIDATES_MAX).collect();
        let nodes_of = |all: &[&Candidate<'_>]| all.iter().map(|c| c.nodes.len()).sum::<usize>();
        let rounds = DEBTORS_MAX.min(allocation.spec.nodes as usize);
        *looks += class.candidates.len() + VICTIMS_MAX * nodes_of(&useful) + rounds * nodes_of(&debtors);
        let mut free = NodeSet::empty(state.nodes.len());
        search.free_nodes(&BTreeSet::new(), class.candidates.iter()).for_each(|node| free.insert(node));
        // Enough nodes are being given back already.
        if search.is_enough(&free, &BTreeSet::new()) {
            return Choice::GivenBack;
        }
        // Groups are counted for each candidate.
        if search.counts_groups() {
            *looks += free.len() * (useful.len() + debtors.len());
        }
        let chosen = search.cheapest(&free, &debtors, DEBTORS_MAX).or_else(|| search.cheapest(&free, &useful, VICTIMS_MAX));
        let Some(chosen) = chosen else {
            self.in_vain.entry(key).and_modify(|earliest_ms| *earliest_ms = until_ms.min(*earliest_ms)).or_insert(until_ms);
            return Choice::Nothing;
        };
        let saving_s = chosen.iter().map(|c| c.saving_s).fold(0.0, f64::max);
        let cost_node_s: f64 = chosen.iter().map(|c| c.cost_node_s).sum();
        let sooner_s = reserved_ms.map_or(f64::INFINITY, |start_ms| start_ms.saturating_sub(state.now_ms) as f64 / 1000.0 - saving_s);
        // A lender gets its nodes back whatever that costs.
        let least_node_s = if chosen.iter().all(|c| is_debtor(c)) { 0.0 } else { cost_node_s };
        if sooner_s * f64::from(allocation.spec.nodes) <= least_node_s {
            return Choice::Nothing;
        }
        let freed = search.all_freed(&free, &chosen).into_iter().chain(free.iter()).collect();
        let sets = grouping::sets(state.columns, freed, &[], &allocation.spec, class.groups_max(allocation));
        let wanted = allocation.spec.nodes as usize;
        let nodes = sets.into_iter().find(|set| set.len() >= wanted).into_iter().flatten().take(wanted).collect();
        let victims: Vec<(AllocationId, Epoch)> = chosen.iter().map(|c| (c.allocation.id, c.allocation.epoch)).collect();
        self.candidates.retain(|c| !victims.iter().any(|(id, _)| *id == c.allocation.id));
        Choice::Victims(PreemptedFor { beneficiary: allocation.id, victims }, nodes)
    }
}

/// Whom work may preempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Whom {
    /// Work of a lower class, and work that has borrowed nodes of its vCluster.
    LowerClasses,
    /// Only work that has borrowed nodes of its vCluster.
    Borrowers,
}

impl Whom {
    /// The allocation may preempt work below this class.
    fn below(self, state: &Draft<'_>, allocation: &Allocation) -> u8 {
        match self {
            Self::LowerClasses => state.view.effective_class(allocation),
            Self::Borrowers => 0,
        }
    }
}

/// Whether another vCluster lent the node to this work.
fn is_lent(state: &Draft<'_>, id: AllocationId, node: usize) -> bool {
    state.view.allocations.get(&id).is_some_and(|allocation| !borrowed(state, allocation, &[node]).is_empty())
}

/// The shares that are about to be released: those of this work, and those of earlier claims.
fn leaving<'a>(state: &Draft<'a>, works: impl Iterator<Item = &'a Allocation>) -> BTreeSet<(AllocationId, usize)> {
    let mut leaving = BTreeSet::new();
    // The work, and the only nodes that can have such shares.
    let (mut gone, mut nodes) = (BTreeSet::new(), state.columns.leaving.clone());
    for allocation in works {
        gone.insert(allocation.id);
        allocation.nodes().filter_map(|node| state.columns.index.get(node)).for_each(|node| nodes.insert(*node));
    }
    for at in nodes.iter() {
        let node = state.nodes[at];
        let has_current_claim = |id: &AllocationId| {
            let spans = state.held_in_view(at);
            spans.filter(|span| span.by == *id).count() > node.leaving.iter().filter(|leaving| leaving.allocation == *id).count()
        };
        leaving.extend(state.held_in_view(at).filter(|span| gone.contains(&span.by)).map(|span| (span.by, at)));
        let of_earlier_claims = node.leaving.iter().map(|leaving| leaving.allocation).filter(|id| !has_current_claim(id));
        leaving.extend(of_earlier_claims.map(|id| (id, at)));
    }
    leaving
}

/// The preemption for work that has a reservation.
pub enum Choice {
    /// Nothing.
    Nothing,
    /// Enough nodes are being given back already.
    GivenBack,
    /// These victims are preempted, and the work gets these nodes.
    Victims(PreemptedFor, Vec<usize>),
}

fn is_eligible(state: &Draft<'_>, candidate: &Candidate<'_>) -> bool {
    let allocation = candidate.allocation;
    let queue = state.view.queue_of(allocation);
    let left_ms = allocation
        .spec
        .walltime
        .zip(allocation.started_at)
        .map(|(walltime, started)| started.0.saturating_add(millis(walltime)).saturating_sub(state.now_ms));
    // Services keep their nodes until they end: only lent nodes are taken back.
    let is_service = state.view.scheduler_of(queue) == SchedulerKind::ServiceBinPack;
    (!is_service || !candidate.borrowed.is_empty())
        && allocation.exempt_from_priority().is_none()
        && left_ms.is_none_or(|left_ms| left_ms > NEAR_COMPLETION_MS)
}

/// The assumed time, in seconds, that preempted work takes to save itself, if it can, and to end.
/// `checkpoint_bytes_per_second`: the bandwidth of the checkpoint store, if it is known.
pub fn giving_back_s(allocation: &Allocation, checkpoint_bytes_per_second: Option<f64>) -> f64 {
    if allocation.spec.checkpoint.is_none() {
        return ENDING_S;
    }
    let memory_bytes: f64 = allocation.shares.iter().map(|share| share.resources.memory_bytes as f64).sum();
    let writing_s = checkpoint_bytes_per_second.map_or(SAVING_S_DEFAULT, |rate| memory_bytes * FIRST_SIZE_MEMORY_PART / rate);
    writing_s + ENDING_S
}

fn cost_node_s(state: &Draft<'_>, allocation: &Allocation, saving_s: f64) -> f64 {
    let ran_ms = allocation.started_at.map_or(0, |started| state.now_ms.saturating_sub(started.0));
    let ran_s = ran_ms as f64 / 1000.0;
    let is_lost = allocation.spec.checkpoint.is_none();
    let is_nearly_done = allocation.spec.walltime.is_some_and(|walltime| ran_s > walltime.as_secs_f64() * NEARLY_DONE);
    let lost_s = f64::from(u8::from(is_lost)) * ran_s + f64::from(u8::from(is_nearly_done)) * ran_s;
    (saving_s + lost_s) * allocation.shares.len() as f64
}

/// A search for the victims of one allocation.
struct Search<'s, 'a> {
    state: &'s Draft<'a>,
    class: &'s Class,
    allocation: &'s Allocation,
    until_ms: u64,
    /// See [`Found`]: these shares count as free.
    leaving: &'s BTreeSet<(AllocationId, usize)>,
}

impl Search<'_, '_> {
    fn counts_groups(&self) -> bool {
        let constraints = &self.allocation.spec.constraints;
        constraints.conformance || constraints.together().is_some() || self.class.groups_max(self.allocation) != grouping::ANY
    }

    /// The cheapest single victim, if one is enough; otherwise at most `most` victims, added one after
    /// the other by their cost per freed node.
    fn cheapest<'c, 'a>(&self, free: &NodeSet, candidates: &[&'c Candidate<'a>], most: usize) -> Option<Vec<&'c Candidate<'a>>> {
        let mut largest: Vec<usize> = candidates.iter().map(|c| c.nodes.len()).collect();
        largest.sort_unstable_by(|a, b| b.cmp(a));
        if free.len() + largest.iter().take(most).sum::<usize>() < self.allocation.spec.nodes as usize {
            return None;
        }
        let alone = |c: &&&Candidate<'_>| self.is_enough(free, &self.freed(free, &[**c], &BTreeSet::new()));
        if let Some(one) = candidates.iter().find(alone) {
            return Some(vec![*one]);
        }
        let (mut chosen, mut freed): (Vec<&Candidate<'_>>, BTreeSet<usize>) = (Vec::new(), BTreeSet::new());
        while chosen.len() < most {
            let left = candidates.iter().copied().filter(|c| !chosen.iter().any(|other| other.allocation.id == c.allocation.id));
            let with = |c: &'c Candidate<'a>| {
                let all: Vec<&Candidate<'_>> = std::iter::once(c).chain(chosen.iter().copied()).collect();
                self.freed(free, &all, &freed).len()
            };
            let gaining = left.map(|c| (c, with(c))).filter(|(_, gained)| *gained > 0);
            let per_node = |(c, gained): &(&Candidate<'_>, usize)| c.cost_node_s / *gained as f64;
            let by_cost = |a: &_, b: &_| per_node(a).total_cmp(&per_node(b));
            let (next, _) = gaining.min_by(|a, b| b.0.is_over_burst.cmp(&a.0.is_over_burst).then_with(|| by_cost(a, b)))?;
            chosen.insert(0, next);
            freed.extend(self.freed(free, &chosen, &freed));
            if self.is_enough(free, &freed) {
                return Some(self.needed(free, chosen));
            }
        }
        None
    }

    /// The chosen victims without those that are not needed after all.
    fn needed<'c, 'a>(&self, free: &NodeSet, mut chosen: Vec<&'c Candidate<'a>>) -> Vec<&'c Candidate<'a>> {
        chosen.reverse();
        let mut at = 0;
        while at < chosen.len() {
            let mut fewer = chosen.clone();
            fewer.remove(at);
            if self.is_enough(free, &self.all_freed(free, &fewer)) { chosen = fewer } else { at += 1 }
        }
        chosen
    }

    /// The nodes that are free once these victims are gone, and not before.
    fn all_freed(&self, free: &NodeSet, victims: &[&Candidate<'_>]) -> BTreeSet<usize> {
        let ids: BTreeSet<AllocationId> = victims.iter().map(|c| c.allocation.id).collect();
        let nodes = victims.iter().flat_map(|c| &c.nodes).copied();
        self.free_nodes(&ids, nodes.filter(|node| !free.contains(*node))).collect()
    }

    /// Whether the allocation could begin on these nodes.
    fn is_enough(&self, free: &NodeSet, freed: &BTreeSet<usize>) -> bool {
        let wanted = self.allocation.spec.nodes as usize;
        let is_possible = free.len() + freed.len() >= wanted;
        let (spec, groups_max) = (&self.allocation.spec, self.class.groups_max(self.allocation));
        is_possible && grouping::together(self.state.columns, free.iter().chain(freed.iter().copied()), spec, groups_max) >= wanted
    }

    /// The nodes of the first of these victims that are free once all of them are gone, and that are
    /// neither free before nor freed already.
    fn freed(&self, free: &NodeSet, victims: &[&Candidate<'_>], already: &BTreeSet<usize>) -> BTreeSet<usize> {
        let ids: BTreeSet<AllocationId> = victims.iter().map(|c| c.allocation.id).collect();
        let nodes = victims.first().into_iter().flat_map(|c| &c.nodes).copied();
        self.free_nodes(&ids, nodes.filter(|node| !free.contains(*node) && !already.contains(node))).collect()
    }

    /// Those of these nodes that could serve the allocation, are in service, and are free until its end
    /// once these victims and all leaving work are gone.
    fn free_nodes(&self, without: &BTreeSet<AllocationId>, nodes: impl Iterator<Item = usize>) -> impl Iterator<Item = usize> {
        nodes.filter(move |node| {
            let leaves = |span: &Span| self.leaving.contains(&(span.by, *node)) && self.state.is_known_start(span.end_ms);
            let is_gone = |span: &Span| without.contains(&span.by) || (!span.is_planned && leaves(span));
            let counts = |span: &Span| !is_gone(span);
            let part = self.class.part(self.state.columns, *node);
            let is_candidate = self.class.candidates.contains(*node) && self.state.service[*node] == Service::Up;
            let is_open = self.state.is_open_until(*node, self.class.reservation(), self.until_ms);
            is_candidate && is_open && self.state.is_free_beside(*node, part.as_ref(), self.until_ms, counts)
        })
    }
}

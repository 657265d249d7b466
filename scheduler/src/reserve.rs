//! Reservations: when waiting work can begin at the latest, and on which nodes.
//!
//! Reservations are made in the order in which work is served, and none begins on a node before an
//! earlier one that could be moved to this node. So where nodes are alike, work that ends early
//! never delays a reservation (decision 0077). A reservation whose start is not known holds only its
//! own nodes: otherwise no other could begin before it. No reservation reaches into a window in which
//! an operator has set nodes aside for others.

use crate::choice;
use crate::classes::Class;
use crate::draft::{Draft, Service};
use crate::grouping;
use crate::quotas::Quotas;
use crate::span::{OUTAGE_MS_MAX, duration_ms};
use crate::together::Meeting;
use lattice_model::feature_choice::Together;
use lattice_model::tenant::Excess;
use lattice_model::{Allocation, AllocationId};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap};

/// With more full nodes than this for each candidate, a search by ends is no shorter than a look at all candidates,
/// and takes more steps than the looks that are counted.
const ENDS_PER_CANDIDATE_MAX: usize = 8;

/// A reservation of nodes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reservation {
    pub start_ms: u64,
    /// Its nodes, in ascending order.
    pub nodes: Vec<usize>,
    /// Its nodes that are out of service and expected back.
    pub awaited: Vec<usize>,
    /// Work on its nodes whose end is not known.
    pub endless: Option<Endless>,
}

impl Reservation {
    /// When the work is expected to begin; `None`: it is not known.
    pub fn expected_start_ms(&self, state: &Draft<'_>) -> Option<u64> {
        (self.awaited.is_empty() && state.is_known_start(self.start_ms)).then_some(self.start_ms)
    }
}

/// Work whose end is not known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Endless {
    pub by: AllocationId,
    /// True: it should have ended long ago. False: it has no walltime.
    pub is_overdue: bool,
}

/// The result of a search for a reservation.
pub enum Found {
    Reservation(Reservation),
    /// Too few of the nodes are in service or expected back.
    OutOfService,
    /// The quota of its tenant allows too few of the nodes. `usable`: how many of them the tenant
    /// uses already.
    OverQuota {
        excess: Excess,
        usable: usize,
    },
}

/// The earliest reservation for an allocation that cannot begin now, not before `floor_ms`. Nodes
/// that are full now are candidates like all others. `searches`: how often it looked at all candidates.
pub fn find(state: &Draft<'_>, class: &Class, quotas: &Quotas<'_>, allocation: &Allocation, floor_ms: u64, searches: &mut usize) -> Found {
    let mut floor_ms = floor_ms.max(state.now_ms);
    let lasts_ms = duration_ms(&allocation.spec);
    // No search finds an earlier start than the previous one, whose start a window blocked on some node. So each search
    // passes at least one window on all nodes.
    for _ in 0..state.windows.count() {
        *searches += 1;
        let found = find_from(state, class, quotas, allocation, floor_ms);
        let is_in_way = |found: &Reservation| {
            let until_ms = found.start_ms.saturating_add(lasts_ms);
            found.nodes.iter().any(|node| state.windows.first(*node, class.reservation(), found.start_ms, until_ms).is_some())
        };
        floor_ms = match &found {
            Found::Reservation(reservation) if is_in_way(reservation) => reservation.start_ms,
            Found::Reservation(_) | Found::OutOfService | Found::OverQuota { .. } => return found,
        };
    }
    *searches += 1;
    find_from(state, class, quotas, allocation, floor_ms)
}

/// The time from which nodes are examined. Without windows, an available node stays available.
fn least_ms(state: &Draft<'_>, floor_ms: u64) -> u64 {
    if state.windows.count() > 0 { floor_ms } else { 0 }
}

/// The earliest start at which enough nodes are available, each by itself.
fn find_from(state: &Draft<'_>, class: &Class, quotas: &Quotas<'_>, allocation: &Allocation, floor_ms: u64) -> Found {
    if let Some((start_ms, nodes)) = earliest_by_end(state, class, quotas, allocation, floor_ms) {
        return Found::Reservation(reservation(state, class, start_ms, nodes));
    }
    let least_ms = least_ms(state, floor_ms);
    let at = |node: usize, not_before_ms: u64| available(state, class, allocation, node, not_before_ms.max(least_ms));
    let up = class.candidates.iter().filter(|node| state.service[*node] == Service::Up);
    let mut available: Vec<Available> = up.map(|node| at(node, 0)).collect();
    if let Some((start_ms, nodes)) = earliest(state, class, available.clone(), quotas, allocation, floor_ms) {
        return Found::Reservation(reservation(state, class, start_ms, nodes));
    }
    let back_ms = state.now_ms + OUTAGE_MS_MAX;
    for node in class.candidates.iter().filter(|node| state.service[*node] == Service::BackSoon) {
        available.push(at(node, back_ms));
    }
    let usable = available.iter().filter(|a| quotas.is_used(allocation, &state.nodes[a.node].id)).count();
    if let Some((start_ms, nodes)) = earliest(state, class, available, quotas, allocation, floor_ms) {
        return Found::Reservation(reservation(state, class, start_ms, nodes));
    }
    match quotas.excess(allocation, (allocation.spec.nodes as usize).saturating_sub(usable)) {
        Some(excess) => Found::OverQuota { excess, usable },
        None => Found::OutOfService,
    }
}

/// When a node is available.
#[derive(Clone, Copy)]
struct Available {
    /// When it is available for this reservation.
    from_ms: u64,
    /// When it is available for work that delays no reservation.
    free_ms: u64,
    node: usize,
}

/// The results of a search by ends and of a look at all candidates in service.
#[cfg(test)]
pub fn both_searches(
    state: &Draft<'_>,
    class: &Class,
    quotas: &Quotas<'_>,
    allocation: &Allocation,
    floor_ms: u64,
) -> [Option<(u64, Vec<usize>)>; 2] {
    let up = class.candidates.iter().filter(|node| state.service[*node] == Service::Up);
    let all = up.map(|node| available(state, class, allocation, node, 0)).collect();
    [earliest_by_end(state, class, quotas, allocation, floor_ms), earliest(state, class, all, quotas, allocation, floor_ms)]
}

fn available(state: &Draft<'_>, class: &Class, allocation: &Allocation, node: usize, not_before_ms: u64) -> Available {
    let ends = allocation.spec.walltime.is_some();
    let free_ms = state.free_from_ms(node, class.part(state.columns, node).as_ref(), ends);
    let from_ms = free_ms.max(state.floors.of_node(node)).max(not_before_ms);
    let from_ms = state.windows.free_from_ms(node, class.reservation(), from_ms, duration_ms(&allocation.spec));
    Available { from_ms, free_ms, node }
}

/// The result of [`earliest`] for all candidates in service, without a look at all of them: most are full until
/// some end, and the state sorts them by it. `None`: the request is not so simple, or too few are in service.
fn earliest_by_end(
    state: &Draft<'_>,
    class: &Class,
    quotas: &Quotas<'_>,
    allocation: &Allocation,
    floor_ms: u64,
) -> Option<(u64, Vec<usize>)> {
    let wanted = allocation.spec.nodes as usize;
    let constraints = &allocation.spec.constraints;
    let is_any_choice = class.groups_max(allocation) == grouping::ANY && !constraints.conformance && constraints.together().is_none();
    let is_any_choice = is_any_choice && !grouping::is_contiguous(&allocation.spec);
    let are_enough = state.columns.up.and_len(&class.candidates) >= wanted && wanted > 0;
    let ends_are_few = state.kept.held.by_end.len() <= ENDS_PER_CANDIDATE_MAX * class.candidates.len();
    if !is_any_choice || !are_enough || !ends_are_few || quotas.depend_on_nodes(allocation) {
        return None;
    }
    // Nodes with windows are among the others: see [`Draft::full`].
    let others = state.columns.up.and_without(&class.candidates, &state.full);
    let not_before_ms = least_ms(state, floor_ms);
    let mut others: Vec<Available> = others.map(|node| available(state, class, allocation, node, not_before_ms)).collect();
    let by_end = &state.kept.held.by_end;
    let full = |(free_ms, Reverse(node)): &(u64, Reverse<usize>)| {
        let is_candidate = state.full.contains(*node) && class.candidates.contains(*node);
        is_candidate.then(|| Available { from_ms: state.floors.of_node(*node).max(*free_ms), free_ms: *free_ms, node: *node })
    };
    // The earliest `wanted` times. A node that becomes free after the last of them is not earlier, and no node
    // is available before the floor that all have.
    let least_ms = state.floors.least(&class.candidates);
    let mut first: BinaryHeap<u64> = BinaryHeap::with_capacity(wanted + 1);
    let mut add = |from_ms: u64| {
        first.push(from_ms);
        if first.len() > wanted {
            first.pop();
        }
        first.peek().copied().filter(|_| first.len() == wanted)
    };
    let mut last_ms = None;
    for other in &others {
        last_ms = add(other.from_ms);
    }
    for key in by_end {
        if last_ms.is_some_and(|last_ms| last_ms <= key.0.max(least_ms)) {
            break;
        }
        if let Some(full) = full(key) {
            last_ms = add(full.from_ms);
        }
    }
    let start_ms = last_ms?.max(floor_ms);
    if !state.is_known_start(start_ms) {
        return None;
    }
    // Of the full nodes, the `wanted` that become free last.
    others.retain(|other| other.from_ms <= start_ms);
    let until_start = by_end.range(..=(start_ms, Reverse(0))).rev().filter_map(full);
    others.extend(until_start.filter(|full| full.from_ms <= start_ms).take(wanted));
    earliest_of(state, others, wanted, floor_ms)
}

/// The earliest start on enough of these nodes, and the nodes: of all that are available then, those
/// that become free last, so that the others are left to work that can begin now. If the start is the
/// end of work without a walltime, those that become free first, which may be soon enough: otherwise
/// other work would get each node that becomes free.
fn earliest(
    state: &Draft<'_>,
    class: &Class,
    available: Vec<Available>,
    quotas: &Quotas<'_>,
    allocation: &Allocation,
    floor_ms: u64,
) -> Option<(u64, Vec<usize>)> {
    let Some(together @ Together::Same(alternatives)) = allocation.spec.constraints.together() else {
        return earliest_of_pools(state, class, available, quotas, allocation, floor_ms);
    };
    let mut meeting = Meeting::of(state.columns, together);
    let of_alternative = |alternative: usize| {
        let have = available.iter().copied().filter(|a| meeting.has(a.node, alternative)).collect();
        earliest_of_pools(state, class, have, quotas, allocation, floor_ms)
    };
    (0..alternatives.len()).filter_map(of_alternative).min_by_key(|(start_ms, _)| *start_ms)
}

/// [`earliest`] on nodes with any features, or on numbers of nodes with some features.
fn earliest_of_pools(
    state: &Draft<'_>,
    class: &Class,
    available: Vec<Available>,
    quotas: &Quotas<'_>,
    allocation: &Allocation,
    floor_ms: u64,
) -> Option<(u64, Vec<usize>)> {
    let (wanted, groups_max) = (allocation.spec.nodes as usize, class.groups_max(allocation));
    let is_one_group = allocation.spec.constraints.conformance;
    let group = |node: usize| {
        let conformance = if is_one_group { state.columns.conformance_group[node] } else { 0 };
        (conformance, if groups_max == 1 { state.columns.topology_group[node] } else { 0 })
    };
    let mut pools: BTreeMap<(usize, usize), Vec<Available>> = BTreeMap::new();
    if is_one_group || groups_max == 1 {
        available.into_iter().for_each(|a| pools.entry(group(a.node)).or_default().push(a));
    } else {
        pools.insert((0, 0), available);
    }
    let of_pool = |mut pool: Vec<Available>| {
        if groups_max != grouping::ANY && groups_max > 1 {
            pool = in_groups(state, pool, wanted, groups_max, floor_ms)?;
        }
        if quotas.depend_on_nodes(allocation) {
            pool.sort_by_key(|a| (a.from_ms, a.node));
            if grouping::is_counted(&allocation.spec) {
                // Not the earliest nodes, but those that count for the numbers.
                let allowed = choice::allowed(state, quotas, allocation, pool.iter().map(|a| a.node).collect());
                let allowed: BTreeSet<usize> = allowed.into_iter().collect();
                pool.retain(|a| allowed.contains(&a.node));
            } else {
                quotas.retain_allowed(allocation, &mut pool, |a| &state.nodes[a.node].id);
            }
        }
        match allocation.spec.constraints.together() {
            Some(together @ Together::Counted(_)) => earliest_counted(state, together, pool, wanted, floor_ms),
            None if grouping::is_contiguous(&allocation.spec) => earliest_run(state, &pool, wanted, floor_ms),
            Some(Together::Same(_)) | None => earliest_of(state, pool, wanted, floor_ms),
        }
    };
    pools.into_values().filter_map(of_pool).min_by_key(|(start_ms, _)| *start_ms)
}

/// The nodes in the at most `groups_max` topology groups that are the first to have enough nodes.
/// `None`: no such groups have enough.
fn in_groups(state: &Draft<'_>, mut available: Vec<Available>, wanted: usize, groups_max: usize, floor_ms: u64) -> Option<Vec<Available>> {
    let from_ms = |a: &Available| a.from_ms.max(floor_ms);
    available.sort_unstable_by_key(|a| (from_ms(a), a.node));
    // The groups with most of the first nodes, if they have enough of them. More first nodes never make them too few.
    let largest = |first: usize| {
        let mut counts = vec![0; state.columns.topology_groups];
        available[..first].iter().for_each(|a| counts[state.columns.topology_group[a.node]] += 1);
        let mut groups: Vec<usize> = (0..counts.len()).filter(|group| counts[*group] > 0).collect();
        groups.sort_by_key(|group| Reverse(counts[*group]));
        groups.truncate(groups_max);
        (groups.iter().map(|group| counts[*group]).sum::<usize>() >= wanted).then_some(groups)
    };
    let (mut too_few, mut enough) = (0, available.len());
    largest(enough)?;
    while enough - too_few > 1 {
        let middle = too_few + (enough - too_few) / 2;
        if largest(middle).is_some() { enough = middle } else { too_few = middle }
    }
    // All nodes that are available at that start.
    let start_ms = available.get(enough.checked_sub(1)?).map(from_ms)?;
    let groups = largest(available.partition_point(|a| from_ms(a) <= start_ms))?;
    available.retain(|a| groups.contains(&state.columns.topology_group[a.node]));
    Some(available)
}

/// The earliest start on this many of these nodes, which include the asked numbers of nodes with each feature.
fn earliest_counted(
    state: &Draft<'_>,
    together: &Together,
    mut available: Vec<Available>,
    wanted: usize,
    floor_ms: u64,
) -> Option<(u64, Vec<usize>)> {
    let mut meeting = Meeting::of(state.columns, together);
    available.sort_unstable_by_key(|a| (a.from_ms, a.node));
    // A longer prefix never has fewer nodes with a feature.
    let mut is_enough = |first: usize| first >= wanted && meeting.are_enough(available[..first].iter().map(|a| a.node));
    let (mut too_few, mut enough) = (0, available.len());
    if !is_enough(enough) {
        return None;
    }
    while enough - too_few > 1 {
        let middle = too_few + (enough - too_few) / 2;
        if is_enough(middle) { enough = middle } else { too_few = middle }
    }
    let start_ms = available.get(enough.checked_sub(1)?)?.from_ms.max(floor_ms);
    available.retain(|a| a.from_ms <= start_ms);
    if state.is_known_start(start_ms) {
        available.sort_unstable_by_key(|a| (Reverse(a.free_ms), a.node));
    } else {
        available.sort_unstable_by_key(|a| (a.free_ms, a.node));
    }
    let mut nodes = meeting.needed_first(available.into_iter().map(|a| a.node).collect(), u32::MAX);
    nodes.truncate(wanted);
    nodes.sort_unstable();
    Some((start_ms, nodes))
}

/// The earliest start on this many of these nodes that follow each other by their names.
fn earliest_run(state: &Draft<'_>, available: &[Available], wanted: usize, floor_ms: u64) -> Option<(u64, Vec<usize>)> {
    let run_at = |start_ms: u64| {
        let nodes = available.iter().filter(|a| a.from_ms <= start_ms).map(|a| a.node).collect();
        grouping::runs(state.columns, nodes).into_iter().find(|run| run.len() >= wanted)
    };
    let mut starts: Vec<u64> = available.iter().map(|a| a.from_ms).collect();
    starts.sort_unstable();
    starts.dedup();
    // A later start never has fewer nodes.
    let start_ms = *starts.get(starts.partition_point(|start_ms| run_at(*start_ms).is_none()))?;
    let mut nodes = run_at(start_ms)?;
    nodes.truncate(wanted);
    nodes.sort_unstable();
    Some((start_ms.max(floor_ms), nodes))
}

fn earliest_of(state: &Draft<'_>, mut available: Vec<Available>, wanted: usize, floor_ms: u64) -> Option<(u64, Vec<usize>)> {
    let last = wanted.checked_sub(1).filter(|last| *last < available.len())?;
    let (_, last, _) = available.select_nth_unstable_by_key(last, |a| a.from_ms);
    let start_ms = last.from_ms.max(floor_ms);
    available.retain(|a| a.from_ms <= start_ms);
    if available.len() > wanted {
        if state.is_known_start(start_ms) {
            available.select_nth_unstable_by_key(wanted - 1, |a| (Reverse(a.free_ms), a.node));
        } else {
            available.select_nth_unstable_by_key(wanted - 1, |a| (a.free_ms, a.node));
        }
        available.truncate(wanted);
    }
    let mut nodes: Vec<usize> = available.into_iter().map(|a| a.node).collect();
    nodes.sort_unstable();
    Some((start_ms, nodes))
}

fn reservation(state: &Draft<'_>, class: &Class, start_ms: u64, nodes: Vec<usize>) -> Reservation {
    let awaited = nodes.iter().copied().filter(|node| state.service[*node] != Service::Up).collect();
    let endless = nodes.iter().find_map(|node| {
        let is_full = !state.is_free_in_view(*node, class.part(state.columns, *node).as_ref());
        let span = state.spans[*node].iter().find(|span| is_full && !span.is_planned && !state.is_known_start(span.end_ms))?;
        Some(Endless { by: span.by, is_overdue: span.has_end })
    });
    Reservation { start_ms, nodes, awaited, endless }
}

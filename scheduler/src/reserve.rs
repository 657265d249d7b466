//! Reservations: when waiting work can begin at the latest, and on which nodes.
//!
//! Reservations are made in the order in which work is served, and none begins before an earlier
//! one on a node that it could use itself. So at its start all that holds its nodes has begun, and
//! where nodes are alike, work that ends early never delays a reservation (decision 0077).

use crate::classes::Class;
use crate::quotas::Quotas;
use crate::state::{OUTAGE_MS_MAX, Service, State, walltime_ms_max};
use lattice_model::tenant::Excess;
use lattice_model::{Allocation, AllocationId};
use std::cmp::Reverse;
use std::collections::BTreeMap;

/// A reservation of nodes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reservation {
    pub start_ms: u64,
    /// Its nodes, in ascending order.
    pub nodes: Vec<usize>,
    /// Those of them that are out of service and expected back.
    pub awaited: Vec<usize>,
    /// Work without a walltime that has a part of its nodes.
    pub endless: Option<AllocationId>,
}

impl Reservation {
    /// When the work begins at the latest; `None`: it cannot be told.
    pub fn expected_start_ms(&self, now_ms: u64) -> Option<u64> {
        // A start that far away depends on the end of work that has no walltime.
        let is_known = self.awaited.is_empty() && self.start_ms < now_ms.saturating_add(walltime_ms_max());
        is_known.then_some(self.start_ms)
    }
}

/// The result of a search for a reservation.
pub enum Found {
    Reservation(Reservation),
    /// Too few of the nodes are in service or expected back.
    OutOfService,
    /// The quota of its tenant allows too few of the nodes, of which the tenant uses so many.
    OverQuota {
        excess: Excess,
        usable: usize,
    },
}

/// The earliest reservation for an allocation that cannot begin now, not before `floor_ms`. Nodes
/// that are full now are candidates like all others.
pub fn find(state: &State<'_>, class: &Class<'_>, quotas: &Quotas<'_>, allocation: &Allocation, floor_ms: u64) -> Found {
    let mut floor_ms = floor_ms.max(state.now_ms);
    let mut available: Vec<Available> = Vec::with_capacity(class.candidates.len());
    for node in class.candidates.iter() {
        floor_ms = floor_ms.max(state.reserved_from_ms[node]);
        if state.service[node] == Service::Up {
            available.push(Available { from_ms: state.free_from_ms(node, class.amount(state, node)), node });
        }
    }
    if let Some((start_ms, nodes)) = earliest(state, available.clone(), quotas, allocation, floor_ms) {
        return Found::Reservation(reservation(state, class, start_ms, nodes));
    }
    let back_ms = state.now_ms + OUTAGE_MS_MAX;
    for node in class.candidates.iter().filter(|node| state.service[*node] == Service::BackSoon) {
        available.push(Available { from_ms: state.free_from_ms(node, class.amount(state, node)).max(back_ms), node });
    }
    let usable = available.iter().filter(|a| quotas.is_used(allocation, &state.nodes[a.node].id)).count();
    if let Some((start_ms, nodes)) = earliest(state, available, quotas, allocation, floor_ms) {
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
    from_ms: u64,
    node: usize,
}

/// The earliest start on enough of these nodes, and the nodes: of all that are available then, those
/// that become available last, so that the others are left to work that can begin now.
fn earliest(
    state: &State<'_>,
    mut available: Vec<Available>,
    quotas: &Quotas<'_>,
    allocation: &Allocation,
    floor_ms: u64,
) -> Option<(u64, Vec<usize>)> {
    let wanted = allocation.spec.nodes as usize;
    if quotas.depend_on_nodes(allocation) {
        available.sort_by_key(|a| (a.from_ms, a.node));
        quotas.retain_allowed(allocation, &mut available, |a| &state.nodes[a.node].id);
    }
    if !allocation.spec.constraints.conformance {
        return earliest_of(available, wanted, floor_ms);
    }
    let mut groups: BTreeMap<usize, Vec<Available>> = BTreeMap::new();
    available.into_iter().for_each(|a| groups.entry(state.group[a.node]).or_default().push(a));
    groups.into_values().filter_map(|group| earliest_of(group, wanted, floor_ms)).min_by_key(|(start_ms, _)| *start_ms)
}

fn earliest_of(mut available: Vec<Available>, wanted: usize, floor_ms: u64) -> Option<(u64, Vec<usize>)> {
    let last = wanted.checked_sub(1).filter(|last| *last < available.len())?;
    let (_, last, _) = available.select_nth_unstable_by_key(last, |a| a.from_ms);
    let start_ms = last.from_ms.max(floor_ms);
    available.retain(|a| a.from_ms <= start_ms);
    if available.len() > wanted {
        available.select_nth_unstable_by_key(wanted - 1, |a| (Reverse(a.from_ms), a.node));
        available.truncate(wanted);
    }
    let mut nodes: Vec<usize> = available.into_iter().map(|a| a.node).collect();
    nodes.sort_unstable();
    Some((start_ms, nodes))
}

fn reservation(state: &State<'_>, class: &Class<'_>, start_ms: u64, nodes: Vec<usize>) -> Reservation {
    let awaited = nodes.iter().copied().filter(|node| state.service[*node] != Service::Up).collect();
    let endless = nodes.iter().find_map(|node| {
        let is_full = !state.is_free_in_view(*node, class.amount(state, *node));
        state.spans[*node].iter().find(|span| is_full && !span.has_end && !span.is_planned).map(|span| span.by)
    });
    Reservation { start_ms, nodes, awaited, endless }
}

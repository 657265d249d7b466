//! The windows of reservations that operators made: when nodes are set aside for others.
//!
//! ```text
//!   a node's time ──▶ free │ window of course │ free │ window of maintenance │ free
//!   work of ten minutes     begins at least ten minutes before a window, or after it
//! ```
//!
//! Work without an end begins on a node after its last window. Work that names a reservation counts that one's
//! window as free time, and has only the reservation's nodes as candidates.

use crate::columns::Columns;
use crate::view::View;
use lattice_model::{Reservation, Timestamp};
use std::collections::BTreeMap;

/// The windows that are open or come, by node.
pub struct Windows<'a> {
    /// Each in the order of time: no two overlap on a node. Nodes without windows are absent.
    of_nodes: BTreeMap<usize, Vec<&'a Reservation>>,
    /// How many reservations these are of.
    count: usize,
}

impl<'a> Windows<'a> {
    pub fn of(view: &'a View, columns: &Columns, now_ms: u64) -> Self {
        let mut of_nodes: BTreeMap<usize, Vec<&Reservation>> = BTreeMap::new();
        let mut to_come: Vec<&Reservation> = view.reservations.values().map(|r| &**r).filter(|r| !r.is_over(Timestamp(now_ms))).collect();
        to_come.sort_by_key(|reservation| reservation.start);
        let count = to_come.len();
        for reservation in to_come {
            for node in reservation.nodes.iter().filter_map(|node| columns.index.get(node)) {
                of_nodes.entry(*node).or_default().push(reservation);
            }
        }
        Self { of_nodes, count }
    }

    /// The number of reservations.
    pub fn count(&self) -> usize {
        self.count
    }

    /// The nodes that have windows.
    pub fn nodes(&self) -> impl Iterator<Item = usize> {
        self.of_nodes.keys().copied()
    }

    /// The starts of the windows that are not open yet at this time, in milliseconds.
    pub fn starts(&self, now_ms: u64) -> impl Iterator<Item = u64> {
        self.of_nodes.values().flatten().map(|reservation| reservation.start.0).filter(move |start_ms| *start_ms > now_ms)
    }

    /// The first window in the way of work on this node in that time. `own`: the reservation that the work names.
    pub fn first(&self, node: usize, own: Option<&str>, from_ms: u64, until_ms: u64) -> Option<&'a Reservation> {
        let of_node = self.of_nodes.get(&node)?;
        of_node.iter().copied().find(|other| own != Some(other.name.as_str()) && other.overlaps(from_ms, until_ms))
    }

    /// The earliest time, not before `from_ms`, at which work of this length can begin on the node without reaching
    /// into a window.
    pub fn free_from_ms(&self, node: usize, own: Option<&str>, from_ms: u64, lasts_ms: u64) -> u64 {
        let mut free_ms = from_ms;
        while let Some(in_way) = self.first(node, own, free_ms, free_ms.saturating_add(lasts_ms)) {
            free_ms = in_way.end.0;
        }
        free_ms
    }
}

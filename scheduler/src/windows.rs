//! The windows of reservations that operators made: when nodes are set aside for others.
//!
//! ```text
//!   a node's time ──▶ free │ window of course │ free │ window of maintenance │ free
//!   work of ten minutes     begins at least ten minutes before a window, or after it
//! ```
//!
//! Work without an end begins on a node after its last window. For work that names a reservation, the
//! reservation's window is free time, and only the reservation's nodes are candidates.

use crate::calendar::Calendar;
use crate::columns::Columns;
use crate::view::View;
use lattice_model::{Reservation, Timestamp};
use std::sync::Arc;

/// The windows that are open or begin later, by node.
pub struct Windows<'a> {
    calendar: &'a Calendar,
    /// How many reservations are not over.
    count: usize,
}

impl<'a> Windows<'a> {
    pub fn of(view: &View, columns: &'a Columns, now_ms: u64) -> Self {
        let count = view.reservations.values().filter(|reservation| !reservation.is_over(Timestamp(now_ms))).count();
        Self { calendar: &columns.calendar, count }
    }

    /// How many reservations are not over.
    pub fn count(&self) -> usize {
        self.count
    }

    /// The nodes that have windows which are not over.
    pub fn nodes(&self, now_ms: u64) -> impl Iterator<Item = usize> {
        let has_window = |list: &Vec<Arc<Reservation>>| list.iter().any(|reservation| !reservation.is_over(Timestamp(now_ms)));
        let have_windows: Vec<bool> = self.calendar.lists.iter().map(has_window).collect();
        let lists: &[usize] = if self.count == 0 { &[] } else { &self.calendar.of_node[..] };
        lists.iter().enumerate().filter(move |(_, list)| have_windows[**list]).map(|(node, _)| node)
    }

    /// The starts of the windows that are not open yet at this time, in milliseconds.
    pub fn starts(&self, now_ms: u64) -> impl Iterator<Item = u64> {
        self.calendar.lists.iter().flatten().map(|reservation| reservation.start.0).filter(move |start_ms| *start_ms > now_ms)
    }

    /// The first window that blocks work on this node from `from_ms` to `until_ms`. `own`: the reservation that the work
    /// names.
    pub fn first(&self, node: usize, own: Option<&str>, from_ms: u64, until_ms: u64) -> Option<&'a Reservation> {
        self.first_of(self.calendar.list_of(node), own, from_ms, until_ms)
    }

    /// [`Self::first`] on nodes with this list of windows: [`Calendar::list_of`].
    pub fn first_of(&self, list: usize, own: Option<&str>, from_ms: u64, until_ms: u64) -> Option<&'a Reservation> {
        let of_list = self.calendar.lists[list].iter();
        of_list.map(|other| &**other).find(|other| own != Some(other.name.as_str()) && other.overlaps(from_ms, until_ms))
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

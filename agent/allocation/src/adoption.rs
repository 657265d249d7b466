//! The progress of adoption after a start of the agent: each allocation of the journal is either
//! found again or lost.

use lattice_model::AllocationId;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::watch;

/// A cloneable handle; all clones share one state.
#[derive(Clone, Debug)]
pub struct Adoption(Arc<watch::Sender<Progress>>);

#[derive(Debug, Default)]
struct Progress {
    /// The number of allocations. The driver sets it once.
    expected: Option<usize>,
    open: BTreeSet<AllocationId>,
    lost: usize,
}

/// The result of adoption so far.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Adopted {
    /// The number of allocations in the journal.
    pub all: usize,
    /// How many of them are lost because their shim was dead.
    pub lost: usize,
    /// How many of them have a live shim that has not reported everything yet.
    pub open: usize,
    /// The time since the beginning, in milliseconds.
    pub took_ms: u128,
}

impl Default for Adoption {
    fn default() -> Self {
        Self(Arc::new(watch::channel(Progress::default()).0))
    }
}

impl Adoption {
    /// Sets the allocations to adopt.
    pub fn begin(&self, allocations: impl Iterator<Item = AllocationId>) {
        self.0.send_modify(|p| {
            p.open = allocations.collect();
            p.expected = Some(p.open.len());
        });
    }

    /// The allocation's shim has reported everything, or the allocation is being removed.
    pub fn found(&self, allocation: AllocationId) {
        self.0.send_if_modified(|p| p.open.remove(&allocation));
    }

    /// The allocation's shim is dead.
    pub fn lost(&self, allocation: AllocationId) {
        self.0.send_if_modified(|p| {
            let was_open = p.open.remove(&allocation);
            p.lost += usize::from(was_open);
            was_open
        });
    }

    /// Waits until every allocation is found or lost, but no longer than `at_most`: a shim that
    /// hangs delays nothing else.
    pub async fn wait_until_over(&self, at_most: Duration) -> Adopted {
        let began = Instant::now();
        let mut progress = self.0.subscribe();
        let _ = tokio::time::timeout(at_most, progress.wait_for(|p| p.expected.is_some() && p.open.is_empty())).await;
        let p = progress.borrow();
        Adopted { all: p.expected.unwrap_or(0), lost: p.lost, open: p.open.len(), took_ms: began.elapsed().as_millis() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn it_is_over_when_each_is_found_or_lost_and_a_hanging_one_is_not_waited_for() {
        let adoption = Adoption::default();
        let ids = [1, 2, 3].map(|n| AllocationId(uuid::Uuid::from_u128(n)));
        adoption.begin(ids.into_iter());
        adoption.found(ids[0]);
        adoption.lost(ids[1]);
        adoption.lost(ids[1]);
        let now = adoption.wait_until_over(Duration::from_millis(10)).await;
        assert_eq!((now.all, now.lost, now.open), (3, 1, 1));
        adoption.found(ids[2]);
        let now = adoption.wait_until_over(Duration::from_secs(5)).await;
        assert_eq!((now.all, now.lost, now.open), (3, 1, 0));
        let nothing = Adoption::default();
        nothing.begin(std::iter::empty());
        assert_eq!(nothing.wait_until_over(Duration::from_secs(5)).await.all, 0);
    }
}

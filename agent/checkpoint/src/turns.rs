//! A lock per allocation: one holder at a time, without delaying other allocations.

use lattice_model::AllocationId;
use parking_lot::{Mutex, MutexGuard};
use std::collections::BTreeMap;
use std::sync::Arc;
use tokio::sync::OwnedMutexGuard;

/// The locks of all allocations. A lock that nobody holds or waits for is removed.
#[derive(Default)]
pub(super) struct Turns(Mutex<BTreeMap<AllocationId, Arc<tokio::sync::Mutex<()>>>>);

/// One allocation's lock, waited for or held. Dropping it gives it up.
pub(super) struct Turn<'a> {
    turns: &'a Turns,
    allocation: AllocationId,
    had: Option<OwnedMutexGuard<()>>,
}

impl Turns {
    /// Waits for this allocation's lock.
    pub async fn of(&self, allocation: AllocationId) -> Turn<'_> {
        let lock = Arc::clone(self.all().entry(allocation).or_default());
        // Created before waiting, so that a caller that gives up leaves no entry behind.
        let mut turn = Turn { turns: self, allocation, had: None };
        turn.had = Some(lock.lock_owned().await);
        turn
    }

    fn all(&self) -> MutexGuard<'_, BTreeMap<AllocationId, Arc<tokio::sync::Mutex<()>>>> {
        self.0.lock()
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        drop(self.had.take());
        let mut all = self.turns.all();
        // Every other holder or waiter has a reference as well.
        if all.get(&self.allocation).is_some_and(|lock| Arc::strong_count(lock) == 1) {
            all.remove(&self.allocation);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures::FutureExt;

    fn id(number: u128) -> AllocationId {
        AllocationId(uuid::Uuid::from_u128(number))
    }

    #[test]
    fn nobody_waits_for_another_allocation_and_nothing_is_kept() {
        let turns = Turns::default();
        let first = turns.of(id(1)).now_or_never().unwrap();
        let mut second = Box::pin(turns.of(id(1)));
        assert!(second.as_mut().now_or_never().is_none(), "it is another one's turn");
        // The first holder waits for a hanging store; other allocations go on meanwhile.
        for other in 2..100 {
            assert!(turns.of(id(other)).now_or_never().is_some());
        }
        assert_eq!(turns.all().len(), 1);
        let mut third = Box::pin(turns.of(id(1)));
        assert!(third.as_mut().now_or_never().is_none());
        drop(first);
        // The second caller had got the lock, and gives it up.
        drop(second);
        let third = third.now_or_never().unwrap();
        drop(third);
        assert!(turns.all().is_empty());
    }
}

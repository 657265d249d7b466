//! Whose turn it is with an allocation: one at a time, and no other allocation waits for it.

use lattice_model::AllocationId;
use parking_lot::{Mutex, MutexGuard};
use std::collections::BTreeMap;
use std::sync::Arc;
use tokio::sync::OwnedMutexGuard;

/// Of all allocations. One that nobody has a turn with, or waits for, is not kept.
#[derive(Default)]
pub(super) struct Turns(Mutex<BTreeMap<AllocationId, Arc<tokio::sync::Mutex<()>>>>);

/// A turn, once it is had; it is over with this.
pub(super) struct Turn<'a> {
    turns: &'a Turns,
    allocation: AllocationId,
    had: Option<OwnedMutexGuard<()>>,
}

impl Turns {
    /// A turn with this allocation, once those before it are over.
    pub async fn of(&self, allocation: AllocationId) -> Turn<'_> {
        let lock = Arc::clone(self.all().entry(allocation).or_default());
        // Before it is waited for: who gives that up leaves nothing either.
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
        // Each other turn, had or waited for, holds it as well.
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
        // A store that hangs keeps the first one waiting; others begin meanwhile.
        for other in 2..100 {
            assert!(turns.of(id(other)).now_or_never().is_some());
        }
        assert_eq!(turns.all().len(), 1);
        let mut third = Box::pin(turns.of(id(1)));
        assert!(third.as_mut().now_or_never().is_none());
        drop(first);
        // It had it already, and is given up.
        drop(second);
        let third = third.now_or_never().unwrap();
        drop(third);
        assert!(turns.all().is_empty());
    }
}

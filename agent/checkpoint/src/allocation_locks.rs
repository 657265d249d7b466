//! A lock for each allocation: it has one holder at a time, and does not delay other allocations.

use lattice_model::AllocationId;
use parking_lot::{Mutex, MutexGuard};
use std::collections::BTreeMap;
use std::sync::Arc;
use tokio::sync::OwnedMutexGuard;

/// The locks of all allocations. A lock without holder and waiters is removed.
#[derive(Default)]
pub(super) struct AllocationLocks(Mutex<BTreeMap<AllocationId, Arc<tokio::sync::Mutex<()>>>>);

/// One allocation's lock, which the owner holds or waits for. Dropping it releases the lock.
pub(super) struct AllocationLock<'a> {
    locks: &'a AllocationLocks,
    allocation: AllocationId,
    guard: Option<OwnedMutexGuard<()>>,
}

impl AllocationLocks {
    /// Waits for this allocation's lock.
    pub async fn of(&self, allocation: AllocationId) -> AllocationLock<'_> {
        let lock = Arc::clone(self.all().entry(allocation).or_default());
        // Created before waiting, so that a cancelled caller leaves no entry in the map.
        let mut held = AllocationLock { locks: self, allocation, guard: None };
        held.guard = Some(lock.lock_owned().await);
        held
    }

    fn all(&self) -> MutexGuard<'_, BTreeMap<AllocationId, Arc<tokio::sync::Mutex<()>>>> {
        self.0.lock()
    }
}

impl Drop for AllocationLock<'_> {
    fn drop(&mut self) {
        drop(self.guard.take());
        let mut all = self.locks.all();
        // Each other holder or waiter has a reference too.
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
    fn a_lock_delays_no_other_allocation_and_is_removed_when_unused() {
        let locks = AllocationLocks::default();
        let first = locks.of(id(1)).now_or_never().unwrap();
        let mut second = Box::pin(locks.of(id(1)));
        assert!(second.as_mut().now_or_never().is_none(), "the lock is held");
        // While the first is held, other allocations' locks are free.
        for other in 2..100 {
            assert!(locks.of(id(other)).now_or_never().is_some());
        }
        assert_eq!(locks.all().len(), 1);
        let mut third = Box::pin(locks.of(id(1)));
        assert!(third.as_mut().now_or_never().is_none());
        drop(first);
        // The second caller has the lock now, and releases it.
        drop(second);
        let third = third.now_or_never().unwrap();
        drop(third);
        assert!(locks.all().is_empty());
    }
}

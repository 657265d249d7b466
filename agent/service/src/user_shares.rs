//! A semaphore for each user: a user who takes too much waits for their own permits, and others do
//! not.

use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::Arc;
use tokio::sync::Semaphore;

/// Cloneable; all clones share the semaphores.
#[derive(Clone)]
pub struct UserShares {
    permits: usize,
    by_uid: Arc<Mutex<HashMap<u32, Arc<Semaphore>>>>,
}

impl UserShares {
    /// Gives each user `permits` permits.
    pub fn new(permits: usize) -> Self {
        Self { permits, by_uid: Arc::default() }
    }

    /// The user's own semaphore. Removes the semaphores that nobody uses any more.
    pub fn of(&self, uid: u32) -> Arc<Semaphore> {
        let mut by_uid = self.by_uid.lock();
        by_uid.retain(|_, semaphore| Arc::strong_count(semaphore) > 1);
        Arc::clone(by_uid.entry(uid).or_insert_with(|| Arc::new(Semaphore::new(self.permits))))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn each_user_has_own_permits_and_unused_semaphores_are_removed() {
        let shares = UserShares::new(2);
        let held = shares.of(1000).acquire_many_owned(2).await.unwrap();
        assert!(shares.of(1000).try_acquire_owned().is_err());
        assert!(shares.of(1001).try_acquire_owned().is_ok());
        drop(held);
        assert!(shares.of(1000).try_acquire_owned().is_ok());
        let _ = shares.of(1002);
        assert_eq!(shares.by_uid.lock().len(), 1, "only the last one");
    }
}

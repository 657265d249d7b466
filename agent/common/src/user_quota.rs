//! Limits how many of something each user may have at once.

use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::Arc;

/// How many slots each user has taken. Cloneable; all clones share the counts.
#[derive(Clone, Default)]
pub struct UserQuota(Arc<Mutex<HashMap<u32, usize>>>);

impl UserQuota {
    /// Takes one more slot for the user; `None` if that would exceed `most`.
    pub fn take(&self, uid: u32, most: usize) -> Option<UserSlot> {
        let mut taken = self.0.lock();
        let count = taken.entry(uid).or_insert(0);
        if *count >= most {
            return None;
        }
        *count += 1;
        Some(UserSlot { uid, quota: self.clone() })
    }
}

/// A taken slot, which is released when it is dropped.
pub struct UserSlot {
    uid: u32,
    quota: UserQuota,
}

impl Drop for UserSlot {
    fn drop(&mut self) {
        let mut taken = self.quota.0.lock();
        if let Some(count) = taken.get_mut(&self.uid) {
            *count -= 1;
            if *count == 0 {
                taken.remove(&self.uid);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_counted_for_each_user_and_released_when_dropped() {
        let quota = UserQuota::default();
        let mut held: Vec<UserSlot> = (0..128).map(|_| quota.take(1000, 128).unwrap()).collect();
        assert!(quota.take(1000, 128).is_none());
        assert!(quota.take(1001, 128).is_some());
        held.pop();
        assert!(quota.take(1000, 128).is_some());
        drop(held);
        assert!(quota.0.lock().is_empty(), "users without places have no entry");
    }
}

//! Limits how many of something each user may have at once.

use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::Arc;

/// How many slots each user has taken. Cloneable; all clones share the counts.
#[derive(Clone, Default)]
pub struct UserQuota(Arc<Mutex<HashMap<QuotaKey, usize>>>);

/// A user, and the agent through which the slots are taken, if slots are counted for each agent.
type QuotaKey = (u32, Option<Box<str>>);

impl UserQuota {
    /// Takes one more slot for the user; `None` if that would exceed `most`.
    pub fn take(&self, uid: u32, most: usize) -> Option<UserSlot> {
        self.take_of((uid, None), most)
    }

    /// As [`Self::take`], but counts only the slots that the user takes through this agent.
    pub fn take_by_way_of(&self, agent: &str, uid: u32, most: usize) -> Option<UserSlot> {
        self.take_of((uid, Some(agent.into())), most)
    }

    fn take_of(&self, key: QuotaKey, most: usize) -> Option<UserSlot> {
        let mut taken = self.0.lock();
        let count = taken.entry(key.clone()).or_insert(0);
        if *count >= most {
            return None;
        }
        *count += 1;
        Some(UserSlot { key, quota: self.clone() })
    }
}

/// A taken slot, which is released when it is dropped.
pub struct UserSlot {
    key: QuotaKey,
    quota: UserQuota,
}

impl Drop for UserSlot {
    fn drop(&mut self) {
        let mut taken = self.quota.0.lock();
        if let Some(count) = taken.get_mut(&self.key) {
            *count -= 1;
            if *count == 0 {
                taken.remove(&self.key);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_are_counted_for_each_user_and_released_when_dropped() {
        let quota = UserQuota::default();
        let mut held: Vec<UserSlot> = (0..128).map(|_| quota.take(1000, 128).unwrap()).collect();
        assert!(quota.take(1000, 128).is_none());
        assert!(quota.take(1001, 128).is_some());
        held.pop();
        assert!(quota.take(1000, 128).is_some());
        let by_way_of = |agent| quota.take_by_way_of(agent, 1000, 1);
        let one = by_way_of("n1").unwrap();
        assert!(by_way_of("n1").is_none() && by_way_of("n2").is_some(), "counted for each agent");
        drop((held, one));
        assert!(quota.0.lock().is_empty(), "users without places have no entry");
    }
}

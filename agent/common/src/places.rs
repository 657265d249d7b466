//! Limits how many of something each user may have at once.

use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::Arc;

/// How many places each user has taken. Cloneable; all clones share the counts.
#[derive(Clone, Default)]
pub struct Places(Arc<Mutex<HashMap<u32, usize>>>);

impl Places {
    /// Takes one more place for the user; `None` if that would exceed `most`.
    pub fn take(&self, uid: u32, most: usize) -> Option<Place> {
        let mut taken = self.0.lock();
        let count = taken.entry(uid).or_insert(0);
        if *count >= most {
            return None;
        }
        *count += 1;
        Some(Place { uid, places: self.clone() })
    }
}

/// A taken place, which is released when it is dropped.
pub struct Place {
    uid: u32,
    places: Places,
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut taken = self.places.0.lock();
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
        let places = Places::default();
        let mut held: Vec<Place> = (0..128).map(|_| places.take(1000, 128).unwrap()).collect();
        assert!(places.take(1000, 128).is_none());
        assert!(places.take(1001, 128).is_some());
        held.pop();
        assert!(places.take(1000, 128).is_some());
        drop(held);
        assert!(places.0.lock().is_empty(), "users without places have no entry");
    }
}

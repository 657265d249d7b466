//! A bounded cache of values that each hold for a time.

use std::collections::{BTreeMap, HashMap};
use std::hash::Hash;
use std::time::Instant;

/// Holds at most `len_max` values: a further one replaces the value whose time ends first.
pub(crate) struct Recent<K, V> {
    len_max: usize,
    values: HashMap<K, Held<V>>,
    /// The keys by the ends of their times. The number makes each entry unique.
    ends: BTreeMap<(Instant, u64), K>,
    next_number: u64,
}

struct Held<V> {
    value: V,
    until: Instant,
    number: u64,
}

impl<K: Clone + Eq + Hash, V: Clone> Recent<K, V> {
    pub(crate) fn new(len_max: usize) -> Self {
        Self { len_max, values: HashMap::new(), ends: BTreeMap::new(), next_number: 0 }
    }

    /// The value, if its time has not ended.
    pub(crate) fn get(&self, key: &K, now: Instant) -> Option<V> {
        self.values.get(key).filter(|held| held.until > now).map(|held| held.value.clone())
    }

    /// Stores a value, which replaces the key's earlier one, and holds until `until`.
    pub(crate) fn insert(&mut self, key: K, value: V, until: Instant, now: Instant) {
        self.remove(&key);
        while let Some(first) = self.ends.first_entry() {
            if first.key().0 > now && self.values.len() < self.len_max {
                break;
            }
            self.values.remove(&first.remove());
        }
        let number = self.next_number;
        self.next_number += 1;
        self.ends.insert((until, number), key.clone());
        self.values.insert(key, Held { value, until, number });
    }

    pub(crate) fn remove(&mut self, key: &K) {
        if let Some(held) = self.values.remove(key) {
            self.ends.remove(&(held.until, held.number));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn a_value_holds_until_its_end_and_a_full_cache_drops_the_first_to_end() {
        let now = Instant::now();
        let after = |seconds| now + Duration::from_secs(seconds);
        let mut recent = Recent::new(2);
        recent.insert('a', 1, after(10), now);
        assert_eq!([recent.get(&'a', after(9)), recent.get(&'a', after(10))], [Some(1), None]);
        recent.insert('a', 2, after(20), now);
        recent.insert('b', 3, after(10), now);
        recent.insert('c', 4, after(30), now);
        assert_eq!(['a', 'b', 'c'].map(|key| recent.get(&key, now)), [Some(2), None, Some(4)]);
        // All values whose time has ended are removed first.
        recent.insert('d', 5, after(60), after(40));
        assert_eq!((recent.values.len(), recent.ends.len()), (1, 1));
        recent.remove(&'d');
        assert_eq!((recent.values.len(), recent.ends.len()), (0, 0));
    }

    #[test]
    fn it_never_grows_beyond_its_bound() {
        let now = Instant::now();
        let mut recent = Recent::new(10);
        for number in 0..1000_u32 {
            recent.insert(number % 70, number, now + Duration::from_secs(1 + u64::from(number % 13)), now);
            assert!(recent.values.len() <= 10 && recent.values.len() == recent.ends.len());
        }
    }
}

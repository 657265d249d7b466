//! A hash table for what is looked up at every update of every datagram.

#![expect(clippy::disallowed_types, reason = "a table cannot be iterated, so its order has no effect")]

use std::borrow::Borrow;
use std::collections::HashMap;
use std::hash::Hash;

/// A map without iteration. A lookup reads one or two places in memory, where a tree reads one per
/// level.
#[derive(Debug)]
pub(crate) struct Table<K, V>(HashMap<K, V>);

impl<K, V> Default for Table<K, V> {
    fn default() -> Self {
        Self(HashMap::new())
    }
}

impl<K: Eq + Hash, V> Table<K, V> {
    pub fn get<Q: Eq + Hash + ?Sized>(&self, key: &Q) -> Option<&V>
    where
        K: Borrow<Q>,
    {
        self.0.get(key)
    }

    pub fn get_mut<Q: Eq + Hash + ?Sized>(&mut self, key: &Q) -> Option<&mut V>
    where
        K: Borrow<Q>,
    {
        self.0.get_mut(key)
    }

    /// The value of `key`; inserts `value` if there was none.
    pub fn or_insert(&mut self, key: K, value: V) -> &mut V {
        self.0.entry(key).or_insert(value)
    }

    pub fn insert(&mut self, key: K, value: V) {
        self.0.insert(key, value);
    }

    pub fn remove(&mut self, key: &K) -> Option<V> {
        self.0.remove(key)
    }

    pub fn clear(&mut self) {
        self.0.clear();
    }

    pub fn len(&self) -> usize {
        self.0.len()
    }
}

//! A map whose copies cost nothing until one of them changes.

use std::borrow::Borrow;
use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::ops::Index;
use std::sync::Arc;

/// A record before and after; `None`: there was none, or there is none any more.
pub(crate) type Changed<V> = (Option<Arc<V>>, Option<Arc<V>>);

/// Records by key, in the order of the keys. Copies share the records: the one that changes first
/// copies the map, but only those records that it changes.
#[derive(Debug, PartialEq, Eq)]
pub struct Table<K, V>(Arc<BTreeMap<K, Arc<V>>>);

impl<K: Ord + Clone, V: Clone> Table<K, V> {
    /// The number of records.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The record with this key.
    pub fn get<Q: Ord + ?Sized>(&self, key: &Q) -> Option<&V>
    where
        K: Borrow<Q>,
    {
        self.0.get(key).map(|value| &**value)
    }

    /// Whether there is a record with this key.
    pub fn contains_key<Q: Ord + ?Sized>(&self, key: &Q) -> bool
    where
        K: Borrow<Q>,
    {
        self.0.contains_key(key)
    }

    /// The keys, ascending.
    pub fn keys(&self) -> impl Iterator<Item = &K> {
        self.0.keys()
    }

    /// The records in the order of their keys.
    pub fn values(&self) -> impl DoubleEndedIterator<Item = &V> + Clone {
        self.0.values().map(|value| &**value)
    }

    /// The records in the order of their keys, as copies share them.
    pub fn shared(&self) -> impl DoubleEndedIterator<Item = &Arc<V>> + Clone {
        self.0.values()
    }

    /// Keys and records in the order of the keys.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = (&K, &V)> + Clone {
        self.0.iter().map(|(key, value)| (key, &**value))
    }

    /// The records that differ in a newer table, by key, each before and after. Records that both tables
    /// share count as equal without a look at them. This table keeps its records alive during the
    /// comparison, so no other record can have the address of one of them.
    pub(crate) fn changes(&self, newer: &Self) -> Vec<Changed<V>> {
        let mut changes = Vec::new();
        let (mut before, mut after) = (self.0.iter().peekable(), newer.0.iter().peekable());
        loop {
            let order = match (before.peek(), after.peek()) {
                (None, None) => return changes,
                (Some(_), None) => Ordering::Less,
                (None, Some(_)) => Ordering::Greater,
                (Some((_, old)), Some((_, new))) if Arc::ptr_eq(old, new) => {
                    before.next();
                    after.next();
                    continue;
                }
                (Some((old, _)), Some((new, _))) => old.cmp(new),
            };
            let old = if order.is_le() { before.next() } else { None };
            let new = if order.is_ge() { after.next() } else { None };
            changes.push((old.map(|(_, record)| Arc::clone(record)), new.map(|(_, record)| Arc::clone(record))));
        }
    }

    /// Copies the map if other tables share it, so that a change of those tables copies nothing.
    pub(crate) fn unshare(&mut self) {
        Arc::make_mut(&mut self.0);
    }

    /// Whether both tables share one map, so that a change of either copies it.
    #[cfg(test)]
    pub(crate) fn shares_map(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    /// Applies these [changes](Self::changes). `key_of` gives the key of a record.
    pub(crate) fn follow(&mut self, changes: &[Changed<V>], key_of: impl Fn(&V) -> &K) {
        let records = Arc::make_mut(&mut self.0);
        for (before, after) in changes {
            match (before, after) {
                (_, Some(after)) => drop(records.insert(key_of(after).clone(), Arc::clone(after))),
                (Some(before), None) => drop(records.remove(key_of(before))),
                (None, None) => {}
            }
        }
    }

    /// Inserts a record, or replaces the one with the same key.
    pub fn insert(&mut self, key: K, value: V) {
        Arc::make_mut(&mut self.0).insert(key, Arc::new(value));
    }

    /// Inserts all of these records, or replaces those with the same keys.
    pub fn extend(&mut self, records: impl IntoIterator<Item = (K, V)>) {
        Arc::make_mut(&mut self.0).extend(records.into_iter().map(|(key, value)| (key, Arc::new(value))));
    }

    /// Removes a record.
    pub fn remove<Q: Ord + ?Sized>(&mut self, key: &Q) -> Option<Arc<V>>
    where
        K: Borrow<Q>,
    {
        Arc::make_mut(&mut self.0).remove(key)
    }

    /// The record with this key, to change it.
    pub fn get_mut<Q: Ord + ?Sized>(&mut self, key: &Q) -> Option<&mut V>
    where
        K: Borrow<Q>,
    {
        Arc::make_mut(&mut self.0).get_mut(key).map(Arc::make_mut)
    }

    /// The records, to change them.
    pub fn values_mut(&mut self) -> impl Iterator<Item = &mut V> {
        Arc::make_mut(&mut self.0).values_mut().map(Arc::make_mut)
    }
}

impl<K, V> Clone for Table<K, V> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<K, V> Default for Table<K, V> {
    fn default() -> Self {
        Self(Arc::default())
    }
}

impl<K: Ord, V> FromIterator<(K, V)> for Table<K, V> {
    fn from_iter<I: IntoIterator<Item = (K, V)>>(records: I) -> Self {
        Self(Arc::new(records.into_iter().map(|(key, value)| (key, Arc::new(value))).collect()))
    }
}

impl<K: Ord, V, const N: usize> From<[(K, V); N]> for Table<K, V> {
    fn from(records: [(K, V); N]) -> Self {
        records.into_iter().collect()
    }
}

impl<K: Ord + Borrow<Q>, V, Q: Ord + ?Sized> Index<&Q> for Table<K, V> {
    type Output = V;

    fn index(&self, key: &Q) -> &V {
        &self.0[key]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_copy_keeps_its_records() {
        let mut table: Table<u8, String> = [(1, "one".to_owned()), (2, "two".to_owned())].into();
        let copy = table.clone();
        table.get_mut(&1).unwrap().push('!');
        table.insert(3, "three".to_owned());
        table.remove(&2);
        assert_eq!(table.values().collect::<Vec<_>>(), ["one!", "three"]);
        assert_eq!(copy.iter().collect::<Vec<_>>(), [(&1, &"one".to_owned()), (&2, &"two".to_owned())]);
        assert_eq!((&copy[&2], copy.len(), table.contains_key(&2)), (&"two".to_owned(), 2, false));
    }

    #[test]
    fn changes_are_the_records_that_two_tables_do_not_share() {
        let before: Table<u8, char> = [(1, 'a'), (2, 'b'), (4, 'd'), (6, 'f')].into();
        let changes = |newer: &Table<u8, char>| -> Vec<(Option<char>, Option<char>)> {
            before.changes(newer).into_iter().map(|(old, new)| (old.as_deref().copied(), new.as_deref().copied())).collect()
        };
        let mut after = before.clone();
        assert_eq!(changes(&after), []);
        after.insert(2, 'B');
        after.insert(3, 'c');
        after.remove(&6);
        after.insert(7, 'g');
        assert_eq!(changes(&after), [(Some('b'), Some('B')), (None, Some('c')), (Some('f'), None), (None, Some('g'))]);
        assert_eq!(changes(&Table::default()).len(), 4);
    }

    #[test]
    fn a_table_that_followed_has_the_same_records_and_shares_no_map() {
        let table = |keys: &[u8]| keys.iter().map(|key| (*key, *key)).collect::<Table<u8, u8>>();
        let mut newer = table(&[2, 3, 5]);
        let mut own = newer.clone();
        own.unshare();
        assert!(!own.shares_map(&newer) && own.changes(&newer).is_empty());
        newer.remove(&2);
        newer.insert(4, 4);
        newer.insert(5, 5);
        let changes = own.changes(&newer);
        assert_eq!(changes.len(), 3);
        own.follow(&changes, |record| record);
        assert!(own.changes(&newer).is_empty() && own == newer && !own.shares_map(&newer));
        let map = Arc::as_ptr(&own.0);
        own.unshare();
        assert_eq!(Arc::as_ptr(&own.0), map, "what nobody shares is not copied");
    }
}

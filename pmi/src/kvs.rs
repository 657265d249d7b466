//! The key-value space of a launch as seen by one node; also used for other maps of keys to values.

use crate::blob::{self, CorruptBlob};
use std::collections::BTreeMap;
use std::ops::Bound;
use thiserror::Error;

/// Largest number of keys in a launch.
pub const KEYS_MAX: usize = 1 << 20;
/// Largest total size of keys and values in a launch, in bytes.
pub const KVS_BYTES_MAX: usize = 256 * 1024 * 1024;

/// Approximate memory overhead of a pair, in bytes.
const PAIR_BYTES: usize = 128;

/// Largest number of a launch's node attributes on one node, and of its published names.
const SMALL_KEYS_MAX: usize = 1 << 14;
/// Largest total size of these keys and values, in bytes.
const SMALL_BYTES_MAX: usize = 8 * 1024 * 1024;

/// The pairs do not fit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("the launch's key-value space is full ({keys_max} keys, {bytes_max} bytes)")]
pub(crate) struct KvsFull {
    pub keys_max: usize,
    pub bytes_max: usize,
}

/// Why a merge failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub(crate) enum MergeError {
    #[error(transparent)]
    Corrupt(#[from] CorruptBlob),
    #[error(transparent)]
    Full(#[from] KvsFull),
}

/// Keys with their values; a later put replaces an earlier one.
#[derive(Debug)]
pub(crate) struct Kvs {
    pairs: BTreeMap<Box<[u8]>, Box<[u8]>>,
    bytes: usize,
    keys_max: usize,
    bytes_max: usize,
}

impl Default for Kvs {
    fn default() -> Self {
        Self { pairs: BTreeMap::new(), bytes: 0, keys_max: KEYS_MAX, bytes_max: KVS_BYTES_MAX }
    }
}

impl Kvs {
    /// A map with this many bytes of keys and values at most, and as much again for the overhead of
    /// pairs.
    pub(crate) fn of_bytes(bytes_max: usize) -> Self {
        Self { keys_max: KEYS_MAX.min(bytes_max / PAIR_BYTES), bytes_max: KVS_BYTES_MAX.min(bytes_max), ..Self::default() }
    }

    fn full(&self) -> KvsFull {
        KvsFull { keys_max: self.keys_max, bytes_max: self.bytes_max }
    }

    /// A map with the lower bounds, for node attributes and published names.
    pub(crate) fn small() -> Self {
        Self { keys_max: SMALL_KEYS_MAX, bytes_max: SMALL_BYTES_MAX, ..Self::default() }
    }

    pub(crate) fn get(&self, key: &[u8]) -> Option<&[u8]> {
        self.pairs.get(key).map(|value| &**value)
    }

    /// Inserts a pair; if it does not fit, nothing changes.
    pub(crate) fn put(&mut self, key: &[u8], value: &[u8]) -> Result<(), KvsFull> {
        let full = self.full();
        if let Some(held) = self.pairs.get_mut(key) {
            let bytes = self.bytes - held.len() + value.len();
            if bytes > full.bytes_max {
                return Err(full);
            }
            *held = value.into();
            self.bytes = bytes;
            return Ok(());
        }
        let bytes = self.bytes + key.len() + value.len();
        if self.pairs.len() >= full.keys_max || bytes > full.bytes_max {
            return Err(full);
        }
        self.pairs.insert(key.into(), value.into());
        self.bytes = bytes;
        Ok(())
    }

    /// Removes a pair; returns whether it existed.
    pub(crate) fn remove(&mut self, key: &[u8]) -> bool {
        let Some(value) = self.pairs.remove(key) else { return false };
        self.bytes -= key.len() + value.len();
        true
    }

    /// Removes all pairs whose key has this prefix.
    pub(crate) fn remove_all(&mut self, prefix: &[u8]) {
        let begin = (Bound::Included(prefix), Bound::Unbounded);
        let keys: Vec<_> =
            self.pairs.range::<[u8], _>(begin).map(|(key, _)| key.clone()).take_while(|key| key.starts_with(prefix)).collect();
        for key in keys {
            self.remove(&key);
        }
    }

    /// The pair at this index in key order. This takes linear time: to iterate, use
    /// [`Self::after`].
    pub(crate) fn nth(&self, number: usize) -> Option<(&[u8], &[u8])> {
        self.pairs.iter().nth(number).map(|(key, value)| (&**key, &**value))
    }

    /// The first pair after this key.
    pub(crate) fn after(&self, key: &[u8]) -> Option<(&[u8], &[u8])> {
        let behind = (Bound::Excluded(key), Bound::Unbounded);
        self.pairs.range::<[u8], _>(behind).next().map(|(key, value)| (&**key, &**value))
    }

    /// Inserts all pairs of a blob. A corrupt blob changes nothing; of one that does not fit, some
    /// pairs may be inserted.
    pub(crate) fn merge(&mut self, blob: &[u8]) -> Result<(), MergeError> {
        blob::check(blob)?;
        for pair in blob::pairs(blob) {
            let (key, value) = pair?;
            self.put(key, value)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_later_put_wins_and_bytes_are_counted() {
        let mut kvs = Kvs::default();
        kvs.put(b"a", b"12345").unwrap();
        kvs.put(b"a", b"1").unwrap();
        kvs.put(b"bb", b"").unwrap();
        assert_eq!((kvs.get(b"a"), kvs.get(b"bb"), kvs.get(b"c")), (Some(&b"1"[..]), Some(&b""[..]), None));
        assert_eq!(kvs.bytes, 4);
    }

    #[test]
    fn pairs_are_iterated_and_removed_by_prefix() {
        let mut kvs = Kvs::default();
        for key in ["a", "ra", "rb", "s"] {
            kvs.put(key.as_bytes(), b"1").unwrap();
        }
        assert_eq!((kvs.nth(1), kvs.after(b"ra"), kvs.after(b"s"), kvs.nth(4)), (Some((&b"ra"[..], &b"1"[..])), kvs.nth(2), None, None));
        kvs.remove_all(b"r");
        assert_eq!((kvs.nth(1), kvs.bytes), (Some((&b"s"[..], &b"1"[..])), 4));
        assert!(kvs.remove(b"s") && !kvs.remove(b"s"));
        assert_eq!((kvs.nth(1), kvs.bytes), (None, 2));
    }

    #[test]
    fn the_small_map_has_lower_bounds() {
        let mut kvs = Kvs::small();
        let fits = (0..SMALL_KEYS_MAX + 1).take_while(|key| kvs.put(&key.to_le_bytes(), b"").is_ok()).count();
        assert_eq!(fits, SMALL_KEYS_MAX);
        let mut kvs = Kvs::small();
        assert_eq!(kvs.put(b"k", &vec![0; SMALL_BYTES_MAX]), Err(kvs.full()));
    }

    #[test]
    fn keys_are_bounded() {
        let mut kvs = Kvs::default();
        for key in 0..KEYS_MAX {
            kvs.put(&key.to_le_bytes(), b"").unwrap();
        }
        assert_eq!(kvs.put(b"one more", b""), Err(kvs.full()));
        assert_eq!(kvs.put(&7usize.to_le_bytes(), b"new"), Ok(()), "a key that is there can still change");
    }

    #[test]
    fn a_memory_limit_bounds_bytes_and_pairs() {
        let mut kvs = Kvs::of_bytes(64 * PAIR_BYTES);
        let full = KvsFull { keys_max: 64, bytes_max: 64 * PAIR_BYTES };
        assert_eq!(kvs.put(b"k", &[0; 64 * PAIR_BYTES]), Err(full));
        let fits = (0..100usize).take_while(|key| kvs.put(&key.to_le_bytes(), b"").is_ok()).count();
        assert_eq!((fits, full.to_string().as_str()), (64, "the launch's key-value space is full (64 keys, 8192 bytes)"));
        assert_eq!((Kvs::of_bytes(usize::MAX).keys_max, Kvs::of_bytes(usize::MAX).bytes_max), (KEYS_MAX, KVS_BYTES_MAX));
    }

    #[test]
    fn a_corrupt_merge_changes_nothing() {
        let mut kvs = Kvs::default();
        let mut bytes = Vec::new();
        blob::append(&mut bytes, b"k", b"v");
        bytes.push(1);
        assert_eq!(kvs.merge(&bytes), Err(MergeError::Corrupt(CorruptBlob { offset: 6 })));
        assert_eq!(kvs.get(b"k"), None);
    }
}

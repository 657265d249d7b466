//! The key-value space of a launch, as one node sees it.

use crate::blob::{self, CorruptBlob};
use std::collections::BTreeMap;
use thiserror::Error;

/// The most keys in a launch.
pub const KEYS_MAX: usize = 1 << 20;
/// The most bytes of keys and values in a launch.
pub const KVS_BYTES_MAX: usize = 256 * 1024 * 1024;

/// Pairs that did not fit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("the launch's key-value space is full ({KEYS_MAX} keys, {KVS_BYTES_MAX} bytes)")]
pub(crate) struct KvsFull;

/// Why a merge was not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub(crate) enum MergeError {
    #[error(transparent)]
    Corrupt(#[from] CorruptBlob),
    #[error(transparent)]
    Full(#[from] KvsFull),
}

/// Keys with their values; a later put replaces an earlier one.
#[derive(Debug, Default)]
pub(crate) struct Kvs {
    pairs: BTreeMap<Box<[u8]>, Box<[u8]>>,
    bytes: usize,
}

impl Kvs {
    pub(crate) fn get(&self, key: &[u8]) -> Option<&[u8]> {
        self.pairs.get(key).map(|value| &**value)
    }

    /// Puts a pair; changes nothing where it does not fit.
    pub(crate) fn put(&mut self, key: &[u8], value: &[u8]) -> Result<(), KvsFull> {
        if let Some(held) = self.pairs.get_mut(key) {
            let bytes = self.bytes - held.len() + value.len();
            if bytes > KVS_BYTES_MAX {
                return Err(KvsFull);
            }
            *held = value.into();
            self.bytes = bytes;
            return Ok(());
        }
        let bytes = self.bytes + key.len() + value.len();
        if self.pairs.len() >= KEYS_MAX || bytes > KVS_BYTES_MAX {
            return Err(KvsFull);
        }
        self.pairs.insert(key.into(), value.into());
        self.bytes = bytes;
        Ok(())
    }

    /// Puts all pairs of a blob. A corrupt blob changes nothing; one that does not fit may be in half.
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
    fn keys_are_bounded() {
        let mut kvs = Kvs::default();
        for key in 0..KEYS_MAX {
            kvs.put(&key.to_le_bytes(), b"").unwrap();
        }
        assert_eq!(kvs.put(b"one more", b""), Err(KvsFull));
        assert_eq!(kvs.put(&7usize.to_le_bytes(), b"new"), Ok(()), "a key that is there can still change");
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

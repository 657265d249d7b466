//! The data that nodes exchange at a fence: key-value pairs as a sequence of records.
//!
//! ```text
//!   record = key length (u16, little endian) · value length (u16, little endian) · key · value
//! ```
//!
//! There is no header and no count, so the concatenation of two blobs is a blob with the pairs of
//! both, at any level of a tree. If two records have the same key, the later one wins.

use crate::wire::{KEY_BYTES_MAX, VALUE_BYTES_MAX};
use thiserror::Error;

/// Largest size of a blob in bytes, for one node's contribution and for the merge of all nodes. A
/// merge of this size fits in one frame to a shim (64 MiB), and has space for the keys of 100,000
/// MPICH ranks (448 bytes a rank).
pub const BLOB_BYTES_MAX: usize = 60 * 1024 * 1024;

/// Size of a record before its key, in bytes.
const RECORD_HEADER_BYTES: usize = 4;

/// The blob is not a sequence of complete, valid records.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("the fence data is corrupt at byte {offset}")]
pub struct CorruptBlob {
    /// Offset of the invalid record.
    pub offset: usize,
}

/// Size of a pair's record, in bytes.
pub(crate) fn record_bytes(key: &[u8], value: &[u8]) -> usize {
    RECORD_HEADER_BYTES + key.len() + value.len()
}

/// Appends a pair whose lengths are within the wire's limits.
pub(crate) fn append(blob: &mut Vec<u8>, key: &[u8], value: &[u8]) {
    let length = |bytes: &[u8]| u16::try_from(bytes.len()).expect("a key or value within the wire's limits").to_le_bytes();
    blob.extend_from_slice(&length(key));
    blob.extend_from_slice(&length(value));
    blob.extend_from_slice(key);
    blob.extend_from_slice(value);
}

/// The pairs of a blob in order. The iterator ends after the first error.
pub(crate) fn pairs(blob: &[u8]) -> impl Iterator<Item = Result<(&[u8], &[u8]), CorruptBlob>> {
    let mut offset = 0;
    std::iter::from_fn(move || {
        let rest = &blob[offset..];
        if rest.is_empty() {
            return None;
        }
        let Some((key, value)) = first(rest) else {
            let corrupt = CorruptBlob { offset };
            offset = blob.len();
            return Some(Err(corrupt));
        };
        offset += record_bytes(key, value);
        Some(Ok((key, value)))
    })
}

/// Checks that every record of a blob is valid.
pub(crate) fn check(blob: &[u8]) -> Result<(), CorruptBlob> {
    pairs(blob).try_for_each(|pair| pair.map(drop))
}

fn first(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let (header, rest) = bytes.split_first_chunk::<RECORD_HEADER_BYTES>()?;
    let key_bytes = usize::from(u16::from_le_bytes([header[0], header[1]]));
    let value_bytes = usize::from(u16::from_le_bytes([header[2], header[3]]));
    if !(1..=KEY_BYTES_MAX).contains(&key_bytes) || value_bytes > VALUE_BYTES_MAX {
        return None;
    }
    let (key, rest) = rest.split_at_checked(key_bytes)?;
    let (value, _) = rest.split_at_checked(value_bytes)?;
    Some((key, value))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    type Pair = (Vec<u8>, Vec<u8>);

    fn some_pairs() -> impl Strategy<Value = Vec<Pair>> {
        let pair = (prop::collection::vec(any::<u8>(), 1..=KEY_BYTES_MAX), prop::collection::vec(any::<u8>(), 0..40));
        prop::collection::vec(pair, 0..8)
    }

    fn encode(pairs: &[Pair]) -> Vec<u8> {
        let mut blob = Vec::new();
        for (key, value) in pairs {
            append(&mut blob, key, value);
        }
        blob
    }

    fn decode(blob: &[u8]) -> Result<Vec<Pair>, CorruptBlob> {
        pairs(blob).map(|pair| pair.map(|(key, value)| (key.to_vec(), value.to_vec()))).collect()
    }

    #[test]
    fn the_longest_pair_fits() {
        let pair = vec![(vec![b'k'; KEY_BYTES_MAX], vec![b'v'; VALUE_BYTES_MAX])];
        assert_eq!(decode(&encode(&pair)), Ok(pair));
    }

    #[test]
    fn says_where_it_is_corrupt() {
        let mut blob = encode(&[(b"ab".to_vec(), b"c".to_vec())]);
        blob.extend_from_slice(&[0, 0, 1, 0, b'x']);
        assert_eq!(check(&blob), Err(CorruptBlob { offset: 7 }), "an empty key");
        assert_eq!(check(&[1, 0, 0, 0]), Err(CorruptBlob { offset: 0 }), "a key that is not there");
        assert_eq!(check(&[1, 0, 0xff, 0xff, b'k']), Err(CorruptBlob { offset: 0 }), "a value too long");
    }

    proptest! {
        #[test]
        fn joined_blobs_are_the_blob_of_both(a in some_pairs(), b in some_pairs()) {
            let joined = [encode(&a), encode(&b)].concat();
            prop_assert_eq!(decode(&joined), Ok([a, b].concat()));
        }

        #[test]
        fn any_bytes_are_read_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..400)) {
            if let Ok(pairs) = decode(&bytes) {
                prop_assert_eq!(encode(&pairs), bytes);
            }
        }

        #[test]
        fn a_cut_blob_is_refused_or_ends_at_a_record(a in some_pairs(), cut in any::<prop::sample::Index>()) {
            let blob = encode(&a);
            let cut = &blob[..cut.index(blob.len() + 1)];
            if let Ok(pairs) = decode(cut) {
                prop_assert!(a.starts_with(&pairs));
            }
        }
    }
}

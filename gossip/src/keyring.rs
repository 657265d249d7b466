//! The keys that datagrams are sealed with.

use std::collections::BTreeMap;
use std::fmt;
use thiserror::Error;

/// How many keys a ring may have: two while one replaces the other, and a third that this node
/// still seals with after the quorum was recovered from a backup.
pub const KEYS_MAX: usize = 3;
/// The id of the configured key, which exists before any other.
pub(crate) const CONFIGURED: u32 = 0;

/// One of the cluster's gossip keys. `Debug` does not show its bytes.
#[derive(Clone, PartialEq, Eq)]
pub struct Key([u8; 32]);

/// The text is not a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("a gossip key is 64 hexadecimal digits (32 bytes)")]
pub struct KeyError;

impl Key {
    /// From 32 bytes, drawn from the machine's randomness once per key.
    pub fn from_bytes(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }

    /// From 64 hexadecimal digits; white space around them is ignored.
    ///
    /// # Errors
    /// Anything else. The error does not repeat the text.
    pub fn from_hex(text: &str) -> Result<Self, KeyError> {
        let digits = text.trim().as_bytes();
        let mut bytes = [0; 32];
        if digits.len() != 64 {
            return Err(KeyError);
        }
        for (byte, pair) in bytes.iter_mut().zip(digits.chunks_exact(2)) {
            let nibble = |digit: u8| char::from(digit).to_digit(16).ok_or(KeyError);
            *byte = (nibble(pair[0])? << 4 | nibble(pair[1])?) as u8;
        }
        Ok(Self(bytes))
    }

    /// The key as 64 hexadecimal digits. Write it only where nobody but the agent can read it.
    pub fn to_hex(&self) -> String {
        self.0.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    pub(crate) fn bytes(&self) -> &[u8; 32] {
        &self.0
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Key(hidden)")
    }
}

/// Keys by their ids: all of them open, one of them seals.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Keyring {
    keys: BTreeMap<u32, Key>,
    seals: u32,
}

/// Why keys do not make a ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum KeyringError {
    /// The key that is to seal is not among them.
    #[error("the sealing key {0} is not in the gossip ring")]
    Missing(u32),
    /// There are more than [`KEYS_MAX`].
    #[error("a gossip ring has at most {KEYS_MAX} keys, not {0}")]
    TooMany(usize),
}

impl Keyring {
    /// The configured key alone: id 0.
    pub fn configured(key: Key) -> Self {
        Self { keys: BTreeMap::from([(CONFIGURED, key)]), seals: CONFIGURED }
    }

    /// A ring of these keys; the key with the id `seals` seals.
    ///
    /// # Errors
    /// See [`KeyringError`].
    pub fn new(keys: BTreeMap<u32, Key>, seals: u32) -> Result<Self, KeyringError> {
        if keys.len() > KEYS_MAX {
            return Err(KeyringError::TooMany(keys.len()));
        }
        if !keys.contains_key(&seals) {
            return Err(KeyringError::Missing(seals));
        }
        Ok(Self { keys, seals })
    }

    /// All keys.
    pub(crate) fn keys(&self) -> impl Iterator<Item = (u32, &Key)> {
        self.keys.iter().map(|(id, key)| (*id, key))
    }

    /// The key that seals.
    pub(crate) fn sealing_key(&self) -> (u32, &Key) {
        (self.seals, &self.keys[&self.seals])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_read_written_and_hidden() {
        let key = Key::from_hex(&format!(" {}\n", "0aF9".repeat(16))).unwrap();
        assert_eq!(key.to_hex(), "0af9".repeat(16));
        assert_eq!(format!("{key:?}"), "Key(hidden)");
        for bad in ["", "00", &"g".repeat(64), &"é".repeat(32), &"0".repeat(65)] {
            assert_eq!(Key::from_hex(bad), Err(KeyError));
        }
    }

    #[test]
    fn a_ring_has_the_key_that_seals_and_not_too_many() {
        let keys = |ids: &[u32]| ids.iter().map(|id| (*id, Key::from_bytes([1; 32]))).collect();
        assert_eq!(Keyring::new(keys(&[1, 2]), 3), Err(KeyringError::Missing(3)));
        assert_eq!(Keyring::new(keys(&[]), 0), Err(KeyringError::Missing(0)));
        assert_eq!(Keyring::new(keys(&[1, 2, 3, 4]), 1), Err(KeyringError::TooMany(4)));
        assert!(Keyring::new(keys(&[1, 2, 3]), 1).is_ok());
    }
}

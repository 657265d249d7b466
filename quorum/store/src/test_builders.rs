//! Damage to valid bytes, for tests of this crate and of crates that use it.

use proptest::prelude::*;

/// A modification of valid bytes.
#[derive(Clone, Debug)]
pub enum Harm {
    Flip {
        at: prop::sample::Index,
        by: u8,
    },
    Cut {
        at: prop::sample::Index,
    },
    Insert {
        at: prop::sample::Index,
        bytes: Vec<u8>,
    },
    /// A MessagePack length that announces far more than the input contains.
    Boast {
        at: prop::sample::Index,
        kind: usize,
    },
}

/// Any modification.
pub fn harm() -> impl Strategy<Value = Harm> {
    prop_oneof![
        (any::<prop::sample::Index>(), 1..=255u8).prop_map(|(at, by)| Harm::Flip { at, by }),
        any::<prop::sample::Index>().prop_map(|at| Harm::Cut { at }),
        (any::<prop::sample::Index>(), prop::collection::vec(any::<u8>(), 1..16)).prop_map(|(at, bytes)| Harm::Insert { at, bytes }),
        (any::<prop::sample::Index>(), 0..4usize).prop_map(|(at, kind)| Harm::Boast { at, kind }),
    ]
}

/// The bytes after these modifications.
pub fn harmed(bytes: &[u8], harms: &[Harm]) -> Vec<u8> {
    let mut bytes = bytes.to_vec();
    for harm in harms {
        match harm {
            Harm::Flip { at, by } if !bytes.is_empty() => {
                let at = at.index(bytes.len());
                bytes[at] ^= by;
            }
            Harm::Flip { .. } => {}
            Harm::Cut { at } => bytes.truncate(at.index(bytes.len() + 1)),
            Harm::Insert { at, bytes: more } => {
                let at = at.index(bytes.len() + 1);
                bytes.splice(at..at, more.iter().copied());
            }
            Harm::Boast { at, kind } => {
                // str 32, bin 32, array 32, map 32: each announces four billion elements.
                let head = [0xdb, 0xc6, 0xdd, 0xdf][*kind];
                let at = at.index(bytes.len() + 1);
                bytes.splice(at..at, [head, 0xff, 0xff, 0xff, 0xff]);
            }
        }
    }
    bytes
}

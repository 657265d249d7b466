//! Deserialises persistent maps and sets entry by entry: their own implementations would trust the
//! announced number of entries and allocate memory for all of them.

use imbl::{OrdMap, OrdSet};
use serde::{Deserialize, Deserializer};
use std::collections::{BTreeMap, BTreeSet};

pub fn one_by_one<'de, K, V, D>(from: D) -> Result<OrdMap<K, V>, D::Error>
where
    K: Deserialize<'de> + Ord + Clone,
    V: Deserialize<'de> + Clone,
    D: Deserializer<'de>,
{
    Ok(BTreeMap::deserialize(from)?.into_iter().collect())
}

/// As [`one_by_one`], for a set.
pub fn each_in_turn<'de, T, D>(from: D) -> Result<OrdSet<T>, D::Error>
where
    T: Deserialize<'de> + Ord + Clone,
    D: Deserializer<'de>,
{
    Ok(BTreeSet::deserialize(from)?.into_iter().collect())
}

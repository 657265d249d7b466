//! The names of removed nodes. The number is bounded: beyond it, the oldest removal is forgotten.
//!
//! Serialised as the removals by name. The order of removal is derived from them.

use imbl::{OrdMap, OrdSet};
use lattice_model::{Boot, Incarnation, NodeId, Revision, Timestamp};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Largest number of removed names. A snapshot contains all of them.
pub const REMOVED_LEN_MAX: usize = 20_000;

/// The removal of a node that has not registered since.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Removal {
    /// Who removed it.
    pub by: String,
    /// When.
    pub at: Timestamp,
    /// The reason.
    pub reason: String,
    /// The log index of the removal.
    pub revision: Revision,
    /// The node's last incarnation. The next one is higher, so that messages of an earlier one do
    /// not count again.
    pub incarnation: Incarnation,
    /// The boot in which the node had work that it never reported as released: it may register only
    /// under another boot. `None`: it had no such work.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unreported: Option<Boot>,
}

/// All removals.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Removals {
    names: OrdMap<NodeId, Arc<Removal>>,
    order: OrdSet<(Revision, NodeId)>,
}

impl Removals {
    pub fn is_empty(&self) -> bool {
        self.names.is_empty()
    }

    pub fn get(&self, node: &NodeId) -> Option<&Removal> {
        self.names.get(node).map(|removal| &**removal)
    }

    /// Adds a removal. Returns the name whose removal was forgotten for it.
    pub fn insert(&mut self, node: NodeId, removal: Removal) -> Option<NodeId> {
        self.remove(&node);
        let oldest = if self.names.len() >= REMOVED_LEN_MAX { self.order.get_min().map(|(_, oldest)| oldest.clone()) } else { None };
        if let Some(oldest) = &oldest {
            self.remove(oldest);
        }
        self.order.insert((removal.revision, node.clone()));
        self.names.insert(node, Arc::new(removal));
        oldest
    }

    pub fn remove(&mut self, node: &NodeId) -> Option<Arc<Removal>> {
        let removal = self.names.remove(node)?;
        self.order.remove(&(removal.revision, node.clone()));
        Some(removal)
    }
}

impl Serialize for Removals {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        self.names.serialize(to)
    }
}

impl<'de> Deserialize<'de> for Removals {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        // Entry by entry: see `one_by_one` of `entries`.
        let names: OrdMap<NodeId, Arc<Removal>> = BTreeMap::<NodeId, Arc<Removal>>::deserialize(from)?.into_iter().collect();
        let order = names.iter().map(|(node, removal)| (removal.revision, node.clone())).collect();
        Ok(Self { names, order })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(number: usize) -> NodeId {
        format!("m{number}").parse().unwrap()
    }

    fn removal(revision: u64) -> Removal {
        let (by, reason) = ("anna".to_owned(), "old".to_owned());
        Removal { by, at: Timestamp(1), reason, revision: Revision(revision), incarnation: Incarnation(1), unreported: None }
    }

    #[test]
    fn the_oldest_removal_is_forgotten_first_and_after_a_snapshot_too() {
        let mut removals = Removals::default();
        // Names in the reverse order of their removal.
        for number in 0..REMOVED_LEN_MAX {
            assert_eq!(removals.insert(name(REMOVED_LEN_MAX - number), removal(number as u64)), None);
        }
        let mut restored: Removals = rmp_serde::from_slice(&rmp_serde::to_vec_named(&removals).unwrap()).unwrap();
        assert_eq!(restored, removals);
        for removals in [&mut removals, &mut restored] {
            assert_eq!(removals.insert(name(7), removal(50_000)), None, "a name that is there already needs no place");
            assert_eq!(removals.insert(name(0), removal(50_001)), Some(name(REMOVED_LEN_MAX)));
            assert!(removals.remove(&name(0)).is_some() && removals.remove(&name(0)).is_none());
            assert_eq!(removals.insert(name(0), removal(50_002)), None);
            assert_eq!(removals.insert(name(30_000), removal(50_003)), Some(name(REMOVED_LEN_MAX - 1)));
        }
        assert_eq!(restored, removals);
    }
}

//! The holdings of all nodes, with what is counted of them.
//!
//! Only the holdings themselves are part of the replicated state. The counts change with them here,
//! and are counted anew when a snapshot is read.

use super::vni_use::VniUse;
use imbl::OrdMap;
use lattice_model::{AllocationId, Epoch, NodeId, Resources};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::collections::BTreeMap;

/// A part of a node that a claim took and the node has not reported as released.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Holding {
    /// The allocation.
    pub allocation: AllocationId,
    /// The epoch of the claim.
    pub epoch: Epoch,
    /// The amount.
    pub resources: Resources,
    /// The VNI of the network domain under this claim.
    pub vni: Option<u32>,
    /// The length of its run lease in milliseconds; `None`: it has no lease.
    pub run_lease_ms: Option<u64>,
    /// Whether it is known or confirmed that nothing of it runs any more, although its node has not
    /// reported that.
    pub fenced: bool,
}

/// The holdings of each node, current or leaving. Their sum never exceeds the registered size when
/// a claim is added.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Holdings {
    of_nodes: OrdMap<NodeId, Vec<Holding>>,
    /// How many holdings of each allocation are not fenced; allocations without any are absent.
    unfenced: OrdMap<AllocationId, u32>,
    /// The VNIs of the holdings and of the domains.
    pub vnis: VniUse,
}

impl Holdings {
    /// The holdings of the node.
    pub fn of(&self, node: &NodeId) -> &[Holding] {
        self.of_nodes.get(node).map_or(&[], Vec::as_slice)
    }

    /// Every node that has holdings, with them.
    pub fn iter(&self) -> impl Iterator<Item = (&NodeId, &[Holding])> {
        self.of_nodes.iter().map(|(node, held)| (node, held.as_slice()))
    }

    /// How many holdings of the allocation are not fenced.
    pub fn unfenced_of(&self, allocation: AllocationId) -> usize {
        self.unfenced.get(&allocation).map_or(0, |count| *count as usize)
    }

    /// The node has this from now on.
    pub fn add(&mut self, node: &NodeId, holding: Holding) {
        self.count(&holding);
        match self.of_nodes.get_mut(node) {
            Some(held) => held.push(holding),
            None => drop(self.of_nodes.insert(node.clone(), vec![holding])),
        }
    }

    /// The node has only those left that `stays` selects. Returns the others.
    pub fn retain(&mut self, node: &NodeId, stays: impl Fn(&Holding) -> bool) -> Vec<Holding> {
        if self.of(node).iter().all(&stays) {
            return Vec::new();
        }
        let Some(held) = self.of_nodes.get_mut(node) else { return Vec::new() };
        let (there, gone): (Vec<Holding>, Vec<Holding>) = std::mem::take(held).into_iter().partition(stays);
        if there.is_empty() {
            self.of_nodes.remove(node);
        } else {
            *held = there;
        }
        gone.iter().for_each(|holding| self.count_no_longer(holding));
        gone
    }

    /// Fences those of the node that `over` selects and that are not fenced yet. Returns their
    /// claims.
    pub fn fence(&mut self, node: &NodeId, over: impl Fn(&Holding) -> bool) -> Vec<(AllocationId, Epoch)> {
        let mut fenced = Vec::new();
        for holding in self.of_nodes.get_mut(node).into_iter().flatten().filter(|holding| !holding.fenced && over(holding)) {
            holding.fenced = true;
            fenced.push((holding.allocation, holding.epoch));
        }
        fenced.iter().for_each(|(allocation, _)| self.unfenced_shrinks(*allocation));
        fenced
    }

    fn count(&mut self, holding: &Holding) {
        if !holding.fenced {
            *self.unfenced.entry(holding.allocation).or_default() += 1;
        }
        holding.vni.iter().for_each(|vni| self.vnis.hold(*vni));
    }

    fn count_no_longer(&mut self, holding: &Holding) {
        if !holding.fenced {
            self.unfenced_shrinks(holding.allocation);
        }
        holding.vni.iter().for_each(|vni| self.vnis.release(*vni));
    }

    fn unfenced_shrinks(&mut self, allocation: AllocationId) {
        match self.unfenced.get_mut(&allocation) {
            Some(count) if *count > 1 => *count -= 1,
            Some(_) | None => drop(self.unfenced.remove(&allocation)),
        }
    }
}

impl Serialize for Holdings {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.of_nodes.serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Holdings {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        // Entry by entry: the announced number of entries is not trusted.
        let read: BTreeMap<NodeId, Vec<Holding>> = BTreeMap::deserialize(deserializer)?;
        let of_nodes: OrdMap<NodeId, Vec<Holding>> = read.into_iter().collect();
        let mut holdings = Self { of_nodes: of_nodes.clone(), ..Self::default() };
        of_nodes.values().flatten().for_each(|holding| holdings.count(holding));
        Ok(holdings)
    }
}

//! The holdings of all nodes, and counts of them.
//!
//! Only the holdings themselves are part of the replicated state. This module updates the counts with
//! them, and counts anew when a snapshot is read.
//!
//! Commands add and remove holdings with `Ledger::add_holding` and `Ledger::retain_holdings`. Both
//! note the allocations first: a record may be dropped once its allocation has no holding.

use crate::vni_use::VniUse;
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
    /// Whether nothing of it runs any more, as the ledger knows or somebody confirmed, although its
    /// node has not reported that.
    pub fenced: bool,
}

/// The holdings of each node, current or leaving. Their sum never exceeds the registered size when
/// a claim is added.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Holdings {
    of_nodes: OrdMap<NodeId, Vec<Holding>>,
    /// How many holdings each allocation has; allocations without any are absent.
    of_allocations: OrdMap<AllocationId, HoldingCounts>,
    /// The VNIs of the holdings and of the domains.
    pub vnis: VniUse,
}

/// The holdings of one allocation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct HoldingCounts {
    all: u32,
    unfenced: u32,
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
        self.of_allocations.get(&allocation).map_or(0, |counts| counts.unfenced as usize)
    }

    /// Whether the allocation has any holding, fenced or not.
    pub fn has_any_of(&self, allocation: AllocationId) -> bool {
        self.of_allocations.contains_key(&allocation)
    }

    /// Adds a holding of the node.
    pub fn add(&mut self, node: &NodeId, holding: Holding) {
        self.count(&holding);
        match self.of_nodes.get_mut(node) {
            Some(held) => held.push(holding),
            None => drop(self.of_nodes.insert(node.clone(), vec![holding])),
        }
    }

    /// Keeps only the node's holdings that `stays` selects. Returns the others.
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

    /// Fences the node's holdings that `over` selects and that are not fenced yet. Returns their
    /// claims.
    pub fn fence(&mut self, node: &NodeId, over: impl Fn(&Holding) -> bool) -> Vec<(AllocationId, Epoch)> {
        let mut fenced = Vec::new();
        for holding in self.of_nodes.get_mut(node).into_iter().flatten().filter(|holding| !holding.fenced && over(holding)) {
            holding.fenced = true;
            fenced.push((holding.allocation, holding.epoch));
        }
        for (allocation, _) in &fenced {
            self.of_allocations.get_mut(allocation).into_iter().for_each(|counts| counts.unfenced -= 1);
        }
        fenced
    }

    fn count(&mut self, holding: &Holding) {
        let counts = self.of_allocations.entry(holding.allocation).or_default();
        counts.all += 1;
        counts.unfenced += u32::from(!holding.fenced);
        holding.vni.iter().for_each(|vni| self.vnis.hold(*vni));
    }

    fn count_no_longer(&mut self, holding: &Holding) {
        if let Some(counts) = self.of_allocations.get_mut(&holding.allocation) {
            counts.all -= 1;
            counts.unfenced -= u32::from(!holding.fenced);
            if counts.all == 0 {
                self.of_allocations.remove(&holding.allocation);
            }
        }
        holding.vni.iter().for_each(|vni| self.vnis.release(*vni));
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

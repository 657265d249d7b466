//! The shares of an allocation: its nodes in rank order, how much of each it has, and how far each
//! has prepared or released its share.
//!
//! ```text
//!   Shares ─┬─▶ ShareList   nodes, amounts, and an index by name    behind one Arc, the same in all copies of a record
//!           └─▶ Phases      two bits a share, and their counts      copied with the record: 2.5 kB for 10,000 nodes
//! ```
//!
//! A change of one phase costs neither the nodes nor a scan of them: a rank is found by a binary
//! search, and whether all shares are prepared is a comparison of counts.

mod encoding;
mod phases;

use crate::claim::{Share, SharePhase};
use crate::ids::NodeId;
use crate::node_list::NodeList;
use crate::resources::Resources;
use phases::Phases;
use serde::{Deserialize, Serialize};
use std::sync::Arc;
use thiserror::Error;

/// Why shares cannot be those of one allocation.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum InvalidShares {
    /// A node has more than one.
    #[error("node {0} has more than one share of the allocation")]
    Repeated(NodeId),
    /// Their ranks do not fit into 32 bits.
    #[error("{0} shares are more than an allocation can have")]
    TooMany(usize),
    /// The encoded amounts or phases are for fewer or more shares than there are nodes.
    #[error("the {what} of {given} shares are given for {nodes} nodes")]
    Miscounted {
        /// `amounts` or `phases`.
        what: &'static str,
        /// The number of shares that they are for.
        given: u64,
        /// The number of nodes.
        nodes: usize,
    },
}

/// The nodes of a claim in rank order, and how much of each. It never changes, and a copy shares it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ShareList(Option<Arc<Listed>>);

/// The nodes and their amounts. A list without nodes has none, and no block of memory.
#[derive(Debug, PartialEq, Eq)]
struct Listed {
    nodes: NodeList,
    /// The amounts as runs of consecutive ranks: the rank after each run, and the amount.
    amounts: Box<[(u32, Resources)]>,
    /// The ranks in the order of the nodes' names. Empty: the names ascend with the ranks.
    by_name: Box<[u32]>,
}

impl ShareList {
    /// These nodes, in rank order.
    ///
    /// # Errors
    /// [`InvalidShares::Repeated`] and [`InvalidShares::TooMany`].
    pub fn new(shares: Vec<(NodeId, Resources)>) -> Result<Self, InvalidShares> {
        let (nodes, amounts): (Vec<_>, Vec<_>) = shares.into_iter().unzip();
        Self::of(nodes.into(), amounts.into_iter().map(|amount| (1, amount)))
    }

    /// These nodes, and their amounts as runs: each of a number of consecutive ranks.
    fn of(nodes: NodeList, amounts: impl IntoIterator<Item = (u32, Resources)>) -> Result<Self, InvalidShares> {
        let len = u32::try_from(nodes.len()).map_err(|_| InvalidShares::TooMany(nodes.len()))?;
        if len == 0 {
            return Ok(Self::default());
        }
        let mut by_name: Vec<u32> = Vec::new();
        if !nodes.is_sorted_by(|one, next| one < next) {
            by_name.extend(0..len);
            let name = |rank: &u32| &nodes[*rank as usize];
            by_name.sort_unstable_by(|one, other| name(one).cmp(name(other)));
            if let Some(pair) = by_name.windows(2).find(|pair| name(&pair[0]) == name(&pair[1])) {
                return Err(InvalidShares::Repeated(name(&pair[0]).clone()));
            }
        }
        let mut runs: Vec<(u32, Resources)> = Vec::new();
        let mut end = 0;
        for (count, amount) in amounts {
            end += count;
            match runs.last_mut() {
                Some((last_end, last)) if *last == amount => *last_end = end,
                Some(_) | None => runs.push((end, amount)),
            }
        }
        Ok(Self(Some(Arc::new(Listed { nodes, amounts: runs.into(), by_name: by_name.into() }))))
    }

    /// The amounts as runs of consecutive ranks, each with its number of ranks.
    fn amount_runs(&self) -> impl Iterator<Item = (u32, Resources)> {
        let runs: &[(u32, Resources)] = self.0.as_deref().map_or(&[], |listed| &listed.amounts);
        let begins = std::iter::once(0).chain(runs.iter().map(|(end, _)| *end));
        runs.iter().zip(begins).map(|((end, amount), begin)| (end - begin, *amount))
    }

    /// The cores of the nodes in rank order, as runs: a number of nodes, and the cores of each.
    pub fn core_runs(&self) -> Vec<(u32, u32)> {
        let mut runs: Vec<(u32, u32)> = Vec::new();
        for (count, amount) in self.amount_runs() {
            match runs.last_mut() {
                Some((nodes, cores)) if *cores == amount.cores => *nodes += count,
                Some(_) | None => runs.push((count, amount.cores)),
            }
        }
        runs
    }

    /// The amount of the node of this rank.
    fn amount(&self, rank: u32) -> Option<Resources> {
        let amounts = &self.0.as_deref()?.amounts;
        Some(amounts.get(amounts.partition_point(|(end, _)| *end <= rank))?.1)
    }

    fn listed_nodes(&self) -> &[NodeId] {
        self.0.as_deref().map_or(&[], |listed| &listed.nodes)
    }

    /// The nodes without the amounts.
    pub fn node_list(&self) -> NodeList {
        self.0.as_deref().map_or_else(NodeList::default, |listed| listed.nodes.clone())
    }

    /// The number of nodes.
    pub fn len(&self) -> usize {
        self.0.as_deref().map_or(0, |listed| listed.nodes.len())
    }

    /// Whether there are no nodes.
    pub fn is_empty(&self) -> bool {
        self.0.is_none()
    }

    /// The nodes in rank order.
    pub fn nodes(&self) -> impl ExactSizeIterator<Item = &NodeId> {
        self.listed_nodes().iter()
    }

    /// The node of this rank.
    pub fn node(&self, rank: u32) -> Option<&NodeId> {
        self.listed_nodes().get(rank as usize)
    }

    /// The rank of the node.
    pub fn rank_of(&self, node: &NodeId) -> Option<u32> {
        self.rank_of_name(node.as_str())
    }

    /// The rank of the node of this name.
    pub fn rank_of_name(&self, name: &str) -> Option<u32> {
        let Listed { nodes, by_name, .. } = self.0.as_deref()?;
        if by_name.is_empty() {
            let place = nodes.binary_search_by(|node| node.as_str().cmp(name)).ok()?;
            return u32::try_from(place).ok();
        }
        let place = by_name.binary_search_by(|rank| nodes[*rank as usize].as_str().cmp(name)).ok()?;
        by_name.get(place).copied()
    }
}

/// See the module documentation.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(try_from = "encoding::Decoded")]
pub struct Shares {
    list: ShareList,
    phases: Phases,
}

/// One share in its place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ShareRef<'a> {
    /// The node.
    pub node: &'a NodeId,
    /// How much of the node.
    pub resources: Resources,
    /// How far the node has prepared or released it.
    pub phase: SharePhase,
}

impl Shares {
    /// Claimed shares of these nodes, in rank order.
    ///
    /// # Errors
    /// As [`ShareList::new`].
    pub fn claimed(shares: Vec<(NodeId, Resources)>) -> Result<Self, InvalidShares> {
        ShareList::new(shares).map(Self::of_list)
    }

    fn of_list(list: ShareList) -> Self {
        Self { phases: Phases::claimed(list.len()), list }
    }

    /// The nodes with their amounts, without the phases.
    pub fn list(&self) -> &ShareList {
        &self.list
    }

    /// The number of shares.
    pub fn len(&self) -> usize {
        self.list.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    /// The node of rank 0.
    pub fn head(&self) -> Option<&NodeId> {
        self.list.node(0)
    }

    /// The nodes in rank order.
    pub fn nodes(&self) -> impl ExactSizeIterator<Item = &NodeId> {
        self.list.nodes()
    }

    /// The shares in rank order.
    pub fn iter(&self) -> Iter<'_> {
        Iter { shares: self, next: 0 }
    }

    /// The share of this rank.
    pub fn get(&self, rank: u32) -> Option<ShareRef<'_>> {
        Some(ShareRef { node: self.list.node(rank)?, resources: self.list.amount(rank)?, phase: self.phases.get(rank) })
    }

    /// The rank of the node.
    pub fn rank_of(&self, node: &NodeId) -> Option<u32> {
        self.list.rank_of(node)
    }

    /// The rank of the node of this name.
    pub fn rank_of_name(&self, name: &str) -> Option<u32> {
        self.list.rank_of_name(name)
    }

    /// The phase of the node's share; `None`: the node has none.
    pub fn phase_of(&self, node: &NodeId) -> Option<SharePhase> {
        self.rank_of(node).map(|rank| self.phases.get(rank))
    }

    /// Sets the phase of the node's share. Returns whether that changed something.
    pub fn set_phase(&mut self, node: &NodeId, phase: SharePhase) -> bool {
        self.rank_of(node).is_some_and(|rank| self.phases.set(rank, phase))
    }

    /// Sets the phase of the share of this rank. Returns whether that changed something.
    pub fn set_phase_of_rank(&mut self, rank: u32, phase: SharePhase) -> bool {
        (rank as usize) < self.len() && self.phases.set(rank, phase)
    }

    /// The number of shares in this phase.
    pub fn count(&self, phase: SharePhase) -> usize {
        self.phases.count(phase)
    }

    /// Whether every share is prepared.
    pub fn all_prepared(&self) -> bool {
        self.count(SharePhase::Prepared) == self.len()
    }

    /// Whether every share is released.
    pub fn all_released(&self) -> bool {
        self.count(SharePhase::Released) == self.len()
    }

    /// The phases of the shares of these ascending ranks, as runs. Ranks that do not exist are left
    /// out.
    pub fn phase_runs(&self, ranks: impl IntoIterator<Item = u32>) -> Vec<PhaseRun> {
        let mut runs: Vec<PhaseRun> = Vec::new();
        for rank in ranks.into_iter().filter(|rank| (*rank as usize) < self.len()) {
            let phase = self.phases.get(rank);
            match runs.last_mut() {
                Some(last) if last.phase == phase && last.first + last.len == rank => last.len += 1,
                Some(_) | None => runs.push(PhaseRun { first: rank, len: 1, phase }),
            }
        }
        runs
    }

    /// Removes all shares.
    pub fn clear(&mut self) {
        *self = Self::default();
    }
}

/// Shares of consecutive ranks in the same phase.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PhaseRun {
    /// The lowest rank.
    pub first: u32,
    /// The number of shares.
    pub len: u32,
    /// Their phase.
    pub phase: SharePhase,
}

/// The shares in rank order.
#[derive(Clone, Debug)]
pub struct Iter<'a> {
    shares: &'a Shares,
    next: u32,
}

impl<'a> Iterator for Iter<'a> {
    type Item = ShareRef<'a>;

    fn next(&mut self) -> Option<ShareRef<'a>> {
        let share = self.shares.get(self.next)?;
        self.next += 1;
        Some(share)
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        let left = self.shares.len() - self.next as usize;
        (left, Some(left))
    }
}

impl ExactSizeIterator for Iter<'_> {}

impl<'a> IntoIterator for &'a Shares {
    type Item = ShareRef<'a>;
    type IntoIter = Iter<'a>;

    fn into_iter(self) -> Iter<'a> {
        self.iter()
    }
}

/// Shares in rank order, for nodes that are known to be distinct.
///
/// # Panics
/// If a node is repeated.
impl FromIterator<Share> for Shares {
    fn from_iter<T: IntoIterator<Item = Share>>(shares: T) -> Self {
        let (list, phases): (Vec<_>, Vec<_>) = shares.into_iter().map(|share| ((share.node, share.resources), share.phase)).unzip();
        let mut shares = Self::claimed(list).expect("the nodes of an allocation are distinct");
        for (rank, phase) in (0..).zip(phases) {
            shares.phases.set(rank, phase);
        }
        shares
    }
}

/// As [`Shares::from_iter`].
impl<const N: usize> From<[Share; N]> for Shares {
    fn from(shares: [Share; N]) -> Self {
        shares.into_iter().collect()
    }
}

#[cfg(test)]
mod tests;

//! The changes of the last while, in memory: what every watch is served from, and what one that was away goes on with.
//!
//! ```text
//!                 begins
//!   (forgotten)     │ set │ set │ … │ newest        a place before `begins`: compacted, start again from a list
//!                   └─ after(place) ────▶
//! ```
//!
//! Pure: a list as of a revision and the sets after it make up the state, whichever member gives which of the two.
//!
//! Changes of one entry are sent together, so a place is never in the middle of an entry. A place
//! that is no longer kept, or is of another generation, is refused explicitly
//! (`Change::StartAgain`). A member that has not reached a place waits two seconds and then says
//! that it lies behind. A subscriber that does not read is cut off after ten seconds, and may
//! resume. Leases are watched without renewals, which are the leader's memory.

use crate::{Changed, ClusterLimits, DomainKey, Lease, Ledger, WatchPlace};
use lattice_model::{Allocation, Entrypoint, Node, Revision, Tenant, VCluster, VniPool};
use std::collections::VecDeque;
use std::mem::size_of;
use std::sync::Arc;

/// Sets that are kept at most, however small they are.
const SETS_MAX: usize = 65_536;

/// What one log entry changed. Nobody sees the state between its commands.
#[derive(Clone, Debug)]
pub struct ChangeSet {
    /// The entry's.
    pub revision: Revision,
    pub nodes: Vec<Arc<Node>>,
    pub allocations: Vec<Arc<Allocation>>,
    /// `None`: deleted.
    pub tenants: Vec<(String, Option<Arc<Tenant>>)>,
    /// `None`: ended.
    pub leases: Vec<(String, Option<Lease>)>,
    /// `None`: deleted.
    pub vclusters: Vec<(String, Option<Arc<VCluster>>)>,
    /// The number, or `None`: released.
    pub domains: Vec<(DomainKey, Option<u32>)>,
    /// Where it changed.
    pub vni_pool: Option<VniPool>,
    /// Where they changed.
    pub limits: Option<ClusterLimits>,
}

impl ChangeSet {
    /// What was changed, as the ledger has it now.
    pub fn of(ledger: &Ledger, changed: Changed) -> Self {
        Self {
            revision: ledger.revision(),
            nodes: changed.nodes.iter().filter_map(|id| ledger.node(id).cloned()).collect(),
            // One that is not there any more ended long ago and is forgotten.
            allocations: changed.allocations.iter().filter_map(|id| ledger.allocation(*id).cloned()).collect(),
            tenants: changed.tenants.into_iter().map(|name| (name.clone(), ledger.tenant(&name).cloned())).collect(),
            vni_pool: changed.vni_pool.then(|| ledger.vni_pool()),
            limits: changed.limits.then(|| ledger.cluster_limits()),
            domains: changed.domains.into_iter().map(|key| (key.clone(), ledger.domain(&key).map(|d| d.vni))).collect(),
            leases: changed.leases.into_iter().map(|name| (name.clone(), ledger.lease(&name).cloned())).collect(),
            vclusters: changed.vclusters.into_iter().map(|name| (name.clone(), ledger.vcluster(&name).cloned())).collect(),
        }
    }

    /// Whether nothing that is watched changed.
    pub fn is_empty(&self) -> bool {
        let quotas = self.tenants.is_empty() && self.vclusters.is_empty() && self.domains.is_empty() && self.vni_pool.is_none();
        let quotas = quotas && self.limits.is_none();
        self.nodes.is_empty() && self.allocations.is_empty() && quotas && self.leases.is_empty()
    }

    /// About how many bytes it keeps in memory once the ledger has newer ones.
    fn bytes_about(&self) -> usize {
        let allocations: usize = self.allocations.iter().map(|a| allocation_bytes(a)).sum();
        let nodes: usize = self.nodes.iter().map(|n| node_bytes(n)).sum();
        let small = self.tenants.len() + self.leases.len() + self.vclusters.len() + self.domains.len();
        size_of::<Self>() + allocations + nodes + small * 256
    }
}

/// About how many bytes an allocation takes in memory or in a message.
pub fn allocation_bytes(allocation: &Allocation) -> usize {
    let script = match &allocation.spec.entrypoint {
        Entrypoint::Script { text, .. } => text.len(),
        Entrypoint::Command { .. } => 0,
    };
    1024 + allocation.spec.bytes_without_script() + script + allocation.shares.len() * 128
}

/// The same of a node.
pub fn node_bytes(node: &Node) -> usize {
    512 + (node.features.len() + node.unlimited.len()) * 32 + node.holds.len() * 256 + node.leaving.len() * 64
}

/// That a place lies before everything that is kept, or is of another generation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Compacted {
    /// Changes after this place are there.
    pub begins: WatchPlace,
}

/// The sets, the oldest first. Their number and bytes are bounded: the oldest go.
#[derive(Debug)]
pub struct History {
    begins: WatchPlace,
    sets: VecDeque<Arc<ChangeSet>>,
    bytes: usize,
    bytes_max: usize,
}

impl History {
    /// Nothing has happened since `begins`.
    pub fn new(begins: WatchPlace) -> Self {
        Self { begins, sets: VecDeque::new(), bytes: 0, bytes_max: usize::MAX }
    }

    /// Keeps about so many bytes from now on.
    pub fn keep(&mut self, bytes_max: usize) {
        self.bytes_max = bytes_max;
        self.forget();
    }

    /// The state is another one now: what was before it leads nowhere.
    pub fn restart(&mut self, begins: WatchPlace) {
        *self = Self { bytes_max: self.bytes_max, ..Self::new(begins) };
    }

    /// Adds what the next entry changed.
    pub fn push(&mut self, set: ChangeSet) {
        debug_assert!(self.sets.back().map_or(self.begins.revision, |last| last.revision) < set.revision, "entries come in order");
        self.bytes += set.bytes_about();
        self.sets.push_back(Arc::new(set));
        self.forget();
    }

    fn forget(&mut self) {
        while self.sets.len() > SETS_MAX || self.bytes > self.bytes_max {
            let Some(oldest) = self.sets.pop_front() else { return };
            self.bytes -= oldest.bytes_about();
            self.begins.revision = oldest.revision;
        }
    }

    /// The first sets behind this place, at most so many; none where there is nothing newer.
    pub fn after(&self, place: WatchPlace, most: usize) -> Result<Vec<Arc<ChangeSet>>, Compacted> {
        if place.generation != self.begins.generation || place.revision < self.begins.revision {
            return Err(Compacted { begins: self.begins });
        }
        let from = self.sets.partition_point(|set| set.revision <= place.revision);
        Ok(self.sets.range(from..).take(most).cloned().collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lattice_model::Generation;

    fn place(generation: u64, revision: u64) -> WatchPlace {
        WatchPlace { generation: Generation(generation), revision: Revision(revision) }
    }

    fn set(revision: u64) -> ChangeSet {
        let tenants = vec![("physics".to_owned(), None)];
        let (nodes, allocations, leases, vclusters, domains) = (vec![], vec![], vec![], vec![], vec![]);
        ChangeSet { revision: Revision(revision), nodes, allocations, tenants, leases, vclusters, domains, vni_pool: None, limits: None }
    }

    fn revisions(history: &History, after: WatchPlace) -> Result<Vec<u64>, Compacted> {
        history.after(after, usize::MAX).map(|sets| sets.iter().map(|set| set.revision.0).collect())
    }

    #[test]
    fn what_is_behind_a_place_is_told_whole_or_not_at_all() {
        let mut history = History::new(place(1, 10));
        [12, 15, 16].into_iter().for_each(|revision| history.push(set(revision)));
        assert_eq!(revisions(&history, place(1, 10)), Ok(vec![12, 15, 16]));
        assert_eq!(revisions(&history, place(1, 13)), Ok(vec![15, 16]));
        assert_eq!(revisions(&history, place(1, 16)), Ok(vec![]));
        assert_eq!(history.after(place(1, 10), 2).map(|sets| sets.len()), Ok(2));
        let compacted = Err(Compacted { begins: place(1, 10) });
        assert_eq!(revisions(&history, place(1, 9)), compacted);
        assert_eq!(revisions(&history, place(0, 16)), compacted, "another generation's revisions are other entries");
        history.restart(place(2, 16));
        assert_eq!(revisions(&history, place(1, 16)), Err(Compacted { begins: place(2, 16) }));
        assert_eq!(revisions(&history, place(2, 16)), Ok(vec![]));
    }

    #[test]
    fn it_is_bounded_and_forgets_the_oldest_first() {
        let mut history = History::new(place(1, 0));
        history.keep(10 * set(1).bytes_about());
        (1..=30).for_each(|revision| history.push(set(revision)));
        assert_eq!(revisions(&history, place(1, 20)), Ok((21..=30).collect()));
        assert_eq!(revisions(&history, place(1, 19)), Err(Compacted { begins: place(1, 20) }));
        history.keep(usize::MAX);
        (31..=SETS_MAX as u64 + 40).for_each(|revision| history.push(set(revision)));
        assert_eq!(revisions(&history, place(1, 40)).map(|sets| sets.len()), Ok(SETS_MAX));
        assert_eq!(revisions(&history, place(1, 39)), Err(Compacted { begins: place(1, 40) }));
        history.keep(0);
        assert_eq!(revisions(&history, place(1, SETS_MAX as u64 + 40)), Ok(vec![]), "who has everything is not sent away");
    }
}

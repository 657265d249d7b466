//! The recent changes, kept in memory: the source of every watch, which also allows a watcher to
//! resume after a disconnection.
//!
//! ```text
//!                 begins
//!   (dropped)       │ set │ set │ … │ newest        a place before `begins` is compacted: list again
//!                   └─ after(place) ────▶
//! ```
//!
//! The code is pure: a list as of a revision and the change sets after it give the current state,
//! even if they come from different members.
//!
//! Changes of one log entry are sent together, so a place is never in the middle of an entry. A
//! place that has been dropped, or belongs to another generation, is refused explicitly
//! (`Change::Resync`). A change that moved only shares of an allocation from phase to phase is
//! kept as these phases: a version of the record for each of 10,000 reports would be too much to
//! keep and to send. A member that has not reached a place waits two seconds and then answers
//! that it lags behind. A subscriber that does not read is disconnected after ten seconds, and may
//! resume. Watches of leases do not include renewals, which exist only in the leader's memory.

use crate::{Changed, ChangedShares, ClusterLimits, DomainKey, Lease, Ledger, WatchCursor};
use lattice_ledger_state::record_bytes::{
    SMALL_RECORD_BYTES, allocation_bytes, node_bytes, phases_bytes, principal_bytes, removed_node_bytes, reservation_bytes, tenant_bytes,
    tenant_use_bytes, text_bytes, vcluster_bytes,
};
use lattice_model::shares::{PhaseRun, ShareList};
use lattice_model::{Allocation, AllocationId, DayUse, Node, NodeId, PhasesChange, Reservation, Revision, Tenant, VCluster, VniPool};
use std::collections::VecDeque;
use std::mem::size_of;
use std::sync::Arc;

/// Largest number of change sets to keep, regardless of their size.
const SETS_MAX: usize = 65_536;
/// What a change set takes beside itself, in bytes: the counters of its `Arc`, its place in the
/// history, and the blocks of its lists.
const SET_BYTES: usize = 128;

/// The changes of one log entry. Nobody sees the state between its commands.
#[derive(Clone, Debug)]
pub struct ChangeSet {
    /// The entry's revision.
    pub revision: Revision,
    /// In the order of their names.
    pub nodes: Vec<Arc<Node>>,
    pub nodes_removed: Vec<NodeId>,
    pub allocations: Vec<Arc<Allocation>>,
    /// Allocations of which only phases of shares, and the usage, changed.
    pub phases: Vec<ChangedPhases>,
    /// `None`: deleted.
    pub tenants: Vec<(String, Option<Arc<Tenant>>)>,
    /// `None`: ended.
    pub leases: Vec<(String, Option<Lease>)>,
    /// `None`: deleted.
    pub vclusters: Vec<(String, Option<Arc<VCluster>>)>,
    /// `None`: deleted.
    pub reservations: Vec<(String, Option<Arc<Reservation>>)>,
    /// The VNI, or `None`: released.
    pub domains: Vec<(DomainKey, Option<u32>)>,
    /// Set if it changed.
    pub vni_pool: Option<VniPool>,
    /// Set if they changed.
    pub limits: Option<ClusterLimits>,
    /// Tenants with the days of their recorded use that changed.
    pub tenant_use: Vec<(String, Vec<DayUse>)>,
}

impl ChangeSet {
    /// The changed records in their current state in the ledger.
    pub fn of(ledger: &Ledger, changed: Changed) -> Self {
        let record = |id: &AllocationId| ledger.allocation(*id).or(changed.dropped.get(id));
        let mut allocations: Vec<Arc<Allocation>> = changed.allocations.iter().filter_map(record).cloned().collect();
        let mut phases = Vec::new();
        for (id, shares) in &changed.shares {
            match record(id) {
                // The last of these changes is sent with everything that it completes.
                Some(whole) if is_last_release(whole) || changed.dropped.contains_key(id) => allocations.push(Arc::clone(whole)),
                Some(record) => phases.push(ChangedPhases::of(record, shares)),
                None => {}
            }
        }
        let use_of = |(name, first_day): (String, u32)| {
            let days = ledger.tenant_use(&name)?.since(first_day).collect();
            Some((name, days))
        };
        Self {
            revision: ledger.revision(),
            nodes: changed.nodes.iter().filter_map(|id| ledger.node(id).cloned()).collect(),
            nodes_removed: changed.nodes.into_iter().filter(|id| ledger.node(id).is_none()).collect(),
            allocations,
            phases,
            tenants: changed.tenants.into_iter().map(|name| (name.clone(), ledger.tenant(&name).cloned())).collect(),
            vni_pool: changed.vni_pool.then(|| ledger.vni_pool()),
            limits: changed.limits.then(|| ledger.cluster_limits()),
            tenant_use: changed.tenant_use.into_iter().filter_map(use_of).collect(),
            domains: changed.domains.into_iter().map(|key| (key.clone(), ledger.domain(&key).map(|d| d.vni))).collect(),
            leases: changed.leases.into_iter().map(|name| (name.clone(), ledger.lease(&name).cloned())).collect(),
            vclusters: changed.vclusters.into_iter().map(|name| (name.clone(), ledger.vcluster(&name).cloned())).collect(),
            reservations: changed.reservations.into_iter().map(|name| (name.clone(), ledger.reservation(&name).cloned())).collect(),
        }
    }

    /// Whether it contains no watched changes.
    pub fn is_empty(&self) -> bool {
        let quotas = self.tenants.is_empty() && self.vclusters.is_empty() && self.domains.is_empty() && self.vni_pool.is_none();
        let quotas = quotas && self.limits.is_none() && self.tenant_use.is_empty() && self.reservations.is_empty();
        let nodes = self.nodes.is_empty() && self.nodes_removed.is_empty();
        let allocations = self.allocations.is_empty() && self.phases.is_empty();
        nodes && allocations && quotas && self.leases.is_empty()
    }

    /// This node, if it changed; otherwise nothing. A binary search: the end of a wide allocation
    /// changes all its nodes, and each has a watch.
    pub fn node(&self, id: &NodeId) -> &[Arc<Node>] {
        let found = self.nodes.binary_search_by(|node| node.id.cmp(id));
        found.map_or(&[], |place| std::slice::from_ref(&self.nodes[place]))
    }

    /// Approximate memory use in bytes once the ledger has newer versions of the records.
    fn bytes_about(&self) -> usize {
        let Self { revision: _, nodes, nodes_removed, allocations, phases, tenants, leases, vclusters, domains, .. } = self;
        let Self { vni_pool: _, limits: _, tenant_use, reservations, .. } = self;
        let places = (nodes.len() + allocations.len()) * size_of::<usize>();
        let records = nodes.iter().map(|node| node_bytes(node)).chain(allocations.iter().map(|a| allocation_bytes(a)));
        let removed = nodes_removed.iter().map(removed_node_bytes);
        let quotas = tenants.iter().map(|(name, tenant)| tenant_bytes(name, tenant.as_deref()));
        let queues = vclusters.iter().map(|(name, vcluster)| vcluster_bytes(name, vcluster.as_deref()));
        let windows = reservations.iter().map(|(name, reservation)| reservation_bytes(name, reservation.as_deref()));
        let leases = leases.iter().map(|(name, lease)| lease_bytes(name, lease.as_ref()));
        let phases = phases.iter().map(ChangedPhases::bytes_about);
        let tenant_use = tenant_use.iter().map(|(name, days)| tenant_use_bytes(name, days));
        let small = removed
            .chain(phases)
            .chain(quotas)
            .chain(tenant_use)
            .chain(queues)
            .chain(windows)
            .chain(leases)
            .chain(domains.iter().map(|(key, _)| domain_bytes(key)));
        SET_BYTES + size_of::<Self>() + places + records.chain(small).sum::<usize>()
    }
}

/// Whether all shares are released. Work that waits for another claim has no shares.
fn is_last_release(record: &Allocation) -> bool {
    !record.shares.is_empty() && record.shares.all_released()
}

/// A change of share phases. It has no version of the record: a version takes memory for each share.
#[derive(Clone, Debug)]
pub struct ChangedPhases {
    /// The change as sent to a watcher of all shares.
    pub change: PhasesChange,
    /// The allocation's owner.
    pub uid: u32,
    /// The allocation's nodes, which all its versions of this epoch share.
    pub list: ShareList,
}

impl ChangedPhases {
    fn of(record: &Allocation, changed: &ChangedShares) -> Self {
        let change = PhasesChange {
            id: record.id,
            epoch: record.epoch,
            state: record.state,
            previous_revision: Some(changed.previous_revision),
            revision: record.revision,
            phases: record.shares.phase_runs(changed.ranks.iter().copied()),
            usage: record.usage.as_deref().copied(),
        };
        Self { change, uid: record.owner.uid, list: record.shares.list().clone() }
    }

    /// The change of the share on this node, for a watcher of no other node; `None`: the share has
    /// not changed.
    pub fn of_node(&self, node: &NodeId) -> Option<PhasesChange> {
        let rank = self.list.rank_of(node)?;
        let run = self.change.phases.iter().find(|run| (run.first..run.first + run.len).contains(&rank))?;
        Some(PhasesChange { previous_revision: None, phases: vec![PhaseRun { first: rank, len: 1, ..*run }], ..self.change.clone() })
    }

    /// The nodes whose shares have changed.
    pub fn nodes(&self) -> impl Iterator<Item = &NodeId> {
        let ranks = self.change.phases.iter().flat_map(|run| run.first..run.first + run.len);
        ranks.filter_map(|rank| self.list.node(rank))
    }

    fn bytes_about(&self) -> usize {
        phases_bytes(&self.change)
    }
}

/// The place is older than everything that is kept, or belongs to another generation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Compacted {
    /// Changes after this place are available.
    pub begins: WatchCursor,
}

/// The change sets, oldest first. Their number and size are bounded: the oldest are dropped.
#[derive(Debug)]
pub struct History {
    begins: WatchCursor,
    sets: VecDeque<Arc<ChangeSet>>,
    bytes: usize,
    bytes_max: usize,
}

impl History {
    /// An empty history that begins at `begins`.
    pub fn new(begins: WatchCursor) -> Self {
        Self { begins, sets: VecDeque::new(), bytes: 0, bytes_max: usize::MAX }
    }

    /// Sets the approximate size to keep, in bytes.
    pub fn keep(&mut self, bytes_max: usize) {
        self.bytes_max = bytes_max;
        self.forget();
    }

    /// The state has been replaced (for example by a snapshot): earlier changes are dropped.
    pub fn restart(&mut self, begins: WatchCursor) {
        *self = Self { bytes_max: self.bytes_max, ..Self::new(begins) };
    }

    /// Adds the changes of the next entry.
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

    /// The revision of the newest change set, or that at which the history begins.
    pub fn newest(&self) -> Revision {
        self.sets.back().map_or(self.begins.revision, |set| set.revision)
    }

    /// The first change sets after this place, at most `most`; empty if there is nothing newer.
    pub fn after(&self, place: WatchCursor, most: usize) -> Result<Vec<Arc<ChangeSet>>, Compacted> {
        if place.generation != self.begins.generation || place.revision < self.begins.revision {
            return Err(Compacted { begins: self.begins });
        }
        let from = self.sets.partition_point(|set| set.revision <= place.revision);
        Ok(self.sets.range(from..).take(most).cloned().collect())
    }
}

/// Memory of a lease's change; `None`: it ended.
pub(crate) fn lease_bytes(name: &str, lease: Option<&Lease>) -> usize {
    let inner = |Lease { holder, token: _, ttl_ms: _, renewed: _, user }: &Lease| {
        text_bytes(holder.as_str()) + user.as_ref().map_or(0, principal_bytes)
    };
    SMALL_RECORD_BYTES + text_bytes(name) + lease.map_or(0, inner)
}

/// Memory of a network domain's change.
pub(crate) fn domain_bytes((tenant, name): &DomainKey) -> usize {
    SMALL_RECORD_BYTES + text_bytes(tenant) + text_bytes(name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use lattice_ledger_state::record_bytes::{BLOCK_BYTES, PHASES_CHANGE_BYTES};
    use lattice_model::{Generation, Principal};

    fn place(generation: u64, revision: u64) -> WatchCursor {
        WatchCursor { generation: Generation(generation), revision: Revision(revision) }
    }

    fn set(revision: u64) -> ChangeSet {
        let tenants = vec![("physics".to_owned(), None)];
        let (nodes, nodes_removed, allocations, phases) = (vec![], vec![], vec![], vec![]);
        let (leases, vclusters, reservations, domains, vni_pool, limits) = (vec![], vec![], vec![], vec![], None, None);
        ChangeSet {
            revision: Revision(revision),
            nodes,
            nodes_removed,
            allocations,
            phases,
            tenants,
            leases,
            vclusters,
            reservations,
            domains,
            vni_pool,
            limits,
            tenant_use: vec![],
        }
    }

    fn revisions(history: &History, after: WatchCursor) -> Result<Vec<u64>, Compacted> {
        history.after(after, usize::MAX).map(|sets| sets.iter().map(|set| set.revision.0).collect())
    }

    #[test]
    fn all_changes_after_a_place_are_returned_or_none() {
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

    #[test]
    fn the_bytes_of_leases_domains_and_phases_are_not_below_the_real_ones() {
        let text = "x".repeat(500);
        let lease = Lease {
            holder: "n".repeat(63).parse().unwrap(),
            token: u64::MAX,
            ttl_ms: u64::MAX,
            renewed: Revision(u64::MAX),
            user: Some(Principal { name: text.clone(), uid: 1, gid: 1, groups: vec![7; 64] }),
        };
        let with_user = rmp_serde::to_vec(&(&text, &lease)).unwrap().len();
        assert!(lease_bytes(&text, Some(&lease)) >= with_user);
        assert!(lease_bytes(&text, None) >= text.len());
        assert!(domain_bytes(&(text.clone(), text.clone())) >= 2 * text.len());
        for (estimate, real) in [
            (SMALL_RECORD_BYTES, size_of::<(String, Option<Lease>)>()),
            (SMALL_RECORD_BYTES, size_of::<(DomainKey, Option<u32>)>()),
            (PHASES_CHANGE_BYTES, size_of::<ChangedPhases>() + BLOCK_BYTES),
        ] {
            assert!((real..=real + real / 2 + 128).contains(&estimate), "{estimate} bytes are estimated, it has {real}");
        }
    }
}

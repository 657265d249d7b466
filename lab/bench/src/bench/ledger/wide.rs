//! One allocation of every node of the cluster, from its claim to the last release: what applying and publishing it
//! costs a member.

use super::cluster::{Cluster, NODES};
use anyhow::{Context, Result};
use lattice_api::pack::to_bytes;
use lattice_lab::machine;
use lattice_ledger::history::{ChangeSet, History};
use lattice_ledger::{Action, Changed};
use lattice_model::{AllocationId, EndReason, Epoch, ReportItem};
use lattice_quorum_client::wire::Change;
use std::time::{Duration, Instant};

/// Reports in one entry of the log.
pub const ENTRY_REPORTS: usize = 64;
/// Bytes of changes that a member keeps for watches by default.
const HISTORY_BYTES_MAX: usize = 32 << 20;

/// What one such allocation cost.
#[derive(Default)]
pub struct Wide {
    pub claimed: Duration,
    /// The time of all reports that a node is prepared.
    pub prepared: Duration,
    pub ended: Duration,
    /// The time of all reports that a node has released it.
    pub released: Duration,
    /// The most bytes about the allocation that an agent of role `api` is sent for one entry of reports, while its state
    /// stays the same.
    pub sent_bytes_max: usize,
    /// The most by which this process grew meanwhile, in bytes.
    pub grown_bytes: u64,
}

/// The cluster, with the changes that a member keeps of it.
struct Member<'a> {
    cluster: &'a mut Cluster,
    history: History,
    memory_before: u64,
    wide: Wide,
}

/// Submits, claims, runs and releases the allocation.
pub fn run(cluster: &mut Cluster) -> Result<Wide> {
    let nodes = u32::try_from(NODES)?;
    let (id, _) = cluster.submit(|spec| spec.nodes = nodes)?;
    let mut history = History::new(cluster.ledger.place());
    history.keep(HISTORY_BYTES_MAX);
    let mut member = Member { cluster, history, memory_before: memory()?, wide: Wide::default() };
    let claim = member.cluster.proposal(id, 0..NODES);
    (member.wide.claimed, _) = member.entry(id, vec![Action::Claim(claim)])?;
    let epoch = member.cluster.ledger.allocation(id).context("the allocation is gone")?.epoch;
    member.wide.prepared = member.reports(id, epoch, |allocation, epoch| ReportItem::Prepared { allocation, epoch })?;
    let reason = EndReason::Exited { code: 0 };
    let ended = member.cluster.report_of(0, ReportItem::Ended { allocation: id, epoch, reason });
    (member.wide.ended, _) = member.entry(id, vec![ended])?;
    member.wide.released = member.reports(id, epoch, |allocation, epoch| ReportItem::Released { allocation, epoch, usage: None })?;
    Ok(member.wide)
}

impl Member<'_> {
    /// Every node reports this, in entries of a fixed number of reports.
    fn reports(&mut self, id: AllocationId, epoch: Epoch, item: impl Fn(AllocationId, Epoch) -> ReportItem) -> Result<Duration> {
        let mut took = Duration::ZERO;
        // Not in the order of the ranks, because nodes prepare at their own pace.
        let order: Vec<usize> = (0..NODES).map(|number| number * 7919 % NODES).collect();
        for part in order.chunks(ENTRY_REPORTS) {
            let state = self.cluster.ledger.allocation(id).map(|allocation| allocation.state);
            let reports = part.iter().map(|number| self.cluster.report_of(*number, item(id, epoch))).collect();
            let (entry, sent_bytes) = self.entry(id, reports)?;
            took += entry;
            let released = self.cluster.ledger.allocation(id).is_none_or(|allocation| allocation.shares.all_released());
            if self.cluster.ledger.allocation(id).map(|allocation| allocation.state) == state && !released {
                self.wide.sent_bytes_max = self.wide.sent_bytes_max.max(sent_bytes);
            }
        }
        Ok(took)
    }

    /// Applies and publishes an entry. Returns how long that took, and the bytes about the allocation that a watcher is sent.
    fn entry(&mut self, id: AllocationId, actions: Vec<Action>) -> Result<(Duration, usize)> {
        let (changed, took) = self.cluster.entry(actions)?;
        let (set, published) = self.published(changed);
        let bytes = sent_bytes(&set, id)?;
        let begun = Instant::now();
        self.history.push(set);
        let pushed = begun.elapsed();
        self.wide.grown_bytes = self.wide.grown_bytes.max(memory()?.saturating_sub(self.memory_before));
        Ok((took + published + pushed, bytes))
    }

    fn published(&self, changed: Changed) -> (ChangeSet, Duration) {
        let begun = Instant::now();
        let set = ChangeSet::of(&self.cluster.ledger, changed);
        (set, begun.elapsed())
    }
}

fn sent_bytes(set: &ChangeSet, id: AllocationId) -> Result<usize> {
    let mut bytes = 0;
    for record in set.allocations.iter().filter(|record| record.id == id) {
        bytes += to_bytes(&Change::Allocation(Box::new((**record).clone())))?.len();
    }
    for phases in set.phases.iter().filter(|phases| phases.change.id == id) {
        bytes += to_bytes(&Change::Phases(Box::new(phases.change.clone())))?.len();
    }
    Ok(bytes)
}

fn memory() -> Result<u64> {
    let own = i32::try_from(std::process::id())?;
    machine::anonymous_memory_of(own).context("the memory of this process")
}

//! The part of a node's state that outlives the agent. Only records change it, so replay gives the
//! same state.

use crate::record::{Local, Record};
use lattice_model::{AllocationId, DesiredList, DesiredShare, Epoch, Incarnation, NodeId, NodeReport, ReportItem};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// See the module.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Durable {
    me: NodeId,
    incarnation: Incarnation,
    list: DesiredList,
    locals: BTreeMap<AllocationId, Local>,
    done: BTreeMap<AllocationId, Epoch>,
    /// Claims that the list names as leaving and that have been reported as released.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    released: BTreeSet<(AllocationId, Epoch)>,
    acknowledged: u64,
    outbox: VecDeque<ReportItem>,
    /// Whether the node's stored state is lost and the quorum has not been notified yet.
    state_lost: bool,
}

impl Durable {
    /// The state of a node without history.
    pub(crate) fn new(me: NodeId) -> Self {
        Self {
            me,
            incarnation: Incarnation(0),
            list: DesiredList::default(),
            locals: BTreeMap::new(),
            done: BTreeMap::new(),
            released: BTreeSet::new(),
            acknowledged: 0,
            outbox: VecDeque::new(),
            state_lost: false,
        }
    }

    /// The state of a node whose stored state is lost: `found` is what is left of its work, `outbox`
    /// what is left of its reports.
    pub(crate) fn recovered(me: NodeId, incarnation: Incarnation, found: Vec<Local>, outbox: Vec<ReportItem>) -> Self {
        let list = DesiredList { shares: found.iter().map(|l| l.share.clone()).collect(), ..DesiredList::default() };
        let locals = found.into_iter().map(|l| (l.share.allocation, l)).collect();
        Self { incarnation, list, locals, outbox: outbox.into(), state_lost: true, ..Self::new(me) }
    }

    pub(crate) fn me(&self) -> &NodeId {
        &self.me
    }

    pub(crate) fn incarnation(&self) -> Incarnation {
        self.incarnation
    }

    /// The last desired list.
    pub(crate) fn list(&self) -> &DesiredList {
        &self.list
    }

    /// The last list's share of this claim.
    pub(crate) fn listed(&self, allocation: AllocationId, epoch: Epoch) -> Option<&DesiredShare> {
        self.list.shares.iter().find(|share| share.allocation == allocation && share.epoch == epoch)
    }

    pub(crate) fn locals(&self) -> &BTreeMap<AllocationId, Local> {
        &self.locals
    }

    /// The local allocation of exactly this claim.
    pub(crate) fn of_claim(&self, allocation: AllocationId, epoch: Epoch) -> Option<&Local> {
        self.locals.get(&allocation).filter(|local| local.share.epoch == epoch)
    }

    /// Whether this claim has ended here, while the list still has it.
    pub(crate) fn is_done(&self, allocation: AllocationId, epoch: Epoch) -> bool {
        self.done.get(&allocation) == Some(&epoch)
    }

    /// Whether this claim, which the list names as leaving, has been reported as released.
    pub(crate) fn is_released(&self, allocation: AllocationId, epoch: Epoch) -> bool {
        self.released.contains(&(allocation, epoch))
    }

    /// The pending reports, oldest first.
    pub(crate) fn outbox(&self) -> &VecDeque<ReportItem> {
        &self.outbox
    }

    /// How many reports of this incarnation the quorum acknowledged.
    pub(crate) fn acknowledged(&self) -> u64 {
        self.acknowledged
    }

    pub(crate) fn is_state_lost(&self) -> bool {
        self.state_lost
    }

    /// Reports that the quorum has not acknowledged, numbered, oldest first.
    pub(crate) fn reports(&self) -> impl Iterator<Item = NodeReport> {
        (self.acknowledged + 1..).zip(&self.outbox).map(|(seq, item)| NodeReport {
            node: self.me.clone(),
            incarnation: self.incarnation,
            seq,
            item: item.clone(),
        })
    }

    /// Applies one record, just written or from the journal.
    pub(crate) fn apply(&mut self, record: Record) {
        match record {
            Record::Registered { incarnation } => {
                self.incarnation = incarnation;
                self.acknowledged = 0;
                self.state_lost = false;
            }
            Record::ListReceived(list) => {
                self.done.retain(|allocation, epoch| list.shares.iter().any(|s| s.allocation == *allocation && s.epoch == *epoch));
                self.released.retain(|claim| list.leaving.contains(claim));
                for share in &list.shares {
                    if let Some(local) = self.locals.get_mut(&share.allocation).filter(|local| local.share.epoch == share.epoch) {
                        local.share.spec.walltime = share.spec.walltime;
                        local.share.lane = share.lane;
                        local.share.started_at = share.started_at;
                    }
                }
                self.list = list;
            }
            Record::PhaseEntered { allocation, epoch, phase, assignment } => match self.locals.get_mut(&allocation) {
                Some(local) if local.share.epoch == epoch => local.phase = phase,
                Some(_) | None => {
                    if let Some(share) = self.listed(allocation, epoch).cloned() {
                        self.locals.insert(allocation, Local { share, phase, assignment });
                    }
                }
            },
            Record::Removed { allocation, epoch } => {
                if self.of_claim(allocation, epoch).is_some() {
                    self.locals.remove(&allocation);
                }
                if self.listed(allocation, epoch).is_some() {
                    self.done.insert(allocation, epoch);
                }
                if self.list.leaving.contains(&(allocation, epoch)) {
                    self.released.insert((allocation, epoch));
                }
            }
            Record::ReportQueued(item) => self.outbox.push_back(item),
            Record::Acknowledged { count } => {
                let count = count.min(self.outbox.len() as u64);
                self.outbox.drain(..usize::try_from(count).unwrap_or(usize::MAX));
                self.acknowledged += count;
            }
        }
    }
}

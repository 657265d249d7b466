//! The shares of a simulated node, and the reports about them. Nothing is run: a share is prepared as soon as it is in
//! the list, its work ends as soon as it may start, and it is released as soon as it is no longer wanted.
//!
//! ```text
//!   in the list, Staging ─▶ Prepared ─▶ in the list, Running ─▶ Ended (by the head) ─▶ not in the list ─▶ Released
//! ```

use lattice_model::{
    AllocationId, AllocationState, DesiredList, DesiredShare, EndReason, Epoch, Generation, Incarnation, NodeId, NodeReport, ReportItem,
    Revision,
};
use std::collections::{BTreeMap, VecDeque};

type Claim = (AllocationId, Epoch);

/// The last report about a share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Reported {
    Prepared,
    Ended,
    Released,
}

/// The reports that a member has acknowledged as committed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Acknowledged {
    /// How many.
    pub(super) reports: u64,
    /// How many of them said that a share is released.
    pub(super) releases: u64,
}

/// The shares of one node.
#[derive(Debug)]
pub struct Shares {
    node: NodeId,
    incarnation: Incarnation,
    newest_list: (Generation, Revision),
    shares: BTreeMap<Claim, Reported>,
    /// Reports that are not acknowledged, in order.
    pending: VecDeque<NodeReport>,
    /// The number of the last report.
    seq: u64,
    /// The number of the last report that was sent in the present session.
    sent: u64,
}

impl Shares {
    pub(super) fn new(node: NodeId, incarnation: Incarnation) -> Self {
        let (newest_list, shares, pending) = (Default::default(), BTreeMap::new(), VecDeque::new());
        Self { node, incarnation, newest_list, shares, pending, seq: 0, sent: 0 }
    }

    /// A session begins: the quorum has the reports up to this number. Returns how many of these were pending.
    pub(super) fn begin_session(&mut self, acknowledged: u64) -> Acknowledged {
        self.sent = acknowledged;
        self.acknowledge(acknowledged)
    }

    /// Makes the reports that follow from a list. A list that is older than the newest one is ignored. Returns how many
    /// shares it has that no list had before.
    pub(super) fn take(&mut self, list: &DesiredList) -> u64 {
        let place = (list.generation, list.revision);
        if place < self.newest_list {
            return 0;
        }
        self.newest_list = place;
        let new = list.shares.iter().filter(|share| self.advance(share)).count() as u64;
        let wanted = |claim: &Claim| list.shares.iter().any(|share| (share.allocation, share.epoch) == *claim);
        let unwanted: Vec<Claim> = self.shares.keys().chain(&list.leaving).copied().filter(|claim| !wanted(claim)).collect();
        for (allocation, epoch) in unwanted {
            if self.shares.insert((allocation, epoch), Reported::Released) != Some(Reported::Released) {
                self.report(ReportItem::Released { allocation, epoch, usage: None });
            } else if !list.leaving.contains(&(allocation, epoch)) {
                self.shares.remove(&(allocation, epoch));
            }
        }
        new
    }

    /// Makes the reports that follow from a share; returns whether it is new.
    fn advance(&mut self, share: &DesiredShare) -> bool {
        let (allocation, epoch) = (share.allocation, share.epoch);
        let reported = self.shares.get(&(allocation, epoch)).copied();
        if reported.is_none() {
            self.shares.insert((allocation, epoch), Reported::Prepared);
            self.report(ReportItem::Prepared { allocation, epoch });
        }
        let is_head = share.nodes.head().as_ref() == Some(&self.node);
        if share.state == AllocationState::Running && reported == Some(Reported::Prepared) && is_head {
            self.shares.insert((allocation, epoch), Reported::Ended);
            self.report(ReportItem::Ended { allocation, epoch, reason: EndReason::Exited { code: 0 } });
        }
        reported.is_none()
    }

    fn report(&mut self, item: ReportItem) {
        self.seq += 1;
        self.pending.push_back(NodeReport { node: self.node.clone(), incarnation: self.incarnation, seq: self.seq, item });
    }

    /// The reports that were not sent in this session; they count as sent from now on.
    pub(super) fn send_next(&mut self) -> Vec<NodeReport> {
        let unsent: Vec<_> = self.pending.iter().filter(|report| report.seq > self.sent).cloned().collect();
        self.sent = self.seq.max(self.sent);
        unsent
    }

    /// The reports up to this number are committed; returns how many of these were pending.
    pub(super) fn acknowledge(&mut self, seq: u64) -> Acknowledged {
        let mut acknowledged = Acknowledged::default();
        while let Some(report) = self.pending.pop_front_if(|report| report.seq <= seq) {
            acknowledged.reports += 1;
            acknowledged.releases += u64::from(matches!(report.item, ReportItem::Released { .. }));
        }
        acknowledged
    }

    /// The number of shares on the node; `None` while the quorum does not have all reports.
    pub(super) fn running(&self) -> Option<u32> {
        let present = self.shares.values().filter(|reported| **reported != Reported::Released).count();
        self.pending.is_empty().then(|| u32::try_from(present).unwrap_or(u32::MAX))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lattice_model::{AllocationSpec, Entrypoint, Principal, Resources};
    use uuid::Uuid;

    const ALLOCATION: AllocationId = AllocationId(Uuid::from_u128(7));

    fn share(head: &str, state: AllocationState) -> DesiredShare {
        let owner = Principal { name: "ada".into(), uid: 1000, gid: 1000, groups: vec![] };
        let command = Entrypoint::Command { argv: vec!["/bin/true".into()] };
        DesiredShare {
            allocation: ALLOCATION,
            epoch: Epoch(3),
            owner,
            state,
            resources: Resources { cores: 1, memory_bytes: 0, gpus: 0 },
            nodes: vec![head.parse().unwrap()].into(),
            spec: AllocationSpec::new("w", command, std::path::Path::new("/")),
            vni: None,
            requeue_count: 0,
            run_lease_ms: None,
            restore: None,
            preempt: None,
            telemetry: None,
            lane: None,
            replica: None,
            parents: Vec::new(),
            number: 0,
            cores: Vec::new(),
            started_at: None,
        }
    }

    fn list(revision: u64, shares: Vec<DesiredShare>, leaving: &[Claim]) -> DesiredList {
        DesiredList { revision: Revision(revision), shares, leaving: leaving.to_vec(), ..DesiredList::default() }
    }

    fn kinds(reports: &[NodeReport]) -> Vec<(u64, &'static str)> {
        let kind = |item: &ReportItem| match item {
            ReportItem::Prepared { .. } => "prepared",
            ReportItem::Ended { .. } => "ended",
            ReportItem::Released { .. } => "released",
            other => panic!("{other:?}"),
        };
        reports.iter().map(|report| (report.seq, kind(&report.item))).collect()
    }

    #[test]
    fn each_step_of_a_share_is_reported_once() {
        let mut shares = Shares::new("n1".parse().unwrap(), Incarnation(1));
        assert_eq!(shares.running(), Some(0));
        for (revision, new) in [(1, 1), (2, 0)] {
            assert_eq!(shares.take(&list(revision, vec![share("n1", AllocationState::Staging)], &[])), new);
        }
        assert_eq!(kinds(&shares.send_next()), [(1, "prepared")]);
        assert!(shares.send_next().is_empty() && shares.running().is_none(), "sent and not acknowledged");
        assert_eq!((shares.acknowledge(1), shares.running()), (Acknowledged { reports: 1, releases: 0 }, Some(1)));
        shares.take(&list(3, vec![share("n1", AllocationState::Running)], &[]));
        shares.take(&list(2, vec![], &[]));
        assert_eq!(kinds(&shares.send_next()), [(2, "ended")], "the older list changes nothing");
        let claim = (ALLOCATION, Epoch(3));
        shares.take(&list(4, vec![], &[claim]));
        shares.take(&list(5, vec![], &[claim]));
        assert_eq!(kinds(&shares.send_next()), [(3, "released")]);
        shares.take(&list(6, vec![], &[]));
        assert_eq!((shares.acknowledge(3), shares.running(), shares.shares.len()), (Acknowledged { reports: 2, releases: 1 }, Some(0), 0));
    }

    #[test]
    fn what_the_quorum_does_not_have_is_sent_again_in_the_next_session() {
        let mut shares = Shares::new("n1".parse().unwrap(), Incarnation(1));
        let unknown = (AllocationId(Uuid::from_u128(9)), Epoch(1));
        shares.take(&list(1, vec![share("n2", AllocationState::Staging)], &[unknown]));
        assert_eq!(kinds(&shares.send_next()), [(1, "prepared"), (2, "released")]);
        assert_eq!(shares.begin_session(1), Acknowledged { reports: 1, releases: 0 });
        assert_eq!(kinds(&shares.send_next()), [(2, "released")]);
        shares.take(&list(2, vec![share("n2", AllocationState::Running)], &[]));
        assert!(shares.send_next().is_empty(), "only the head reports the end");
    }
}

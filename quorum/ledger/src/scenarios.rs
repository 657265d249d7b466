//! The common basis of the command scenarios: a ledger with some nodes and a scheduler.

pub(crate) use super::test_builders::{LimitsChange, SIZE, node, registration, spec, user};
use super::{Action, Applied, Command, Ledger, Outcome, Refusal, SCHEDULER_LEASE};
use lattice_model::claim::ClaimShare;
use lattice_model::{
    AllocationId, AllocationState, AuditRecord, Claim, Epoch, NodeReport, ReportItem, RequeuePolicy, Resources, Revision, Timestamp,
};
use uuid::Uuid;

pub(super) fn id(number: u128) -> AllocationId {
    // Spread over the leading digits, as real ids are.
    AllocationId(Uuid::from_u128(number << 96 | number))
}

/// A ledger with some nodes and a scheduler.
pub(super) struct Story {
    pub(super) ledger: Ledger,
    index: u64,
    /// Time that passed in addition to the second that each command takes, in milliseconds.
    passed_ms: u64,
    seqs: [u64; 32],
    /// The lease token for claims.
    pub(super) token: u64,
    /// The error of the leader's clock, in milliseconds.
    pub(super) ahead_ms: i64,
}

impl Story {
    pub(super) fn new(nodes: u8) -> Self {
        let mut story = Self { ledger: Ledger::default(), index: 0, passed_ms: 0, ahead_ms: 0, seqs: [0; 32], token: 0 };
        for number in 0..nodes {
            story.done(Action::Register(registration(number, 1, 0, true)));
        }
        let lease = Action::GrantLease { name: SCHEDULER_LEASE.into(), holder: node(0), ttl_ms: 1000, user: None };
        let Ok(Outcome::Leased { token }) = story.act(lease) else { panic!("nobody holds it") };
        story.token = token;
        story
    }

    pub(super) fn act(&mut self, action: Action) -> Result<Outcome, Refusal> {
        self.apply(action).result
    }

    /// Applies the action and returns the audit records that it created.
    pub(super) fn acted(&mut self, action: Action) -> Vec<AuditRecord> {
        let applied = self.apply(action);
        applied.result.unwrap();
        applied.audit
    }

    pub(super) fn apply(&mut self, mut action: Action) -> Applied {
        if let Action::Register(new) = &mut action {
            // As an agent that knows its node's incarnation in the quorum.
            new.replaces = new.replaces.or_else(|| self.ledger.node(&new.node).map(|known| known.incarnation));
        }
        self.index += 1;
        let command = Command { at: Timestamp(self.now().0.saturating_add_signed(self.ahead_ms)), action };
        self.ledger.apply(Revision(self.index), &command)
    }

    /// The next command comes after this revision, which the test applied itself.
    pub(super) fn forward(&mut self, revision: Revision) {
        self.index = self.index.max(revision.0);
    }

    /// The time of the last command.
    pub(super) fn now(&self) -> Timestamp {
        Timestamp(self.index * 1000 + self.passed_ms)
    }

    /// Lets time pass, in milliseconds; a majority confirms it.
    pub(super) fn pass(&mut self, ms: u64) {
        self.passed_ms += ms;
        self.done(Action::AdvanceTime);
    }

    /// Lets time pass until the wait of an allocation is over, and ends the wait by the leader's clock.
    /// Returns the time in milliseconds.
    pub(super) fn waits_over(&mut self, number: u128) -> u64 {
        let Some(until) = self.ledger.allocation(id(number)).and_then(|a| a.waits_until) else { return 0 };
        let left = until.since_ms(self.now());
        self.pass(left);
        assert!(self.ledger.waits_are_due(self.now()));
        self.done(Action::EndWaits { now: self.now() });
        left
    }

    pub(super) fn done(&mut self, action: Action) {
        self.act(action).unwrap();
    }

    pub(super) fn submit(&mut self, number: u128, nodes: u32, requeue: RequeuePolicy, max: u32) {
        self.done(Action::Submit { id: id(number), spec: Box::new(spec(nodes, requeue, max)), owner: user(7), claim: None });
    }

    pub(super) fn claim(&mut self, number: u128, nodes: &[u8]) -> Result<Outcome, Refusal> {
        self.act(Action::Claim(self.proposal(number, nodes)))
    }

    pub(super) fn done_claim(&mut self, claim: Claim) {
        assert!(matches!(self.act(Action::Claim(claim)), Ok(Outcome::Claimed { .. })));
    }

    pub(super) fn proposal(&self, number: u128, nodes: &[u8]) -> Claim {
        let shares = nodes
            .iter()
            .map(|n| ClaimShare {
                node: node(*n),
                resources: SIZE,
                hold_revision: self.ledger.node(&node(*n)).map_or(Revision(0), |n| n.hold_revision),
            })
            .collect();
        let requeue_count = self.ledger.allocation(id(number)).map_or(0, |a| a.requeue_count);
        Claim { allocation: id(number), requeue_count, lease_token: self.token, shares, after: None, by: None, walltime: None }
    }

    /// Claims nodes for an allocation, after its wait is over.
    pub(super) fn claimed(&mut self, number: u128, nodes: &[u8]) -> Epoch {
        self.waits_over(number);
        match self.claim(number, nodes) {
            Ok(Outcome::Claimed { epoch }) => epoch,
            other => panic!("{other:?}"),
        }
    }

    pub(super) fn report(&mut self, from: u8, item: ReportItem) {
        self.try_report(from, item).unwrap();
    }

    /// A restarted agent numbers its reports from the start.
    pub(super) fn forget_reports(&mut self, of: u8) {
        self.seqs[usize::from(of)] = 0;
    }

    pub(super) fn try_report(&mut self, from: u8, item: ReportItem) -> Result<Outcome, Refusal> {
        let report = self.next_report(from, item);
        self.act(report)
    }

    /// The audit records that a report creates.
    pub(super) fn report_records(&mut self, from: u8, item: ReportItem) -> Vec<AuditRecord> {
        let report = self.next_report(from, item);
        self.acted(report)
    }

    fn next_report(&mut self, from: u8, item: ReportItem) -> Action {
        let seq = &mut self.seqs[usize::from(from)];
        *seq += 1;
        let incarnation = self.ledger.node(&node(from)).unwrap().incarnation;
        Action::Report(NodeReport { node: node(from), incarnation, seq: *seq, item })
    }

    pub(super) fn claim_share(&mut self, number: u128, on: u8, resources: Resources) -> Result<Outcome, Refusal> {
        let mut claim = self.proposal(number, &[on]);
        claim.shares[0].resources = resources;
        self.act(Action::Claim(claim))
    }

    pub(super) fn claimed_share(&mut self, number: u128, on: u8, resources: Resources) {
        assert!(matches!(self.claim_share(number, on, resources), Ok(Outcome::Claimed { .. })));
    }

    pub(super) fn state(&self, number: u128) -> AllocationState {
        self.ledger.allocation(id(number)).unwrap().state
    }

    pub(super) fn desired(&self, number: u8) -> usize {
        self.ledger.desired(&node(number)).shares.len()
    }
}

pub(super) fn prepared(number: u128, epoch: Epoch) -> ReportItem {
    ReportItem::Prepared { allocation: id(number), epoch }
}

pub(super) fn released(number: u128, epoch: Epoch) -> ReportItem {
    ReportItem::Released { allocation: id(number), epoch, usage: None }
}

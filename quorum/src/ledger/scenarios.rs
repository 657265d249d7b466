//! One story at a time, as people tell them.

use super::{Action, Applied, Command, Ledger, NodeStanding, Outcome, Registration, SCHEDULER_LEASE};
use crate::wire::Refusal;
use lattice_model::claim::ClaimShare;
use lattice_model::spec::share_of;
use lattice_model::{
    AllocationId, AllocationSpec, AllocationState, AuditAction, AuditRecord, Boot, Claim, EndReason, Epoch, HoldKind, Incarnation,
    NodeAddresses, NodeId, NodeReport, NodeState, Principal, ReportItem, RequeuePolicy, Resources, Revision, SharePhase, Timestamp, When,
    WorkUsage, test_builders,
};
use uuid::Uuid;

pub(super) const SIZE: Resources = Resources { cores: 8, memory_bytes: 64, gpus: 2 };

pub(crate) fn spec(nodes: u32, requeue: RequeuePolicy, requeues_max: u32) -> AllocationSpec {
    AllocationSpec { nodes, requeue, requeues_max, ..test_builders::spec() }
}

pub(crate) fn user(uid: u32) -> Principal {
    Principal { name: format!("u{uid}"), uid, gid: uid, groups: vec![] }
}

pub(crate) fn node(number: u8) -> NodeId {
    format!("n{number}").parse().unwrap()
}

pub(super) fn id(number: u128) -> AllocationId {
    // Spread over the leading digits, as real ids are.
    AllocationId(Uuid::from_u128(number << 96 | number))
}

pub(crate) fn registration(number: u8, boot: u128, incarnation: u64, new_life: bool) -> Registration {
    Registration {
        node: node(number),
        boot: Boot(Uuid::from_u128(boot)),
        size: SIZE,
        addresses: NodeAddresses { mesh: format!("n{number}:1"), gossip: format!("n{number}:2") },
        schedulable: true,
        incarnation: Incarnation(incarnation),
        new_life,
        unlimited: vec![],
        features: vec![],
        found: None,
        through: None,
        wipes: false,
        unwell: None,
        conformance: None,
        automatic: true,
        from: None,
    }
}

/// A ledger of this level, and else empty.
pub(crate) fn of_level(level: u32) -> Ledger {
    Ledger { level, ..Ledger::default() }
}

/// A ledger with some nodes and a scheduler.
pub(super) struct Story {
    pub(super) ledger: Ledger,
    index: u64,
    /// What passed beside the second that each command takes, in milliseconds.
    passed_ms: u64,
    seqs: [u64; 8],
    /// Under which claims are made.
    pub(super) token: u64,
    /// By how much the clock of whoever leads is wrong.
    pub(super) ahead_ms: i64,
}

impl Story {
    pub(super) fn new(nodes: u8) -> Self {
        let mut story = Self { ledger: Ledger::default(), index: 0, passed_ms: 0, ahead_ms: 0, seqs: [0; 8], token: 0 };
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

    /// Does it, and gives the audit records that it made.
    pub(super) fn acted(&mut self, action: Action) -> Vec<AuditRecord> {
        let applied = self.apply(action);
        applied.result.unwrap();
        applied.audit
    }

    pub(super) fn apply(&mut self, action: Action) -> Applied {
        self.index += 1;
        let command = Command { at: Timestamp(self.now().0.saturating_add_signed(self.ahead_ms)), action };
        self.ledger.apply(Revision(self.index), &command)
    }

    /// The time of the last command.
    pub(super) fn now(&self) -> Timestamp {
        Timestamp(self.index * 1000 + self.passed_ms)
    }

    /// Lets time pass, in milliseconds; a majority vouches for it.
    pub(super) fn pass(&mut self, ms: u64) {
        self.passed_ms += ms;
        self.done(Action::AdvanceTime);
    }

    /// Lets the time pass for which an allocation waits, and has the leader's clock say so. Gives how much that was, in milliseconds.
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

    fn done_claim(&mut self, claim: Claim) {
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
        Claim { allocation: id(number), requeue_count, lease_token: self.token, shares, by: None }
    }

    /// Claims it, once what it waits for is over.
    pub(super) fn claimed(&mut self, number: u128, nodes: &[u8]) -> Epoch {
        self.waits_over(number);
        match self.claim(number, nodes) {
            Ok(Outcome::Claimed { epoch }) => epoch,
            other => panic!("{other:?}"),
        }
    }

    pub(super) fn report(&mut self, from: u8, item: ReportItem) {
        self.told(from, item).unwrap();
    }

    /// Another life of its agent counts its reports anew.
    fn forget_reports(&mut self, of: u8) {
        self.seqs[usize::from(of)] = 0;
    }

    fn told(&mut self, from: u8, item: ReportItem) -> Result<Outcome, Refusal> {
        let seq = &mut self.seqs[usize::from(from)];
        *seq += 1;
        let incarnation = self.ledger.node(&node(from)).unwrap().incarnation;
        let report = NodeReport { node: node(from), incarnation, seq: *seq, item };
        self.act(Action::Report(report))
    }

    pub(super) fn claim_share(&mut self, number: u128, on: u8, resources: Resources) -> Result<Outcome, Refusal> {
        let mut claim = self.proposal(number, &[on]);
        claim.shares[0].resources = resources;
        self.act(Action::Claim(claim))
    }

    pub(super) fn claimed_share(&mut self, number: u128, on: u8, resources: Resources) {
        assert!(matches!(self.claim_share(number, on, resources), Ok(Outcome::Claimed { .. })));
    }

    fn state(&self, number: u128) -> AllocationState {
        self.ledger.allocation(id(number)).unwrap().state
    }

    fn desired(&self, number: u8) -> usize {
        self.ledger.desired(&node(number)).shares.len()
    }
}

fn prepared(number: u128, epoch: Epoch) -> ReportItem {
    ReportItem::Prepared { allocation: id(number), epoch }
}

fn released(number: u128, epoch: Epoch) -> ReportItem {
    ReportItem::Released { allocation: id(number), epoch, usage: None }
}

#[test]
fn a_submission_with_its_claim_is_one_commit_and_one_whose_claim_is_refused_waits() {
    let mut s = Story::new(1);
    let submit = |s: &Story, number, claim| Action::Submit {
        id: id(number),
        spec: Box::new(spec(1, RequeuePolicy::Never, 0)),
        owner: user(7),
        claim: Some(Claim { lease_token: s.token, ..claim }),
    };
    let first = submit(&s, 1, s.proposal(1, &[0]));
    s.done(first.clone());
    assert_eq!((s.state(1), s.desired(0)), (AllocationState::Staging, 1));
    let epoch = s.ledger.allocation(id(1)).unwrap().epoch;
    // Sent again because its answer was lost: nothing is claimed twice.
    s.done(first);
    assert_eq!((s.ledger.allocation(id(1)).unwrap().epoch, s.desired(0)), (epoch, 1));
    // The node is taken meanwhile; a lease is not ours; a claim for another one.
    s.done(submit(&s, 2, s.proposal(2, &[0])));
    let mut stale = s.proposal(3, &[0]);
    stale.lease_token += 1;
    s.done(Action::Submit { id: id(3), spec: Box::new(spec(1, RequeuePolicy::Never, 0)), owner: user(7), claim: Some(stale) });
    s.done(submit(&s, 4, s.proposal(2, &[0])));
    assert_eq!([2, 3, 4].map(|n| s.state(n)), [AllocationState::Pending; 3]);
}

#[test]
fn the_audit_log_names_who_proposed_a_claim_and_not_who_holds_the_lease() {
    let mut s = Story::new(2);
    s.submit(1, 1, RequeuePolicy::Never, 0);
    let by = |claim: Claim| Claim { by: Some(node(1).to_string()), ..claim };
    let waiting = Action::Claim(by(s.proposal(1, &[0])));
    let spec = Box::new(spec(1, RequeuePolicy::Never, 0));
    let newcomer = Action::Submit { id: id(2), spec, owner: user(7), claim: Some(by(s.proposal(2, &[1]))) };
    for action in [waiting, newcomer] {
        let records = s.acted(action);
        let claimed = records.iter().find(|r| r.action == AuditAction::AllocationClaimed).unwrap();
        assert_eq!(claimed.actor, format!("node:{}", node(1)), "{} holds the lease", node(0));
    }
}

#[test]
fn it_runs_when_every_node_is_prepared_and_its_nodes_are_free_when_they_say_so() {
    let mut s = Story::new(2);
    s.submit(1, 2, RequeuePolicy::Never, 0);
    let epoch = s.claimed(1, &[0, 1]);
    s.report(1, prepared(1, epoch));
    assert_eq!(s.state(1), AllocationState::Staging);
    s.report(0, prepared(1, epoch));
    assert_eq!(s.state(1), AllocationState::Running);
    // Only the head knows how it ended.
    s.report(1, ReportItem::Ended { allocation: id(1), epoch, reason: EndReason::Exited { code: 0 } });
    assert_eq!(s.state(1), AllocationState::Running);
    s.report(0, ReportItem::Ended { allocation: id(1), epoch, reason: EndReason::Exited { code: 0 } });
    assert_eq!((s.state(1), s.desired(0), s.desired(1)), (AllocationState::Completed, 0, 0));
    assert_eq!(s.ledger.node(&node(0)).unwrap().leaving.len(), 1);
    s.report(0, released(1, epoch));
    assert_eq!(s.ledger.held(&node(0)), Resources::default());
    assert_eq!(s.ledger.held(&node(1)), SIZE);
    let phases: Vec<_> = s.ledger.allocation(id(1)).unwrap().shares.iter().map(|s| s.phase).collect();
    assert_eq!(phases, [SharePhase::Released, SharePhase::Prepared]);
}

#[test]
fn a_claim_is_refused_for_each_thing_that_can_stand_against_it() {
    let mut s = Story::new(3);
    s.submit(1, 1, RequeuePolicy::Never, 0);
    s.submit(2, 1, RequeuePolicy::Never, 0);
    s.claimed(1, &[0]);
    let why = |result: Result<Outcome, Refusal>| match result {
        Err(Refusal::Conflict { conflicts }) => (conflicts[0].holder, conflicts[0].why.clone()),
        other => panic!("{other:?}"),
    };
    let (holder, text) = why(s.claim(2, &[0]));
    assert!(holder == Some(id(1)) && text.contains("allocation"), "{text}");
    assert!(why(s.claim(2, &[9])).1.contains("not registered"));
    assert!(matches!(s.claim(1, &[1]), Err(Refusal::NotPending { .. })));
    assert!(matches!(s.claim(3, &[1]), Err(Refusal::NoSuchAllocation { .. })));
    assert!(matches!(s.claim(2, &[1, 2]), Err(Refusal::MalformedClaim { .. })));
    s.submit(4, 2, RequeuePolicy::Never, 0);
    assert!(matches!(s.claim(4, &[1, 1]), Err(Refusal::MalformedClaim { .. })));
    let incarnation = s.ledger.node(&node(1)).unwrap().incarnation;
    let standing = NodeStanding { node: node(1), incarnation, state: NodeState::Degraded, reason: "silent".into() };
    s.done(Action::NodeStates(vec![standing]));
    assert!(why(s.claim(2, &[1])).1.contains("Degraded: silent"));
    // What the claim saw is no longer so.
    let stale = ClaimShare { node: node(2), resources: SIZE, hold_revision: Revision(0) };
    let claim = |token, share| Claim { allocation: id(2), requeue_count: 0, lease_token: token, shares: vec![share], by: None };
    assert!(why(s.act(Action::Claim(claim(s.token, stale.clone())))).1.contains("changed at revision"));
    assert!(matches!(s.act(Action::Claim(claim(s.token + 1, stale.clone()))), Err(Refusal::StaleLease { .. })));
    let late = Claim { requeue_count: 1, ..claim(s.token, stale) };
    assert!(matches!(s.act(Action::Claim(late)), Err(Refusal::StaleRequeueCount { seen: 1, now: 0, .. })));
}

#[test]
fn a_failed_prologue_excludes_the_node_and_the_third_one_ends_it() {
    let mut s = Story::new(4);
    s.submit(1, 1, RequeuePolicy::Always, 5);
    for (round, n) in [0u8, 1].into_iter().enumerate() {
        let epoch = s.claimed(1, &[n]);
        s.report(n, ReportItem::PrepareFailed { allocation: id(1), epoch, why: "no image".into() });
        assert_eq!((s.state(1), s.desired(n)), (AllocationState::Pending, 0));
        assert_eq!(s.ledger.allocation(id(1)).unwrap().excluded.len(), round + 1);
        assert_eq!(s.ledger.held(&node(n)), SIZE, "it has not said that it is clean");
        s.report(n, released(1, epoch));
        assert!(matches!(s.claim(1, &[n]), Err(Refusal::Conflict { .. })));
    }
    // A node that fails again is no other node.
    s.pass(60_000);
    s.done(Action::EndWaits { now: s.now() });
    let epoch = s.claimed(1, &[0]);
    s.report(0, ReportItem::PrepareFailed { allocation: id(1), epoch, why: "no image".into() });
    s.report(0, released(1, epoch));
    assert_eq!((s.state(1), s.ledger.allocation(id(1)).unwrap().excluded.len()), (AllocationState::Pending, 2));
    let epoch = s.claimed(1, &[2]);
    s.report(2, ReportItem::PrepareFailed { allocation: id(1), epoch, why: "no image".into() });
    let ended = s.ledger.allocation(id(1)).unwrap();
    assert_eq!((ended.state, ended.requeue_count), (AllocationState::Failed, 0));
    assert!(matches!(ended.reason, Some(EndReason::PrologueFailed { .. })));
}

#[test]
fn an_exclusion_ends_after_a_time_that_grows_or_when_the_nodes_trouble_does() {
    let mut s = Story::new(2);
    s.submit(1, 1, RequeuePolicy::Never, 0);
    let fails = |s: &mut Story| {
        let epoch = s.claimed(1, &[0]);
        s.report(0, ReportItem::PrepareFailed { allocation: id(1), epoch, why: "No space left on device".into() });
        s.report(0, released(1, epoch));
        let refused = s.claim(1, &[0]);
        assert!(matches!(&refused, Err(Refusal::Conflict { conflicts }) if conflicts[0].why.contains("until")), "{refused:?}");
        let excluded = s.ledger.allocation(id(1)).unwrap().exclusion(&node(0)).cloned().unwrap();
        excluded.until.unwrap().since_ms(s.now())
    };
    let stands = |s: &mut Story, state, reason: &str| {
        let incarnation = s.ledger.node(&node(0)).unwrap().incarnation;
        s.done(Action::NodeStates(vec![NodeStanding { node: node(0), incarnation, state, reason: reason.into() }]));
    };
    let mut times = Vec::new();
    for _ in 0..8 {
        let ms = fails(&mut s);
        s.pass(ms);
        assert!(s.ledger.waits_are_due(s.now()));
        s.done(Action::EndWaits { now: s.now() });
        assert!(!s.ledger.waits_are_due(Timestamp(u64::MAX)));
        times.push(ms);
    }
    assert!(times[0] <= 30_000 && times.is_sorted() && times[7] > 1_790_000 && times[7] <= 1_800_000, "{times:?}");
    // Its checks find it well again.
    fails(&mut s);
    stands(&mut s, NodeState::Degraded, "not well: disk: full");
    stands(&mut s, NodeState::Ready, "heard again");
    // Somebody lifts a hold.
    fails(&mut s);
    let (by, kind) = ("root".to_owned(), HoldKind::Cordon);
    s.done(Action::SetHold { node: node(0), kind, by: by.clone(), reason: "x".into(), until: None, deadline: None });
    s.done(Action::LiftHold { node: node(0), kind, by, until: None });
    // That it was silent for a moment says nothing of its disk; that it has booted does.
    fails(&mut s);
    stands(&mut s, NodeState::Degraded, "silent for 31 s");
    stands(&mut s, NodeState::Ready, "heard again");
    assert!(s.ledger.allocation(id(1)).unwrap().exclusion(&node(0)).is_some());
    s.done(Action::Register(registration(0, 2, 1, true)));
    s.forget_reports(0);
    // What runs has forgotten the nodes that may be claimed for it again.
    let epoch = s.claimed(1, &[0]);
    s.report(0, prepared(1, epoch));
    assert_eq!((s.state(1), s.ledger.allocation(id(1)).unwrap().excluded.len()), (AllocationState::Running, 0));
}

#[test]
fn another_boot_id_loses_the_work_and_frees_that_node_alone() {
    let mut s = Story::new(2);
    s.submit(1, 2, RequeuePolicy::OnNodeFailure, 1);
    s.submit(2, 1, RequeuePolicy::Never, 0);
    let runs = |s: &mut Story| {
        let epoch = s.claimed(1, &[0, 1]);
        [0, 1].into_iter().for_each(|n| s.report(n, prepared(1, epoch)));
        epoch
    };
    let epoch = runs(&mut s);
    s.done(Action::Register(registration(0, 2, 1, true)));
    let lost = s.ledger.allocation(id(1)).unwrap();
    assert_eq!((lost.state, lost.requeue_count, lost.submitted_at), (AllocationState::Pending, 1, Timestamp(4000)));
    assert_eq!((s.ledger.held(&node(0)), s.ledger.held(&node(1))), (Resources::default(), SIZE));
    assert_eq!(s.ledger.node(&node(1)).unwrap().leaving.len(), 1);
    assert!(matches!(s.claim(1, &[0, 1]), Err(Refusal::Conflict { .. })));
    // An end that was reported under the lost epoch comes too late.
    s.report(1, ReportItem::Ended { allocation: id(1), epoch, reason: EndReason::Exited { code: 0 } });
    assert_eq!(s.state(1), AllocationState::Pending);
    s.report(1, released(1, epoch));
    s.forget_reports(0);
    runs(&mut s);
    s.done(Action::Register(registration(0, 3, 2, true)));
    assert_eq!(s.state(1), AllocationState::Failed);
}

#[test]
fn requeues_follow_the_policy() {
    let exited = EndReason::Exited { code: 1 };
    let lost = EndReason::NodeLost { node: node(0), why: "x".into() };
    for (policy, reason, back) in [
        (RequeuePolicy::Never, lost.clone(), false),
        (RequeuePolicy::OnNodeFailure, lost.clone(), true),
        (RequeuePolicy::OnNodeFailure, exited.clone(), false),
        (RequeuePolicy::Always, exited, true),
        (RequeuePolicy::Always, lost, true),
        (RequeuePolicy::Always, EndReason::Exited { code: 0 }, false),
        (RequeuePolicy::Always, EndReason::WalltimeExceeded, false),
        (RequeuePolicy::Always, EndReason::LaunchAborted { code: 1, why: "x".into() }, true),
        (RequeuePolicy::Always, EndReason::ProbeFailed { node: node(0), why: "x".into() }, true),
        (RequeuePolicy::OnNodeFailure, EndReason::ProbeFailed { node: node(0), why: "x".into() }, false),
    ] {
        let mut s = Story::new(1);
        s.submit(1, 1, policy, 1);
        let epoch = s.claimed(1, &[0]);
        s.report(0, prepared(1, epoch));
        s.report(0, ReportItem::Ended { allocation: id(1), epoch, reason: reason.clone() });
        assert_eq!(s.state(1) == AllocationState::Pending, back, "{policy:?} {reason:?}");
    }
}

#[test]
fn only_its_owner_or_root_cancels() {
    let mut s = Story::new(1);
    s.submit(1, 1, RequeuePolicy::Always, 3);
    assert!(matches!(s.act(Action::Cancel { id: id(1), by: user(8) }), Err(Refusal::NotYours { .. })));
    let epoch = s.claimed(1, &[0]);
    s.done(Action::Cancel { id: id(1), by: user(0) });
    assert_eq!((s.state(1), s.desired(0), s.ledger.held(&node(0))), (AllocationState::Cancelled, 0, SIZE));
    s.report(0, released(1, epoch));
    assert_eq!(s.ledger.held(&node(0)), Resources::default());
    s.done(Action::Cancel { id: id(1), by: user(7) });
}

#[test]
fn registrations_keep_a_life_and_outlast_an_older_one() {
    let mut s = Story::new(1);
    let known = |s: &Story| s.ledger.node(&node(0)).unwrap().incarnation;
    assert_eq!(known(&s), Incarnation(1));
    s.submit(1, 1, RequeuePolicy::Never, 0);
    let epoch = s.claimed(1, &[0]);
    s.report(0, prepared(1, epoch));
    let again = s.act(Action::Register(registration(0, 1, 1, false)));
    assert_eq!(again, Ok(Outcome::Registered { incarnation: Incarnation(1), report_seq: 1 }));
    // It lived without a quorum and counted on.
    let again = s.act(Action::Register(registration(0, 1, 5, false)));
    assert_eq!(again, Ok(Outcome::Registered { incarnation: Incarnation(6), report_seq: 0 }));
    let old = NodeReport { node: node(0), incarnation: Incarnation(1), seq: 2, item: released(1, epoch) };
    assert!(matches!(s.act(Action::Report(old)), Err(Refusal::StaleIncarnation { .. })));
    let gap = NodeReport { node: node(0), incarnation: Incarnation(6), seq: 2, item: released(1, epoch) };
    assert!(matches!(s.act(Action::Report(gap)), Err(Refusal::Malformed { .. })));
    assert_eq!(s.state(1), AllocationState::Running);
    // An agent without memory sweeps what it was to end, and keeps what stands.
    s.done(Action::Cancel { id: id(1), by: user(7) });
    s.done(Action::Register(registration(0, 1, 6, true)));
    assert_eq!(s.ledger.held(&node(0)), SIZE);
    s.done(Action::Register(registration(0, 1, 0, true)));
    assert_eq!(s.ledger.held(&node(0)), Resources::default());
}

#[test]
fn an_agent_that_lost_its_memory_keeps_what_it_found_and_has_lost_the_rest() {
    let mut s = Story::new(2);
    for (number, policy) in [(1, RequeuePolicy::Never), (2, RequeuePolicy::OnNodeFailure)] {
        s.submit(number, 1, policy, 1);
    }
    let epoch = s.claimed(1, &[0]);
    s.report(0, prepared(1, epoch));
    let found = |found| Action::Register(Registration { found: Some(found), ..registration(0, 1, 0, true) });
    s.done(found(vec![(id(1), epoch)]));
    s.seqs[0] = 0;
    assert_eq!((s.state(1), s.desired(0)), (AllocationState::Running, 1));
    // What it is still ending counts until it says that it is gone.
    s.done(Action::Cancel { id: id(1), by: user(7) });
    s.done(found(vec![(id(1), epoch)]));
    s.seqs[0] = 0;
    assert_eq!(s.ledger.held(&node(0)), SIZE);
    s.report(0, released(1, epoch));
    let epoch = s.claimed(2, &[0]);
    s.report(0, prepared(2, epoch));
    s.done(found(vec![(id(2), Epoch(epoch.0 + 1))]));
    s.seqs[0] = 0;
    assert_eq!((s.state(2), s.ledger.held(&node(0))), (AllocationState::Pending, Resources::default()), "requeued, as it asked for");
    s.claimed(2, &[0]);
    s.done(found(vec![]));
    s.seqs[0] = 0;
    assert_eq!(s.state(2), AllocationState::Failed);
    assert!(matches!(s.ledger.allocation(id(2)).unwrap().reason, Some(EndReason::NodeLost { .. })));
}

#[test]
fn a_report_of_a_claim_that_another_followed_counts_as_heard_and_is_refused_by_name() {
    let mut s = Story::new(3);
    s.submit(1, 2, RequeuePolicy::OnNodeFailure, 3);
    let old = s.claimed(1, &[0, 1]);
    s.report(1, ReportItem::PrepareFailed { allocation: id(1), epoch: old, why: "no image".into() });
    let stale = |now| Ok(Outcome::Unheeded(Refusal::StaleEpoch { id: id(1), seen: old, now }));
    assert_eq!(s.told(0, prepared(1, old)), stale(old), "it waits for another claim");
    s.report(0, released(1, old));
    let new = s.claimed(1, &[0, 2]);
    let ended = ReportItem::Ended { allocation: id(1), epoch: old, reason: EndReason::Exited { code: 0 } };
    assert_eq!(s.told(0, ended), stale(new));
    assert_eq!(s.told(1, ReportItem::PrepareFailed { allocation: id(1), epoch: old, why: "again".into() }), stale(new));
    assert_eq!(s.state(1), AllocationState::Staging);
    s.report(1, released(1, old));
    // Those behind them count.
    s.report(0, prepared(1, new));
    s.report(2, prepared(1, new));
    assert_eq!(s.state(1), AllocationState::Running);
    // What comes late of one that ended is no news.
    s.done(Action::Cancel { id: id(1), by: user(7) });
    s.report(0, ReportItem::Ended { allocation: id(1), epoch: new, reason: EndReason::Exited { code: 0 } });
}

#[test]
fn shares_of_a_node_are_what_was_asked_for_and_never_come_to_more_than_it_has() {
    let mut s = Story::new(1);
    let share = Resources { cores: 3, ..Resources::default() };
    for number in 1..=3 {
        let spec = AllocationSpec { share: Some(share), ..spec(1, RequeuePolicy::Never, 0) };
        s.done(Action::Submit { id: id(number), spec: Box::new(spec), owner: user(7), claim: None });
    }
    s.submit(4, 1, RequeuePolicy::Never, 0);
    let part = share_of(&share, &SIZE);
    assert_eq!((part.cores, part.memory_bytes), (3, 24));
    let claim = |s: &Story, number, resources| Claim {
        shares: vec![ClaimShare { resources, ..s.proposal(number, &[0]).shares[0].clone() }],
        ..s.proposal(number, &[0])
    };
    let why = |result: Result<Outcome, Refusal>| match result {
        Err(Refusal::Conflict { conflicts }) => conflicts[0].why.clone(),
        other => panic!("{other:?}"),
    };
    // A scheduler can give neither more nor less.
    for wrong in [SIZE, share, Resources { cores: 2, ..part }] {
        assert!(why(s.act(Action::Claim(claim(&s, 1, wrong)))).contains("is to give 3 cores"));
    }
    for number in [1, 2] {
        s.done_claim(claim(&s, number, part));
    }
    assert_eq!(s.ledger.held(&node(0)), part.plus(&part));
    assert_eq!(s.desired(0), 2);
    assert!(why(s.act(Action::Claim(claim(&s, 3, part)))).contains("3 cores are wanted, 2 free"));
    assert!(why(s.claim(4, &[0])).contains("8 cores are wanted, 2 free"));
    // What one of them gave back is another's.
    let epoch = s.ledger.allocation(id(1)).unwrap().epoch;
    s.done(Action::Cancel { id: id(1), by: user(7) });
    assert!(why(s.act(Action::Claim(claim(&s, 3, part)))).contains("are wanted"), "not before it was released");
    s.report(0, released(1, epoch));
    s.done_claim(claim(&s, 3, part));
}

#[test]
fn a_node_that_shrinks_keeps_its_work_and_gets_no_more() {
    let mut s = Story::new(1);
    s.submit(1, 1, RequeuePolicy::Never, 0);
    s.submit(2, 1, RequeuePolicy::Never, 0);
    s.claimed(1, &[0]);
    let smaller = Resources { cores: 4, ..SIZE };
    let unlimited = vec!["memory".to_owned()];
    s.done(Action::Register(Registration { size: smaller, unlimited: unlimited.clone(), ..registration(0, 1, 1, false) }));
    assert_eq!(s.ledger.node(&node(0)).unwrap().unlimited, unlimited);
    let hostile = Registration { unlimited: vec!["x".repeat(33)], ..registration(0, 1, 1, false) };
    assert!(matches!(s.act(Action::Register(hostile)), Err(Refusal::Malformed { .. })));
    assert_eq!(s.desired(0), 1);
    assert!(matches!(s.claim(2, &[0]), Err(Refusal::Conflict { .. })));
}

#[test]
fn allocations_are_found_by_prefix() {
    let mut s = Story::new(0);
    s.submit(0x1234_5678, 1, RequeuePolicy::Never, 0);
    s.submit(0x1234_9999, 1, RequeuePolicy::Never, 0);
    let found = |key: &str| s.ledger.find(key).map(|a| a.id);
    assert_eq!(found("12345"), Ok(id(0x1234_5678)));
    assert_eq!(found(&id(0x1234_9999).to_string()), Ok(id(0x1234_9999)));
    assert!(matches!(found("1234"), Err(Refusal::AmbiguousAllocation { candidates, .. }) if candidates.len() == 2));
    assert!(matches!(found("123"), Err(Refusal::Malformed { .. })));
    assert!(matches!(found("ffff"), Err(Refusal::NoSuchAllocation { .. })));
    assert!(matches!(found("xyzw"), Err(Refusal::NoSuchAllocation { .. })));
}

#[test]
fn the_oldest_ended_allocations_are_forgotten() {
    let mut s = Story::new(0);
    let most = super::ENDED_KEPT_MAX as u128;
    for number in 0..most + 3 {
        s.submit(number, 1, RequeuePolicy::Never, 0);
        s.done(Action::Cancel { id: id(number), by: user(7) });
    }
    assert_eq!(s.ledger.allocations().count() as u128, most);
    assert!(s.ledger.allocation(id(2)).is_none() && s.ledger.allocation(id(3)).is_some());
}

#[test]
fn a_lost_gpu_keeps_nobody_off_who_wants_none_and_is_in_the_audit_log() {
    let mut s = Story::new(1);
    let asked = |gpus| Resources { cores: 2, memory_bytes: 8, gpus };
    for (number, gpus) in [(1, 1), (2, 1), (3, 0), (4, 1)] {
        let spec = AllocationSpec { share: Some(asked(gpus)), ..spec(1, RequeuePolicy::Never, 0) };
        s.done(Action::Submit { id: id(number), spec: Box::new(spec), owner: user(7), claim: None });
    }
    let of = |gpus, size: &Resources| share_of(&asked(gpus), size);
    s.claimed_share(1, 0, of(1, &SIZE));
    s.claimed_share(2, 0, of(1, &SIZE));
    let smaller = Resources { gpus: 1, ..SIZE };
    let records = s.acted(Action::Register(Registration { size: smaller, ..registration(0, 1, 1, false) }));
    assert!(records.iter().any(|r| r.detail.contains("1 GPU")), "{records:?}");
    let refused = s.claim_share(4, 0, of(1, &smaller)).unwrap_err();
    assert!(refused.to_string().contains("1 GPU is wanted, 0 free"), "{refused}");
    s.claimed_share(3, 0, of(0, &smaller));
    assert!(s.acted(Action::Register(Registration { size: smaller, ..registration(0, 1, 1, false) })).is_empty());
}

#[test]
fn one_that_registers_and_is_not_well_never_is_ready_and_is_so_when_it_registers_well() {
    let registers =
        |unwell: Option<&str>| Action::Register(Registration { unwell: unwell.map(str::to_owned), ..registration(1, 1, 0, true) });
    let stands = |s: &Story| s.ledger.node(&node(1)).map(|n| (n.state, n.state_reason.clone())).unwrap();
    let mut s = Story::new(1);
    let records = s.acted(registers(Some("disk: full")));
    assert_eq!(stands(&s), (NodeState::Degraded, "not well: disk: full".to_owned()));
    assert!(records.iter().any(|r| r.detail == "Degraded from its registration on: not well: disk: full"), "{records:?}");
    s.submit(1, 1, RequeuePolicy::Never, 0);
    assert!(s.claim(1, &[1]).is_err());
    // Another life, with another reason: not for a moment.
    let records = s.acted(registers(Some("clock: off")));
    assert_eq!(stands(&s), (NodeState::Degraded, "not well: clock: off".to_owned()));
    assert!(records.iter().all(|r| !r.detail.contains("Ready")), "{records:?}");
    s.done(registers(None));
    assert_eq!(stands(&s), (NodeState::Ready, String::new()));
    // From Ready, as one whose agent was started again.
    let records = s.acted(registers(Some("disk: full")));
    assert!(records.iter().any(|r| r.detail == "Ready -> Degraded: it registered, not well: disk: full"), "{records:?}");
}

#[test]
fn what_work_used_is_that_of_its_last_claim_on_all_nodes_that_released_it_each_once() {
    let mut s = Story::new(2);
    let used = |memory, cpu| Some(WorkUsage { nodes: 1, memory_peak_bytes: Some(memory), cpu_ms: Some(cpu) });
    let released = |epoch, usage| ReportItem::Released { allocation: id(1), epoch, usage };
    s.submit(1, 2, RequeuePolicy::Always, 3);
    let first = s.claimed(1, &[0, 1]);
    s.report(0, prepared(1, first));
    s.report(1, prepared(1, first));
    s.report(0, ReportItem::Ended { allocation: id(1), epoch: first, reason: EndReason::Exited { code: 1 } });
    s.report(0, released(first, used(9, 90)));
    s.report(1, released(first, used(8, 80)));
    let second = s.claimed(1, &[0, 1]);
    assert_eq!(s.ledger.allocation(id(1)).unwrap().usage, None, "what is begun anew has used nothing yet");
    s.report(0, prepared(1, second));
    s.report(1, prepared(1, second));
    s.report(0, ReportItem::Ended { allocation: id(1), epoch: second, reason: EndReason::Exited { code: 0 } });
    s.report(0, released(second, used(5, 20)));
    // Said again, under either epoch, it adds nothing.
    s.report(0, released(second, used(5, 20)));
    s.report(1, released(first, used(8, 80)));
    s.report(1, released(second, used(7, 30)));
    let want = WorkUsage { nodes: 2, memory_peak_bytes: Some(7), cpu_ms: Some(50) };
    assert_eq!(s.ledger.allocation(id(1)).unwrap().usage, Some(want));
}

#[test]
fn the_record_has_each_attempt_with_its_nodes_and_who_ended_it() {
    let mut s = Story::new(4);
    s.submit(1, 2, RequeuePolicy::Always, 5);
    let first = s.claimed(1, &[1, 0]);
    s.report(0, prepared(1, first));
    s.report(1, prepared(1, first));
    let began = s.now();
    s.report(1, ReportItem::Ended { allocation: id(1), epoch: first, reason: EndReason::Exited { code: 7 } });
    let second = s.claimed(1, &[2, 3]);
    assert_eq!(s.ledger.allocation(id(1)).unwrap().attempt_number(), Some(2));
    s.report(3, ReportItem::PrepareFailed { allocation: id(1), epoch: second, why: "no image".into() });
    let known = s.ledger.allocation(id(1)).unwrap();
    assert_eq!((known.attempt_number(), known.claimed_at, known.started_at), (None, None, None));
    let told: Vec<_> = known.attempts.iter().map(|a| (a.number, a.epoch, a.nodes.as_str(), a.by.as_str(), a.may_have_run())).collect();
    assert_eq!(told, [(1, first, "n[0-1]", "node:n1", true), (2, second, "n[2-3]", "node:n3", false)]);
    assert_eq!((&known.attempts[0].head, known.attempts[0].started_at), (&node(1), Some(began)));
    assert_eq!(known.attempts[0].reason, EndReason::Exited { code: 7 });
}

#[test]
fn an_attempt_that_a_drain_ended_names_who_drained_the_node() {
    let mut s = Story::new(2);
    s.submit(1, 1, RequeuePolicy::OnNodeFailure, 3);
    s.claimed(1, &[0]);
    let deadline = Timestamp(s.now().0 + 1000);
    let set = Action::SetHold {
        node: node(0),
        kind: HoldKind::Drain,
        by: "ada".into(),
        reason: "fan".into(),
        until: None,
        deadline: Some(When::At(deadline)),
    };
    s.done(set);
    s.done(Action::EndDrained { node: node(0), deadline });
    let known = s.ledger.allocation(id(1)).unwrap();
    assert_eq!((known.state, known.attempts[0].by.as_str()), (AllocationState::Pending, "ada"));
}

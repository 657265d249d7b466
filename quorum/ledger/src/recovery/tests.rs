//! A quorum is lost, and is recovered from a backup.

mod unreported;

use super::super::scenarios::{SIZE, id, node, registration, spec, user};
use super::super::{Action, Command, Ledger, NodeStanding, Outcome, SCHEDULER_LEASE};
use crate::{HeldShare, QuotaChange, Refusal, UserLimitsChange};
use lattice_model::claim::ClaimShare;
use lattice_model::{
    AllocationSpec, AllocationState, CheckpointRef, Claim, Connectivity, EndReason, Epoch, Exposed, Generation, Incarnation, NodeReport,
    NodeState, ReportItem, RequeuePolicy, Revision, SharePhase, Timestamp,
};

struct Quorum {
    ledger: Ledger,
    at: u64,
    token: u64,
}

impl Quorum {
    fn act(&mut self, action: Action) -> Result<Outcome, Refusal> {
        self.at += 1;
        self.ledger.apply(Revision(self.at), &Command { at: Timestamp(self.at), action }).result
    }

    fn lease(&mut self) {
        let lease = Action::GrantLease { name: SCHEDULER_LEASE.into(), holder: node(0), ttl_ms: 1000, user: None };
        let Ok(Outcome::Leased { token }) = self.act(lease) else { panic!("nobody holds it") };
        assert!(token > self.token, "a token of before is worth nothing");
        self.token = token;
    }

    fn submit(&mut self, number: u128, nodes: u32) {
        self.submit_within(number, nodes, "");
    }

    /// Submits an allocation in this network domain that exposes a port.
    fn submit_within(&mut self, number: u128, nodes: u32, domain: &str) {
        let api = Exposed { name: "api".into(), port: 80, protocol: "tcp".into() };
        let expose = (!domain.is_empty()).then_some(api).into_iter().collect();
        let connectivity = Connectivity { network_domain: domain.into(), expose };
        let spec = Box::new(AllocationSpec { connectivity, ..spec(nodes, RequeuePolicy::Always, 9) });
        self.act(Action::Submit { id: id(number), spec, owner: user(7), claim: None }).unwrap();
    }

    fn claim(&mut self, number: u128, nodes: &[u8]) -> Result<Epoch, Refusal> {
        let share = |n: &u8| {
            let hold_revision = self.ledger.node(&node(*n)).unwrap().hold_revision;
            ClaimShare { node: node(*n), resources: SIZE, hold_revision }
        };
        let shares = nodes.iter().map(share).collect();
        let requeue_count = self.ledger.allocation(id(number)).unwrap().requeue_count;
        match self.act(Action::Claim(Claim { allocation: id(number), requeue_count, lease_token: self.token, shares, by: None }))? {
            Outcome::Claimed { epoch } => Ok(epoch),
            other => panic!("{other:?}"),
        }
    }

    fn run(&mut self, number: u128, nodes: &[u8]) -> Epoch {
        let epoch = self.claim(number, nodes).unwrap();
        nodes.iter().for_each(|n| self.report(*n, ReportItem::Prepared { allocation: id(number), epoch }));
        assert_eq!(self.state(number), AllocationState::Running);
        epoch
    }

    fn report(&mut self, from: u8, item: ReportItem) {
        let there = self.ledger.node(&node(from)).unwrap();
        let report = NodeReport { node: node(from), incarnation: there.incarnation, seq: there.report_seq + 1, item };
        self.act(Action::Report(report)).unwrap();
    }

    fn state(&self, number: u128) -> AllocationState {
        self.ledger.allocation(id(number)).unwrap().state
    }

    /// What a node has according to this quorum's list.
    fn held(&self, number: u8) -> Vec<HeldShare> {
        let list = self.ledger.desired(&node(number));
        list.shares.into_iter().map(|share| HeldShare { share, phase: Some(SharePhase::Prepared) }).collect()
    }

    /// The node registers with its current incarnation, and reports what it has.
    fn comes_back(&mut self, number: u8, life: u64, held: Vec<HeldShare>) {
        self.comes_back_with(number, life, held, vec![]);
    }

    /// As `comes_back`, with pending reports.
    fn comes_back_with(&mut self, number: u8, life: u64, held: Vec<HeldShare>, unreported: Vec<ReportItem>) {
        let Ok(Outcome::Registered { incarnation, report_seq }) = self.act(Action::Register(registration(number, 1, life, false))) else {
            panic!("it is known")
        };
        assert!(incarnation > Incarnation(life) && report_seq == 0, "its reports are counted anew");
        self.act(Action::Adopt { node: node(number), incarnation, held, unreported }).unwrap();
    }

    fn backup(&self) -> Self {
        // As written and read back.
        let ledger = rmp_serde::from_slice(&rmp_serde::to_vec_named(&self.ledger).unwrap()).unwrap();
        Self { ledger, at: self.at, token: self.token }
    }

    fn recovered(mut self) -> Self {
        self.at = super::beyond(self.at);
        let head = self.ledger.audit_head().clone();
        let record = self.ledger.recover(Revision(self.at), Timestamp(self.at));
        let mut follows = head;
        follows.follow(&record).unwrap();
        assert_eq!(follows, *self.ledger.audit_head());
        self
    }
}

fn three_nodes() -> Quorum {
    let mut quorum = Quorum { ledger: Ledger::default(), at: 0, token: 0 };
    for n in 0..3 {
        quorum.act(Action::Register(registration(n, 1, 0, true))).unwrap();
    }
    quorum.lease();
    quorum
}

#[test]
fn what_runs_is_adopted_and_nothing_is_placed_before() {
    let mut quorum = three_nodes();
    quorum.submit(1, 1);
    let known = quorum.run(1, &[0]);
    quorum.submit(2, 2);
    quorum.submit(3, 1);
    let mut now = quorum.backup().recovered();
    // After the backup, an allocation that was waiting runs on two nodes.
    let since = quorum.run(2, &[1, 2]);

    assert_eq!(now.ledger.generation(), Generation(1_000_000));
    now.lease();
    // The waiting allocation may run somewhere; a new one must not get a node that has not reported
    // what it runs.
    assert!(matches!(now.claim(2, &[1, 2]), Err(Refusal::Conflict { conflicts }) if conflicts.len() == 3));
    now.submit(4, 1);
    assert!(matches!(now.claim(4, &[1]), Err(Refusal::Conflict { conflicts }) if conflicts[0].node == node(1)));
    now.comes_back(0, 1, quorum.held(0));
    now.comes_back(1, 1, quorum.held(1));
    assert!(now.ledger.awaits(&node(2)) && now.claim(3, &[0]).is_err());
    assert_eq!((now.state(1), now.state(2)), (AllocationState::Running, AllocationState::Running));
    now.comes_back(2, 1, quorum.held(2));
    assert!(now.ledger.recovery().unwrap().awaited.is_empty());
    for (number, epoch, nodes) in [(1, known, 1), (2, since, 2)] {
        let allocation = now.ledger.allocation(id(number)).unwrap();
        assert_eq!((allocation.epoch, allocation.shares.len(), allocation.requeue_count), (epoch, nodes, 0));
    }
    for n in 0..3 {
        assert_eq!(now.ledger.desired(&node(n)).shares, quorum.ledger.desired(&node(n)).shares, "node {n} is told to go on as it does");
        assert_eq!(now.ledger.held(&node(n)), SIZE);
    }
    // A repetition changes nothing.
    let before = now.ledger.holdings(&node(2)).to_vec();
    let incarnation = now.ledger.node(&node(2)).unwrap().incarnation;
    now.act(Action::Adopt { node: node(2), incarnation, held: quorum.held(2), unreported: vec![] }).unwrap();
    assert_eq!(now.ledger.holdings(&node(2)), before);
    // Its end is reported as usual, and its node is claimed under an unused epoch.
    now.report(0, ReportItem::Ended { allocation: id(1), epoch: known, reason: EndReason::Exited { code: 0 } });
    now.report(0, ReportItem::Released { allocation: id(1), epoch: known, usage: None });
    assert_eq!(now.state(1), AllocationState::Completed);
    assert!(now.claim(3, &[0]).unwrap() > Epoch(since.0 + 1_000_000));
}

#[test]
fn what_a_node_alone_knows_is_adopted_whole() {
    let mut quorum = three_nodes();
    let mut now = quorum.backup().recovered();
    quorum.submit(1, 2);
    let epoch = quorum.run(1, &[0, 1]);
    now.comes_back(0, 1, quorum.held(0));
    // The other node's part counts until that node reports otherwise.
    assert_eq!((now.state(1), now.ledger.held(&node(1))), (AllocationState::Running, SIZE));
    now.comes_back(1, 1, quorum.held(1));
    assert_eq!(now.ledger.holdings(&node(1)).len(), 1);
    now.comes_back(2, 1, vec![]);
    let adopted = now.ledger.allocation(id(1)).unwrap();
    assert_eq!((adopted.epoch, &adopted.spec, adopted.shares.len()), (epoch, &quorum.ledger.allocation(id(1)).unwrap().spec, 2));
}

#[test]
fn what_a_claim_began_from_is_known_again() {
    let mut quorum = three_nodes();
    quorum.submit(1, 1);
    let mut now = quorum.backup().recovered();
    let epoch = quorum.run(1, &[0]);
    let made = CheckpointRef { id: "2f0c9a4e-5b7d-4c39-9a54-0f3c2b1d7e88".parse().unwrap(), epoch, step: Some(3), bytes: 9 };
    let mut held = quorum.held(0);
    held[0].share.restore = Some(made.clone());
    now.comes_back(0, 1, held);
    assert_eq!(now.ledger.allocation(id(1)).unwrap().checkpoint, Some(made));
}

#[test]
fn numbers_of_network_domains_are_what_the_nodes_say_and_none_is_given_before() {
    let mut quorum = three_nodes();
    let none = crate::VniPoolChange { grace_ms: Some(0), ..Default::default() };
    quorum.act(Action::SetVniPool { change: none, by: "root".into() }).unwrap();
    quorum.submit_within(1, 1, "a");
    let known = quorum.run(1, &[0]);
    let mut now = quorum.backup().recovered();
    // After the backup, the first domain is released, and its VNI is assigned to another; then it
    // is created again with the next VNI.
    quorum.report(0, ReportItem::Ended { allocation: id(1), epoch: known, reason: EndReason::Exited { code: 0 } });
    quorum.report(0, ReportItem::Released { allocation: id(1), epoch: known, usage: None });
    quorum.act(Action::ReleaseDomains).unwrap();
    for (number, on, domain) in [(2, 1, "b"), (3, 2, "a")] {
        quorum.submit_within(number, 1, domain);
        quorum.run(number, &[on]);
    }
    let numbers = |of: &Quorum| of.ledger.domains().map(|((_, name), d)| (name.clone(), d.vni)).collect::<Vec<_>>();
    assert_eq!((numbers(&quorum), numbers(&now)), (vec![("a".into(), 1001), ("b".into(), 1000)], vec![("a".into(), 1000)]));

    now.lease();
    now.comes_back(1, 1, quorum.held(1));
    assert_eq!(numbers(&now), [("b".to_owned(), 1000)], "what only the backup believes is over");
    now.submit_within(4, 1, "c");
    // Its node has reported, but nodes that have not may use any VNI.
    now.report(
        1,
        ReportItem::Ended { allocation: id(2), epoch: now.ledger.allocation(id(2)).unwrap().epoch, reason: EndReason::Exited { code: 0 } },
    );
    now.report(1, ReportItem::Released { allocation: id(2), epoch: now.ledger.allocation(id(2)).unwrap().epoch, usage: None });
    assert!(matches!(now.claim(4, &[1]), Err(Refusal::Conflict { conflicts }) if conflicts[0].why.contains("any VNI")));
    now.comes_back(2, 1, quorum.held(2));
    now.comes_back(0, 1, vec![]);
    now.act(Action::ReleaseDomains).unwrap();
    assert_eq!(numbers(&now), [("a".to_owned(), 1001)]);
    assert_eq!(now.ledger.desired(&node(2)).shares[0].vni, Some(1001));
    assert_eq!(now.ledger.endpoints("api", None, 9).iter().map(|e| e.allocation).collect::<Vec<_>>(), [id(3)]);
    now.claim(4, &[1]).unwrap();
    assert_eq!(now.ledger.allocation(id(4)).unwrap().vni, Some(1000));
}

#[test]
fn a_node_that_stays_silent_is_waited_for_until_it_is_down() {
    let quorum = three_nodes();
    let mut now = quorum.backup();
    now.submit(1, 1);
    let mut now = now.recovered();
    now.lease();
    (0..2).for_each(|n| now.comes_back(n, 1, vec![]));
    assert!(now.claim(1, &[0]).is_err());
    let known = now.ledger.node(&node(2)).unwrap().incarnation;
    let down = NodeStanding { node: node(2), incarnation: known, state: NodeState::Down, reason: "silent".into() };
    now.act(Action::NodeStates(vec![down])).unwrap();
    now.claim(1, &[0]).unwrap();
    // It returns after all, with work that is not in the backup.
    assert!(now.ledger.awaits(&node(2)));
    let mut quorum = quorum;
    quorum.submit(7, 1);
    let since = quorum.run(7, &[2]);
    now.comes_back(2, 1, quorum.held(2));
    assert_eq!((now.state(7), now.ledger.allocation(id(7)).unwrap().epoch), (AllocationState::Running, since));
}

#[test]
fn a_part_that_its_node_does_not_have_is_not_begun_there() {
    let mut quorum = three_nodes();
    let backup = quorum.backup();
    quorum.submit(1, 2);
    quorum.run(1, &[0, 1]);
    // In either order.
    for order in [[0, 1], [1, 0]] {
        let mut now = backup.backup().recovered();
        for n in order {
            now.comes_back(n, 1, if n == 0 { quorum.held(0) } else { vec![] });
        }
        assert_eq!(now.state(1), AllocationState::Failed);
        assert!(now.ledger.desired(&node(1)).shares.is_empty() && now.ledger.holdings(&node(1)).is_empty());
        assert!(now.ledger.desired(&node(0)).shares.is_empty() && now.ledger.held(&node(0)) == SIZE);
    }
}

#[test]
fn a_node_that_the_backup_does_not_know_is_asked_as_well() {
    let mut quorum = three_nodes();
    let mut now = quorum.backup();
    now.submit(9, 1);
    let mut now = now.recovered();
    quorum.act(Action::Register(registration(3, 1, 0, true))).unwrap();
    quorum.submit(1, 1);
    let epoch = quorum.run(1, &[3]);
    (0..3).for_each(|n| now.comes_back(n, 1, vec![]));
    now.comes_back(3, 1, quorum.held(3));
    assert_eq!((now.state(1), now.ledger.allocation(id(1)).unwrap().epoch), (AllocationState::Running, epoch));
    // A new node has nothing to report.
    now.act(Action::Register(registration(4, 1, 0, true))).unwrap();
    assert!(!now.ledger.awaits(&node(4)));
}

#[test]
fn what_no_node_can_have_is_refused_and_nothing_is_adopted_unasked() {
    let mut quorum = three_nodes();
    let mut now = quorum.backup().recovered();
    quorum.submit(1, 1);
    quorum.run(1, &[0]);
    let held = quorum.held(0);
    let Ok(Outcome::Registered { incarnation, .. }) = now.act(Action::Register(registration(0, 1, 1, false))) else { panic!() };
    let change = |with: &dyn Fn(&mut HeldShare)| {
        let mut held = held.clone();
        with(&mut held[0]);
        Action::Adopt { node: node(0), incarnation, held, unreported: vec![] }
    };
    for action in [
        change(&|h| h.share.epoch = Epoch(u64::MAX)),
        change(&|h| h.share.nodes[0].0 = node(1)),
        change(&|h| h.share.spec.nodes = 2),
        Action::Adopt { node: node(0), incarnation, held: vec![held[0].clone(), held[0].clone()], unreported: vec![] },
    ] {
        assert!(matches!(now.act(action), Err(Refusal::Malformed { .. })));
    }
    assert!(now.ledger.awaits(&node(0)));
    now.comes_back(1, 1, vec![]);
    let incarnation = now.ledger.node(&node(1)).unwrap().incarnation;
    let unasked = quorum.held(0).into_iter().map(|mut h| {
        h.share.nodes[0].0 = node(1);
        h
    });
    now.act(Action::Adopt { node: node(1), incarnation, held: unasked.collect(), unreported: vec![] }).unwrap();
    assert!(now.ledger.allocation(id(1)).is_none(), "it has spoken before");
}

#[test]
fn what_is_cancelled_during_a_recovery_is_remembered_until_no_node_can_have_it() {
    let mut quorum = three_nodes();
    quorum.submit(1, 1);
    let mut now = quorum.backup().recovered();
    quorum.run(1, &[0]);
    let users = UserLimitsChange { user_history: QuotaChange::AtMost(0), ..UserLimitsChange::default() };
    now.act(Action::SetLimits { sensitive_pool_size: QuotaChange::Keep, users, by: "root".into() }).unwrap();
    let end = |now: &mut Quorum, number: u128| {
        if now.ledger.allocation(id(number)).is_none() {
            now.submit(number, 1);
        }
        now.act(Action::Cancel { id: id(number), by: user(7) }).unwrap();
    };
    (1..5).for_each(|number| end(&mut now, number));
    assert!(now.ledger.allocation(id(2)).is_none(), "nothing refers to it");
    (1..3).for_each(|n| now.comes_back(n, 1, vec![]));
    now.comes_back(0, 1, quorum.held(0));
    assert_eq!(now.state(1), AllocationState::Cancelled, "it is not adopted as one that the backup lacks");
    let list = now.ledger.desired(&node(0));
    let epoch = list.leaving.iter().find(|(leaving, _)| *leaving == id(1)).unwrap().1;
    end(&mut now, 6);
    assert!(now.ledger.recovery().unwrap().awaited.is_empty() && now.ledger.allocation(id(1)).is_some(), "its node has it still");
    now.report(0, ReportItem::Released { allocation: id(1), epoch, usage: None });
    end(&mut now, 7);
    assert!(now.ledger.allocation(id(1)).is_none());
}

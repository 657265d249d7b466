//! A quorum is lost and recovered from a backup. In most tests `quorum` is the lost one, and `now` the recovered one.

mod dependencies;
mod ended_work;
mod scaled_services;
mod task_groups;
mod unreported;

use super::super::scenarios::{LimitsChange, SIZE, id, node, registration, spec, user};
use super::super::{Action, Command, Ledger, NodeStateChange, Outcome, SCHEDULER_LEASE};
use super::{NUMBERS_STEP, beyond, job_numbers};
use crate::properties::scans::invariant_indexes_equal_scans;
use crate::{HeldShare, QuotaChange, Refusal, UserLimitsChange};
use lattice_model::claim::ClaimShare;
use lattice_model::{
    AllocationSpec, AllocationState, CheckpointRef, Claim, Connectivity, DesiredShare, EndReason, Epoch, Exposed, Generation, Incarnation,
    NodeReport, NodeState, ReportItem, RequeuePolicy, Resources, Revision, SharePhase, SharePolicy, Timestamp,
};

struct Quorum {
    ledger: Ledger,
    at: u64,
    token: u64,
}

impl Quorum {
    fn act(&mut self, action: Action) -> Result<Outcome, Refusal> {
        self.at += 1;
        let result = self.ledger.apply(Revision(self.at), &Command { at: Timestamp(self.at), action }).result;
        invariant_indexes_equal_scans(&self.ledger);
        result
    }

    fn lease(&mut self) {
        let lease = Action::GrantLease { name: SCHEDULER_LEASE.into(), holder: node(0), ttl_ms: 1000, user: None };
        let Ok(Outcome::Leased { token }) = self.act(lease) else { panic!("no one holds the lease") };
        assert!(token > self.token, "a token from before is stale");
        self.token = token;
    }

    fn submit(&mut self, number: u128, nodes: u32) {
        self.submit_within(number, nodes, "");
    }

    /// Submits an allocation that exposes a port in this network domain; an empty domain is none.
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
            let resources = self.ledger.allocation(id(number)).unwrap().spec.amount_of(&SIZE);
            ClaimShare { node: node(*n), resources, hold_revision }
        };
        let shares = nodes.iter().map(share).collect();
        let requeue_count = self.ledger.allocation(id(number)).unwrap().requeue_count;
        match self.act(Action::Claim(Claim {
            allocation: id(number),
            requeue_count,
            lease_token: self.token,
            shares,
            after: None,
            by: None,
            walltime: None,
        }))? {
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

    /// The shares that a node has, according to this quorum's list.
    fn held(&self, number: u8) -> Vec<HeldShare> {
        let list = self.ledger.desired(&node(number));
        list.shares.into_iter().map(|share| HeldShare { share, phase: Some(SharePhase::Prepared) }).collect()
    }

    /// The node registers with the incarnation `life`, and reports what it has.
    fn return_node(&mut self, number: u8, life: u64, held: Vec<HeldShare>) {
        self.return_node_with(number, life, held, vec![]);
    }

    /// As `return_node`, with pending reports.
    fn return_node_with(&mut self, number: u8, life: u64, held: Vec<HeldShare>, unreported: Vec<ReportItem>) {
        let Ok(Outcome::Registered { incarnation, report_seq }) = self.act(Action::Register(registration(number, 1, life, false))) else {
            panic!("the node is known")
        };
        assert!(incarnation > Incarnation(life) && report_seq == 0, "its reports are counted from 0 again");
        self.act(Action::Adopt { node: node(number), incarnation, held, unreported }).unwrap();
    }

    fn backup(&self) -> Self {
        // Encoded and decoded, as a real backup.
        let ledger = rmp_serde::from_slice(&rmp_serde::to_vec_named(&self.ledger).unwrap()).unwrap();
        Self { ledger, at: self.at, token: self.token }
    }

    fn recovered(mut self) -> Self {
        self.at = beyond(self.at);
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

/// The shares of a node, without the time at which they began: the recovered quorum has its own for work that it adopted.
fn timeless(quorum: &Quorum, number: u8) -> Vec<DesiredShare> {
    let shares = quorum.ledger.desired(&node(number)).shares.into_iter();
    shares.map(|share| DesiredShare { started_at: None, ..share }).collect()
}

#[test]
fn job_numbers_go_on_behind_those_of_the_lost_quorum_and_running_work_keeps_its_own() {
    let mut quorum = three_nodes();
    quorum.submit(1, 1);
    let (mut now, mut other) = (quorum.backup().recovered(), quorum.backup().recovered());
    quorum.submit(2, 1);
    quorum.run(2, &[0]);
    let number = |quorum: &Quorum, which: u128| quorum.ledger.allocation(id(which)).unwrap().number;
    assert_eq!([number(&quorum, 1), number(&quorum, 2)], [1, 2]);
    let first = job_numbers::NUMBERS_STEP + 1;
    now.submit(3, 1);
    now.return_node(0, 1, quorum.held(0));
    assert_eq!([1, 2, 3].map(|which| number(&now, which)), [1, 2, first]);
    assert_eq!(now.ledger.find("2").unwrap().id, id(2));
    // Numbers of others, and numbers that no quorum can have given, are not adopted.
    let forged =
        |number: u64| quorum.held(0).into_iter().map(move |held| HeldShare { share: DesiredShare { number, ..held.share }, ..held });
    let mut third = other.backup();
    other.return_node(0, 1, forged(1).collect());
    third.return_node(0, 1, forged(u64::MAX).collect());
    assert_eq!([number(&other, 2), number(&third, 2)], [first, first]);
}

#[test]
fn work_that_began_after_the_backup_still_ends_by_its_deadline() {
    let mut quorum = three_nodes();
    // The first commands after a recovery advance the time by a minute each: it begins too late for its whole walltime.
    let deadline = Timestamp(3_660_000);
    let timing = lattice_model::Timing { deadline: Some(deadline), ..Default::default() }.unless_empty();
    let walltime = Some(std::time::Duration::from_secs(3600));
    let spec = Box::new(AllocationSpec { walltime, timing, ..spec(1, RequeuePolicy::Always, 9) });
    quorum.act(Action::Submit { id: id(1), spec, owner: user(7), claim: None }).unwrap();
    let mut now = quorum.backup().recovered();
    quorum.run(1, &[0]);
    now.return_node(0, 1, quorum.held(0));
    let adopted = now.ledger.allocation(id(1)).unwrap();
    let ends_ms = adopted.started_at.unwrap().0 + lattice_model::millis(adopted.spec.walltime.unwrap());
    assert_eq!((adopted.state, ends_ms, adopted.asked_walltime), (AllocationState::Running, deadline.0, walltime));
}

#[test]
fn numbers_after_a_recovery_keep_their_distance_from_those_before() {
    assert_eq!(beyond(5), NUMBERS_STEP);
    for number in [0, 1, NUMBERS_STEP / 2, NUMBERS_STEP / 2 + 1, NUMBERS_STEP - 1, NUMBERS_STEP, 7 * NUMBERS_STEP + 3] {
        assert!(beyond(number) - number >= NUMBERS_STEP / 2 && beyond(number).is_multiple_of(NUMBERS_STEP), "{number}");
    }
}

#[test]
fn running_work_is_adopted_and_nothing_is_claimed_before_that() {
    let mut quorum = three_nodes();
    quorum.submit(1, 1);
    let known = quorum.run(1, &[0]);
    quorum.submit(2, 2);
    quorum.submit(3, 1);
    let mut now = quorum.backup().recovered();
    // After the backup, the lost quorum still started a waiting allocation on two nodes.
    let since = quorum.run(2, &[1, 2]);

    assert_eq!(now.ledger.generation(), Generation(1_000_000));
    now.lease();
    // The waiting allocation may be running. A new one must not get a node that has not yet reported
    // what it runs.
    assert!(matches!(now.claim(2, &[1, 2]), Err(Refusal::Conflict { conflicts }) if conflicts.len() == 3));
    now.submit(4, 1);
    assert!(matches!(now.claim(4, &[1]), Err(Refusal::Conflict { conflicts }) if conflicts[0].node == node(1)));
    now.return_node(0, 1, quorum.held(0));
    now.return_node(1, 1, quorum.held(1));
    assert!(now.ledger.awaits(&node(2)) && now.claim(3, &[0]).is_err());
    assert_eq!((now.state(1), now.state(2)), (AllocationState::Running, AllocationState::Running));
    now.return_node(2, 1, quorum.held(2));
    assert!(now.ledger.recovery().unwrap().awaited.is_empty());
    for (number, epoch, nodes) in [(1, known, 1), (2, since, 2)] {
        let allocation = now.ledger.allocation(id(number)).unwrap();
        assert_eq!((allocation.epoch, allocation.shares.len(), allocation.requeue_count), (epoch, nodes, 0));
    }
    for n in 0..3 {
        assert_eq!(timeless(&now, n), timeless(&quorum, n), "node {n} keeps its shares");
        assert_eq!(now.ledger.held(&node(n)), SIZE);
    }
    // A repeated report changes nothing.
    let before = now.ledger.holdings(&node(2)).to_vec();
    let incarnation = now.ledger.node(&node(2)).unwrap().incarnation;
    now.act(Action::Adopt { node: node(2), incarnation, held: quorum.held(2), unreported: vec![] }).unwrap();
    assert_eq!(now.ledger.holdings(&node(2)), before);
    // The end of allocation 1 is reported as usual, and its node is claimed under an unused epoch.
    now.report(0, ReportItem::Ended { allocation: id(1), epoch: known, reason: EndReason::Exited { code: 0 } });
    now.report(0, ReportItem::Released { allocation: id(1), epoch: known, usage: None });
    assert_eq!(now.state(1), AllocationState::Completed);
    assert!(now.claim(3, &[0]).unwrap() > Epoch(since.0 + 1_000_000));
}

#[test]
fn an_allocation_that_the_backup_lacks_is_adopted_from_its_nodes() {
    let mut quorum = three_nodes();
    let mut now = quorum.backup().recovered();
    quorum.submit(1, 2);
    let epoch = quorum.run(1, &[0, 1]);
    now.return_node(0, 1, quorum.held(0));
    // The other node's share counts until that node reports.
    assert_eq!((now.state(1), now.ledger.held(&node(1))), (AllocationState::Running, SIZE));
    now.return_node(1, 1, quorum.held(1));
    assert_eq!(now.ledger.holdings(&node(1)).len(), 1);
    now.return_node(2, 1, vec![]);
    let adopted = now.ledger.allocation(id(1)).unwrap();
    assert_eq!((adopted.epoch, &adopted.spec, adopted.shares.len()), (epoch, &quorum.ledger.allocation(id(1)).unwrap().spec, 2));
}

#[test]
fn an_adopted_share_counts_under_the_share_policy() {
    let mut quorum = three_nodes();
    quorum.act(LimitsChange { share_policy: Some(SharePolicy::User), ..LimitsChange::default() }.by("root")).unwrap();
    let mut now = quorum.backup().recovered();
    let submit = |quorum: &mut Quorum, number: u128, uid: u32| {
        let share = Some(Resources { cores: 2, ..Resources::default() });
        let spec = Box::new(AllocationSpec { share, ..spec(1, RequeuePolicy::Never, 0) });
        quorum.act(Action::Submit { id: id(number), spec, owner: user(uid), claim: None }).unwrap();
    };
    submit(&mut quorum, 1, 7);
    quorum.run(1, &[0]);
    now.return_node(0, 1, quorum.held(0));
    (1..3).for_each(|n| now.return_node(n, 1, vec![]));
    now.lease();
    submit(&mut now, 2, 8);
    submit(&mut now, 3, 7);
    assert!(matches!(now.claim(2, &[0]), Err(Refusal::Conflict { conflicts }) if conflicts[0].holder == Some(id(1))));
    now.claim(3, &[0]).unwrap();
}

#[test]
fn the_checkpoint_that_a_claim_started_from_is_adopted() {
    let mut quorum = three_nodes();
    quorum.submit(1, 1);
    let mut now = quorum.backup().recovered();
    let epoch = quorum.run(1, &[0]);
    let made = CheckpointRef { id: "2f0c9a4e-5b7d-4c39-9a54-0f3c2b1d7e88".parse().unwrap(), epoch, step: Some(3), bytes: 9 };
    let mut held = quorum.held(0);
    held[0].share.restore = Some(made.clone());
    now.return_node(0, 1, held);
    assert_eq!(now.ledger.allocation(id(1)).unwrap().checkpoint.as_deref(), Some(&made));
}

#[test]
fn vnis_of_domains_come_from_the_nodes_and_none_is_assigned_before_all_reported() {
    let mut quorum = three_nodes();
    let none = crate::VniPoolChange { grace_ms: Some(0), ..Default::default() };
    quorum.act(Action::SetVniPool { change: none, by: "root".into() }).unwrap();
    quorum.submit_within(1, 1, "a");
    let known = quorum.run(1, &[0]);
    let mut now = quorum.backup().recovered();
    // After the backup, domain a is released and its VNI is assigned to domain b. Then a is created
    // again with the next VNI.
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
    now.return_node(1, 1, quorum.held(1));
    assert_eq!(numbers(&now), [("b".to_owned(), 1000)], "a domain that only the backup has is released");
    now.submit_within(4, 1, "c");
    // The node has reported, but the others may use any VNI.
    now.report(
        1,
        ReportItem::Ended { allocation: id(2), epoch: now.ledger.allocation(id(2)).unwrap().epoch, reason: EndReason::Exited { code: 0 } },
    );
    now.report(1, ReportItem::Released { allocation: id(2), epoch: now.ledger.allocation(id(2)).unwrap().epoch, usage: None });
    assert!(matches!(now.claim(4, &[1]), Err(Refusal::Conflict { conflicts }) if conflicts[0].why.contains("any VNI")));
    now.return_node(2, 1, quorum.held(2));
    now.return_node(0, 1, vec![]);
    now.act(Action::ReleaseDomains).unwrap();
    assert_eq!(numbers(&now), [("a".to_owned(), 1001)]);
    assert_eq!(now.ledger.desired(&node(2)).shares[0].vni, Some(1001));
    assert_eq!(now.ledger.endpoints("api", None, 9).iter().map(|e| e.allocation).collect::<Vec<_>>(), [id(3)]);
    now.claim(4, &[1]).unwrap();
    assert_eq!(now.ledger.allocation(id(4)).unwrap().vni, Some(1000));
}

#[test]
fn a_silent_node_is_awaited_until_it_is_down() {
    let quorum = three_nodes();
    let mut now = quorum.backup();
    now.submit(1, 1);
    let mut now = now.recovered();
    now.lease();
    (0..2).for_each(|n| now.return_node(n, 1, vec![]));
    assert!(now.claim(1, &[0]).is_err());
    let known = now.ledger.node(&node(2)).unwrap().incarnation;
    let down = NodeStateChange { node: node(2), incarnation: known, state: NodeState::Down, reason: "silent".into() };
    now.act(Action::NodeStates(vec![down])).unwrap();
    now.claim(1, &[0]).unwrap();
    // The node returns, with work that is not in the backup.
    assert!(now.ledger.awaits(&node(2)));
    let mut quorum = quorum;
    quorum.submit(7, 1);
    let since = quorum.run(7, &[2]);
    now.return_node(2, 1, quorum.held(2));
    assert_eq!((now.state(7), now.ledger.allocation(id(7)).unwrap().epoch), (AllocationState::Running, since));
}

#[test]
fn a_share_that_its_node_does_not_have_is_not_started_there() {
    let mut quorum = three_nodes();
    let backup = quorum.backup();
    quorum.submit(1, 2);
    quorum.run(1, &[0, 1]);
    // The nodes return in either order.
    for order in [[0, 1], [1, 0]] {
        let mut now = backup.backup().recovered();
        for n in order {
            now.return_node(n, 1, if n == 0 { quorum.held(0) } else { vec![] });
        }
        assert_eq!(now.state(1), AllocationState::Failed);
        assert!(now.ledger.desired(&node(1)).shares.is_empty() && now.ledger.holdings(&node(1)).is_empty());
        assert!(now.ledger.desired(&node(0)).shares.is_empty() && now.ledger.held(&node(0)) == SIZE);
    }
}

#[test]
fn a_node_that_the_backup_lacks_is_adopted_too() {
    let mut quorum = three_nodes();
    let mut now = quorum.backup();
    now.submit(9, 1);
    let mut now = now.recovered();
    quorum.act(Action::Register(registration(3, 1, 0, true))).unwrap();
    quorum.submit(1, 1);
    let epoch = quorum.run(1, &[3]);
    (0..3).for_each(|n| now.return_node(n, 1, vec![]));
    now.return_node(3, 1, quorum.held(3));
    assert_eq!((now.state(1), now.ledger.allocation(id(1)).unwrap().epoch), (AllocationState::Running, epoch));
    // A new node has nothing to report.
    now.act(Action::Register(registration(4, 1, 0, true))).unwrap();
    assert!(!now.ledger.awaits(&node(4)));
}

#[test]
fn impossible_shares_are_refused_and_a_second_report_adopts_nothing() {
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
        change(&|h| h.share.nodes = [node(1)].into_iter().chain(h.share.nodes[1..].iter().cloned()).collect()),
        change(&|h| h.share.spec.nodes = 2),
        Action::Adopt { node: node(0), incarnation, held: vec![held[0].clone(), held[0].clone()], unreported: vec![] },
    ] {
        assert!(matches!(now.act(action), Err(Refusal::Malformed { .. })));
    }
    assert!(now.ledger.awaits(&node(0)));
    now.return_node(1, 1, vec![]);
    let incarnation = now.ledger.node(&node(1)).unwrap().incarnation;
    let late = quorum.held(0).into_iter().map(|mut h| {
        h.share.nodes = [node(1)].into_iter().chain(h.share.nodes[1..].iter().cloned()).collect();
        h
    });
    now.act(Action::Adopt { node: node(1), incarnation, held: late.collect(), unreported: vec![] }).unwrap();
    assert!(now.ledger.allocation(id(1)).is_none(), "the node has reported before");
}

#[test]
fn what_is_cancelled_during_a_recovery_is_remembered_until_no_node_can_have_it() {
    let mut quorum = three_nodes();
    quorum.submit(1, 1);
    let mut now = quorum.backup().recovered();
    quorum.run(1, &[0]);
    let users = UserLimitsChange { user_history: QuotaChange::AtMost(0), ..UserLimitsChange::default() };
    now.act(LimitsChange { users, ..LimitsChange::default() }.by("root")).unwrap();
    let end = |now: &mut Quorum, number: u128| {
        if now.ledger.allocation(id(number)).is_none() {
            now.submit(number, 1);
        }
        now.act(Action::Cancel { id: id(number), by: user(7) }).unwrap();
    };
    (1..5).for_each(|number| end(&mut now, number));
    assert!(now.ledger.allocation(id(2)).is_none(), "nothing refers to it");
    (1..3).for_each(|n| now.return_node(n, 1, vec![]));
    now.return_node(0, 1, quorum.held(0));
    assert_eq!(now.state(1), AllocationState::Cancelled, "it is not adopted as one that the backup lacks");
    let list = now.ledger.desired(&node(0));
    let epoch = list.leaving.iter().find(|(leaving, _)| *leaving == id(1)).unwrap().1;
    end(&mut now, 6);
    assert!(now.ledger.recovery().unwrap().awaited.is_empty() && now.ledger.allocation(id(1)).is_some(), "its node has it still");
    now.report(0, ReportItem::Released { allocation: id(1), epoch, usage: None });
    end(&mut now, 7);
    assert!(now.ledger.allocation(id(1)).is_none());
}

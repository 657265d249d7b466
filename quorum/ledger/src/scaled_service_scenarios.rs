//! Scenarios of scaled services: the commands of users, agents and schedulers, and exactly what comes of
//! them.

use super::preemptions::PreemptFor;
use super::properties::invariants::invariant_replicas_are_as_wanted;
use super::properties::scans::invariant_indexes_equal_scans;
use super::scenarios::{LimitsChange, SIZE, Story, id, node, registration, spec, user};
use super::task_groups::lane_id;
use super::{
    Action, AllocationChange, DependencyRefusal, ListFilter, NodeStateChange, Outcome, QuotaChange, Refusal, Registration, ScalingChange,
    ScalingStep, SoftLimitsChange, TenantChange, UpdateRefusal, UserLimitsChange, WantedLanes,
};
use lattice_model::claim::ClaimShare;
use lattice_model::constraint::CHECKPOINTS;
use lattice_model::end_reason::NotSaved;
use lattice_model::scaling::{Look, Step};
use lattice_model::{
    Allocation, AllocationId, AllocationSpec, AllocationState, Amount, AuditAction, CheckpointId, CheckpointPolicy, CheckpointRef,
    CheckpointSignal, Claim, Connectivity, Dependency, DependencyCondition, Drain, EndReason, Epoch, Exposed, NodeState, PreemptCause,
    Preemption, ReplicaOf, ReportItem, RequeuePolicy, Resources, ScaleMetric, ScalePolicy, Scaling, ScalingState,
};
use std::sync::Arc;
use std::time::Duration;
use uuid::Uuid;

const HALF: Resources = Resources { cores: 4, memory_bytes: 32, gpus: 1 };
/// A replica that has run for so long does not end early, in milliseconds.
const LONG_MS: u64 = 600_000;

/// Two of its replicas would fit on one node.
fn service(least: u32, most: u32) -> AllocationSpec {
    let policy = ScalePolicy::new(ScaleMetric::CpuUtilization, "0.8".parse().unwrap());
    let drain = Drain { signal: None, grace_ms: 30_000 };
    let scaling = Scaling { replicas_min: least, replicas_max: most, policy: Some(policy), drain };
    let expose = vec![Exposed { name: "api".into(), port: 80, protocol: "tcp".into() }];
    let connectivity = Connectivity { expose, ..Connectivity::default() };
    let plain = spec(1, RequeuePolicy::Never, 0);
    AllocationSpec { scaling: Some(Box::new(scaling)), walltime: None, share: Some(HALF), connectivity, ..plain }
}

fn submission(number: u128, spec: AllocationSpec) -> Action {
    Action::Submit { id: id(number), spec: Box::new(spec), owner: user(7), claim: None }
}

/// A story with service 1.
fn story(nodes: u8, spec: AllocationSpec) -> Story {
    let mut s = Story::new(nodes);
    s.done(submission(1, spec));
    s
}

/// A replica of service 1.
fn replica(number: u32) -> AllocationId {
    lane_id(id(1), number)
}

fn record(s: &Story, of: AllocationId) -> &Arc<Allocation> {
    s.ledger.allocation(of).unwrap()
}

fn claim(s: &Story, number: u32, on: u8) -> Claim {
    let hold_revision = s.ledger.node(&node(on)).unwrap().hold_revision;
    let known = record(s, replica(number));
    let shares = vec![ClaimShare { node: node(on), resources: known.spec.amount_of(&SIZE), hold_revision }];
    let requeue_count = known.requeue_count;
    Claim { allocation: known.id, requeue_count, lease_token: s.token, shares, after: None, by: None, walltime: None }
}

/// The replica gets a part of a node, and runs there.
fn runs(s: &mut Story, number: u32, on: u8) -> Epoch {
    let claim = claim(s, number, on);
    let Ok(Outcome::Claimed { epoch }) = s.act(Action::Claim(claim)) else { panic!("replica {number} waits for nodes") };
    s.report(on, ReportItem::Prepared { allocation: replica(number), epoch });
    epoch
}

/// As [`runs`], and its port accepts connections.
fn serves(s: &mut Story, number: u32, on: u8) -> Epoch {
    let epoch = runs(s, number, on);
    s.report(on, ReportItem::PortsOpen { allocation: replica(number), epoch, ports: vec![80] });
    epoch
}

fn ends(s: &mut Story, number: u32, on: u8, epoch: Epoch, code: i32) {
    s.report(on, ReportItem::Ended { allocation: replica(number), epoch, reason: EndReason::Exited { code } });
}

fn releases(s: &mut Story, number: u32, on: u8, epoch: Epoch) {
    s.report(on, ReportItem::Released { allocation: replica(number), epoch, usage: None });
}

fn scale(replicas: u32, by: u32) -> Action {
    Action::Scale { id: id(1), replicas, by: user(by) }
}

fn step(s: &mut Story, step: Step) -> Result<Outcome, Refusal> {
    let lease_token = s.token;
    s.act(Action::StepScaling(ScalingStep { service: id(1), lease_token, metric: ScaleMetric::CpuUtilization, step }))
}

fn found(value: f64) -> Step {
    Step::Note { found: Ok(Amount::of(value).unwrap()) }
}

fn want(replicas: u32) -> Step {
    Step::Want { replicas, value: Amount::of(0.95).unwrap() }
}

fn state(s: &Story) -> &ScalingState {
    record(s, id(1)).scaling.as_deref().unwrap()
}

/// Wanted, waiting, running and leaving replicas.
fn counts(s: &Story) -> (u32, u32, u32, u32) {
    let ScalingState { wanted, waiting, running, leaving, .. } = state(s);
    (*wanted, *waiting, *running, *leaving)
}

fn replicas(s: &Story) -> Vec<Arc<Allocation>> {
    s.ledger.list(None, &[], 0, None, &ListFilter { lanes: WantedLanes::Of(id(1)), ..ListFilter::default() })
}

/// The numbers of those that have not ended.
fn live(s: &Story) -> Vec<u32> {
    let live = replicas(s).into_iter().filter(|replica| !replica.state.is_terminal());
    let mut numbers: Vec<u32> = live.map(|replica| replica.replica.as_ref().unwrap().number).collect();
    numbers.sort_unstable();
    numbers
}

fn reason(s: &Story, of: AllocationId) -> String {
    let allocation = record(s, of);
    format!("{}: {}", allocation.state, allocation.reason.as_ref().unwrap())
}

/// The replicas whose endpoints are listed, by number.
fn endpoints(s: &Story) -> Vec<AllocationId> {
    let listed: Vec<AllocationId> = s.ledger.endpoints("api", None, 9).into_iter().map(|endpoint| endpoint.allocation).collect();
    let by_number: Vec<AllocationId> = (0..9).map(replica).filter(|replica| listed.contains(replica)).collect();
    assert_eq!(by_number.len(), listed.len());
    by_number
}

/// Commands of the leader's clock, until nothing is due.
fn settle(s: &mut Story) -> usize {
    let mut commands = 0;
    while s.ledger.dependents_are_due() {
        s.done(Action::SettleDependents);
        commands += 1;
    }
    commands
}

fn check(s: &Story) {
    invariant_indexes_equal_scans(&s.ledger);
    invariant_replicas_are_as_wanted(&s.ledger);
    assert!(s.ledger.has_right_counts());
    let restored: super::Ledger = rmp_serde::from_slice(&rmp_serde::to_vec_named(&s.ledger).unwrap()).unwrap();
    assert_eq!(restored, s.ledger);
}

#[test]
fn a_service_begins_with_the_fewest_replicas_each_on_a_node_of_its_own() {
    let mut s = story(2, service(2, 4));
    let whole = record(&s, id(1));
    assert!(!whole.waits() && whole.shown_state() == AllocationState::Pending);
    assert_eq!((live(&s), counts(&s)), (vec![0, 1], (2, 2, 0, 0)));
    let first = record(&s, replica(0));
    assert!(first.waits() && first.owner == whole.owner && first.spec.scaling == whole.spec.scaling);
    assert_eq!(first.replica.as_deref(), Some(&ReplicaOf { service: id(1), number: 0 }));
    assert!(Arc::ptr_eq(&first.spec, &record(&s, replica(1)).spec));
    let listed = s.ledger.list(None, &[], 0, None, &ListFilter::default());
    assert_eq!(listed.iter().map(|a| a.id).collect::<Vec<_>>(), [id(1)]);
    let all = ListFilter { lanes: WantedLanes::All, ..ListFilter::default() };
    assert_eq!(s.ledger.list(None, &[], 0, None, &all).len(), 3);
    assert!(matches!(s.claim(1, &[0]), Err(Refusal::NotPending { .. })), "it gets no nodes itself");

    runs(&mut s, 0, 0);
    let whole = record(&s, id(1));
    assert_eq!((whole.shown_state(), whole.started_at, counts(&s)), (AllocationState::Running, Some(s.now()), (2, 1, 1, 0)));
    let beside = claim(&s, 1, 0);
    let Err(Refusal::Conflict { conflicts }) = s.act(Action::Claim(beside)) else { panic!("replica 0 is on that node") };
    assert_eq!((conflicts.len(), conflicts[0].holder), (1, Some(replica(0))));
    assert!(conflicts[0].why.contains("replica 0 of the same service"), "{}", conflicts[0].why);
    serves(&mut s, 1, 1);
    assert_eq!((counts(&s), endpoints(&s)), ((2, 0, 2, 0), vec![replica(1)]), "replica 0 does not listen yet");
    assert_eq!(s.ledger.desired(&node(1)).shares[0].replica, Some(ReplicaOf { service: id(1), number: 1 }));
    check(&s);
}

#[test]
fn a_replica_that_leaves_keeps_others_off_its_node() {
    let mut s = story(2, service(1, 2));
    let epoch = runs(&mut s, 0, 0);
    s.done(Action::Cancel { id: replica(0), by: user(7) });
    assert_eq!((live(&s), counts(&s)), (vec![1], (1, 1, 0, 1)), "another one takes its place");
    let beside = claim(&s, 1, 0);
    assert!(matches!(s.act(Action::Claim(beside)), Err(Refusal::Conflict { .. })));
    releases(&mut s, 0, 0, epoch);
    runs(&mut s, 1, 0);
    assert_eq!((counts(&s), state(&s).early_ends), ((1, 0, 1, 0), 0));
    check(&s);
}

#[test]
fn a_user_scales_within_the_bounds() {
    let mut s = story(2, service(1, 3));
    s.submit(2, 1, RequeuePolicy::Never, 0);
    runs(&mut s, 0, 0);
    let audit = s.acted(scale(2, 7));
    let shown: Vec<_> = audit.iter().map(|record| (record.action, record.actor.as_str(), record.detail.clone())).collect();
    let created = (AuditAction::AllocationSubmitted, "quorum", format!("replica 1 of scaled service {}", id(1)));
    assert_eq!(shown, [(AuditAction::AllocationScaled, "u7", "2 replicas instead of 1".to_owned()), created]);
    assert_eq!((live(&s), counts(&s)), (vec![0, 1], (2, 1, 1, 0)));
    let change = state(&s).change.clone().unwrap();
    assert_eq!((change.at, change.from, change.to, change.by.as_deref(), change.value), (s.now(), 1, 2, Some("u7"), None));
    assert!(s.acted(scale(2, 7)).is_empty(), "as many are wanted already");

    assert!(matches!(s.act(scale(3, 8)), Err(Refusal::NotYours { .. })));
    for asked in [0, 4] {
        assert_eq!(s.act(scale(asked, 7)), Err(Refusal::ReplicasOutOfBounds { id: id(1), asked, least: 1, most: 3 }));
    }
    let of = |id| Action::Scale { id, replicas: 2, by: user(7) };
    assert_eq!(s.act(of(id(2))), Err(Refusal::NotScaled { id: id(2) }));
    assert_eq!(s.act(of(replica(0))), Err(Refusal::ReplicaOfService { id: replica(0), number: 0, service: id(1) }));
    assert!(matches!(s.act(of(id(9))), Err(Refusal::NoSuchAllocation { .. })));
    check(&s);
}

#[test]
fn a_replica_too_many_leaves_the_registry_first_and_ends_for_good() {
    let mut s = story(2, service(1, 2));
    s.done(scale(2, 7));
    serves(&mut s, 0, 0);
    let epoch = serves(&mut s, 1, 1);
    assert_eq!(endpoints(&s).len(), 2);
    let applied = s.apply(scale(1, 0));
    assert!(applied.result.is_ok() && applied.changed.desired.contains(&node(1)));
    assert_eq!((counts(&s), endpoints(&s)), ((1, 0, 1, 1), vec![replica(0)]));
    let order = record(&s, replica(1)).preemption.clone().unwrap();
    assert_eq!((order.cause, order.by.as_str(), order.deadline_ms, order.hold), (PreemptCause::ScaleDown, "u0", 30_000, false));
    assert_eq!(s.ledger.desired(&node(1)).shares[0].preempt, Some(*order));
    assert_eq!((record(&s, replica(1)).state, live(&s)), (AllocationState::Running, vec![0, 1]));
    check(&s);
    // It leaves, whatever else is asked of it.
    let requeue = Action::RequeueAllocation { allocation: replica(1), epoch, by: user(7), reason: "x".into() };
    assert!(matches!(s.act(requeue), Err(Refusal::NotRequeueable { .. })));
    s.done(scale(2, 7));
    assert_eq!((live(&s), counts(&s)), (vec![0, 1, 2], (2, 1, 1, 1)), "it does not come back");
    let saved = Err(NotSaved("x".into()));
    let reason_there = EndReason::Preempted { by: "x".into(), why: "x".into(), saved };
    s.report(1, ReportItem::Ended { allocation: replica(1), epoch, reason: reason_there });
    assert_eq!((reason(&s, replica(1)), counts(&s)), ("Cancelled: cancelled by u0".to_owned(), (2, 1, 1, 1)));
    releases(&mut s, 1, 1, epoch);
    assert_eq!((live(&s), counts(&s), state(&s).early_ends), (vec![0, 2], (2, 1, 1, 0), 0));
    check(&s);
}

#[test]
fn however_a_replica_ends_that_was_asked_to_leave_it_is_cancelled() {
    let checkpoint = CheckpointId(Uuid::from_u128(3));
    let preempted = |saved| EndReason::Preempted { by: "x".into(), why: "x".into(), saved };
    for reason_there in [
        EndReason::Exited { code: 0 },
        EndReason::Exited { code: 1 },
        EndReason::NodeLost { node: node(0), why: "x".into() },
        EndReason::WalltimeSaved { checkpoint },
        preempted(Err(NotSaved("x".into()))),
        preempted(Ok(checkpoint)),
    ] {
        let mut s = Story::new(2);
        for number in 0..2 {
            let features = vec![CHECKPOINTS.to_owned()];
            s.done(Action::Register(Registration { features, ..registration(number, 1, 1, false) }));
        }
        let policy = Some(CheckpointPolicy::by_signal(CheckpointSignal::USR1));
        s.done(submission(1, AllocationSpec { checkpoint: policy, requeue: RequeuePolicy::Always, requeues_max: 9, ..service(1, 2) }));
        s.done(scale(2, 7));
        runs(&mut s, 0, 0);
        let epoch = runs(&mut s, 1, 1);
        s.done(scale(1, 7));
        let made = CheckpointRef { id: checkpoint, epoch, step: None, bytes: 1 };
        s.report(1, ReportItem::Checkpointed { allocation: replica(1), epoch, checkpoint: made });
        s.report(1, ReportItem::Ended { allocation: replica(1), epoch, reason: reason_there.clone() });
        assert_eq!(reason(&s, replica(1)), "Cancelled: cancelled by u7", "{reason_there}");
        releases(&mut s, 1, 1, epoch);
        assert_eq!((live(&s), counts(&s), state(&s).early_ends), (vec![0], (1, 0, 1, 0), 0), "{reason_there}");
        check(&s);
    }
}

#[test]
fn a_replica_that_is_one_too_many_while_it_is_prepared_ends_at_once() {
    let mut s = story(2, service(1, 2));
    s.done(scale(2, 7));
    runs(&mut s, 0, 0);
    let claim = claim(&s, 1, 1);
    s.done_claim(claim);
    let epoch = record(&s, replica(1)).epoch;
    s.done(scale(1, 7));
    assert_eq!((reason(&s, replica(1)), live(&s)), ("Cancelled: cancelled by u7".to_owned(), vec![0]));
    assert_eq!((counts(&s), state(&s).early_ends), ((1, 0, 1, 1), 0), "its node may still have something of it");
    check(&s);
    releases(&mut s, 1, 1, epoch);
    assert_eq!((live(&s), counts(&s)), (vec![0], (1, 0, 1, 0)));
    check(&s);
}

#[test]
fn a_replica_serves_when_it_has_begun() {
    let mut s = story(1, service(1, 2));
    let claim = claim(&s, 0, 0);
    s.done_claim(claim);
    assert_eq!((state(&s).running, state(&s).serving), (1, 0));
    check(&s);
    let epoch = record(&s, replica(0)).epoch;
    s.report(0, ReportItem::Prepared { allocation: replica(0), epoch });
    assert_eq!((state(&s).running, state(&s).serving), (1, 1));
    ends(&mut s, 0, 0, epoch, 1);
    assert_eq!((state(&s).running, state(&s).serving), (0, 0));
    check(&s);
}

#[test]
fn waiting_replicas_are_the_first_that_are_too_many() {
    let mut s = story(2, service(1, 3));
    s.done(scale(3, 7));
    runs(&mut s, 1, 0);
    assert_eq!(counts(&s), (3, 2, 1, 0));
    s.done(scale(2, 7));
    assert_eq!((live(&s), reason(&s, replica(2))), (vec![0, 1], "Cancelled: cancelled by quorum".to_owned()));
    s.done(scale(1, 7));
    assert_eq!((live(&s), counts(&s)), (vec![1], (1, 0, 1, 0)));
    assert!(record(&s, replica(1)).preemption.is_none());
    check(&s);
}

#[test]
fn a_lost_replica_is_replaced_and_one_that_may_be_requeued_waits_again() {
    for (requeue, then) in [(RequeuePolicy::Never, vec![1]), (RequeuePolicy::OnNodeFailure, vec![0])] {
        let mut s = story(2, AllocationSpec { requeue, requeues_max: 3, ..service(1, 2) });
        runs(&mut s, 0, 1);
        let incarnation = s.ledger.node(&node(1)).unwrap().incarnation;
        for state in [NodeState::Degraded, NodeState::Down] {
            s.done(Action::NodeStates(vec![NodeStateChange { node: node(1), incarnation, state, reason: "silent".into() }]));
        }
        assert_eq!((live(&s), counts(&s)), (vec![0], (1, 0, 1, 0)), "it may still run there");
        s.done(Action::ConfirmDead { node: node(1), by: "root".into(), reason: "it burnt".into() });
        assert_eq!((live(&s), counts(&s), state(&s).early_ends), (then, (1, 1, 0, 0), 0));
        check(&s);
    }
}

#[test]
fn a_service_ends_with_the_third_early_end_in_a_row() {
    let mut s = story(2, service(2, 4));
    serves(&mut s, 1, 1);
    for (number, early_ends) in [(0, 1), (2, 2)] {
        let epoch = runs(&mut s, number, 0);
        ends(&mut s, number, 0, epoch, 1);
        releases(&mut s, number, 0, epoch);
        assert_eq!((state(&s).early_ends, s.state(1), live(&s)), (early_ends, AllocationState::Pending, vec![1, number.max(1) + 1]));
        check(&s);
    }
    let epoch = runs(&mut s, 3, 0);
    s.report(0, ReportItem::Ended { allocation: replica(3), epoch, reason: EndReason::Exited { code: 7 } });
    settle(&mut s);
    assert_eq!((reason(&s, id(1)), live(&s)), ("Failed: exit_code 7".to_owned(), vec![]));
    assert_eq!(reason(&s, replica(1)), "Cancelled: cancelled by quorum");
    assert_eq!((counts(&s), endpoints(&s)), ((2, 0, 0, 2), vec![]));
    check(&s);
}

#[test]
fn a_replica_that_has_run_for_long_interrupts_the_row() {
    let mut s = story(3, service(2, 3));
    let long = runs(&mut s, 0, 0);
    let early = runs(&mut s, 1, 1);
    ends(&mut s, 1, 1, early, 1);
    releases(&mut s, 1, 1, early);
    runs(&mut s, 2, 1);
    assert_eq!(state(&s).early_ends, 1);
    s.pass(LONG_MS);
    // Replica 2 was created after the early end, and runs well.
    s.done(scale(3, 7));
    let early = runs(&mut s, 3, 2);
    ends(&mut s, 3, 2, early, 1);
    releases(&mut s, 3, 2, early);
    assert_eq!(state(&s).early_ends, 1);
    let early = runs(&mut s, 4, 2);
    ends(&mut s, 4, 2, early, 1);
    releases(&mut s, 4, 2, early);
    assert_eq!(state(&s).early_ends, 2, "none of those that run well was created since");
    ends(&mut s, 0, 0, long, 1);
    assert_eq!((state(&s).early_ends, s.state(1)), (0, AllocationState::Pending), "that was no early end");
    check(&s);
}

#[test]
fn the_loop_changes_the_number_by_one_under_the_lease_of_the_queue() {
    let mut s = story(3, service(1, 3));
    runs(&mut s, 0, 0);
    let stale = ScalingStep { service: id(1), lease_token: s.token + 1, metric: ScaleMetric::CpuUtilization, step: found(0.95) };
    assert!(matches!(s.act(Action::StepScaling(stale)), Err(Refusal::StaleLease { .. })));
    assert!(matches!(step(&mut s, want(2)), Err(Refusal::ScalingStep { .. })), "nothing was found yet");
    assert_eq!(step(&mut s, found(0.95)), Ok(Outcome::Done));
    let (reading, revision) = (state(&s).reading.clone().unwrap(), record(&s, id(1)).revision);
    assert_eq!((reading.look, reading.since), (Look::Above, s.now()));
    assert_eq!(step(&mut s, found(0.95)), Ok(Outcome::Done));
    assert_eq!(record(&s, id(1)).revision, revision, "a repetition changes nothing");
    assert!(matches!(step(&mut s, want(2)), Err(Refusal::ScalingStep { .. })), "it is not there for long enough");
    s.pass(120_000);
    assert!(matches!(step(&mut s, want(3)), Err(Refusal::ScalingStep { .. })), "that is two more");
    let (lease_token, metric) = (s.token, ScaleMetric::CpuUtilization);
    let audit = s.acted(Action::StepScaling(ScalingStep { service: id(1), lease_token, metric, step: want(2) }));
    let shown: Vec<_> = audit.iter().map(|record| (record.action, record.actor.as_str())).collect();
    assert_eq!(shown, [(AuditAction::AllocationScaled, "scaling"), (AuditAction::AllocationSubmitted, "quorum")]);
    assert_eq!(audit[0].detail, "2 replicas instead of 1: cpu_utilization is 0.95");
    assert_eq!((live(&s), counts(&s)), (vec![0, 1], (2, 1, 1, 0)));
    s.pass(600_000);
    assert!(matches!(step(&mut s, want(3)), Err(Refusal::ScalingStep { .. })), "the first one has no node yet");
    let epoch = runs(&mut s, 1, 1);
    assert_eq!(step(&mut s, Step::Note { found: Err("no series".into()) }), Ok(Outcome::Done));
    let reading = state(&s).reading.as_ref().unwrap();
    assert_eq!((reading.look, reading.missing, counts(&s)), (Look::Above, 1, (2, 0, 2, 0)));

    assert_eq!(step(&mut s, found(0.1)), Ok(Outcome::Done));
    s.pass(300_000);
    assert_eq!(step(&mut s, want(1)), Ok(Outcome::Done));
    let order = record(&s, replica(1)).preemption.clone().unwrap();
    let expected = format!("service {} needs 1 replica now", id(1).short());
    assert_eq!((order.by.as_str(), order.reason.as_str()), ("scaling", expected.as_str()));
    ends(&mut s, 1, 1, epoch, 0);
    assert_eq!(reason(&s, replica(1)), "Cancelled: cancelled by scaling");
    check(&s);
}

#[test]
fn what_does_not_scale_by_itself_gets_no_steps() {
    let mut spec = service(1, 3);
    spec.scaling.as_mut().unwrap().policy = None;
    let mut s = story(1, spec);
    assert!(matches!(step(&mut s, found(0.9)), Err(Refusal::ScalingStep { .. })));
    s.submit(2, 1, RequeuePolicy::Never, 0);
    let (lease_token, metric) = (s.token, ScaleMetric::CpuUtilization);
    let of = |service| Action::StepScaling(ScalingStep { service, lease_token, metric: metric.clone(), step: found(0.9) });
    let (other, unknown, part) = (of(id(2)), of(id(9)), of(replica(0)));
    assert_eq!(s.act(other), Err(Refusal::NotScaled { id: id(2) }));
    assert!(matches!(s.act(unknown), Err(Refusal::NoSuchAllocation { .. })));
    assert!(matches!(s.act(part), Err(Refusal::ReplicaOfService { .. })));
    s.done(scale(3, 7));
    assert_eq!(counts(&s), (3, 3, 0, 0));
}

#[test]
fn a_cancelled_service_ends_all_replicas_a_few_at_a_time() {
    let mut s = Story::new(2);
    s.done(submission(1, service(20, 40)));
    assert_eq!(live(&s).len(), 8, "as many as one command creates");
    assert!((1..=2).contains(&settle(&mut s)));
    assert_eq!(counts(&s), (20, 20, 0, 0));
    let epoch = runs(&mut s, 3, 0);
    let after = |condition| vec![Dependency { on: id(1), condition }];
    for (number, condition) in [(2, DependencyCondition::Any), (3, DependencyCondition::Success)] {
        s.done(submission(number, AllocationSpec { depends_on: after(condition), ..spec(1, RequeuePolicy::Never, 0) }));
    }
    s.done(Action::Cancel { id: id(1), by: user(7) });
    assert_eq!((reason(&s, id(1)), live(&s).len()), ("Cancelled: cancelled by u7".to_owned(), 12));
    settle(&mut s);
    assert_eq!((live(&s), counts(&s)), (vec![], (20, 0, 0, 1)));
    assert_eq!(reason(&s, replica(3)), "Cancelled: cancelled by u7");
    assert_eq!(s.state(3), AllocationState::Cancelled);
    assert!(!record(&s, id(2)).waits(), "a replica has not left its node");
    releases(&mut s, 3, 0, epoch);
    assert!(record(&s, id(2)).waits() && counts(&s) == (20, 0, 0, 0));
    let ended = Refusal::Update { id: id(1), why: UpdateRefusal::HasEnded { state: AllocationState::Cancelled } };
    assert_eq!((s.act(scale(21, 7)), step(&mut s, found(0.9))), (Err(ended.clone()), Err(ended)));
    check(&s);
}

#[test]
fn a_service_waits_for_others_and_while_it_is_held() {
    let mut s = Story::new(2);
    s.submit(2, 1, RequeuePolicy::Never, 0);
    let depends_on = vec![Dependency { on: id(2), condition: DependencyCondition::Any }];
    s.done(submission(1, AllocationSpec { depends_on, hold: true, ..service(2, 3) }));
    assert_eq!((live(&s), counts(&s)), (vec![], (2, 0, 0, 0)));
    s.done(Action::Cancel { id: id(2), by: user(7) });
    assert!(live(&s).is_empty());
    s.done(Action::Resume { allocation: id(1), by: user(7) });
    assert_eq!(live(&s), [0, 1]);
    let first = record(&s, replica(0));
    assert!(first.spec.depends_on.is_empty() && !first.held);
    runs(&mut s, 0, 0);
    let parents: Vec<_> = s.ledger.desired(&node(0)).shares[0].parents.iter().map(|parent| parent.id).collect();
    assert_eq!(parents, [id(2)], "it finds the outputs of what its service depends on");
    s.done(Action::HoldAllocation { allocation: id(1), by: user(7) });
    assert_eq!((live(&s), counts(&s)), (vec![0], (2, 0, 1, 0)), "what runs goes on, and nothing begins");
    check(&s);
    s.done(Action::Resume { allocation: id(1), by: user(7) });
    assert_eq!((live(&s), counts(&s)), (vec![0, 2], (2, 1, 1, 0)));
    check(&s);
}

#[test]
fn singletons_wait_for_earlier_services_and_never_for_replicas() {
    let singleton = |spec: AllocationSpec| AllocationSpec { singleton: true, ..spec };
    let plain = || spec(1, RequeuePolicy::Never, 0);
    let mut s = Story::new(1);
    for number in [2, 3] {
        s.done(submission(number, singleton(plain())));
    }
    s.done(submission(1, singleton(service(1, 2))));
    s.done(submission(4, singleton(plain())));
    assert!(live(&s).is_empty(), "others of this name are before the service");
    s.done(Action::Cancel { id: id(3), by: user(7) });
    s.done(Action::Cancel { id: id(2), by: user(7) });
    assert!(record(&s, replica(0)).waits() && !record(&s, id(4)).waits());
    // Another service of this name comes later than the singleton.
    s.done(submission(5, service(1, 2)));
    s.done(Action::Cancel { id: id(1), by: user(7) });
    assert!(record(&s, id(4)).waits(), "replicas of later services are not before it");
    check(&s);
}

#[test]
fn mutex_is_not_for_services() {
    let mut s = story(1, service(1, 2));
    let on = |number| vec![Dependency { on: id(number), condition: DependencyCondition::Mutex }];
    let refused = |number: u128| Err(Refusal::Dependency { on: id(number).to_string(), why: DependencyRefusal::Group });
    assert_eq!(s.act(submission(2, AllocationSpec { depends_on: on(1), ..spec(1, RequeuePolicy::Never, 0) })), refused(1));
    s.submit(2, 1, RequeuePolicy::Never, 0);
    assert_eq!(s.act(submission(3, AllocationSpec { depends_on: on(2), ..service(1, 2) })), refused(2));
}

#[test]
fn what_is_done_to_a_service_is_not_done_to_one_of_its_replicas() {
    let mut s = story(1, AllocationSpec { requeue: RequeuePolicy::Always, requeues_max: 3, ..service(1, 2) });
    let epoch = runs(&mut s, 0, 0);
    let refused = Err(Refusal::ReplicaOfService { id: replica(0), number: 0, service: id(1) });
    assert_eq!(s.act(Action::HoldAllocation { allocation: replica(0), by: user(7) }), refused);
    let change = AllocationChange { name: Some("other".into()), ..AllocationChange::default() };
    assert_eq!(s.act(Action::UpdateAllocation { allocation: replica(0), by: user(7), change, as_operator: false }), refused);
    let preempt = |hold| {
        let order_id = CheckpointId(Uuid::from_u128(5));
        let (by, reason, cause) = ("u7".to_owned(), "x".to_owned(), PreemptCause::Request);
        let order = Preemption { id: order_id, by, reason, cause, deadline_ms: 1000, hold, failed: None };
        Action::Preempt { allocation: replica(0), epoch, by: user(7), order, kill: true }
    };
    assert_eq!(s.act(preempt(true)), refused);
    s.done(preempt(false));
    let saved = Err(NotSaved("x".into()));
    s.report(
        0,
        ReportItem::Ended { allocation: replica(0), epoch, reason: EndReason::Preempted { by: "x".into(), why: "x".into(), saved } },
    );
    assert_eq!((live(&s), counts(&s)), (vec![0], (1, 1, 0, 0)), "it waits again");
    check(&s);
}

#[test]
fn a_changed_service_has_other_replicas_wait_and_those_with_nodes_keep_what_they_have() {
    let mut s = story(1, service(2, 3));
    runs(&mut s, 0, 0);
    let update = |change| Action::UpdateAllocation { allocation: id(1), by: user(7), change, as_operator: false };
    let change = AllocationChange { name: Some("other".into()), preemption_class: Some(3), ..AllocationChange::default() };
    s.done(update(change));
    assert_eq!((live(&s), counts(&s)), (vec![0, 2], (2, 1, 1, 0)));
    let of = |number| (record(&s, replica(number)).spec.name.clone(), record(&s, replica(number)).spec.preemption_class);
    assert_eq!([of(0), of(2)], [("a".to_owned(), service(1, 1).preemption_class), ("other".to_owned(), 3)]);
    let longer = AllocationChange { walltime: Some(Duration::from_secs(600)), ..AllocationChange::default() };
    assert!(matches!(s.act(update(longer)), Err(Refusal::Malformed { .. })), "it has no end");
    check(&s);
}

fn rescale(scaling: ScalingChange, by: u32) -> Action {
    let change = AllocationChange { scaling: Some(scaling), ..AllocationChange::default() };
    Action::UpdateAllocation { allocation: id(1), by: user(by), change, as_operator: false }
}

fn bounds(replicas_min: Option<u32>, replicas_max: Option<u32>) -> ScalingChange {
    ScalingChange { replicas_min, replicas_max, ..ScalingChange::default() }
}

fn target(text: &str) -> ScalingChange {
    ScalingChange { target: Some(text.parse().unwrap()), ..ScalingChange::default() }
}

/// The audit records of service 1 that an action creates.
fn records(s: &mut Story, action: Action) -> Vec<(AuditAction, String, String)> {
    let records = s.acted(action).into_iter().filter(|record| record.allocation == Some(id(1)));
    records.map(|record| (record.action, record.actor, record.detail)).collect()
}

#[test]
fn other_bounds_hold_at_once_and_the_number_of_replicas_is_brought_into_them() {
    let mut s = story(3, service(1, 3));
    s.done(scale(3, 7));
    for number in 0..3_u8 {
        serves(&mut s, number.into(), number);
    }
    let record = |action, detail: &str| (action, "u7".to_owned(), detail.to_owned());
    let wanted = [
        record(AuditAction::AllocationChanged, "bounds 1 to 2 instead of 1 to 3 while Running"),
        record(AuditAction::AllocationScaled, "2 replicas instead of 3"),
    ];
    assert_eq!(records(&mut s, rescale(bounds(None, Some(2)), 7)), wanted);
    assert_eq!((counts(&s), endpoints(&s)), ((2, 0, 2, 1), vec![replica(0), replica(1)]));
    check(&s);
    let wanted = [
        record(AuditAction::AllocationChanged, "bounds 3 to 5 instead of 1 to 2 while Running"),
        record(AuditAction::AllocationScaled, "3 replicas instead of 2"),
    ];
    assert_eq!(records(&mut s, rescale(bounds(Some(3), Some(5)), 7)), wanted);
    assert_eq!((live(&s), counts(&s)), (vec![0, 1, 2, 3], (3, 1, 2, 1)));
    let change = state(&s).change.clone().unwrap();
    assert_eq!((change.at, change.from, change.to, change.by.as_deref(), change.value), (s.now(), 2, 3, Some("u7"), None));
    assert!(s.acted(rescale(bounds(Some(3), Some(5)), 7)).is_empty(), "the answer was lost");

    // What waits keeps its place: the bounds are none of its business.
    let wider = [record(AuditAction::AllocationChanged, "bounds 3 to 6 instead of 3 to 5 while Running")];
    assert_eq!((records(&mut s, rescale(bounds(None, Some(6)), 7)), live(&s)), (wider.into(), vec![0, 1, 2, 3]));
    let outside = s.act(scale(2, 7)).unwrap_err();
    assert_eq!(outside, Refusal::ReplicasOutOfBounds { id: id(1), asked: 2, least: 3, most: 6 });
    let remedy = "ask for 3 to 6, or change that first: `lattice update 00000001 --min-nodes N --max-nodes M`";
    assert_eq!(outside.remedy().as_deref(), Some(remedy));
    s.done(scale(6, 7));
    assert_eq!(counts(&s), (6, 4, 2, 1));
    // A repeated submission with the original values is still recognised.
    assert_eq!(s.act(submission(1, service(1, 3))), Ok(Outcome::Submitted { number: 1 }));
    assert_eq!(s.act(submission(1, service(3, 6))), Err(Refusal::AllocationExists { id: id(1) }));
    check(&s);
}

#[test]
fn a_held_service_has_its_new_bounds_when_it_is_resumed() {
    let mut s = story(1, AllocationSpec { hold: true, ..service(1, 3) });
    s.done(rescale(bounds(Some(2), Some(4)), 7));
    assert_eq!((live(&s), state(&s).wanted), (vec![], 2));
    s.done(Action::Resume { allocation: id(1), by: user(7) });
    assert_eq!((live(&s), counts(&s)), (vec![0, 1], (2, 2, 0, 0)));
    check(&s);
}

#[test]
fn bounds_and_targets_that_no_submission_has_are_refused_and_change_nothing() {
    let mut s = story(1, service(2, 3));
    s.submit(2, 1, RequeuePolicy::Never, 0);
    let by_hand = service(1, 2);
    let scaling = Scaling { policy: None, ..*by_hand.scaling.clone().unwrap() };
    s.done(submission(3, AllocationSpec { scaling: Some(Box::new(scaling)), ..by_hand }));
    let before = s.ledger.allocation(id(1)).cloned();
    for bad in [bounds(Some(4), None), bounds(None, Some(1)), bounds(Some(0), None), bounds(None, Some(1001)), target("0")] {
        assert!(matches!(s.act(rescale(bad.clone(), 7)), Err(Refusal::Malformed { .. })), "{bad:?}");
    }
    assert!(matches!(s.act(rescale(bounds(Some(1), None), 8)), Err(Refusal::NotYours { .. })));
    assert_eq!(s.ledger.allocation(id(1)).cloned(), before);
    let of = |allocation, scaling| {
        let change = AllocationChange { scaling: Some(scaling), ..AllocationChange::default() };
        Action::UpdateAllocation { allocation, by: user(7), change, as_operator: false }
    };
    assert_eq!(s.act(of(id(2), bounds(Some(1), Some(2)))), Err(Refusal::NotScaled { id: id(2) }));
    let part = Refusal::ReplicaOfService { id: replica(0), number: 0, service: id(1) };
    assert_eq!(s.act(of(replica(0), bounds(Some(1), Some(2)))), Err(part));
    assert_eq!(s.act(of(id(3), target("0.5"))), Err(Refusal::Update { id: id(3), why: UpdateRefusal::NoMetric }));
    s.done(of(id(3), bounds(Some(2), Some(2))));
    s.done(Action::Cancel { id: id(1), by: user(7) });
    let why = UpdateRefusal::HasEnded { state: AllocationState::Cancelled };
    assert_eq!(s.act(rescale(bounds(Some(1), None), 7)), Err(Refusal::Update { id: id(1), why }));
    check(&s);
}

#[test]
fn more_replicas_at_least_than_the_tenant_has_nodes_are_refused() {
    let mut s = Story::new(1);
    let tenant = |create, most| {
        let (max_nodes, max_concurrent_allocations) = (QuotaChange::AtMost(most), QuotaChange::Keep);
        let change = TenantChange {
            name: "physics".into(),
            create,
            max_nodes,
            max_concurrent_allocations,
            soft: SoftLimitsChange::default(),
            expected_version: None,
        };
        Action::SetTenant { change, by: "root".into() }
    };
    s.done(tenant(true, 3));
    s.done(submission(1, AllocationSpec { tenant: "physics".into(), ..service(3, 4) }));
    let Err(Refusal::Quota(excess)) = s.act(rescale(bounds(Some(4), Some(9)), 7)) else { panic!("the tenant has 3 nodes at most") };
    assert_eq!((excess.requested, excess.limit), (4, 3));
    s.done(rescale(bounds(None, Some(9)), 7));
    // What it has, it keeps.
    s.done(tenant(false, 1));
    s.done(rescale(bounds(Some(2), None), 7));
    assert!(matches!(s.act(rescale(bounds(Some(3), None), 7)), Err(Refusal::Quota(_))));
    check(&s);
}

#[test]
fn another_target_counts_from_the_next_look_on() {
    let mut s = story(2, service(1, 3));
    runs(&mut s, 0, 0);
    step(&mut s, found(0.95)).unwrap();
    s.pass(300_000);
    let wanted = (AuditAction::AllocationChanged, "u7".to_owned(), "scale target 0.9 instead of 0.8 while Running".to_owned());
    assert_eq!(records(&mut s, rescale(target("0.9"), 7)), [wanted]);
    assert_eq!((state(&s).reading.clone(), live(&s)), (None, vec![0]));
    assert!(matches!(step(&mut s, want(2)), Err(Refusal::ScalingStep { .. })), "nobody has looked since");
    step(&mut s, found(0.95)).unwrap();
    assert!(matches!(step(&mut s, want(2)), Err(Refusal::ScalingStep { .. })), "its window has just begun");
    s.pass(120_000);
    step(&mut s, want(2)).unwrap();
    assert_eq!(counts(&s), (2, 1, 1, 0));
    check(&s);
}

#[test]
fn another_metric_counts_from_its_first_look_on_and_a_look_at_the_one_before_is_refused() {
    let mut s = story(2, service(1, 3));
    runs(&mut s, 0, 0);
    step(&mut s, found(0.95)).unwrap();
    s.pass(300_000);
    let depth = ScalingChange { metric: Some(ScaleMetric::QueueDepth), up_window_ms: Some(60_000), ..target("0.9") };
    let detail = "scale metric queue_depth instead of cpu_utilization, scale target 0.9 instead of 0.8, scale-up window 60000 ms instead of \
                  120000 ms while Running";
    let wanted = (AuditAction::AllocationChanged, "u7".to_owned(), detail.to_owned());
    assert_eq!(records(&mut s, rescale(depth.clone(), 7)), [wanted]);
    assert!(s.acted(rescale(depth, 7)).is_empty(), "the answer was lost");
    assert_eq!(state(&s).reading, None);
    let Err(refused) = step(&mut s, found(0.95)) else { panic!("that was the processors' use") };
    assert!(refused.to_string().contains("it scales by queue_depth now, and not by cpu_utilization"), "{refused}");
    assert_eq!(state(&s).reading, None);
    let lease_token = s.token;
    let of_depth = |step| Action::StepScaling(ScalingStep { service: id(1), lease_token, metric: ScaleMetric::QueueDepth, step });
    s.done(of_depth(found(0.95)));
    assert!(matches!(s.act(of_depth(want(2))), Err(Refusal::ScalingStep { .. })), "its window has just begun");
    s.pass(60_000);
    s.done(of_depth(want(2)));
    assert_eq!(counts(&s), (2, 1, 1, 0));
    let alone = ScalingChange { metric: Some(ScaleMetric::GpuUtilization), ..ScalingChange::default() };
    assert_eq!(s.act(rescale(alone, 7)), Err(Refusal::Update { id: id(1), why: UpdateRefusal::NoTarget }));
    check(&s);
}

#[test]
fn changes_by_another_target_do_not_alternate_with_earlier_ones() {
    let mut s = story(3, service(1, 3));
    runs(&mut s, 0, 0);
    step(&mut s, found(0.95)).unwrap();
    s.pass(120_000);
    step(&mut s, want(2)).unwrap();
    s.pass(600_000);
    runs(&mut s, 1, 1);
    step(&mut s, found(0.1)).unwrap();
    s.pass(300_000);
    step(&mut s, want(1)).unwrap();
    assert_eq!(state(&s).alternations, 1);
    s.done(rescale(bounds(None, Some(4)), 7));
    assert_eq!(state(&s).alternations, 1, "the target is the same");
    s.done(rescale(target("0.9"), 7));
    assert_eq!((state(&s).alternations, state(&s).reading.clone()), (0, None));
    check(&s);
}

#[test]
fn a_suspended_replica_keeps_what_it_has_saved() {
    let mut s = Story::new(2);
    for number in 0..2 {
        let features = vec![CHECKPOINTS.to_owned()];
        s.done(Action::Register(Registration { features, ..registration(number, 1, 1, false) }));
    }
    let policy = Some(CheckpointPolicy::by_signal(CheckpointSignal::USR1));
    s.done(submission(1, AllocationSpec { checkpoint: policy, ..service(1, 2) }));
    s.done(scale(2, 7));
    let epoch = runs(&mut s, 1, 1);
    let made = CheckpointId(Uuid::from_u128(5));
    let (by, reason_there, cause) = ("u7".to_owned(), "x".to_owned(), PreemptCause::Request);
    let order = Preemption { id: made, by, reason: reason_there, cause, deadline_ms: 1000, hold: false, failed: None };
    s.done(Action::Preempt { allocation: replica(1), epoch, by: user(7), order, kill: false });
    s.report(
        1,
        ReportItem::Checkpointed { allocation: replica(1), epoch, checkpoint: CheckpointRef { id: made, epoch, step: None, bytes: 1 } },
    );
    let saved = EndReason::Preempted { by: "x".into(), why: "x".into(), saved: Ok(made) };
    s.report(1, ReportItem::Ended { allocation: replica(1), epoch, reason: saved });
    releases(&mut s, 1, 1, epoch);
    assert_eq!((record(&s, replica(1)).state, counts(&s)), (AllocationState::Suspended, (2, 2, 0, 0)));
    let change = AllocationChange { name: Some("other".into()), ..AllocationChange::default() };
    s.done(Action::UpdateAllocation { allocation: id(1), by: user(7), change, as_operator: false });
    assert_eq!(live(&s), [1, 2], "only what has never begun is replaced");
    check(&s);
    s.done(scale(1, 7));
    assert_eq!((live(&s), counts(&s)), (vec![1], (1, 1, 0, 0)), "the one without a checkpoint is too many");
    check(&s);
}

#[test]
fn a_replica_that_leaves_is_no_victim_of_others() {
    let spec_of = AllocationSpec { preemption_class: 3, requeue: RequeuePolicy::Always, requeues_max: 3, ..service(1, 2) };
    let mut s = story(2, spec_of);
    s.done(scale(2, 7));
    let stays = serves(&mut s, 0, 0);
    let leaves = serves(&mut s, 1, 1);
    s.submit(2, 1, RequeuePolicy::Never, 0);
    s.done(scale(1, 7));
    let needs = |victim, epoch, lease_token| {
        Action::PreemptFor(PreemptFor { beneficiary: id(2), victims: vec![(victim, epoch)], lease_token, deadline_ms: 1000 })
    };
    let token = s.token;
    assert!(matches!(s.act(needs(replica(1), leaves, token)), Err(Refusal::NotPreemptible { .. })));
    s.done(Action::DrainUrgently { node: node(1), by: "root".into(), reason: "x".into(), deadline: None, seed: Uuid::from_u128(1) });
    assert_eq!(record(&s, replica(1)).preemption.as_ref().unwrap().cause, PreemptCause::ScaleDown);
    s.done(needs(replica(0), stays, token));
    assert_eq!(record(&s, replica(0)).preemption.as_ref().unwrap().cause, PreemptCause::Priority);
    assert_eq!((counts(&s), endpoints(&s)), ((1, 0, 1, 1), vec![replica(0)]), "that is no reason to leave for good");
    check(&s);
}

fn user_limits(users: UserLimitsChange) -> Action {
    LimitsChange { users, ..LimitsChange::default() }.by("root")
}

#[test]
fn a_service_counts_once_against_the_limit_of_waiting_work() {
    let mut s = Story::new(1);
    s.done(user_limits(UserLimitsChange { user_pending: QuotaChange::AtMost(2), ..UserLimitsChange::default() }));
    s.done(submission(1, service(5, 9)));
    s.submit(2, 1, RequeuePolicy::Never, 0);
    assert!(matches!(s.act(submission(3, service(1, 2))), Err(Refusal::OverUserLimit { current: 2, .. })));
    check(&s);
}

#[test]
fn an_ended_service_is_forgotten_when_its_replicas_are_gone() {
    let mut s = Story::new(1);
    s.done(user_limits(UserLimitsChange { user_history: QuotaChange::AtMost(0), ..UserLimitsChange::default() }));
    s.done(submission(1, service(1, 2)));
    let epoch = runs(&mut s, 0, 0);
    s.done(Action::Cancel { id: id(1), by: user(7) });
    assert!(s.ledger.allocation(id(1)).is_some() && s.ledger.allocation(replica(0)).is_some(), "a node holds a part of itself for it");
    releases(&mut s, 0, 0, epoch);
    // The next end of that user's work forgets both.
    s.submit(2, 1, RequeuePolicy::Never, 0);
    s.done(Action::Cancel { id: id(2), by: user(7) });
    assert_eq!((s.ledger.allocations().count(), s.ledger.scaled_services.len()), (0, 0));
    check(&s);
}

#[test]
fn work_that_has_the_id_of_a_replica_is_not_touched() {
    let mut s = Story::new(1);
    s.done(Action::Submit { id: replica(1), spec: Box::new(spec(1, RequeuePolicy::Never, 0)), owner: user(8), claim: None });
    s.done(submission(1, service(2, 3)));
    assert_eq!((live(&s), record(&s, replica(1)).owner.uid), (vec![0, 2], 8));
    check(&s);
}

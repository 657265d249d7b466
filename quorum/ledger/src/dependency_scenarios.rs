//! Scenarios of work that depends on other work.

use super::properties::scans::invariant_indexes_equal_scans;
use super::scenarios::{LimitsChange, Story, id, node, prepared, released, spec, user};
use super::{Action, DependencyRefusal, Ledger, NodeStateChange, Outcome, QuotaChange, Refusal, UserLimitsChange};
use lattice_model::dependency::{
    DEPENDENCIES_MAX,
    DependencyCondition::{self, After, AfterDelay, Any, Corresponding, Failure, Mutex, Success},
};
use lattice_model::{
    AllocationSpec, AllocationState, AuditAction, Dependency, EndReason, Entrypoint, Epoch, NodeState, Parent, ParentState, ReportItem,
    RequeuePolicy, Timestamp,
};
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};

fn depending(on: &[(u128, DependencyCondition)]) -> AllocationSpec {
    let depends_on = on.iter().map(|(number, condition)| Dependency { on: id(*number), condition: *condition }).collect();
    AllocationSpec { depends_on, ..spec(1, RequeuePolicy::OnNodeFailure, 3) }
}

fn submission(number: u128, spec: AllocationSpec, uid: u32) -> Action {
    Action::Submit { id: id(number), spec: Box::new(spec), owner: user(uid), claim: None }
}

fn depends(s: &mut Story, number: u128, on: &[(u128, DependencyCondition)]) {
    s.done(submission(number, depending(on), 7));
}

fn runs(s: &mut Story, number: u128, on: u8) -> Epoch {
    let epoch = s.claimed(number, &[on]);
    s.report(on, prepared(number, epoch));
    epoch
}

fn exits(s: &mut Story, number: u128, on: u8, epoch: Epoch, code: i32) {
    s.report(on, ReportItem::Ended { allocation: id(number), epoch, reason: EndReason::Exited { code } });
}

fn waits(s: &Story, number: u128) -> bool {
    s.ledger.allocation(id(number)).unwrap().waits()
}

fn awaited(s: &Story, number: u128) -> Option<String> {
    s.ledger.allocation(id(number)).unwrap().awaits()
}

fn parents(s: &Story, number: u128) -> Vec<Parent> {
    s.ledger.allocation(id(number)).unwrap().dependencies.iter().flat_map(|all| all.parents.clone()).collect()
}

fn reason(s: &Story, number: u128) -> String {
    s.ledger.allocation(id(number)).unwrap().reason.as_ref().unwrap().to_string()
}

#[test]
fn each_part_of_a_chain_waits_for_the_one_before() {
    let mut s = Story::new(2);
    s.submit(1, 1, RequeuePolicy::OnNodeFailure, 3);
    depends(&mut s, 2, &[(1, Success)]);
    depends(&mut s, 3, &[(2, Success)]);
    assert_eq!(awaited(&s, 2).as_deref(), Some("waits for 00000001 (a) to succeed"));
    assert_eq!(s.claim(2, &[1]).unwrap_err().to_string(), format!("allocation {} waits for 00000001 (a) to succeed", id(2)));
    let first = runs(&mut s, 1, 0);
    assert!(!waits(&s, 2), "it has only begun");
    // A parent that is requeued has not ended.
    s.done(Action::RequeueAllocation { allocation: id(1), epoch: first, by: user(7), reason: "x".into() });
    s.report(0, released(1, first));
    assert_eq!((s.state(1), waits(&s, 2)), (AllocationState::Pending, false));
    let again = runs(&mut s, 1, 0);
    exits(&mut s, 1, 0, again, 0);
    assert!(waits(&s, 2) && !waits(&s, 3), "its program has ended, whatever its node still cleans up");
    assert_eq!(s.ledger.allocation(id(2)).unwrap().queued_at(), s.now(), "the time before does not count as waiting");
    let second = runs(&mut s, 2, 1);
    exits(&mut s, 2, 1, second, 0);
    assert!(waits(&s, 3));
    s.report(1, released(2, second));
    runs(&mut s, 3, 1);
    invariant_indexes_equal_scans(&s.ledger);
}

#[test]
fn an_end_runs_the_branch_that_asked_for_it_and_cancels_the_other_one() {
    let mut s = Story::new(2);
    s.submit(1, 1, RequeuePolicy::Never, 0);
    for (number, on) in [(2, (1, Success)), (3, (2, Success)), (4, (1, Failure)), (5, (1, Any)), (6, (2, Any)), (7, (2, Failure))] {
        depends(&mut s, number, &[on]);
    }
    let epoch = runs(&mut s, 1, 0);
    exits(&mut s, 1, 0, epoch, 9);
    assert_eq!([2, 3, 7].map(|number| s.state(number)), [AllocationState::Cancelled; 3]);
    assert_eq!(reason(&s, 2), "dependency_unmet: success of 00000001 (a), which is Failed");
    assert_eq!(reason(&s, 3), "dependency_unmet: success of 00000002 (a), which is Cancelled");
    assert_eq!(reason(&s, 7), "dependency_unmet: failure of 00000002 (a), which is Cancelled");
    // Nothing of the one that was cancelled ever ran; of the one that failed, something still may.
    assert_eq!([4, 5, 6].map(|number| waits(&s, number)), [false, false, true]);
    assert_eq!(awaited(&s, 4).as_deref(), Some("waits for 00000001 (a) to leave its nodes"));
    s.report(0, released(1, epoch));
    assert_eq!([4, 5, 6].map(|number| waits(&s, number)), [true; 3]);
    invariant_indexes_equal_scans(&s.ledger);
}

#[test]
fn ends_by_a_dependency_are_on_record_with_their_reason() {
    let mut s = Story::new(0);
    s.submit(1, 1, RequeuePolicy::Never, 0);
    depends(&mut s, 2, &[(1, Success)]);
    depends(&mut s, 3, &[(2, Success)]);
    let records = s.acted(Action::Cancel { id: id(1), by: user(7) });
    let ends = records.iter().filter(|record| record.action == AuditAction::AllocationEnded);
    let shown: Vec<_> = ends.map(|record| (record.allocation, record.actor.as_str(), record.detail.as_str())).collect();
    let wanted = [
        (Some(id(1)), "u7", "Cancelled: cancelled by u7"),
        (Some(id(2)), "quorum", "Cancelled: dependency_unmet: success of 00000001 (a), which is Cancelled"),
        (Some(id(3)), "quorum", "Cancelled: dependency_unmet: success of 00000002 (a), which is Cancelled"),
    ];
    assert_eq!(shown, wanted);
}

#[test]
fn what_is_submitted_after_the_end_of_its_parent_is_as_if_it_had_been_submitted_before() {
    let mut s = Story::new(1);
    for (number, code) in [(1, 0), (2, 1)] {
        s.submit(number, 1, RequeuePolicy::Never, 0);
        let epoch = runs(&mut s, number, 0);
        exits(&mut s, number, 0, epoch, code);
        s.report(0, released(number, epoch));
    }
    depends(&mut s, 3, &[(1, Success), (2, Failure)]);
    assert!(waits(&s, 3));
    assert_eq!(s.ledger.allocation(id(3)).unwrap().queued_at(), s.now());
    depends(&mut s, 4, &[(1, Success), (2, Success)]);
    assert_eq!(s.state(4), AllocationState::Cancelled);
    assert_eq!(reason(&s, 4), "dependency_unmet: success of 00000002 (a), which is Failed");
    // The first answer was lost.
    assert_eq!(s.act(submission(4, depending(&[(1, Success), (2, Success)]), 7)), Ok(Outcome::Submitted { number: 4 }));
    invariant_indexes_equal_scans(&s.ledger);
}

#[test]
fn two_that_exclude_each_other_never_have_nodes_at_the_same_time() {
    let mut s = Story::new(2);
    s.submit(1, 1, RequeuePolicy::Always, 3);
    depends(&mut s, 2, &[(1, Mutex)]);
    assert!(waits(&s, 1) && waits(&s, 2), "either may be first");
    let first = runs(&mut s, 1, 0);
    let refused = s.claim(2, &[1]).unwrap_err().to_string();
    assert_eq!(refused, format!("allocation {} waits for 00000001 (a) to leave its nodes", id(2)));
    exits(&mut s, 1, 0, first, 1);
    assert_eq!((s.state(1), waits(&s, 2)), (AllocationState::Pending, false), "something of it may still run");
    s.report(0, released(1, first));
    let second = runs(&mut s, 2, 1);
    s.waits_over(1);
    assert_eq!(awaited(&s, 1).as_deref(), Some("waits for 00000002 (a) to leave its nodes"));
    assert!(matches!(s.claim(1, &[0]), Err(Refusal::AwaitsOthers { .. })), "the one that did not ask for it is bound, too");
    let queued_at = s.ledger.allocation(id(1)).unwrap().queued_at();
    assert_eq!(queued_at, s.ledger.allocation(id(1)).unwrap().submitted_at, "it keeps its place in the queue");
    exits(&mut s, 2, 1, second, 0);
    assert!(!waits(&s, 1));
    s.report(1, released(2, second));
    assert!(waits(&s, 1) && parents(&s, 1).is_empty(), "the other one does not come back");
    runs(&mut s, 1, 0);
    invariant_indexes_equal_scans(&s.ledger);
}

#[test]
fn a_claim_asks_what_others_hold_and_not_what_is_recorded_of_them() {
    let mut s = Story::new(2);
    s.submit(1, 1, RequeuePolicy::Never, 0);
    // More than one command settles; the last one excludes the first.
    (10..30).for_each(|number| depends(&mut s, number, &[(1, Any)]));
    depends(&mut s, 40, &[(1, Mutex)]);
    s.claimed(1, &[0]);
    assert!(s.ledger.dependents_are_due() && waits(&s, 40), "its record is not settled yet");
    assert!(matches!(s.claim(40, &[1]), Err(Refusal::AwaitsOthers { .. })));
    while s.ledger.dependents_are_due() {
        s.done(Action::SettleDependents);
    }
    assert!(!waits(&s, 40));
}

#[test]
fn a_beginning_is_waited_for_once_and_a_requeue_does_not_take_it_back() {
    let mut s = Story::new(2);
    s.submit(1, 1, RequeuePolicy::Always, 3);
    depends(&mut s, 2, &[(1, After)]);
    depends(&mut s, 3, &[(1, Success)]);
    assert_eq!(awaited(&s, 2).as_deref(), Some("waits for 00000001 (a) to begin"));
    let epoch = s.claimed(1, &[0]);
    assert!(!waits(&s, 2), "its node prepares it");
    s.report(0, prepared(1, epoch));
    assert_eq!([2, 3].map(|number| waits(&s, number)), [true, false]);
    assert_eq!(parents(&s, 2)[0].state, ParentState::Begun);
    exits(&mut s, 1, 0, epoch, 1);
    assert_eq!((s.state(1), waits(&s, 2)), (AllocationState::Pending, true));
    depends(&mut s, 4, &[(1, After)]);
    assert!(waits(&s, 4), "it has begun before");
    // An end without a beginning counts, too.
    s.submit(5, 1, RequeuePolicy::Never, 0);
    depends(&mut s, 6, &[(5, After)]);
    s.done(Action::Cancel { id: id(5), by: user(7) });
    assert!(waits(&s, 6));
    invariant_indexes_equal_scans(&s.ledger);
}

const TEN_MINUTES: DependencyCondition = AfterDelay { seconds: 600 };

/// Lets time pass until then, and ends by the leader's clock what is over.
fn passes(s: &mut Story, until: Timestamp) {
    s.pass(until.since_ms(s.now()));
    assert!(s.ledger.waits_are_due(s.now()));
    s.done(Action::EndWaits { now: s.now() });
}

#[test]
fn a_delay_counts_from_the_first_beginning_and_the_leaders_clock_ends_it() {
    let mut s = Story::new(2);
    s.submit(1, 1, RequeuePolicy::OnNodeFailure, 3);
    depends(&mut s, 2, &[(1, TEN_MINUTES)]);
    assert_eq!(awaited(&s, 2).as_deref(), Some("waits for 00000001 (a) to begin (and 10 minutes more)"));
    let epoch = s.claimed(1, &[0]);
    assert_eq!(parents(&s, 2)[0].state, ParentState::Unended, "its node prepares it");
    s.report(0, prepared(1, epoch));
    let until = Timestamp(s.now().0 + 600_000);
    assert_eq!(parents(&s, 2)[0].state, ParentState::Delayed { until, begun: true });
    let sentence = format!("waits until {until}: 10 minutes after 00000001 (a) began");
    assert_eq!(awaited(&s, 2), Some(sentence.clone()));
    assert_eq!(s.claim(2, &[1]).unwrap_err().to_string(), format!("allocation {} {sentence}", id(2)));
    // A requeue does not begin it anew, and an end does not shorten it.
    s.done(Action::RequeueAllocation { allocation: id(1), epoch, by: user(7), reason: "x".into() });
    s.report(0, released(1, epoch));
    depends(&mut s, 3, &[(1, TEN_MINUTES)]);
    let again = runs(&mut s, 1, 0);
    exits(&mut s, 1, 0, again, 0);
    assert_eq!([2, 3].map(|number| awaited(&s, number)), [Some(sentence.clone()), Some(sentence)]);
    assert!(!s.ledger.waits_are_due(Timestamp(until.0 - 1)) && s.ledger.waits_are_due(until));
    invariant_indexes_equal_scans(&s.ledger);
    passes(&mut s, until);
    assert_eq!([2, 3].map(|number| (waits(&s, number), parents(&s, number)[0].state)), [(true, ParentState::Begun); 2]);
    assert!(s.ledger.allocation(id(2)).unwrap().queued_at() >= until, "the time before does not count as waiting");
    assert!(!s.ledger.waits_are_due(Timestamp(u64::MAX)));
    runs(&mut s, 2, 1);
    invariant_indexes_equal_scans(&s.ledger);
}

#[test]
fn a_delay_outlives_a_snapshot_and_the_record_of_what_began() {
    let mut s = Story::new(1);
    let users = UserLimitsChange { user_history: QuotaChange::AtMost(0), ..UserLimitsChange::default() };
    s.done(LimitsChange { users, ..LimitsChange::default() }.by("root"));
    s.submit(1, 1, RequeuePolicy::Never, 0);
    depends(&mut s, 2, &[(1, TEN_MINUTES)]);
    let epoch = runs(&mut s, 1, 0);
    let until = Timestamp(s.now().0 + 600_000);
    exits(&mut s, 1, 0, epoch, 0);
    s.report(0, released(1, epoch));
    // The next end forgets it.
    s.submit(4, 1, RequeuePolicy::Never, 0);
    s.done(Action::Cancel { id: id(4), by: user(7) });
    assert!(s.ledger.allocation(id(1)).is_none());
    let restored: Ledger = rmp_serde::from_slice(&rmp_serde::to_vec_named(&s.ledger).unwrap()).unwrap();
    assert_eq!(restored, s.ledger);
    s.ledger = restored;
    assert!(!waits(&s, 2) && !s.ledger.waits_are_due(Timestamp(until.0 - 1)));
    passes(&mut s, until);
    assert!(waits(&s, 2));
    invariant_indexes_equal_scans(&s.ledger);
}

#[test]
fn a_delay_counts_from_an_end_without_a_beginning_and_may_be_over_at_the_submission() {
    let mut s = Story::new(0);
    s.submit(1, 1, RequeuePolicy::Never, 0);
    depends(&mut s, 2, &[(1, TEN_MINUTES)]);
    s.done(Action::Cancel { id: id(1), by: user(7) });
    let until = Timestamp(s.now().0 + 600_000);
    assert_eq!(awaited(&s, 2), Some(format!("waits until {until}: 10 minutes after 00000001 (a) ended")));
    depends(&mut s, 3, &[(1, TEN_MINUTES)]);
    assert_eq!(parents(&s, 3)[0].state, ParentState::Delayed { until, begun: false });
    s.pass(600_000);
    depends(&mut s, 4, &[(1, TEN_MINUTES)]);
    assert_eq!([2, 3, 4].map(|number| waits(&s, number)), [false, false, true], "the clock has not ended the others yet");
    s.done(Action::EndWaits { now: s.now() });
    assert_eq!([2, 3].map(|number| waits(&s, number)), [true; 2]);
    invariant_indexes_equal_scans(&s.ledger);
}

#[test]
fn all_delays_of_work_must_end_and_those_of_cancelled_work_end_with_it() {
    let mut s = Story::new(2);
    for number in [1, 2] {
        s.submit(number, 1, RequeuePolicy::Never, 0);
    }
    for number in [3, 4] {
        depends(&mut s, number, &[(1, AfterDelay { seconds: 60 }), (2, TEN_MINUTES)]);
    }
    runs(&mut s, 1, 0);
    let first = Timestamp(s.now().0 + 60_000);
    runs(&mut s, 2, 1);
    let last = Timestamp(s.now().0 + 600_000);
    passes(&mut s, first);
    let states = |s: &Story| parents(s, 3).iter().map(|parent| parent.state).collect::<Vec<_>>();
    assert_eq!(states(&s), [ParentState::Begun, ParentState::Delayed { until: last, begun: true }]);
    s.done(Action::Cancel { id: id(4), by: user(7) });
    invariant_indexes_equal_scans(&s.ledger);
    passes(&mut s, last);
    assert!(waits(&s, 3) && states(&s) == [ParentState::Begun; 2]);
    // Too long a delay is refused, whatever sent it.
    let long = submission(5, depending(&[(1, AfterDelay { seconds: u32::MAX })]), 7);
    assert!(matches!(s.act(long), Err(Refusal::Malformed { .. })));
    invariant_indexes_equal_scans(&s.ledger);
}

#[test]
fn submissions_that_cannot_depend_on_something_are_refused_and_change_nothing() {
    let mut s = Story::new(0);
    s.submit(1, 1, RequeuePolicy::Never, 0);
    let refused = |s: &mut Story, number, on: &[(u128, DependencyCondition)], uid| {
        let spec = depending(on);
        let would_be = s.ledger.admits_submission(&spec, &user(uid), &[].into(), s.now());
        let before = s.ledger.allocations().count();
        let refusal = s.act(submission(number, spec, uid)).unwrap_err();
        assert_eq!(s.ledger.allocations().count(), before);
        (refusal, would_be.is_err())
    };
    let refusal = |number, why| Refusal::Dependency { on: id(number).to_string(), why };
    assert_eq!(refused(&mut s, 2, &[(1, Success), (9, Any)], 7), (refusal(9, DependencyRefusal::Unknown), true));
    // As long as it does not exist it is unknown.
    assert_eq!(refused(&mut s, 2, &[(2, Any)], 7), (refusal(2, DependencyRefusal::Itself), true));
    assert_eq!(refused(&mut s, 2, &[(1, Mutex)], 8), (refusal(1, DependencyRefusal::NotYours), true));
    let (twice, _) = refused(&mut s, 2, &[(1, Any), (1, Success)], 7);
    assert!(twice.to_string().contains("allocation 00000001 is named twice"), "{twice}");
    assert_eq!(s.act(submission(2, depending(&[(1, Any)]), 8)), Ok(Outcome::Submitted { number: 2 }), "others' work can be waited for");
    for number in 0..DEPENDENCIES_MAX as u128 {
        depends(&mut s, 100 + number, &[(1, Mutex)]);
    }
    assert_eq!(refused(&mut s, 3, &[(1, Mutex)], 7), (refusal(1, DependencyRefusal::TooMany), true));
    let text = refusal(9, DependencyRefusal::Unknown).to_string();
    let wanted =
        format!("it cannot depend on allocation {}: it does not exist, or it ended so long ago that the quorum has forgotten it", id(9));
    assert_eq!(text, wanted);
    assert!(refusal(9, DependencyRefusal::Unknown).remedy().is_some());
}

#[test]
fn an_end_reaches_all_that_depend_on_it_in_as_many_commands_as_it_takes() {
    let mut s = Story::new(0);
    s.submit(1, 1, RequeuePolicy::Never, 0);
    for number in 0..30 {
        depends(&mut s, 100 + number, &[(1, Success)]);
        depends(&mut s, 200 + number, &[(100 + number, Success)]);
    }
    let mut records = s.acted(Action::Cancel { id: id(1), by: user(7) });
    let mut commands = 1;
    while s.ledger.dependents_are_due() {
        let restored: Ledger = rmp_serde::from_slice(&rmp_serde::to_vec_named(&s.ledger).unwrap()).unwrap();
        assert_eq!(restored, s.ledger, "a snapshot has what is left to do");
        s.ledger = restored;
        records.extend(s.acted(Action::SettleDependents));
        invariant_indexes_equal_scans(&s.ledger);
        commands += 1;
    }
    let mut ended = BTreeMap::new();
    for record in records.iter().filter(|record| record.action == AuditAction::AllocationEnded) {
        *ended.entry(record.allocation.unwrap()).or_insert(0) += 1;
    }
    assert!(ended.len() == 61 && ended.values().all(|count| *count == 1), "{ended:?}");
    assert!((8..=12).contains(&commands), "each command ends a bounded number: {commands}");
    assert!(s.ledger.allocations().all(|allocation| allocation.state == AllocationState::Cancelled));
}

#[test]
fn a_parent_is_forgotten_once_its_children_know_how_it_ended() {
    let mut s = Story::new(0);
    let users = UserLimitsChange { user_history: QuotaChange::AtMost(0), ..UserLimitsChange::default() };
    s.done(LimitsChange { users, ..LimitsChange::default() }.by("root"));
    s.submit(1, 1, RequeuePolicy::Never, 0);
    s.submit(2, 1, RequeuePolicy::Never, 0);
    depends(&mut s, 3, &[(1, Any), (2, Success)]);
    s.done(Action::Cancel { id: id(1), by: user(7) });
    // The next end forgets it.
    s.submit(4, 1, RequeuePolicy::Never, 0);
    s.done(Action::Cancel { id: id(4), by: user(7) });
    assert!(s.ledger.allocation(id(1)).is_none());
    assert_eq!(parents(&s, 3)[0].state, ParentState::Ended(AllocationState::Cancelled));
    assert_eq!(awaited(&s, 3).as_deref(), Some("waits for 00000002 (a) to succeed"));
    assert!(s.ledger.has_right_counts());
    invariant_indexes_equal_scans(&s.ledger);
}

#[test]
fn work_that_is_confirmed_dead_is_waited_for_no_longer() {
    let mut s = Story::new(2);
    s.submit(1, 1, RequeuePolicy::Never, 0);
    depends(&mut s, 2, &[(1, Any)]);
    runs(&mut s, 1, 0);
    s.done(Action::Cancel { id: id(1), by: user(7) });
    assert!(!waits(&s, 2), "its node has not reported");
    let incarnation = s.ledger.node(&node(0)).unwrap().incarnation;
    for state in [NodeState::Degraded, NodeState::Down] {
        s.done(Action::NodeStates(vec![NodeStateChange { node: node(0), incarnation, state, reason: "silent".into() }]));
    }
    s.done(Action::ConfirmDead { node: node(0), by: "root".into(), reason: "it burnt".into() });
    assert!(waits(&s, 2));
    invariant_indexes_equal_scans(&s.ledger);
}

#[test]
fn a_submission_whose_script_has_its_parent_forgotten_depends_on_it() {
    let mut s = Story::new(1);
    let users = UserLimitsChange { user_script_bytes: QuotaChange::AtMost(1000), ..UserLimitsChange::default() };
    s.done(LimitsChange { users, ..LimitsChange::default() }.by("root"));
    let script = |letter: &str| Entrypoint::Script { text: format!("#!/bin/sh\n{}", letter.repeat(600)).into(), args: vec![] };
    s.done(submission(1, AllocationSpec { entrypoint: script("a"), ..depending(&[]) }, 7));
    s.done(Action::Cancel { id: id(1), by: user(7) });
    s.done(submission(2, AllocationSpec { entrypoint: script("b"), ..depending(&[(1, Success)]) }, 7));
    assert!(s.ledger.allocation(id(1)).is_none());
    assert_eq!(s.ledger.allocation(id(2)).unwrap().state, AllocationState::Cancelled);
}

/// For each allocation: the earlier ones that it depends on, and whether it fails if it runs.
type Workflow = Vec<(Vec<(usize, DependencyCondition)>, bool)>;

fn a_workflow() -> impl Strategy<Value = Workflow> {
    let edge = (any::<prop::sample::Index>(), prop::sample::select(vec![Success, Failure, Any, After]));
    prop::collection::vec((prop::collection::vec(edge, 0..3), any::<bool>()), 1..8).prop_map(|parts| {
        let part = |(number, (edges, fails)): (usize, (Vec<(prop::sample::Index, DependencyCondition)>, bool))| {
            let mut named = BTreeSet::new();
            let edges = edges.into_iter().filter(|_| number > 0).map(|(on, condition)| (on.index(number.max(1)), condition));
            (edges.filter(|(on, _)| named.insert(*on)).collect::<Vec<_>>(), fails)
        };
        parts.into_iter().enumerate().map(part).collect()
    })
}

/// The final state of each, as the documents have it: it runs if every condition is met by how the
/// others end.
fn expected(workflow: &Workflow) -> Vec<AllocationState> {
    let mut states: Vec<AllocationState> = Vec::new();
    for (edges, fails) in workflow {
        let is_met = |(on, condition): &(usize, DependencyCondition)| match condition {
            Success => states[*on] == AllocationState::Completed,
            Failure => states[*on] == AllocationState::Failed,
            Any | Mutex | After | AfterDelay { .. } | Corresponding => true,
        };
        let runs = edges.iter().all(is_met);
        states.push(match (runs, fails) {
            (true, false) => AllocationState::Completed,
            (true, true) => AllocationState::Failed,
            (false, _) => AllocationState::Cancelled,
        });
    }
    states
}

#[derive(Clone, Copy, Debug)]
enum Step {
    Submit(usize),
    Begin(usize),
    End(usize),
    Release(usize),
    Settle,
}

/// What can happen next. Each allocation runs on its own node.
fn steps(s: &Story, workflow: &Workflow, submitted: usize) -> Vec<Step> {
    let mut steps: Vec<Step> = (submitted < workflow.len()).then_some(Step::Submit(submitted)).into_iter().collect();
    steps.extend(s.ledger.dependents_are_due().then_some(Step::Settle));
    for number in 0..submitted {
        let allocation = s.ledger.allocation(id(number as u128)).unwrap();
        let is_held = !s.ledger.holdings(&node(number as u8)).is_empty();
        match allocation.state {
            AllocationState::Pending if allocation.waits() => steps.push(Step::Begin(number)),
            AllocationState::Running => steps.push(Step::End(number)),
            AllocationState::Completed | AllocationState::Failed if is_held => steps.push(Step::Release(number)),
            AllocationState::Pending
            | AllocationState::Suspended
            | AllocationState::Staging
            | AllocationState::Completed
            | AllocationState::Failed
            | AllocationState::Cancelled => {}
        }
    }
    steps
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 128, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn the_outcome_does_not_depend_on_the_order_of_submissions_and_ends(
        workflow in a_workflow(), choices in prop::collection::vec(any::<prop::sample::Index>(), 32),
    ) {
        let mut s = Story::new(8);
        let mut submitted = 0;
        // Each allocation has four steps at most, and each of them is followed by few commands that settle the rest.
        for choice in choices.iter().cycle().take(12 * workflow.len()) {
            let possible = steps(&s, &workflow, submitted);
            if possible.is_empty() {
                break;
            }
            match possible[choice.index(possible.len())] {
                Step::Submit(number) => {
                    let edges = workflow[number].0.iter().map(|(on, condition)| (*on as u128, *condition)).collect::<Vec<_>>();
                    s.done(submission(number as u128, AllocationSpec { requeue: RequeuePolicy::Never, ..depending(&edges) }, 7));
                    submitted += 1;
                }
                Step::Begin(number) => {
                    runs(&mut s, number as u128, number as u8);
                }
                Step::End(number) => {
                    let epoch = s.ledger.allocation(id(number as u128)).unwrap().epoch;
                    exits(&mut s, number as u128, number as u8, epoch, i32::from(workflow[number].1));
                }
                Step::Release(number) => {
                    let epoch = s.ledger.allocation(id(number as u128)).unwrap().epoch;
                    s.report(number as u8, released(number as u128, epoch));
                }
                Step::Settle => s.done(Action::SettleDependents),
            }
            invariant_indexes_equal_scans(&s.ledger);
        }
        prop_assert!(!s.ledger.dependents_are_due());
        let states: Vec<AllocationState> = (0..workflow.len()).map(|number| s.state(number as u128)).collect();
        prop_assert_eq!(states, expected(&workflow));
    }
}

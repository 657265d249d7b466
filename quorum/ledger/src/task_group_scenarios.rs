//! Scenarios of task groups: the commands of users, agents and schedulers, and exactly what comes of
//! them.

use super::properties::scans::invariant_indexes_equal_scans;
use super::scenarios::{LimitsChange, SIZE, Story, id, node, registration, spec, user};
use super::task_groups::lane_id;
use super::{
    Action, AllocationChange, DependencyRefusal, LanesObstacle, ListFilter, NodeStateChange, Outcome, QuotaChange, Refusal, TaskCounts,
    TaskPlace, TaskStates, UserLimitsChange, WantedLanes, WhichTasks,
};
use lattice_model::claim::ClaimShare;
use lattice_model::{
    Allocation, AllocationId, AllocationSpec, AllocationState, AuditAction, Claim, Dependency, DependencyCondition, EndReason, EndedTasks,
    Entrypoint, Epoch, LaneReport, LaneWork, NodeState, ReportItem, RequeuePolicy, TaskGroup, TaskOutcome, TaskSet,
};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

pub(super) const DONE: TaskOutcome = TaskOutcome::Exited(0);
/// The average of tasks that a lane holds one at a time, in microseconds.
pub(super) const LONG_US: u64 = 5_000_000;
/// The average of tasks of which a lane would hold 2,000, in microseconds.
pub(super) const SHORT_US: u64 = 1000;

fn group(text: &str) -> AllocationSpec {
    let tasks = Some(Box::new(TaskGroup::parse(text).unwrap()));
    AllocationSpec { tasks, walltime: Some(Duration::from_secs(60)), ..spec(1, RequeuePolicy::OnNodeFailure, 3) }
}

fn submission(number: u128, spec: AllocationSpec) -> Action {
    Action::Submit { id: id(number), spec: Box::new(spec), owner: user(7), claim: None }
}

/// A story with group 1, which has these tasks.
pub(super) fn story(nodes: u8, tasks: &str) -> Story {
    let mut s = Story::new(nodes);
    s.done(submission(1, group(tasks)));
    s
}

/// A lane of group 1.
pub(super) fn lane(number: u32) -> AllocationId {
    lane_id(id(1), number)
}

pub(super) fn tasks(ranges: &[(u32, u32)]) -> TaskSet {
    TaskSet::from(ranges.to_vec())
}

pub(super) fn claim(s: &Story, allocation: AllocationId, on: u8) -> Claim {
    let hold_revision = s.ledger.node(&node(on)).unwrap().hold_revision;
    let shares = vec![ClaimShare { node: node(on), resources: SIZE, hold_revision }];
    Claim { allocation, requeue_count: 0, lease_token: s.token, shares, after: None, by: None, walltime: None }
}

/// The lane gets a node, and runs there.
pub(super) fn runs(s: &mut Story, number: u32, on: u8) -> Epoch {
    let claim = claim(s, lane(number), on);
    let Ok(Outcome::Claimed { epoch }) = s.act(Action::Claim(claim)) else { panic!("lane {number} waits for nodes") };
    s.report(on, ReportItem::Prepared { allocation: lane(number), epoch });
    epoch
}

pub(super) fn ends(s: &mut Story, number: u32, on: u8, epoch: Epoch, code: i32) {
    s.report(on, ReportItem::Ended { allocation: lane(number), epoch, reason: EndReason::Exited { code } });
}

pub(super) fn releases(s: &mut Story, number: u32, on: u8, epoch: Epoch) {
    s.report(on, ReportItem::Released { allocation: lane(number), epoch, usage: None });
}

pub(super) fn advance(
    s: &mut Story,
    (number, on, epoch): (u32, u8, Epoch),
    ended: &[(TaskOutcome, &[(u32, u32)])],
    mean_us: u64,
) -> Result<LaneWork, Refusal> {
    let ended = ended.iter().map(|(outcome, ranges)| EndedTasks { outcome: *outcome, tasks: tasks(ranges) }).collect();
    let advance = Action::AdvanceLane { id: lane(number), epoch, node: node(on), report: LaneReport { ended, mean_us, returned: None } };
    match s.act(advance)? {
        Outcome::LaneWork(work) => Ok(work),
        other => panic!("{other:?}"),
    }
}

pub(super) fn work(leased: &[(u32, u32)], is_last: bool) -> Result<LaneWork, Refusal> {
    Ok(LaneWork { leased: tasks(leased), is_last, returns: 0 })
}

pub(super) fn states(s: &Story) -> TaskStates {
    s.ledger.task_states(id(1), WhichTasks::All).unwrap()
}

fn lanes(s: &Story) -> Vec<Arc<Allocation>> {
    s.ledger.list(None, &[], 0, None, &ListFilter { lanes: WantedLanes::Of(id(1)), ..ListFilter::default() })
}

pub(super) fn live_lanes(s: &Story) -> Vec<u32> {
    let live = lanes(s).into_iter().filter(|lane| !lane.state.is_terminal());
    let mut numbers: Vec<u32> = live.map(|lane| lane.lane.unwrap().number).collect();
    numbers.sort_unstable();
    numbers
}

fn reason(s: &Story, of: AllocationId) -> String {
    let allocation = s.ledger.allocation(of).unwrap();
    format!("{}: {}", allocation.state, allocation.reason.as_ref().unwrap())
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

pub(super) fn check(s: &Story) {
    invariant_indexes_equal_scans(&s.ledger);
    assert!(s.ledger.has_right_counts());
    let restored: super::Ledger = rmp_serde::from_slice(&rmp_serde::to_vec_named(&s.ledger).unwrap()).unwrap();
    assert_eq!(restored, s.ledger);
}

#[test]
fn tasks_run_in_lanes_one_after_another_and_the_group_completes() {
    let mut s = story(2, "10-13");
    let group = s.ledger.allocation(id(1)).unwrap();
    assert!(!group.waits() && group.shown_state() == AllocationState::Pending);
    assert_eq!(live_lanes(&s), [0, 1, 2, 3]);
    let first = Arc::clone(s.ledger.allocation(lane(0)).unwrap());
    assert!(first.waits() && first.queued_at() == group.submitted_at && first.owner == group.owner);
    assert_eq!((first.spec.walltime, first.spec.requeue), (Some(Duration::from_secs(180)), RequeuePolicy::Never));
    let listed = s.ledger.list(None, &[], 0, None, &ListFilter::default());
    assert_eq!(listed.iter().map(|a| a.id).collect::<Vec<_>>(), [id(1)]);
    let all = ListFilter { lanes: WantedLanes::All, ..ListFilter::default() };
    assert_eq!((s.ledger.list(None, &[], 0, None, &all).len(), lanes(&s).len()), (5, 4));

    let zero = (0, 0, runs(&mut s, 0, 0));
    let group = s.ledger.allocation(id(1)).unwrap();
    assert_eq!((group.shown_state(), group.started_at), (AllocationState::Running, Some(s.now())));
    assert_eq!(advance(&mut s, zero, &[], 0), work(&[(0, 0)], false));
    assert_eq!(advance(&mut s, zero, &[], 0), work(&[(0, 0)], false), "a repetition");
    let one = (1, 1, runs(&mut s, 1, 1));
    assert_eq!(live_lanes(&s), [0, 1, 2, 3]);
    assert_eq!(advance(&mut s, one, &[], 0), work(&[(1, 1)], false));
    assert_eq!(advance(&mut s, zero, &[(DONE, &[(0, 0)])], LONG_US), work(&[(2, 2)], false));
    assert_eq!(live_lanes(&s), [0, 1, 2], "one task waits, so one lane does");
    assert_eq!(advance(&mut s, one, &[(DONE, &[(0, 3)])], LONG_US), work(&[(3, 3)], true), "it held task 1 alone");
    assert_eq!(live_lanes(&s), [0, 1]);
    assert_eq!(advance(&mut s, zero, &[(DONE, &[(2, 2)])], LONG_US), work(&[], true));
    assert_eq!(s.state(1), AllocationState::Pending);
    assert_eq!(advance(&mut s, one, &[(DONE, &[(3, 3)])], LONG_US), work(&[], true));
    assert_eq!(reason(&s, id(1)), "Completed: completed");
    for (number, on, epoch) in [zero, one] {
        ends(&mut s, number, on, epoch, 0);
        releases(&mut s, number, on, epoch);
    }
    let ended = BTreeMap::from([(DONE, tasks(&[(0, 3)]))]);
    let counts = TaskCounts { completed: 4, ..TaskCounts::default() };
    assert_eq!(states(&s), TaskStates { counts, ended, ..TaskStates::default() });
    assert_eq!([0, 1].map(|number| reason(&s, lane(number))), ["Completed: completed"; 2]);
    assert_eq!([2, 3].map(|number| reason(&s, lane(number))), ["Cancelled: cancelled by quorum"; 2]);
    assert!(!s.ledger.dependents_are_due());
    check(&s);
}

#[test]
fn a_lane_holds_more_of_short_tasks_and_an_equal_part_of_what_is_left() {
    let mut s = story(2, "0-9999%2");
    let zero = (0, 0, runs(&mut s, 0, 0));
    assert_eq!(advance(&mut s, zero, &[], 0), work(&[(0, 0)], false));
    assert_eq!(advance(&mut s, zero, &[(DONE, &[(0, 0)])], SHORT_US), work(&[(1, 2000)], false));
    let one = (1, 1, runs(&mut s, 1, 1));
    assert_eq!(advance(&mut s, one, &[], SHORT_US), work(&[(2001, 4000)], false));
    // Each of two lanes leaves as much to the other one, so it holds a quarter of what waits.
    assert_eq!(advance(&mut s, zero, &[(DONE, &[(1, 1999)])], SHORT_US), work(&[(2000, 2000), (4001, 5499)], false));
    let audit = s.acted(Action::AdvanceLane { id: lane(0), epoch: zero.2, node: node(0), report: LaneReport::default() });
    assert!(audit.is_empty(), "tasks leave no audit records");
    check(&s);
}

#[test]
fn a_lost_node_ends_no_task_and_what_it_held_runs_again() {
    let mut s = story(2, "0-1%1");
    assert_eq!(live_lanes(&s), [0]);
    let lost = (0, 1, runs(&mut s, 0, 1));
    assert_eq!(advance(&mut s, lost, &[], 0), work(&[(0, 0)], false));
    let incarnation = s.ledger.node(&node(1)).unwrap().incarnation;
    for state in [NodeState::Degraded, NodeState::Down] {
        s.done(Action::NodeStates(vec![NodeStateChange { node: node(1), incarnation, state, reason: "silent".into() }]));
    }
    assert_eq!((live_lanes(&s), states(&s).leased), (vec![0], tasks(&[(0, 0)])), "it may still run there");
    s.done(Action::ConfirmDead { node: node(1), by: "root".into(), reason: "it burnt".into() });
    assert_eq!((s.ledger.allocation(lane(0)).unwrap().state, live_lanes(&s)), (AllocationState::Failed, vec![1]));
    let late = advance(&mut s, lost, &[(DONE, &[(0, 0)])], LONG_US);
    assert_eq!(late, Err(Refusal::StaleEpoch { id: lane(0), seen: lost.2, now: lost.2 }));
    let again = (1, 0, runs(&mut s, 1, 0));
    assert_eq!(advance(&mut s, again, &[], 0), work(&[(0, 0)], false));
    let places = [(0, 1), (1, 0)].map(|(number, on)| TaskPlace { lane: lane(number), node: Some(node(on)) });
    let of_task = s.ledger.task_states(id(1), WhichTasks::One(0)).unwrap();
    assert_eq!((of_task.places, of_task.counts.restarts, of_task.task_restarts), (places.to_vec(), 1, 1));
    assert_eq!(advance(&mut s, again, &[(TaskOutcome::Exited(3), &[(0, 0)])], LONG_US), work(&[(1, 1)], true));
    assert_eq!(advance(&mut s, again, &[(DONE, &[(0, 1)])], LONG_US), work(&[], true), "task 0 has ended before");
    assert_eq!(reason(&s, id(1)), "Failed: tasks_failed: 1 of 2");
    check(&s);
}

#[test]
fn a_boot_of_the_node_gives_back_what_the_lane_held() {
    let mut s = story(1, "0-1%1");
    let zero = (0, 0, runs(&mut s, 0, 0));
    advance(&mut s, zero, &[], 0).unwrap();
    let incarnation = s.ledger.node(&node(0)).unwrap().incarnation.0;
    s.done(Action::Register(registration(0, 2, incarnation, true)));
    assert_eq!((states(&s).waiting, states(&s).counts.restarts, live_lanes(&s)), (tasks(&[(0, 1)]), 1, vec![1]));
    assert!(matches!(advance(&mut s, zero, &[(DONE, &[(0, 0)])], 1), Err(Refusal::StaleEpoch { .. })));
    check(&s);
}

#[test]
fn a_lane_that_was_ended_reports_until_its_node_has_released_it() {
    let mut s = story(2, "0-5%1");
    let zero = (0, 0, runs(&mut s, 0, 0));
    assert_eq!(advance(&mut s, zero, &[], SHORT_US), work(&[(0, 3)], false));
    s.done(Action::Cancel { id: lane(0), by: user(7) });
    assert!(live_lanes(&s).is_empty(), "one of its tasks may run in its grace period, and one runs at a time");
    assert_eq!(advance(&mut s, zero, &[(DONE, &[(0, 0)])], SHORT_US), work(&[(1, 3)], true));
    assert_eq!((states(&s).leased, states(&s).waiting), (tasks(&[(1, 3)]), tasks(&[(4, 5)])));
    releases(&mut s, 0, 0, zero.2);
    assert_eq!((states(&s).leased, states(&s).waiting, states(&s).counts.restarts), (tasks(&[]), tasks(&[(1, 5)]), 3));
    assert_eq!(live_lanes(&s), [1], "another one takes its place");
    assert!(matches!(advance(&mut s, zero, &[(DONE, &[(1, 1)])], 1), Err(Refusal::StaleEpoch { .. })));
    check(&s);
}

#[test]
fn a_task_of_several_nodes_waits_again_when_all_of_them_are_free_of_it() {
    let mut s = Story::new(4);
    let entrypoint = Entrypoint::Script { text: "#!/bin/sh\ntrue\n".into(), args: Vec::new() };
    s.done(submission(1, AllocationSpec { nodes: 2, entrypoint, ..group("0-3%2") }));
    let mut both = claim(&s, lane(0), 0);
    both.shares.extend(claim(&s, lane(0), 1).shares);
    let Ok(Outcome::Claimed { epoch }) = s.act(Action::Claim(both)) else { panic!("lane 0 waits for nodes") };
    [0, 1].into_iter().for_each(|on| s.report(on, ReportItem::Prepared { allocation: lane(0), epoch }));
    assert_eq!(advance(&mut s, (0, 0, epoch), &[], 0), work(&[(0, 0)], false));
    s.done(Action::Cancel { id: lane(0), by: user(7) });
    releases(&mut s, 0, 0, epoch);
    assert_eq!((states(&s).leased, states(&s).counts.restarts), (tasks(&[(0, 0)]), 0), "ranks of it may still run on the other node");
    releases(&mut s, 0, 1, epoch);
    assert_eq!((states(&s).waiting, states(&s).counts.restarts), (tasks(&[(0, 3)]), 1));
    check(&s);
}

#[test]
fn what_a_lane_had_not_begun_does_not_count_as_restarted() {
    let mut s = story(1, "0-5%1");
    let zero = (0, 0, runs(&mut s, 0, 0));
    assert_eq!(advance(&mut s, zero, &[], SHORT_US), work(&[(0, 3)], false));
    assert_eq!(advance(&mut s, zero, &[(DONE, &[(0, 1)])], LONG_US), work(&[(2, 3)], false));
    // Its own walltime leaves none for another task.
    ends(&mut s, 0, 0, zero.2, 0);
    releases(&mut s, 0, 0, zero.2);
    assert_eq!((states(&s).waiting, states(&s).counts.restarts), (tasks(&[(2, 5)]), 0));
    assert_eq!((reason(&s, lane(0)), live_lanes(&s)), ("Completed: completed".to_owned(), vec![1]));
    check(&s);
}

#[test]
fn only_the_head_of_a_lane_advances_it_and_only_a_lane_is_advanced() {
    let mut s = story(2, "0-1");
    s.submit(2, 1, RequeuePolicy::Never, 0);
    let epoch = runs(&mut s, 0, 0);
    let report = LaneReport::default;
    let of = |allocation| Action::AdvanceLane { id: allocation, epoch, node: node(0), report: report() };
    assert_eq!(s.act(of(id(2))), Err(Refusal::NotALane { id: id(2) }));
    assert_eq!(s.act(of(id(1))), Err(Refusal::NotALane { id: id(1) }), "the group has no nodes");
    assert!(matches!(s.act(of(id(9))), Err(Refusal::NoSuchAllocation { .. })));
    let elsewhere = advance(&mut s, (0, 1, epoch), &[], 0);
    assert_eq!(elsewhere, Err(Refusal::StaleEpoch { id: lane(0), seen: epoch, now: epoch }));
    let waiting = advance(&mut s, (1, 1, Epoch(9)), &[], 0);
    assert_eq!(waiting, Err(Refusal::StaleEpoch { id: lane(1), seen: Epoch(9), now: Epoch(0) }));
    let many = (0..20_001).map(|number| (number * 2, number * 2)).collect::<Vec<_>>();
    assert!(matches!(advance(&mut s, (0, 0, epoch), &[(DONE, &many)], 0), Err(Refusal::Malformed { .. })));
    check(&s);
}

#[test]
fn outcomes_that_the_quorum_decides_are_not_taken_from_a_node() {
    let mut s = story(1, "0-1");
    let zero = (0, 0, runs(&mut s, 0, 0));
    advance(&mut s, zero, &[], 0).unwrap();
    let forged: &[(TaskOutcome, &[(u32, u32)])] = &[(TaskOutcome::Cancelled, &[(0, 1)]), (TaskOutcome::Lost, &[(0, 1)])];
    assert_eq!(advance(&mut s, zero, forged, 0), work(&[(0, 0)], false));
    let timed_out: &[(TaskOutcome, &[(u32, u32)])] = &[(TaskOutcome::WalltimeExceeded, &[(0, 0)])];
    assert_eq!(advance(&mut s, zero, timed_out, LONG_US), work(&[(1, 1)], true));
}

#[test]
fn after_too_many_failures_no_task_is_started() {
    let mut s = Story::new(1);
    let mut spec = group("0-9");
    spec.tasks.as_mut().unwrap().failures_max = Some(1);
    s.done(submission(1, spec));
    let zero = (0, 0, runs(&mut s, 0, 0));
    assert_eq!(advance(&mut s, zero, &[], SHORT_US), work(&[(0, 5)], false));
    assert_eq!(advance(&mut s, zero, &[(TaskOutcome::Exited(1), &[(0, 0)])], LONG_US), work(&[(1, 5)], false));
    assert_eq!(advance(&mut s, zero, &[(TaskOutcome::Exited(2), &[(1, 1)])], LONG_US), work(&[(2, 5)], true));
    settle(&mut s);
    assert_eq!((live_lanes(&s), states(&s).ended[&TaskOutcome::Cancelled].clone()), (vec![0], tasks(&[(6, 9)])));
    assert_eq!(advance(&mut s, zero, &[(DONE, &[(2, 5)])], LONG_US), work(&[], true));
    assert_eq!(reason(&s, id(1)), "Failed: tasks_failed: 2 of 10");
    check(&s);
}

#[test]
fn single_tasks_are_cancelled_wherever_they_are() {
    let mut s = story(1, "100-105%1");
    let zero = (0, 0, runs(&mut s, 0, 0));
    assert_eq!(advance(&mut s, zero, &[], SHORT_US), work(&[(0, 3)], false));
    advance(&mut s, zero, &[(DONE, &[(0, 0)])], LONG_US).unwrap();
    let cancel = |ranges: &[(u32, u32)], uid| Action::CancelTasks { id: id(1), tasks: tasks(ranges), by: user(uid) };
    assert!(matches!(s.act(cancel(&[(0, 9)], 8)), Err(Refusal::NotYours { .. })));
    let revision = s.ledger.revision();
    let applied = s.apply(cancel(&[(0, 1), (4, 4)], 7));
    assert_eq!(applied.result, Ok(Outcome::TasksCancelled { cancelled: 2, ended: 1 }));
    let shown: Vec<_> = applied.audit.iter().map(|record| (record.action, record.actor.as_str(), record.detail.as_str())).collect();
    assert_eq!(shown, [(AuditAction::CancelRequested, "u7", "2 of its tasks, with indices from 100 to 104")]);
    assert!(applied.changed.desired.contains(&node(0)) && applied.changed.allocations.contains(&lane(0)));
    assert_eq!(s.ledger.desired(&node(0)).shares[0].lane.unwrap().revocations, 1);
    assert!(s.ledger.allocation(id(1)).unwrap().revision <= revision, "tasks alone are no change of the group's record");
    assert_eq!(advance(&mut s, zero, &[(DONE, &[(1, 1)])], LONG_US), work(&[(2, 3)], false), "task 1 stays cancelled");
    assert_eq!(s.act(cancel(&[(0, 1)], 7)), Ok(Outcome::TasksCancelled { cancelled: 0, ended: 2 }));
    assert_eq!(s.act(cancel(&[(2, 9)], 7)), Ok(Outcome::TasksCancelled { cancelled: 3, ended: 1 }));
    assert_eq!(reason(&s, id(1)), "Completed: completed", "one completed, and the others were not wanted");
    assert_eq!(s.ledger.desired(&node(0)).shares[0].lane.unwrap().revocations, 2, "what runs there is not wanted any more");
    assert_eq!(advance(&mut s, zero, &[], 0), work(&[], true));
    assert_eq!(s.act(cancel(&[(2, 9)], 7)), Ok(Outcome::TasksCancelled { cancelled: 0, ended: 4 }));
    check(&s);
}

#[test]
fn what_is_no_task_of_a_group_is_not_cancelled() {
    let mut s = story(1, "5-9");
    s.submit(2, 1, RequeuePolicy::Never, 0);
    let cancel = |of, ranges: &[(u32, u32)]| Action::CancelTasks { id: of, tasks: tasks(ranges), by: user(7) };
    assert_eq!(s.act(cancel(id(2), &[(0, 0)])), Err(Refusal::NotATaskGroup { id: id(2) }));
    assert_eq!(s.act(cancel(lane(0), &[(0, 0)])), Err(Refusal::NotATaskGroup { id: lane(0) }));
    assert!(matches!(s.act(cancel(id(9), &[(0, 0)])), Err(Refusal::NoSuchAllocation { .. })));
    let none = s.act(cancel(id(1), &[(5, 7)])).unwrap_err().to_string();
    assert_eq!(none, format!("the request is malformed: task group {} has none of these tasks: its indices are 5 to 9", id(1)));
    assert_eq!(s.ledger.task_states(id(2), WhichTasks::Counts), Err(Refusal::NotATaskGroup { id: id(2) }));
    assert_eq!(s.ledger.task_states(lane(0), WhichTasks::Counts), Err(Refusal::NotATaskGroup { id: lane(0) }));
}

#[test]
fn a_group_whose_tasks_were_all_cancelled_is_cancelled_by_that_user() {
    let mut s = story(1, "0-3");
    s.done(Action::CancelTasks { id: id(1), tasks: tasks(&[(0, 1)]), by: user(7) });
    assert_eq!((s.state(1), live_lanes(&s)), (AllocationState::Pending, vec![0, 1]));
    s.done(Action::CancelTasks { id: id(1), tasks: tasks(&[(2, 3)]), by: user(0) });
    assert_eq!((reason(&s, id(1)), live_lanes(&s)), ("Cancelled: cancelled by u0".to_owned(), vec![]));
    check(&s);
}

#[test]
fn a_cancelled_group_ends_its_tasks_at_once_and_its_lanes_a_few_at_a_time() {
    let mut s = story(2, "0-99");
    assert_eq!(live_lanes(&s).len(), 8, "as many as one command creates");
    assert!((3..=4).contains(&settle(&mut s)));
    assert_eq!(live_lanes(&s), (0..32).collect::<Vec<_>>(), "as many as wait at a time");
    let zero = (0, 0, runs(&mut s, 0, 0));
    assert_eq!(live_lanes(&s), (0..33).collect::<Vec<_>>(), "the next one takes the place");
    advance(&mut s, zero, &[], SHORT_US).unwrap();
    s.done(Action::Cancel { id: id(1), by: user(7) });
    assert_eq!(reason(&s, id(1)), "Cancelled: cancelled by u7");
    let expected = BTreeMap::from([(TaskOutcome::Cancelled, tasks(&[(0, 99)]))]);
    assert_eq!((states(&s).ended, states(&s).leased), (expected, tasks(&[])));
    assert_eq!(live_lanes(&s).len(), 25);
    assert_eq!(advance(&mut s, zero, &[(DONE, &[(0, 0)])], 0), work(&[], true), "what it reports now is too late");
    assert!((3..=4).contains(&settle(&mut s)) && live_lanes(&s).is_empty());
    assert_eq!(reason(&s, lane(0)), "Cancelled: cancelled by u7");
    check(&s);
}

#[test]
fn a_held_group_begins_nothing_until_it_is_resumed() {
    let mut s = Story::new(1);
    s.done(submission(1, AllocationSpec { hold: true, ..group("0-2") }));
    assert!(live_lanes(&s).is_empty());
    s.done(Action::Resume { allocation: id(1), by: user(7) });
    let zero = (0, 0, runs(&mut s, 0, 0));
    advance(&mut s, zero, &[], 0).unwrap();
    assert_eq!(live_lanes(&s), [0, 1, 2]);
    s.done(Action::HoldAllocation { allocation: id(1), by: user(7) });
    assert_eq!(live_lanes(&s), [0]);
    assert_eq!(advance(&mut s, zero, &[(DONE, &[(0, 0)])], LONG_US), work(&[], true), "what runs goes on, and nothing begins");
    ends(&mut s, 0, 0, zero.2, 0);
    releases(&mut s, 0, 0, zero.2);
    assert_eq!((live_lanes(&s), s.ledger.dependents_are_due()), (vec![], false));
    s.done(Action::Resume { allocation: id(1), by: user(7) });
    assert_eq!(live_lanes(&s), [3, 4]);
    check(&s);
}

#[test]
fn a_group_waits_for_others_and_is_waited_for() {
    let mut s = Story::new(2);
    let on = |number, condition| vec![Dependency { on: id(number), condition }];
    s.submit(2, 1, RequeuePolicy::Never, 0);
    s.done(submission(1, AllocationSpec { depends_on: on(2, DependencyCondition::Success), ..group("0-1%1") }));
    for (number, condition) in [(3, DependencyCondition::Success), (4, DependencyCondition::Any), (5, DependencyCondition::Failure)] {
        s.done(submission(number, AllocationSpec { depends_on: on(1, condition), ..spec(1, RequeuePolicy::Never, 0) }));
    }
    assert!(live_lanes(&s).is_empty());
    let epoch = s.claimed(2, &[0]);
    s.report(0, ReportItem::Prepared { allocation: id(2), epoch });
    s.report(0, ReportItem::Ended { allocation: id(2), epoch, reason: EndReason::Exited { code: 0 } });
    assert_eq!(live_lanes(&s), [0]);
    assert!(s.ledger.allocation(lane(0)).unwrap().spec.depends_on.is_empty());
    let zero = (0, 1, runs(&mut s, 0, 1));
    advance(&mut s, zero, &[], 0).unwrap();
    assert_eq!(advance(&mut s, zero, &[(DONE, &[(0, 0)])], LONG_US), work(&[(1, 1)], true));
    advance(&mut s, zero, &[(TaskOutcome::Exited(1), &[(1, 1)])], LONG_US).unwrap();
    assert_eq!((s.state(1), s.state(3)), (AllocationState::Failed, AllocationState::Cancelled));
    let waits = |s: &Story| [4, 5].map(|number| s.ledger.allocation(id(number)).unwrap().waits());
    assert_eq!(waits(&s), [false; 2], "its lane has not left its node");
    ends(&mut s, 0, 1, zero.2, 0);
    releases(&mut s, 0, 1, zero.2);
    assert_eq!(waits(&s), [true; 2]);
    check(&s);
}

#[test]
fn mutex_is_not_for_groups() {
    let mut s = story(1, "0-1");
    let on = |number| vec![Dependency { on: id(number), condition: DependencyCondition::Mutex }];
    let refused = |number: u128| Err(Refusal::Dependency { on: id(number).to_string(), why: DependencyRefusal::Group });
    assert_eq!(s.act(submission(2, AllocationSpec { depends_on: on(1), ..spec(1, RequeuePolicy::Never, 0) })), refused(1));
    s.submit(2, 1, RequeuePolicy::Never, 0);
    assert_eq!(s.act(submission(3, AllocationSpec { depends_on: on(2), ..group("0-1") })), refused(2));
}

#[test]
fn what_is_done_to_a_group_is_not_done_to_one_of_its_lanes() {
    let mut s = story(1, "0-40%3");
    let refused = Err(Refusal::LaneOfGroup { id: lane(0), number: 0, group: id(1) });
    assert_eq!(s.act(Action::HoldAllocation { allocation: lane(0), by: user(7) }), refused);
    let change = AllocationChange { walltime: Some(Duration::from_secs(600)), ..AllocationChange::default() };
    assert_eq!(s.act(Action::UpdateAllocation { allocation: lane(0), by: user(7), change, as_operator: false }), refused);
    s.done(Action::Cancel { id: lane(0), by: user(7) });
    assert_eq!(live_lanes(&s), [1, 2, 3]);
}

fn update(change: AllocationChange) -> Action {
    Action::UpdateAllocation { allocation: id(1), by: user(7), change, as_operator: false }
}

#[test]
fn a_changed_group_has_other_lanes_wait_and_those_with_nodes_keep_what_they_have() {
    let mut s = story(1, "0-40%4");
    runs(&mut s, 0, 0);
    let queued_at = s.ledger.allocation(id(1)).unwrap().queued_at();
    let change = AllocationChange { walltime: Some(Duration::from_secs(600)), preemption_class: Some(3), ..AllocationChange::default() };
    s.done(update(change.clone()));
    assert_eq!(live_lanes(&s), [0, 4, 5, 6]);
    let of = |s: &Story, number| {
        let lane = s.ledger.allocation(lane(number)).unwrap();
        (lane.spec.walltime.unwrap().as_secs(), lane.spec.preemption_class, lane.queued_at())
    };
    let class = group("0").preemption_class;
    assert_eq!([0, 4, 6].map(|number| of(&s, number)), [(180, class, queued_at), (1260, 3, queued_at), (1260, 3, queued_at)]);
    assert_eq!([1, 3].map(|number| reason(&s, lane(number))), ["Cancelled: cancelled by quorum"; 2]);
    s.done(update(change));
    assert_eq!(live_lanes(&s), [0, 4, 5, 6], "a repetition changes nothing");
    assert_eq!((states(&s).waiting.len(), states(&s).counts.restarts), (41, 0));

    let too_long = AllocationChange { walltime: Some(Duration::from_secs(183 * 86_400)), ..AllocationChange::default() };
    let why = "walltime: a task may have at most 182 days".to_owned();
    assert_eq!(s.act(update(too_long)), Err(Refusal::Malformed { why }));
    check(&s);
}

#[test]
fn one_command_ends_and_creates_few_lanes_of_a_changed_group() {
    let mut s = story(1, "0-99");
    settle(&mut s);
    assert_eq!(live_lanes(&s), (0..32).collect::<Vec<_>>());
    s.done(update(AllocationChange { name: Some("other".to_owned()), ..AllocationChange::default() }));
    assert_eq!(live_lanes(&s), (8..32).collect::<Vec<_>>());
    assert!(settle(&mut s) > 6, "32 are ended and 32 created");
    assert_eq!(live_lanes(&s), (32..64).collect::<Vec<_>>());
    check(&s);
}

#[test]
fn a_preempted_lane_is_not_requeued_and_its_tasks_run_in_another() {
    let mut s = story(1, "0-2%1");
    let claim = claim(&s, lane(0), 0);
    s.done_claim(claim);
    let epoch = s.ledger.allocation(lane(0)).unwrap().epoch;
    let zero = (0, 0, epoch);
    s.report(0, ReportItem::Prepared { allocation: lane(0), epoch });
    advance(&mut s, zero, &[], 0).unwrap();
    let saved = Err(lattice_model::end_reason::NotSaved("x".into()));
    let reason = EndReason::Preempted { by: "scheduler".into(), why: "x".into(), saved };
    s.report(0, ReportItem::Ended { allocation: lane(0), epoch, reason });
    assert_eq!(s.ledger.allocation(lane(0)).unwrap().state, AllocationState::Failed);
    releases(&mut s, 0, 0, epoch);
    assert_eq!((states(&s).waiting, states(&s).counts.restarts, live_lanes(&s)), (tasks(&[(0, 2)]), 0, vec![1]));
    check(&s);
}

#[test]
fn a_group_ends_when_one_lane_after_another_fails_before_it_has_a_task() {
    let mut s = story(16, "0-5%1");
    for number in 0..16 {
        assert_eq!((s.state(1), live_lanes(&s)), (AllocationState::Pending, vec![number]));
        // A lane avoids the nodes at which others have failed.
        let on = u8::try_from(number).unwrap();
        let epoch = runs(&mut s, number, on);
        ends(&mut s, number, on, epoch, 126);
        releases(&mut s, number, on, epoch);
    }
    assert_eq!((reason(&s, id(1)), live_lanes(&s)), ("Failed: exit_code 126".to_owned(), vec![]));
    assert_eq!((states(&s).counts.restarts, states(&s).counts.failed), (0, 0), "none of them ran");
    check(&s);
}

#[test]
fn a_group_ends_when_no_task_ends_in_one_failed_lane_after_another() {
    let mut s = story(16, "0-99%1");
    for number in 0..16 {
        assert_eq!((s.state(1), live_lanes(&s)), (AllocationState::Pending, vec![number]));
        // A lane avoids the nodes at which others have failed.
        let on = u8::try_from(number).unwrap();
        let epoch = runs(&mut s, number, on);
        advance(&mut s, (number, on, epoch), &[], 0).unwrap();
        ends(&mut s, number, on, epoch, 126);
        releases(&mut s, number, on, epoch);
    }
    assert_eq!((reason(&s, id(1)), live_lanes(&s)), ("Failed: exit_code 126".to_owned(), vec![]));
    assert_eq!((states(&s).counts.restarts, states(&s).counts.failed), (0, 0), "none of them ran");
    check(&s);
}

#[test]
fn a_lane_in_which_a_task_ended_has_not_failed() {
    let mut s = story(17, "0-99%1");
    for number in 0..17 {
        // A lane avoids the nodes at which others have failed.
        let on = u8::try_from(number).unwrap();
        let epoch = runs(&mut s, number, on);
        let this = (number, on, epoch);
        assert_eq!(advance(&mut s, this, &[], 0), work(&[(number, number)], false));
        assert_eq!(advance(&mut s, this, &[(DONE, &[(number, number)])], LONG_US), work(&[(number + 1, number + 1)], false));
        ends(&mut s, number, on, epoch, 126);
        releases(&mut s, number, on, epoch);
    }
    assert_eq!((s.state(1), live_lanes(&s)), (AllocationState::Pending, vec![17]));
    check(&s);
}

#[test]
fn lanes_that_the_quorum_did_not_answer_do_not_end_their_group() {
    let mut s = story(1, "0-5%1");
    for number in 0..17 {
        let epoch = runs(&mut s, number, 0);
        s.report(0, ReportItem::Ended { allocation: lane(number), epoch, reason: EndReason::WalltimeExceeded });
        releases(&mut s, number, 0, epoch);
    }
    assert_eq!((s.state(1), live_lanes(&s)), (AllocationState::Pending, vec![17]));
    check(&s);
}

#[test]
fn a_lane_whose_prologue_failed_avoids_that_node() {
    let mut s = story(2, "0-5%1");
    let claim = claim(&s, lane(0), 0);
    s.done_claim(claim);
    let epoch = s.ledger.allocation(lane(0)).unwrap().epoch;
    s.report(0, ReportItem::PrepareFailed { allocation: lane(0), epoch, why: "disk".into() });
    let record = s.ledger.allocation(lane(0)).unwrap();
    assert!(record.waits() && record.exclusion(&node(0)).is_some() && live_lanes(&s) == [0]);
    let zero = (0, 1, runs(&mut s, 0, 1));
    assert_eq!(advance(&mut s, zero, &[], 0), work(&[(0, 0)], false));
    check(&s);
}

#[test]
fn a_group_counts_once_against_the_limit_of_waiting_work() {
    let mut s = Story::new(1);
    let users = UserLimitsChange { user_pending: QuotaChange::AtMost(2), ..UserLimitsChange::default() };
    s.done(LimitsChange { users, ..LimitsChange::default() }.by("root"));
    s.done(submission(1, group("0-99")));
    settle(&mut s);
    s.submit(2, 1, RequeuePolicy::Never, 0);
    assert!(matches!(s.act(submission(3, group("0-9"))), Err(Refusal::OverUserLimit { current: 2, .. })));
    check(&s);
}

#[test]
fn an_ended_group_is_forgotten_with_its_tasks_when_its_lanes_are_gone() {
    let mut s = Story::new(1);
    let users = UserLimitsChange { user_history: QuotaChange::AtMost(0), ..UserLimitsChange::default() };
    s.done(LimitsChange { users, ..LimitsChange::default() }.by("root"));
    s.done(submission(1, group("0-1%1")));
    let zero = (0, 0, runs(&mut s, 0, 0));
    advance(&mut s, zero, &[], 0).unwrap();
    s.done(Action::Cancel { id: id(1), by: user(7) });
    assert!(s.ledger.allocation(id(1)).is_some() && s.ledger.allocation(lane(0)).is_some(), "a node holds a part of itself for the lane");
    releases(&mut s, 0, 0, zero.2);
    // The next end of that user's work forgets both.
    s.submit(2, 1, RequeuePolicy::Never, 0);
    s.done(Action::Cancel { id: id(2), by: user(7) });
    assert_eq!((s.ledger.allocations().count(), s.ledger.task_groups.len()), (0, 0));
    check(&s);
}

#[test]
fn work_that_has_the_id_of_a_lane_is_not_touched() {
    let mut s = Story::new(1);
    s.done(Action::Submit { id: lane(1), spec: Box::new(spec(1, RequeuePolicy::Never, 0)), owner: user(8), claim: None });
    s.done(submission(1, group("0-2")));
    settle(&mut s);
    assert_eq!((live_lanes(&s), s.ledger.allocation(lane(1)).unwrap().owner.uid), (vec![0, 2, 3], 8));
    check(&s);
}

#[test]
fn the_lanes_of_a_user_that_wait_are_limited_and_each_group_has_one() {
    let mut s = Story::new(1);
    (1..4).for_each(|number| s.done(submission(number, group("0-99"))));
    s.done(Action::Submit { id: id(4), spec: Box::new(group("0-99")), owner: user(8), claim: None });
    settle(&mut s);
    let waiting = |s: &Story| [1, 2, 3, 4].map(|number| s.ledger.task_groups.get(&id(number)).unwrap().lanes_waiting());
    assert_eq!((waiting(&s), s.ledger.lanes_waiting_of[&7]), ([32, 8, 1, 32], 41));
    let obstacles = [1, 2, 3, 4].map(|number| s.ledger.task_states(id(number), WhichTasks::Counts).unwrap().obstacle);
    let capped = Some(LanesObstacle::TooManyOfUser);
    assert_eq!(obstacles, [None, capped, capped, None]);
    check(&s);
    // What one group does not need any more is the others'.
    s.done(Action::Cancel { id: id(1), by: user(7) });
    settle(&mut s);
    let [first, second, third, others] = waiting(&s);
    assert_eq!((first, second + third, others), (0, 40, 32));
    check(&s);
    (2..4).for_each(|number| s.done(Action::Cancel { id: id(number), by: user(7) }));
    settle(&mut s);
    assert_eq!((waiting(&s), s.ledger.lanes_waiting_of.get(&7), s.ledger.capped_groups.len()), ([0, 0, 0, 32], None, 0));
    check(&s);
}

#[test]
fn the_lanes_of_a_group_share_one_specification() {
    let mut s = story(1, "0-99");
    settle(&mut s);
    runs(&mut s, 0, 0);
    let all = lanes(&s);
    assert_eq!((all.len(), all.iter().all(|lane| Arc::ptr_eq(&lane.spec, &all[0].spec))), (33, true));
}

#[test]
fn the_tasks_of_a_users_groups_have_limited_memory() {
    let mut s = Story::new(1);
    s.done(submission(1, AllocationSpec { hold: true, ..group("0-99999") }));
    let every_second = |from: u32, count: u32| {
        let tasks = TaskSet::from((0..count).map(|number| (from + 2 * number, from + 2 * number)).collect::<Vec<_>>());
        Action::CancelTasks { id: id(1), tasks, by: user(7) }
    };
    let many = (0..10).take_while(|step| s.act(every_second(1 + step * 4000, 2000)).is_ok()).count();
    assert_eq!(many, 4);
    let one_by_one = (0..1000).take_while(|step| s.act(every_second(16_001 + step * 2, 1)).is_ok()).count();
    assert!(one_by_one < 1000);
    assert!(matches!(s.act(every_second(50_001, 1)), Err(Refusal::GroupMemory { .. })));
    assert!(matches!(s.act(submission(2, group("0-1"))), Err(Refusal::GroupMemory { .. })));
    s.done(Action::Submit { id: id(3), spec: Box::new(group("0-1")), owner: user(8), claim: None });
    check(&s);
    s.done(Action::Cancel { id: id(1), by: user(7) });
    s.done(submission(2, group("0-1")));
    check(&s);
}

//! Scenarios and properties of task groups whose tasks wait for tasks of other groups.

use super::properties::scans::invariant_indexes_equal_scans;
use super::scenarios::{SIZE, Story, id, node, spec, user};
use super::{Action, DependencyRefusal, Ledger, ListFilter, Outcome, Refusal, TaskStates, WantedLanes, WhichTasks};
use lattice_model::claim::ClaimShare;
use lattice_model::dependency::FOLLOWERS_MAX;
use lattice_model::task_group::IndexRun;
use lattice_model::{
    AllocationId, AllocationSpec, AllocationState, Claim, Dependency, DependencyCondition, EndReason, EndedTasks, Epoch, LaneReport,
    ReportItem, RequeuePolicy, TaskGroup, TaskIndices, TaskOutcome, TaskSet,
};
use proptest::prelude::*;
use std::time::Duration;

fn group(indices: &TaskIndices, on: &[u128]) -> AllocationSpec {
    let tasks = TaskGroup { indices: indices.clone(), concurrent_max: None, failures_max: None };
    let corresponding = |number: &u128| Dependency { on: id(*number), condition: DependencyCondition::Corresponding };
    let (tasks, depends_on) = (Some(Box::new(tasks)), on.iter().map(corresponding).collect());
    AllocationSpec { tasks, depends_on, walltime: Some(Duration::from_secs(60)), ..spec(1, RequeuePolicy::Never, 0) }
}

fn submission(number: u128, spec: AllocationSpec) -> Action {
    Action::Submit { id: id(number), spec: Box::new(spec), owner: user(7), claim: None }
}

fn submit(s: &mut Story, number: u128, indices: &str, on: &[u128]) {
    s.done(submission(number, group(&TaskIndices::parse(indices).unwrap(), on)));
}

fn set(ranges: &[(u32, u32)]) -> TaskSet {
    TaskSet::from(ranges.to_vec())
}

fn states(s: &Story, number: u128) -> TaskStates {
    s.ledger.task_states(id(number), WhichTasks::All).unwrap()
}

/// How many tasks wait for a lane, and how many for tasks of other groups.
fn waiting(s: &Story, number: u128) -> (u32, u32) {
    let counts = states(s, number).counts;
    (counts.waiting - counts.awaiting, counts.awaiting)
}

fn unmet(s: &Story, number: u128) -> TaskSet {
    states(s, number).ended.get(&TaskOutcome::Unmet).cloned().unwrap_or_default()
}

fn reason(s: &Story, number: u128) -> String {
    let allocation = s.ledger.allocation(id(number)).unwrap();
    format!("{}: {}", allocation.state, allocation.reason.as_ref().unwrap())
}

fn cancel_tasks(s: &mut Story, number: u128, ranges: &[(u32, u32)]) {
    s.act(Action::CancelTasks { id: id(number), tasks: set(ranges), by: user(7) }).unwrap();
}

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
    assert!(s.ledger.has_right_counts());
    let restored: Ledger = rmp_serde::from_slice(&rmp_serde::to_vec_named(&s.ledger).unwrap()).unwrap();
    assert_eq!(restored, s.ledger);
}

/// A lane of a group as its agent knows it: it holds one task at a time.
struct Lane {
    id: AllocationId,
    epoch: Epoch,
    on: u8,
    held: TaskSet,
}

/// The group's next lane gets a node, and its first task.
fn lane(s: &mut Story, number: u128, on: u8) -> Option<Lane> {
    let lanes = s.ledger.list(None, &[], 0, None, &ListFilter { lanes: WantedLanes::Of(id(number)), ..ListFilter::default() });
    let allocation = lanes.into_iter().find(|lane| lane.waits())?.id;
    let hold_revision = s.ledger.node(&node(on)).unwrap().hold_revision;
    let shares = vec![ClaimShare { node: node(on), resources: SIZE, hold_revision }];
    let claim = Claim { allocation, requeue_count: 0, lease_token: s.token, shares, after: None, by: None, walltime: None };
    let Ok(Outcome::Claimed { epoch }) = s.act(Action::Claim(claim)) else { return None };
    s.report(on, ReportItem::Prepared { allocation, epoch });
    let lane = Lane { id: allocation, epoch, on, held: TaskSet::default() };
    ended(s, lane, TaskOutcome::Exited(0))
}

/// The lane's task ends in this way, and the lane gets another one. `None`: the lane has ended, and left its node.
fn ended(s: &mut Story, lane: Lane, outcome: TaskOutcome) -> Option<Lane> {
    let Lane { id: allocation, epoch, on, held } = lane;
    let report = LaneReport { ended: vec![EndedTasks { outcome, tasks: held }], mean_us: 0, returned: None };
    if let Ok(Outcome::LaneWork(work)) = s.act(Action::AdvanceLane { id: allocation, epoch, node: node(on), report })
        && !(work.is_last && work.leased.is_empty())
    {
        return Some(Lane { id: allocation, epoch, on, held: work.leased });
    }
    s.report(on, ReportItem::Ended { allocation, epoch, reason: EndReason::Exited { code: 0 } });
    s.report(on, ReportItem::Released { allocation, epoch, usage: None });
    None
}

#[test]
fn a_task_begins_when_that_of_the_same_index_has_succeeded() {
    let mut s = Story::new(2);
    submit(&mut s, 1, "0-3", &[]);
    submit(&mut s, 2, "2-5", &[1]);
    assert_eq!(waiting(&s, 2), (2, 2), "4 and 5 are no tasks of the other group");
    let child = s.ledger.allocation(id(2)).unwrap();
    assert_eq!(child.dependencies.as_ref().unwrap().corresponding().as_deref(), Some("00000001 (a)"));
    assert_eq!((child.awaits(), child.queued_at()), (None, child.submitted_at), "the group is in its queue");
    let mut first = lane(&mut s, 1, 0).unwrap();
    for (index, outcome) in [(0, 0), (1, 7), (2, 0)] {
        assert_eq!((first.held.clone(), waiting(&s, 2)), (set(&[(index, index)]), (2, 2)));
        first = ended(&mut s, first, TaskOutcome::Exited(outcome)).unwrap();
    }
    assert_eq!((waiting(&s, 2), unmet(&s, 2)), ((3, 1), set(&[])));
    assert!(ended(&mut s, first, TaskOutcome::Exited(3)).is_none());
    assert_eq!((waiting(&s, 2), unmet(&s, 2)), ((3, 0), set(&[(1, 1)])));
    check(&s);
    let mut second = lane(&mut s, 2, 1);
    while let Some(now) = second {
        second = ended(&mut s, now, TaskOutcome::Exited(0));
    }
    assert_eq!(reason(&s, 2), "Completed: completed", "a task that never began is no failure");
    let counts = states(&s, 2).counts;
    assert_eq!((counts.completed, counts.failed, counts.cancelled), (3, 0, 1));
    check(&s);
}

#[test]
fn a_group_none_of_whose_tasks_can_begin_ends_with_the_reason_and_so_does_what_follows_it() {
    let mut s = Story::new(1);
    submit(&mut s, 1, "0-9", &[]);
    submit(&mut s, 2, "0-9:3", &[1]);
    submit(&mut s, 3, "0,9", &[2]);
    cancel_tasks(&mut s, 1, &[(3, 9)]);
    assert_eq!((unmet(&s, 2), unmet(&s, 3)), (set(&[(1, 3)]), set(&[(1, 1)])));
    s.done(Action::Cancel { id: id(1), by: user(7) });
    settle(&mut s);
    assert_eq!(reason(&s, 2), "Cancelled: dependency_unmet: corresponding of 00000001 (a), which is Cancelled");
    assert_eq!(reason(&s, 3), "Cancelled: dependency_unmet: corresponding of 00000002 (a), which is Cancelled");
    check(&s);
}

#[test]
fn tasks_that_ended_before_the_submission_count() {
    let mut s = Story::new(1);
    submit(&mut s, 1, "0-3", &[]);
    let first = lane(&mut s, 1, 0).unwrap();
    let first = ended(&mut s, first, TaskOutcome::Exited(0)).unwrap();
    let _first = ended(&mut s, first, TaskOutcome::Exited(1)).unwrap();
    submit(&mut s, 2, "0-4", &[1]);
    assert_eq!((waiting(&s, 2), unmet(&s, 2)), ((2, 2), set(&[(1, 1)])));
    cancel_tasks(&mut s, 2, &[(2, 2)]);
    s.done(Action::Cancel { id: id(1), by: user(7) });
    settle(&mut s);
    assert_eq!((waiting(&s, 2), unmet(&s, 2)), ((2, 0), set(&[(1, 1), (3, 3)])), "2 was cancelled before");
    submit(&mut s, 3, "0-3", &[1]);
    assert_eq!((waiting(&s, 3), unmet(&s, 3)), ((1, 0), set(&[(1, 3)])));
    check(&s);
}

#[test]
fn only_task_groups_correspond_and_a_bounded_number_of_them() {
    let mut s = Story::new(0);
    s.submit(1, 1, RequeuePolicy::Never, 0);
    let why = |result: Result<Outcome, Refusal>| match result {
        Err(Refusal::Dependency { why, .. }) => why,
        other => panic!("{other:?}"),
    };
    let indices = TaskIndices::parse("0-1").unwrap();
    assert_eq!(why(s.act(submission(2, group(&indices, &[1])))), DependencyRefusal::NotTaskGroups);
    submit(&mut s, 2, "0-1", &[]);
    let single = AllocationSpec { tasks: None, ..group(&indices, &[2]) };
    assert_eq!(why(s.act(submission(3, single))), DependencyRefusal::NotTaskGroups);
    let of_another = Action::Submit { id: id(3), spec: Box::new(group(&indices, &[2])), owner: user(8), claim: None };
    assert_eq!(why(s.act(of_another)), DependencyRefusal::NotYours);
    for number in 0..FOLLOWERS_MAX as u128 {
        submit(&mut s, 100 + number, "0-1", &[2]);
    }
    let refused = why(s.act(submission(3, group(&indices, &[2]))));
    assert_eq!(refused, DependencyRefusal::TooManyFollowers);
    assert!(Refusal::Dependency { on: "x".to_owned(), why: refused }.remedy().is_some());
    s.done(Action::Cancel { id: id(100), by: user(7) });
    submit(&mut s, 3, "0-1", &[2]);
    check(&s);
}

#[test]
fn a_group_corresponds_to_a_bounded_number_of_others() {
    let mut s = Story::new(0);
    let all: Vec<u128> = (1..=FOLLOWERS_MAX as u128 + 1).collect();
    for number in &all {
        submit(&mut s, *number, "0-1", &[]);
    }
    let indices = TaskIndices::parse("0-1").unwrap();
    let refusal = Refusal::Dependency { on: id(FOLLOWERS_MAX as u128 + 1).to_string(), why: DependencyRefusal::TooManyFollowed };
    assert_eq!(s.act(submission(100, group(&indices, &all))), Err(refusal));
    submit(&mut s, 100, "0-1", &all[1..]);
    check(&s);
}

#[test]
fn many_ends_are_delivered_in_several_commands() {
    let mut s = Story::new(0);
    submit(&mut s, 1, "0-198:2", &[]);
    submit(&mut s, 2, "0-99", &[1]);
    cancel_tasks(&mut s, 1, &[(0, 98)]);
    assert_eq!(unmet(&s, 2).len(), 16, "one command looks at so many tasks");
    check(&s);
    assert!(settle(&mut s) > 4);
    assert_eq!(unmet(&s, 2), (0..50).map(|task| 2 * task).collect::<TaskSet>());
    check(&s);

    submit(&mut s, 3, "0-99", &[]);
    submit(&mut s, 4, "0-99", &[3]);
    let every_other: Vec<(u32, u32)> = (0..40).map(|task| (2 * task, 2 * task)).collect();
    cancel_tasks(&mut s, 3, &every_other);
    assert!(unmet(&s, 4).len() < 40 && settle(&mut s) > 1, "one command delivers a bounded number of ranges");
    assert_eq!(unmet(&s, 4), set(&every_other));
    check(&s);
}

#[test]
fn a_long_chain_is_given_up_in_several_commands() {
    let mut s = Story::new(0);
    submit(&mut s, 1, "0-3", &[]);
    for number in 2..40 {
        submit(&mut s, number, "0-3", &[number - 1]);
    }
    cancel_tasks(&mut s, 1, &[(1, 1)]);
    assert!(settle(&mut s) > 1, "each command delivers a bounded number");
    assert!((2..40).all(|number| unmet(&s, number) == set(&[(1, 1)])));
    check(&s);
}

#[derive(Clone, Debug)]
enum Move {
    /// The lane of this group ends its task.
    End {
        of: usize,
        fails: bool,
    },
    /// A lane of this group gets a node.
    Begin {
        of: usize,
    },
    CancelTasks {
        of: usize,
        first: u32,
        count: u32,
    },
    CancelGroup {
        of: usize,
    },
    Settle,
    Restart,
}

fn a_move() -> impl Strategy<Value = Move> {
    let of = 0..3_usize;
    prop_oneof![
        8 => (of.clone(), prop::bool::weighted(0.3)).prop_map(|(of, fails)| Move::End { of, fails }),
        4 => of.clone().prop_map(|of| Move::Begin { of }),
        1 => (of.clone(), 0..10u32, 0..3u32).prop_map(|(of, first, count)| Move::CancelTasks { of, first, count }),
        1 => (of, prop::bool::weighted(0.2)).prop_map(|(of, ends)| if ends { Move::CancelGroup { of } } else { Move::Settle }),
        1 => Just(Move::Restart),
    ]
}

fn some_indices() -> impl Strategy<Value = TaskIndices> {
    let run = (0..6u32, 1..9u32, 1..3u32);
    run.prop_map(|(first, count, step)| TaskIndices::new([IndexRun { first, last: first + (count - 1) * step, step }]).unwrap())
}

/// The groups on which each of the three depends.
const PARENTS: [&[u128]; 3] = [&[], &[1], &[1, 2]];

struct World {
    s: Story,
    indices: Vec<TaskIndices>,
    lanes: [Option<Lane>; 3],
}

impl World {
    fn new(indices: Vec<TaskIndices>) -> Self {
        let mut s = Story::new(3);
        for (number, (indices, on)) in (1..).zip(indices.iter().zip(PARENTS)) {
            s.done(submission(number, group(indices, on)));
        }
        Self { s, indices, lanes: [None, None, None] }
    }

    fn act(&mut self, a_move: Move) {
        let number = |of: usize| of as u128 + 1;
        match a_move {
            Move::End { of, fails } => {
                if let Some(lane) = self.lanes[of].take() {
                    self.lanes[of] = ended(&mut self.s, lane, TaskOutcome::Exited(i32::from(fails)));
                }
            }
            Move::Begin { of } => {
                if self.lanes[of].is_none() {
                    self.lanes[of] = lane(&mut self.s, number(of), of as u8);
                }
            }
            Move::CancelTasks { of, first, count } => {
                match self.s.act(Action::CancelTasks { id: id(number(of)), tasks: set(&[(first, first + count)]), by: user(7) }) {
                    Ok(Outcome::TasksCancelled { .. }) | Err(Refusal::Malformed { .. }) => {}
                    other => panic!("{other:?}"),
                }
            }
            Move::CancelGroup { of } => self.s.done(Action::Cancel { id: id(number(of)), by: user(7) }),
            Move::Settle => self.s.done(Action::SettleDependents),
            Move::Restart => self.s.ledger = rmp_serde::from_slice(&rmp_serde::to_vec_named(&self.s.ledger).unwrap()).unwrap(),
        }
    }

    /// Whether each counterpart of this task has succeeded, and whether one has ended otherwise.
    fn counterparts(&self, of: usize, ordinal: u32) -> (bool, bool) {
        let index = self.indices[of].index_of(ordinal).unwrap();
        let (mut all, mut one_failed) = (true, false);
        for parent in PARENTS[of] {
            let Some(other) = self.indices[*parent as usize - 1].ordinal_of(index) else { continue };
            let states = states(&self.s, *parent);
            let outcome = states.ended.iter().find(|(_, tasks)| tasks.contains(other)).map(|(outcome, _)| *outcome);
            all &= outcome == Some(TaskOutcome::Exited(0));
            one_failed |= outcome.is_some_and(|outcome| outcome != TaskOutcome::Exited(0));
        }
        (all, one_failed)
    }

    fn check(&self) {
        for of in 0..3 {
            let states = states(&self.s, of as u128 + 1);
            let sets = [&states.waiting, &states.leased].into_iter().chain(states.ended.values());
            let mut each: Vec<u32> = sets.flat_map(|set| set.iter()).collect();
            each.sort_unstable();
            assert_eq!(each, (0..self.indices[of].count()).collect::<Vec<_>>(), "each task is in one set");
            let has_begun = |outcome: &TaskOutcome| matches!(outcome, TaskOutcome::Exited(_));
            let begun = states.ended.iter().filter(|(outcome, _)| has_begun(outcome)).map(|(_, tasks)| tasks);
            for ordinal in begun.chain([&states.leased]).flat_map(|tasks| tasks.iter()) {
                assert!(self.counterparts(of, ordinal).0, "task {ordinal} of group {} began too early", of + 1);
            }
            for ordinal in states.ended.get(&TaskOutcome::Unmet).iter().flat_map(|tasks| tasks.iter()) {
                assert!(self.counterparts(of, ordinal).1, "task {ordinal} of group {} was given up", of + 1);
            }
        }
        check(&self.s);
    }

    /// Everything succeeds from now on.
    fn finish(&mut self) {
        for _ in 0..200 {
            if (1..=3).all(|number| self.s.ledger.allocation(id(number)).unwrap().state.is_terminal()) {
                return;
            }
            self.s.done(Action::SettleDependents);
            for of in 0..3 {
                self.act(Move::Begin { of });
                self.act(Move::End { of, fails: false });
            }
            self.check();
        }
        panic!("{:?}", [1, 2, 3].map(|number| states(&self.s, number)));
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 128, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn no_task_begins_before_its_counterparts_have_succeeded_and_every_group_ends(
        indices in prop::collection::vec(some_indices(), 3), moves in prop::collection::vec(a_move(), 0..60),
    ) {
        let mut w = World::new(indices);
        w.check();
        for a_move in moves {
            w.act(a_move);
            w.check();
        }
        w.finish();
        let states = [1, 2, 3].map(|number| w.s.state(number));
        prop_assert!(states.iter().all(|state| *state != AllocationState::Pending));
    }
}

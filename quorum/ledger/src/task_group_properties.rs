//! Property tests of task groups: random claims, reports, losses of nodes and cancellations, with
//! agents that are late, repeat themselves and do not know yet that they have lost their lane.

use super::properties::scans::invariant_indexes_equal_scans;
use super::scenarios::{SIZE, Story, id, node, registration, spec, user};
use super::task_groups::lane_id;
use super::{Action, Ledger, ListFilter, Outcome, Refusal, TaskStates, WantedLanes, WhichTasks};
use lattice_model::claim::ClaimShare;
use lattice_model::{
    Allocation, AllocationId, AllocationSpec, AllocationState, Claim, EndReason, EndedTasks, Epoch, LaneReport, LaneReturn, LaneWork,
    ReportItem, RequeuePolicy, TaskGroup, TaskIndices, TaskOutcome, TaskSet,
};
use proptest::prelude::*;
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

const NODES: u8 = 3;

#[derive(Clone, Copy, Debug)]
enum Move {
    /// The scheduler claims the node for a lane that waits.
    Claim {
        on: u8,
    },
    /// The lane there runs some of the tasks that it believes to hold, and reports. Its average says how
    /// long tasks take. `lost`: the answer does not arrive.
    Advance {
        on: u8,
        runs: u32,
        fails: bool,
        mean_us: u64,
        lost: bool,
    },
    /// The lane there decides to return all but its first tasks. Its reports say so until an answer shows
    /// that the quorum knows.
    Return {
        on: u8,
        keeps: u32,
    },
    /// An earlier report arrives once more.
    Repeat {
        which: usize,
    },
    /// The lane's end is reported, or that nothing is left of it.
    End {
        on: u8,
        code: i32,
    },
    Release {
        on: u8,
    },
    /// The node boots: nothing is left there.
    Boot {
        on: u8,
    },
    CancelLane {
        on: u8,
    },
    CancelTasks {
        first: u32,
        count: u32,
    },
    CancelGroup,
    Hold,
    Resume,
    Settle,
    /// The member reads the state from a snapshot.
    Restart,
}

fn a_move() -> impl Strategy<Value = Move> {
    let on = 0..NODES;
    prop_oneof![
        6 => on.clone().prop_map(|on| Move::Claim { on }),
        12 => (on.clone(), 0..6u32, prop::bool::weighted(0.2), prop_oneof![Just(0u64), Just(1000), Just(600_000)], prop::bool::weighted(0.2))
            .prop_map(|(on, runs, fails, mean_us, lost)| Move::Advance { on, runs, fails, mean_us, lost }),
        4 => (on.clone(), 0..3u32).prop_map(|(on, keeps)| Move::Return { on, keeps }),
        3 => any::<usize>().prop_map(|which| Move::Repeat { which }),
        2 => (on.clone(), 0..2i32).prop_map(|(on, code)| Move::End { on, code }),
        4 => on.clone().prop_map(|on| Move::Release { on }),
        2 => (1..NODES).prop_map(|on| Move::Boot { on }),
        1 => on.prop_map(|on| Move::CancelLane { on }),
        1 => (0..40u32, 1..6u32).prop_map(|(first, count)| Move::CancelTasks { first, count }),
        1 => prop::bool::weighted(0.1).prop_map(|ends| if ends { Move::CancelGroup } else { Move::Settle }),
        1 => Just(Move::Hold),
        2 => Just(Move::Resume),
        2 => Just(Move::Settle),
        1 => Just(Move::Restart),
    ]
}

fn a_group() -> impl Strategy<Value = TaskGroup> {
    (1..40u32, prop::option::of(1..4u32), prop::option::weighted(0.3, 0..4u32)).prop_map(|(count, concurrent_max, failures_max)| {
        let indices = TaskIndices::parse(&format!("0-{}", count - 1)).unwrap();
        TaskGroup { indices, concurrent_max, failures_max }
    })
}

/// What an agent knows of the lane on its node.
#[derive(Clone, Debug)]
struct Lane {
    id: AllocationId,
    epoch: Epoch,
    held: TaskSet,
    /// The tasks that the lane returns and no longer begins, and the number of its next return.
    returning: TaskSet,
    returns: u32,
}

impl Lane {
    /// What it may begin.
    fn runnable(&self) -> TaskSet {
        let mut tasks = self.held.clone();
        tasks.remove_all(&self.returning);
        tasks
    }
}

struct World {
    s: Story,
    group: TaskGroup,
    lanes: BTreeMap<u8, Lane>,
    /// The latest reports.
    sent: VecDeque<Action>,
    /// How each task ended, as reported under a current claim.
    ended: BTreeMap<u32, TaskOutcome>,
}

impl World {
    fn new(group: TaskGroup) -> Self {
        let mut s = Story::new(NODES);
        let tasks = Some(Box::new(group.clone()));
        let spec = AllocationSpec { tasks, walltime: Some(Duration::from_secs(60)), ..spec(1, RequeuePolicy::Never, 0) };
        s.done(Action::Submit { id: id(1), spec: Box::new(spec), owner: user(7), claim: None });
        Self { s, group, lanes: BTreeMap::new(), sent: VecDeque::new(), ended: BTreeMap::new() }
    }

    fn ledger(&self) -> &Ledger {
        &self.s.ledger
    }

    fn states(&self) -> TaskStates {
        self.ledger().task_states(id(1), WhichTasks::All).unwrap()
    }

    fn all_lanes(&self) -> Vec<Arc<Allocation>> {
        self.ledger().list(None, &[], 0, None, &ListFilter { lanes: WantedLanes::Of(id(1)), ..ListFilter::default() })
    }

    fn live_lanes(&self) -> usize {
        self.all_lanes().iter().filter(|lane| !lane.state.is_terminal()).count()
    }

    /// Applies a lane's report. The ends of tasks that it holds under a current claim are final.
    fn report(&mut self, action: Action) -> Option<LaneWork> {
        let Action::AdvanceLane { id: lane, epoch, report, .. } = &action else { panic!("{action:?} is no report") };
        let before = self.ledger().task_groups.get(&id(1)).unwrap();
        let number = self.ledger().allocation(*lane).and_then(|lane| lane.lane).map(|lane| lane.number);
        let lease = number.and_then(|number| before.lease(number)).filter(|lease| lease.epoch == *epoch);
        let held = lease.map(|lease| lease.tasks.clone()).unwrap_or_default();
        let ended: Vec<(u32, TaskOutcome)> = report
            .ended
            .iter()
            .flat_map(|ended| held.and(&ended.tasks).iter().map(|task| (task, ended.outcome)).collect::<Vec<_>>())
            .collect();
        match self.s.act(action) {
            Ok(Outcome::LaneWork(work)) => {
                for (task, outcome) in ended {
                    assert!(self.ended.insert(task, outcome).is_none(), "task {task} ended twice");
                }
                Some(work)
            }
            Ok(other) => panic!("{other:?}"),
            Err(Refusal::StaleEpoch { .. }) => None,
            Err(other) => panic!("{other:?}"),
        }
    }

    fn claim(&mut self, on: u8) {
        let Some(lane) = self.all_lanes().into_iter().find(|lane| lane.waits()) else { return };
        let hold_revision = self.ledger().node(&node(on)).unwrap().hold_revision;
        let shares = vec![ClaimShare { node: node(on), resources: SIZE, hold_revision }];
        let claim =
            Claim { allocation: lane.id, requeue_count: 0, lease_token: self.s.token, shares, after: None, by: None, walltime: None };
        if let Ok(Outcome::Claimed { epoch }) = self.s.act(Action::Claim(claim)) {
            self.s.report(on, ReportItem::Prepared { allocation: lane.id, epoch });
            self.lanes.insert(on, Lane { id: lane.id, epoch, held: TaskSet::default(), returning: TaskSet::default(), returns: 0 });
        }
    }

    fn advance(&mut self, on: u8, runs: u32, outcome: TaskOutcome, mean_us: u64, lost: bool) {
        let Some(lane) = self.lanes.get_mut(&on) else { return };
        let done = lane.runnable().take_first(runs);
        lane.held.remove_all(&done);
        let returned = (!lane.returning.is_empty()).then(|| LaneReturn { number: lane.returns, tasks: lane.returning.clone() });
        let report = LaneReport { ended: vec![EndedTasks { outcome, tasks: done }], mean_us, returned };
        let action = Action::AdvanceLane { id: lane.id, epoch: lane.epoch, node: node(on), report };
        self.sent.push_back(action.clone());
        if self.sent.len() > 8 {
            self.sent.pop_front();
        }
        let answer = self.report(action);
        if let (Some(work), Some(lane), false) = (answer, self.lanes.get_mut(&on), lost) {
            if work.returns == lane.returns + 1 {
                lane.returning = TaskSet::default();
            }
            lane.returning = lane.returning.and(&work.leased);
            (lane.held, lane.returns) = (work.leased, work.returns);
        }
    }

    fn boot(&mut self, on: u8) {
        let known = self.ledger().node(&node(on)).unwrap();
        let (boot, incarnation) = (known.boot.0.as_u128() + 1, known.incarnation.0);
        self.s.done(Action::Register(registration(on, boot, incarnation, true)));
        self.s.forget_reports(on);
        self.lanes.remove(&on);
    }

    fn act(&mut self, a_move: Move) {
        match a_move {
            Move::Claim { on } => self.claim(on),
            Move::Advance { on, runs, fails, mean_us, lost } => {
                self.advance(on, runs, TaskOutcome::Exited(i32::from(fails)), mean_us, lost);
            }
            Move::Return { on, keeps } => {
                if let Some(lane) = self.lanes.get_mut(&on).filter(|lane| lane.returning.is_empty()) {
                    let mut rest = lane.held.clone();
                    drop(rest.take_first(keeps));
                    lane.returning = rest;
                }
            }
            Move::Repeat { which } => {
                if let Some(action) = which.checked_rem(self.sent.len()).and_then(|at| self.sent.get(at)).cloned() {
                    self.report(action);
                }
            }
            Move::End { on, code } => {
                if let Some(Lane { id: allocation, epoch, .. }) = self.lanes.get(&on).cloned() {
                    self.s.report(on, ReportItem::Ended { allocation, epoch, reason: EndReason::Exited { code } });
                }
            }
            Move::Release { on } => {
                if let Some(Lane { id: allocation, epoch, .. }) = self.lanes.remove(&on) {
                    self.s.report(on, ReportItem::Released { allocation, epoch, usage: None });
                }
            }
            Move::Boot { on } => self.boot(on),
            Move::CancelLane { on } => {
                if let Some(lane) = self.lanes.get(&on).map(|lane| lane.id) {
                    self.s.done(Action::Cancel { id: lane, by: user(7) });
                }
            }
            Move::CancelTasks { first, count } => {
                let tasks = TaskSet::from(vec![(first, first + count)]);
                match self.s.act(Action::CancelTasks { id: id(1), tasks, by: user(7) }) {
                    Ok(Outcome::TasksCancelled { .. }) | Err(Refusal::Malformed { .. }) => {}
                    other => panic!("{other:?}"),
                }
            }
            Move::CancelGroup => self.s.done(Action::Cancel { id: id(1), by: user(7) }),
            // Refused once it has ended.
            Move::Hold => drop(self.s.act(Action::HoldAllocation { allocation: id(1), by: user(7) })),
            Move::Resume => drop(self.s.act(Action::Resume { allocation: id(1), by: user(7) })),
            Move::Settle => self.s.done(Action::SettleDependents),
            Move::Restart => self.s.ledger = rmp_serde::from_slice(&rmp_serde::to_vec_named(&self.s.ledger).unwrap()).unwrap(),
        }
    }

    fn check(&self) {
        let (states, count) = (self.states(), self.group.indices.count());
        let sets = [&states.waiting, &states.leased].into_iter().chain(states.ended.values());
        let mut all: Vec<u32> = sets.flat_map(|set| set.iter()).collect();
        all.sort_unstable();
        assert_eq!(all, (0..count).collect::<Vec<_>>(), "each task is in one set");
        for (task, outcome) in &self.ended {
            assert!(states.ended.get(outcome).is_some_and(|set| set.contains(*task)), "task {task} has ended with {outcome}");
        }
        let tasks = self.ledger().task_groups.get(&id(1)).unwrap();
        let may_run = self.live_lanes() + tasks.lanes_left_with_tasks() as usize;
        assert!(self.group.concurrent_max.is_none_or(|most| may_run <= most as usize), "too many lanes");
        assert_eq!((tasks.waiting_count, tasks.leased_count), (states.waiting.len(), states.leased.len()));
        let counts =
            |wanted: fn(TaskOutcome) -> bool| states.ended.iter().filter(|(how, _)| wanted(**how)).map(|(_, set)| set.len()).sum::<u32>();
        assert_eq!([tasks.completed, tasks.failed], [counts(TaskOutcome::is_success), counts(TaskOutcome::is_failure)]);
        for lane in self.all_lanes() {
            let place = lane.lane.unwrap();
            assert_eq!(lane.id, lane_id(id(1), place.number));
            let holds = tasks.lease(place.number).is_some_and(|lease| !lease.tasks.is_empty());
            let may_run = self.ledger().holdings.unfenced_of(lane.id) > 0;
            assert!(!holds || may_run, "{lane:?} holds tasks and is gone");
        }
        // No task runs in two lanes, whichever answers were lost.
        for lane in self.lanes.values() {
            let number = self.ledger().allocation(lane.id).and_then(|lane| lane.lane).map(|lane| lane.number);
            let lease = number.and_then(|number| tasks.lease(number)).filter(|lease| lease.epoch == lane.epoch);
            let Some(lease) = lease else { continue };
            let mut others = lane.runnable();
            others.remove_all(&lease.tasks);
            states.ended.values().for_each(|ended| others.remove_all(ended));
            assert!(others.is_empty(), "{lane:?} may begin {others:?}, which it does not hold");
        }
        let has_ended = self.ledger().allocation(id(1)).unwrap().state.is_terminal();
        assert_eq!(has_ended, tasks.unended_count() == 0);
        invariant_indexes_equal_scans(self.ledger());
        assert!(self.ledger().has_right_counts());
    }

    /// Everything goes right from now on: the group ends, and so do its lanes.
    fn finish(&mut self) {
        drop(self.s.act(Action::Resume { allocation: id(1), by: user(7) }));
        for _ in 0..400 {
            if self.live_lanes() == 0 && self.ledger().allocation(id(1)).unwrap().state.is_terminal() {
                return;
            }
            self.s.done(Action::SettleDependents);
            for on in 0..NODES {
                if !self.lanes.contains_key(&on) {
                    self.claim(on);
                }
                self.advance(on, 0, TaskOutcome::Exited(0), 1000, false);
                self.advance(on, u32::MAX, TaskOutcome::Exited(0), 1000, false);
                if self.lanes.get(&on).is_some_and(|lane| lane.held.is_empty()) {
                    self.act(Move::End { on, code: 0 });
                    self.act(Move::Release { on });
                }
            }
            self.check();
        }
        panic!("{:?} and {} lanes are left", self.states(), self.live_lanes());
    }
}

/// Plays the moves, then lets the group end. Returns how it ended.
fn play(group: TaskGroup, moves: &[Move]) -> (AllocationState, TaskStates) {
    let mut w = World::new(group);
    w.check();
    for a_move in moves {
        w.act(*a_move);
        w.check();
    }
    w.finish();
    (w.ledger().allocation(id(1)).unwrap().state, w.states())
}

#[test]
fn a_group_that_nothing_happens_to_completes() {
    let group = TaskGroup::parse("0-39%2").unwrap();
    let (state, states) = play(group, &[]);
    assert_eq!(
        (state, states.ended, states.counts.restarts),
        (AllocationState::Completed, [(TaskOutcome::Exited(0), TaskSet::first(40))].into(), 0)
    );
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn each_task_ends_once_and_every_group_ends(group in a_group(), moves in prop::collection::vec(a_move(), 0..80)) {
        play(group, &moves);
    }
}

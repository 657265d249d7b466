//! Task groups, when the backup lacks later leases: no task is lost.

use super::*;
use crate::task_groups::lane_id;
use crate::{ListFilter, WantedLanes, WhichTasks};
use lattice_model::{AllocationId, EndedTasks, LaneReport, LaneWork, TaskGroup, TaskOutcome, TaskSet};

fn lane(number: u32) -> AllocationId {
    lane_id(id(1), number)
}

fn tasks(ranges: &[(u32, u32)]) -> TaskSet {
    TaskSet::from(ranges.to_vec())
}

fn submit_group(quorum: &mut Quorum, text: &str) {
    let tasks = Some(Box::new(TaskGroup::parse(text).unwrap()));
    let spec = Box::new(AllocationSpec { tasks, ..spec(1, RequeuePolicy::Always, 9) });
    quorum.act(Action::Submit { id: id(1), spec, owner: user(7), claim: None }).unwrap();
}

fn run_lane(quorum: &mut Quorum, number: u32, on: u8) -> Epoch {
    let hold_revision = quorum.ledger.node(&node(on)).unwrap().hold_revision;
    let shares = vec![ClaimShare { node: node(on), resources: SIZE, hold_revision }];
    let claim =
        Claim { allocation: lane(number), requeue_count: 0, lease_token: quorum.token, shares, after: None, by: None, walltime: None };
    let Ok(Outcome::Claimed { epoch }) = quorum.act(Action::Claim(claim)) else { panic!("lane {number} waits for nodes") };
    quorum.report(on, ReportItem::Prepared { allocation: lane(number), epoch });
    epoch
}

fn advance(quorum: &mut Quorum, (number, on, epoch): (u32, u8, Epoch), ended: &[(u32, u32)]) -> Result<LaneWork, Refusal> {
    let ended = vec![EndedTasks { outcome: TaskOutcome::Exited(0), tasks: tasks(ended) }];
    let report = LaneReport { ended, mean_us: 5_000_000, returned: None };
    match quorum.act(Action::AdvanceLane { id: lane(number), epoch, node: node(on), report })? {
        Outcome::LaneWork(work) => Ok(work),
        other => panic!("{other:?}"),
    }
}

fn live_lanes(quorum: &Quorum) -> Vec<u32> {
    let lanes = quorum.ledger.list(None, &[], 0, None, &ListFilter { lanes: WantedLanes::Of(id(1)), ..ListFilter::default() });
    let mut numbers: Vec<u32> = lanes.iter().filter(|a| !a.state.is_terminal()).map(|a| a.lane.unwrap().number).collect();
    numbers.sort_unstable();
    numbers
}

fn work(leased: &[(u32, u32)], is_last: bool) -> Result<LaneWork, Refusal> {
    Ok(LaneWork { leased: tasks(leased), is_last, returns: 0 })
}

#[test]
fn a_running_lane_reports_tasks_that_wait_in_the_backup() {
    let mut quorum = three_nodes();
    submit_group(&mut quorum, "0-4%1");
    let zero = (0, 0, run_lane(&mut quorum, 0, 0));
    assert_eq!(advance(&mut quorum, zero, &[]), work(&[(0, 0)], false));
    let mut now = quorum.backup().recovered();
    assert_eq!(advance(&mut quorum, zero, &[(0, 0)]), work(&[(1, 1)], false));
    assert_eq!(advance(&mut quorum, zero, &[(1, 1)]), work(&[(2, 2)], false));

    assert!(matches!(advance(&mut now, zero, &[(1, 2)]), Err(Refusal::Unavailable { .. })), "it reports what it has first");
    (0..3).for_each(|n| now.return_node(n, 1, quorum.held(n)));
    // Task 0 is reported by a repetition, and task 2 has ended meanwhile.
    assert_eq!(advance(&mut now, zero, &[(0, 2)]), work(&[(3, 3)], false));
    assert_eq!(advance(&mut now, zero, &[(3, 3)]), work(&[(4, 4)], true));
    assert_eq!(advance(&mut now, zero, &[(4, 4)]), work(&[], true));
    let ended = now.ledger.task_states(id(1), WhichTasks::All).unwrap();
    assert_eq!(
        (now.state(1), ended.counts.restarts, ended.ended[&TaskOutcome::Exited(0)].clone()),
        (AllocationState::Completed, 0, tasks(&[(0, 4)]))
    );
}

#[test]
fn tasks_of_a_lane_that_is_gone_run_again() {
    let mut quorum = three_nodes();
    submit_group(&mut quorum, "0-2%1");
    let zero = (0, 0, run_lane(&mut quorum, 0, 0));
    assert_eq!(advance(&mut quorum, zero, &[]), work(&[(0, 0)], false));
    let mut now = quorum.backup().recovered();
    (0..3).for_each(|n| now.return_node(n, 1, vec![]));
    let states = now.ledger.task_states(id(1), WhichTasks::All).unwrap();
    assert_eq!((states.waiting, states.counts.restarts), (tasks(&[(0, 2)]), 1));
    // Numbers of lanes that the lost quorum may have used are not used again.
    assert_eq!(live_lanes(&now), [1_000_001]);
}

#[test]
fn no_lane_is_created_before_every_node_has_reported_what_it_has() {
    let mut quorum = three_nodes();
    submit_group(&mut quorum, "0-9%2");
    let mut now = quorum.backup().recovered();
    // Since the backup, both lanes began, and one was replaced.
    let zero = (0, 0, run_lane(&mut quorum, 0, 0));
    assert_eq!(advance(&mut quorum, zero, &[]), work(&[(0, 0)], false));
    quorum.report(0, ReportItem::Released { allocation: lane(0), epoch: zero.2, usage: None });
    let two = (2, 1, run_lane(&mut quorum, 2, 1));
    assert_eq!(advance(&mut quorum, two, &[]), work(&[(0, 0)], false));

    now.return_node(0, 1, quorum.held(0));
    now.act(Action::Cancel { id: lane(0), by: user(7) }).unwrap();
    assert_eq!(live_lanes(&now), [1]);
    now.return_node(1, 1, quorum.held(1));
    assert_eq!(live_lanes(&now), [1, 2], "the backup does not know lane 2");
    assert_eq!(advance(&mut now, two, &[(0, 0)]), work(&[(1, 1)], false));
    now.return_node(2, 1, vec![]);
    assert_eq!(live_lanes(&now), [1, 2]);
    now.act(Action::Cancel { id: lane(1), by: user(7) }).unwrap();
    assert_eq!(live_lanes(&now), [2, 1_000_002]);
}

#[test]
fn a_group_that_the_backup_lacks_is_adopted_with_a_lane() {
    let mut quorum = three_nodes();
    let mut now = quorum.backup().recovered();
    submit_group(&mut quorum, "5-8%1");
    let zero = (0, 0, run_lane(&mut quorum, 0, 0));
    advance(&mut quorum, zero, &[]).unwrap();
    // An agent that asks before its node has reported gets an answer that lets it ask again.
    assert!(matches!(advance(&mut now, zero, &[]), Err(Refusal::Unavailable { .. })));
    assert!(matches!(advance(&mut now, (0, 9, zero.2), &[]), Err(Refusal::Unavailable { .. })), "nor has a node that the backup lacks");
    (0..3).for_each(|n| now.return_node(n, 1, quorum.held(n)));
    let group = now.ledger.allocation(id(1)).unwrap();
    assert!(group.is_task_group() && group.shown_state() == AllocationState::Running);
    assert_eq!(group.spec.walltime, quorum.ledger.allocation(id(1)).unwrap().spec.walltime);
    assert_eq!(advance(&mut now, zero, &[(0, 0)]), work(&[(1, 1)], false));
    assert_eq!(live_lanes(&now), [0]);
}

#[test]
fn a_share_that_is_no_lane_of_its_group_is_refused() {
    let mut quorum = three_nodes();
    submit_group(&mut quorum, "0-1%1");
    run_lane(&mut quorum, 0, 0);
    let mut now = quorum.backup().recovered();
    let Ok(Outcome::Registered { incarnation, .. }) = now.act(Action::Register(registration(0, 1, 1, false))) else {
        panic!("the node is known")
    };
    let changed = |change: &dyn Fn(&mut HeldShare)| {
        let mut held = quorum.held(0);
        change(&mut held[0]);
        Action::Adopt { node: node(0), incarnation, held, unreported: vec![] }
    };
    assert!(matches!(now.act(changed(&|held| held.share.lane = None)), Err(Refusal::Malformed { .. })));
    assert!(matches!(now.act(changed(&|held| held.share.spec.tasks = None)), Err(Refusal::Malformed { .. })));
    assert!(matches!(now.act(changed(&|held| held.share.lane.as_mut().unwrap().number = 7)), Err(Refusal::Malformed { .. })));
    assert!(matches!(now.act(changed(&|held| held.share.owner = user(8))), Err(Refusal::Malformed { .. })));
    assert_eq!(lane(u32::MAX), id(1));
    let as_group = |held: &mut HeldShare| {
        held.share.allocation = id(1);
        held.share.lane.as_mut().unwrap().number = u32::MAX;
    };
    assert!(matches!(now.act(changed(&as_group)), Err(Refusal::Malformed { .. })));
    now.act(changed(&|_| {})).unwrap();
}

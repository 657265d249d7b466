//! Scenarios of the lanes of task groups: the nodes that they avoid, and the tasks that they return.

use super::scenarios::{Story, id, node};
use super::task_group_scenarios::{
    DONE, LONG_US, SHORT_US, advance, check, claim, ends, lane, live_lanes, releases, runs, states, story, tasks, work,
};
use super::{Action, Outcome, Refusal};
use lattice_model::{AllocationId, LaneReport, LaneReturn, LaneWork, ReportItem};

/// Why node 0 is excluded for this allocation.
fn excluded(s: &Story, of: AllocationId) -> Option<String> {
    s.ledger.allocation(of).unwrap().exclusion(&node(0)).map(|excluded| excluded.why.clone())
}

#[test]
fn lanes_avoid_a_node_that_cannot_start_tasks_for_a_while() {
    let mut s = story(2, "0-5%2");
    let epoch = runs(&mut s, 0, 0);
    assert_eq!((live_lanes(&s), excluded(&s, lane(1))), (vec![0, 1], None));
    ends(&mut s, 0, 0, epoch, 126);
    releases(&mut s, 0, 0, epoch);
    let why = Some(format!("lane {} of its task group could not start tasks there: exit_code 126", lane(0).short()));
    assert_eq!(live_lanes(&s), [1, 2]);
    for of in [id(1), lane(1), lane(2)] {
        assert_eq!(excluded(&s, of), why, "the group, the lane that waited and the next one");
    }
    let refused = claim(&s, lane(1), 0);
    assert!(matches!(s.act(Action::Claim(refused)), Err(Refusal::Conflict { .. })));
    runs(&mut s, 1, 1);
    check(&s);
    s.pass(30_000);
    s.done(Action::EndWaits { now: s.now() });
    assert_eq!((excluded(&s, id(1)), excluded(&s, lane(2))), (None, None));
    // A lane fails there once more: the node is avoided for twice as long.
    let epoch = runs(&mut s, 2, 0);
    ends(&mut s, 2, 0, epoch, 127);
    s.pass(30_000);
    s.done(Action::EndWaits { now: s.now() });
    assert!(excluded(&s, lane(3)).is_some());
    // A lane that ends as its tasks do says nothing about its node.
    let mut s = story(1, "0-5%1");
    let epoch = runs(&mut s, 0, 0);
    ends(&mut s, 0, 0, epoch, 0);
    assert_eq!(excluded(&s, lane(1)), None);
    check(&s);
}

#[test]
fn nodes_that_other_lanes_failed_at_do_not_count_against_a_lane() {
    let mut s = story(4, "0-5%1");
    for on in 0..3_u8 {
        let epoch = runs(&mut s, on.into(), on);
        ends(&mut s, on.into(), on, epoch, 127);
        releases(&mut s, on.into(), on, epoch);
    }
    let claim = claim(&s, lane(3), 3);
    s.done_claim(claim);
    let epoch = s.ledger.allocation(lane(3)).unwrap().epoch;
    s.report(3, ReportItem::PrepareFailed { allocation: lane(3), epoch, why: "no image".into() });
    releases(&mut s, 3, 3, epoch);
    let waits = s.ledger.allocation(lane(3)).unwrap();
    assert!(waits.waits() && waits.excluded.len() == 4, "its first failed prologue does not end it: {waits:?}");
    assert_eq!(s.ledger.allocation(id(1)).unwrap().excluded.len(), 4);
    // No node is left: the lane waits until a node is tried again.
    s.pass(30_000);
    s.done(Action::EndWaits { now: s.now() });
    runs(&mut s, 3, 0);
    check(&s);
}

#[test]
fn returned_tasks_run_in_another_lane_without_a_restart() {
    let mut s = story(2, "0-19%2");
    let zero = (0, 0, runs(&mut s, 0, 0));
    assert_eq!(advance(&mut s, zero, &[], SHORT_US), work(&[(0, 10)], false));
    let returns = |s: &mut Story, number, ranges| {
        let returned = Some(LaneReturn { number, tasks: tasks(ranges) });
        let report = LaneReport { returned, mean_us: SHORT_US, ..LaneReport::default() };
        match s.act(Action::AdvanceLane { id: lane(0), epoch: zero.2, node: node(0), report }) {
            Ok(Outcome::LaneWork(work)) => work,
            other => panic!("{other:?}"),
        }
    };
    let holds = |ranges, returns| LaneWork { leased: tasks(ranges), is_last: false, returns };
    assert_eq!(returns(&mut s, 0, &[(1, 10)]), holds(&[(0, 0)], 1), "and it gets no other");
    let one = (1, 1, runs(&mut s, 1, 1));
    assert_eq!(advance(&mut s, one, &[], SHORT_US), work(&[(1, 5)], false));
    // The first report arrives once more, when the lane holds one of its tasks again.
    assert_eq!(advance(&mut s, zero, &[(DONE, &[(0, 0)])], LONG_US), Ok(holds(&[(6, 6)], 1)));
    assert_eq!(returns(&mut s, 0, &[(1, 10)]), holds(&[(6, 6)], 1));
    assert_eq!(returns(&mut s, 1, &[(6, 6)]), holds(&[], 2));
    let now = states(&s);
    assert_eq!((now.leased, now.waiting, now.counts.restarts), (tasks(&[(1, 5)]), tasks(&[(6, 19)]), 0));
    check(&s);
}

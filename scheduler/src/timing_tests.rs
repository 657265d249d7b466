//! Work with a least walltime, a deadline or a `nice`.

use crate::backfill_tests::{began, lasting, placed, reason, starts};
use crate::tests::{NOW, id, pending, view, with_plan};
use crate::{View, waiting_in};
use lattice_model::test_builders::spec_of;
use lattice_model::{Allocation, AllocationId, Timestamp, Timing};
use std::time::Duration;

const MINUTE: Duration = Duration::from_secs(60);
const MINUTE_MS: u64 = 60_000;

fn timed(mut allocation: Allocation, timing: Timing) -> Allocation {
    spec_of(&mut allocation).timing = timing.unless_empty();
    allocation
}

/// The allocation with this many minutes as its least walltime.
fn at_least(allocation: Allocation, minutes: u32) -> Allocation {
    timed(allocation, Timing { walltime_min: Some(MINUTE * minutes), ..Timing::default() })
}

fn nice(mut allocation: Allocation, nice: i32) -> Allocation {
    spec_of(&mut allocation).nice = nice;
    allocation
}

/// The allocations that begin, and their walltimes in minutes if those are less than they ask for.
fn granted(view: &View) -> Vec<(AllocationId, Option<u64>)> {
    let claims = with_plan(view, NOW, |plan| plan.claims(|_| Some(1)));
    claims.into_iter().map(|claim| (claim.allocation, claim.walltime.map(|walltime| walltime.as_secs() / 60))).collect()
}

/// n1 is held for 20 more minutes, allocation 1 wants all three nodes, and `behind` waits behind it.
fn behind_a_reservation(behind: Vec<Allocation>) -> View {
    let held = began(lasting(pending(9, 1, 1), 30), "n1", 10);
    view(3, [vec![held, lasting(pending(1, 3, 10), 60)], behind].concat())
}

#[test]
fn work_begins_with_less_than_its_walltime_if_a_reservation_is_in_the_way() {
    let hour = |n, at| lasting(pending(n, 1, at), 60);
    let v = behind_a_reservation(vec![at_least(hour(2, 20), 5), at_least(hour(3, 30), 30), hour(4, 40)]);
    assert_eq!(granted(&v), [(id(2), Some(20))], "3 needs more than there is, and 4 all of it");
    assert_eq!(placed(&v), [(id(2), vec!["n2".into()])]);
    assert_eq!(starts(&v)[0], (id(1), Some(20)), "the reservation stays");
    // Without a reservation in the way, it gets all that it asks for.
    assert_eq!(granted(&view(1, vec![at_least(hour(2, 20), 5)])), [(id(2), None)]);
}

#[test]
fn a_deadline_bounds_the_walltime_and_ends_a_wait() {
    let due = |walltime_min: Option<Duration>| {
        let deadline = Some(Timestamp(NOW.0 + 30 * MINUTE_MS));
        view(1, vec![timed(lasting(pending(1, 1, 10), 60), Timing { begin: None, deadline, walltime_min })])
    };
    assert!(granted(&due(None)).is_empty());
    assert_eq!(reason(&due(None), 1), "could not end by its deadline");
    assert_eq!(granted(&due(Some(MINUTE * 10))), [(id(1), Some(30))]);
    assert!(granted(&due(Some(MINUTE * 31))).is_empty());
}

#[test]
fn each_unit_of_nice_costs_a_minute_of_waiting() {
    let order = |first: i32, second: i32| {
        let v = view(1, vec![nice(pending(1, 2, 10 * MINUTE_MS), first), nice(pending(2, 2, 12 * MINUTE_MS), second)]);
        waiting_in(&v, "default", NOW).iter().map(|a| a.id).collect::<Vec<_>>()
    };
    assert_eq!(order(0, 0), [id(1), id(2)]);
    assert_eq!(order(1, 0), [id(1), id(2)], "it still waits for a minute more");
    assert_eq!(order(3, 0), [id(2), id(1)]);
    assert_eq!(order(0, -3), [id(2), id(1)]);
    assert_eq!(order(3, 3), [id(1), id(2)]);
    // If `nice` exceeds the waits, the order of the queue stays.
    assert_eq!(order(9000, 9000), [id(1), id(2)]);
    // That is so at any time, however the waits are rounded.
    let v = view(1, vec![nice(pending(1, 2, 10 * MINUTE_MS), 9000), nice(pending(2, 2, 12 * MINUTE_MS), 9000)]);
    for later_ms in (0..20_000).step_by(97) {
        let waiting = waiting_in(&v, "default", Timestamp(NOW.0 + later_ms));
        assert_eq!(waiting.iter().map(|a| a.id).collect::<Vec<_>>(), [id(1), id(2)], "{later_ms} ms later");
    }
}

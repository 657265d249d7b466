//! Nodes that operators set aside for a time: exact plans.

use crate::backfill_tests::{began, lasting, placed, reason, starts, summary};
use crate::spread_tests::spread;
use crate::tests::{NOW, id, pending, view, with_plan};
use crate::{Outlook, View, explain};
use lattice_model::test_builders::spec_of;
use lattice_model::{Allocation, Reservation, Revision, Timestamp, Timing, hostlist};
use std::sync::Arc;
use std::time::Duration;

const MINUTE_MS: u64 = 60_000;

/// The view with these nodes set aside for user `u`, to whom all work belongs. `from` and `until` are minutes from now.
fn with_window(mut view: View, name: &str, nodes: &str, (from, until): (i64, i64)) -> View {
    let time = |minutes: i64| Timestamp(NOW.0.saturating_add_signed(minutes * 60_000));
    let reservation = Reservation {
        name: name.into(),
        nodes: hostlist::expand(nodes).unwrap(),
        start: time(from),
        end: time(until),
        tenants: Default::default(),
        users: [("u".to_owned(), 1000)].into(),
        maintenance: false,
        comment: String::new(),
        created_by: "root".into(),
        created_at: Timestamp(1),
        revision: Revision(1),
    };
    view.reservations.insert(name.into(), Arc::new(reservation));
    view
}

fn naming(mut allocation: Allocation, reservation: &str) -> Allocation {
    spec_of(&mut allocation).reservation = Some(reservation.to_owned());
    allocation
}

fn start_in_minutes(view: &View, n: u64) -> Option<u64> {
    Outlook::of(view, NOW).get(&id(n)).unwrap().start.map(|start| start.since_ms(NOW) / MINUTE_MS)
}

#[test]
fn other_work_begins_on_a_node_if_it_ends_before_the_window() {
    let of_two = view(2, vec![lasting(pending(1, 1, 10), 60), lasting(pending(2, 1, 20), 30)]);
    let v = with_window(of_two, "course", "n1", (30, 90));
    assert_eq!(placed(&v), [(id(1), vec!["n2".into()]), (id(2), vec!["n1".into()])]);
    let v = with_window(view(1, vec![lasting(pending(2, 1, 20), 31)]), "course", "n1", (30, 90));
    assert_eq!((placed(&v), starts(&v)), (vec![], vec![(id(2), Some(90))]));
}

#[test]
fn work_that_would_last_into_a_window_waits_and_its_reason_names_the_reservation() {
    let v = with_window(view(1, vec![lasting(pending(1, 1, 10), 60)]), "course", "n1", (30, 90));
    assert_eq!((placed(&v), starts(&v)), (vec![], vec![(id(1), Some(90))]));
    assert_eq!(reason(&v, 1), "starts ~02:30Z: reservation course");
    let (from, until) = ("1970-01-01T01:30:00.000Z", "1970-01-01T02:30:00.000Z");
    let want = format!(
        "wants 1 node, 1 is free: it is next; expected to start at {until} on n1; reservation course sets nodes aside from {from} to \
         {until}, and it would last into that time"
    );
    assert_eq!(summary(&v, 1), want);
    let why: Vec<String> = explain(&v, &v.allocations[&id(1)], NOW).nodes.iter().map(|(node, why)| format!("{node} {why}")).collect();
    assert_eq!(why, [format!("n1 is set aside by reservation course from {from} to {until}")]);
}

#[test]
fn work_fits_between_windows_or_waits_for_the_last_one() {
    let between = |minutes| {
        let v = with_window(view(1, vec![lasting(pending(1, 1, 10), minutes)]), "first", "n1", (0, 60));
        with_window(v, "second", "n1", (90, 120))
    };
    assert_eq!(starts(&between(30)), [(id(1), Some(60))]);
    assert_eq!(starts(&between(31)), [(id(1), Some(120))]);
    assert_eq!(starts(&between(0)), [(id(1), Some(120))], "without a walltime it never has ended");
}

#[test]
fn a_start_suits_all_nodes_of_wide_work() {
    let v = with_window(view(2, vec![lasting(pending(1, 2, 10), 60)]), "first", "n1", (30, 60));
    assert_eq!(starts(&v), [(id(1), Some(60))]);
    // At the end of the first window, the second one is in the way.
    let v = with_window(v, "second", "n2", (90, 120));
    assert_eq!((placed(&v), starts(&v)), (vec![], vec![(id(1), Some(120))]));
}

#[test]
fn work_that_waits_for_the_end_of_a_window_does_not_delay_shorter_work() {
    let held = began(lasting(pending(9, 1, 1), 20), "n1", 10);
    let v = view(1, vec![held, lasting(pending(1, 1, 10), 120), lasting(pending(2, 1, 20), 10)]);
    let v = with_window(v, "course", "n1", (60, 90));
    assert_eq!(starts(&v)[0], (id(1), Some(90)));
    // Once the node is free, the shorter work begins.
    let v = view(1, vec![lasting(pending(1, 1, 10), 120), lasting(pending(2, 1, 20), 10)]);
    let v = with_window(v, "course", "n1", (60, 90));
    assert_eq!((placed(&v), starts(&v)), (vec![(id(2), vec!["n1".into()])], vec![(id(1), Some(90))]));
}

#[test]
fn work_that_names_a_reservation_waits_for_its_start_and_is_in_nobodys_way() {
    let v = view(1, vec![naming(lasting(pending(1, 1, 10), 60), "course"), lasting(pending(2, 1, 20), 20)]);
    let v = with_window(v, "course", "n1", (30, 90));
    assert_eq!(placed(&v), [(id(2), vec!["n1".into()])]);
    assert_eq!((reason(&v, 1), start_in_minutes(&v, 1)), ("reservation not open yet: course".to_owned(), Some(30)));
    assert_eq!(summary(&v, 1), "waits for the start of reservation course, 1970-01-01T01:30:00.000Z");
}

#[test]
fn work_whose_ranks_are_spread_waits_for_the_start_too() {
    let waits = || view(2, vec![naming(spread(1, 2, true), "course")]);
    let v = with_window(waits(), "course", "n[1-2]", (30, 90));
    assert_eq!((placed(&v), reason(&v, 1)), (vec![], "reservation not open yet: course".to_owned()));
    assert_eq!(placed(&with_window(waits(), "course", "n[1-2]", (-1, 90))), [(id(1), vec!["n1".into()])]);
}

#[test]
fn in_the_window_work_that_names_the_reservation_has_its_nodes() {
    let v = view(2, vec![lasting(pending(2, 1, 5), 60), naming(lasting(pending(1, 1, 10), 60), "course")]);
    let v = with_window(v, "course", "n1", (-1, 90));
    assert_eq!(placed(&v), [(id(2), vec!["n2".into()]), (id(1), vec!["n1".into()])]);
    // It may last beyond the end, but not into the window of another reservation.
    let long = || view(1, vec![naming(lasting(pending(1, 1, 10), 120), "course")]);
    let v = with_window(long(), "course", "n1", (-1, 90));
    assert_eq!(placed(&v), [(id(1), vec!["n1".into()])]);
    let v = with_window(with_window(long(), "course", "n1", (-1, 90)), "fans", "n1", (100, 110));
    assert_eq!((placed(&v), reason(&v, 1)), (vec![], "reservation ends too soon: course".to_owned()));
}

#[test]
fn work_waits_with_the_problem_of_its_reservation_as_the_reason() {
    let waits = || view(1, vec![naming(lasting(pending(1, 1, 10), 60), "course")]);
    assert_eq!(reason(&waits(), 1), "reservation deleted: course");
    assert_eq!(reason(&with_window(waits(), "course", "n1", (-90, 0)), 1), "reservation over: course");
    let mut v = with_window(waits(), "course", "n1", (-1, 90));
    Arc::make_mut(v.reservations.get_mut("course").unwrap()).users = [("other".to_owned(), 1001)].into();
    assert_eq!(reason(&v, 1), "reservation for others: course");
    let mut maintenance = with_window(view(1, vec![lasting(pending(1, 1, 10), 60)]), "fans", "n1", (-1, 90));
    let fans = Arc::make_mut(maintenance.reservations.get_mut("fans").unwrap());
    (fans.users, fans.maintenance) = (Default::default(), true);
    assert_eq!((placed(&maintenance), starts(&maintenance)), (vec![], vec![(id(1), Some(90))]));
    let held = began(lasting(pending(9, 1, 1), 30), "n1", 10);
    let full = view(1, vec![held, naming(lasting(pending(1, 1, 10), 60), "course")]);
    assert_eq!(reason(&with_window(full, "course", "n1", (-60, 10)), 1), "reservation ends too soon: course");
}

#[test]
fn work_with_a_least_walltime_begins_with_what_is_left_until_the_window() {
    let mut allocation = lasting(pending(1, 1, 10), 60);
    let timing = Timing { walltime_min: Some(Duration::from_secs(300)), ..Timing::default() };
    spec_of(&mut allocation).timing = timing.unless_empty();
    let v = with_window(view(1, vec![allocation]), "course", "n1", (30, 90));
    let claims = with_plan(&v, NOW, |plan| plan.claims(|_| Some(1)));
    assert_eq!(claims.iter().map(|claim| claim.walltime).collect::<Vec<_>>(), [Some(Duration::from_secs(1800))]);
}

//! Scenarios of advance reservations.

use super::reservations::RESERVATIONS_MAX;
use super::scenarios::{Story, id, node, prepared, spec, user};
use super::{Action, AllocationChange, Outcome, Refusal, ReservationChange, UpdateRefusal};
use lattice_model::{AllocationSpec, AuditAction, AuditRecord, Epoch, Principal, RequeuePolicy, Timestamp};
use std::time::Duration;

const HOUR_MS: u64 = 3_600_000;

/// Of these nodes for user `u7`, from so many milliseconds from now on, for an hour.
fn reservation(s: &Story, name: &str, nodes: &[u8], in_ms: u64) -> ReservationChange {
    let start = Timestamp(s.now().0 + in_ms);
    ReservationChange {
        name: name.into(),
        create: true,
        nodes: Some(nodes.iter().map(|number| node(*number)).collect()),
        start: Some(start),
        end: Some(Timestamp(start.0 + HOUR_MS)),
        users: Some([("u7".to_owned(), 7)].into()),
        ..ReservationChange::default()
    }
}

fn set(change: ReservationChange) -> Action {
    Action::SetReservation { change, by: "root".into() }
}

fn delete(name: &str) -> Action {
    Action::DeleteReservation { name: name.into(), by: "root".into() }
}

/// Of one node and ten minutes.
fn ten_minutes(reservation: Option<&str>) -> AllocationSpec {
    let walltime = Some(Duration::from_secs(600));
    AllocationSpec { walltime, reservation: reservation.map(str::to_owned), ..spec(1, RequeuePolicy::Never, 0) }
}

fn submit(s: &mut Story, number: u128, spec: AllocationSpec, uid: u32) -> Result<Outcome, Refusal> {
    s.act(Action::Submit { id: id(number), spec: Box::new(spec), owner: user(uid), claim: None })
}

fn conflict(result: Result<Outcome, Refusal>) -> String {
    match result {
        Err(Refusal::Conflict { conflicts }) => format!("{} {}", conflicts[0].node, conflicts[0].why),
        other => panic!("{other:?}"),
    }
}

#[test]
fn other_work_is_on_its_nodes_only_if_it_has_ended_before_the_window() {
    let mut s = Story::new(3);
    let course = reservation(&s, "course", &[0, 1], 700_000);
    let (start, end) = (course.start.unwrap(), course.end.unwrap());
    s.done(set(course));
    submit(&mut s, 1, ten_minutes(None), 8).unwrap();
    s.claimed(1, &[0]);
    s.report(0, prepared(1, Epoch(1)));
    // Two minutes later the next one would last into the window.
    s.pass(120_000);
    submit(&mut s, 2, ten_minutes(None), 8).unwrap();
    let why = format!("n1 is set aside by reservation course from {start} to {end}");
    assert_eq!(conflict(s.claim(2, &[1])), why);
    s.claimed(2, &[2]);
    // Work without an end gets no such node before the window is over.
    submit(&mut s, 3, AllocationSpec { walltime: None, ..ten_minutes(None) }, 8).unwrap();
    assert_eq!(conflict(s.claim(3, &[1])), why);
    // What has nodes keeps them when the window begins.
    s.pass(start.since_ms(s.now()));
    assert!(!s.ledger.allocation(id(1)).unwrap().state.is_without_nodes());
}

#[test]
fn the_reservation_of_work_that_waits_is_changed() {
    let mut s = Story::new(2);
    let course = reservation(&s, "course", &[0], 60_000);
    let start = course.start.unwrap();
    s.done(set(course));
    submit(&mut s, 1, ten_minutes(None), 7).unwrap();
    let change = |name: &str| {
        let change = AllocationChange { reservation: Some(name.to_owned()), ..AllocationChange::default() };
        Action::UpdateAllocation { allocation: id(1), by: user(7), change, as_operator: false }
    };
    assert!(matches!(s.act(change("cuorse")), Err(Refusal::NoSuchReservation { .. })));
    let details = |records: Vec<AuditRecord>| records.into_iter().map(|record| record.detail).collect::<Vec<_>>();
    assert_eq!(details(s.acted(change("course"))), ["reservation course instead of none while Pending"]);
    assert_eq!(submit(&mut s, 1, ten_minutes(None), 7), Ok(Outcome::Submitted { number: 1 }), "it is known as what was submitted");
    s.pass(start.since_ms(s.now()));
    assert_eq!(conflict(s.claim(1, &[1])), "n1 is not a node of reservation course");
    assert_eq!(details(s.acted(change(""))), ["reservation none instead of course while Pending"]);
    s.claimed(1, &[1]);
    let has_begun = matches!(s.act(change("course")), Err(Refusal::Update { why: UpdateRefusal::HasBegun { .. }, .. }));
    assert!(has_begun && s.acted(change("")).is_empty());
}

#[test]
fn work_that_names_it_begins_in_the_window_on_its_nodes() {
    let mut s = Story::new(2);
    let course = reservation(&s, "course", &[0], 60_000);
    let (start, end) = (course.start.unwrap(), course.end.unwrap());
    s.done(set(course));
    submit(&mut s, 1, ten_minutes(Some("course")), 7).unwrap();
    let why = format!("allocation {} may begin only in the window of reservation course: from {start} to {end}", id(1));
    assert_eq!(s.claim(1, &[0]).unwrap_err().to_string(), why);
    s.pass(start.since_ms(s.now()));
    assert_eq!(conflict(s.claim(1, &[1])), "n1 is not a node of reservation course");
    s.claimed(1, &[0]);
    submit(&mut s, 2, ten_minutes(Some("course")), 7).unwrap();
    s.pass(end.since_ms(s.now()));
    assert_eq!(s.claim(2, &[0]).unwrap_err(), Refusal::ReservationOver { name: "course".into(), end });
    assert!(matches!(submit(&mut s, 3, ten_minutes(Some("course")), 7), Err(Refusal::ReservationOver { .. })));
}

#[test]
fn a_submission_to_a_reservation_that_is_not_its_owners_is_refused() {
    let mut s = Story::new(2);
    let of_physics = ReservationChange { tenants: Some(["physics".to_owned()].into()), ..reservation(&s, "course", &[0], 60_000) };
    s.done(set(of_physics));
    let why = submit(&mut s, 1, ten_minutes(Some("cours")), 7).unwrap_err().to_string();
    assert_eq!(why, "there is no reservation \"cours\"; did you mean \"course\"?");
    let why = submit(&mut s, 1, ten_minutes(Some("course")), 8).unwrap_err().to_string();
    assert_eq!(why, "reservation course is not for user u8, and this is work of no tenant");
    // An account of this name on a machine with other numbers.
    let (spec, owner) = (Box::new(ten_minutes(Some("course"))), Principal { uid: 1007, ..user(7) });
    let why = s.act(Action::Submit { id: id(1), spec, owner, claim: None }).unwrap_err().to_string();
    assert_eq!(why, "reservation course is not for user u7 with uid 1007, and this is work of no tenant");
    submit(&mut s, 1, AllocationSpec { tenant: "physics".into(), ..ten_minutes(Some("course")) }, 8).unwrap();
    let wide = AllocationSpec { nodes: 2, ..ten_minutes(Some("course")) };
    let why = submit(&mut s, 2, wide, 7).unwrap_err().to_string();
    assert_eq!(why, "the request is malformed: reservation: course has 1 node, but the work asks for 2 nodes");
    let maintenance = ReservationChange { users: None, maintenance: Some(true), ..reservation(&s, "fans", &[1], 60_000) };
    s.done(set(maintenance));
    let why = submit(&mut s, 2, ten_minutes(Some("fans")), 7).unwrap_err().to_string();
    assert_eq!(why, "reservation fans is for maintenance: nobody's work uses it");
}

#[test]
fn once_it_is_deleted_its_nodes_are_everybodys_and_its_work_waits() {
    let mut s = Story::new(1);
    s.done(set(reservation(&s, "course", &[0], 0)));
    submit(&mut s, 1, ten_minutes(Some("course")), 7).unwrap();
    submit(&mut s, 2, ten_minutes(None), 8).unwrap();
    assert!(conflict(s.claim(2, &[0])).starts_with("n0 is set aside by reservation course"));
    let records = s.acted(delete("course"));
    assert_eq!((records[0].action, records[0].detail.as_str()), (AuditAction::ReservationDeleted, "course"));
    assert!(matches!(s.claim(1, &[0]), Err(Refusal::NoSuchReservation { .. })));
    assert!(s.ledger.allocation(id(1)).unwrap().waits());
    s.claimed(2, &[0]);
    assert!(matches!(s.act(delete("course")), Err(Refusal::NoSuchReservation { .. })));
}

#[test]
fn a_change_is_checked_like_a_creation_and_a_repetition_is_a_success() {
    let mut s = Story::new(3);
    let course = reservation(&s, "course", &[0, 1], 60_000);
    s.done(set(course.clone()));
    let revision = s.ledger.reservation("course").unwrap().revision;
    s.done(set(course.clone()));
    assert_eq!(s.ledger.reservation("course").unwrap().revision, revision, "a repetition changes nothing");
    let other = ReservationChange { comment: Some("x".into()), ..course.clone() };
    assert_eq!(s.act(set(other)), Err(Refusal::ReservationExists { name: "course".into() }));
    let more = ReservationChange { name: "course".into(), nodes: Some([node(2)].into()), ..ReservationChange::default() };
    let records = s.acted(set(more));
    assert_eq!(records[0].action, AuditAction::ReservationSet);
    assert!(records[0].detail.starts_with("course: n2 from ") && records[0].detail.ends_with(", for user u7"), "{}", records[0].detail);
    // Two windows never overlap on a node; one may begin when another ends.
    let second = reservation(&s, "second", &[2], 120_000);
    let refused = s.act(set(second.clone())).unwrap_err();
    assert!(refused.to_string().starts_with("node n2 is set aside by reservation course from "), "{refused}");
    s.done(set(ReservationChange { nodes: Some([node(0)].into()), ..second }));
    let unknown = ReservationChange { nodes: Some([node(9)].into()), ..reservation(&s, "third", &[], 0) };
    assert_eq!(s.act(set(unknown)), Err(Refusal::NoSuchNode { node: node(9) }));
    let over = ReservationChange { end: Some(Timestamp(1)), start: Some(Timestamp(0)), ..reservation(&s, "third", &[1], 0) };
    assert!(s.act(set(over)).unwrap_err().to_string().contains("give a later end"));
    let endless = ReservationChange { end: None, ..reservation(&s, "third", &[1], 0) };
    assert!(s.act(set(endless)).unwrap_err().to_string().ends_with("give a time or a duration"));
    let unknown = ReservationChange { name: "secnd".into(), ..ReservationChange::default() };
    assert_eq!(s.act(set(unknown)).unwrap_err().to_string(), "there is no reservation \"secnd\"; did you mean \"second\"?");
}

#[test]
fn work_that_ends_as_the_window_begins_may_be_claimed_a_moment_after_its_plan() {
    let mut s = Story::new(1);
    submit(&mut s, 1, ten_minutes(None), 8).unwrap();
    // Each command is a second later than the one before it.
    s.done(set(reservation(&s, "course", &[0], 600_000)));
    s.claimed(1, &[0]);
    // Once the window is open, however short the work is.
    let mut s = Story::new(1);
    s.done(set(reservation(&s, "course", &[0], 0)));
    submit(&mut s, 1, AllocationSpec { walltime: Some(Duration::from_secs(1)), ..ten_minutes(None) }, 8).unwrap();
    assert!(conflict(s.claim(1, &[0])).starts_with("n0 is set aside by reservation course"));
}

#[test]
fn reservations_are_bounded_and_those_that_are_over_give_their_places() {
    let mut s = Story::new(1);
    for number in 0..RESERVATIONS_MAX as u64 {
        s.done(set(reservation(&s, &format!("r{number}"), &[0], 60_000 + number * 2 * HOUR_MS)));
    }
    let late = |s: &Story| reservation(s, "late", &[0], 1000 * HOUR_MS);
    let full = s.act(set(late(&s))).unwrap_err();
    assert_eq!(full, Refusal::TooMany { what: "reservations".into(), most: RESERVATIONS_MAX as u64 });
    s.pass(2 * HOUR_MS);
    s.done(set(late(&s)));
    assert!(s.ledger.reservation("r0").is_none() && s.ledger.reservation("r1").is_some());
    assert_eq!(s.ledger.reservations().count(), RESERVATIONS_MAX);
}

#[test]
fn one_that_has_been_over_for_a_week_is_forgotten_without_a_change_of_another_one() {
    let mut s = Story::new(1);
    s.done(set(reservation(&s, "course", &[0], 0)));
    s.pass(7 * 24 * HOUR_MS);
    assert!(s.ledger.reservation("course").is_some(), "it ended an hour later than it was created");
    s.pass(2 * HOUR_MS);
    assert!(s.ledger.reservation("course").is_none());
}

#[test]
fn of_two_changes_of_one_version_of_a_reservation_the_first_is_made() {
    let mut s = Story::new(3);
    s.done(set(reservation(&s, "course", &[0], 60_000)));
    let version = |s: &Story| s.ledger.reservation("course").unwrap().revision.0;
    let read = version(&s);
    let move_if = |number, expected_version| {
        let nodes = Some([node(number)].into());
        set(ReservationChange { name: "course".into(), nodes, expected_version: Some(expected_version), ..ReservationChange::default() })
    };
    s.done(move_if(1, read));
    let what = "reservation course".to_owned();
    assert_eq!(s.act(move_if(2, read)), Err(Refusal::OtherVersion { what, expected: read, version: version(&s) }));
    assert!(s.acted(move_if(1, read)).is_empty(), "the answer was lost");
    assert_eq!(s.ledger.reservation("course").unwrap().nodes, [node(1)].into());
    s.done(move_if(2, version(&s)));
    assert_eq!(s.ledger.reservation("course").unwrap().nodes, [node(2)].into());
}

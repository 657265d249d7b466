//! Scenarios of changed allocations: who may change what, by how much, and which nodes learn of it.

use super::scenarios::{Story, id, node, spec, user};
use super::{Action, AllocationChange, ListFilter, Outcome, QuotaChange, SoftLimitsChange, TenantChange};
use crate::{Refusal, UpdateRefusal};
use lattice_model::{AllocationSpec, AllocationState, AuditAction, Epoch, ReportItem, RequeuePolicy};
use std::time::Duration;

fn minutes(count: u64) -> Duration {
    Duration::from_secs(count * 60)
}

fn update(by: u32, change: AllocationChange) -> Action {
    Action::UpdateAllocation { allocation: id(1), by: user(by), change, as_operator: by == 0 }
}

fn set(by: u32, walltime: Duration) -> Action {
    update(by, AllocationChange { walltime: Some(walltime), ..AllocationChange::default() })
}

fn set_class(by: u32, class: u8) -> Action {
    update(by, AllocationChange { preemption_class: Some(class), ..AllocationChange::default() })
}

fn rename(by: u32, name: &str) -> Action {
    update(by, AllocationChange { name: Some(name.to_owned()), ..AllocationChange::default() })
}

fn why(result: Result<Outcome, Refusal>) -> UpdateRefusal {
    match result {
        Err(Refusal::Update { why, .. }) => why,
        other => panic!("{other:?}"),
    }
}

/// A waiting allocation of user 7 with a walltime of an hour.
fn waiting() -> Story {
    let mut s = Story::new(2);
    let spec = AllocationSpec { walltime: Some(minutes(60)), ..spec(2, RequeuePolicy::Always, 3) };
    s.done(Action::Submit { id: id(1), spec: Box::new(spec), owner: user(7), claim: None });
    s
}

fn run(s: &mut Story) -> Epoch {
    let epoch = s.claimed(1, &[0, 1]);
    for from in [0, 1] {
        s.report(from, ReportItem::Prepared { allocation: id(1), epoch });
    }
    assert_eq!(s.ledger.allocation(id(1)).unwrap().state, AllocationState::Running);
    epoch
}

fn walltime(s: &Story) -> Option<Duration> {
    s.ledger.allocation(id(1)).unwrap().spec.walltime
}

/// The walltime in its nodes' lists.
fn desired_walltimes(s: &Story) -> Vec<Option<Duration>> {
    [0, 1].map(|number| s.ledger.desired(&node(number)).shares[0].spec.walltime).to_vec()
}

#[test]
fn waiting_work_gets_any_walltime_that_a_submission_may_have() {
    let mut s = waiting();
    let submitted = (*s.ledger.allocation(id(1)).unwrap().spec).clone();
    for (by, next) in [(7, minutes(600)), (0, minutes(700)), (7, Duration::from_secs(5))] {
        s.done(set(by, next));
        assert_eq!(walltime(&s), Some(next));
    }
    assert!(matches!(s.act(set(8, minutes(1))), Err(Refusal::NotYours { .. })));
    assert!(matches!(s.act(set(7, minutes(366 * 24 * 60))), Err(Refusal::Malformed { .. })));
    assert!(matches!(s.act(set(7, Duration::ZERO)), Err(Refusal::Malformed { .. })));
    s.done(Action::HoldAllocation { allocation: id(1), by: user(7) });
    let records = s.acted(set(7, minutes(90)));
    let records: Vec<_> = records.iter().map(|r| (r.action, r.actor.as_str(), r.detail.as_str())).collect();
    assert_eq!(records, [(AuditAction::WalltimeChanged, "u7", "01:30:00 instead of 00:00:05 while Pending")]);
    assert!(s.acted(set(7, minutes(90))).is_empty(), "said again");
    // A repeated submission with the original walltime is still recognised; one with another
    // walltime is not.
    let again = |spec| Action::Submit { id: id(1), spec: Box::new(spec), owner: user(7), claim: None };
    assert_eq!(s.act(again(submitted.clone())), Ok(Outcome::Submitted { number: 1 }));
    let other = AllocationSpec { walltime: Some(minutes(90)), ..submitted };
    assert!(matches!(s.act(again(other)), Err(Refusal::AllocationExists { .. })));
}

#[test]
fn running_work_is_shortened_by_its_owner_and_lengthened_by_operators() {
    let mut s = waiting();
    run(&mut s);
    assert_eq!(why(s.act(set(7, minutes(61)))), UpdateRefusal::LongerWithNodes { state: AllocationState::Running });
    s.done(set(0, minutes(120)));
    assert_eq!(desired_walltimes(&s), [Some(minutes(120)); 2]);
    s.pass(10 * 60_000);
    let UpdateRefusal::TooShort { ran, least } = why(s.act(set(7, minutes(11)))) else { panic!("a few seconds more") };
    assert!(ran > minutes(10) && least > ran + minutes(1) && least <= ran + Duration::from_secs(62), "{ran:?} {least:?}");
    assert_eq!(
        why(s.act(set(0, minutes(5)))),
        UpdateRefusal::TooShort { ran: ran + Duration::from_secs(1), least: least + Duration::from_secs(1) }
    );
    s.done(set(7, minutes(12)));
    assert_eq!(desired_walltimes(&s), [Some(minutes(12)); 2]);
    // After the walltime has passed, the work is being ended and cannot be extended.
    s.pass(2 * 60_000);
    assert_eq!(why(s.act(set(0, minutes(60)))), UpdateRefusal::WalltimeIsOver);
    s.done(Action::Cancel { id: id(1), by: user(7) });
    assert_eq!(why(s.act(set(7, minutes(60)))), UpdateRefusal::HasEnded { state: AllocationState::Cancelled });
}

#[test]
fn its_next_claim_has_the_new_walltime_and_counts_anew() {
    let mut s = waiting();
    let epoch = run(&mut s);
    s.pass(30 * 60_000);
    s.done(set(7, minutes(40)));
    s.done(Action::RequeueAllocation { allocation: id(1), epoch, by: user(7), reason: "x".into() });
    s.done(set(7, minutes(45)));
    for number in [0, 1] {
        s.report(number, ReportItem::Released { allocation: id(1), epoch, usage: None });
    }
    s.claimed(1, &[0, 1]);
    assert_eq!(desired_walltimes(&s), [Some(minutes(45)); 2]);
    s.done(set(7, minutes(2)));
}

#[test]
fn a_service_may_be_given_an_end() {
    let mut s = Story::new(2);
    let service = AllocationSpec { walltime: None, ..spec(2, RequeuePolicy::Never, 0) };
    s.done(Action::Submit { id: id(1), spec: Box::new(service), owner: user(7), claim: None });
    run(&mut s);
    s.done(set(7, minutes(3)));
    assert_eq!(desired_walltimes(&s), [Some(minutes(3)); 2]);
}

/// The name and the class of allocation 1.
fn named(s: &Story) -> (String, u8) {
    let spec = &s.ledger.allocation(id(1)).unwrap().spec;
    (spec.name.clone(), spec.preemption_class)
}

#[test]
fn waiting_work_gets_any_name_and_class_that_a_submission_may_have() {
    let mut s = waiting();
    let submitted = (*s.ledger.allocation(id(1)).unwrap().spec).clone();
    let tags = [("campaign".to_owned(), "42".to_owned())].into();
    let change = AllocationChange {
        name: Some("later".into()),
        walltime: Some(minutes(30)),
        preemption_class: Some(10),
        tags,
        ..AllocationChange::default()
    };
    let records = s.acted(update(7, change.clone()));
    let records: Vec<_> = records.iter().map(|r| (r.action, r.actor.as_str(), r.detail.as_str())).collect();
    let others = format!(
        "name later instead of {}, preemption class 10 instead of 5, tags campaign=42 instead of none while Pending",
        submitted.name
    );
    let shorter = "00:30:00 instead of 01:00:00 while Pending";
    assert_eq!(records, [(AuditAction::WalltimeChanged, "u7", shorter), (AuditAction::AllocationChanged, "u7", others.as_str())]);
    assert_eq!((named(&s), walltime(&s)), (("later".to_owned(), 10), Some(minutes(30))));
    assert!(s.acted(update(7, change)).is_empty(), "the answer was lost");
    assert!(matches!(s.act(rename(7, "")), Err(Refusal::Malformed { .. })));
    assert!(matches!(s.act(rename(7, "a\nb")), Err(Refusal::Malformed { .. })));
    assert!(matches!(s.act(set_class(7, 11)), Err(Refusal::Malformed { .. })));
    assert!(matches!(s.act(set_class(8, 0)), Err(Refusal::NotYours { .. })));
    assert!(matches!(s.act(rename(8, "mine")), Err(Refusal::NotYours { .. })));
    s.done(set_class(7, 0));
    s.done(set_class(0, 6));
    // A repeated submission with the original values is still recognised.
    let again = s.act(Action::Submit { id: id(1), spec: Box::new(submitted), owner: user(7), claim: None });
    assert!(matches!(again, Ok(Outcome::Submitted { .. })), "{again:?}");
}

#[test]
fn the_project_of_running_work_is_changed_and_its_use_counts_for_the_new_one() {
    let mut s = waiting();
    run(&mut s);
    let submitted = (*s.ledger.allocation(id(1)).unwrap().spec).clone();
    let project = |by, name: &str| update(by, AllocationChange { project: Some(name.to_owned()), ..AllocationChange::default() });
    let records = s.acted(project(7, "higgs"));
    let records: Vec<_> = records.iter().map(|r| (r.action, r.detail.as_str())).collect();
    assert_eq!(records, [(AuditAction::AllocationChanged, "project higgs instead of none while Running")]);
    assert!(s.acted(project(7, "higgs")).is_empty(), "the answer was lost");
    assert!(matches!(s.act(project(8, "mine")), Err(Refusal::NotYours { .. })));
    assert!(matches!(s.act(project(7, "a\nb")), Err(Refusal::Malformed { .. })));
    assert_eq!(s.ledger.allocation(id(1)).unwrap().spec.project, "higgs");
    assert_eq!(s.ledger.desired(&node(0)).shares[0].spec.project, "", "its output and checkpoints stay where they are");
    let of_project = |name: &str| ListFilter { project: Some(name.to_owned()), ..ListFilter::default() };
    let count = |name: &str| s.ledger.list(None, &[], 0, None, &of_project(name)).len();
    assert_eq!([count("higgs"), count("other")], [1, 0]);
    let again = s.act(Action::Submit { id: id(1), spec: Box::new(submitted), owner: user(7), claim: None });
    assert!(matches!(again, Ok(Outcome::Submitted { .. })), "{again:?}");
}

#[test]
fn of_two_changes_of_one_version_the_first_is_made() {
    let mut s = waiting();
    let version = |s: &Story| s.ledger.allocation(id(1)).unwrap().version();
    assert_eq!(version(&s), 0);
    let rename_if = |name: &str, expected| {
        update(7, AllocationChange { name: Some(name.to_owned()), expected_version: Some(expected), ..AllocationChange::default() })
    };
    s.done(rename_if("first", 0));
    assert_eq!((named(&s).0.as_str(), version(&s)), ("first", 1));
    assert_eq!(why(s.act(rename_if("second", 0))), UpdateRefusal::OtherVersion { expected: 0, version: 1 });
    assert!(s.acted(rename_if("first", 0)).is_empty(), "the answer was lost");
    s.done(rename(7, "whatever it is now"));
    s.done(rename_if("second", 2));
    assert_eq!((named(&s).0.as_str(), version(&s)), ("second", 3));
}

fn tag(by: u32, tags: &[(&str, &str)]) -> Action {
    let tags = tags.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
    update(by, AllocationChange { tags, ..AllocationChange::default() })
}

#[test]
fn tags_are_set_one_by_one_and_an_empty_value_removes_one_also_while_it_runs() {
    let mut s = waiting();
    run(&mut s);
    let tags = |s: &Story| {
        let spec = &s.ledger.allocation(id(1)).unwrap().spec;
        spec.tags.iter().map(|(name, value)| format!("{name}={value}")).collect::<Vec<_>>()
    };
    s.done(tag(7, &[("a", "1"), ("b", "2")]));
    s.done(tag(7, &[("a", ""), ("c", "3"), ("d", "")]));
    assert_eq!(tags(&s), ["b=2", "c=3"]);
    assert!(matches!(s.act(tag(8, &[("b", "")])), Err(Refusal::NotYours { .. })));
    assert!(matches!(s.act(tag(7, &[("x", "a\n")])), Err(Refusal::Malformed { .. })));
    assert_eq!(tags(&s), ["b=2", "c=3"]);
    let filter = |name: &str, value: &str| {
        let tags = [(name.to_owned(), value.to_owned())].into();
        s.ledger.list(None, &[], 0, None, &ListFilter { tags, ..ListFilter::default() }).len()
    };
    assert_eq!([filter("b", "2"), filter("b", "3"), filter("a", "1")], [1, 0, 0]);
}

#[test]
fn a_class_above_that_of_the_tenant_is_refused_and_one_that_it_has_stays() {
    let mut s = Story::new(2);
    let bound = |create, most| {
        let soft = SoftLimitsChange { class_max: QuotaChange::AtMost(most), ..SoftLimitsChange::default() };
        let (max_nodes, max_concurrent_allocations) = (QuotaChange::Keep, QuotaChange::Keep);
        let change = TenantChange { name: "physics".into(), create, max_nodes, max_concurrent_allocations, soft, expected_version: None };
        Action::SetTenant { change, by: "root".into() }
    };
    s.done(bound(true, 6));
    let spec = AllocationSpec { tenant: "physics".into(), preemption_class: 6, ..spec(1, RequeuePolicy::Always, 3) };
    s.done(Action::Submit { id: id(1), spec: Box::new(spec), owner: user(7), claim: None });
    for by in [7, 0] {
        let refused = s.act(set_class(by, 7));
        assert_eq!(refused, Err(Refusal::ClassTooHigh { tenant: "physics".into(), class: 7, most: 6 }));
    }
    s.done(bound(false, 3));
    s.done(rename(7, "still of class 6"));
    assert!(matches!(s.act(set_class(7, 5)), Err(Refusal::ClassTooHigh { .. })));
    s.done(set_class(7, 3));
}

#[test]
fn the_class_of_running_work_is_lowered_by_its_owner_and_raised_by_operators() {
    let mut s = waiting();
    run(&mut s);
    s.done(set_class(7, 3));
    let state = AllocationState::Running;
    assert_eq!(why(s.act(set_class(7, 4))), UpdateRefusal::HigherWithNodes { state });
    s.done(set_class(0, 9));
    assert_eq!(named(&s).1, 9);
    // With both, nothing changes if one is refused.
    let both = AllocationChange { name: Some("both".into()), walltime: Some(minutes(90)), ..AllocationChange::default() };
    let before = s.ledger.allocation(id(1)).cloned();
    assert_eq!(why(s.act(update(7, both))), UpdateRefusal::LongerWithNodes { state });
    assert_eq!(s.ledger.allocation(id(1)).cloned(), before);
}

#[test]
fn the_name_of_running_work_reaches_its_nodes_even_while_it_is_being_ended() {
    let mut s = waiting();
    run(&mut s);
    s.pass(60 * 60_000);
    let applied = s.apply(rename(7, "overdue"));
    assert_eq!(applied.changed.desired.iter().cloned().collect::<Vec<_>>(), [node(0), node(1)]);
    let names = [0, 1].map(|number| s.ledger.desired(&node(number)).shares[0].spec.name.clone());
    assert_eq!(names, ["overdue", "overdue"]);
    s.done(Action::Cancel { id: id(1), by: user(7) });
    assert_eq!(why(s.act(rename(7, "ended"))), UpdateRefusal::HasEnded { state: AllocationState::Cancelled });
}

//! Scenarios of changed walltimes: who may change them, by how much, and which nodes learn of it.

use super::scenarios::{Story, id, node, spec, user};
use super::{Action, Outcome};
use crate::{Refusal, WalltimeRefusal};
use lattice_model::{AllocationState, AuditAction, Epoch, ReportItem, RequeuePolicy};
use std::time::Duration;

fn minutes(count: u64) -> Duration {
    Duration::from_secs(count * 60)
}

fn set(by: u32, walltime: Duration) -> Action {
    Action::SetWalltime { allocation: id(1), by: user(by), walltime, as_operator: by == 0 }
}

fn why(result: Result<Outcome, Refusal>) -> WalltimeRefusal {
    match result {
        Err(Refusal::Walltime { why, .. }) => why,
        other => panic!("{other:?}"),
    }
}

/// A waiting allocation of user 7 with a walltime of an hour.
fn waiting() -> Story {
    let mut s = Story::new(2);
    let spec = lattice_model::AllocationSpec { walltime: Some(minutes(60)), ..spec(2, RequeuePolicy::Always, 3) };
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
fn what_waits_gets_any_walltime_that_a_submission_may_have() {
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
    assert_eq!(s.act(again(submitted.clone())), Ok(Outcome::Done));
    let other = lattice_model::AllocationSpec { walltime: Some(minutes(90)), ..submitted };
    assert!(matches!(s.act(again(other)), Err(Refusal::AllocationExists { .. })));
}

#[test]
fn what_runs_is_shortened_by_its_owner_and_lengthened_by_operators() {
    let mut s = waiting();
    run(&mut s);
    assert_eq!(why(s.act(set(7, minutes(61)))), WalltimeRefusal::HasNodes { state: AllocationState::Running });
    s.done(set(0, minutes(120)));
    assert_eq!(desired_walltimes(&s), [Some(minutes(120)); 2]);
    s.pass(10 * 60_000);
    let WalltimeRefusal::TooShort { ran, least } = why(s.act(set(7, minutes(11)))) else { panic!("a few seconds more") };
    assert!(ran > minutes(10) && least > ran + minutes(1) && least <= ran + Duration::from_secs(62), "{ran:?} {least:?}");
    assert_eq!(
        why(s.act(set(0, minutes(5)))),
        WalltimeRefusal::TooShort { ran: ran + Duration::from_secs(1), least: least + Duration::from_secs(1) }
    );
    s.done(set(7, minutes(12)));
    assert_eq!(desired_walltimes(&s), [Some(minutes(12)); 2]);
    // After the walltime has passed, the work is being ended and cannot be extended.
    s.pass(2 * 60_000);
    assert_eq!(why(s.act(set(0, minutes(60)))), WalltimeRefusal::IsOver);
    s.done(Action::Cancel { id: id(1), by: user(7) });
    assert_eq!(why(s.act(set(7, minutes(60)))), WalltimeRefusal::HasEnded { state: AllocationState::Cancelled });
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
    let service = lattice_model::AllocationSpec { walltime: None, ..spec(2, RequeuePolicy::Never, 0) };
    s.done(Action::Submit { id: id(1), spec: Box::new(service), owner: user(7), claim: None });
    run(&mut s);
    s.done(set(7, minutes(3)));
    assert_eq!(desired_walltimes(&s), [Some(minutes(3)); 2]);
}

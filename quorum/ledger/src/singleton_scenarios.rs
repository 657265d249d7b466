//! Scenarios of singletons: work that waits for all earlier work of its user with the same name.

use super::properties::scans::invariant_indexes_equal_scans;
use super::scenarios::{Story, id, prepared, released, spec, user};
use super::{Action, AllocationChange, Ledger};
use lattice_model::{AllocationSpec, AllocationState, DagId, DagStep, DagSubmission, EndReason, Epoch, ReportItem, RequeuePolicy};
use std::collections::BTreeMap;

fn named(name: &str, singleton: bool) -> AllocationSpec {
    AllocationSpec { name: name.to_owned(), singleton, ..spec(1, RequeuePolicy::Always, 3) }
}

fn submit(s: &mut Story, number: u128, name: &str, singleton: bool, uid: u32) {
    let spec = Box::new(named(name, singleton));
    s.done(Action::Submit { id: id(number), spec, owner: user(uid), claim: None });
}

fn runs(s: &mut Story, number: u128, on: u8) -> Epoch {
    let epoch = s.claimed(number, &[on]);
    s.report(on, prepared(number, epoch));
    epoch
}

fn exits(s: &mut Story, number: u128, on: u8, epoch: Epoch, code: i32) {
    s.report(on, ReportItem::Ended { allocation: id(number), epoch, reason: EndReason::Exited { code } });
}

fn cancel(s: &mut Story, number: u128) {
    s.done(Action::Cancel { id: id(number), by: user(7) });
}

fn rename(s: &mut Story, number: u128, name: &str) {
    let change = AllocationChange { name: Some(name.to_owned()), ..AllocationChange::default() };
    s.done(Action::UpdateAllocation { allocation: id(number), by: user(7), change, as_operator: false });
}

/// Which of these numbers wait for nodes.
fn waiting(s: &Story, numbers: &[u128]) -> Vec<u128> {
    let waits = |number: &&u128| s.ledger.allocation(id(**number)).unwrap().waits();
    numbers.iter().filter(waits).copied().collect()
}

fn check(s: &Story) {
    invariant_indexes_equal_scans(&s.ledger);
    let restored: Ledger = rmp_serde::from_slice(&rmp_serde::to_vec_named(&s.ledger).unwrap()).unwrap();
    assert_eq!(restored, s.ledger);
}

#[test]
fn a_singleton_begins_when_all_earlier_work_of_its_name_is_gone() {
    let mut s = Story::new(2);
    submit(&mut s, 1, "night", false, 7);
    submit(&mut s, 2, "night", true, 7);
    submit(&mut s, 3, "night", true, 7);
    submit(&mut s, 4, "night", false, 7);
    submit(&mut s, 5, "day", true, 7);
    submit(&mut s, 6, "night", true, 8);
    assert_eq!(waiting(&s, &[1, 2, 3, 4, 5, 6]), [1, 4, 5, 6], "another name and another user are independent");
    let awaited = s.ledger.allocation(id(2)).unwrap().awaits();
    assert_eq!(awaited.as_deref(), Some("waits for 00000001, an earlier one of this name, to end"));
    let epoch = runs(&mut s, 1, 0);
    exits(&mut s, 1, 0, epoch, 0);
    assert_eq!(waiting(&s, &[2, 3]), [0_u128; 0], "something of it may still run");
    s.report(0, released(1, epoch));
    assert_eq!(waiting(&s, &[2, 3]), [2]);
    let eligible = s.ledger.allocation(id(2)).unwrap().queued_at();
    assert_eq!(eligible, s.now());
    cancel(&mut s, 2);
    assert_eq!(waiting(&s, &[3]), [3], "later work does not hold it up");
    check(&s);
}

#[test]
fn a_singleton_whose_predecessor_goes_waits_for_those_before() {
    let mut s = Story::new(1);
    for number in 1..4 {
        submit(&mut s, number, "a", false, 7);
    }
    submit(&mut s, 4, "a", true, 7);
    let predecessor = |s: &Story| s.ledger.allocation(id(4)).unwrap().dependencies.as_ref().and_then(|all| all.predecessor);
    assert_eq!(predecessor(&s), Some(id(3)));
    cancel(&mut s, 3);
    cancel(&mut s, 1);
    assert_eq!(predecessor(&s), Some(id(2)));
    cancel(&mut s, 2);
    assert_eq!((predecessor(&s), waiting(&s, &[4])), (None, vec![4]));
    check(&s);
}

#[test]
fn a_requeue_ends_nothing_and_a_new_name_is_another_one() {
    let mut s = Story::new(1);
    submit(&mut s, 1, "a", false, 7);
    submit(&mut s, 2, "a", true, 7);
    let epoch = runs(&mut s, 1, 0);
    exits(&mut s, 1, 0, epoch, 1);
    s.report(0, released(1, epoch));
    assert_eq!((s.state(1), waiting(&s, &[2])), (AllocationState::Pending, vec![]), "it was requeued");
    rename(&mut s, 1, "b");
    assert_eq!(waiting(&s, &[2]), [2]);
    rename(&mut s, 1, "a");
    assert_eq!(waiting(&s, &[2]), [0_u128; 0]);
    rename(&mut s, 2, "c");
    assert_eq!(waiting(&s, &[2]), [2]);
    rename(&mut s, 2, "a");
    assert_eq!(waiting(&s, &[2]), [0_u128; 0]);
    check(&s);
}

#[test]
fn a_singleton_gets_no_nodes_with_its_submission_while_it_waits() {
    let mut s = Story::new(1);
    submit(&mut s, 1, "a", false, 7);
    let claim = Some(s.proposal(2, &[0]));
    s.done(Action::Submit { id: id(2), spec: Box::new(named("a", true)), owner: user(7), claim });
    assert_eq!(s.state(2), AllocationState::Pending);
    assert!(s.claim(2, &[0]).is_err());
    check(&s);
}

#[test]
fn singletons_of_one_dag_begin_in_the_order_of_its_steps() {
    let mut s = Story::new(1);
    // The ids are not in this order.
    let step =
        |number: u128| DagStep { name: format!("s{number}"), allocation: id(number), takes_env: false, spec: Box::new(named("a", true)) };
    let dag = DagSubmission { name: "d".to_owned(), env: BTreeMap::new(), steps: vec![step(9), step(3), step(5)] };
    s.done(Action::SubmitDag { id: DagId(uuid::Uuid::from_u128(1)), owner: user(7), dag: Box::new(dag) });
    assert_eq!(waiting(&s, &[9, 3, 5]), [9]);
    assert_eq!(s.ledger.allocation(id(3)).unwrap().dependencies.as_ref().unwrap().eligible_at, None);
    cancel(&mut s, 9);
    assert_eq!(waiting(&s, &[3, 5]), [3]);
    cancel(&mut s, 3);
    assert_eq!(waiting(&s, &[5]), [5]);
    check(&s);
}

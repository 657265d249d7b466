//! Scenarios of job numbers.

use super::scenarios::{Story, id, spec, user};
use super::{Action, Outcome, Refusal};
use lattice_model::{AllocationId, AllocationSpec, RequeuePolicy, TaskGroup};

/// Submits an allocation, or a task group with these indices; returns its job number.
fn submit(s: &mut Story, which: u128, tasks: Option<&str>) -> u64 {
    let tasks = tasks.map(|text| Box::new(TaskGroup::parse(text).unwrap()));
    let spec = AllocationSpec { tasks, ..spec(1, RequeuePolicy::Never, 0) };
    match s.act(Action::Submit { id: id(which), spec: Box::new(spec), owner: user(7), claim: None }) {
        Ok(Outcome::Submitted { number }) => number,
        other => panic!("{other:?}"),
    }
}

fn found(s: &Story, key: &str) -> Result<AllocationId, Refusal> {
    s.ledger.find(key).map(|allocation| allocation.id)
}

#[test]
fn each_submission_has_the_next_number_and_a_group_one_for_each_task() {
    let mut s = Story::new(1);
    assert_eq!([submit(&mut s, 1, None), submit(&mut s, 2, Some("10-18:2")), submit(&mut s, 3, None)], [1, 2, 7]);
    assert_eq!(submit(&mut s, 2, Some("10-18:2")), 2, "a repetition");
    assert_eq!(s.ledger.jobs(), 7);
    assert!(s.ledger.allocations().all(|allocation| (allocation.number == 0) == allocation.lane.is_some()));
    for _ in 0..2 {
        for (key, which) in [("1", 1), ("2", 2), ("3", 2), ("6", 2), ("7", 3)] {
            assert_eq!(found(&s, key), Ok(id(which)), "{key}");
        }
        for unknown in ["8", "18446744073709551615"] {
            assert!(matches!(found(&s, unknown), Err(Refusal::NoSuchAllocation { .. })), "{unknown}");
        }
        assert!(matches!(found(&s, "07"), Err(Refusal::Malformed { .. })), "a number does not begin with 0");
        // The state of a restarted member.
        s.ledger = rmp_serde::from_slice(&rmp_serde::to_vec_named(&s.ledger).unwrap()).unwrap();
    }
    assert_eq!(submit(&mut s, 4, None), 8);
}

#[test]
fn a_refused_submission_takes_no_number() {
    let mut s = Story::new(0);
    let nothing = AllocationSpec { nodes: 0, ..spec(1, RequeuePolicy::Never, 0) };
    assert!(s.act(Action::Submit { id: id(1), spec: Box::new(nothing), owner: user(7), claim: None }).is_err());
    assert_eq!(submit(&mut s, 2, None), 1);
}

#[test]
fn few_digits_are_a_number_once_so_many_were_given() {
    let mut s = Story::new(0);
    submit(&mut s, 0xabcd_0001, Some("0-1231"));
    assert_eq!(submit(&mut s, 0x1234_5678, None), 1233);
    assert_eq!(found(&s, "1234"), Ok(id(0x1234_5678)), "no job had this number yet");
    assert_eq!(submit(&mut s, 0xabcd_0002, None), 1234);
    assert_eq!(found(&s, "1234"), Ok(id(0xabcd_0002)), "also where an id begins so");
    assert_eq!(found(&s, "12345"), Ok(id(0x1234_5678)), "there is no such number");
    s.ledger.jobs = 20_000;
    assert!(matches!(found(&s, "12345"), Err(Refusal::NoSuchAllocation { .. })), "the record of that job is dropped");
}

#[test]
fn a_text_that_is_the_number_of_one_and_the_short_id_of_another_is_refused() {
    let mut s = Story::new(0);
    s.ledger.jobs = 12_345_677;
    assert_eq!([submit(&mut s, 0xabcd_0001, None), submit(&mut s, 0x1234_5678, None)], [12_345_678, 12_345_679]);
    let refused = found(&s, "12345678").unwrap_err();
    assert_eq!(
        refused.to_string(),
        format!(
            "12345678 is the job number of allocation {}, and could be the id of {}: give more digits of the id that you mean",
            id(0xabcd_0001),
            id(0x1234_5678)
        )
    );
    assert_eq!(found(&s, "12345679"), Ok(id(0x1234_5678)), "no id begins so");
}

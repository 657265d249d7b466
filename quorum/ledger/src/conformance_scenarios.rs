//! Scenarios of drifting nodes, and of work that requires conformance.

use super::scenarios::{Story, id, node, registration, spec, user};
use super::{Action, DriftLimits, Registration};
use crate::Refusal;
use lattice_model::conformance::Components;
use lattice_model::{AllocationSpec, AuditAction, Constraints, HoldKind, Incarnation, NodeState, RequeuePolicy, Timestamp};

const LIMITS: DriftLimits = DriftLimits { ordinary_ms: 100_000, sensitive_ms: 10_000 };

fn made_of(kernel: &str) -> Components {
    [("kernel".to_owned(), kernel.to_owned())].into()
}

fn conforms(number: u8, kernel: &str) -> Action {
    Action::Conforms { node: node(number), incarnation: Incarnation(1), components: made_of(kernel) }
}

fn accepts(number: u8) -> Action {
    Action::AcceptDrift { node: node(number), by: "root".into(), reason: "new image".into() }
}

#[test]
fn a_change_is_drift_until_it_is_mended_or_accepted() {
    let mut s = Story::new(2);
    assert_eq!(s.act(accepts(1)), Err(Refusal::NoFingerprint { node: node(1) }));
    let first = s.acted(conforms(1, "6.1"));
    assert_eq!((first.len(), first[0].action, first[0].actor.as_str()), (1, AuditAction::ConformanceChanged, "node:n1"));
    assert_eq!(s.acted(conforms(1, "6.1")), [], "said again");
    let seen = s.ledger.node(&node(1)).unwrap().hold_revision;
    let records = s.acted(conforms(1, "6.6"));
    assert!(records[0].detail.contains("drifted") && records[0].detail.ends_with("kernel: 6.1 -> 6.6"), "{}", records[0].detail);
    assert!(s.ledger.node(&node(1)).unwrap().hold_revision > seen, "claims saw what it was before");
    let drift = |s: &Story| s.ledger.node(&node(1)).unwrap().conformance.as_ref().unwrap().drift.clone();
    assert!(drift(&s).is_some() && s.ledger.node(&node(1)).unwrap().holds.is_empty());
    s.done(conforms(1, "6.1"));
    assert_eq!(drift(&s), None);
    s.done(conforms(1, "6.6"));
    assert_eq!(s.acted(accepts(1))[0].action, AuditAction::ConformanceAccepted);
    assert_eq!((drift(&s), s.acted(accepts(1))), (None, vec![]));
    s.done(conforms(1, "6.1"));
    assert!(drift(&s).is_some(), "what was accepted is expected now");
    let stale = Action::Conforms { node: node(1), incarnation: Incarnation(7), components: made_of("7") };
    assert!(matches!(s.act(stale), Err(Refusal::StaleIncarnation { .. })));
}

#[test]
fn components_of_a_registration_are_known_when_the_node_becomes_ready() {
    let registers = |kernel: &str| Action::Register(Registration { conformance: Some(made_of(kernel)), ..registration(1, 1, 0, true) });
    let mut s = Story::new(1);
    let actions = |records: &[lattice_model::AuditRecord]| records.iter().map(|r| r.action).collect::<Vec<_>>();
    assert_eq!(actions(&s.acted(registers("6.1"))), [AuditAction::NodeRegistered, AuditAction::ConformanceChanged]);
    let conformance_of = |s: &Story| s.ledger.node(&node(1)).unwrap().conformance.clone().unwrap();
    assert_eq!((s.ledger.node(&node(1)).unwrap().state, conformance_of(&s).components), (NodeState::Ready, made_of("6.1")));
    // A restarted agent that reports the same; then one with another kernel: its drift counts from
    // that registration.
    assert_eq!(actions(&s.acted(registers("6.1"))), [AuditAction::NodeRegistered]);
    let records = s.acted(registers("6.6"));
    assert!(records.last().unwrap().detail.ends_with("kernel: 6.1 -> 6.6"), "{records:?}");
    assert!(conformance_of(&s).drift.is_some());
    let malformed = [(String::new(), "x".to_owned())].into();
    let refused = s.act(Action::Register(Registration { conformance: Some(malformed), ..registration(1, 1, 0, true) }));
    assert!(matches!(refused, Err(Refusal::Malformed { .. })), "{refused:?}");
}

#[test]
fn a_drift_that_nobody_mends_in_time_is_quarantined_once() {
    let mut s = Story::new(2);
    s.done(conforms(1, "6.1"));
    s.done(conforms(1, "6.6"));
    let since = s.now();
    let at = |ms| Timestamp(since.0 + ms);
    assert_eq!(s.ledger.drifts_due(at(99_999), LIMITS), []);
    let due = s.ledger.drifts_due(at(100_000), LIMITS);
    assert_eq!(due, [Action::DriftOver { node: node(1), since }]);
    s.done(due[0].clone());
    let hold = s.ledger.node(&node(1)).unwrap().hold(HoldKind::Quarantine).unwrap().clone();
    assert!(hold.by == "quorum" && hold.reason.contains("kernel: 6.1 -> 6.6"), "{hold}");
    s.done(Action::LiftHold { node: node(1), kind: HoldKind::Quarantine, by: "root".into(), until: None });
    assert_eq!(s.ledger.drifts_due(at(999_999), LIMITS), [], "whoever released it is not overruled");
    s.done(due[0].clone());
    assert!(s.ledger.node(&node(1)).unwrap().holds.is_empty());
}

#[test]
fn a_node_with_sensitive_work_is_drained_at_once_and_takes_none_while_it_drifts() {
    let mut s = Story::new(3);
    let sensitive = || AllocationSpec { sensitive: true, ..spec(1, RequeuePolicy::Never, 0) };
    for number in [1, 2] {
        s.done(Action::Submit { id: id(number), spec: Box::new(sensitive()), owner: user(7), claim: None });
    }
    s.done(conforms(1, "6.1"));
    s.done(conforms(2, "6.1"));
    s.claimed(1, &[1]);
    s.done(conforms(1, "6.6"));
    let known = s.ledger.node(&node(1)).unwrap();
    assert_eq!((known.state, known.hold(HoldKind::Drain).unwrap().by.as_str()), (NodeState::Draining, "quorum"));
    let due = s.ledger.drifts_due(Timestamp(s.now().0 + 10_000), LIMITS);
    assert_eq!(due.len(), 1, "there is less time for it");
    s.done(conforms(2, "6.6"));
    let Err(Refusal::Conflict { conflicts }) = s.claim(2, &[2]) else { panic!("it drifted") };
    assert!(conflicts[0].why.contains("has drifted"), "{}", conflicts[0].why);
    s.done(accepts(2));
    assert!(s.claim(2, &[2]).is_ok());
}

#[test]
fn work_that_asks_for_one_group_gets_no_two() {
    let mut s = Story::new(4);
    let constraints = Constraints { conformance: true, ..Constraints::default() };
    let wants = AllocationSpec { constraints, ..spec(2, RequeuePolicy::Never, 0) };
    s.done(Action::Submit { id: id(1), spec: Box::new(wants), owner: user(7), claim: None });
    for (number, kernel) in [(1, "6.1"), (2, "6.6"), (3, "6.6")] {
        s.done(conforms(number, kernel));
    }
    for others in [[1, 2], [2, 0], [0, 2]] {
        assert!(matches!(s.claim(1, &others), Err(Refusal::Conflict { .. })), "{others:?}");
    }
    assert!(s.claim(1, &[2, 3]).is_ok());
}

#[test]
fn a_node_that_could_not_look_for_too_long_is_a_group_of_its_own() {
    let mut s = Story::new(2);
    let stale = |stale| Action::ConformanceStale { node: node(1), incarnation: Incarnation(1), stale };
    assert_eq!(s.acted(stale(true)), [], "nothing is known that could be too old");
    (0..2).for_each(|n| s.done(conforms(n, "6.1")));
    let group = |s: &Story| s.ledger.node(&node(1)).unwrap().conformance.as_ref().unwrap().group().map(str::to_owned);
    let known = group(&s);
    let seen = s.ledger.node(&node(1)).unwrap().hold_revision;
    let records = s.acted(stale(true));
    assert!(records[0].action == AuditAction::ConformanceChanged && records[0].detail.ends_with("told too long ago: a group of its own"));
    assert!(known.is_some() && group(&s).is_none() && s.ledger.node(&node(1)).unwrap().hold_revision > seen);
    assert_eq!(s.acted(stale(true)), [], "said again");
    let constraints = Constraints { conformance: true, ..Constraints::default() };
    let wants = AllocationSpec { constraints, ..spec(2, RequeuePolicy::Never, 0) };
    s.done(Action::Submit { id: id(1), spec: Box::new(wants), owner: user(7), claim: None });
    let refused = s.claim(1, &[0, 1]).unwrap_err();
    assert!(refused.to_string().contains("too long ago"), "{refused}");
    s.done(stale(false));
    assert_eq!(group(&s), known);
    // A difference was found just now.
    s.done(stale(true));
    s.done(conforms(1, "6.6"));
    assert!(group(&s).is_some());
    s.done(conforms(1, "6.1"));
    s.claimed(1, &[0, 1]);
}

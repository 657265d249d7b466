//! Scenarios of detailed measurement: who may request it, which nodes learn of it, and when it
//! ends.

use super::scenarios::{Story, id, node, registration, user};
use super::{Access, AccessKind, Action, Outcome, Registration};
use crate::Refusal;
use lattice_model::constraint::{TELEMETRY_AUDIT, TELEMETRY_DEBUG};
use lattice_model::telemetry::CLOSELY_MS_DEFAULT;
use lattice_model::{AllocationState, AuditAction, EndReason, Epoch, ReportItem, RequeuePolicy, TelemetryMode, Timestamp};
use uuid::Uuid;

fn asks(by: u32, key: u128, mode: TelemetryMode, duration_ms: u64) -> Action {
    Action::SetTelemetry { allocation: id(1), by: user(by), id: Uuid::from_u128(key), mode, duration_ms }
}

fn debug(by: u32, key: u128) -> Action {
    asks(by, key, TelemetryMode::Debug, CLOSELY_MS_DEFAULT)
}

/// Work of user 7 on the first two of three nodes; `of`: the nodes that can store measurements.
fn running(of: &[u8], requeue: RequeuePolicy) -> (Story, Epoch) {
    let mut story = Story::new(3);
    for number in of {
        let features = vec![TELEMETRY_AUDIT.to_owned(), TELEMETRY_DEBUG.to_owned()];
        story.done(Action::Register(Registration { features, ..registration(*number, 1, 1, false) }));
    }
    story.submit(1, 2, requeue, 3);
    let epoch = story.claimed(1, &[0, 1]);
    for from in [0, 1] {
        story.report(from, ReportItem::Prepared { allocation: id(1), epoch });
    }
    (story, epoch)
}

fn telemetry_modes(story: &Story) -> [Option<TelemetryMode>; 3] {
    [0, 1, 2].map(|n| story.ledger.desired(&node(n)).shares.first().and_then(|share| Some(share.telemetry.as_ref()?.mode)))
}

#[test]
fn each_of_its_nodes_hears_of_it_and_that_it_is_over() {
    let (mut s, _) = running(&[0, 1], RequeuePolicy::Never);
    let audit = s.acted(debug(7, 1));
    assert_eq!((audit[0].action, audit[0].actor.as_str()), (AuditAction::TelemetryModeSet, "u7"));
    assert_eq!(telemetry_modes(&s), [Some(TelemetryMode::Debug), Some(TelemetryMode::Debug), None]);
    let order = s.ledger.allocation(id(1)).unwrap().telemetry.clone().unwrap();
    assert_eq!(order.duration_ms(), Some(CLOSELY_MS_DEFAULT));
    assert!(s.acted(debug(7, 1)).is_empty(), "asked twice under one key");
    // A new request extends it.
    s.done(debug(7, 2));
    let later = s.ledger.allocation(id(1)).unwrap().telemetry.clone().unwrap();
    assert!(later.until > order.until && s.ledger.telemetry_due(order.until.unwrap()).is_empty());
    let due = s.ledger.telemetry_due(later.until.unwrap());
    assert_eq!(due, [Action::EndTelemetry { allocation: id(1), order: later.id }]);
    // The end of the previous order has no effect.
    s.done(Action::EndTelemetry { allocation: id(1), order: order.id });
    assert_eq!(telemetry_modes(&s)[0], Some(TelemetryMode::Debug));
    let audit = s.acted(due[0].clone());
    assert_eq!((audit[0].action, audit[0].actor.as_str()), (AuditAction::TelemetryModeEnded, "quorum"));
    assert_eq!((telemetry_modes(&s), s.ledger.telemetry_due(Timestamp(u64::MAX))), ([None; 3], vec![]));
}

#[test]
fn it_is_its_owners_and_an_operators() {
    let (mut s, _) = running(&[0, 1], RequeuePolicy::Never);
    assert!(matches!(s.act(debug(8, 1)), Err(Refusal::NotYours { .. })));
    s.done(debug(0, 1));
    assert!(matches!(s.act(asks(8, 2, TelemetryMode::Prod, 0)), Err(Refusal::NotYours { .. })));
    assert_eq!(telemetry_modes(&s)[1], Some(TelemetryMode::Debug));
    s.done(asks(7, 2, TelemetryMode::Prod, 0));
    assert_eq!(telemetry_modes(&s), [None; 3]);
    assert!(s.acted(asks(7, 3, TelemetryMode::Prod, 0)).is_empty(), "it is so already");
}

#[test]
fn what_cannot_be_done_everywhere_is_refused_by_name() {
    let (mut s, epoch) = running(&[0], RequeuePolicy::Never);
    match s.act(debug(7, 1)) {
        Err(Refusal::TelemetryMode { why, .. }) => assert!(why.starts_with("n1 cannot"), "{why}"),
        other => panic!("{other:?}"),
    }
    for wrong in [0, 999, 24 * 3600 * 1000 + 1, u64::MAX] {
        assert!(matches!(s.act(asks(7, 1, TelemetryMode::Debug, wrong)), Err(Refusal::Malformed { .. })), "{wrong}");
    }
    s.report(0, ReportItem::Ended { allocation: id(1), epoch, reason: EndReason::Exited { code: 0 } });
    let refused = s.act(debug(7, 1));
    assert_eq!(refused, Err(Refusal::NotRunning { id: id(1), state: AllocationState::Completed }));
    assert!(telemetry_modes(&s) == [None; 3] && s.ledger.telemetry_due(Timestamp(u64::MAX)).is_empty());
}

#[test]
fn a_read_of_measurements_is_recorded() {
    let (mut s, _) = running(&[0, 1, 2], RequeuePolicy::Never);
    let access = |kind| {
        let (id, detail) = (Uuid::from_u128(9), "at n0: top".to_owned());
        Action::RecordAccess(Access { id, by: user(0), kind, allocation: Some(super::scenarios::id(1)), node: None, detail })
    };
    let audit = s.acted(access(AccessKind::MeasurementsRead));
    assert_eq!((audit[0].action, audit[0].actor.as_str(), audit.len()), (AuditAction::MeasurementsRead, "u0", 1));
    assert!(s.acted(access(AccessKind::MeasurementsRead)).is_empty(), "sent again");
}

#[test]
fn an_audit_lasts_as_long_as_the_claim_or_as_is_said() {
    let audit = |key, duration_ms| asks(7, key, TelemetryMode::Audit, duration_ms);
    let (mut s, epoch) = running(&[0, 1], RequeuePolicy::Never);
    let recorded = s.acted(audit(1, 0));
    assert_eq!((recorded[0].action, recorded[0].detail.as_str()), (AuditAction::TelemetryModeSet, "audit until its work ends"));
    assert_eq!(telemetry_modes(&s), [Some(TelemetryMode::Audit), Some(TelemetryMode::Audit), None]);
    assert!(s.ledger.telemetry_due(Timestamp(u64::MAX)).is_empty());
    // One mode at a time.
    s.done(debug(7, 2));
    assert_eq!(telemetry_modes(&s)[0], Some(TelemetryMode::Debug));
    s.done(audit(3, 5000));
    assert_eq!(s.ledger.telemetry_due(Timestamp(u64::MAX)).len(), 1);
    assert!(matches!(s.act(audit(4, 999)), Err(Refusal::Malformed { .. })));
    s.done(audit(5, 0));
    s.report(0, ReportItem::Ended { allocation: id(1), epoch, reason: EndReason::Exited { code: 0 } });
    assert_eq!(s.ledger.allocation(id(1)).unwrap().telemetry, None);
    // One of its nodes does not support audits.
    let (mut s, _) = running(&[0], RequeuePolicy::Never);
    match s.act(audit(1, 0)) {
        Err(Refusal::TelemetryMode { why, .. }) => assert!(why.starts_with("n1 cannot see which files"), "{why}"),
        other => panic!("{other:?}"),
    }
}

#[test]
fn with_its_claim_it_is_over() {
    for requeue in [RequeuePolicy::Never, RequeuePolicy::Always] {
        let (mut s, epoch) = running(&[0, 1], requeue);
        s.done(debug(7, 1));
        s.report(0, ReportItem::Ended { allocation: id(1), epoch, reason: EndReason::Exited { code: 1 } });
        assert_eq!(s.ledger.allocation(id(1)).unwrap().telemetry, None);
        assert!(s.ledger.telemetry_due(Timestamp(u64::MAX)).is_empty(), "{requeue:?}");
        assert_eq!(s.act(Action::EndTelemetry { allocation: id(1), order: Uuid::from_u128(1) }), Ok(Outcome::Done));
    }
}

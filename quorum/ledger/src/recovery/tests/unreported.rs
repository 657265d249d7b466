//! What the backup does not contain: ends, checkpoints, and orders.

use super::three_nodes;
use crate::scenarios::{SIZE, id, node, registration, user};
use crate::{Action, AllocationChange, Command, HeldShare, Outcome};
use lattice_model::telemetry::CLOSELY_MS;
use lattice_model::{
    AllocationSpec, AllocationState, AuditAction, CheckpointId, CheckpointRef, EndReason, PreemptCause, Preemption, ReportItem, Revision,
    TelemetryMode, TelemetryOrder, Timestamp,
};
use std::time::Duration;

#[test]
fn work_that_ended_since_the_backup_does_not_run_again() {
    let mut quorum = three_nodes();
    quorum.submit(1, 1);
    quorum.submit(2, 1);
    quorum.run(1, &[0]);
    let mut now = quorum.backup().recovered();
    // One ended and its node dropped it; the other one, which waited in the backup, is being removed.
    let since = quorum.run(2, &[1]);
    let leaving = quorum.held(1).into_iter().map(|h| HeldShare { phase: None, ..h }).collect();
    now.return_node(0, 1, vec![]);
    now.return_node(1, 1, leaving);
    assert_eq!((now.state(1), now.state(2)), (AllocationState::Failed, AllocationState::Failed));
    let why = now.ledger.allocation(id(1)).unwrap().reason.as_ref().unwrap().to_string();
    assert!(why.contains("after the backup"), "{why}");
    assert_eq!(now.ledger.held(&node(1)), SIZE, "not free before it is gone");
    now.report(1, ReportItem::Released { allocation: id(2), epoch: since, usage: None });
    assert!(now.ledger.holdings(&node(1)).is_empty());
}

#[test]
fn an_unreported_end_is_applied_after_a_recovery() {
    let mut quorum = three_nodes();
    quorum.submit(1, 1);
    quorum.submit(2, 1);
    quorum.submit(3, 1);
    let known = quorum.run(1, &[0]);
    let mut now = quorum.backup().recovered();
    let since = quorum.run(2, &[1]);
    let unknown = quorum.run(3, &[2]);
    let ended = |number, epoch, code| ReportItem::Ended { allocation: id(number), epoch, reason: EndReason::Exited { code } };
    // Work 1 is gone, 2 is being removed, and 3, which waited in the backup, is gone, too.
    now.return_node_with(0, 1, vec![], vec![ended(1, known, 0)]);
    let leaving = quorum.held(1).into_iter().map(|h| HeldShare { phase: None, ..h }).collect();
    now.return_node_with(1, 1, leaving, vec![ended(2, since, 3)]);
    now.return_node_with(2, 1, vec![], vec![ended(3, unknown, 0)]);
    let reason = |number| now.ledger.allocation(id(number)).unwrap().reason.clone();
    assert_eq!((now.state(1), reason(1)), (AllocationState::Completed, Some(EndReason::Exited { code: 0 })));
    assert_eq!((now.state(3), reason(3)), (AllocationState::Completed, Some(EndReason::Exited { code: 0 })));
    // Its policy requeues it after such an end, as it always would.
    assert_eq!((now.state(2), reason(2)), (AllocationState::Pending, Some(EndReason::Exited { code: 3 })));
    assert_eq!(now.ledger.held(&node(1)), SIZE, "not free before it is gone");
}

#[test]
fn what_saved_itself_and_gave_its_node_back_goes_on_from_there_and_what_was_asked_stays_asked() {
    let mut quorum = three_nodes();
    for number in 1..=4 {
        quorum.submit(number, 1);
    }
    let mut now = quorum.backup().recovered();
    let id_of = |number: u128| CheckpointId(uuid::Uuid::from_u128(number));
    let made = |number, epoch| CheckpointRef { id: id_of(number), epoch, step: None, bytes: 9 };
    let ended = |number, epoch, reason| ReportItem::Ended { allocation: id(number), epoch, reason };
    let checkpointed = |number, epoch| ReportItem::Checkpointed { allocation: id(number), epoch, checkpoint: made(number, epoch) };
    let preempted = |number| EndReason::Preempted { by: "x".into(), why: "x".into(), saved: Ok(id_of(number)) };
    let walltime = EndReason::WalltimeSaved { checkpoint: id_of(2) };
    let (first, second, third) = (quorum.run(1, &[0]), quorum.run(2, &[1]), quorum.run(3, &[2]));
    now.return_node_with(0, 1, vec![], vec![checkpointed(1, first), ended(1, first, preempted(1))]);
    now.return_node_with(1, 1, vec![], vec![checkpointed(2, second), ended(2, second, walltime)]);
    // The report of its checkpoint is lost.
    quorum.report(2, ReportItem::Released { allocation: id(3), epoch: third, usage: None });
    let fourth = quorum.run(4, &[2]);
    let mut held = quorum.held(2);
    let (by, reason, cause) = ("x".to_owned(), "x".to_owned(), PreemptCause::Request);
    let order = Preemption { id: id_of(4), by, reason, cause, deadline_ms: 1000, hold: true, failed: None };
    held[0].share.preempt = Some(order.clone());
    now.return_node_with(2, 1, held, vec![ended(3, third, preempted(3))]);
    let of = |number| now.ledger.allocation(id(number)).unwrap();
    assert_eq!((of(1).state, of(1).held, of(1).checkpoint.as_deref().cloned()), (AllocationState::Suspended, false, Some(made(1, first))));
    assert_eq!((of(2).state, of(2).held, of(2).checkpoint.as_deref().cloned()), (AllocationState::Suspended, true, Some(made(2, second))));
    assert_eq!((of(3).state, of(3).checkpoint.as_deref().cloned()), (AllocationState::Failed, None), "it ran, and does not begin anew");
    assert_eq!((of(4).epoch, of(4).preemption.as_deref().cloned()), (fourth, Some(order)));
    now.lease();
    assert!(now.claim(1, &[0]).unwrap() > first);
    assert_eq!(now.ledger.desired(&node(0)).shares[0].restore, Some(made(1, first)));
}

#[test]
fn what_was_to_be_held_is_held_though_the_backup_is_older_than_that() {
    for hold in [true, false] {
        let mut quorum = three_nodes();
        let mut now = quorum.backup().recovered();
        quorum.submit(1, 1);
        let epoch = quorum.run(1, &[0]);
        let asked = CheckpointId(uuid::Uuid::from_u128(1));
        let made = CheckpointRef { id: asked, epoch, step: None, bytes: 9 };
        let (by, reason, cause) = ("x".to_owned(), "x".to_owned(), PreemptCause::Request);
        let mut held = quorum.held(0);
        held[0].share.spec.checkpoint = Some(lattice_model::CheckpointPolicy::default());
        held[0].share.preempt = Some(Preemption { id: asked, by, reason, cause, deadline_ms: 1000, hold, failed: None });
        // It has saved itself, and is being removed.
        held[0].phase = None;
        let ended = EndReason::Preempted { by: "x".into(), why: "x".into(), saved: Ok(asked) };
        let unreported = vec![
            ReportItem::Checkpointed { allocation: id(1), epoch, checkpoint: made.clone() },
            ReportItem::Ended { allocation: id(1), epoch, reason: ended },
        ];
        now.return_node_with(0, 1, held, unreported);
        let known = now.ledger.allocation(id(1)).unwrap();
        assert_eq!((known.state, known.held, known.checkpoint.as_deref().cloned()), (AllocationState::Suspended, hold, Some(made)));
    }
}

#[test]
fn how_closely_a_node_says_that_work_was_measured_is_held_to_what_may_be_asked_for() {
    let mut quorum = three_nodes();
    let backup = quorum.backup();
    let at = backup.backup().recovered().at;
    quorum.submit(1, 1);
    quorum.run(1, &[0]);
    let (debug, audit, (_, day)) = (TelemetryMode::Debug, TelemetryMode::Audit, CLOSELY_MS);
    for (mode, since, until, is) in [
        (debug, at - 5000, Some(at + 5000), true),
        (audit, at - 5000, Some(at + 5000), true),
        (audit, at - 5000, None, true),
        (debug, at - 5000, None, false),
        (TelemetryMode::Prod, at - 5000, Some(at + 5000), false),
        (audit, at - 5000, Some(at), false),
        (debug, at - 5000, Some(at), false),
        (debug, at + day, Some(at + day + 5000), false),
        (debug, at + 4999, Some(at + 5000), false),
    ] {
        let mut now = backup.backup().recovered();
        let (id_of, since, until) = (uuid::Uuid::from_u128(1), Timestamp(since), until.map(Timestamp));
        let order = TelemetryOrder { id: id_of, mode, by: "u7".into(), since, until };
        let mut held = quorum.held(0);
        held[0].share.telemetry = Some(order.clone());
        let Ok(Outcome::Registered { incarnation, .. }) = now.act(Action::Register(registration(0, 1, 1, false))) else {
            panic!("it is known")
        };
        now.act(Action::AdvanceTime).unwrap();
        now.at += 1;
        let action = Action::Adopt { node: node(0), incarnation, held, unreported: vec![] };
        let applied = now.ledger.apply(Revision(now.at), &Command { at: Timestamp(now.at), action });
        applied.result.unwrap();
        assert_eq!(now.state(1), AllocationState::Running);
        let known = now.ledger.allocation(id(1)).unwrap().telemetry.as_deref().cloned();
        let recorded = applied.audit.iter().any(|record| record.action == AuditAction::TelemetryModeSet && record.actor == "quorum");
        assert_eq!((known, recorded), (is.then(|| order.clone()), is), "{order}");
        let ends = is && order.until.is_some();
        assert_eq!(now.ledger.telemetry_due(Timestamp(u64::MAX)).len(), usize::from(ends));
    }
}

#[test]
fn work_that_was_given_more_time_than_the_backup_knows_keeps_it() {
    let mut quorum = three_nodes();
    quorum.submit(1, 2);
    quorum.run(1, &[0, 1]);
    let backup = quorum.backup();
    let (before, longer) = (backup.ledger.allocation(id(1)).unwrap().spec.walltime.unwrap(), Duration::from_secs(600));
    let change = AllocationChange { walltime: Some(longer), ..AllocationChange::default() };
    quorum.act(Action::UpdateAllocation { allocation: id(1), by: user(0), change, as_operator: true }).unwrap();
    // The other node had not received the order, or had received it first.
    for [first, last] in [[longer, before], [before, longer]] {
        let mut now = backup.backup().recovered();
        for (number, walltime) in [(0, first), (1, last)] {
            let mut held = quorum.held(number);
            held[0].share.spec.walltime = Some(walltime);
            now.return_node(number, 1, held);
        }
        assert_eq!(now.state(1), AllocationState::Running);
        for number in [0, 1] {
            assert_eq!(now.ledger.desired(&node(number)).shares[0].spec.walltime, Some(longer));
        }
        let submitted = AllocationSpec { walltime: Some(before), ..(*now.ledger.allocation(id(1)).unwrap().spec).clone() };
        assert!(now.ledger.allocation(id(1)).unwrap().was_submitted_as(&submitted));
    }
}

//! Scenarios of work whose claim has ended: whether it is requeued, and what its record keeps.

use super::scenarios::{SIZE, Story, id, node, prepared, registration, released, user};
use super::{Action, NodeStateChange, Refusal};
use lattice_model::{
    AllocationState, EndReason, HoldKind, MemoryKill, NodeState, ReportItem, RequeuePolicy, Resources, Timestamp, When, WorkUsage,
};

#[test]
fn a_failed_prologue_excludes_the_node_and_the_third_one_ends_it() {
    let mut s = Story::new(4);
    s.submit(1, 1, RequeuePolicy::Always, 5);
    for (round, n) in [0u8, 1].into_iter().enumerate() {
        let epoch = s.claimed(1, &[n]);
        s.report(n, ReportItem::PrepareFailed { allocation: id(1), epoch, why: "no image".into() });
        assert_eq!((s.state(1), s.desired(n)), (AllocationState::Pending, 0));
        assert_eq!(s.ledger.allocation(id(1)).unwrap().excluded.len(), round + 1);
        assert_eq!(s.ledger.held(&node(n)), SIZE, "it has not said that it is clean");
        s.report(n, released(1, epoch));
        assert!(matches!(s.claim(1, &[n]), Err(Refusal::Conflict { .. })));
    }
    // A node that fails again still counts as one node.
    s.pass(60_000);
    s.done(Action::EndWaits { now: s.now() });
    let epoch = s.claimed(1, &[0]);
    s.report(0, ReportItem::PrepareFailed { allocation: id(1), epoch, why: "no image".into() });
    s.report(0, released(1, epoch));
    assert_eq!((s.state(1), s.ledger.allocation(id(1)).unwrap().excluded.len()), (AllocationState::Pending, 2));
    let epoch = s.claimed(1, &[2]);
    s.report(2, ReportItem::PrepareFailed { allocation: id(1), epoch, why: "no image".into() });
    let ended = s.ledger.allocation(id(1)).unwrap();
    assert_eq!((ended.state, ended.requeue_count), (AllocationState::Failed, 0));
    assert!(matches!(ended.reason, Some(EndReason::PrologueFailed { .. })));
    assert!(ended.excluded.is_empty(), "it begins nowhere any more");
}

#[test]
fn an_exclusion_ends_after_a_time_that_grows_or_when_the_nodes_trouble_does() {
    let mut s = Story::new(2);
    s.submit(1, 1, RequeuePolicy::Never, 0);
    let fails = |s: &mut Story| {
        let epoch = s.claimed(1, &[0]);
        s.report(0, ReportItem::PrepareFailed { allocation: id(1), epoch, why: "No space left on device".into() });
        s.report(0, released(1, epoch));
        let refused = s.claim(1, &[0]);
        assert!(matches!(&refused, Err(Refusal::Conflict { conflicts }) if conflicts[0].why.contains("until")), "{refused:?}");
        let excluded = s.ledger.allocation(id(1)).unwrap().exclusion(&node(0)).cloned().unwrap();
        excluded.until.unwrap().since_ms(s.now())
    };
    let set_node_state = |s: &mut Story, state, reason: &str| {
        let incarnation = s.ledger.node(&node(0)).unwrap().incarnation;
        s.done(Action::NodeStates(vec![NodeStateChange { node: node(0), incarnation, state, reason: reason.into() }]));
    };
    let mut times = Vec::new();
    for _ in 0..8 {
        let ms = fails(&mut s);
        s.pass(ms);
        assert!(s.ledger.waits_are_due(s.now()));
        s.done(Action::EndWaits { now: s.now() });
        assert!(!s.ledger.waits_are_due(Timestamp(u64::MAX)));
        times.push(ms);
    }
    assert!(times[0] <= 30_000 && times.is_sorted() && times[7] > 1_790_000 && times[7] <= 1_800_000, "{times:?}");
    // Its checks report it well again.
    fails(&mut s);
    set_node_state(&mut s, NodeState::Degraded, "not well: disk: full");
    set_node_state(&mut s, NodeState::Ready, "heard again");
    // Somebody lifts a hold.
    fails(&mut s);
    let (by, kind) = ("root".to_owned(), HoldKind::Cordon);
    s.done(Action::SetHold { node: node(0), kind, by: by.clone(), reason: "x".into(), until: None, deadline: None });
    s.done(Action::LiftHold { node: node(0), kind, by, until: None });
    // A short silence says nothing about its disk, but a boot does.
    fails(&mut s);
    set_node_state(&mut s, NodeState::Degraded, "silent for 31 s");
    set_node_state(&mut s, NodeState::Ready, "heard again");
    assert!(s.ledger.allocation(id(1)).unwrap().exclusion(&node(0)).is_some());
    s.done(Action::Register(registration(0, 2, 1, true)));
    s.forget_reports(0);
    // Running work drops the exclusions of nodes that may be claimed for it again.
    let epoch = s.claimed(1, &[0]);
    s.report(0, prepared(1, epoch));
    assert_eq!((s.state(1), s.ledger.allocation(id(1)).unwrap().excluded.len()), (AllocationState::Running, 0));
}

#[test]
fn another_boot_id_loses_the_work_and_frees_that_node_alone() {
    let mut s = Story::new(2);
    s.submit(1, 2, RequeuePolicy::OnNodeFailure, 1);
    s.submit(2, 1, RequeuePolicy::Never, 0);
    let runs = |s: &mut Story| {
        let epoch = s.claimed(1, &[0, 1]);
        [0, 1].into_iter().for_each(|n| s.report(n, prepared(1, epoch)));
        epoch
    };
    let epoch = runs(&mut s);
    s.done(Action::Register(registration(0, 2, 1, true)));
    let lost = s.ledger.allocation(id(1)).unwrap();
    assert_eq!((lost.state, lost.requeue_count, lost.submitted_at), (AllocationState::Pending, 1, Timestamp(4000)));
    assert_eq!((s.ledger.held(&node(0)), s.ledger.held(&node(1))), (Resources::default(), SIZE));
    assert_eq!(s.ledger.node(&node(1)).unwrap().leaving.len(), 1);
    assert!(matches!(s.claim(1, &[0, 1]), Err(Refusal::Conflict { .. })));
    // An end reported under the lost epoch is too late.
    s.report(1, ReportItem::Ended { allocation: id(1), epoch, reason: EndReason::Exited { code: 0 } });
    assert_eq!(s.state(1), AllocationState::Pending);
    s.report(1, released(1, epoch));
    s.forget_reports(0);
    runs(&mut s);
    s.done(Action::Register(registration(0, 3, 2, true)));
    assert_eq!(s.state(1), AllocationState::Failed);
}

#[test]
fn requeues_follow_the_policy() {
    let exited = EndReason::Exited { code: 1 };
    let lost = EndReason::NodeLost { node: node(0), why: "x".into() };
    for (policy, reason, back) in [
        (RequeuePolicy::Never, lost.clone(), false),
        (RequeuePolicy::OnNodeFailure, lost.clone(), true),
        (RequeuePolicy::OnNodeFailure, exited.clone(), false),
        (RequeuePolicy::Always, exited, true),
        (RequeuePolicy::Always, lost, true),
        (RequeuePolicy::Always, EndReason::Exited { code: 0 }, false),
        (RequeuePolicy::Always, EndReason::WalltimeExceeded, false),
        (RequeuePolicy::Always, EndReason::LaunchAborted { code: 1, why: "x".into() }, true),
        (RequeuePolicy::Always, EndReason::ProbeFailed { node: node(0), why: "x".into() }, true),
        (RequeuePolicy::OnNodeFailure, EndReason::ProbeFailed { node: node(0), why: "x".into() }, false),
    ] {
        let mut s = Story::new(1);
        s.submit(1, 1, policy, 1);
        let epoch = s.claimed(1, &[0]);
        s.report(0, prepared(1, epoch));
        s.report(0, ReportItem::Ended { allocation: id(1), epoch, reason: reason.clone() });
        assert_eq!(s.state(1) == AllocationState::Pending, back, "{policy:?} {reason:?}");
    }
}

#[test]
fn a_head_reports_a_lack_of_memory_on_nodes_of_the_work_alone() {
    let kill = MemoryKill { launch: 1, whole: true, had_bytes: None, limit_bytes: Some(1 << 20) };
    // The third node has no share of it, and there is no tenth.
    for (reported, recorded) in [(0, 0), (1, 1), (2, 0), (9, 0)] {
        let mut s = Story::new(3);
        s.submit(1, 2, RequeuePolicy::Never, 0);
        let epoch = s.claimed(1, &[0, 1]);
        s.report(0, prepared(1, epoch));
        s.report(1, prepared(1, epoch));
        let reason = EndReason::OutOfMemory { node: node(reported), kill };
        s.report(0, ReportItem::Ended { allocation: id(1), epoch, reason });
        let recorded = EndReason::OutOfMemory { node: node(recorded), kill };
        assert_eq!(s.ledger.allocation(id(1)).unwrap().reason, Some(recorded), "it reported n{reported}");
    }
}

#[test]
fn only_its_owner_or_root_cancels() {
    let mut s = Story::new(1);
    s.submit(1, 1, RequeuePolicy::Always, 3);
    assert!(matches!(s.act(Action::Cancel { id: id(1), by: user(8) }), Err(Refusal::NotYours { .. })));
    let epoch = s.claimed(1, &[0]);
    s.done(Action::Cancel { id: id(1), by: user(0) });
    assert_eq!((s.state(1), s.desired(0), s.ledger.held(&node(0))), (AllocationState::Cancelled, 0, SIZE));
    s.report(0, released(1, epoch));
    assert_eq!(s.ledger.held(&node(0)), Resources::default());
    s.done(Action::Cancel { id: id(1), by: user(7) });
}

#[test]
fn what_work_used_is_that_of_its_last_claim_on_all_nodes_that_released_it_each_once() {
    let mut s = Story::new(2);
    let used = |memory, cpu| Some(WorkUsage { nodes: 1, memory_peak_bytes: Some(memory), cpu_ms: Some(cpu) });
    let released = |epoch, usage| ReportItem::Released { allocation: id(1), epoch, usage };
    s.submit(1, 2, RequeuePolicy::Always, 3);
    let first = s.claimed(1, &[0, 1]);
    s.report(0, prepared(1, first));
    s.report(1, prepared(1, first));
    s.report(0, ReportItem::Ended { allocation: id(1), epoch: first, reason: EndReason::Exited { code: 1 } });
    s.report(0, released(first, used(9, 90)));
    s.report(1, released(first, used(8, 80)));
    let second = s.claimed(1, &[0, 1]);
    assert_eq!(s.ledger.allocation(id(1)).unwrap().usage, None, "what is begun anew has used nothing yet");
    s.report(0, prepared(1, second));
    s.report(1, prepared(1, second));
    s.report(0, ReportItem::Ended { allocation: id(1), epoch: second, reason: EndReason::Exited { code: 0 } });
    s.report(0, released(second, used(5, 20)));
    // A repeated report, under either epoch, adds nothing.
    s.report(0, released(second, used(5, 20)));
    s.report(1, released(first, used(8, 80)));
    s.report(1, released(second, used(7, 30)));
    let want = WorkUsage { nodes: 2, memory_peak_bytes: Some(7), cpu_ms: Some(50) };
    assert_eq!(s.ledger.allocation(id(1)).unwrap().usage.as_deref(), Some(&want));
}

#[test]
fn the_record_has_each_attempt_with_its_nodes_and_who_ended_it() {
    let mut s = Story::new(4);
    s.submit(1, 2, RequeuePolicy::Always, 5);
    let first = s.claimed(1, &[1, 0]);
    s.report(0, prepared(1, first));
    s.report(1, prepared(1, first));
    let began = s.now();
    s.report(1, ReportItem::Ended { allocation: id(1), epoch: first, reason: EndReason::Exited { code: 7 } });
    let second = s.claimed(1, &[2, 3]);
    assert_eq!(s.ledger.allocation(id(1)).unwrap().attempt_number(), Some(2));
    s.report(3, ReportItem::PrepareFailed { allocation: id(1), epoch: second, why: "no image".into() });
    let known = s.ledger.allocation(id(1)).unwrap();
    assert_eq!((known.attempt_number(), known.claimed_at, known.started_at), (None, None, None));
    let attempts: Vec<_> = known.attempts.iter().map(|a| (a.number, a.epoch, a.nodes.as_str(), a.by.as_str(), a.may_have_run())).collect();
    assert_eq!(attempts, [(1, first, "n[0-1]", "node:n1", true), (2, second, "n[2-3]", "node:n3", false)]);
    assert_eq!((&known.attempts[0].head, known.attempts[0].started_at), (&node(1), Some(began)));
    assert_eq!(known.attempts[0].reason, EndReason::Exited { code: 7 });
}

#[test]
fn an_attempt_that_a_drain_ended_names_who_drained_the_node() {
    let mut s = Story::new(2);
    s.submit(1, 1, RequeuePolicy::OnNodeFailure, 3);
    s.claimed(1, &[0]);
    let deadline = Timestamp(s.now().0 + 5000);
    let set = Action::SetHold {
        node: node(0),
        kind: HoldKind::Drain,
        by: "ada".into(),
        reason: "fan".into(),
        until: None,
        deadline: Some(When::At(deadline)),
    };
    s.done(set);
    s.pass(5000);
    s.done(Action::EndDrained { node: node(0), deadline });
    let known = s.ledger.allocation(id(1)).unwrap();
    assert_eq!((known.state, known.attempts[0].by.as_str()), (AllocationState::Pending, "ada"));
}

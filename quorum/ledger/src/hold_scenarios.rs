//! Scenarios of drains, of disabled or booted nodes, and of holds that end by themselves.

use super::scenarios::{Story, id, node, registration};
use super::{Action, NodeStateChange};
use crate::Refusal;
use lattice_model::{
    AllocationState, AuditAction, EndReason, Epoch, HoldKind, NO_REASON, Node, NodeState, ReportItem, RequeuePolicy, Timestamp, When,
};

fn set(number: u8, kind: HoldKind, reason: &str) -> Action {
    Action::SetHold { node: node(number), kind, by: "root".into(), reason: reason.into(), until: None, deadline: None }
}

fn until(number: u8, kind: HoldKind, until: When) -> Action {
    Action::SetHold { node: node(number), kind, by: "root".into(), reason: "fan".into(), until: Some(until), deadline: None }
}

fn lift(number: u8, kind: HoldKind) -> Action {
    Action::LiftHold { node: node(number), kind, by: "root".into(), until: None }
}

fn released(number: u128, epoch: Epoch) -> ReportItem {
    ReportItem::Released { allocation: id(number), epoch, usage: None }
}

impl Story {
    fn node(&self, number: u8) -> &Node {
        self.ledger.node(&node(number)).unwrap()
    }

    fn node_state(&self, number: u8) -> NodeState {
        self.node(number).state
    }

    /// The leader's clock proposes this state.
    fn clock(&mut self, number: u8, state: NodeState) {
        let incarnation = self.node(number).incarnation;
        self.done(Action::NodeStates(vec![NodeStateChange { node: node(number), incarnation, state, reason: "silent".into() }]));
    }

    fn runs(&mut self, number: u128, on: u8, requeue: RequeuePolicy) -> Epoch {
        self.submit(number, 1, requeue, 3);
        let epoch = self.claimed(number, &[on]);
        self.report(on, ReportItem::Prepared { allocation: id(number), epoch });
        epoch
    }

    fn refused_by_state(&mut self, action: Action) -> Refusal {
        match self.act(action) {
            Err(refusal @ Refusal::NodeState { .. }) => refusal,
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn a_node_s_own_drain_is_set_once_for_each_request_whoever_lifts_it() {
    let mut s = Story::new(2);
    let ask = |s: &mut Story, asked| {
        let incarnation = s.node(1).incarnation;
        s.done(Action::AskDrain { node: node(1), incarnation, asked: Timestamp(asked), reason: "gpu 0: XID 79".into() });
        s.node(1).hold(HoldKind::Drain).map(|hold| (hold.by.clone(), hold.reasons()))
    };
    let own = Some(("node:n1".to_owned(), "gpu 0: XID 79".to_owned()));
    assert_eq!((ask(&mut s, 5), s.node_state(1)), (own.clone(), NodeState::Drained));
    let revision = s.node(1).revision;
    assert_eq!((ask(&mut s, 5), s.node(1).revision), (own.clone(), revision), "said again");
    s.done(lift(1, HoldKind::Drain));
    assert_eq!((ask(&mut s, 5), s.node_state(1)), (None, NodeState::Ready), "an operator lifted it");
    assert_eq!((ask(&mut s, 9), s.node_state(1)), (own, NodeState::Drained), "it found something else");
    // Together with an operator's drain, whose reason stays first.
    s.done(lift(1, HoldKind::Drain));
    s.done(set(1, HoldKind::Drain, "disk"));
    assert_eq!(ask(&mut s, 10), Some(("root".to_owned(), "disk; gpu 0: XID 79".to_owned())));
    s.done(lift(1, HoldKind::Drain));
    // A request from the agent's previous incarnation.
    let before = s.node(1).incarnation;
    s.done(Action::Register(registration(1, 1, 0, true)));
    s.done(Action::AskDrain { node: node(1), incarnation: before, asked: Timestamp(11), reason: "gpu 0: XID 79".into() });
    assert!(s.node(1).incarnation > before && s.node(1).hold(HoldKind::Drain).is_none());
}

#[test]
fn a_drain_waits_for_running_work_and_only_undrain_lifts_it() {
    let mut s = Story::new(2);
    let epoch = s.runs(1, 1, RequeuePolicy::Never);
    s.done(set(1, HoldKind::Drain, "disk"));
    assert_eq!((s.node_state(1), s.ledger.desired(&node(1)).shares.len()), (NodeState::Draining, 1), "what runs goes on");
    s.submit(2, 1, RequeuePolicy::Never, 0);
    assert!(matches!(s.claim(2, &[1]), Err(Refusal::Conflict { .. })));
    // Silence, the return from it, and another registration do not change that.
    s.clock(1, NodeState::Degraded);
    s.clock(1, NodeState::Down);
    assert_eq!(s.node_state(1), NodeState::Down);
    s.clock(1, NodeState::Ready);
    assert_eq!(s.node_state(1), NodeState::Draining);
    s.report(1, ReportItem::Ended { allocation: id(1), epoch, reason: EndReason::Exited { code: 0 } });
    assert_eq!(s.node_state(1), NodeState::Draining, "something of it is left");
    s.report(1, released(1, epoch));
    assert_eq!(s.node_state(1), NodeState::Drained);
    s.clock(1, NodeState::Degraded);
    s.done(Action::Register(registration(1, 2, 1, true)));
    assert_eq!(s.node_state(1), NodeState::Drained, "under another boot");
    s.done(lift(1, HoldKind::Drain));
    s.done(lift(1, HoldKind::Drain));
    assert_eq!((s.node_state(1), s.node(1).holds.len()), (NodeState::Ready, 0));
    assert!(s.claim(2, &[1]).is_ok());
}

#[test]
fn an_empty_node_is_drained_at_once_and_every_change_is_on_record() {
    let mut s = Story::new(1);
    let records = s.acted(set(0, HoldKind::Drain, "disk"));
    let details: Vec<_> = records.iter().map(|r| (r.actor.as_str(), r.detail.as_str())).collect();
    assert_eq!(details, [("root", "drain: disk"), ("root", "Ready -> Drained")]);
    assert_eq!(s.acted(set(0, HoldKind::Drain, "disk")), [], "said again");
    let records = s.acted(set(0, HoldKind::Drain, "and memory"));
    assert_eq!(records.len(), 1);
    assert_eq!(s.node(0).hold(HoldKind::Drain).unwrap().reasons(), "and memory", "the same person's newer reason");
}

#[test]
fn a_mistaken_drain_is_called_off_while_it_is_under_way() {
    let mut s = Story::new(2);
    let epoch = s.runs(1, 1, RequeuePolicy::Never);
    s.done(set(1, HoldKind::Drain, "wrong node"));
    assert_eq!(s.node_state(1), NodeState::Draining);
    s.done(lift(1, HoldKind::Drain));
    assert_eq!((s.node_state(1), s.node(1).holds.len()), (NodeState::Ready, 0));
    // Its work was left alone, and the end of that work does not complete a drain.
    s.report(1, ReportItem::Ended { allocation: id(1), epoch, reason: EndReason::Exited { code: 0 } });
    s.report(1, released(1, epoch));
    assert_eq!(s.node_state(1), NodeState::Ready);
    // A node that was silent meanwhile returns without the hold.
    s.done(set(1, HoldKind::Drain, "wrong node"));
    s.clock(1, NodeState::Degraded);
    s.done(lift(1, HoldKind::Drain));
    assert_eq!((s.node_state(1), s.node(1).holds.len()), (NodeState::Degraded, 0));
    s.clock(1, NodeState::Ready);
    assert_eq!(s.node_state(1), NodeState::Ready);
}

#[test]
fn reasons_said_again_do_not_pile_up_and_others_reasons_stay() {
    let by = |who: &str, reason: &str| Action::SetHold {
        node: node(0),
        kind: HoldKind::Cordon,
        by: who.into(),
        reason: reason.into(),
        until: None,
        deadline: None,
    };
    let mut s = Story::new(1);
    for (who, reason, all) in [
        ("ada", "fan replacement", "fan replacement"),
        ("ada", "again", "again"),
        ("bob", "network test", "again; network test"),
        ("ada", "fan", "fan; network test"),
        ("bob", "network", "fan; network"),
        ("bob", "fan", "fan"),
        ("ada", NO_REASON, "fan"),
        ("node:n0", "gpu 0", "fan; gpu 0"),
        ("node:n0", "gpu 1", "fan; gpu 0; gpu 1"),
        ("node:n0", "gpu 0", "fan; gpu 0; gpu 1"),
    ] {
        s.done(by(who, reason));
        let hold = s.node(0).hold(HoldKind::Cordon).unwrap();
        assert_eq!((hold.by.as_str(), hold.reasons().as_str()), ("ada", all));
    }
    for number in 0..20 {
        s.done(by("ada", &format!("{number} {}", "x".repeat(200))));
    }
}

#[test]
fn after_its_deadline_a_drain_ends_running_work_unless_the_node_is_silent() {
    let mut s = Story::new(3);
    s.runs(1, 1, RequeuePolicy::OnNodeFailure);
    s.runs(2, 2, RequeuePolicy::Never);
    let past = Action::SetHold {
        node: node(1),
        kind: HoldKind::Drain,
        by: "root".into(),
        reason: "disk".into(),
        until: None,
        deadline: Some(When::At(s.now())),
    };
    assert!(matches!(s.act(past), Err(Refusal::Malformed { why }) if why.contains("is past")));
    let deadline = Timestamp(s.now().0 + 5000);
    for number in [1, 2] {
        let (when, reason) = (Some(When::At(deadline)), "disk".to_owned());
        s.done(Action::SetHold { node: node(number), kind: HoldKind::Drain, by: "root".into(), reason, until: None, deadline: when });
    }
    assert_eq!(s.ledger.nodes_due(Timestamp(deadline.0 - 1), u64::MAX), []);
    s.clock(2, NodeState::Degraded);
    let due = s.ledger.nodes_due(deadline, u64::MAX);
    assert_eq!(due, [Action::EndDrained { node: node(1), deadline }]);
    // Before the deadline, or for another deadline: no effect.
    s.done(Action::EndDrained { node: node(1), deadline: Timestamp(1) });
    let allocation_state = |s: &Story, number| s.ledger.allocation(id(number)).unwrap().state;
    assert_eq!(allocation_state(&s, 1), AllocationState::Running);
    s.done(due[0].clone());
    let requeued = s.ledger.allocation(id(1)).unwrap();
    assert_eq!((requeued.state, requeued.requeue_count), (AllocationState::Pending, 1));
    assert_eq!(requeued.reason, Some(EndReason::DrainDeadline { node: node(1) }));
    assert_eq!((s.node_state(1), allocation_state(&s, 2)), (NodeState::Draining, AllocationState::Running));
    assert_eq!(s.ledger.nodes_due(deadline, u64::MAX), [], "once");
    // Heartbeats arrive again, and the deadline has still passed.
    s.clock(2, NodeState::Ready);
    let due = s.ledger.nodes_due(deadline, u64::MAX);
    s.done(due[0].clone());
    assert_eq!(allocation_state(&s, 2), AllocationState::Failed);
}

#[test]
fn the_drain_of_a_node_that_is_not_well_comes_to_its_end_and_undrain_leaves_it_degraded() {
    let mut s = Story::new(2);
    let epoch = s.runs(1, 1, RequeuePolicy::Never);
    let set_state = |s: &mut Story, state, reason: &str| {
        let incarnation = s.node(1).incarnation;
        s.done(Action::NodeStates(vec![NodeStateChange { node: node(1), incarnation, state, reason: reason.into() }]));
    };
    set_state(&mut s, NodeState::Degraded, "not well: XID 79");
    s.done(set(1, HoldKind::Drain, "XID 79"));
    assert_eq!(s.node_state(1), NodeState::Degraded, "until the clocks look");
    set_state(&mut s, NodeState::Ready, "it drains");
    set_state(&mut s, NodeState::Draining, "not well: XID 79");
    assert_eq!((s.node_state(1), s.node(1).is_unwell()), (NodeState::Draining, true));
    s.report(1, ReportItem::Ended { allocation: id(1), epoch, reason: EndReason::Exited { code: 0 } });
    s.report(1, released(1, epoch));
    assert_eq!(s.node_state(1), NodeState::Drained);
    set_state(&mut s, NodeState::Drained, "not well: XID 79");
    s.done(lift(1, HoldKind::Drain));
    assert_eq!(
        (s.node_state(1), s.node(1).state_reason.as_str()),
        (NodeState::Degraded, "not well: XID 79"),
        "nothing is placed in between"
    );
    // Now the node is silent, not unwell: its death may be confirmed.
    set_state(&mut s, NodeState::Degraded, "silent for 31 s");
    s.done(Action::ConfirmDead { node: node(1), by: "root".into(), reason: "no power".into() });
    assert_eq!(s.node_state(1), NodeState::Down);
}

#[test]
fn a_disabled_node_is_down_its_work_goes_elsewhere_and_enabling_waits_for_its_agent() {
    let mut s = Story::new(2);
    let epoch = s.runs(1, 1, RequeuePolicy::OnNodeFailure);
    s.runs(2, 0, RequeuePolicy::Never);
    s.done(set(1, HoldKind::Disable, "smoke"));
    assert_eq!((s.node_state(1), s.node(1).state_reason.as_str()), (NodeState::Down, "disabled by root: smoke"));
    let lost = s.ledger.allocation(id(1)).unwrap();
    assert_eq!((lost.state, lost.requeue_count), (AllocationState::Pending, 1));
    assert_eq!(s.ledger.desired(&node(1)).shares.len(), 0, "its agent is to stop it");
    assert_eq!(s.node(1).leaving.len(), 1, "and has not said that it did");
    // Heartbeats do not change that.
    s.clock(1, NodeState::Ready);
    s.done(Action::Register(registration(1, 1, 1, false)));
    assert_eq!(s.node_state(1), NodeState::Down);
    s.report(1, released(1, epoch));
    s.done(lift(1, HoldKind::Disable));
    assert_eq!((s.node_state(1), s.node(1).state_reason.as_str()), (NodeState::Down, "enabled by root, and not heard since"));
    s.clock(1, NodeState::Ready);
    assert_eq!(s.node_state(1), NodeState::Ready);
    s.claimed(1, &[1]);
    assert_eq!(s.ledger.allocation(id(2)).unwrap().state, AllocationState::Running);
}

#[test]
fn a_node_whose_hardware_failed_is_down_until_it_is_repaired_and_its_work_waits_for_evidence() {
    let mut s = Story::new(2);
    let epoch = s.runs(1, 1, RequeuePolicy::OnNodeFailure);
    let records = s.acted(set(1, HoldKind::Failure, "PSU 2"));
    let audited: Vec<_> = records.iter().map(|r| (r.action, r.actor.as_str())).collect();
    assert_eq!(audited, [(AuditAction::HoldSet, "root"), (AuditAction::NodeStateChanged, "root")]);
    assert_eq!((s.node_state(1), s.node(1).state_reason.as_str()), (NodeState::Down, "its hardware failed, says root: PSU 2"));
    // The work may still be running there: it is started elsewhere only after the node reports its
    // end or somebody confirms it.
    assert_eq!(s.ledger.allocation(id(1)).unwrap().state, AllocationState::Running);
    // Neither heartbeats nor a new boot id change that.
    s.clock(1, NodeState::Ready);
    s.done(Action::Register(registration(1, 1, 1, false)));
    assert_eq!(s.node_state(1), NodeState::Down);
    let boot = Action::BootNode { node: node(1), by: "root".into(), reason: "x".into() };
    assert!(s.refused_by_state(boot).remedy().unwrap().contains("lattice node repaired"));
    s.done(Action::ConfirmDead { node: node(1), by: "root".into(), reason: "its power is off".into() });
    let lost = s.ledger.allocation(id(1)).unwrap();
    assert_eq!((lost.state, lost.requeue_count), (AllocationState::Pending, 1));
    s.done(Action::Register(registration(1, 2, 1, true)));
    assert_eq!(s.node_state(1), NodeState::Down);
    assert!(s.claim(1, &[1]).is_err());
    // Each of two such holds alone keeps it Down.
    s.done(set(1, HoldKind::Disable, "until the part is there"));
    s.done(lift(1, HoldKind::Failure));
    assert!(s.node(1).state_reason.starts_with("disable by root"), "{:?}", s.node(1));
    s.clock(1, NodeState::Ready);
    assert_eq!(s.node_state(1), NodeState::Down);
    s.done(lift(1, HoldKind::Disable));
    assert_eq!((s.node_state(1), s.node(1).state_reason.as_str()), (NodeState::Down, "enabled by root, and not heard since"));
    s.clock(1, NodeState::Ready);
    assert_eq!(s.node_state(1), NodeState::Ready);
    assert_ne!(s.claimed(1, &[1]), epoch);
}

#[test]
fn a_boot_is_over_with_another_boot_id_or_with_its_time() {
    let boot = |number| Action::BootNode { node: node(number), by: "root".into(), reason: "kernel".into() };
    let mut s = Story::new(3);
    assert!(s.refused_by_state(boot(1)).remedy().unwrap().contains("drain"));
    s.done(set(1, HoldKind::Drain, "kernel"));
    s.done(boot(1));
    let began = s.now();
    s.done(boot(1));
    assert_eq!((s.node_state(1), s.node(1).state_reason.as_str()), (NodeState::Booting, "booted by root: kernel"));
    // Heartbeats of the agent of the earlier boot arrive until it ends.
    s.clock(1, NodeState::Ready);
    s.done(Action::Register(registration(1, 1, 1, false)));
    assert_eq!(s.node_state(1), NodeState::Booting);
    assert_eq!(s.ledger.nodes_due(Timestamp(began.0 + 59_999), 60_000), []);
    let due = s.ledger.nodes_due(Timestamp(began.0 + 60_000), 60_000);
    s.done(due[0].clone());
    assert_eq!(s.node_state(1), NodeState::Failed);
    assert_eq!(s.ledger.nodes_due(Timestamp(began.0 + 90_000), 60_000), []);
    // It registers late, but is accepted: its drain hold still exists.
    s.done(Action::Register(registration(1, 2, 1, true)));
    assert_eq!(s.node_state(1), NodeState::Drained);
    s.done(set(2, HoldKind::Disable, "smoke"));
    assert!(s.refused_by_state(boot(2)).remedy().unwrap().contains("enable"));
}

#[test]
fn a_hold_ends_at_its_time_and_is_shortened_by_nobody() {
    let mut s = Story::new(1);
    let first = Timestamp(s.now().0 + 10_000);
    s.done(until(0, HoldKind::Cordon, When::At(first)));
    s.done(until(0, HoldKind::Cordon, When::AfterMs(1)));
    assert_eq!(s.node(0).hold(HoldKind::Cordon).unwrap().until, Some(first), "the later of the two");
    let second = Timestamp(s.now().0 + 60_000);
    s.done(until(0, HoldKind::Cordon, When::At(second)));
    assert_eq!(s.ledger.nodes_due(first, u64::MAX), []);
    let due = s.ledger.nodes_due(second, u64::MAX);
    // The end was extended before that command was applied.
    let third = Timestamp(second.0 + 1);
    s.done(until(0, HoldKind::Cordon, When::At(third)));
    s.done(due[0].clone());
    assert_eq!(s.node(0).holds.len(), 1);
    let due = s.ledger.nodes_due(third, u64::MAX);
    s.done(due[0].clone());
    assert_eq!(s.node(0).holds.len(), 1, "whoever says that it is time has a wrong clock");
    s.ahead_ms = 60_000;
    let records = s.acted(due[0].clone());
    assert_eq!((records[0].actor.as_str(), s.node(0).holds.len()), ("quorum", 0));
    assert!(records[0].detail.starts_with("cordon: it was until "));
    // If one setter gives no end, the hold has no end.
    s.done(set(0, HoldKind::Maintenance, "fan"));
    s.done(until(0, HoldKind::Maintenance, When::AfterMs(1)));
    assert_eq!(s.node(0).hold(HoldKind::Maintenance).unwrap().until, None);
    for kind in [HoldKind::Quarantine, HoldKind::Drain, HoldKind::Disable, HoldKind::Failure] {
        assert!(matches!(s.act(until(0, kind, When::AfterMs(9))), Err(Refusal::Malformed { .. })), "{kind}");
    }
    assert!(matches!(s.act(until(0, HoldKind::Cordon, When::At(Timestamp(1)))), Err(Refusal::Malformed { .. })));
    assert!(matches!(s.act(until(0, HoldKind::Cordon, When::AfterMs(0))), Err(Refusal::Malformed { .. })));
}

//! Scenarios of silent nodes.

use super::scenarios::{SIZE, Story, id, node, registration, spec, user};
use super::{Action, NodeStateChange, Registration, VClusterChange};
use crate::Refusal;
use crate::node_use::NodeUse;
use lattice_model::constraint::RUN_LEASE;
use lattice_model::{
    AllocationId, AllocationSpec, AllocationState, AuditAction, CUT_OFF, EndReason, HoldKind, NodeState, OnIsolation, ReportItem,
    RequeuePolicy, SchedulerKind,
};

const LEASE_MS: u64 = 90_000;
const OVER_MS: u64 = 99_000;

/// A registration of a node that supports run leases.
pub(super) fn fencing(number: u8, boot: u128, incarnation: u64, new_life: bool) -> Registration {
    Registration { features: vec![RUN_LEASE.to_owned()], ..registration(number, boot, incarnation, new_life) }
}

fn stop(nodes: u32, requeue: RequeuePolicy) -> AllocationSpec {
    AllocationSpec { on_isolation: OnIsolation::Stop, ..spec(nodes, requeue, 3) }
}

fn submit(number: u128, spec: AllocationSpec) -> Action {
    Action::Submit { id: id(number), spec: Box::new(spec), owner: user(7), claim: None }
}

fn story(nodes: u8) -> Story {
    let mut s = Story::new(nodes);
    (0..nodes).for_each(|n| s.done(Action::Register(fencing(n, 1, 1, false))));
    s.done(Action::SetRunLease { ms: LEASE_MS });
    s
}

fn set_node_state(s: &mut Story, number: u8, state: NodeState) {
    if state == NodeState::Down && s.ledger.node(&node(number)).unwrap().state == NodeState::Ready {
        // Not at once: it becomes Degraded first.
        set_node_state(s, number, NodeState::Degraded);
    }
    let incarnation = s.ledger.node(&node(number)).unwrap().incarnation;
    s.done(Action::NodeStates(vec![NodeStateChange { node: node(number), incarnation, state, reason: "silent".into() }]));
}

fn fence(s: &Story, number: u8, silent_ms: u64) -> Action {
    Action::Fence { node: node(number), incarnation: s.ledger.node(&node(number)).unwrap().incarnation, silent_ms }
}

fn state(s: &Story, of: AllocationId) -> AllocationState {
    s.ledger.allocation(of).unwrap().state
}

fn dead(number: u8) -> Action {
    Action::ConfirmDead { node: node(number), by: "root".into(), reason: "its power is off".into() }
}

#[test]
fn work_that_stops_is_requeued_when_its_lease_is_over_and_other_work_is_not() {
    let mut s = story(4);
    s.done(submit(1, stop(1, RequeuePolicy::OnNodeFailure)));
    s.done(submit(2, spec(1, RequeuePolicy::Always, 3)));
    s.done(submit(3, stop(1, RequeuePolicy::Never)));
    let epochs = [s.claimed(1, &[0]), s.claimed(2, &[1]), s.claimed(3, &[2])];
    let length = |s: &Story, n: u8| s.ledger.desired(&node(n)).shares[0].run_lease_ms;
    assert_eq!([0, 1, 2].map(|n| length(&s, n)), [Some(LEASE_MS), None, Some(LEASE_MS)]);
    s.done(Action::SetRunLease { ms: 1000 });
    assert_eq!(length(&s, 0), Some(LEASE_MS), "a claim keeps the one that it was made with");
    assert_eq!([0, 1, 2].map(|n| s.ledger.fenced_after_ms(&node(n))), [Some(OVER_MS), None, Some(OVER_MS)]);
    let submitted = s.ledger.allocation(id(1)).unwrap().submitted_at;
    (0..3).for_each(|n| s.done(fence(&s, n, OVER_MS)));
    assert_eq!(state(&s, id(1)), AllocationState::Staging, "it is not Down");
    (0..3).for_each(|n| set_node_state(&mut s, n, NodeState::Down));
    assert_eq!(state(&s, id(1)), AllocationState::Staging, "Down alone is no evidence");
    s.done(fence(&s, 0, OVER_MS - 1));
    assert_eq!(state(&s, id(1)), AllocationState::Staging);
    (0..3).for_each(|n| s.done(fence(&s, n, OVER_MS)));
    assert_eq!([1, 2, 3].map(|n| state(&s, id(n))), [AllocationState::Pending, AllocationState::Staging, AllocationState::Failed]);
    let requeued = s.ledger.allocation(id(1)).unwrap();
    assert_eq!((requeued.requeue_count, requeued.submitted_at), (1, submitted));
    assert!(matches!(&requeued.reason, Some(EndReason::NodeLost { why, .. }) if why.contains("run lease")), "{requeued:?}");
    let leaving = &s.ledger.node(&node(0)).unwrap().leaving;
    assert!(leaving.len() == 1 && leaving[0].fenced && s.ledger.held(&node(0)) == SIZE, "its room stays taken: {leaving:?}");
    assert!(s.claimed(1, &[3]) > epochs[2]);
}

#[test]
fn a_lapse_that_the_node_reports_requeues_as_the_loss_of_it() {
    let mut s = story(2);
    s.done(submit(1, stop(1, RequeuePolicy::OnNodeFailure)));
    let epoch = s.claimed(1, &[0]);
    s.report(0, ReportItem::Prepared { allocation: id(1), epoch });
    s.report(0, ReportItem::Ended { allocation: id(1), epoch, reason: EndReason::RunLeaseLapsed { node: node(0) } });
    let requeued = s.ledger.allocation(id(1)).unwrap();
    assert_eq!((requeued.state, requeued.requeue_count), (AllocationState::Pending, 1));
    assert!(matches!(&requeued.reason, Some(EndReason::NodeLost { why, .. }) if why.contains("lapsed")), "{requeued:?}");
    let refused = s.claim(1, &[1]);
    assert!(matches!(&refused, Err(Refusal::Conflict { conflicts }) if conflicts[0].why.contains("may still run there")), "{refused:?}");
    s.report(0, ReportItem::Released { allocation: id(1), epoch, usage: None });
    s.claimed(1, &[1]);
}

#[test]
fn requeued_work_waits_longer_each_time_and_is_not_counted_if_it_never_began() {
    let mut s = story(2);
    s.done(submit(1, stop(1, RequeuePolicy::OnNodeFailure)));
    let mut waits = Vec::new();
    for round in 0..12 {
        let epoch = s.claimed(1, &[0]);
        let reason = EndReason::RunLeaseLapsed { node: node(0) };
        s.report(0, ReportItem::Ended { allocation: id(1), epoch, reason });
        s.report(0, ReportItem::Released { allocation: id(1), epoch, usage: None });
        let now = s.ledger.allocation(id(1)).unwrap();
        assert_eq!((now.state, now.requeue_count, now.quick_requeues), (AllocationState::Pending, 0, round + 1));
        assert!(matches!(s.claim(1, &[1]), Err(Refusal::Waits { .. })), "a lapse is not a reason to claim it at once");
        waits.push(s.waits_over(1));
    }
    // Two commands were applied since the requeue, a second each.
    assert!(waits[..3].iter().all(|wait| *wait < 4_000) && waits[3..].is_sorted() && waits[11] > 290_000, "{waits:?}");
    // Claims under which work began count as requeues; work that ran for a while is requeued
    // without a wait.
    let epoch = s.claimed(1, &[0]);
    s.report(0, ReportItem::Prepared { allocation: id(1), epoch });
    s.pass(60_000);
    s.report(0, ReportItem::Ended { allocation: id(1), epoch, reason: EndReason::RunLeaseLapsed { node: node(0) } });
    let now = s.ledger.allocation(id(1)).unwrap();
    assert_eq!((now.requeue_count, now.quick_requeues, now.waits_until), (1, 0, None));
    s.report(0, ReportItem::Released { allocation: id(1), epoch, usage: None });
    s.claimed(1, &[1]);
}

#[test]
fn work_that_never_begins_still_ends() {
    let mut s = story(1);
    s.done(submit(1, stop(1, RequeuePolicy::OnNodeFailure)));
    let mut claims = 0;
    while state(&s, id(1)) == AllocationState::Pending {
        let epoch = s.claimed(1, &[0]);
        claims += 1;
        s.report(0, ReportItem::Ended { allocation: id(1), epoch, reason: EndReason::RunLeaseLapsed { node: node(0) } });
        s.report(0, ReportItem::Released { allocation: id(1), epoch, usage: None });
        s.waits_over(1);
    }
    assert_eq!((state(&s, id(1)), claims), (AllocationState::Failed, super::waits::UNCOUNTED_MAX + 4));
}

#[test]
fn work_that_stops_waits_for_every_node_of_its_last_attempt() {
    let mut s = story(5);
    s.done(submit(1, stop(3, RequeuePolicy::OnNodeFailure)));
    let epoch = s.claimed(1, &[0, 1, 2]);
    set_node_state(&mut s, 0, NodeState::Down);
    s.done(fence(&s, 0, OVER_MS));
    assert_eq!(state(&s, id(1)), AllocationState::Pending);
    s.report(1, ReportItem::Released { allocation: id(1), epoch, usage: None });
    let silent = |s: &mut Story| matches!(s.claim(1, &[1, 3, 4]), Err(Refusal::Conflict { conflicts }) if conflicts[0].node == node(2));
    assert!(silent(&mut s), "n2 has not said that its part is gone");
    set_node_state(&mut s, 2, NodeState::Down);
    assert!(silent(&mut s));
    s.done(fence(&s, 2, OVER_MS));
    s.claimed(1, &[1, 3, 4]);
}

#[test]
fn a_node_that_came_back_is_not_fenced_and_gets_new_work_when_the_old_is_gone() {
    let mut s = story(2);
    s.done(submit(1, stop(1, RequeuePolicy::OnNodeFailure)));
    let epoch = s.claimed(1, &[0]);
    set_node_state(&mut s, 0, NodeState::Down);
    let late = fence(&s, 0, OVER_MS);
    s.done(Action::Register(fencing(0, 1, 1, false)));
    s.done(late);
    assert_eq!(state(&s, id(1)), AllocationState::Staging, "it registered before the leader's word came: it has its work");
    set_node_state(&mut s, 0, NodeState::Down);
    s.done(fence(&s, 0, OVER_MS));
    s.done(Action::Register(fencing(0, 1, 1, false)));
    assert!(s.ledger.desired(&node(0)).shares.is_empty(), "it is to end it");
    let why = s.ledger.node(&node(0)).unwrap().unclaimable().unwrap();
    assert!(why.contains("has not reported yet that nothing is left"), "{why}");
    s.report(0, ReportItem::Released { allocation: id(1), epoch, usage: None });
    assert_eq!(s.ledger.node(&node(0)).unwrap().unclaimable(), None);
    s.claimed(1, &[0]);
}

#[test]
fn a_silent_node_is_confirmed_dead_and_one_that_is_heard_is_not() {
    let mut s = story(3);
    s.done(submit(1, spec(1, RequeuePolicy::OnNodeFailure, 3)));
    s.done(submit(2, spec(1, RequeuePolicy::Never, 0)));
    s.claimed(1, &[0]);
    s.claimed(2, &[1]);
    let refused = s.act(dead(0)).unwrap_err();
    assert!(matches!(refused, Refusal::NodeHeard { .. }) && refused.remedy().unwrap().contains("node disable"), "{refused}");
    set_node_state(&mut s, 0, NodeState::Degraded);
    set_node_state(&mut s, 1, NodeState::Down);
    let records = s.acted(dead(0));
    assert_eq!((records[0].action, records[0].actor.as_str(), &records[0].node), (AuditAction::NodeConfirmedDead, "root", &Some(node(0))));
    assert!(records[0].detail.contains("its power is off; 1 of its allocations"), "{}", records[0].detail);
    s.done(dead(1));
    assert_eq!([1, 2].map(|n| state(&s, id(n))), [AllocationState::Pending, AllocationState::Failed]);
    let known = s.ledger.node(&node(0)).unwrap();
    assert!(known.state == NodeState::Down && known.state_reason.contains("confirmed dead by root: its power is off"), "{known:?}");
    assert_eq!(s.acted(dead(0)).len(), 0, "said again");
    let unknown = Action::ConfirmDead { node: node(7), by: "root".into(), reason: "x".into() };
    assert!(matches!(s.act(unknown), Err(Refusal::NoSuchNode { .. })));
    let silly = Action::ConfirmDead { node: node(1), by: "root".into(), reason: "a\nb".into() };
    assert!(matches!(s.act(silly), Err(Refusal::Malformed { .. })));
}

#[test]
fn work_that_stops_leaves_failed_hardware_at_once_and_begins_elsewhere_when_it_cannot_run_there() {
    let mut s = story(2);
    s.done(submit(1, stop(1, RequeuePolicy::OnNodeFailure)));
    let epoch = s.claimed(1, &[1]);
    s.report(1, ReportItem::Prepared { allocation: id(1), epoch });
    let (by, reason) = ("node:n1".to_owned(), "ECC".to_owned());
    s.done(Action::SetHold { node: node(1), kind: HoldKind::Failure, by, reason, until: None, deadline: None });
    let lost = s.ledger.allocation(id(1)).unwrap();
    assert_eq!((lost.state, lost.requeue_count), (AllocationState::Pending, 1));
    assert_eq!(s.ledger.desired(&node(1)).shares.len(), 0, "its agent is to stop it");
    assert!(matches!(s.claim(1, &[0]), Err(Refusal::Conflict { .. })), "it may still run there");
    s.done(fence(&s, 1, OVER_MS));
    s.claimed(1, &[0]);
}

#[test]
fn work_that_stops_goes_to_nodes_that_keep_leases_once_there_is_a_length() {
    let mut s = Story::new(2);
    s.done(Action::Register(fencing(1, 1, 1, false)));
    s.done(submit(1, stop(1, RequeuePolicy::Never)));
    assert!(matches!(s.claim(1, &[1]), Err(Refusal::Unavailable { .. })));
    assert!(matches!(s.act(Action::SetRunLease { ms: 0 }), Err(Refusal::Malformed { .. })));
    assert_eq!(s.acted(Action::SetRunLease { ms: LEASE_MS })[0].action, AuditAction::RunLeaseSet);
    assert_eq!(s.acted(Action::SetRunLease { ms: LEASE_MS }).len(), 0);
    let refused = s.claim(1, &[0]);
    assert!(matches!(&refused, Err(Refusal::Conflict { conflicts }) if conflicts[0].why.contains("keeps no run leases")), "{refused:?}");
    s.claimed(1, &[1]);
}

#[test]
fn a_node_that_others_reach_keeps_its_state_says_why_and_is_still_fenced() {
    let mut s = story(2);
    s.done(submit(1, stop(1, RequeuePolicy::OnNodeFailure)));
    s.claimed(1, &[0]);
    set_node_state(&mut s, 0, NodeState::Degraded);
    let since = s.ledger.node(&node(0)).unwrap().state_since;
    let cut_off = |s: &Story| {
        let (incarnation, state) = (s.ledger.node(&node(0)).unwrap().incarnation, NodeState::Degraded);
        Action::NodeStates(vec![NodeStateChange { node: node(0), incarnation, state, reason: format!("{CUT_OFF}n1 hears it") }])
    };
    let state_change = cut_off(&s);
    assert_eq!(s.acted(state_change.clone()).len(), 1);
    let known = s.ledger.node(&node(0)).unwrap().clone();
    assert!(known.is_cut_off() && known.state_since == since, "{known:?}");
    assert_eq!(s.acted(state_change), [], "said twice");
    s.done(fence(&s, 0, OVER_MS));
    assert_eq!(state(&s, id(1)), AllocationState::Pending);
}

#[test]
fn who_carries_a_session_is_known_until_it_registers_without() {
    let mut s = story(1);
    let carried = Registration { relay_node: Some(node(5)), ..fencing(0, 1, s.ledger.node(&node(0)).unwrap().incarnation.0, false) };
    let hold_revision = s.ledger.node(&node(0)).unwrap().hold_revision;
    s.done(Action::Register(carried.clone()));
    let known = s.ledger.node(&node(0)).unwrap();
    assert_eq!((known.relay_node.clone(), known.hold_revision), (Some(node(5)), hold_revision), "claims are not refused for it");
    s.done(Action::Register(Registration { relay_node: None, ..carried }));
    assert_eq!(s.ledger.node(&node(0)).unwrap().relay_node, None);
}

#[test]
fn the_use_of_a_node_follows_from_its_work() {
    let mut s = story(2);
    let used = |s: &Story, n: u8| s.ledger.use_of(s.ledger.node(&node(n)).unwrap());
    s.done(submit(1, spec(1, RequeuePolicy::Never, 0)));
    s.done(submit(2, AllocationSpec { sensitive: true, ..spec(1, RequeuePolicy::Never, 0) }));
    s.claimed(1, &[0]);
    s.claimed(2, &[1]);
    assert_eq!([used(&s, 0), used(&s, 1)], [NodeUse::Own, NodeUse::Sensitive]);
    let nodes = Some([node(0), node(1)].into());
    let change = VClusterChange { name: "ml".into(), create: Some(SchedulerKind::InteractiveFifo), nodes, ..VClusterChange::default() };
    s.done(Action::SetVCluster { change, by: "root".into() });
    assert_eq!([used(&s, 0), used(&s, 1)], [NodeUse::Borrowed, NodeUse::Sensitive]);
}

//! Scenarios of registrations and reports.

use super::scenarios::{SIZE, Story, id, node, prepared, registration, released, spec, user};
use super::{Action, Outcome, Refusal, Registration};
use lattice_model::spec::share_of;
use lattice_model::{
    AllocationSpec, AllocationState, EndReason, Epoch, Incarnation, NodeReport, NodeState, ReportItem, RequeuePolicy, Resources,
};

#[test]
fn registrations_keep_a_life_and_outlast_an_older_one() {
    let mut s = Story::new(1);
    let known = |s: &Story| s.ledger.node(&node(0)).unwrap().incarnation;
    assert_eq!(known(&s), Incarnation(1));
    s.submit(1, 1, RequeuePolicy::Never, 0);
    let epoch = s.claimed(1, &[0]);
    s.report(0, prepared(1, epoch));
    let again = s.act(Action::Register(registration(0, 1, 1, false)));
    assert_eq!(again, Ok(Outcome::Registered { incarnation: Incarnation(1), report_seq: 1 }));
    // It continued without a quorum and incremented its incarnation.
    let again = s.act(Action::Register(registration(0, 1, 5, false)));
    assert_eq!(again, Ok(Outcome::Registered { incarnation: Incarnation(6), report_seq: 0 }));
    let old = NodeReport { node: node(0), incarnation: Incarnation(1), seq: 2, item: released(1, epoch) };
    assert!(matches!(s.act(Action::Report(old)), Err(Refusal::StaleIncarnation { .. })));
    let gap = NodeReport { node: node(0), incarnation: Incarnation(6), seq: 2, item: released(1, epoch) };
    assert!(matches!(s.act(Action::Report(gap)), Err(Refusal::Malformed { .. })));
    assert_eq!(s.state(1), AllocationState::Running);
    // An agent that lost its state ends the work that it had to end, and keeps its other work.
    s.done(Action::Cancel { id: id(1), by: user(7) });
    s.done(Action::Register(registration(0, 1, 6, true)));
    assert_eq!(s.ledger.held(&node(0)), SIZE);
    s.done(Action::Register(registration(0, 1, 0, true)));
    assert_eq!(s.ledger.held(&node(0)), Resources::default());
}

#[test]
fn an_agent_that_lost_its_memory_keeps_what_it_found_and_has_lost_the_rest() {
    let mut s = Story::new(2);
    for (number, policy) in [(1, RequeuePolicy::Never), (2, RequeuePolicy::OnNodeFailure)] {
        s.submit(number, 1, policy, 1);
    }
    let epoch = s.claimed(1, &[0]);
    s.report(0, prepared(1, epoch));
    let found = |found| Action::Register(Registration { found: Some(found), ..registration(0, 1, 0, true) });
    s.done(found(vec![(id(1), epoch)]));
    s.forget_reports(0);
    assert_eq!((s.state(1), s.desired(0)), (AllocationState::Running, 1));
    // Work that it is still ending counts until it reports that it is gone.
    s.done(Action::Cancel { id: id(1), by: user(7) });
    s.done(found(vec![(id(1), epoch)]));
    s.forget_reports(0);
    assert_eq!(s.ledger.held(&node(0)), SIZE);
    s.report(0, released(1, epoch));
    let epoch = s.claimed(2, &[0]);
    s.report(0, prepared(2, epoch));
    s.done(found(vec![(id(2), Epoch(epoch.0 + 1))]));
    s.forget_reports(0);
    assert_eq!((s.state(2), s.ledger.held(&node(0))), (AllocationState::Pending, Resources::default()), "requeued, as it asked for");
    s.claimed(2, &[0]);
    s.done(found(vec![]));
    s.forget_reports(0);
    assert_eq!(s.state(2), AllocationState::Failed);
    assert!(matches!(s.ledger.allocation(id(2)).unwrap().reason, Some(EndReason::NodeLost { .. })));
}

#[test]
fn a_registration_that_comes_late_takes_nothing_from_the_later_life_of_its_node() {
    let mut s = Story::new(1);
    // Both are under way in a member that is stopped, while the node boots, registers elsewhere and gets work.
    let of_earlier_boot = Registration { replaces: Some(Incarnation(1)), ..registration(0, 1, 1, true) };
    let of_lost_state = Registration { found: Some(vec![]), replaces: Some(Incarnation(1)), ..registration(0, 2, 0, true) };
    s.done(Action::Register(registration(0, 2, 1, true)));
    s.forget_reports(0);
    s.submit(1, 1, RequeuePolicy::Never, 0);
    let epoch = s.claimed(1, &[0]);
    s.report(0, prepared(1, epoch));
    for late in [of_earlier_boot, of_lost_state.clone()] {
        let applied = s.apply(Action::Register(late));
        assert_eq!(applied.result, Err(Refusal::OtherIncarnation { node: node(0), now: Incarnation(2) }));
        assert!(applied.audit.is_empty() && applied.changed.desired.is_empty());
    }
    assert_eq!((s.state(1), s.ledger.held(&node(0))), (AllocationState::Running, SIZE));
    // A living agent gets the quorum's state, and registers again.
    s.done(Action::Register(Registration { replaces: Some(Incarnation(2)), ..of_lost_state }));
    assert_eq!((s.state(1), s.ledger.held(&node(0))), (AllocationState::Failed, Resources::default()));
}

#[test]
fn a_report_of_a_claim_that_another_followed_counts_as_heard_and_is_refused_by_name() {
    let mut s = Story::new(3);
    s.submit(1, 2, RequeuePolicy::OnNodeFailure, 3);
    let old = s.claimed(1, &[0, 1]);
    s.report(1, ReportItem::PrepareFailed { allocation: id(1), epoch: old, why: "no image".into() });
    let stale = |now| Ok(Outcome::ContentRefused(Refusal::StaleEpoch { id: id(1), seen: old, now }));
    assert_eq!(s.try_report(0, prepared(1, old)), stale(old), "it waits for another claim");
    s.report(0, released(1, old));
    let new = s.claimed(1, &[0, 2]);
    let ended = ReportItem::Ended { allocation: id(1), epoch: old, reason: EndReason::Exited { code: 0 } };
    assert_eq!(s.try_report(0, ended), stale(new));
    assert_eq!(s.try_report(1, ReportItem::PrepareFailed { allocation: id(1), epoch: old, why: "again".into() }), stale(new));
    assert_eq!(s.state(1), AllocationState::Staging);
    s.report(1, released(1, old));
    // Later reports are accepted.
    s.report(0, prepared(1, new));
    s.report(2, prepared(1, new));
    assert_eq!(s.state(1), AllocationState::Running);
    // A late report about an ended allocation changes nothing.
    s.done(Action::Cancel { id: id(1), by: user(7) });
    s.report(0, ReportItem::Ended { allocation: id(1), epoch: new, reason: EndReason::Exited { code: 0 } });
}

#[test]
fn a_lost_gpu_keeps_nobody_off_who_wants_none_and_is_in_the_audit_log() {
    let mut s = Story::new(1);
    let asked = |gpus| Resources { cores: 2, memory_bytes: 8, gpus };
    for (number, gpus) in [(1, 1), (2, 1), (3, 0), (4, 1)] {
        let spec = AllocationSpec { share: Some(asked(gpus)), ..spec(1, RequeuePolicy::Never, 0) };
        s.done(Action::Submit { id: id(number), spec: Box::new(spec), owner: user(7), claim: None });
    }
    let of = |gpus, size: &Resources| share_of(&asked(gpus), size);
    s.claimed_share(1, 0, of(1, &SIZE));
    s.claimed_share(2, 0, of(1, &SIZE));
    let smaller = Resources { gpus: 1, ..SIZE };
    let records = s.acted(Action::Register(Registration { size: smaller, ..registration(0, 1, 1, false) }));
    assert!(records.iter().any(|r| r.detail.contains("1 GPU")), "{records:?}");
    let refused = s.claim_share(4, 0, of(1, &smaller)).unwrap_err();
    assert!(refused.to_string().contains("1 GPU is wanted, 0 free"), "{refused}");
    s.claimed_share(3, 0, of(0, &smaller));
    assert!(s.acted(Action::Register(Registration { size: smaller, ..registration(0, 1, 1, false) })).is_empty());
}

#[test]
fn one_that_registers_and_is_not_well_never_is_ready_and_is_so_when_it_registers_well() {
    let registers =
        |unwell: Option<&str>| Action::Register(Registration { unwell: unwell.map(str::to_owned), ..registration(1, 1, 0, true) });
    let state_and_reason = |s: &Story| s.ledger.node(&node(1)).map(|n| (n.state, n.state_reason.clone())).unwrap();
    let mut s = Story::new(1);
    let records = s.acted(registers(Some("disk: full")));
    assert_eq!(state_and_reason(&s), (NodeState::Degraded, "not well: disk: full".to_owned()));
    assert!(records.iter().any(|r| r.detail == "Degraded from its registration on: not well: disk: full"), "{records:?}");
    s.submit(1, 1, RequeuePolicy::Never, 0);
    assert!(s.claim(1, &[1]).is_err());
    // A restarted agent with another reason: the node is not Ready even for a moment.
    let records = s.acted(registers(Some("clock: off")));
    assert_eq!(state_and_reason(&s), (NodeState::Degraded, "not well: clock: off".to_owned()));
    assert!(records.iter().all(|r| !r.detail.contains("Ready")), "{records:?}");
    s.done(registers(None));
    assert_eq!(state_and_reason(&s), (NodeState::Ready, String::new()));
    // From Ready, as after a restart of its agent.
    let records = s.acted(registers(Some("disk: full")));
    assert!(records.iter().any(|r| r.detail == "Ready -> Degraded: it registered, not well: disk: full"), "{records:?}");
}

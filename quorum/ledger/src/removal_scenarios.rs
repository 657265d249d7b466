//! Scenarios of nodes that are removed, refused, and admitted again.

use super::scenarios::{Story, id, node, prepared, registration, released};
use super::test_builders::vcluster_change;
use super::{Action, NodeStateChange, REMOVED_LEN_MAX, Registration, VClusterChange};
use crate::history::ChangeSet;
use crate::{Refusal, RemovalRefusal};
use lattice_model::{
    AllocationState, AuditAction, Epoch, HoldKind, Incarnation, NodeReport, NodeState, RequeuePolicy, Revision, Timestamp,
};

fn remove(number: u8) -> Action {
    Action::RemoveNode { node: node(number), by: "anna@n0".into(), reason: "rack 4 is sold".into() }
}

fn admit(number: u8) -> Action {
    Action::Admit { node: node(number), by: "anna@n0".into(), reason: "rack 4".into() }
}

fn hold(number: u8, kind: HoldKind) -> Action {
    Action::SetHold { node: node(number), kind, by: "anna@n0".into(), reason: "old".into(), until: None, deadline: None }
}

fn set_node_state(s: &mut Story, number: u8, state: NodeState) {
    let incarnation = s.ledger.node(&node(number)).unwrap().incarnation;
    s.done(Action::NodeStates(vec![NodeStateChange { node: node(number), incarnation, state, reason: "silent".into() }]));
}

fn down(s: &mut Story, number: u8) {
    set_node_state(s, number, NodeState::Degraded);
    set_node_state(s, number, NodeState::Down);
}

fn why_not(s: &mut Story, number: u8) -> RemovalRefusal {
    let before = s.ledger.clone();
    let applied = s.apply(remove(number));
    let Err(Refusal::NotRemovable { node: refused, why }) = applied.result else { panic!("{:?}", applied.result) };
    assert!(refused == node(number) && applied.audit.is_empty() && applied.changed.nodes.is_empty());
    assert_eq!(s.ledger.node(&refused), before.node(&refused));
    why
}

#[test]
fn only_a_node_that_is_drained_or_down_is_removed() {
    let mut s = Story::new(2);
    assert_eq!(why_not(&mut s, 1), RemovalRefusal::InService { state: NodeState::Ready });
    let refused = s.act(remove(1)).unwrap_err();
    assert!(refused.to_string().contains("node n1 cannot be removed: it is Ready") && refused.remedy().unwrap().contains("node drain n1"));
    set_node_state(&mut s, 1, NodeState::Degraded);
    assert_eq!(why_not(&mut s, 1), RemovalRefusal::InService { state: NodeState::Degraded });
    set_node_state(&mut s, 1, NodeState::Ready);
    s.done(hold(1, HoldKind::Drain));
    s.done(Action::BootNode { node: node(1), by: "anna".into(), reason: "x".into() });
    assert_eq!(why_not(&mut s, 1), RemovalRefusal::InService { state: NodeState::Booting });
    assert!(s.act(remove(1)).unwrap_err().remedy().unwrap().contains("node disable n1"));
    s.done(hold(1, HoldKind::Disable));
    s.done(remove(1));
    assert!(s.ledger.node(&node(1)).is_none());
    assert_eq!(s.act(remove(7)), Err(Refusal::NoSuchNode { node: node(7) }));
    s.done(admit(7));
    assert_eq!(why_not(&mut s, 7), RemovalRefusal::Admitted);
    let reasonless = Action::RemoveNode { node: node(0), by: "anna".into(), reason: String::new() };
    assert!(matches!(s.act(reasonless), Err(Refusal::Malformed { .. })));
}

#[test]
fn a_node_is_not_removed_while_it_has_work_or_may_still_run_some() {
    let mut s = Story::new(2);
    s.submit(1, 1, RequeuePolicy::Never, 0);
    let epoch = s.claimed(1, &[1]);
    s.report(1, prepared(1, epoch));
    s.done(hold(1, HoldKind::Drain));
    assert_eq!(why_not(&mut s, 1), RemovalRefusal::InService { state: NodeState::Draining });
    // Disabled: its work is ended, and the node has not reported that nothing is left.
    s.done(hold(1, HoldKind::Disable));
    assert_eq!(why_not(&mut s, 1), RemovalRefusal::HasWork { some: vec![id(1)], all: 1 });
    let refused = s.act(remove(1)).unwrap_err();
    assert!(refused.to_string().contains("1 allocation may still run there"), "{refused}");
    assert!(refused.remedy().unwrap().contains("node confirm-dead n1"));
    s.report(1, released(1, epoch));
    s.done(remove(1));
    // The work that it ran stays readable, with the node's name.
    let ended = s.ledger.allocation(id(1)).unwrap();
    assert!(ended.state == AllocationState::Failed && ended.nodes().eq([&node(1)]), "{ended:?}");
}

#[test]
fn the_ledger_forgets_the_node_and_watchers_learn_of_it() {
    let mut s = Story::new(3);
    s.done(Action::SetVCluster {
        change: VClusterChange { nodes: Some([node(1), node(2)].into()), ..vcluster_change() },
        by: "anna".into(),
    });
    s.done(Action::GrantLease { name: "l".into(), holder: node(1), ttl_ms: 60_000, user: None });
    s.done(hold(1, HoldKind::Quarantine));
    s.done(hold(1, HoldKind::Drain));
    let applied = s.apply(remove(1));
    applied.result.unwrap();
    let audited: Vec<_> = applied.audit.iter().map(|r| (r.action, r.actor.as_str(), r.node.clone(), r.detail.as_str())).collect();
    let detail = "rack 4 is sold; it was Drained, under quarantine, drain, of vCluster v";
    let lease = (AuditAction::LeaseRevoked, "anna@n0", Some(node(1)), "l, token 2: its node is removed");
    assert_eq!(audited, [lease, (AuditAction::NodeRemoved, "anna@n0", Some(node(1)), detail)]);
    assert!(applied.changed.desired.contains(&node(1)), "its session ends");
    let set = ChangeSet::of(&s.ledger, applied.changed);
    assert_eq!((set.nodes.len(), set.nodes_removed.as_slice()), (0, &[node(1)][..]));
    assert!(!set.is_empty() && set.vclusters.len() == 1 && set.leases.len() == 1);
    assert_eq!(s.ledger.vcluster("v").unwrap().nodes, 1);
    assert!(s.ledger.node(&node(1)).is_none() && s.ledger.lease("l").is_none() && s.ledger.nodes().count() == 2);
    let removal = s.ledger.removal(&node(1)).unwrap();
    assert_eq!((removal.by.as_str(), removal.reason.as_str()), ("anna@n0", "rack 4 is sold"));
    // A repetition is recorded once.
    let again = s.apply(remove(1));
    assert!(again.result.is_ok() && again.audit.is_empty() && again.changed.nodes.is_empty());
    let report = NodeReport { node: node(1), incarnation: Incarnation(1), seq: 1, item: released(1, Epoch(1)) };
    assert!(matches!(s.act(Action::Report(report)), Err(Refusal::NodeRemoved { .. })), "from a session that is about to end");
    assert!(matches!(s.act(hold(1, HoldKind::Cordon)), Err(Refusal::NoSuchNode { .. })));
}

#[test]
fn a_removed_name_is_refused_until_it_is_admitted_and_comes_back_as_a_new_node() {
    let mut s = Story::new(2);
    s.done(Action::Register(registration(1, 1, 6, true)));
    s.done(hold(1, HoldKind::Drain));
    s.done(remove(1));
    let at = s.now();
    let comes = |automatic| Action::Register(Registration { automatic, ..registration(1, 1, 0, true) });
    // The node is refused even if the site admits all nodes.
    for automatic in [true, false] {
        let applied = s.apply(comes(automatic));
        let refusal = Refusal::NodeRemoved { node: node(1), by: "anna@n0".into(), at, reason: "rack 4 is sold".into() };
        assert!(refusal.to_string().contains("removed") && refusal.to_string().contains("`lattice node admit n1`"), "{refusal}");
        assert_eq!(applied.result, Err(refusal));
        assert!(applied.audit.is_empty() && s.ledger.node(&node(1)).is_none());
    }
    // A withdrawn admission leaves the removal.
    s.done(admit(1));
    s.done(Action::WithdrawAdmission { node: node(1), by: "anna@n0".into() });
    assert!(matches!(s.act(comes(true)), Err(Refusal::NodeRemoved { .. })));
    s.done(admit(1));
    s.done(comes(false));
    let known = s.ledger.node(&node(1)).unwrap();
    assert_eq!((known.state, known.holds.len(), known.report_seq), (NodeState::Ready, 0, 0));
    assert_eq!(known.incarnation, Incarnation(8), "above that of the node that was removed");
    assert!(s.ledger.removal(&node(1)).is_none() && s.ledger.admitted().count() == 0);
    s.submit(2, 1, RequeuePolicy::Never, 0);
    s.claimed(2, &[1]);
    // It can be removed and returned again.
    assert_eq!(why_not(&mut s, 1), RemovalRefusal::InService { state: NodeState::Ready });
}

#[test]
fn a_dead_machine_is_removed_with_work_that_was_confirmed_dead_and_returns_after_a_boot_only() {
    let mut s = Story::new(2);
    s.submit(1, 2, RequeuePolicy::Always, 3);
    let epoch = s.claimed(1, &[0, 1]);
    down(&mut s, 1);
    assert_eq!(why_not(&mut s, 1), RemovalRefusal::HasWork { some: vec![id(1)], all: 1 });
    s.done(Action::ConfirmDead { node: node(1), by: "anna".into(), reason: "no power".into() });
    s.report(0, released(1, epoch));
    s.done(remove(1));
    assert_eq!(s.ledger.holdings(&node(1)), []);
    assert_eq!(s.state(1), AllocationState::Pending, "it was requeued when the machine was confirmed dead");
    s.done(admit(1));
    let comes = |boot| Action::Register(registration(1, boot, 1, false));
    let refused = s.act(comes(1)).unwrap_err();
    assert_eq!(refused, Refusal::NeedsBoot { node: node(1) });
    assert!(refused.to_string().contains("boot the machine"));
    s.done(comes(2));
    assert_eq!(s.ledger.node(&node(1)).unwrap().state, NodeState::Ready);
    // Without such work, the same boot may return.
    s.done(hold(1, HoldKind::Drain));
    s.done(remove(1));
    s.done(admit(1));
    s.done(comes(2));
}

#[test]
fn nobody_waits_for_a_removed_node_after_a_recovery_and_what_it_may_run_needs_a_boot() {
    let mut s = Story::new(2);
    s.submit(1, 1, RequeuePolicy::Never, 0);
    s.done(hold(1, HoldKind::Drain));
    s.done(remove(1));
    s.done(Action::Register(registration(2, 1, 0, true)));
    s.ledger.recover(Revision(1_000_000_000), Timestamp(1_000_000));
    assert!(s.ledger.removal(&node(1)).is_some(), "a removal of the backup stays");
    assert!(s.ledger.awaits(&node(2)));
    down(&mut s, 2);
    s.done(remove(2));
    assert!(!s.ledger.awaits(&node(2)));
    s.done(admit(2));
    assert_eq!(s.act(Action::Register(registration(2, 1, 1, false))), Err(Refusal::NeedsBoot { node: node(2) }));
    s.done(Action::Register(registration(2, 2, 1, false)));
}

#[test]
fn removed_names_are_bounded_and_the_record_says_which_is_forgotten() {
    let mut s = Story::new(1);
    let name = |number: usize| -> lattice_model::NodeId { format!("m{number}").parse().unwrap() };
    let goes = |s: &mut Story, number: usize| {
        let node = name(number);
        s.done(Action::Register(Registration { node: node.clone(), ..registration(1, 1, 0, true) }));
        let (by, reason) = ("anna".to_owned(), "old".to_owned());
        s.done(Action::SetHold {
            node: node.clone(),
            kind: HoldKind::Drain,
            by: by.clone(),
            reason: reason.clone(),
            until: None,
            deadline: None,
        });
        s.acted(Action::RemoveNode { node, by, reason })
    };
    (0..REMOVED_LEN_MAX).for_each(|number| drop(goes(&mut s, number)));
    assert!(s.ledger.removal(&name(0)).is_some());
    let records = goes(&mut s, REMOVED_LEN_MAX);
    assert!(records[0].detail.ends_with("; the removal of m0, the oldest, is forgotten"), "{records:?}");
    assert!(s.ledger.removal(&name(0)).is_none() && s.ledger.removal(&name(1)).is_some());
    // The node is refused like any name that nobody admitted.
    let comes = |automatic| Action::Register(Registration { node: name(0), automatic, ..registration(1, 1, 0, true) });
    assert_eq!(s.act(comes(false)), Err(Refusal::NotAdmitted { node: name(0) }));
    s.done(comes(true));
    assert_eq!(s.ledger.nodes().count(), 2);
}

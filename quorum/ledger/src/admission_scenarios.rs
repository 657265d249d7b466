//! Scenarios of admission: which nodes may register, and the record of grown capacity.

use super::scenarios::{Story, node, registration};
use super::{Action, Ledger, Registration};
use crate::Refusal;
use lattice_model::{AuditAction, NodeId, NodeState, Resources, Revision, Timestamp};

fn listed(number: u8) -> Action {
    Action::Register(Registration { automatic: false, ..registration(number, 1, 0, true) })
}

fn admit(number: u8) -> Action {
    Action::Admit { node: node(number), by: "anna@n0".into(), reason: "rack 4".into() }
}

fn withdraw(number: u8) -> Action {
    Action::WithdrawAdmission { node: node(number), by: "anna@n0".into() }
}

fn admitted(ledger: &Ledger) -> Vec<NodeId> {
    ledger.admitted().map(|(node, _)| node.clone()).collect()
}

#[test]
fn a_node_that_nobody_admitted_is_refused_and_leaves_nothing() {
    let mut s = Story::new(1);
    let applied = s.apply(listed(7));
    assert_eq!(applied.result, Err(Refusal::NotAdmitted { node: node(7) }));
    assert!(applied.audit.is_empty() && applied.changed.nodes.is_empty() && s.ledger.node(&node(7)).is_none());
    assert!(applied.result.unwrap_err().to_string().contains("`lattice node admit n7`"));
    // A site that admits all nodes; and a node that is already known.
    s.done(Action::Register(registration(6, 1, 0, true)));
    s.done(listed(6));
    s.done(listed(0));
}

#[test]
fn an_admission_is_for_one_name_recorded_once_and_used_once() {
    let mut s = Story::new(1);
    let records = s.acted(admit(7));
    let audited: Vec<_> = records.iter().map(|r| (r.action, r.actor.as_str(), r.node.clone(), r.detail.as_str())).collect();
    assert_eq!(audited, [(AuditAction::NodeAdmitted, "anna@n0", Some(node(7)), "rack 4")]);
    assert!(s.acted(admit(7)).is_empty() && s.acted(admit(0)).is_empty(), "the same again, and a node that is known");
    assert_eq!(admitted(&s.ledger), [node(7)]);
    assert_eq!(s.act(listed(8)), Err(Refusal::NotAdmitted { node: node(8) }));
    s.done(listed(7));
    assert_eq!(s.ledger.node(&node(7)).unwrap().state, NodeState::Ready);
    assert_eq!(admitted(&s.ledger), []);
    assert_eq!(s.act(withdraw(7)), Err(Refusal::HasRegistered { node: node(7) }));
    let reasonless = Action::Admit { node: node(8), by: "anna@n0".into(), reason: String::new() };
    assert!(matches!(s.act(reasonless), Err(Refusal::Malformed { .. })));
}

#[test]
fn an_admission_that_was_withdrawn_or_is_of_a_backup_admits_nobody() {
    let mut s = Story::new(1);
    s.done(admit(7));
    let records = s.acted(withdraw(7));
    assert_eq!(records.iter().map(|r| r.action).collect::<Vec<_>>(), [AuditAction::AdmissionWithdrawn]);
    assert!(records[0].detail.contains("rack 4") && s.acted(withdraw(7)).is_empty());
    assert_eq!(s.act(listed(7)), Err(Refusal::NotAdmitted { node: node(7) }));
    s.done(admit(8));
    s.ledger.recover(Revision(1_000_000_000), Timestamp(1_000_000));
    assert_eq!(admitted(&s.ledger), []);
    assert!(!s.ledger.is_admitted(&node(8)) && s.ledger.is_admitted(&node(0)));
}

#[test]
fn names_that_never_register_are_bounded() {
    let mut s = Story::new(0);
    let name = |number: usize| Action::Admit { node: format!("m{number}").parse().unwrap(), by: "anna".into(), reason: "x".into() };
    (0..20_000).for_each(|number| s.done(name(number)));
    assert!(matches!(s.act(name(20_000)), Err(Refusal::TooMany { most: 20_000, .. })));
    s.done(name(7));
}

#[test]
fn capacity_growth_counts_at_once_and_is_recorded_and_a_loss_is_not() {
    let mut s = Story::new(1);
    let was = s.ledger.node(&node(0)).unwrap().size;
    let registers = |s: &mut Story, size: Resources, boot: u128| {
        let records = s.acted(Action::Register(Registration { size, ..registration(0, boot, 1, false) }));
        let grown = records.into_iter().filter(|r| r.action == AuditAction::CapacityGrew);
        grown.map(|r| (r.actor, r.detail)).collect::<Vec<_>>()
    };
    let more = Resources { cores: was.cores * 2, memory_bytes: was.memory_bytes + was.memory_bytes / 2, gpus: was.gpus + 8 };
    let grown = registers(&mut s, more, 1);
    let cores_and_gpus = [format!("cores {} to {}", was.cores, more.cores), format!("GPUs {} to {}", was.gpus, more.gpus)];
    assert_eq!(grown.len(), 1);
    assert!(grown[0].0 == "node:n0" && cores_and_gpus.iter().all(|part| grown[0].1.contains(part)), "{grown:?}");
    assert!(grown[0].1.contains("memory "), "{grown:?}");
    let grown_node = s.ledger.node(&node(0)).unwrap().clone();
    assert_eq!((grown_node.state, grown_node.size), (NodeState::Ready, more));
    assert!(grown_node.state_reason.contains(&grown[0].1), "{}", grown_node.state_reason);
    assert_eq!(registers(&mut s, more, 1), [], "the same again");
    assert_eq!(registers(&mut s, was, 1), [], "less");
    assert_eq!(registers(&mut s, more, 2).len(), 1, "and with a reboot");
}

#[test]
fn a_kernel_that_reserves_somewhat_less_memory_is_no_growth() {
    let of = |memory_bytes| Resources { cores: 64, memory_bytes, gpus: 0 };
    let gib = 1u64 << 30;
    assert_eq!(super::growth(&of(512 * gib), &of(519 * gib)), None);
    assert_eq!(super::growth(&of(512 * gib), &of(521 * gib)), Some("memory 512.0 GiB to 521.0 GiB".to_owned()));
}

//! Scenarios of wipes and failed wipes.

use super::scenarios::{Story, id, node, registration};
use super::{Action, Registration};
use crate::Refusal;
use lattice_model::{AuditAction, HoldKind, ReportItem, RequeuePolicy};

fn wipe(force: bool) -> Action {
    Action::Wipe { node: node(1), by: "root".into(), reason: "patient data".into(), force }
}

fn story() -> Story {
    let mut s = Story::new(2);
    s.done(Action::Register(Registration { has_wipe_hook: true, ..registration(1, 1, 1, false) }));
    s
}

fn order(s: &Story) -> Option<u64> {
    s.ledger.desired(&node(1)).wipe
}

fn wiped(order: u64, failed: Option<&str>) -> Action {
    Action::Wiped { node: node(1), order, failed: failed.map(str::to_owned) }
}

#[test]
fn a_wipe_waits_for_the_last_share_and_ends_when_the_node_confirms_it() {
    let mut s = story();
    s.submit(1, 1, RequeuePolicy::Never, 0);
    s.submit(2, 1, RequeuePolicy::Never, 0);
    let epoch = s.claimed(1, &[1]);
    s.done(wipe(false));
    assert_eq!(order(&s), None, "an allocation is left there");
    // Until then it can be lifted like any hold.
    let back = Action::LiftHold { node: node(1), kind: HoldKind::Wipe, by: "root".into(), until: None };
    s.done(back.clone());
    let known = s.ledger.node(&node(1)).unwrap();
    assert!(known.wipe.is_none() && known.holds.is_empty(), "{known:?}");
    s.done(wipe(false));
    assert!(matches!(s.claim(2, &[1]), Err(Refusal::Conflict { .. })));
    s.done(Action::Cancel { id: id(1), by: super::scenarios::user(7) });
    s.report(1, ReportItem::Released { allocation: id(1), epoch, usage: None });
    let now = order(&s).expect("nothing is left");
    assert!(matches!(s.act(back), Err(Refusal::Malformed { .. })), "nothing but the node's report lifts it");
    s.done(wiped(now + 1, None));
    assert_eq!(order(&s), Some(now), "a report about another order changes nothing");
    let actions: Vec<_> = s.acted(wiped(now, None)).iter().map(|r| r.action).collect();
    assert_eq!(actions, [AuditAction::NodeWiped, AuditAction::HoldLifted]);
    assert_eq!(s.acted(wiped(now, None)), [], "a repeated report");
    assert!(order(&s).is_none() && s.claim(2, &[1]).is_ok());
}

#[test]
fn a_node_whose_wipe_fails_is_quarantined_until_a_retry_succeeds() {
    let mut s = story();
    let other = Action::Wipe { node: node(0), by: "root".into(), reason: "x".into(), force: false };
    assert_eq!(s.act(other), Err(Refusal::NoWipeHook { node: node(0) }));
    s.done(wipe(false));
    let first = order(&s).unwrap();
    s.done(wiped(first, Some("nvme0: secure erase timed out")));
    let known = s.ledger.node(&node(1)).unwrap().clone();
    assert_eq!(known.hold(HoldKind::Quarantine).unwrap().reason, "wipe failed: nvme0: secure erase timed out");
    assert!(known.hold(HoldKind::Wipe).is_some() && order(&s).is_none(), "it is not retried by itself");
    assert!(matches!(s.act(wipe(false)), Err(Refusal::WipeFailed { .. })));
    s.done(wipe(true));
    let second = order(&s).unwrap();
    assert!(second > first);
    s.done(wiped(second, None));
    assert_eq!(s.ledger.node(&node(1)).unwrap().holds, []);
}

#[test]
fn a_wipe_lifts_no_quarantine_that_an_operator_set_too() {
    let mut s = story();
    s.done(wipe(false));
    let first = order(&s).unwrap();
    s.done(wiped(first, Some("nvme0")));
    let (kind, by, reason) = (HoldKind::Quarantine, "root".to_owned(), "bad DIMM".to_owned());
    s.done(Action::SetHold { node: node(1), kind, by, reason, until: None, deadline: None });
    // However often the wipe is retried, and for any reason.
    for n in 0..9 {
        let reason = format!("{n}{}", "x".repeat(250));
        s.done(Action::Wipe { node: node(1), by: "root".into(), reason, force: true });
        let now = order(&s).unwrap();
        s.done(wiped(now, (n < 8).then_some("nvme0")));
    }
    let known = s.ledger.node(&node(1)).unwrap();
    assert!(known.hold(HoldKind::Wipe).is_none() && known.hold(HoldKind::Quarantine).is_some(), "{known:?}");
}

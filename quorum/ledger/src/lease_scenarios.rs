//! Scenarios of leases, holds and the cluster level.

use super::scenarios::{Story, id, node, user};
use super::{Action, LEVEL_MAX, Outcome, SCHEDULER_LEASE};
use crate::Refusal;
use lattice_model::{AuditAction, HoldKind, Principal, RequeuePolicy};

fn grant(name: &str, holder: u8, user: Option<Principal>) -> Action {
    Action::GrantLease { name: name.into(), holder: node(holder), ttl_ms: 1000, user }
}

fn release(name: &str, token: u64, user: Option<Principal>) -> Action {
    Action::ReleaseLease { name: name.into(), token, holder: node(0), user }
}

fn hold(number: u8, kind: HoldKind, reason: &str) -> Action {
    Action::SetHold { node: node(number), kind, by: "root".into(), reason: reason.into(), until: None, deadline: None }
}

fn lift(number: u8, kind: HoldKind) -> Action {
    Action::LiftHold { node: node(number), kind, by: "root".into(), until: None }
}

fn token(result: Result<Outcome, Refusal>) -> u64 {
    match result {
        Ok(Outcome::Leased { token }) => token,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_lease_has_one_holder_and_a_token_that_rises() {
    let mut s = Story::new(2);
    let ada = || Some(user(7));
    let first = token(s.act(grant("build", 0, ada())));
    assert_eq!(token(s.act(grant("build", 0, ada()))), first, "the same holder again");
    for (other, by) in [(1, ada()), (0, Some(user(8))), (0, None)] {
        let refused = s.act(grant("build", other, by));
        assert!(matches!(&refused, Err(Refusal::LeaseHeld { user: Some(u), .. }) if u == "u7"), "{refused:?}");
    }
    assert!(s.ledger.renewable("build", first, &node(0), ada().as_ref()).is_ok());
    assert!(matches!(s.ledger.renewable("build", first + 1, &node(0), ada().as_ref()), Err(Refusal::StaleLease { .. })));
    assert!(matches!(s.ledger.renewable("build", first, &node(1), ada().as_ref()), Err(Refusal::LeaseHeld { .. })));
    assert!(matches!(s.ledger.renewable("build", first, &node(0), Some(&user(8))), Err(Refusal::LeaseNotYours { .. })));
    assert!(matches!(s.ledger.renewable("build", first, &node(0), None), Err(Refusal::LeaseNotYours { .. })));
    assert!(matches!(s.act(release("build", first, Some(user(8)))), Err(Refusal::LeaseNotYours { .. })));
    assert!(matches!(s.act(release("build", first + 1, ada())), Err(Refusal::StaleLease { .. })));
    s.done(release("build", first, ada()));
    s.done(release("build", first, ada()));
    assert!(token(s.act(grant("build", 1, Some(user(8))))) > first);
    // No user may use an agent's lease, not even root with the right token.
    let agents = token(s.act(grant("scheduler/default", 0, None)));
    for by in [user(7), Principal { name: "root".into(), uid: 0, gid: 0, groups: vec![] }] {
        let refused = s.act(release("scheduler/default", agents, Some(by.clone())));
        assert!(matches!(&refused, Err(Refusal::LeaseNotYours { owner, .. }) if owner.starts_with("node ")), "{refused:?}");
        assert!(matches!(s.ledger.renewable("scheduler/default", agents, &node(0), Some(&by)), Err(Refusal::LeaseNotYours { .. })));
    }
    // Nor may another agent, which learns the token when it requests the lease.
    let of_another = Action::ReleaseLease { name: "scheduler/default".into(), token: agents, holder: node(1), user: None };
    assert!(matches!(s.act(of_another), Err(Refusal::LeaseHeld { .. })));
    s.done(release("scheduler/default", agents, None));
    // Names reserved for agents, and an unknown node.
    for name in [SCHEDULER_LEASE, "scheduler/x"] {
        assert!(matches!(s.act(grant(name, 0, ada())), Err(Refusal::Malformed { .. })), "{name}");
    }
    assert!(matches!(s.act(grant("y", 9, ada())), Err(Refusal::NoSuchNode { .. })));
}

#[test]
fn a_node_under_a_hold_gets_and_renews_no_lease_and_may_give_one_back() {
    for kind in [HoldKind::Cordon, HoldKind::Quarantine] {
        let mut s = Story::new(2);
        let ada = user(7);
        let mine = token(s.act(grant("a", 0, Some(ada.clone()))));
        assert_eq!(s.ledger.bad_holder(&node(0)), None);
        s.done(hold(0, kind, "fan"));
        s.done(hold(0, kind, "fan"));
        s.done(hold(0, kind, "smoke"));
        let stands = &s.ledger.node(&node(0)).unwrap().holds;
        assert_eq!((stands.len(), stands[0].reason.as_str()), (1, "smoke"), "the same person's newer reason");
        for refused in [s.act(grant("a", 0, Some(ada.clone()))), s.act(grant("b", 0, None))] {
            assert!(matches!(&refused, Err(Refusal::Held { kind: k, reason, .. }) if *k == kind && reason == "smoke"));
        }
        assert!(matches!(s.ledger.renewable("a", mine, &node(0), Some(&ada)), Err(Refusal::Held { .. })));
        assert!(s.ledger.bad_holder(&node(0)).unwrap().contains("smoke"));
        assert!(s.ledger.bad_holder(&node(9)).is_some());
        s.done(release("a", mine, Some(ada.clone())));
        // The other node may acquire it; then the first node's hold is lifted.
        let theirs = token(s.act(grant("a", 1, Some(ada.clone()))));
        s.done(lift(0, kind));
        s.done(lift(0, kind));
        token(s.act(grant("b", 0, Some(ada))));
        assert!(matches!(
            s.act(Action::RevokeLease { name: "a".into(), token: Some(mine), by: "root".into() }),
            Err(Refusal::StaleLease { .. })
        ));
        s.done(Action::RevokeLease { name: "a".into(), token: Some(theirs), by: "root".into() });
        let gone = Action::RevokeLease { name: "a".into(), token: None, by: "root".into() };
        assert!(matches!(s.act(gone), Err(Refusal::NoSuchLease { .. })));
    }
}

#[test]
fn a_claim_on_a_node_under_a_hold_is_refused_with_the_hold() {
    let mut s = Story::new(2);
    s.submit(1, 1, RequeuePolicy::Never, 0);
    s.done(hold(1, HoldKind::Quarantine, "ECC errors"));
    match s.claim(1, &[1]) {
        Err(Refusal::Conflict { conflicts }) => {
            assert!(conflicts[0].why.contains("quarantine by root") && conflicts[0].why.contains("ECC"));
        }
        other => panic!("{other:?}"),
    }
    // The scheduler's view from before the hold was lifted is outdated.
    s.done(lift(1, HoldKind::Quarantine));
    assert!(s.claim(1, &[1]).is_ok());
    assert!(s.ledger.allocation(id(1)).is_some());
}

/// A release build has no second level.
#[test]
fn a_command_of_the_second_level_waits_for_it() {
    let mut s = Story::new(1);
    if cfg!(debug_assertions) {
        assert_eq!(s.act(grant("trial/a", 0, Some(user(7)))), Err(Refusal::ClusterLevel { needed: 2, now: 1 }));
        assert!(s.ledger.lease("trial/a").is_none());
        let raised = s.acted(Action::RaiseLevel { level: 2 });
        assert_eq!(raised.iter().map(|r| (r.action, r.detail.as_str())).collect::<Vec<_>>(), [(AuditAction::ClusterLevelRaised, "1 -> 2")]);
        assert!(s.acted(Action::RaiseLevel { level: 1 }).is_empty(), "it never falls");
        token(s.act(grant("trial/a", 0, Some(user(7)))));
    }
    token(s.act(grant("a", 0, Some(user(7)))));
    assert!(matches!(s.act(Action::RaiseLevel { level: LEVEL_MAX + 1 }), Err(Refusal::Malformed { .. })));
    assert_eq!(s.ledger.level(), LEVEL_MAX);
}

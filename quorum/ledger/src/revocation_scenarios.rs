//! Scenarios of revocations.

use super::keyring::Secret;
use super::scenarios::{Story, node, registration};
use super::{Action, REVOCATIONS_MAX};
use crate::Refusal;
use lattice_model::{AuditAction, Timestamp};

fn revoke(name: &str) -> Action {
    Action::Revoke { name: name.into(), by: "anna@n1".into(), reason: "stolen".into() }
}

fn before(s: &Story, name: &str) -> Timestamp {
    s.ledger.revocations().find(|(of, _)| *of == name).unwrap().1.before
}

#[test]
fn certificates_from_before_a_revocation_are_invalid_and_later_ones_are_valid() {
    let mut s = Story::new(1);
    let earlier = s.ledger.issue_time();
    s.done(revoke("n7"));
    assert!(earlier < before(&s, "n7"), "what was signed in the state of before");
    let later = s.ledger.issue_time();
    assert!(later >= before(&s, "n7"), "what is signed now, though no time went by");
    // A second revocation covers certificates issued after the first.
    s.done(revoke("n7"));
    assert!(later < before(&s, "n7") && s.ledger.issue_time() >= before(&s, "n7"));
    // A revocation of another name does not affect this name, but times of issue must stay in
    // order.
    s.done(revoke("anna"));
    assert!(s.ledger.issue_time() >= before(&s, "anna") && before(&s, "anna") > before(&s, "n7"));
    assert_eq!(s.ledger.revocations().map(|(name, _)| name).collect::<Vec<_>>(), ["anna", "n7"]);
}

#[test]
fn a_revocation_is_recorded_with_who_and_why_and_needs_another_gossip_key() {
    let mut s = Story::new(1);
    let records = s.acted(revoke("n0"));
    let [record] = &records[..] else { panic!("{records:?}") };
    assert_eq!((record.action, record.actor.as_str(), &record.node), (AuditAction::CertificatesRevoked, "anna@n1", &Some(node(0))));
    assert!(record.detail.starts_with("those of n0 issued before ") && record.detail.ends_with(": stolen"), "{}", record.detail);
    assert!(s.ledger.needs_gossip_key());
    s.done(Action::AddKey { secret: Secret([1; 32]), by: "quorum".into() });
    assert!(!s.ledger.needs_gossip_key());
    // The revoked machine knows a key that was introduced before the revocation, so another key
    // follows.
    s.done(revoke("n7"));
    s.done(Action::AddKey { secret: Secret([2; 32]), by: "root".into() });
    assert!(s.ledger.needs_gossip_key(), "that went on with the key of before");
    s.done(Action::SealWithKey { id: 1 });
    s.done(Action::RetireKey { id: 0 });
    s.done(Action::AddKey { secret: Secret([3; 32]), by: "quorum".into() });
    assert!(!s.ledger.needs_gossip_key());
}

#[test]
fn a_node_is_revoked_until_it_registers_again() {
    let mut s = Story::new(2);
    s.done(revoke("n0"));
    assert!(s.ledger.is_revoked(&node(0)) && !s.ledger.is_revoked(&node(1)));
    let life = s.ledger.node(&node(0)).unwrap().incarnation;
    s.act(Action::Register(registration(0, 1, life.0, false))).unwrap();
    assert!(!s.ledger.is_revoked(&node(0)), "with a certificate that counts, or no member would have taken it");
}

#[test]
fn no_name_or_too_many_are_refused() {
    let mut s = Story::new(1);
    for (name, reason) in [("", ""), ("a b", ""), ("../x", ""), ("n1", "a\nb")] {
        let refused = s.act(Action::Revoke { name: name.into(), by: "root".into(), reason: reason.into() });
        assert!(matches!(refused, Err(Refusal::Malformed { .. })), "{name:?} {reason:?}");
    }
    (0..REVOCATIONS_MAX).for_each(|n| s.done(revoke(&format!("x{n}"))));
    assert!(matches!(s.act(revoke("y")), Err(Refusal::TooMany { .. })));
    s.done(revoke("x7"));
}

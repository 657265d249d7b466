//! Scenarios of gossip keys.

use super::keyring::{GossipKey, KeySource, Secret};
use super::scenarios::Story;
use super::{Action, Ledger, Outcome};
use crate::Refusal;
use lattice_model::{Revision, Timestamp};

fn add(number: u8) -> Action {
    Action::AddKey { secret: Secret([number; 32]), by: "root".into() }
}

fn ids(ledger: &Ledger) -> (Vec<u32>, u32) {
    (ledger.keyring().keys.iter().map(|key| key.id).collect(), ledger.keyring().seals)
}

#[test]
fn a_key_is_brought_in_seals_and_is_followed_by_the_next() {
    let mut s = Story::new(1);
    assert!(s.ledger.keyring().is_empty());
    assert_eq!(s.act(add(1)), Ok(Outcome::KeyAdded { id: 1 }));
    assert_eq!(ids(&s.ledger), (vec![0, 1], 0));
    assert_eq!(s.ledger.keyring().keys[0], GossipKey { id: 0, source: KeySource::Configured });
    let revision = s.ledger.keyring().revision;
    assert_eq!(s.act(add(1)), Ok(Outcome::KeyAdded { id: 1 }), "the answer was lost on its way");
    assert_eq!(s.act(add(2)), Ok(Outcome::KeyAdded { id: 1 }), "that one goes on");
    assert!(matches!(s.act(Action::RetireKey { id: 0 }), Err(Refusal::Malformed { .. })), "it seals");
    assert!(matches!(s.act(Action::RetireKey { id: 1 }), Err(Refusal::Malformed { .. })), "it is to seal");
    assert!(matches!(s.act(Action::SealWithKey { id: 7 }), Err(Refusal::Malformed { .. })));
    assert_eq!((ids(&s.ledger), s.ledger.keyring().revision), ((vec![0, 1], 0), revision));
    for _ in 0..2 {
        s.done(Action::SealWithKey { id: 1 });
        assert_eq!(ids(&s.ledger), (vec![0, 1], 1));
    }
    assert!(matches!(s.act(Action::SealWithKey { id: 0 }), Err(Refusal::Malformed { .. })), "there is no way back");
    for _ in 0..2 {
        s.done(Action::RetireKey { id: 0 });
        assert_eq!(ids(&s.ledger), (vec![1], 1));
    }
    assert_eq!(s.act(add(1)), Ok(Outcome::KeyAdded { id: 1 }), "said again, late");
    assert_eq!(s.act(add(2)), Ok(Outcome::KeyAdded { id: 2 }));
    assert_eq!(ids(&s.ledger), (vec![1, 2], 1));
    let KeySource::Made { by, .. } = &s.ledger.keyring().keys[1].source else { panic!("an operator asked for it") };
    assert_eq!(by, "root");
}

#[test]
fn after_a_recovery_no_id_is_given_that_the_lost_quorum_may_have_given() {
    let mut s = Story::new(1);
    s.done(add(1));
    let at = Timestamp(1_793_000_000_000);
    s.ledger.recover(Revision(1_000_000), at);
    s.done(Action::SealWithKey { id: 1 });
    s.done(Action::RetireKey { id: 0 });
    assert_eq!(s.act(add(2)), Ok(Outcome::KeyAdded { id: 1_793_000_000 }));
}

#[test]
fn a_secret_is_in_the_state_and_nowhere_that_people_look() {
    let mut s = Story::new(1);
    s.done(add(0xa7));
    assert!(!format!("{:?}{:?}", s.ledger, add(0xa7)).contains("167"), "0xa7 is 167");
    let restored: Ledger = rmp_serde::from_slice(&rmp_serde::to_vec_named(&s.ledger).unwrap()).unwrap();
    assert_eq!(restored, s.ledger);
}

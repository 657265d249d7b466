//! A core refuses forged, replayed and foreign datagrams, and timers that it did not set.

use lattice_gossip::{Config, Core, Counters, Event, Identity, Key, Keyring, Output, Refusals};
use proptest::prelude::*;
use std::net::SocketAddr;

fn addr(last: u8) -> SocketAddr {
    SocketAddr::from(([10, 0, 0, last], 7946))
}

fn core(node: &str, last: u8, key: u8, cluster: &str) -> Core {
    with_keys(node, last, &Keyring::configured(Key::from_bytes([key; 32])), cluster)
}

fn with_keys(node: &str, last: u8, keys: &Keyring, cluster: &str) -> Core {
    let me = Identity { node: node.parse().unwrap(), addr: addr(last), mesh: addr(last), incarnation: 1 };
    Core::new(me, Config::default(), keys, cluster, u64::from(last))
}

/// A keyring in which all bytes of a key are the key's id.
fn ring(ids: &[u8], seals: u32) -> Keyring {
    Keyring::new(ids.iter().map(|id| (u32::from(*id), Key::from_bytes([*id; 32]))).collect(), seals).unwrap()
}

/// The datagrams that `core` sends in answer to one event.
fn handle(core: &mut Core, event: Event<'_>) -> Vec<Vec<u8>> {
    let mut out = Vec::new();
    core.handle(0, event, &mut out);
    out.into_iter()
        .filter_map(|output| match output {
            Output::Datagram { bytes, .. } => Some(bytes),
            Output::Timer { .. } | Output::News(_) => None,
        })
        .collect()
}

/// The first datagram of a new node.
fn announce(key: u8, cluster: &str) -> Vec<u8> {
    handle(&mut core("a", 1, key, cluster), Event::Join(addr(2))).remove(0)
}

fn refused_by(core: &mut Core, bytes: &[u8]) -> Refusals {
    let before = core.counters().refused;
    assert_eq!(handle(core, Event::Datagram { from: addr(1), bytes }), Vec::<Vec<u8>>::new(), "it is not answered");
    let after = core.counters().refused;
    assert_eq!(after.total(), before.total() + 1, "it is counted once");
    after
}

#[test]
fn a_new_node_is_answered_and_its_replayed_datagram_is_not() {
    let mut b = core("b", 2, 7, "lab");
    let announce = announce(7, "lab");
    assert!(!handle(&mut b, Event::Datagram { from: addr(1), bytes: &announce }).is_empty());
    assert!(b.is_alive(&"a".parse().unwrap()));
    assert_eq!(refused_by(&mut b, &announce), Refusals { replayed: 1, ..Refusals::default() });
}

#[test]
fn each_refusal_is_counted_by_its_reason_and_changes_no_state() {
    let mut b = core("b", 2, 7, "lab");
    handle(&mut b, Event::Join(addr(1)));
    let none = Refusals::default();
    let good = announce(7, "lab");
    let mut expected = none;
    let mut check = |bytes: &[u8], count: fn(&mut Refusals)| {
        count(&mut expected);
        assert_eq!(refused_by(&mut b, bytes), expected);
    };
    check(&announce(8, "lab"), |r| r.not_sealed += 1);
    check(&announce(7, "other"), |r| r.foreign_cluster += 1);
    check(&[], |r| r.truncated += 1);
    check(&good[..good.len() - 1], |r| r.not_sealed += 1);
    check(&[9; 200], |r| r.version += 1);
    check(&[1; 4_000], |r| r.too_long += 1);
    let from_b = handle(&mut core("b", 3, 7, "lab"), Event::Join(addr(2))).remove(0);
    check(&from_b, |r| r.from_ourselves += 1);
    assert_eq!(b.members().count(), 1, "only itself");
    assert!(!handle(&mut b, Event::Datagram { from: addr(1), bytes: &good }).is_empty(), "the valid datagram is still accepted");
}

#[test]
fn datagrams_of_a_removed_key_and_of_a_foreign_cluster_are_refused_and_counted() {
    let mut b = core("b", 2, 7, "lab");
    handle(&mut b, Event::Join(addr(1)));
    let before = announce(7, "lab");
    assert!(!handle(&mut b, Event::Datagram { from: addr(1), bytes: &before }).is_empty());
    handle(&mut b, Event::SetKeys(&ring(&[1, 2], 2)));
    let mut expected = Refusals { unknown_key: 1, ..Refusals::default() };
    assert_eq!(refused_by(&mut b, &before), expected, "refused for its removed key, although it is a replay too");
    let announcement = |keys: &Keyring, cluster: &str| handle(&mut with_keys("c", 3, keys, cluster), Event::Join(addr(2))).remove(0);
    expected.unknown_key += 1;
    assert_eq!(refused_by(&mut b, &announcement(&ring(&[3], 3), "lab")), expected);
    expected.foreign_cluster += 1;
    assert_eq!(refused_by(&mut b, &announcement(&ring(&[2], 2), "other")), expected);
    let old = announcement(&ring(&[1], 1), "lab");
    assert!(!handle(&mut b, Event::Datagram { from: addr(3), bytes: &old }).is_empty(), "an old key opens while it is in the ring");
    handle(&mut b, Event::SetKeys(&ring(&[2], 2)));
    expected.unknown_key += 1;
    assert_eq!(refused_by(&mut b, &old), expected);
}

#[test]
fn a_used_timer_token_is_ignored() {
    let mut b = core("b", 2, 7, "lab");
    let mut out = Vec::new();
    b.handle(0, Event::Join(addr(1)), &mut out);
    let token = out
        .iter()
        .find_map(|output| match output {
            Output::Timer { token, .. } => Some(*token),
            Output::Datagram { .. } | Output::News(_) => None,
        })
        .expect("it ticks");
    let mut once = Vec::new();
    b.handle(1_000, Event::Timer(token), &mut once);
    assert!(!once.is_empty(), "it announces itself again, and sets the next timer");
    let mut twice = Vec::new();
    b.handle(1_000, Event::Timer(token), &mut twice);
    assert_eq!(twice, vec![]);
    assert_eq!(core("c", 3, 7, "lab").counters(), &Counters::default());
}

proptest! {
    #[test]
    fn any_bytes_are_refused(bytes in proptest::collection::vec(any::<u8>(), 0..1_500)) {
        refused_by(&mut core("b", 2, 7, "lab"), &bytes);
    }

    #[test]
    fn any_changed_datagram_is_refused(at in any::<prop::sample::Index>(), by in 1u8..) {
        let mut bytes = announce(7, "lab");
        let at = at.index(bytes.len());
        bytes[at] ^= by;
        refused_by(&mut core("b", 2, 7, "lab"), &bytes);
    }
}

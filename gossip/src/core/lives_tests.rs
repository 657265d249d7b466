//! What a holder of the key can send in other nodes' names, and how one core handles it.

use crate::fact::FactVersion;
use crate::fact_book::encode_item;
use crate::keyring::{Key, Keyring};
use crate::peer::Peer;
use crate::seal::Sealer;
use crate::wire::{KIND_FOCA, KIND_PULL, Wire, put_member};
use crate::{Config, Core, Event, Fact, Identity, LIFE_AHEAD_MS_MAX, News, Output};
use bytes::BufMut;
use foca::{Codec, Header, Message, State};
use lattice_model::NodeState;
use std::net::SocketAddr;
use std::sync::Arc;

/// What the machine's clock shows in these tests.
const CLOCK: u64 = 1_900_000_000_000;

fn addr(node: &str) -> SocketAddr {
    SocketAddr::from(([10, 0, 0, node.as_bytes()[0]], 7))
}

fn peer(node: &str, life: u64) -> Peer {
    Peer::new(node.parse().unwrap(), addr(node), life, 0)
}

fn keys(ids: &[u8]) -> Keyring {
    Keyring::new(ids.iter().map(|id| (u32::from(*id), Key::from_bytes([*id; 32]))).collect(), u32::from(ids[0])).unwrap()
}

fn core(node: &str, life: u64) -> Core {
    let me = Identity { node: node.parse().unwrap(), addr: addr(node), mesh: addr(node), incarnation: life };
    let mut core = Core::new(me, Config::default(), &keys(&[1]), "lab", life);
    core.set_clock(0, CLOCK);
    handle(&mut core, 0, Event::SetFact(fact(7)));
    core
}

fn fact(digest: u64) -> Fact {
    Fact { state: NodeState::Ready, held: false, schedulable: true, digest }
}

fn handle(core: &mut Core, now_ms: u64, event: Event<'_>) -> (Vec<(SocketAddr, Vec<u8>)>, Vec<News>) {
    let (mut out, mut datagrams, mut news) = (Vec::new(), Vec::new(), Vec::new());
    core.handle(now_ms, event, &mut out);
    for output in out {
        match output {
            Output::Datagram { to, bytes } => datagrams.push((to, bytes)),
            Output::News(what) => news.push(what),
            Output::Timer { .. } => {}
        }
    }
    (datagrams, news)
}

fn deliver(core: &mut Core, bytes: &[u8]) -> (Vec<(SocketAddr, Vec<u8>)>, Vec<News>) {
    handle(core, 0, Event::Datagram { from: addr("t"), bytes })
}

/// Gossip from one life to another, with updates of members and their facts.
fn gossip(from: &Peer, to: &Peer, members: &[foca::Member<Peer>], items: &[Vec<u8>]) -> Vec<u8> {
    let mut body = Vec::new();
    let header = Header { src: from.clone(), src_incarnation: 0, dst: to.clone(), message: Message::Gossip };
    let mut wire = Wire::new(from.clone(), crate::Known::default(), Arc::default());
    wire.encode_header(&header, &mut body).unwrap();
    body.put_u16(members.len() as u16);
    members.iter().for_each(|member| put_member(member, &mut body));
    for item in items {
        body.put_u16(item.len() as u16);
        body.put_slice(item);
    }
    body
}

/// A datagram sealed by this life, which has sealed nothing before.
fn sealed(by: &Peer, kind: u8, body: &[u8], seed: u64) -> Vec<u8> {
    Sealer::new(&keys(&[1]), "lab", by, seed).seal(kind, body)
}

/// The life in which a core sees a node, whether the node is alive, and whether it is contradicted.
fn shown(core: &Core, node: &str) -> Option<(u64, bool, bool)> {
    let node = node.parse().unwrap();
    core.member(&node).map(|member| (member.incarnation, core.is_alive(&node), member.contradicted_since_ms.is_some()))
}

#[test]
fn a_sender_speaks_for_itself_alone() {
    let mut a = core("a", CLOCK);
    let (thief, victim, me) = (peer("t", 5), peer("v", 5), peer("a", CLOCK));
    let pull = crate::sync::Pull { from: victim.clone(), to: me.clone(), nonce: 1, range: Default::default(), tags: vec![] };
    for (kind, body) in [(KIND_FOCA, gossip(&victim, &me, &[], &[])), (KIND_PULL, pull.encode())] {
        for by in [&thief, &peer("v", 6)] {
            assert_eq!(deliver(&mut a, &sealed(by, kind, &body, 1 + u64::from(kind))), (vec![], vec![]));
        }
    }
    assert_eq!((a.counters().refused.other_sender, shown(&a, "v"), shown(&a, "t")), (4, None, None));
    deliver(&mut a, &sealed(&victim, KIND_FOCA, &gossip(&victim, &me, &[], &[]), 9));
    assert_eq!(shown(&a, "v"), Some((5, true, false)));
}

#[test]
fn a_forged_datagram_of_58_bytes_mutes_nobody() {
    let (mut a, victim, me) = (core("a", CLOCK), peer("v", CLOCK - 9), peer("a", CLOCK));
    let mut of_victim = Sealer::new(&keys(&[1]), "lab", &victim, 1);
    let mut publish = |a: &mut Core, digest| {
        let version = FactVersion { incarnation: victim.incarnation, counter: digest as u32 };
        let item = encode_item(&victim.node, version, &fact(digest), false, &[]);
        deliver(a, &of_victim.seal(KIND_FOCA, &gossip(&victim, &me, &[], &[item])));
        a.member(&victim.node).and_then(|member| member.fact).map(|fact| fact.digest)
    };
    assert_eq!(publish(&mut a, 1), Some(1));
    for life in [u64::MAX, CLOCK + LIFE_AHEAD_MS_MAX + 1, CLOCK + LIFE_AHEAD_MS_MAX, victim.incarnation + 1] {
        let attack = sealed(&peer("v", life), KIND_FOCA, &[], life);
        assert_eq!(attack.len(), 58);
        deliver(&mut a, &attack);
    }
    assert_eq!(publish(&mut a, 2), Some(2));
    let refused = a.counters().refused;
    assert_eq!((refused.life_ahead, refused.undecodable, refused.total()), (2, 2, 4));
    assert_eq!(shown(&a, "v"), Some((victim.incarnation, true, false)));
}

#[test]
fn a_life_ahead_of_the_clock_is_accepted_from_nobody() {
    let (mut a, thief, me) = (core("a", CLOCK), peer("t", 5), peer("a", CLOCK));
    deliver(&mut a, &sealed(&peer("v", 7), KIND_FOCA, &gossip(&peer("v", 7), &me, &[], &[]), 1));
    for (n, state) in [State::Alive, State::Suspect, State::Down].into_iter().enumerate() {
        let ahead = ["v", "w", "a"].map(|node| foca::Member::new(peer(node, CLOCK + LIFE_AHEAD_MS_MAX + 1), 0, state));
        deliver(&mut a, &sealed(&thief, KIND_FOCA, &gossip(&thief, &me, &ahead, &[]), 2 + n as u64));
    }
    assert_eq!((shown(&a, "v"), shown(&a, "w")), (Some((7, true, false)), None));
    assert_eq!((shown(&a, "a"), a.counters().rejoins), (Some((CLOCK, true, false)), 0));
    assert_eq!(a.counters().claims_refused, 9);
    let at_most = foca::Member::alive(peer("w", CLOCK + LIFE_AHEAD_MS_MAX));
    deliver(&mut a, &sealed(&thief, KIND_FOCA, &gossip(&thief, &me, &[at_most], &[]), 9));
    assert_eq!(shown(&a, "w"), Some((CLOCK + LIFE_AHEAD_MS_MAX, true, false)));
}

#[test]
fn a_node_outranks_a_life_or_fact_that_it_never_published_and_publishes_that() {
    let thief = peer("t", 5);
    let me = peer("a", CLOCK);
    let forged = FactVersion { incarnation: CLOCK, counter: u32::MAX };
    let later = |life, state| gossip(&thief, &me, &[foca::Member::new(peer("a", life), 0, state)], &[]);
    let cases = [
        ("a later life", later(CLOCK + 50, State::Alive), CLOCK + 51),
        ("the death of a later life", later(CLOCK + 50, State::Down), CLOCK + 51),
        (
            "a later renewal",
            gossip(&thief, &me, &[foca::Member::alive(Peer::new(me.node.clone(), me.addr, CLOCK, u32::MAX))], &[]),
            CLOCK + 1,
        ),
        ("a message to a later life", gossip(&thief, &peer("a", CLOCK + 3), &[], &[]), CLOCK + 4),
        ("a fact", gossip(&thief, &me, &[], &[encode_item(&me.node, forged, &fact(9), false, &[])]), CLOCK + 1),
    ];
    for (n, (what, body, life)) in cases.into_iter().enumerate() {
        let mut a = core("a", CLOCK);
        let (sent, news) = deliver(&mut a, &sealed(&thief, KIND_FOCA, &body, n as u64));
        assert_eq!(shown(&a, "a"), Some((life, true, true)), "{what}");
        assert!(news.contains(&News::Rejoined) && news.contains(&News::Contradicted(me.node.clone())), "{what}: {news:?}");
        assert_eq!((a.counters().contradictions, a.counters().rejoins), (1, 1), "{what}");
        // Another core receives the new life from the node itself.
        let mut b = core("b", CLOCK);
        deliver(&mut b, &sealed(&thief, KIND_FOCA, &gossip(&thief, &peer("b", CLOCK), &[foca::Member::down(peer("a", CLOCK))], &[]), 40));
        handle(&mut a, 0, Event::Join(addr("b"))).0.iter().chain(&sent).for_each(|(_, bytes)| drop(deliver(&mut b, bytes)));
        assert_eq!(shown(&b, "a").map(|(life, alive, _)| (life, alive)), Some((life, true)), "{what}");
        // Its own fact is the newest one again.
        assert_eq!(a.member(&me.node).unwrap().fact, Some(fact(7)), "{what}");
    }
}

#[test]
fn a_stale_sender_is_notified_of_its_later_life_and_outranks_it() {
    let (mut a, mut v) = (core("a", CLOCK), core("v", 30));
    let forged = peer("v", CLOCK + 1_000);
    deliver(&mut a, &sealed(&forged, KIND_FOCA, &gossip(&forged, &peer("a", CLOCK), &[], &[]), 1));
    assert_eq!(shown(&a, "v"), Some((CLOCK + 1_000, true, false)));
    let mut on_the_way = handle(&mut v, 0, Event::Join(addr("a"))).0;
    let mut passed = 0;
    while let Some((to, bytes)) = on_the_way.pop() {
        passed += 1;
        assert!(passed < 50, "the exchange ends");
        on_the_way.extend(if to == addr("a") { deliver(&mut a, &bytes).0 } else { deliver(&mut v, &bytes).0 });
    }
    assert_eq!(shown(&a, "v").map(|(life, alive, _)| (life, alive)), Some((CLOCK + 1_001, true)));
    assert_eq!(shown(&v, "v"), Some((CLOCK + 1_001, true, true)));
    assert_eq!((a.counters().refused.stale_life, v.counters().rejoins), (1, 1));
}

#[test]
fn contradictions_end_after_a_while_and_with_the_key() {
    for by_key in [true, false] {
        let (mut a, thief, me) = (core("a", CLOCK), peer("t", 5), peer("a", CLOCK));
        deliver(&mut a, &sealed(&thief, KIND_FOCA, &gossip(&thief, &me, &[foca::Member::alive(peer("a", CLOCK + 1))], &[]), 1));
        assert_eq!(shown(&a, "a"), Some((CLOCK + 2, true, true)));
        let news = if by_key {
            handle(&mut a, 10, Event::SetKeys(&keys(&[1, 2])));
            assert_eq!(shown(&a, "a"), Some((CLOCK + 2, true, true)), "the old key is still in the ring");
            handle(&mut a, 20, Event::SetKeys(&keys(&[2]))).1
        } else {
            a.check_own_life(super::CONTRADICTED_MS - 1);
            assert_eq!(shown(&a, "a"), Some((CLOCK + 2, true, true)));
            a.check_own_life(super::CONTRADICTED_MS);
            handle(&mut a, super::CONTRADICTED_MS, Event::SetFact(fact(7))).1
        };
        assert_eq!(news, [News::Fact(me.node.clone())]);
        assert_eq!(shown(&a, "a"), Some((CLOCK + 2, true, false)));
    }
}

#[test]
fn a_node_whose_clock_is_set_back_begins_a_life_that_others_accept() {
    let wrong = CLOCK + 3 * LIFE_AHEAD_MS_MAX;
    let mut a = core("a", wrong);
    a.set_clock(0, wrong);
    a.check_own_life(0);
    assert_eq!(handle(&mut a, 0, Event::SetFact(fact(7))).1, []);
    a.set_clock(0, CLOCK);
    let mut joined = core("a", wrong);
    deliver(&mut joined, &sealed(&peer("t", 5), KIND_FOCA, &gossip(&peer("t", 5), &peer("a", wrong), &[], &[]), 1));
    joined.set_clock(0, CLOCK);
    joined.check_own_life(0);
    assert_eq!(handle(&mut joined, 0, Event::SetFact(fact(7))).1, [], "others know that life and keep it");
    a.check_own_life(0);
    assert_eq!(handle(&mut a, 0, Event::SetFact(fact(7))).1, [News::Rejoined]);
    assert_eq!((shown(&a, "a"), a.member(&"a".parse().unwrap()).unwrap().fact), (Some((CLOCK, true, false)), Some(fact(7))));
}

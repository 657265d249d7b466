//! Fuzz targets: datagrams of strangers, and datagrams that holders of the key seal.
//! `docs/fuzzing.md` lists all targets.

use crate::peer::Peer;
use crate::seal::{Opener, Sealer};
use crate::{Config, Core, Event, Fact, Identity, Key, Keyring, Output, Token};
use lattice_fuzz::{Input, Target, piece};
use lattice_model::NodeState;
use std::net::SocketAddr;

const CLUSTER: &str = "lab";

fn addr(last: u8) -> SocketAddr {
    SocketAddr::from(([10, 0, 0, last], 7946))
}

fn keys() -> Keyring {
    Keyring::configured(Key::from_bytes([7; 32]))
}

fn core(node: &str, last: u8) -> Core {
    let me = Identity { node: node.parse().unwrap(), addr: addr(last), mesh: addr(last), incarnation: 1 };
    Core::new(me, Config::default(), &keys(), CLUSTER, u64::from(last))
}

fn peer(node: &str, last: u8) -> Peer {
    Peer::new(node.parse().unwrap(), addr(last), 1, 0)
}

/// A datagram and its receiver's address.
type Sent = (SocketAddr, Vec<u8>);

fn sort(out: Vec<Output>, sent: &mut Vec<Sent>, timers: &mut Vec<Token>) {
    for output in out {
        match output {
            Output::Datagram { to, bytes } => sent.push((to, bytes)),
            Output::Timer { token, .. } => timers.push(token),
            Output::News(_) => {}
        }
    }
}

/// Every datagram of two nodes that meet, publish facts about themselves, probe each other and leave.
fn conversation() -> Vec<Sent> {
    let mut nodes = [(core("a", 1), addr(1)), (core("b", 2), addr(2))];
    let (mut all, mut timers) = (Vec::new(), [Vec::new(), Vec::new()]);
    let mut now_ms = 1_000;
    for (index, (node, _)) in nodes.iter_mut().enumerate() {
        let mut out = Vec::new();
        let fact = Fact { state: NodeState::Ready, held: false, schedulable: true, digest: 7 };
        node.handle(now_ms, Event::SetFact(fact), &mut out);
        node.handle(now_ms, Event::Join(addr(if index == 0 { 2 } else { 1 })), &mut out);
        sort(out, &mut all, &mut timers[index]);
    }
    let mut delivered = 0;
    for round in 0..6 {
        while delivered < all.len() {
            let (to, bytes) = all[delivered].clone();
            delivered += 1;
            let index = usize::from(to == addr(2));
            let mut out = Vec::new();
            nodes[index].0.handle(now_ms, Event::Datagram { from: nodes[1 - index].1, bytes: &bytes }, &mut out);
            sort(out, &mut all, &mut timers[index]);
        }
        now_ms += 2_000;
        for (index, (node, _)) in nodes.iter_mut().enumerate() {
            let mut out = Vec::new();
            for token in std::mem::take(&mut timers[index]) {
                node.handle(now_ms, Event::Timer(token), &mut out);
            }
            if round == 4 && index == 0 {
                node.handle(now_ms, Event::Leave, &mut out);
            }
            sort(out, &mut all, &mut timers[index]);
        }
    }
    all
}

#[test]
fn datagrams() {
    let sent: Vec<Vec<u8>> = conversation().into_iter().filter(|(to, _)| *to == addr(2)).map(|(_, bytes)| bytes).collect();
    Target::new("gossip-datagrams", sent).fuzz(|bytes| {
        let (mut b, mut out) = (core("b", 2), Vec::new());
        b.handle(1_000, Event::Datagram { from: addr(1), bytes }, &mut out);
        assert!(b.members().count() <= 2, "a datagram between two nodes created a third member");
    });
}

/// A node that has the key and seals arbitrary bytes with it.
#[test]
fn sealed() {
    let mut opener = Opener::new(&keys(), CLUSTER, &peer("b", 2), 10);
    let opened = conversation().into_iter().filter(|(to, _)| *to == addr(2)).map(|(_, bytes)| {
        let opened = opener.open(1_000, u64::MAX, &bytes).unwrap();
        piece(&[&[opened.kind], opened.body.as_slice()].concat())
    });
    let opened: Vec<Vec<u8>> = opened.collect();
    let mut seeds = vec![opened.concat()];
    seeds.extend(opened);
    Target::new("gossip-sealed", seeds).fuzz(|bytes| {
        let (mut sealer, mut b) = (Sealer::new(&keys(), CLUSTER, &peer("a", 1), 3), core("b", 2));
        let (mut input, mut now_ms) = (Input(bytes), 1_000);
        let (mut sent, mut timers) = (Vec::new(), Vec::new());
        while !input.is_empty() {
            let Some((kind, body)) = input.piece().split_first() else { continue };
            let mut out = Vec::new();
            b.handle(now_ms, Event::Datagram { from: addr(1), bytes: &sealer.seal(*kind, body) }, &mut out);
            now_ms += 1_500;
            for token in std::mem::take(&mut timers) {
                b.handle(now_ms, Event::Timer(token), &mut out);
            }
            sort(out, &mut sent, &mut timers);
        }
        let bytes_max = Config::default().packet_bytes_max;
        assert!(sent.iter().all(|(_, bytes)| bytes.len() <= bytes_max), "a datagram has more than {bytes_max} bytes");
        assert!(b.is_alive(&"b".parse().unwrap()), "a node accepts that it is Down");
    });
}

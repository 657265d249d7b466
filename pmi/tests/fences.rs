//! Fences between nodes while their head, their agents and the frames between them get lost.

use lattice_pmi::{Action, BLOB_BYTES_MAX, Event, FenceHub, FenceMerged, FenceRefused, Job, Server};
use proptest::prelude::*;
use std::collections::{BTreeMap, VecDeque};

/// Fences that every rank goes through.
const ROUNDS: u32 = 5;

/// One node with one rank, which puts a key and comes to a fence, again and again.
struct Node {
    server: Server,
    rank: u32,
    /// Fences that the rank came out of.
    rounds: u32,
    connected: bool,
    to_hub: VecDeque<(u32, Vec<u8>)>,
    from_hub: VecDeque<FenceMerged>,
}

impl Node {
    fn say(&mut self, line: &str) -> String {
        let mut out = Vec::new();
        self.server.handle(Event::Bytes { local: 0, data: format!("{line}\n").as_bytes() }, &mut out);
        self.act(out)
    }

    /// Sends fences to the hub while connected (else they are lost) and gives the answers to the rank.
    fn act(&mut self, actions: Vec<Action>) -> String {
        let mut said = String::new();
        for action in actions {
            match action {
                Action::Send { bytes, .. } => said += &String::from_utf8(bytes).unwrap(),
                Action::Fence { number, blob } if self.connected => self.to_hub.push_back((number, blob)),
                Action::Fence { .. } => {}
                Action::Abort { why, .. } => panic!("{why}"),
            }
        }
        said
    }

    fn come_to_fence(&mut self) {
        if self.rounds == ROUNDS {
            assert_eq!(self.say("cmd=finalize"), "cmd=finalize_ack rc=0\n");
            return;
        }
        let (rank, round) = (self.rank, self.rounds + 1);
        assert_eq!(self.say(&format!("cmd=put key=r{rank} value=round-{round}")), "cmd=put_result rc=0\n");
        assert_eq!(self.say("cmd=barrier_in"), "");
    }

    fn hear(&mut self, merged: &FenceMerged, nodes: u32) {
        let mut out = Vec::new();
        self.server.handle(Event::FenceDone { number: merged.number, blob: &merged.blob }, &mut out);
        let said = self.act(out);
        if said.is_empty() {
            return;
        }
        assert_eq!(said, "cmd=barrier_out rc=0\n");
        self.rounds += 1;
        assert_eq!(merged.number, self.rounds);
        for rank in 0..nodes {
            let round = self.rounds;
            assert_eq!(self.say(&format!("cmd=get key=r{rank}")), format!("cmd=get_result rc=0 value=round-{round}\n"));
        }
        self.come_to_fence();
    }
}

struct Cluster {
    nodes: Vec<Node>,
    hub: FenceHub,
    /// The content of every fence that any hub completed.
    completed: BTreeMap<u32, Vec<u8>>,
}

impl Cluster {
    fn new(size: u32) -> Self {
        let node = |rank| Node {
            server: Server::new(Job { number: 1, kvsname: "kvs".into(), size, first: rank, count: 1, mapping: String::new() }),
            rank,
            rounds: 0,
            connected: true,
            to_hub: VecDeque::new(),
            from_hub: VecDeque::new(),
        };
        let mut cluster = Self { nodes: (0..size).map(node).collect(), hub: FenceHub::new(size as usize), completed: BTreeMap::new() };
        for node in &mut cluster.nodes {
            node.say("cmd=init pmi_version=1 pmi_subversion=1");
            node.come_to_fence();
        }
        cluster
    }

    fn hub_hears(&mut self, part: usize, twice: bool) {
        let queue = &mut self.nodes[part].to_hub;
        let Some((number, blob)) = (if twice { queue.front().cloned() } else { queue.pop_front() }) else { return };
        let Some(merged) = self.hub.contribute(part, number, blob).unwrap() else { return };
        let content = self.completed.entry(merged.number).or_insert_with(|| merged.blob.to_vec());
        assert_eq!(content[..], merged.blob[..], "fence {} has one content for ever", merged.number);
        for node in self.nodes.iter_mut().filter(|node| node.connected) {
            node.from_hub.push_back(merged.clone());
        }
    }

    fn node_hears(&mut self, part: usize, twice: bool) {
        let size = self.nodes.len() as u32;
        let node = &mut self.nodes[part];
        let merged = if twice { node.from_hub.front().cloned() } else { node.from_hub.pop_front() };
        if let Some(merged) = merged {
            node.hear(&merged, size);
        }
    }

    fn disconnect(&mut self, part: usize) {
        let node = &mut self.nodes[part];
        node.connected = false;
        node.to_hub.clear();
        node.from_hub.clear();
    }

    fn connect(&mut self, part: usize) {
        self.disconnect(part);
        let node = &mut self.nodes[part];
        node.connected = true;
        let replay = node.server.replay();
        node.act(replay);
        node.from_hub.extend(self.hub.resume(part).cloned());
    }

    fn crash_hub(&mut self) {
        self.hub = FenceHub::new(self.nodes.len());
        for part in 0..self.nodes.len() {
            self.disconnect(part);
        }
    }

    /// Everybody connects, everything is delivered: all ranks must come to their end.
    fn heal(&mut self) {
        let parts = 0..self.nodes.len();
        for part in parts.clone().filter(|&part| !self.nodes[part].connected).collect::<Vec<_>>() {
            self.connect(part);
        }
        while self.nodes.iter().any(|node| !node.to_hub.is_empty() || !node.from_hub.is_empty()) {
            for part in parts.clone() {
                self.hub_hears(part, false);
                self.node_hears(part, false);
            }
        }
    }
}

#[derive(Clone, Copy, Debug)]
enum Fault {
    HubHears { part: usize, twice: bool },
    NodeHears { part: usize, twice: bool },
    Disconnect(usize),
    Connect(usize),
    CrashHub,
}

fn fault() -> impl Strategy<Value = Fault> {
    let part = || 0..4usize;
    let twice = || prop::bool::weighted(0.2);
    prop_oneof![
        10 => (part(), twice()).prop_map(|(part, twice)| Fault::HubHears { part, twice }),
        10 => (part(), twice()).prop_map(|(part, twice)| Fault::NodeHears { part, twice }),
        2 => part().prop_map(Fault::Disconnect),
        4 => part().prop_map(Fault::Connect),
        1 => Just(Fault::CrashHub),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn every_rank_gets_every_fence_whatever_is_lost(size in 2..5u32, faults in prop::collection::vec(fault(), 0..150)) {
        let mut cluster = Cluster::new(size);
        let parts = size as usize;
        for fault in faults {
            match fault {
                Fault::HubHears { part, twice } => cluster.hub_hears(part % parts, twice),
                Fault::NodeHears { part, twice } => cluster.node_hears(part % parts, twice),
                Fault::Disconnect(part) => cluster.disconnect(part % parts),
                Fault::Connect(part) => cluster.connect(part % parts),
                Fault::CrashHub => cluster.crash_hub(),
            }
        }
        cluster.heal();
        for node in &cluster.nodes {
            prop_assert_eq!(node.rounds, ROUNDS, "rank {} hangs; the hub waits for {:?}", node.rank, cluster.hub.waiting_for());
        }
        prop_assert_eq!(cluster.hub.waiting_for(), None);
        prop_assert_eq!(cluster.completed.len(), ROUNDS as usize);
    }

    /// With one part silent, the hub names it and nobody else, whatever it had to forget.
    #[test]
    fn the_hub_names_who_is_missing(size in 2..5u32, rounds in 0..3u32, crash in any::<bool>(), silent in 0..4usize) {
        let mut cluster = Cluster::new(size);
        let silent = silent % size as usize;
        for _ in 0..rounds {
            for part in 0..cluster.nodes.len() {
                cluster.hub_hears(part, false);
            }
            for part in 0..cluster.nodes.len() {
                cluster.node_hears(part, false);
            }
        }
        if crash {
            cluster.crash_hub();
        }
        cluster.disconnect(silent);
        for part in (0..cluster.nodes.len()).filter(|&part| part != silent) {
            if crash {
                cluster.connect(part);
            }
            while !cluster.nodes[part].to_hub.is_empty() {
                cluster.hub_hears(part, false);
            }
        }
        let (_, missing) = cluster.hub.waiting_for().expect("an open fence");
        prop_assert_eq!(missing, [silent]);
    }

    #[test]
    fn hostile_contributions_are_refused_or_taken(given in prop::collection::vec((0..3usize, 0..6u32, prop::collection::vec(any::<u8>(), 0..12)), 0..40)) {
        let mut hub = FenceHub::new(2);
        for (part, number, blob) in given {
            let before = (hub.waiting_for(), hub.resume(0).cloned());
            if hub.contribute(part, number, blob).is_err() {
                prop_assert_eq!((hub.waiting_for(), hub.resume(0).cloned()), before, "a refusal changes nothing");
            }
        }
    }
}

/// A blob with one pair; `value` is one byte.
fn blob(key: u8, value: u8) -> Vec<u8> {
    vec![1, 0, 1, 0, key, value]
}

#[test]
fn contributions_are_joined_in_the_order_of_the_parts() {
    let mut hub = FenceHub::new(3);
    assert_eq!(hub.contribute(2, 1, blob(b'c', b'3')), Ok(None));
    assert_eq!(hub.contribute(0, 1, blob(b'a', b'1')), Ok(None));
    assert_eq!(hub.waiting_for(), Some((1, vec![1])));
    assert_eq!(hub.resume(1), None);
    let merged = FenceMerged { number: 1, blob: [blob(b'a', b'1'), blob(b'b', b'2'), blob(b'c', b'3')].concat().into() };
    assert_eq!(hub.contribute(1, 1, blob(b'b', b'2')), Ok(Some(merged.clone())));
    assert_eq!(hub.waiting_for(), None);
    assert_eq!((hub.resume(1), hub.resume(3)), (Some(&merged), None));
    assert_eq!(hub.contribute(1, 1, blob(b'b', b'2')), Ok(None), "a replay of what is complete");
}

#[test]
fn a_new_hub_merges_again_what_only_some_had() {
    let mut hub = FenceHub::new(3);
    let part = |part: u8, fence: u8| blob(part, fence);
    // Parts 1 and 2 have completed fence 8 and wait in 9; part 0 has completed 7 and waits in 8.
    assert_eq!(hub.contribute(1, 8, part(1, 8)), Ok(None));
    assert_eq!(hub.contribute(1, 9, part(1, 9)), Ok(None));
    assert_eq!(hub.contribute(0, 7, part(0, 7)), Ok(None), "nobody needs 7 any more");
    assert_eq!(hub.waiting_for(), Some((8, vec![0, 2])));
    assert_eq!(hub.contribute(0, 8, part(0, 8)), Ok(None));
    let again = hub.contribute(2, 8, part(2, 8)).unwrap().expect("fence 8 is whole again");
    assert_eq!((again.number, &again.blob[..]), (8, &[part(0, 8), part(1, 8), part(2, 8)].concat()[..]));
    assert_eq!(hub.contribute(2, 9, part(2, 9)), Ok(None));
    assert_eq!(hub.waiting_for(), Some((9, vec![0])));
    assert_eq!(hub.contribute(0, 9, part(0, 9)).unwrap().map(|merged| merged.number), Some(9));
}

#[test]
fn a_part_beyond_a_fence_is_not_waited_for_there() {
    let mut hub = FenceHub::new(3);
    for (part, number) in [(1, 8), (1, 9), (2, 9)] {
        assert_eq!(hub.contribute(part, number, vec![]), Ok(None));
    }
    assert_eq!(hub.waiting_for(), Some((8, vec![0])), "part 2 has completed 9: only part 0 is missing");
}

#[test]
fn refusals_are_typed() {
    let mut hub = FenceHub::new(2);
    assert_eq!(hub.contribute(2, 1, vec![]), Err(FenceRefused::UnknownPart { part: 2, parts: 2 }));
    assert_eq!(hub.contribute(0, 0, vec![]), Err(FenceRefused::OutOfStep { part: 0, number: 0, open: 0 }));
    assert!(matches!(hub.contribute(0, 1, vec![9]), Err(FenceRefused::Corrupt { part: 0, number: 1, .. })));
    assert_eq!(hub.contribute(0, 4, blob(b'a', b'1')), Ok(None), "a new hub takes the launch where it is");
    assert_eq!(hub.contribute(0, 4, blob(b'a', b'2')), Err(FenceRefused::Changed { part: 0, number: 4 }));
    assert_eq!(hub.contribute(1, 6, vec![]), Err(FenceRefused::OutOfStep { part: 1, number: 6, open: 4 }));
    assert_eq!(hub.contribute(1, 4, vec![]).unwrap().map(|merged| merged.number), Some(4));
}

#[test]
fn a_merge_has_a_size_limit() {
    let record = [&[1, 0, 0, 4, b'k'][..], &[b'v'; 1024]].concat();
    let half = record.repeat(BLOB_BYTES_MAX / 2 / record.len() + 1);
    let bytes = 2 * half.len();
    let mut hub = FenceHub::new(2);
    assert_eq!(hub.contribute(0, 1, half.clone()), Ok(None));
    assert_eq!(hub.contribute(1, 1, half), Err(FenceRefused::TooLarge { number: 1, bytes }));
    assert_eq!(hub.waiting_for(), Some((1, vec![1])));
}

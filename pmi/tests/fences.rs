//! Fences through a tree of agents, while agents (including the head) and frames between them are
//! lost.

use lattice_pmi::{Action, BLOB_BYTES_MAX, Contributed, Event, FenceHub, FenceMerged, FenceRefused, Job, Server, Subtree};
use proptest::prelude::*;
use std::collections::{BTreeMap, VecDeque};

/// Number of fences that every rank passes.
const ROUNDS: u32 = 5;

/// One node with one rank, which repeatedly puts a key and joins a fence. Odd ranks speak PMI-2.
struct Node {
    server: Server,
    rank: u32,
    /// Number of fences that the rank has passed.
    rounds: u32,
    connected: bool,
    to_hub: VecDeque<(u32, Vec<u8>)>,
    from_hub: VecDeque<FenceMerged>,
}

impl Node {
    fn send(&mut self, line: &str) -> String {
        self.write(format!("{line}\n").as_bytes())
    }

    fn write(&mut self, data: &[u8]) -> String {
        let mut out = Vec::new();
        self.server.handle(Event::Bytes { local: 0, data }, &mut out);
        self.act(out)
    }

    fn speaks_lines(&self) -> bool {
        self.rank.is_multiple_of(2)
    }

    /// Sends a command in the rank's PMI version and returns the answer, without its newline or
    /// length.
    fn ask(&mut self, line: &str, message: &str) -> String {
        if self.speaks_lines() { self.send(line) } else { self.write(format!("{:6}{message}", message.len()).as_bytes()) }
    }

    fn is_answer(&self, answer: &str, line: &str, message: &str) -> bool {
        if self.speaks_lines() { answer == format!("{line}\n") } else { answer == format!("{:<6}{message}", message.len()) }
    }

    /// Sends fences to the hub while connected (otherwise they are lost) and answers to the rank.
    fn act(&mut self, actions: Vec<Action>) -> String {
        let mut sent = String::new();
        for action in actions {
            match action {
                Action::Send { bytes, .. } => sent += &String::from_utf8(bytes).unwrap(),
                Action::Fence { number, blob } if self.connected => self.to_hub.push_back((number, blob)),
                Action::Fence { .. } => {}
                Action::Call(call) => panic!("{call:?}, and nobody publishes"),
                Action::LastCommand { local } => panic!("rank {local} sent no abort"),
                Action::Abort { why, .. } => panic!("{why}"),
            }
        }
        sent
    }

    fn enter_fence(&mut self) {
        if self.rounds == ROUNDS {
            let answer = self.ask("cmd=finalize", "cmd=finalize;");
            assert!(self.is_answer(&answer, "cmd=finalize_ack rc=0", "cmd=finalize-response;rc=0;"), "{answer}");
            return;
        }
        let (rank, round) = (self.rank, self.rounds + 1);
        let answer =
            self.ask(&format!("cmd=put key=r{rank} value=round-{round}"), &format!("cmd=kvs-put;key=r{rank};value=round-{round};"));
        assert!(self.is_answer(&answer, "cmd=put_result rc=0", "cmd=kvs-put-response;rc=0;"), "{answer}");
        assert_eq!(self.ask("cmd=barrier_in", "cmd=kvs-fence;"), "");
    }

    fn receive(&mut self, merged: &FenceMerged, nodes: u32) {
        let mut out = Vec::new();
        self.server.handle(Event::FenceDone { number: merged.number, blob: &merged.blob }, &mut out);
        let answer = self.act(out);
        if answer.is_empty() {
            return;
        }
        assert!(self.is_answer(&answer, "cmd=barrier_out rc=0", "cmd=kvs-fence-response;rc=0;"), "{answer}");
        self.rounds += 1;
        assert_eq!(merged.number, self.rounds);
        for rank in 0..nodes {
            let value = format!("value=round-{}", self.rounds);
            let answer = self.ask(&format!("cmd=get key=r{rank}"), &format!("cmd=kvs-get;jobid=kvs;srcid={rank};key=r{rank};"));
            let (line, message) = (format!("cmd=get_result rc=0 {value}"), format!("cmd=kvs-get-response;rc=0;found=TRUE;{value};"));
            assert!(self.is_answer(&answer, &line, &message), "{answer}");
        }
        self.enter_fence();
    }
}

/// One agent's state for a launch: lost when the agent is killed, or when its parent's stream
/// breaks.
struct Place {
    parent: u32,
    hub: FenceHub,
    done: Option<FenceMerged>,
    edges: Vec<Edge>,
}

/// The stream to a subtree.
struct Edge {
    subtree: Subtree,
    connected: bool,
    up: VecDeque<(u32, Vec<u8>)>,
    down: VecDeque<FenceMerged>,
}

impl Edge {
    fn new(subtree: Subtree) -> Self {
        Self { subtree, connected: false, up: VecDeque::new(), down: VecDeque::new() }
    }

    fn disconnect(&mut self) {
        *self = Self::new(self.subtree);
    }
}

const HEAD: u32 = 0;

struct Cluster {
    fanout: u32,
    nodes: Vec<Node>,
    /// By agent. The head's entry always exists.
    places: BTreeMap<u32, Place>,
    /// The content of every fence that the head ever completed.
    completed: BTreeMap<u32, Vec<u8>>,
}

impl Cluster {
    fn new(size: u32, fanout: u32) -> Self {
        let node = |rank| Node {
            server: Server::new(Job {
                number: 1,
                kvsname: "kvs".into(),
                size,
                first: rank,
                count: 1,
                ranks: vec![],
                appnums: vec![],
                mapping: String::new(),
                part: rank,
                nodes: vec![],
                runs: vec![],
            }),
            rank,
            rounds: 0,
            connected: false,
            to_hub: VecDeque::new(),
            from_hub: VecDeque::new(),
        };
        let nodes = (0..size).map(node).collect();
        let mut cluster = Self { fanout, nodes, places: BTreeMap::new(), completed: BTreeMap::new() };
        for node in &mut cluster.nodes {
            node.send(if node.speaks_lines() {
                "cmd=init pmi_version=1 pmi_subversion=1"
            } else {
                "cmd=init pmi_version=2 pmi_subversion=0"
            });
            node.enter_fence();
        }
        cluster.begin(Subtree::whole(size), HEAD);
        cluster
    }

    /// An agent starts to serve a subtree: its own node replays its state.
    fn begin(&mut self, subtree: Subtree, parent: u32) {
        let edges = subtree.children(self.fanout).map(Edge::new).collect();
        self.places.insert(subtree.first, Place { parent, hub: FenceHub::new(subtree), done: None, edges });
        let node = &mut self.nodes[subtree.first as usize];
        node.connected = true;
        let replay = node.server.replay();
        node.act(replay);
    }

    /// Removes an agent's state, and everything served from it.
    fn end(&mut self, agent: u32) {
        let Some(place) = self.places.remove(&agent) else { return };
        let node = &mut self.nodes[agent as usize];
        node.connected = false;
        node.to_hub.clear();
        node.from_hub.clear();
        if let Some(parent) = self.places.get_mut(&place.parent) {
            parent.edges.iter_mut().filter(|edge| edge.subtree.first == agent).for_each(Edge::disconnect);
        }
        for edge in place.edges.iter().filter(|edge| edge.connected) {
            self.end(edge.subtree.first);
        }
    }

    fn crash(&mut self, agent: u32) {
        self.end(agent);
        if agent == HEAD {
            self.begin(Subtree::whole(self.nodes.len() as u32), HEAD);
        }
    }

    fn edge(&mut self, agent: u32, at: usize) -> Option<&mut Edge> {
        let edges = &mut self.places.get_mut(&agent)?.edges;
        let at = at.checked_rem(edges.len())?;
        edges.get_mut(at)
    }

    fn connect(&mut self, agent: u32, at: usize) {
        let Some(subtree) = self.edge(agent, at).filter(|edge| !edge.connected).map(|edge| edge.subtree) else { return };
        // The newest parent counts; an earlier one learns of it, and drops its state.
        match self.places.get(&subtree.first).map(|place| place.parent) {
            Some(other) if other != agent && other != HEAD => self.end(other),
            Some(_) | None => {}
        }
        self.end(subtree.first);
        // That may have been the agent's own state, if it was an old one.
        if let Some(edge) = self.places.get_mut(&agent).and_then(|place| place.edges.iter_mut().find(|edge| edge.subtree == subtree)) {
            edge.connected = true;
            self.begin(subtree, agent);
        }
    }

    /// A connection breaks; the lower side may not have noticed yet.
    fn disconnect(&mut self, agent: u32, at: usize, noticed: bool) {
        let Some(edge) = self.edge(agent, at).filter(|edge| edge.connected) else { return };
        edge.disconnect();
        let below = edge.subtree.first;
        if noticed {
            self.end(below);
        }
    }

    fn go_round(&mut self, agent: u32, at: usize) {
        let fanout = self.fanout;
        let Some(subtree) = self.edge(agent, at).filter(|edge| !edge.connected).map(|edge| edge.subtree) else { return };
        let Some(place) = self.places.get_mut(&agent).filter(|_| !subtree.is_single()) else { return };
        place.edges.retain(|edge| edge.subtree != subtree);
        place.edges.push(Edge::new(Subtree::single(subtree.first)));
        place.edges.extend(subtree.children(fanout).map(Edge::new));
    }

    /// An agent receives the messages of its own node.
    fn receive_own(&mut self, agent: u32, twice: bool) {
        let queue = &mut self.nodes[agent as usize].to_hub;
        let front = if twice { queue.front().cloned() } else { queue.pop_front() };
        if let Some((number, blob)) = front {
            self.contribute(agent, Subtree::single(agent), number, blob);
        }
    }

    /// An agent receives the messages of a child.
    fn receive_up(&mut self, agent: u32, at: usize, twice: bool) {
        let Some(edge) = self.edge(agent, at) else { return };
        let subtree = edge.subtree;
        let front = if twice { edge.up.front().cloned() } else { edge.up.pop_front() };
        if let Some((number, blob)) = front {
            self.contribute(agent, subtree, number, blob);
        }
    }

    fn contribute(&mut self, agent: u32, from: Subtree, number: u32, blob: Vec<u8>) {
        let Some(place) = self.places.get_mut(&agent) else { return };
        match place.hub.contribute(from, number, blob).unwrap() {
            Contributed::Waits => {}
            Contributed::Before => {
                let Some(done) = place.done.clone().filter(|done| done.number == number) else { return };
                match place.edges.iter_mut().find(|edge| edge.subtree == from) {
                    Some(edge) => edge.down.push_back(done),
                    None => self.nodes[agent as usize].from_hub.push_back(done),
                }
            }
            Contributed::Whole(merged) if agent == HEAD => {
                let content = self.completed.entry(merged.number).or_insert_with(|| merged.blob.clone());
                assert_eq!(*content, merged.blob, "fence {} has one content for ever", merged.number);
                self.deliver(agent, &merged);
            }
            Contributed::Whole(merged) => {
                let parent = place.parent;
                let edges = self.places.get_mut(&parent).into_iter().flat_map(|place| &mut place.edges);
                for edge in edges.filter(|edge| edge.connected && edge.subtree.first == agent) {
                    edge.up.push_back((merged.number, merged.blob.clone()));
                }
            }
        }
    }

    fn deliver(&mut self, agent: u32, merged: &FenceMerged) {
        let Some(place) = self.places.get_mut(&agent) else { return };
        place.done = Some(merged.clone());
        self.nodes[agent as usize].from_hub.push_back(merged.clone());
        place.edges.iter_mut().filter(|edge| edge.connected).for_each(|edge| edge.down.push_back(merged.clone()));
    }

    fn receive_down(&mut self, agent: u32, at: usize, twice: bool) {
        let Some(edge) = self.edge(agent, at) else { return };
        let child = edge.subtree.first;
        let merged = if twice { edge.down.front().cloned() } else { edge.down.pop_front() };
        if let Some(merged) = merged {
            self.deliver(child, &merged);
        }
    }

    fn deliver_to_node(&mut self, part: u32, twice: bool) {
        let size = self.nodes.len() as u32;
        let node = &mut self.nodes[part as usize];
        let merged = if twice { node.from_hub.front().cloned() } else { node.from_hub.pop_front() };
        if let Some(merged) = merged {
            node.receive(&merged, size);
        }
    }

    /// Connects everything except agents in `without`, and delivers all messages.
    fn heal(&mut self, without: Option<u32>) {
        while let Some((agent, at)) = self.broken(without) {
            self.connect(agent, at);
        }
        let waits = |cluster: &Self| {
            cluster.nodes.iter().any(|node| !node.to_hub.is_empty() || !node.from_hub.is_empty())
                || cluster.places.values().flat_map(|place| &place.edges).any(|edge| !edge.up.is_empty() || !edge.down.is_empty())
        };
        while waits(self) {
            for agent in 0..self.nodes.len() as u32 {
                self.receive_own(agent, false);
                for at in 0..self.places.get(&agent).map_or(0, |place| place.edges.len()) {
                    self.receive_up(agent, at, false);
                    self.receive_down(agent, at, false);
                }
                self.deliver_to_node(agent, false);
            }
        }
    }

    fn broken(&self, without: Option<u32>) -> Option<(u32, usize)> {
        self.places.iter().find_map(|(agent, place)| {
            let at = place.edges.iter().position(|edge| !edge.connected && Some(edge.subtree.first) != without)?;
            Some((*agent, at))
        })
    }
}

#[derive(Clone, Copy, Debug)]
enum Fault {
    Own { agent: u32, twice: bool },
    Up { agent: u32, at: usize, twice: bool },
    Down { agent: u32, at: usize, twice: bool },
    Node { agent: u32, twice: bool },
    Disconnect { agent: u32, at: usize, noticed: bool },
    Connect { agent: u32, at: usize },
    GoRound { agent: u32, at: usize },
    Crash(u32),
}

fn fault() -> impl Strategy<Value = Fault> {
    let (agent, at, twice) = (|| 0..9u32, || 0..4usize, || prop::bool::weighted(0.2));
    prop_oneof![
        10 => (agent(), twice()).prop_map(|(agent, twice)| Fault::Own { agent, twice }),
        10 => (agent(), at(), twice()).prop_map(|(agent, at, twice)| Fault::Up { agent, at, twice }),
        10 => (agent(), at(), twice()).prop_map(|(agent, at, twice)| Fault::Down { agent, at, twice }),
        10 => (agent(), twice()).prop_map(|(agent, twice)| Fault::Node { agent, twice }),
        2 => (agent(), at(), any::<bool>()).prop_map(|(agent, at, noticed)| Fault::Disconnect { agent, at, noticed }),
        10 => (agent(), at()).prop_map(|(agent, at)| Fault::Connect { agent, at }),
        1 => (agent(), at()).prop_map(|(agent, at)| Fault::GoRound { agent, at }),
        1 => agent().prop_map(Fault::Crash),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(500))]

    #[test]
    fn every_rank_gets_every_fence_whatever_is_lost(size in 2..10u32, fanout in 2..5u32, faults in prop::collection::vec(fault(), 0..300)) {
        let mut cluster = Cluster::new(size, fanout);
        for fault in faults {
            match fault {
                Fault::Own { agent, twice } => cluster.receive_own(agent % size, twice),
                Fault::Up { agent, at, twice } => cluster.receive_up(agent % size, at, twice),
                Fault::Down { agent, at, twice } => cluster.receive_down(agent % size, at, twice),
                Fault::Node { agent, twice } => cluster.deliver_to_node(agent % size, twice),
                Fault::Disconnect { agent, at, noticed } => cluster.disconnect(agent % size, at, noticed),
                Fault::Connect { agent, at } => cluster.connect(agent % size, at),
                Fault::GoRound { agent, at } => cluster.go_round(agent % size, at),
                Fault::Crash(agent) => cluster.crash(agent % size),
            }
        }
        cluster.heal(None);
        for node in &cluster.nodes {
            let waits = cluster.places[&HEAD].hub.waiting_for();
            prop_assert_eq!(node.rounds, ROUNDS, "rank {} hangs; the head waits for {:?}", node.rank, waits);
        }
        prop_assert_eq!(cluster.places[&HEAD].hub.waiting_for(), None);
        prop_assert_eq!(cluster.completed.len(), ROUNDS as usize);
    }

    /// If one part is silent, the hub names exactly that part, whatever it had to forget.
    #[test]
    fn the_hub_names_who_is_missing(size in 2..5u32, rounds in 0..3u32, crash in any::<bool>(), silent in 1..4u32) {
        let mut cluster = Cluster::new(size, 64);
        let silent = 1 + silent % (size - 1);
        for at in 0..size as usize - 1 {
            cluster.connect(HEAD, at);
        }
        for _ in 0..rounds {
            for agent in (0..size).rev() {
                cluster.receive_own(agent, false);
            }
            for at in 0..size as usize - 1 {
                cluster.receive_up(HEAD, at, false);
            }
            for at in 0..size as usize - 1 {
                cluster.receive_down(HEAD, at, false);
            }
            for agent in 0..size {
                cluster.deliver_to_node(agent, false);
            }
        }
        if crash {
            cluster.crash(HEAD);
        }
        cluster.end(silent);
        cluster.heal(Some(silent));
        let (_, missing) = cluster.places[&HEAD].hub.waiting_for().expect("an open fence");
        prop_assert_eq!(missing, [silent]);
    }

    #[test]
    fn hostile_contributions_are_refused_or_taken(given in prop::collection::vec((0..4u32, 0..3u32, 0..6u32, prop::collection::vec(any::<u8>(), 0..12)), 0..40)) {
        let mut hub = FenceHub::new(Subtree::whole(3));
        for (first, parts, number, blob) in given {
            let before = hub.waiting_for();
            if hub.contribute(Subtree { first, end: first + parts }, number, blob).is_err() {
                prop_assert_eq!(hub.waiting_for(), before, "a refusal changes nothing");
            }
        }
    }
}

/// A blob with one pair; `value` is one byte.
fn blob(key: u8, value: u8) -> Vec<u8> {
    vec![1, 0, 1, 0, key, value]
}

fn one(part: u32) -> Subtree {
    Subtree::single(part)
}

fn whole(number: u32, blobs: &[Vec<u8>]) -> Result<Contributed, FenceRefused> {
    Ok(Contributed::Whole(FenceMerged { number, blob: blobs.concat() }))
}

const WAITS: Result<Contributed, FenceRefused> = Ok(Contributed::Waits);

#[test]
fn contributions_are_joined_in_the_order_of_the_parts() {
    let mut hub = FenceHub::new(Subtree::whole(3));
    assert_eq!(hub.contribute(one(2), 1, blob(b'c', b'3')), WAITS);
    assert_eq!(hub.contribute(one(0), 1, blob(b'a', b'1')), WAITS);
    assert_eq!(hub.waiting_for(), Some((1, vec![1])));
    assert_eq!(hub.contribute(one(1), 1, blob(b'b', b'2')), whole(1, &[blob(b'a', b'1'), blob(b'b', b'2'), blob(b'c', b'3')]));
    assert_eq!(hub.waiting_for(), None);
    assert_eq!(hub.contribute(one(1), 1, blob(b'b', b'2')), Ok(Contributed::Before), "a replay of what is complete");
}

#[test]
fn a_contribution_may_arrive_by_any_path() {
    let part = |part: u8| blob(part, 1);
    let all = [part(1), part(2), part(3), part(4)];
    let subtree = Subtree { first: 2, end: 4 };
    // A whole subtree at once, then one of its parts again alone; the other parts alone, and then
    // the whole subtree.
    for given in [vec![(subtree, all[1..3].concat()), (one(3), part(3))], vec![(one(3), part(3)), (subtree, all[1..3].concat())]] {
        let mut hub = FenceHub::new(Subtree { first: 1, end: 5 });
        for (from, blob) in given {
            assert_eq!(hub.contribute(from, 1, blob), WAITS);
        }
        assert_eq!(hub.waiting_for(), Some((1, vec![1, 4])));
        assert_eq!(hub.contribute(one(4), 1, part(4)), WAITS);
        assert_eq!(hub.contribute(one(1), 1, part(1)), whole(1, &all));
    }
}

#[test]
fn a_new_hub_merges_again_what_only_some_had() {
    let mut hub = FenceHub::new(Subtree::whole(3));
    let part = |part: u8, fence: u8| blob(part, fence);
    // Parts 1 and 2 have completed fence 8 and wait in 9; part 0 has completed 7 and waits in 8.
    assert_eq!(hub.contribute(one(1), 8, part(1, 8)), WAITS);
    assert_eq!(hub.contribute(one(1), 9, part(1, 9)), WAITS);
    assert_eq!(hub.contribute(one(0), 7, part(0, 7)), WAITS, "nobody needs 7 any more");
    assert_eq!(hub.waiting_for(), Some((8, vec![0, 2])));
    assert_eq!(hub.contribute(one(0), 8, part(0, 8)), WAITS);
    assert_eq!(hub.contribute(one(2), 8, part(2, 8)), whole(8, &[part(0, 8), part(1, 8), part(2, 8)]), "fence 8 is whole again");
    assert_eq!(hub.contribute(one(2), 9, part(2, 9)), WAITS);
    assert_eq!(hub.waiting_for(), Some((9, vec![0])));
    assert_eq!(hub.contribute(one(0), 9, part(0, 9)), whole(9, &[part(0, 9), part(1, 9), part(2, 9)]));
}

#[test]
fn a_part_beyond_a_fence_is_not_waited_for_there() {
    let mut hub = FenceHub::new(Subtree::whole(3));
    for (part, number) in [(1, 8), (1, 9), (2, 9)] {
        assert_eq!(hub.contribute(one(part), number, vec![]), WAITS);
    }
    assert_eq!(hub.waiting_for(), Some((8, vec![0])), "part 2 has completed 9: only part 0 is missing");
}

#[test]
fn refusals_are_typed() {
    let mut hub = FenceHub::new(Subtree::whole(2));
    assert_eq!(hub.contribute(one(2), 1, vec![]), Err(FenceRefused::UnknownParts { from: one(2) }));
    assert_eq!(hub.contribute(one(0), 0, vec![]), Err(FenceRefused::OutOfStep { from: one(0), number: 0, open: 0 }));
    assert_eq!(hub.contribute(one(0), 4, blob(b'a', b'1')), WAITS, "a new hub takes the launch where it is");
    assert_eq!(hub.contribute(one(0), 4, blob(b'a', b'2')), Err(FenceRefused::Changed { from: one(0), number: 4 }));
    assert_eq!(hub.contribute(one(1), 6, vec![]), Err(FenceRefused::OutOfStep { from: one(1), number: 6, open: 4 }));
    assert_eq!(hub.contribute(one(1), 4, vec![]), whole(4, &[blob(b'a', b'1')]));
}

#[test]
fn a_merge_has_a_size_limit() {
    let record = [&[1, 0, 0, 4, b'k'][..], &[b'v'; 1024]].concat();
    let half = record.repeat(BLOB_BYTES_MAX / 2 / record.len() + 1);
    let bytes = 2 * half.len();
    let mut hub = FenceHub::new(Subtree::whole(2));
    assert_eq!(hub.contribute(one(0), 1, half.clone()), WAITS);
    assert_eq!(hub.contribute(one(1), 1, half), Err(FenceRefused::TooLarge { number: 1, bytes }));
    assert_eq!(hub.waiting_for(), Some((1, vec![1])));
}

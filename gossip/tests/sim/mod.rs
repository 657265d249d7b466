//! A cluster in virtual time: cores, a network with seeded latency and loss, and a heap of coming
//! events.

use lattice_gossip::{Config, Core, Event, Fact, Identity, Key, Keyring, Liveness, News, Output, Token};
use lattice_model::{NodeId, NodeState};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap};
use std::net::SocketAddr;

/// How one node was started, and its core while it runs.
pub struct Node {
    pub id: NodeId,
    pub addr: SocketAddr,
    pub incarnation: u64,
    pub core: Option<Core>,
    /// The cluster's keys that it has, at this start and the next.
    pub keys: Keyring,
    pub news: Vec<(u64, News)>,
}

enum Happening {
    Datagram {
        to: SocketAddr,
        from: SocketAddr,
        bytes: Vec<u8>,
    },
    /// A timer of one life of one node: the life's end voids it.
    Timer {
        node: usize,
        incarnation: u64,
        token: Token,
    },
}

pub struct Sim {
    pub now_ms: u64,
    pub nodes: Vec<Node>,
    pub config: Config,
    /// How many of 1,000 datagrams are lost.
    pub loss_per_mille: u64,
    /// No datagram passes between addresses with different numbers.
    pub side: BTreeMap<SocketAddr, u8>,
    pub sent: u64,
    /// A digest of everything that was sent, with times and receivers: equal traces mean equal
    /// runs.
    pub trace: u64,
    random: u64,
    order: u64,
    queue: BinaryHeap<Reverse<(u64, u64)>>,
    happenings: BTreeMap<u64, Happening>,
    /// Events that wait for a suspended process.
    suspended: BTreeMap<usize, Vec<Happening>>,
    by_addr: BTreeMap<SocketAddr, usize>,
    /// Datagrams sent to addresses without a node: receiver, sender, bytes.
    pub strayed: Vec<(SocketAddr, SocketAddr, Vec<u8>)>,
}

/// The bytes of each key are its id.
pub fn keys(ids: &[u8], seals: u32) -> Keyring {
    Keyring::new(ids.iter().map(|id| (u32::from(*id), Key::from_bytes([*id; 32]))).collect(), seals).unwrap()
}

pub fn fact(digest: u64) -> Fact {
    Fact { state: NodeState::Ready, held: false, schedulable: true, digest }
}

impl Sim {
    pub fn new(seed: u64, nodes: usize, config: Config) -> Self {
        let nodes: Vec<Node> = (0..nodes)
            .map(|n| Node {
                id: format!("n{n:03}").parse().unwrap(),
                addr: SocketAddr::from(([10, 0, (n / 250) as u8, (n % 250) as u8 + 1], 7946)),
                incarnation: 0,
                core: None,
                keys: keys(&[0], 0),
                news: Vec::new(),
            })
            .collect();
        let by_addr = nodes.iter().enumerate().map(|(n, node)| (node.addr, n)).collect();
        Self {
            now_ms: 1_000_000,
            nodes,
            config,
            loss_per_mille: 0,
            side: BTreeMap::new(),
            sent: 0,
            trace: 0,
            random: seed,
            order: 0,
            queue: BinaryHeap::new(),
            happenings: BTreeMap::new(),
            suspended: BTreeMap::new(),
            by_addr,
            strayed: Vec::new(),
        }
    }

    /// A cluster with all nodes started, each joining by the first three.
    pub fn up(seed: u64, nodes: usize, config: Config) -> Self {
        let mut sim = Self::new(seed, nodes, config);
        (0..nodes).for_each(|n| sim.start(n));
        sim
    }

    /// SplitMix64.
    fn random(&mut self, below: u64) -> u64 {
        self.random = self.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.random;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % below
    }

    /// Starts a node's next life, which joins by the first three.
    pub fn start(&mut self, n: usize) {
        self.start_by(n, &(0..self.nodes.len().min(3)).collect::<Vec<_>>());
    }

    /// Suspends a process until [`Sim::cont`]; events for it wait meanwhile.
    pub fn stop(&mut self, n: usize) {
        self.suspended.insert(n, Vec::new());
    }

    pub fn cont(&mut self, n: usize) {
        // Timers and datagrams come in random order, as from a `select`, which polls neither first.
        let mut waited = self.suspended.remove(&n).expect("it was stopped");
        while !waited.is_empty() {
            let next = self.random(waited.len().min(4) as u64) as usize;
            let happening = waited.remove(next);
            self.deliver(happening);
        }
    }

    /// Starts a node's next life, which joins by these nodes.
    pub fn start_by(&mut self, n: usize, seeds: &[usize]) {
        let seed = self.random(u64::MAX);
        let node = &mut self.nodes[n];
        node.incarnation += 1;
        let me = Identity { node: node.id.clone(), addr: node.addr, mesh: node.addr, incarnation: node.incarnation };
        node.core = Some(Core::new(me, self.config.clone(), &node.keys, "lab", seed));
        self.handle(n, Event::SetFact(fact(n as u64)));
        for seed_node in seeds {
            self.handle(n, Event::Join(self.nodes[*seed_node].addr));
        }
    }

    pub fn kill(&mut self, n: usize) {
        self.nodes[n].core = None;
    }

    /// Gives a node these keys.
    pub fn rekey(&mut self, n: usize, keys: &Keyring) {
        self.nodes[n].keys = keys.clone();
        self.handle(n, Event::SetKeys(keys));
    }

    pub fn core(&self, n: usize) -> &Core {
        self.nodes[n].core.as_ref().expect("it lives")
    }

    pub fn handle(&mut self, n: usize, event: Event<'_>) {
        let mut out = Vec::new();
        let node = &mut self.nodes[n];
        let (from, incarnation) = (node.addr, node.incarnation);
        let Some(core) = node.core.as_mut() else { return };
        core.handle(self.now_ms, event, &mut out);
        for output in out {
            match output {
                Output::Datagram { to, bytes } => {
                    assert!(bytes.len() <= self.config.packet_bytes_max);
                    self.sent += 1;
                    let head = bytes.iter().rev().take(8).fold(self.now_ms ^ u64::from(to.port()), |h, b| h.rotate_left(8) ^ u64::from(*b));
                    self.trace = self.trace.rotate_left(5).wrapping_add(head);
                    let lost = self.random(1_000) < self.loss_per_mille || self.side.get(&from) != self.side.get(&to);
                    let latency_ms = 1 + self.random(5);
                    if !lost {
                        self.after(latency_ms, Happening::Datagram { to, from, bytes });
                    }
                }
                Output::Timer { after_ms, token } => self.after(after_ms, Happening::Timer { node: n, incarnation, token }),
                Output::News(news) => self.nodes[n].news.push((self.now_ms, news)),
            }
        }
    }

    fn after(&mut self, ms: u64, what: Happening) {
        self.order += 1;
        self.happenings.insert(self.order, what);
        self.queue.push(Reverse((self.now_ms + ms, self.order)));
    }

    fn step(&mut self) {
        let Some(Reverse((at, order))) = self.queue.pop() else { return };
        self.now_ms = at;
        let happening = self.happenings.remove(&order).expect("each happens once");
        let node = match &happening {
            Happening::Datagram { to, .. } => self.by_addr.get(to).copied(),
            Happening::Timer { node, .. } => Some(*node),
        };
        match node.and_then(|n| self.suspended.get_mut(&n)) {
            Some(waiting) => waiting.push(happening),
            None => self.deliver(happening),
        }
    }

    fn deliver(&mut self, happening: Happening) {
        match happening {
            Happening::Datagram { to, from, bytes } => match self.by_addr.get(&to).copied() {
                Some(n) => self.handle(n, Event::Datagram { from, bytes: &bytes }),
                None => self.strayed.push((to, from, bytes)),
            },
            Happening::Timer { node, incarnation, token } => {
                if self.nodes[node].incarnation == incarnation {
                    self.handle(node, Event::Timer(token));
                }
            }
        }
    }

    pub fn run(&mut self, ms: u64) {
        let until = self.now_ms + ms;
        while self.queue.peek().is_some_and(|Reverse((at, _))| *at <= until) {
            self.step();
        }
        self.now_ms = until;
    }

    /// Runs until `done`, which is checked every 100 ms, and gives how long that took. Panics after
    /// `limit_ms`.
    pub fn run_until(&mut self, what: &str, limit_ms: u64, done: impl Fn(&Self) -> bool) -> u64 {
        let from = self.now_ms;
        while !done(self) {
            assert!(self.now_ms - from < limit_ms, "not within {limit_ms} ms: {what}\n{}", self.describe());
            self.run(100);
        }
        self.now_ms - from
    }

    pub fn living(&self) -> impl Iterator<Item = (usize, &Core)> {
        self.nodes.iter().enumerate().filter_map(|(n, node)| node.core.as_ref().map(|core| (n, core)))
    }

    /// Whether every living node sees exactly the living nodes as Alive, in their present lives.
    pub fn all_agree(&self) -> bool {
        let expected: BTreeSet<(&NodeId, u64)> = self.living().map(|(n, _)| (&self.nodes[n].id, self.nodes[n].incarnation)).collect();
        self.living().all(|(_, core)| {
            let members: Vec<_> = core.members().filter(|m| m.liveness == Liveness::Alive).collect();
            let seen: BTreeSet<(&NodeId, u64)> = members.iter().map(|m| (&m.node, m.incarnation)).collect();
            seen == expected
        })
    }

    /// Whether every node shows every node's fact.
    pub fn all_facts_known(&self) -> bool {
        self.living().all(|(_, core)| {
            self.living().all(|(n, other)| {
                let id = &self.nodes[n].id;
                core.member(id).and_then(|m| m.fact) == other.member(id).and_then(|m| m.fact)
            })
        })
    }

    pub fn downs(&self) -> usize {
        self.nodes.iter().flat_map(|node| &node.news).filter(|(_, news)| matches!(news, News::Down(_))).count()
    }

    /// The first few nodes whose view is not complete, with the counts of what they see.
    fn describe(&self) -> String {
        let (living, mut text) = (self.living().count(), String::new());
        for (n, core) in self.living() {
            let count = |l| core.members().filter(|m| m.liveness == l).count();
            let (alive, suspect, down) = (count(Liveness::Alive), count(Liveness::Suspect), count(Liveness::Down));
            let facts = core.members().filter(|m| m.fact.is_some()).count();
            if (alive != living || facts < living) && text.len() < 2_000 {
                let (id, counters) = (&self.nodes[n].id, core.counters());
                text += &format!("{id}: {alive} alive, {suspect} suspect, {down} down, {facts} facts, {counters:?}\n");
            }
        }
        text
    }
}

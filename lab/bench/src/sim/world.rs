//! The simulated machines, their gossip cores, and the network between them.

use super::scene::Scene;
use super::wheel::Wheel;
use lattice_gossip::{Config, Core, Event, Fact, Identity, Key, Keyring, Known, News, Output, Token};
use lattice_model::{NodeId, NodeState};
use std::collections::VecDeque;
use std::net::{Ipv4Addr, SocketAddr};

/// Least latency of a datagram. A random part of up to the same length is added, for the scheduling of the process.
const LATENCY_MS: u64 = 1;
/// Datagrams that the socket of a stopped agent holds: about a kernel's default.
const SOCKET_DATAGRAMS_MAX: usize = 256;
/// Each node starts with the addresses of this many first nodes.
const SEEDS: usize = 3;

/// One machine.
pub struct Node {
    pub core: Option<Core>,
    pub life: u64,
    /// The end of its process's latest stop.
    pub still_until_ms: u64,
    /// As `still_until_ms`, but also after a restart. `None`: the process was never stopped.
    pub was_still_ms: Option<u64>,
    timers: VecDeque<Token>,
    socket: VecDeque<(u32, Vec<u8>)>,
    second: u64,
    second_bytes: u64,
}

enum Happening {
    Datagram { to: u32, from: u32, bytes: Vec<u8> },
    Timer { node: u32, life: u64, token: Token },
    Runs { node: u32 },
}

/// The whole simulation.
pub struct World {
    pub now_ms: u64,
    pub nodes: Vec<Node>,
    /// News of the cores since the last observation: time, node, news.
    pub news: Vec<(u64, u32, News)>,
    /// The most bytes that one agent sent in one second, since this was last set to 0.
    pub peak_bytes: u64,
    pub sent_bytes: u64,
    pub datagrams: u64,
    /// A hash over the time, the receiver and the last bytes (of the authentication tag) of each datagram. Two runs with
    /// the same hash are the same run.
    pub trace: u64,
    config: Config,
    known: Known,
    keys: Keyring,
    wheel: Wheel<Happening>,
    random: u64,
    loss_per_million: u64,
    visitors: u64,
    out: Vec<Output>,
}

/// The name of a node by its number.
pub fn name(n: usize) -> NodeId {
    format!("nid{n:06}").parse().expect("letters and digits are a name")
}

/// The number of a node by its name.
pub fn number(node: &NodeId) -> usize {
    node.as_str().trim_start_matches("nid").parse().expect("all names here are from `name`")
}

fn addr(n: usize) -> SocketAddr {
    SocketAddr::from((Ipv4Addr::from(0x0a00_0001 + n as u32), 9402))
}

/// The fact that a node publishes; a change of a node changes `digest`.
pub fn fact(digest: u64) -> Fact {
    Fact { state: NodeState::Ready, held: false, schedulable: true, digest }
}

/// The key of every simulated cluster.
fn keys() -> Keyring {
    Keyring::configured(Key::from_bytes([7; 32]))
}

impl World {
    pub fn new(scene: &Scene) -> Self {
        let node = || Node {
            core: None,
            life: 0,
            still_until_ms: 0,
            was_still_ms: None,
            timers: VecDeque::new(),
            socket: VecDeque::new(),
            second: 0,
            second_bytes: 0,
        };
        let now_ms = 1_000_000;
        Self {
            now_ms,
            nodes: std::iter::repeat_with(node).take(scene.nodes).collect(),
            news: Vec::new(),
            peak_bytes: 0,
            sent_bytes: 0,
            datagrams: 0,
            trace: 0,
            config: Config::default(),
            known: Known::default(),
            keys: keys(),
            wheel: Wheel::new(now_ms),
            random: scene.seed,
            loss_per_million: scene.loss_per_million,
            visitors: 0,
            out: Vec::new(),
        }
    }

    /// SplitMix64.
    pub fn random(&mut self, below: u64) -> u64 {
        self.random = self.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.random;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % below
    }

    /// Starts a node's next life, with the addresses of the seed nodes.
    pub fn start(&mut self, n: usize) {
        let seed = self.random(u64::MAX);
        let life = self.nodes[n].life + 1;
        let me = Identity { node: name(n), addr: addr(n), mesh: addr(n), incarnation: life };
        let core = Core::with_known(me, self.config.clone(), &self.keys, "sim", seed, self.known.clone());
        let node = &mut self.nodes[n];
        (node.life, node.core, node.still_until_ms) = (life, Some(core), 0);
        self.handle(n, Event::SetFact(fact(0)));
        for seed_node in 0..SEEDS.min(self.nodes.len()) {
            self.handle(n, Event::Join(addr(seed_node)));
        }
    }

    /// Kills a node: it sends no farewell.
    pub fn kill(&mut self, n: usize) {
        let node = &mut self.nodes[n];
        node.core = None;
        node.timers.clear();
        node.socket.clear();
    }

    /// Stops a node's process for this long.
    pub fn stop(&mut self, n: usize, for_ms: u64) {
        let until_ms = self.now_ms + for_ms;
        self.nodes[n].still_until_ms = until_ms;
        self.nodes[n].was_still_ms = Some(until_ms);
        self.wheel.put(until_ms, Happening::Runs { node: n as u32 });
    }

    pub fn living(&self) -> impl Iterator<Item = (usize, &Core)> {
        self.nodes.iter().enumerate().filter_map(|(n, node)| node.core.as_ref().map(|core| (n, core)))
    }

    /// Runs all events up to `until_ms`.
    pub fn run(&mut self, until_ms: u64) {
        while let Some((at_ms, due)) = self.wheel.next(until_ms) {
            self.now_ms = at_ms;
            for happening in due {
                self.happen(happening);
            }
        }
        self.now_ms = until_ms;
    }

    fn happen(&mut self, happening: Happening) {
        let now_ms = self.now_ms;
        match happening {
            Happening::Datagram { to, from, bytes } => {
                let node = &mut self.nodes[to as usize];
                if node.core.is_none() {
                    return;
                }
                if now_ms < node.still_until_ms {
                    if node.socket.len() < SOCKET_DATAGRAMS_MAX {
                        node.socket.push_back((from, bytes));
                    }
                    return;
                }
                self.handle(to as usize, Event::Datagram { from: addr(from as usize), bytes: &bytes });
            }
            Happening::Timer { node: n, life, token } => {
                let node = &mut self.nodes[n as usize];
                if node.life != life || node.core.is_none() {
                    return;
                }
                if now_ms < node.still_until_ms {
                    node.timers.push_back(token);
                    return;
                }
                self.handle(n as usize, Event::Timer(token));
            }
            Happening::Runs { node } => self.catch_up(node as usize),
        }
    }

    /// A process that runs again handles its waiting timers and datagrams: each kind in order, both mixed at random.
    fn catch_up(&mut self, n: usize) {
        loop {
            let node = &mut self.nodes[n];
            let (timers, datagrams) = (node.timers.len(), node.socket.len());
            if timers + datagrams == 0 {
                return;
            }
            if datagrams == 0 || (timers > 0 && self.random(2) == 0) {
                if let Some(token) = self.nodes[n].timers.pop_front() {
                    self.handle(n, Event::Timer(token));
                }
            } else if let Some((from, bytes)) = self.nodes[n].socket.pop_front() {
                self.handle(n, Event::Datagram { from: addr(from as usize), bytes: &bytes });
            }
        }
    }

    pub fn handle(&mut self, n: usize, event: Event<'_>) {
        let mut out = std::mem::take(&mut self.out);
        let Some(core) = self.nodes[n].core.as_mut() else { return };
        core.handle(self.now_ms, event, &mut out);
        for output in out.drain(..) {
            match output {
                Output::Datagram { to, bytes } => self.send(n, to, bytes),
                Output::Timer { after_ms, token } => {
                    let life = self.nodes[n].life;
                    self.wheel.put(self.now_ms + after_ms, Happening::Timer { node: n as u32, life, token });
                }
                Output::News(news) => self.news.push((self.now_ms, n as u32, news)),
            }
        }
        self.out = out;
    }

    fn send(&mut self, from: usize, to: SocketAddr, bytes: Vec<u8>) {
        let SocketAddr::V4(to) = to else { return };
        let to = u32::from(*to.ip()).wrapping_sub(0x0a00_0001);
        self.datagrams += 1;
        self.sent_bytes += bytes.len() as u64;
        let tail = bytes.iter().rev().take(8).fold(u64::from(to), |hash, byte| hash.rotate_left(8) ^ u64::from(*byte));
        self.trace = self.trace.rotate_left(5).wrapping_add(tail ^ self.now_ms);
        let (second, sender) = (self.now_ms / 1_000, &mut self.nodes[from]);
        if sender.second != second {
            (sender.second, sender.second_bytes) = (second, 0);
        }
        sender.second_bytes += bytes.len() as u64;
        self.peak_bytes = self.peak_bytes.max(sender.second_bytes);
        let lost = self.loss_per_million > 0 && self.random(1_000_000) < self.loss_per_million;
        let after_ms = LATENCY_MS + self.random(LATENCY_MS + 1);
        if !lost && (to as usize) < self.nodes.len() {
            self.wheel.put(self.now_ms + after_ms, Happening::Datagram { to, from: from as u32, bytes });
        }
    }

    /// The memory, in bytes, of a new agent that shares nothing with the others and to which `host` sends all that it knows.
    /// 0 if it did not get everything.
    pub fn memory_of_one(&mut self, host: usize) -> u64 {
        let visitor = addr(self.nodes.len());
        self.visitors += 1;
        let me = Identity { node: name(self.nodes.len()), addr: visitor, mesh: visitor, incarnation: self.visitors };
        let seed = self.random(u64::MAX);
        let Some(mut host_core) = self.nodes[host].core.take() else { return 0 };
        let before = super::memory::allocated_bytes();
        let mut core = Core::new(me, self.config.clone(), &self.keys, "sim", seed);
        let mut waiting: VecDeque<(bool, Vec<u8>)> = VecDeque::new();
        let mut out = Vec::new();
        let (now_ms, host_addr) = (self.now_ms, addr(host));
        core.handle(now_ms, Event::SetFact(fact(0)), &mut out);
        core.handle(now_ms, Event::Join(host_addr), &mut out);
        let mut to_host = true;
        loop {
            for output in out.drain(..) {
                if let Output::Datagram { to, bytes } = output
                    && to == if to_host { host_addr } else { visitor }
                {
                    waiting.push_back((to_host, bytes));
                }
            }
            let Some((for_host, bytes)) = waiting.pop_front() else { break };
            let (from, receiver) = if for_host { (visitor, &mut host_core) } else { (host_addr, &mut core) };
            receiver.handle(now_ms, Event::Datagram { from, bytes: &bytes }, &mut out);
            to_host = !for_host;
        }
        drop((waiting, out));
        let used = super::memory::allocated_bytes().saturating_sub(before);
        let complete = core.alive() + 1 >= self.living().count();
        self.nodes[host].core = Some(host_core);
        if complete { used } else { 0 }
    }
}

//! `lattice-lab sim fence`: one fence of a launch on thousands of nodes, in virtual time, with the agents' real tree and
//! hubs.
//!
//! ```text
//!   ranks ──▶ shim ──▶ agent ──▶ parent agent ──▶ … ──▶ head agent: all ranks have arrived
//!   ranks ◀── shim ◀── agent ◀── parent agent ◀── … ◀──────┘
//! ```
//!
//! All ranks arrive at once. A link carries one message at a time in each direction, and a message is forwarded once it
//! has arrived completely. An agent handles one message at a time, and so does a shim. Not simulated: packets and their
//! headers, losses, other traffic, switches between the links, and compression by the head.

use anyhow::Result;
use lattice_pmi::{
    BLOB_BYTES_MAX, Contributed, FANOUT_MAX, FANOUT_MIN, FenceHub, FenceMerged, FenceRefused, KEYS_MAX, Subtree, fanout_for,
};
use std::collections::BTreeMap;
use std::fmt::Write as _;

/// Bytes of a pair in addition to its key and value.
const RECORD_BYTES: u64 = 4;
/// Limit of the bytes that an agent receives, in multiples of the contributions of all ranks together.
const RECEIVED_MAX: f64 = 1.1;

/// The options of `sim fence`.
#[derive(Clone, Debug, clap::Args)]
pub struct Options {
    /// Number of nodes of the launch; several numbers are simulated one after the other
    #[arg(long, value_delimiter = ',', default_values_t = [10_000], value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub nodes: Vec<u32>,
    /// Ranks on each node
    #[arg(long, default_value_t = 128, value_parser = clap::value_parser!(u32).range(1..=4096))]
    pub ranks: u32,
    /// Bytes of keys and values that each rank contributes: at least 41 with Open MPI, 448 with MPICH
    #[arg(long, default_value_t = 41, value_parser = clap::value_parser!(u32).range(0..=65_536))]
    pub bytes: u32,
    /// Keys of each rank that shims parse; 0 with PMIx, whose data shims do not parse
    #[arg(long, default_value_t = 0, value_parser = clap::value_parser!(u32).range(0..=64))]
    pub keys: u32,
    /// Further fan-outs to simulate
    #[arg(long, value_delimiter = ',', default_values_t = [2, 16, 32, 64], value_parser = clap::value_parser!(u32).range(i64::from(FANOUT_MIN)..=i64::from(FANOUT_MAX)))]
    pub fanout: Vec<u32>,
    #[command(flatten)]
    pub costs: Costs,
    /// Print the figures as JSON
    #[arg(long)]
    pub json: bool,
}

/// The simulated costs.
#[derive(Clone, Debug, clap::Args)]
pub struct Costs {
    /// Latency of a link between two agents, in microseconds
    #[arg(long, default_value_t = 50)]
    pub link_us: u32,
    /// Gbit/s of an agent's link in each direction, and of the socket between agent and shim
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub gbit: u32,
    /// Microseconds of processor time of an agent for each message that it sends or receives
    #[arg(long, default_value_t = 20)]
    pub message_us: u32,
    /// Nanoseconds of processor time of a shim for each rank's request, and again for its answer
    #[arg(long, default_value_t = 5_000)]
    pub rank_ns: u32,
    /// Nanoseconds of processor time of a shim for each key-value pair of the whole launch
    #[arg(long, default_value_t = 500)]
    pub pair_ns: u32,
}

/// The parameters of a simulated fence.
#[derive(Clone, Debug)]
struct Scene {
    nodes: u32,
    ranks: u32,
    bytes: u32,
    keys: u32,
    fanout: u32,
    costs: Costs,
}

impl Scene {
    fn node_bytes(&self) -> u64 {
        u64::from(self.ranks) * (u64::from(self.bytes) + RECORD_BYTES * u64::from(self.keys))
    }

    fn data_bytes(&self) -> u64 {
        u64::from(self.nodes) * self.node_bytes()
    }

    fn pairs(&self) -> u64 {
        u64::from(self.nodes) * u64::from(self.ranks) * u64::from(self.keys)
    }

    /// How long a link needs for this many bytes.
    fn wire_ns(&self, bytes: u64) -> u64 {
        bytes * 8 / u64::from(self.costs.gbit)
    }
}

/// The result of a fence.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Done {
    /// Time until the last rank has its answer.
    took_ns: u64,
    /// Bytes that one agent received and sent at most. The socket between agent and shim is not counted.
    received_bytes: u64,
    sent_bytes: u64,
    /// The merged contributions, which every shim gets.
    blob: Vec<u8>,
}

/// One agent, and the shim beside it.
struct Agent {
    hub: FenceHub,
    subtree: Subtree,
    parent: Option<u32>,
    /// When its processor and each direction of its link become free.
    free_ns: u64,
    sends_until_ns: u64,
    receives_until_ns: u64,
    received_bytes: u64,
    sent_bytes: u64,
}

impl Agent {
    fn new(subtree: Subtree, parent: Option<u32>) -> Self {
        let hub = FenceHub::new(subtree);
        Self { hub, subtree, parent, free_ns: 0, sends_until_ns: 0, receives_until_ns: 0, received_bytes: 0, sent_bytes: 0 }
    }
}

/// Messages to an agent.
enum Message {
    /// From a child or its own shim: the contributions of this subtree.
    Up(Subtree, Vec<u8>),
    /// From the parent: the merged fence, with this many bytes.
    Down(u64),
}

impl Message {
    fn bytes(&self) -> u64 {
        match self {
            Self::Up(_, blob) => blob.len() as u64,
            Self::Down(bytes) => *bytes,
        }
    }
}

enum Event {
    /// The first bit of the message reaches the agent's link.
    Arrives(Message),
    /// The agent has received the whole message.
    Received(Message),
}

struct World<'a> {
    scene: &'a Scene,
    agents: Vec<Agent>,
    /// By time, and then in the order in which they were added.
    events: BTreeMap<(u64, u64), (u32, Event)>,
    put: u64,
    answered_ns: u64,
    blob: Vec<u8>,
}

impl<'a> World<'a> {
    fn new(scene: &'a Scene) -> Self {
        let mut agents: Vec<Option<Agent>> = (0..scene.nodes).map(|_| None).collect();
        let mut open = vec![(Subtree::whole(scene.nodes), None)];
        while let Some((subtree, parent)) = open.pop() {
            open.extend(subtree.children(scene.fanout).map(|child| (child, Some(subtree.first))));
            agents[subtree.first as usize] = Some(Agent::new(subtree, parent));
        }
        let agents = agents.into_iter().map(|agent| agent.expect("every part is served once")).collect();
        Self { scene, agents, events: BTreeMap::new(), put: 0, answered_ns: 0, blob: Vec::new() }
    }

    fn put(&mut self, at_ns: u64, part: u32, event: Event) {
        self.put += 1;
        self.events.insert((at_ns, self.put), (part, event));
    }

    /// Adds the handling of one message to an agent's processor. Returns when it is done.
    fn work(&mut self, part: u32, from_ns: u64) -> u64 {
        let agent = &mut self.agents[part as usize];
        agent.free_ns = agent.free_ns.max(from_ns) + u64::from(self.scene.costs.message_us) * 1000;
        agent.free_ns
    }

    fn send(&mut self, from: u32, to: u32, at_ns: u64, message: Message) {
        let ready_ns = self.work(from, at_ns);
        let agent = &mut self.agents[from as usize];
        let begins_ns = agent.sends_until_ns.max(ready_ns);
        agent.sends_until_ns = begins_ns + self.scene.wire_ns(message.bytes());
        agent.sent_bytes += message.bytes();
        self.put(begins_ns + u64::from(self.scene.costs.link_us) * 1000, to, Event::Arrives(message));
    }

    fn run(mut self) -> Result<Done, FenceRefused> {
        for part in 0..self.scene.nodes {
            let bytes = self.scene.node_bytes();
            let mark = part.to_le_bytes()[0];
            let blob = vec![mark; usize::try_from(bytes).unwrap_or(usize::MAX)];
            let at_ns = u64::from(self.scene.ranks) * u64::from(self.scene.costs.rank_ns) + self.scene.wire_ns(bytes);
            self.put(at_ns, part, Event::Received(Message::Up(Subtree::single(part), blob)));
        }
        while let Some(((at_ns, _), (part, event))) = self.events.pop_first() {
            match event {
                Event::Arrives(message) => {
                    let took_ns = self.scene.wire_ns(message.bytes());
                    let agent = &mut self.agents[part as usize];
                    agent.receives_until_ns = agent.receives_until_ns.max(at_ns) + took_ns;
                    agent.received_bytes += message.bytes();
                    let received_ns = agent.receives_until_ns;
                    self.put(received_ns, part, Event::Received(message));
                }
                Event::Received(Message::Up(from, blob)) => {
                    let now_ns = self.work(part, at_ns);
                    self.contribute(part, now_ns, from, blob)?;
                }
                Event::Received(Message::Down(bytes)) => {
                    let now_ns = self.work(part, at_ns);
                    self.send_down(part, now_ns, bytes);
                }
            }
        }
        let most = |of: fn(&Agent) -> u64| self.agents.iter().map(of).max().unwrap_or(0);
        let (received_bytes, sent_bytes) = (most(|a| a.received_bytes), most(|a| a.sent_bytes));
        Ok(Done { took_ns: self.answered_ns, received_bytes, sent_bytes, blob: self.blob })
    }

    fn contribute(&mut self, part: u32, now_ns: u64, from: Subtree, blob: Vec<u8>) -> Result<(), FenceRefused> {
        let agent = &mut self.agents[part as usize];
        let FenceMerged { blob, .. } = match agent.hub.contribute(from, 1, blob)? {
            Contributed::Whole(merged) => merged,
            Contributed::Waits | Contributed::Before => return Ok(()),
        };
        let subtree = agent.subtree;
        match agent.parent {
            Some(parent) => self.send(part, parent, now_ns, Message::Up(subtree, blob)),
            None => {
                let bytes = blob.len() as u64;
                self.blob = blob;
                self.send_down(part, now_ns, bytes);
            }
        }
        Ok(())
    }

    /// An agent sends the merged fence to its shim, and to all agents below it.
    fn send_down(&mut self, part: u32, now_ns: u64, bytes: u64) {
        let costs = &self.scene.costs;
        let shim_ns = self.scene.pairs() * u64::from(costs.pair_ns) + u64::from(self.scene.ranks) * u64::from(costs.rank_ns);
        let handled_ns = self.work(part, now_ns);
        self.answered_ns = self.answered_ns.max(handled_ns + self.scene.wire_ns(bytes) + shim_ns);
        let children: Vec<u32> = self.agents[part as usize].subtree.children(self.scene.fanout).map(|child| child.first).collect();
        for child in children {
            self.send(part, child, handled_ns, Message::Down(bytes));
        }
    }
}

/// Simulates one fence. An error is the refusal of a shim or a hub.
fn simulate(scene: &Scene) -> Result<Done, String> {
    if scene.pairs() > KEYS_MAX as u64 {
        return Err(format!("the ranks put {} keys, and a launch may have at most {KEYS_MAX}", scene.pairs()));
    }
    World::new(scene).run().map_err(|refused| refused.describe(|from| format!("node {}", from.first)))
}

/// Simulates, and prints the results. Returns whether each fence with the default fan-out of its size was accepted, and
/// whether no agent in it received more than the limit.
pub fn run(options: &Options) -> Result<bool> {
    let mut is_met = true;
    let mut text = String::new();
    let mut rows = Vec::new();
    for nodes in &options.nodes {
        let own = fanout_for(*nodes);
        let mut fanouts: Vec<u32> = options.fanout.iter().copied().chain([own]).collect();
        fanouts.sort_unstable();
        fanouts.dedup();
        let Options { ranks, bytes, keys, ref costs, .. } = *options;
        let scene = |fanout| Scene { nodes: *nodes, ranks, bytes, keys, fanout, costs: costs.clone() };
        head(&mut text, &scene(own));
        for fanout in fanouts {
            let scene = scene(fanout);
            let done = simulate(&scene);
            is_met &= fanout != own || done.as_ref().is_ok_and(|done| within(&scene, done));
            row(&mut text, &scene, &done);
            rows.push(json(&scene, &done));
        }
    }
    if options.json {
        println!("{}", serde_json::to_string_pretty(&rows)?);
    } else {
        print!("{text}");
    }
    Ok(is_met)
}

fn within(scene: &Scene, done: &Done) -> bool {
    done.received_bytes as f64 <= RECEIVED_MAX * scene.data_bytes() as f64
}

fn head(text: &mut String, scene: &Scene) {
    let Scene { nodes, ranks, bytes, costs, .. } = scene;
    let Costs { link_us, gbit, message_us, rank_ns, pair_ns } = costs;
    let data = scene.data_bytes() as f64 / 1e6;
    let _ = writeln!(text, "{nodes} nodes of {ranks} ranks with {bytes} bytes each: {data:.3} MB; links of {link_us} µs and {gbit} Gbit/s");
    let _ = writeln!(text, "an agent's message {message_us} µs; of a shim: a rank {rank_ns} ns each way, a pair {pair_ns} ns");
    let _ = writeln!(text, "{:>8} {:>6} {:>12} {:>16} {:>16}", "fan-out", "depth", "time", "received by one", "sent by one");
}

fn row(text: &mut String, scene: &Scene, done: &Result<Done, String>) {
    let own = if scene.fanout == fanout_for(scene.nodes) { "*" } else { "" };
    let _ = write!(text, "{:>8} {:>6} ", format!("{own}{}", scene.fanout), Subtree::whole(scene.nodes).depth(scene.fanout));
    let _ = match done {
        Err(why) => writeln!(text, "refused: {why}"),
        Ok(done) => {
            let data = scene.data_bytes();
            let times = |bytes: u64| if data == 0 { "-".to_owned() } else { format!("{:.3} ×", bytes as f64 / data as f64) };
            let (time, received, sent) = (done.took_ns as f64 / 1e6, times(done.received_bytes), times(done.sent_bytes));
            let verdict = match (own, within(scene, done)) {
                ("", _) => "",
                _ if data == 0 => "",
                (_, true) => "  received at most 1.1 ×: met",
                (_, false) => "  received at most 1.1 ×: MISSED",
            };
            writeln!(text, "{:>12} {received:>16} {sent:>16}{verdict}", format!("{time:.3} ms"))
        }
    };
}

fn json(scene: &Scene, done: &Result<Done, String>) -> serde_json::Value {
    let mut value = serde_json::json!({
        "nodes": scene.nodes, "ranks_per_node": scene.ranks, "data_bytes": scene.data_bytes(), "data_bytes_max": BLOB_BYTES_MAX,
        "fanout": scene.fanout, "by_size": scene.fanout == fanout_for(scene.nodes), "depth": Subtree::whole(scene.nodes).depth(scene.fanout),
    });
    match done {
        Ok(done) => {
            value["ms"] = serde_json::json!(done.took_ns as f64 / 1e6);
            value["received_bytes_max"] = done.received_bytes.into();
            value["sent_bytes_max"] = done.sent_bytes.into();
        }
        Err(why) => value["refused"] = why.as_str().into(),
    }
    value
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scene(nodes: u32, fanout: u32) -> Scene {
        // At 10 Gbit/s a node's 1250 bytes take 1 µs.
        let costs = Costs { link_us: 50, gbit: 10, message_us: 20, rank_ns: 5_000, pair_ns: 500 };
        Scene { nodes, ranks: 1, bytes: 1246, keys: 1, fanout, costs }
    }

    #[test]
    fn two_nodes_take_the_time_that_is_calculated_by_hand() {
        let done = simulate(&scene(2, 16)).unwrap();
        // In µs. Each agent receives the contribution of its own rank: 5 the rank, 1 the socket, 20 the agent.
        let own = 5 + 1 + 20;
        // The second agent forwards it: 20 to send, 50 latency, 1 the bytes, 20 to receive.
        let up = 20 + 50 + 1 + 20;
        // The head sends to its shim: 20. Then it sends to the second agent: 20 to send, 50 latency, 2 the bytes of both
        // nodes, 20 to receive.
        let down = 20 + 20 + 50 + 2 + 20;
        // That agent sends to its shim: 20 to send, 2 the socket, 1 two pairs, 5 the rank.
        let answer = 20 + 2 + 1 + 5;
        assert_eq!(done.took_ns, (own + up + down + answer) * 1000);
        assert_eq!((done.received_bytes, done.sent_bytes), (2 * 1250, 2 * 1250));
        assert_eq!(done.blob, [[0; 1250], [1; 1250]].concat());
    }

    #[test]
    fn one_node_sends_nothing() {
        let done = simulate(&scene(1, 16)).unwrap();
        // The rank, the socket, the agent receives and sends, the socket, one pair, the answer.
        assert_eq!((done.took_ns, done.received_bytes, done.sent_bytes), (5_000 + 1_000 + 40_000 + 1_000 + 500 + 5_000, 0, 0));
    }

    #[test]
    fn bytes_of_each_agent_follow_from_the_tree() {
        // 0 ─┬─ 1 ─┬─ 2
        //    │     ╰─ 3
        //    ╰─ 4 ─┬─ 5
        //          ╰─ 6
        let (two, star) = (simulate(&scene(7, 2)).unwrap(), simulate(&scene(7, 6)).unwrap());
        let expected: Vec<u8> = (0..7).flat_map(|part| [part; 1250]).collect();
        assert_eq!((&two.blob, &star.blob), (&expected, &expected));
        // An inner agent has the most: it receives two contributions and all seven, and sends three and twice all seven.
        assert_eq!((two.received_bytes, two.sent_bytes), (9 * 1250, 2 * 7 * 1250 + 3 * 1250));
        assert_eq!((star.received_bytes, star.sent_bytes), (7 * 1250, 6 * 7 * 1250));
    }

    #[test]
    fn too_many_keys_and_too_many_bytes_are_refused() {
        let keys = Scene { nodes: 10_000, ranks: 128, ..scene(1, 22) };
        assert!(simulate(&keys).unwrap_err().contains("1280000 keys"));
        let bytes = Scene { ranks: 64, bytes: 512 * 1024, keys: 0, ..scene(2, 16) };
        let why = simulate(&bytes).unwrap_err();
        assert!(why.contains(&format!("{} bytes, more than the {BLOB_BYTES_MAX} allowed", 64 * 1024 * 1024)), "{why}");
    }
}

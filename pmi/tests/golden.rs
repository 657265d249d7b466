//! Transcripts of PMI conversations, played against one server per node and the hub of their
//! launch.
//!
//! `nodes 2 1` starts a launch: 2 ranks on the first node, 1 on the second. `rank R` selects the
//! rank for the following lines: `> ` is sent by the rank, `< ` is the next line to it (`<
//! (nothing)`: none so far), `close`, `exit code`. `>>` and `<<` are the same for PMI-2 messages,
//! without their lengths. `! code why` is the launch's abort, `~` is the rank's `LastCommand` action.
//! At the end, or before another launch starts, no output may be left unread.

use lattice_model::NodeRanks;
use lattice_model::layout::RankRun;
use lattice_pmi::{Action, Contributed, Event, FenceHub, Job, Server, Subtree, process_mapping};
use proptest::prelude::*;
use std::collections::{BTreeMap, VecDeque};

const TRANSCRIPTS: [(&str, &str); 32] = [
    ("one_node", include_str!("golden/one_node.txt")),
    ("two_nodes", include_str!("golden/two_nodes.txt")),
    ("refusals", include_str!("golden/refusals.txt")),
    ("names", include_str!("golden/names.txt")),
    ("by_port", include_str!("golden/by_port.txt")),
    ("by_anothers_port", include_str!("golden/by_anothers_port.txt")),
    ("abort", include_str!("golden/abort.txt")),
    ("death_in_mpi", include_str!("golden/death_in_mpi.txt")),
    ("death_codes", include_str!("golden/death_codes.txt")),
    ("close_in_fence", include_str!("golden/close_in_fence.txt")),
    ("ordinary_program", include_str!("golden/ordinary_program.txt")),
    ("absent_early", include_str!("golden/absent_early.txt")),
    ("absent_late", include_str!("golden/absent_late.txt")),
    ("finalized_early", include_str!("golden/finalized_early.txt")),
    ("pmi2", include_str!("golden/pmi2.txt")),
    ("pmi2_two_nodes", include_str!("golden/pmi2_two_nodes.txt")),
    ("pmi2_attributes", include_str!("golden/pmi2_attributes.txt")),
    ("pmi2_attribute_of_nobody", include_str!("golden/pmi2_attribute_of_nobody.txt")),
    ("pmi2_names", include_str!("golden/pmi2_names.txt")),
    ("pmi2_refusals", include_str!("golden/pmi2_refusals.txt")),
    ("pmi2_ring", include_str!("golden/pmi2_ring.txt")),
    ("pmi2_ring_and_fence", include_str!("golden/pmi2_ring_and_fence.txt")),
    ("pmi2_threads", include_str!("golden/pmi2_threads.txt")),
    ("pmi2_abort", include_str!("golden/pmi2_abort.txt")),
    ("pmi2_death", include_str!("golden/pmi2_death.txt")),
    ("pmi2_out_of_turn", include_str!("golden/pmi2_out_of_turn.txt")),
    ("pmi2_garbage", include_str!("golden/pmi2_garbage.txt")),
    ("unknown_version", include_str!("golden/unknown_version.txt")),
    ("garbage", include_str!("golden/garbage.txt")),
    ("unknown_command", include_str!("golden/unknown_command.txt")),
    ("out_of_turn", include_str!("golden/out_of_turn.txt")),
    ("before_init", include_str!("golden/before_init.txt")),
];

struct Stage {
    parts: Vec<NodeRanks>,
    servers: Vec<Server>,
    hub: FenceHub,
    /// What was sent to each rank and is not read yet.
    inboxes: BTreeMap<u32, VecDeque<u8>>,
    aborts: VecDeque<(i32, String)>,
    last_commands: VecDeque<u32>,
}

impl Stage {
    fn new(counts: &[u32]) -> Self {
        let mut first = 0;
        let mut parts = Vec::new();
        for (i, &count) in counts.iter().enumerate() {
            parts.push(NodeRanks { node: format!("n{i}").parse().unwrap(), first, count });
            first += count;
        }
        let runs: Vec<_> = parts.iter().enumerate().map(|(node, part)| RankRun { node, first: part.first, count: part.count }).collect();
        let mapping = process_mapping(&runs);
        let job = |(at, part): (u32, &NodeRanks)| Job {
            number: 7,
            kvsname: "kvs_7".into(),
            size: first,
            first: part.first,
            count: part.count,
            ranks: vec![],
            appnums: vec![],
            mapping: mapping.clone(),
            part: at,
            nodes: parts.iter().map(|part| part.node.clone()).collect(),
            runs: runs.clone(),
        };
        let servers = (0..).zip(&parts).map(|part| Server::new(job(part))).collect();
        Self {
            hub: FenceHub::new(Subtree::whole(u32::try_from(parts.len()).unwrap())),
            parts,
            servers,
            inboxes: BTreeMap::new(),
            aborts: VecDeque::new(),
            last_commands: VecDeque::new(),
        }
    }

    fn place(&self, rank: u32) -> (usize, u32) {
        let node = self.parts.iter().position(|part| (part.first..part.first + part.count).contains(&rank)).expect("a rank of the job");
        (node, rank - self.parts[node].first)
    }

    fn handle(&mut self, node: usize, event: Event<'_>) {
        let mut out = Vec::new();
        self.servers[node].handle(event, &mut out);
        for action in out {
            match action {
                Action::Send { local, bytes } => self.inboxes.entry(self.parts[node].first + local).or_default().extend(bytes),
                Action::LastCommand { local } => self.last_commands.push_back(self.parts[node].first + local),
                Action::Call(call) => self.handle(call.to as usize, Event::Called(&call)),
                Action::Abort { code, why } => self.aborts.push_back((code, why)),
                Action::Fence { number, blob } => {
                    assert!(self.servers.len() > 1, "a launch on one node needs no head");
                    let node = u32::try_from(node).unwrap();
                    if let Contributed::Whole(merged) = self.hub.contribute(Subtree::single(node), number, blob).unwrap() {
                        for other in 0..self.servers.len() {
                            self.handle(other, Event::FenceDone { number: merged.number, blob: &merged.blob });
                        }
                    }
                }
            }
        }
    }

    fn read_line(&mut self, rank: u32) -> Option<String> {
        let inbox = self.inboxes.get_mut(&rank)?;
        let end = inbox.iter().position(|byte| *byte == b'\n')?;
        let line: Vec<u8> = inbox.drain(..=end).collect();
        Some(String::from_utf8(line[..end].to_vec()).unwrap())
    }

    fn read_message(&mut self, rank: u32) -> Option<String> {
        let inbox = self.inboxes.get_mut(&rank).filter(|inbox| !inbox.is_empty())?;
        let header: Vec<u8> = inbox.drain(..6).collect();
        let length: usize = String::from_utf8(header).unwrap().trim().parse().unwrap();
        Some(String::from_utf8(inbox.drain(..length).collect()).unwrap())
    }

    fn write(&mut self, rank: u32, bytes: &[u8], split: &mut impl FnMut() -> usize) {
        let (node, local) = self.place(rank);
        let mut left = bytes;
        while !left.is_empty() {
            let (data, later) = left.split_at(split().clamp(1, left.len()));
            self.handle(node, Event::Bytes { local, data });
            left = later;
        }
    }

    fn finish(self, at: &str) {
        assert_eq!(self.aborts, [], "{at}: aborts nobody expected");
        assert_eq!(self.last_commands, [], "{at}: last commands nobody expected");
        for (rank, inbox) in self.inboxes {
            let left = inbox.into_iter().collect::<Vec<_>>();
            assert!(left.is_empty(), "{at}: rank {rank} was sent more: {:?}", String::from_utf8_lossy(&left));
        }
    }
}

/// Plays a transcript; `split` determines how many bytes of a rank's output arrive at once.
fn play(name: &str, transcript: &str, mut split: impl FnMut() -> usize) {
    let mut stage = Stage::new(&[]);
    let mut rank = u32::MAX;
    for (number, line) in (1..).zip(transcript.lines()) {
        let at = format!("{name}.txt:{number}: {line}");
        let (word, rest) = line.split_once(' ').unwrap_or((line, ""));
        match word {
            "#" => {}
            "nodes" => {
                stage.finish(&at);
                stage = Stage::new(&rest.split(' ').map(|count| count.parse().expect(&at)).collect::<Vec<_>>());
            }
            "rank" => rank = rest.parse().expect(&at),
            ">" => stage.write(rank, format!("{rest}\n").as_bytes(), &mut split),
            ">>" => stage.write(rank, format!("{:6}{rest}", rest.len()).as_bytes(), &mut split),
            "<" => assert_eq!(stage.read_line(rank).as_deref().unwrap_or("(nothing)"), rest, "{at}"),
            "<<" => assert_eq!(stage.read_message(rank).as_deref().unwrap_or("(nothing)"), rest, "{at}"),
            "~" => assert_eq!(stage.last_commands.pop_front(), Some(rank), "{at}"),
            "!" => {
                let (code, why) = rest.split_once(' ').expect(&at);
                assert_eq!(stage.aborts.pop_front(), Some((code.parse().expect(&at), why.to_owned())), "{at}");
            }
            "close" => {
                let (node, local) = stage.place(rank);
                stage.handle(node, Event::Closed { local });
            }
            "exit" => {
                let (node, local) = stage.place(rank);
                stage.handle(node, Event::Exited { local, code: rest.parse().expect(&at) });
            }
            _ => panic!("{at}: not a transcript's line"),
        }
    }
    stage.finish(name);
}

#[test]
fn transcripts_are_played_as_written() {
    for (name, transcript) in TRANSCRIPTS {
        play(name, transcript, || usize::MAX);
    }
}

#[test]
fn bytes_may_come_one_by_one() {
    for (name, transcript) in TRANSCRIPTS {
        play(name, transcript, || 1);
    }
}

proptest! {
    #[test]
    fn fragmentation_does_not_matter(pieces in prop::collection::vec(1..30usize, 1..50)) {
        for (name, transcript) in TRANSCRIPTS {
            let mut pieces = pieces.iter().copied().cycle();
            play(name, transcript, || pieces.next().unwrap());
        }
    }
}

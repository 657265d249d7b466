//! What a rank learns about its launch: numbers, names, and which ranks share a node.

use crate::wire::MAPPING_BYTES_MAX;
use lattice_model::NodeId;
use lattice_model::layout::RankRun;
use std::collections::BTreeMap;
use std::fmt::Write as _;

/// One launch from the viewpoint of one node's [`Server`](crate::Server).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Job {
    /// `PMI_JOBID`: the launch's number within its allocation.
    pub number: u32,
    /// Name of the key-value space: no blanks, at most 256 bytes, the same on every node.
    pub kvsname: String,
    /// Number of ranks in the whole launch.
    pub size: u32,
    /// The lowest global rank on this node.
    pub first: u32,
    /// Number of ranks on this node.
    pub count: u32,
    /// Their global ranks, ascending; empty: `first .. first + count`.
    pub ranks: Vec<u32>,
    /// For each of them, the index (from 0) of its program; empty: the launch has one program.
    pub appnums: Vec<u32>,
    /// The value of `PMI_process_mapping`, from [`process_mapping`].
    pub mapping: String,
    /// The index of this node in `nodes`.
    pub part: u32,
    /// The nodes, in the order that `runs` refers to.
    pub nodes: Vec<NodeId>,
    /// All ranks in order.
    pub runs: Vec<RankRun>,
}

/// How a rank connects to its server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PmiConnection {
    /// By an inherited socket with this descriptor.
    Inherited(i32),
    /// By a port reserved for this rank, on the loopback interface.
    Port(u16),
}

impl Job {
    /// The global number of a local rank.
    pub fn rank(&self, local: u32) -> u32 {
        self.ranks.get(local as usize).copied().unwrap_or(self.first.saturating_add(local))
    }

    /// The index of the program that a local rank runs.
    pub fn appnum(&self, local: u32) -> u32 {
        self.appnums.get(local as usize).copied().unwrap_or(0)
    }
}

/// Which ranks are on which node, in MPICH's format: `(vector,(first node, nodes, ranks on
/// each),…)`, for instance `(vector,(0,2,2),(2,1,1))` for 2, 2 and 1 ranks on three nodes,
/// `(vector,(0,2,1),(0,2,1))` for 4 ranks dealt to two nodes in turn.
///
/// `runs` are all ranks in order. The reader repeats the blocks while ranks are left. This is used
/// if all blocks together would exceed the size of a value: a cyclic distribution is sent as its
/// repeating part. If that is still too long, no mapping is sent, and MPICH compares the host names
/// of its ranks instead. Source: the comments and the reader of `MPIR_NODEMAP` in MPICH.
pub fn process_mapping(runs: &[RankRun]) -> String {
    let whole = written(runs);
    if whole.len() <= MAPPING_BYTES_MAX { whole } else { written(&runs[..period(runs)]) }
}

fn written(runs: &[RankRun]) -> String {
    struct Block {
        node: usize,
        nodes: usize,
        ranks: u32,
    }
    let mut blocks: Vec<Block> = Vec::new();
    // A block without ranks would make the reader loop for ever.
    for run in runs.iter().filter(|run| run.count > 0) {
        match blocks.last_mut() {
            Some(block) if block.ranks == run.count && block.node + block.nodes == run.node => block.nodes += 1,
            _ => blocks.push(Block { node: run.node, nodes: 1, ranks: run.count }),
        }
    }
    let mut text = String::from("(vector");
    for Block { node, nodes, ranks } in blocks {
        let _ = write!(text, ",({node},{nodes},{ranks})");
    }
    text.push(')');
    text
}

/// The ranks of each host, as the answer to `get_ranks2hosts`: the number of hosts, and `length
/// name rank,rank, ` for each. (An extension of Intel MPI; its client counts these characters,
/// their newline and one more.)
pub(crate) fn ranks_of_hosts(nodes: &[NodeId], runs: &[RankRun]) -> (usize, String) {
    let mut ranks: BTreeMap<&NodeId, String> = BTreeMap::new();
    let mut hosts = Vec::new();
    for (node, run) in runs.iter().filter(|run| run.count > 0).filter_map(|run| Some((nodes.get(run.node)?, run))) {
        let list = ranks.entry(node).or_insert_with(|| {
            hosts.push(node);
            String::new()
        });
        for rank in (u64::from(run.first)..).take(run.count as usize) {
            let _ = write!(list, "{rank},");
        }
    }
    let mut text = String::new();
    for host in &hosts {
        let _ = write!(text, "{} {host} {} ", host.as_str().len(), ranks[host]);
    }
    (hosts.len(), text)
}

/// The length of the repeating part of the runs; all runs if nothing repeats. The last repetition
/// may be incomplete, even within a run.
fn period(runs: &[RankRun]) -> usize {
    let Some((last, others)) = runs.split_last().filter(|(_, others)| !others.is_empty()) else { return runs.len() };
    let same = |a: usize, b: usize| (others[a].node, others[a].count) == (others[b].node, others[b].count);
    // For each prefix, how much of its end is also its beginning (Knuth, Morris, Pratt).
    let mut borders = vec![0; others.len()];
    for at in 1..others.len() {
        let mut border: usize = borders[at - 1];
        while border > 0 && !same(at, border) {
            border = borders[border - 1];
        }
        borders[at] = border + usize::from(same(at, border));
    }
    let period = others.len() - borders[others.len() - 1];
    let whole = &runs[others.len() % period];
    if whole.node == last.node && last.count <= whole.count { period } else { runs.len() }
}

/// The variables by which one rank finds its server. Remove all inherited variables that begin with
/// `PMI_`, `PMIX_` or `SLURM_` first. There is no `PMI_ID`: each port belongs to one rank, and a
/// PMI-2 client that finds `PMI_ID` does not send its rank.
pub fn rank_environment(job: &Job, local: u32, connection: PmiConnection) -> Vec<(String, String)> {
    let connection = match connection {
        PmiConnection::Inherited(fd) => ("PMI_FD", fd.to_string()),
        PmiConnection::Port(port) => ("PMI_PORT", format!("127.0.0.1:{port}")),
    };
    [
        connection,
        ("PMI_RANK", job.rank(local).to_string()),
        ("PMI_SIZE", job.size.to_string()),
        ("PMI_JOBID", job.number.to_string()),
        ("PMI_SPAWNED", "0".to_owned()),
        ("MPI_LOCALRANKID", local.to_string()),
        ("MPI_LOCALNRANKS", job.count.to_string()),
    ]
    .map(|(name, value)| (name.to_owned(), value))
    .into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use lattice_model::Distribution;
    use proptest::prelude::*;

    fn layout(parts: &[(usize, u32)]) -> Vec<RankRun> {
        let mut first = 0;
        let part = |&(node, count): &(usize, u32)| {
            let run = RankRun { node, first, count };
            first += count;
            run
        };
        parts.iter().map(part).collect()
    }

    fn mapping(parts: &[(usize, u32)]) -> String {
        process_mapping(&layout(parts))
    }

    #[test]
    fn equal_neighbours_share_a_block() {
        assert_eq!(mapping(&[(0, 1)]), "(vector,(0,1,1))");
        assert_eq!(mapping(&[(0, 4)]), "(vector,(0,1,4))");
        assert_eq!(mapping(&[(0, 2), (1, 2), (2, 2)]), "(vector,(0,3,2))");
    }

    #[test]
    fn irregular_layouts_take_more_blocks() {
        assert_eq!(mapping(&[(0, 2), (1, 2), (2, 1)]), "(vector,(0,2,2),(2,1,1))");
        assert_eq!(mapping(&[(0, 1), (1, 3), (2, 3), (3, 1)]), "(vector,(0,1,1),(1,2,3),(3,1,1))");
        assert_eq!(mapping(&[(0, 2), (1, 2), (0, 2)]), "(vector,(0,2,2),(0,1,2))", "a node that comes again keeps its number");
        assert_eq!(mapping(&[(0, 2), (0, 2)]), "(vector,(0,1,2),(0,1,2))");
        assert_eq!(mapping(&[(1, 1), (0, 2)]), "(vector,(1,1,1),(0,1,2))");
    }

    #[test]
    fn a_round_that_is_repeated_often_is_sent_once() {
        let rounds = |rounds: usize, last: &[(usize, u32)]| mapping(&[[(0, 1), (1, 1), (2, 1)].repeat(rounds), last.to_vec()].concat());
        assert_eq!(rounds(2, &[]), "(vector,(0,3,1),(0,3,1))");
        assert_eq!(rounds(200, &[]), "(vector,(0,3,1))");
        assert_eq!(rounds(200, &[(0, 1), (1, 1)]), "(vector,(0,3,1))", "the last round ends early");
        // Planes of 4 on two nodes; the last plane has 2 ranks.
        assert_eq!(mapping(&[[(0, 4), (1, 4)].repeat(200), vec![(0, 2)]].concat()), "(vector,(0,2,4))");
        assert_eq!(mapping(&[[(0, 4), (1, 4)].repeat(200), vec![(0, 4), (1, 1)]].concat()), "(vector,(0,2,4))");
        let uneven = mapping(&[[(0, 1), (1, 1), (2, 1)].repeat(200), vec![(0, 5)]].concat());
        assert!(uneven.len() > MAPPING_BYTES_MAX, "nothing repeats to the end: {} bytes", uneven.len());
    }

    #[test]
    fn a_rank_learns_its_place() {
        let job = Job {
            number: 9,
            kvsname: "k".into(),
            size: 5,
            first: 2,
            count: 2,
            ranks: vec![],
            appnums: vec![],
            mapping: String::new(),
            part: 0,
            nodes: vec![],
            runs: vec![],
        };
        let env = rank_environment(&job, 1, PmiConnection::Inherited(7));
        let expected = [
            ("PMI_FD", "7"),
            ("PMI_RANK", "3"),
            ("PMI_SIZE", "5"),
            ("PMI_JOBID", "9"),
            ("PMI_SPAWNED", "0"),
            ("MPI_LOCALRANKID", "1"),
            ("MPI_LOCALNRANKS", "2"),
        ];
        assert_eq!(env, expected.map(|(name, value)| (name.to_owned(), value.to_owned())));
        let env = rank_environment(&job, 1, PmiConnection::Port(4711));
        assert_eq!(env[0], ("PMI_PORT".to_owned(), "127.0.0.1:4711".to_owned()));
        assert!(env.iter().all(|(name, _)| !["PMI_FD", "PMI_ID"].contains(&name.as_str())), "{env:?}");
    }

    #[test]
    fn hosts_are_listed_with_their_ranks() {
        let nodes = ["compute-0-3", "b"].map(|name| name.parse().unwrap());
        let runs = layout(&[(0, 3), (1, 1), (0, 1)]);
        assert_eq!(ranks_of_hosts(&nodes, &runs), (2, "11 compute-0-3 0,1,2,4, 1 b 3, ".to_owned()));
        assert_eq!(ranks_of_hosts(&[], &[]), (0, String::new()));
    }

    /// The node of every rank as MPICH reads a mapping: block after block, `nodes` nodes with
    /// `ranks` ranks each, repeated while ranks are left.
    fn read_as_mpich_does(mapping: &str, size: usize) -> Vec<usize> {
        let inner = mapping.strip_prefix("(vector,").unwrap().strip_suffix(')').unwrap();
        let blocks: Vec<Vec<usize>> = inner
            .strip_prefix('(')
            .unwrap()
            .strip_suffix(')')
            .unwrap()
            .split("),(")
            .map(|block| block.split(',').map(|n| n.parse().unwrap()).collect())
            .collect();
        let mut nodes_of_ranks = Vec::new();
        for block in blocks.iter().cycle().take(size) {
            let [start, nodes, ranks] = block[..] else { panic!("{block:?}") };
            assert!(nodes > 0 && ranks > 0, "{mapping}");
            nodes_of_ranks.extend((start..start + nodes).flat_map(|node| std::iter::repeat_n(node, ranks)));
        }
        nodes_of_ranks.truncate(size);
        assert_eq!(nodes_of_ranks.len(), size, "{mapping}");
        nodes_of_ranks
    }

    proptest! {
        #[test]
        fn mpich_reads_back_any_list(parts in prop::collection::vec((0..6usize, 1..5u32), 1..20)) {
            let expected: Vec<usize> = parts.iter().flat_map(|&(node, count)| std::iter::repeat_n(node, count as usize)).collect();
            prop_assert_eq!(read_as_mpich_does(&mapping(&parts), expected.len()), expected);
        }

        #[test]
        fn mpich_reads_back_every_layout(
            counts in prop::collection::vec(1..300u32, 1..7), cyclic in any::<bool>(), plane in 1..5u32, even in any::<bool>(),
        ) {
            let counts = if even { vec![counts[0]; counts.len()] } else { counts };
            let distribution = if cyclic { Distribution::Cyclic } else { Distribution::Plane(plane) };
            for distribution in [Distribution::Block, distribution] {
                let runs = lattice_model::layout::runs(&counts, &distribution);
                let expected: Vec<usize> = runs.iter().flat_map(|run| std::iter::repeat_n(run.node, run.count as usize)).collect();
                let mapping = process_mapping(&runs);
                prop_assert_eq!(read_as_mpich_does(&mapping, expected.len()), expected, "{}", &mapping);
            }
        }
    }
}

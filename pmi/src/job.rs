//! What a rank is told of its launch: numbers, names, and which ranks share a node.

use lattice_model::NodeRanks;
use std::collections::BTreeMap;
use std::fmt::Write as _;

/// One launch as the [`Server`](crate::Server) of one node needs it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Job {
    /// `PMI_JOBID`: the launch's number within its allocation.
    pub number: u32,
    /// Name of the key-value space: no blanks, at most 256 bytes, the same on every node.
    pub kvsname: String,
    /// Ranks of the whole launch.
    pub size: u32,
    /// The first global rank on this node.
    pub first: u32,
    /// How many ranks this node has; they are `first .. first + count`.
    pub count: u32,
    /// The value of `PMI_process_mapping`, from [`process_mapping`].
    pub mapping: String,
}

/// Which ranks lie on which node, as MPICH reads it: `(vector,(first node, nodes, ranks on each),…)`, for instance
/// `(vector,(0,2,2),(2,1,1))` for 2, 2 and 1 ranks on three nodes.
///
/// `nodes` is in rank order without a gap. Nodes are numbered as they first appear; one that appears again keeps its number.
/// Source: the comments and the reader of `MPIR_NODEMAP` in MPICH.
pub fn process_mapping(nodes: &[NodeRanks]) -> String {
    struct Block {
        node: u32,
        nodes: u32,
        ranks: u32,
    }
    let mut numbers = BTreeMap::new();
    let mut blocks: Vec<Block> = Vec::new();
    // A block without ranks would make the reader walk round for ever.
    for part in nodes.iter().filter(|part| part.count > 0) {
        let next = u32::try_from(numbers.len()).unwrap_or(u32::MAX);
        let node = *numbers.entry(&part.node).or_insert(next);
        match blocks.last_mut() {
            Some(block) if block.ranks == part.count && block.node + block.nodes == node => block.nodes += 1,
            _ => blocks.push(Block { node, nodes: 1, ranks: part.count }),
        }
    }
    let mut text = String::from("(vector");
    for Block { node, nodes, ranks } in blocks {
        let _ = write!(text, ",({node},{nodes},{ranks})");
    }
    text.push(')');
    text
}

/// The variables by which one rank finds its server; everything inherited that begins with `PMI_`, `PMIX_` or
/// `SLURM_` must be gone before. `fd` is the rank's end of its socket, as it will be numbered in the rank.
pub fn rank_environment(job: &Job, local: u32, fd: i32) -> Vec<(String, String)> {
    [
        ("PMI_FD", fd.to_string()),
        ("PMI_RANK", (u64::from(job.first) + u64::from(local)).to_string()),
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
    use proptest::prelude::*;

    fn layout(parts: &[(&str, u32)]) -> Vec<NodeRanks> {
        let mut first = 0;
        let part = |&(node, count): &(&str, u32)| {
            let part = NodeRanks { node: node.parse().unwrap(), first, count };
            first += count;
            part
        };
        parts.iter().map(part).collect()
    }

    fn mapping(parts: &[(&str, u32)]) -> String {
        process_mapping(&layout(parts))
    }

    #[test]
    fn equal_neighbours_share_a_block() {
        assert_eq!(mapping(&[("a", 1)]), "(vector,(0,1,1))");
        assert_eq!(mapping(&[("a", 4)]), "(vector,(0,1,4))");
        assert_eq!(mapping(&[("a", 2), ("b", 2), ("c", 2)]), "(vector,(0,3,2))");
    }

    #[test]
    fn irregular_layouts_take_more_blocks() {
        assert_eq!(mapping(&[("a", 2), ("b", 2), ("c", 1)]), "(vector,(0,2,2),(2,1,1))");
        assert_eq!(mapping(&[("a", 1), ("b", 3), ("c", 3), ("d", 1)]), "(vector,(0,1,1),(1,2,3),(3,1,1))");
        assert_eq!(mapping(&[("a", 2), ("b", 2), ("a", 2)]), "(vector,(0,2,2),(0,1,2))", "a node that comes again keeps its number");
        assert_eq!(mapping(&[("a", 2), ("a", 2)]), "(vector,(0,1,2),(0,1,2))");
    }

    #[test]
    fn a_rank_learns_its_place() {
        let job = Job { number: 9, kvsname: "k".into(), size: 5, first: 2, count: 2, mapping: String::new() };
        let env = rank_environment(&job, 1, 7);
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
    }

    /// The node of every rank as MPICH reads a mapping: block after block, `nodes` nodes with `ranks` ranks each. It goes round
    /// again when ranks are left; a mapping of ours must never need that.
    fn read_as_mpich_does(mapping: &str, size: usize) -> Vec<u32> {
        let inner = mapping.strip_prefix("(vector,").unwrap().strip_suffix(')').unwrap();
        let mut nodes_of_ranks = Vec::new();
        for block in inner.strip_prefix('(').unwrap().strip_suffix(')').unwrap().split("),(") {
            let numbers: Vec<u32> = block.split(',').map(|n| n.parse().unwrap()).collect();
            let [start, nodes, ranks] = numbers[..] else { panic!("{block}") };
            assert!(nodes > 0 && ranks > 0, "{mapping}");
            for node in start..start + nodes {
                nodes_of_ranks.extend((0..ranks).map(|_| node));
            }
        }
        assert_eq!(nodes_of_ranks.len(), size, "{mapping}");
        nodes_of_ranks
    }

    proptest! {
        #[test]
        fn mpich_reads_back_the_layout(parts in prop::collection::vec((0..6usize, 1..5u32), 1..20)) {
            let names = ["a", "b", "c", "d", "e", "f"];
            let parts: Vec<(&str, u32)> = parts.iter().map(|&(node, count)| (names[node], count)).collect();
            let nodes = layout(&parts);
            let expected: Vec<&str> = parts.iter().flat_map(|&(node, count)| (0..count).map(move |_| node)).collect();
            let read = read_as_mpich_does(&process_mapping(&nodes), expected.len());
            for (i, a) in expected.iter().enumerate() {
                for (j, b) in expected.iter().enumerate() {
                    prop_assert_eq!(a == b, read[i] == read[j], "ranks {} and {}", i, j);
                }
            }
        }
    }
}

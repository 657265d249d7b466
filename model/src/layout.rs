//! Which ranks of a launch run on which of its nodes. It is a function of the number of ranks on
//! each node and of their distribution, and gives the same result everywhere.
//!
//! A list of all ranks would cost 4 bytes for each, sent to every node. The head, the shims and
//! `PMI_process_mapping` call the same function, so they cannot disagree. MPICH accepts a mapping
//! of at most 996 bytes: a longer one is shortened to its repeating part, and is not sent if that
//! is too long as well. The allocation's first node is a node of each launch, also without a rank:
//! its shim stores the state of the launch while its agent is down. Several programs form one
//! launch, each with consecutive ranks.

use crate::count::{counted, is_or_are};
use crate::ids::NodeId;
use crate::node_ranks::NodeRanks;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;
use thiserror::Error;

/// Largest number of ranks of one launch on one node.
pub const TASKS_PER_NODE_MAX: u32 = 4096;
/// Largest number of programs of one launch.
pub const PROGRAMS_MAX: usize = 256;
/// Largest number of processors for one rank.
pub const CPUS_PER_TASK_MAX: u32 = 65_536;

/// How ranks are distributed to nodes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Distribution {
    /// Consecutive ranks on one node, node after node.
    #[default]
    Block,
    /// One rank to each node in turn.
    Cyclic,
    /// This many ranks (at least 1) to each node in turn.
    Plane(u32),
    /// An explicit list in rank order: index of the node in the launch's node list, and number of
    /// ranks.
    Explicit(Vec<(u32, u32)>),
}

/// One program of a launch with several, and its number of ranks.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Program {
    /// At least 1.
    pub ranks: u32,
    /// Program and arguments.
    pub argv: Vec<String>,
}

/// How a launch deviates from the simple case: one program, ranks in blocks, node after node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct LaunchShape {
    /// How its ranks are distributed.
    pub distribution: Distribution,
    /// The programs after the first. The first program runs on the lowest ranks, as many as the
    /// others leave.
    pub programs: Vec<Program>,
    /// Processors for each rank; 0: not specified.
    pub cpus_per_task: u32,
    /// Whether ranks get the environment variables that Slurm would set.
    pub slurm_env: bool,
}

/// Settings of the single launch of an inline command, and defaults for the launches of a script.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct EntryLaunch {
    /// The shape. For a script it is the default of its launches.
    pub shape: LaunchShape,
    /// Total number of ranks if lower than nodes × tasks per node; 0: that product.
    pub ranks: u32,
    /// Whether the other ranks continue when a rank ends with an error.
    pub keeps_on_bad_exit: bool,
}

/// A request for a launch's layout; unset fields leave the default.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ShapeRequest {
    /// How ranks are distributed; never an explicit list, which is in `listed`.
    pub distribution: Option<Distribution>,
    /// The nodes in rank order with their numbers of ranks, instead of a distribution.
    pub listed: Vec<(NodeId, u32)>,
    /// See [`LaunchShape::programs`].
    pub programs: Vec<Program>,
    /// 0: unset.
    pub cpus_per_task: u32,
    /// Whether it is requested; it also applies if the allocation requested it.
    pub slurm_env: bool,
    /// Whether the other ranks are ended when a rank ends with an error.
    pub kill_on_bad_exit: Option<bool>,
    /// Number of nodes to use, the first ones of the allocation; 0: all.
    pub nodes: u32,
}

impl ShapeRequest {
    /// The shape of a launch inside an allocation with the defaults `under`, without an explicit
    /// list; and whether the other ranks are ended when a rank ends with an error.
    pub fn over(&self, under: &EntryLaunch) -> (LaunchShape, bool) {
        let shape = LaunchShape {
            distribution: self.distribution.clone().unwrap_or_else(|| under.shape.distribution.clone()),
            programs: self.programs.clone(),
            cpus_per_task: if self.cpus_per_task > 0 { self.cpus_per_task } else { under.shape.cpus_per_task },
            slurm_env: self.slurm_env || under.shape.slurm_env,
        };
        (shape, self.kill_on_bad_exit.unwrap_or(!under.keeps_on_bad_exit))
    }
}

/// Consecutive ranks of a launch on one node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RankRun {
    /// Index of the node in the launch's node list.
    pub node: usize,
    /// The first rank.
    pub first: u32,
    /// Number of ranks, at least 1.
    pub count: u32,
}

/// A layout that is not possible.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum LayoutError {
    /// The launch has no ranks.
    #[error("a launch needs at least one rank")]
    NoRanks,
    /// More ranks than fit.
    #[error("{ranks} ranks do not fit: {} × {} per node = {most}; ask for fewer (-n), or more on each node", counted(*nodes, "node"), counted(*tasks_per_node, "task"))]
    TooMany {
        /// Requested ranks.
        ranks: u32,
        /// Nodes of the allocation.
        nodes: u32,
        /// Largest number of ranks on each node.
        tasks_per_node: u32,
        /// Their product.
        most: u64,
    },
    /// A plane without ranks.
    #[error("distribution: a plane has at least 1 rank, as in plane=4")]
    Plane,
    /// More nodes requested than the allocation has.
    #[error("nodes: {asked} given; the allocation has {there}")]
    TooFewNodes {
        /// Requested nodes.
        asked: u32,
        /// Nodes of the allocation.
        there: usize,
    },
    /// An explicit list names a node outside the allocation.
    #[error("nodelist: {node} is none of the allocation's nodes ({})", crate::hostlist::fold(.nodes))]
    NotInAllocation {
        /// The node.
        node: NodeId,
        /// The allocation's nodes.
        nodes: Vec<NodeId>,
    },
    /// An explicit list has a different number of ranks than requested.
    #[error("nodelist: it places {}, and -n requests {ranks}: leave -n out, or list a node for each", counted(*listed, "rank"))]
    Listed {
        /// Ranks in the list.
        listed: u64,
        /// Requested ranks.
        ranks: u32,
    },
    /// An explicit list has too many ranks on a node.
    #[error("nodelist: it places {} on {node}, and {most} {} possible on a node", counted(*count, "rank"), is_or_are(*most))]
    Crowded {
        /// The node.
        node: NodeId,
        /// Ranks in the list.
        count: u64,
        /// Largest number allowed.
        most: u32,
    },
    /// The ranks of the programs contradict the total.
    #[error("the programs after the first have {others} of {ranks} ranks, so the first has none: give -n for each program")]
    Programs {
        /// Ranks of the programs after the first.
        others: u64,
        /// Total number of ranks.
        ranks: u32,
    },
    /// An invalid program after the first.
    #[error("program {number}: it needs a name and at least one rank; at most {PROGRAMS_MAX} programs are possible")]
    Program {
        /// Its number, counted from 1: 2 or more.
        number: usize,
    },
    /// More processors for a rank than any machine has.
    #[error("cpus-per-task: {0} given; at most {CPUS_PER_TASK_MAX} are possible")]
    Cpus(u32),
}

/// A text that names no distribution, cut to its first characters.
#[derive(Debug, Error)]
#[error("{0:?} is none of block, cyclic, plane=N")]
pub struct NoSuchDistribution(String);

impl FromStr for Distribution {
    type Err = NoSuchDistribution;

    fn from_str(text: &str) -> Result<Self, NoSuchDistribution> {
        match (text, text.strip_prefix("plane=").map(str::parse)) {
            ("block", _) => Ok(Self::Block),
            ("cyclic", _) => Ok(Self::Cyclic),
            (_, Some(Ok(size))) if size > 0 => Ok(Self::Plane(size)),
            _ => Err(NoSuchDistribution(text.chars().take(40).collect())),
        }
    }
}

/// The form that users write. The nodes of an explicit list are shown elsewhere.
impl fmt::Display for Distribution {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Block => f.write_str("block"),
            Self::Cyclic => f.write_str("cyclic"),
            Self::Plane(size) => write!(f, "plane={size}"),
            Self::Explicit(_) => f.write_str("arbitrary"),
        }
    }
}

impl LaunchShape {
    /// Checks everything that does not depend on the nodes, for a launch of `ranks` ranks.
    pub fn validate(&self, ranks: u32) -> Result<(), LayoutError> {
        if self.distribution == Distribution::Plane(0) {
            return Err(LayoutError::Plane);
        }
        if self.cpus_per_task > CPUS_PER_TASK_MAX {
            return Err(LayoutError::Cpus(self.cpus_per_task));
        }
        let bad = |(at, p): (usize, &Program)| at + 2 > PROGRAMS_MAX || p.ranks == 0 || p.argv.first().is_none_or(String::is_empty);
        if let Some(at) = self.programs.iter().enumerate().position(bad) {
            return Err(LayoutError::Program { number: at + 2 });
        }
        let others = self.others();
        if others >= u64::from(ranks) { Err(LayoutError::Programs { others, ranks }) } else { Ok(()) }
    }

    /// Ranks of the programs after the first.
    fn others(&self) -> u64 {
        self.programs.iter().map(|p| u64::from(p.ranks)).sum()
    }

    /// The number (from 0) of the program that a rank runs; `ranks`: total of the launch.
    pub fn program_of(&self, rank: u32, ranks: u32) -> usize {
        let mut end = u64::from(ranks).saturating_sub(self.others());
        let behind = |p: &&Program| {
            let is_behind = u64::from(rank) >= end;
            end += u64::from(p.ranks);
            is_behind
        };
        self.programs.iter().take_while(behind).count()
    }

    /// Approximate number of bytes of its strings.
    pub fn bytes(&self) -> usize {
        self.programs.iter().flat_map(|p| &p.argv).map(|a| a.len() + 4).sum::<usize>() + self.programs.len() * 8
    }
}

/// Which ranks are on which node, in rank order. `counts`: the number of ranks on each node.
pub fn runs(counts: &[u32], distribution: &Distribution) -> Vec<RankRun> {
    let mut runs = Runs::default();
    match distribution {
        Distribution::Block => counts.iter().enumerate().for_each(|(node, count)| runs.add(node, *count)),
        Distribution::Cyclic => runs.deal(counts, 1),
        Distribution::Plane(size) => runs.deal(counts, *size),
        Distribution::Explicit(listed) => listed.iter().for_each(|(node, count)| runs.add(*node as usize, *count)),
    }
    runs.0
}

#[derive(Default)]
struct Runs(Vec<RankRun>);

impl Runs {
    fn add(&mut self, node: usize, count: u32) {
        let next = self.0.last().map_or(0, |run| run.first + run.count);
        match self.0.last_mut() {
            _ if count == 0 => {}
            Some(run) if run.node == node => run.count += count,
            Some(_) | None => self.0.push(RankRun { node, first: next, count }),
        }
    }

    /// Deals `each` ranks to each node in turn, until each node has its number.
    fn deal(&mut self, counts: &[u32], each: u32) {
        let mut left = counts.to_vec();
        while left.iter().any(|left| *left > 0) {
            for (node, left) in left.iter_mut().enumerate() {
                let count = each.max(1).min(*left);
                self.add(node, count);
                *left -= count;
            }
        }
    }
}

/// Distributes `ranks` to the nodes in order, at most `tasks_per_node` on each if that is set. With
/// [`Distribution::Block`] and a limit, each node is filled before the next; without a limit, the
/// ranks are distributed as evenly as possible. Nodes without ranks are left out. An explicit list
/// is refused: see [`list_out`].
pub fn lay_out(
    nodes: &[NodeId],
    ranks: u32,
    tasks_per_node: Option<u32>,
    distribution: &Distribution,
) -> Result<Vec<NodeRanks>, LayoutError> {
    if ranks == 0 || nodes.is_empty() {
        return Err(LayoutError::NoRanks);
    }
    let node_count = u32::try_from(nodes.len()).unwrap_or(u32::MAX);
    let limit = tasks_per_node.unwrap_or(TASKS_PER_NODE_MAX);
    let most = u64::from(node_count) * u64::from(limit);
    if u64::from(ranks) > most {
        return Err(LayoutError::TooMany { ranks, nodes: node_count, tasks_per_node: limit, most });
    }
    let counts = match distribution {
        Distribution::Block => blocks(node_count, ranks, tasks_per_node),
        Distribution::Cyclic => dealt(nodes.len(), ranks, limit, 1),
        Distribution::Plane(0) => return Err(LayoutError::Plane),
        Distribution::Plane(size) => dealt(nodes.len(), ranks, limit, *size),
        Distribution::Explicit(_) => return Err(LayoutError::NoRanks),
    };
    Ok(with_ranks(nodes.iter().zip(counts).filter(|(_, count)| *count > 0), distribution))
}

fn blocks(nodes: u32, ranks: u32, tasks_per_node: Option<u32>) -> Vec<u32> {
    let (each, extra) = (ranks / nodes, ranks % nodes);
    let mut left = ranks;
    let count = |node: u32| {
        let count = tasks_per_node.map_or(each + u32::from(node < extra), |most| most.min(left));
        left -= count;
        count
    };
    (0..nodes).map(count).collect()
}

/// How many ranks each node gets when they are dealt in turn.
fn dealt(nodes: usize, ranks: u32, limit: u32, each: u32) -> Vec<u32> {
    let (mut counts, mut left) = (vec![0; nodes], ranks);
    while left > 0 {
        for count in &mut counts {
            let more = each.min(limit - *count).min(left);
            *count += more;
            left -= more;
        }
    }
    counts
}

/// Places ranks on nodes by an explicit list in rank order: (node, number of ranks). `nodes` are
/// the allocation's; the result contains the first of them, and the others that have ranks.
pub fn list_out(
    nodes: &[NodeId],
    listed: &[(NodeId, u32)],
    ranks: Option<u32>,
    tasks_per_node: Option<u32>,
) -> Result<(Vec<NodeRanks>, Distribution), LayoutError> {
    let all: u64 = listed.iter().map(|(_, count)| u64::from(*count)).sum();
    if all == 0 {
        return Err(LayoutError::NoRanks);
    }
    if let Some(ranks) = ranks.filter(|ranks| u64::from(*ranks) != all) {
        return Err(LayoutError::Listed { listed: all, ranks });
    }
    let mut counts = vec![0u64; nodes.len()];
    let mut places = Vec::with_capacity(listed.len());
    let known: BTreeMap<&NodeId, usize> = nodes.iter().zip(0..).collect();
    for (node, count) in listed {
        let unknown = || LayoutError::NotInAllocation { node: node.clone(), nodes: nodes.to_vec() };
        let place = *known.get(node).ok_or_else(unknown)?;
        counts[place] += u64::from(*count);
        places.push((place, *count));
    }
    let limit = tasks_per_node.unwrap_or(TASKS_PER_NODE_MAX);
    if let Some((node, count)) = nodes.iter().zip(&counts).find(|(_, count)| **count > u64::from(limit)) {
        return Err(LayoutError::Crowded { node: node.clone(), count: *count, most: limit });
    }
    let is_used = |(place, count): (usize, &u64)| place == 0 || *count > 0;
    // The index of each node among those of the launch.
    let new: Vec<u32> =
        counts.iter().enumerate().scan(0, |next, node| Some(std::mem::replace(next, *next + u32::from(is_used(node))))).collect();
    let distribution = Distribution::Explicit(places.into_iter().map(|(place, count)| (new[place], count)).collect());
    let counted = nodes.iter().zip(counts.iter().enumerate()).filter(|(_, counted)| is_used(*counted));
    let counted = counted.map(|(node, (_, count))| (node, u32::try_from(*count).unwrap_or(limit)));
    Ok((with_ranks(counted, &distribution), distribution))
}

/// The nodes with their numbers of ranks and their first ranks.
fn with_ranks<'a>(nodes: impl Iterator<Item = (&'a NodeId, u32)>, distribution: &Distribution) -> Vec<NodeRanks> {
    let mut nodes: Vec<NodeRanks> = nodes.map(|(node, count)| NodeRanks { node: node.clone(), first: 0, count }).collect();
    number(&mut nodes, distribution);
    nodes
}

/// Sets the first rank of each node.
pub fn number(nodes: &mut [NodeRanks], distribution: &Distribution) {
    let counts: Vec<u32> = nodes.iter().map(|n| n.count).collect();
    for run in runs(&counts, distribution).iter().rev() {
        if let Some(node) = nodes.get_mut(run.node) {
            node.first = run.first;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn ids(nodes: u32) -> Vec<NodeId> {
        (0..nodes).map(|i| format!("n{i}").parse().unwrap()).collect()
    }

    fn layout(nodes: u32, ranks: u32, per_node: Option<u32>) -> Result<Vec<(u32, u32)>, LayoutError> {
        lay_out(&ids(nodes), ranks, per_node, &Distribution::Block).map(|l| l.iter().map(|n| (n.first, n.count)).collect())
    }

    /// Draws the node of each rank as a string of digits.
    fn drawn(nodes: &[NodeRanks], distribution: &Distribution) -> String {
        let counts: Vec<u32> = nodes.iter().map(|n| n.count).collect();
        runs(&counts, distribution).iter().map(|run| nodes[run.node].node.as_str()[1..].repeat(run.count as usize)).collect()
    }

    fn layout_text(nodes: u32, ranks: u32, per_node: Option<u32>, distribution: &str) -> String {
        let distribution = distribution.parse().unwrap();
        drawn(&lay_out(&ids(nodes), ranks, per_node, &distribution).unwrap(), &distribution)
    }

    #[test]
    fn ranks_lie_in_blocks() {
        assert_eq!(layout(3, 6, Some(2)), Ok(vec![(0, 2), (2, 2), (4, 2)]));
        assert_eq!(layout(3, 5, Some(2)), Ok(vec![(0, 2), (2, 2), (4, 1)]));
        assert_eq!(layout(3, 5, None), Ok(vec![(0, 2), (2, 2), (4, 1)]));
        assert_eq!(layout(3, 2, None), Ok(vec![(0, 1), (1, 1)]));
        assert_eq!(layout(3, 2, Some(4)), Ok(vec![(0, 2)]));
        assert_eq!(layout(3, 0, None), Err(LayoutError::NoRanks));
        assert!(matches!(layout(2, 5, Some(2)), Err(LayoutError::TooMany { most: 4, .. })));
        assert!(matches!(layout(2, u32::MAX, None), Err(LayoutError::TooMany { .. })));
    }

    #[test]
    fn ranks_are_dealt_in_turn() {
        assert_eq!(layout_text(3, 7, None, "cyclic"), "0120120");
        assert_eq!(layout_text(3, 2, None, "cyclic"), "01");
        assert_eq!(layout_text(2, 8, Some(4), "plane=3"), "00011101");
        assert_eq!(layout_text(3, 5, None, "plane=2"), "00112");
        assert_eq!(layout_text(1, 4, None, "plane=2"), "0000");
        assert_eq!(layout_text(3, 7, None, "block"), "0001122");
        for bad in ["", "plane", "plane=0", "plane=-1", "blocks", "arbitrary"] {
            assert!(bad.parse::<Distribution>().unwrap_err().to_string().contains("plane=N"), "{bad}");
        }
    }

    #[test]
    fn a_list_places_each_rank() {
        let listed = |text: &str| text.chars().map(|c| (format!("n{c}").parse().unwrap(), 1)).collect::<Vec<_>>();
        let (nodes, distribution) = list_out(&ids(4), &listed("3003"), None, None).unwrap();
        assert_eq!(drawn(&nodes, &distribution), "3003");
        assert_eq!(nodes.iter().map(|n| (n.node.as_str(), n.first, n.count)).collect::<Vec<_>>(), [("n0", 1, 2), ("n3", 0, 2)]);
        let (nodes, distribution) = list_out(&ids(4), &listed("313"), None, None).unwrap();
        assert_eq!(drawn(&nodes, &distribution), "313");
        let with_counts: Vec<_> = nodes.iter().map(|n| (n.node.as_str(), n.first, n.count)).collect();
        assert_eq!(with_counts, [("n0", 0, 0), ("n1", 1, 1), ("n3", 0, 2)], "the first node coordinates the launch");
        let refused = |text: &str, ranks, most| list_out(&ids(3), &listed(text), ranks, most).unwrap_err();
        assert!(matches!(refused("07", None, None), LayoutError::NotInAllocation { .. }));
        assert!(matches!(refused("01", Some(3), None), LayoutError::Listed { listed: 2, ranks: 3 }));
        assert!(matches!(refused("001", None, Some(1)), LayoutError::Crowded { count: 2, most: 1, .. }));
        assert_eq!(refused("", None, None), LayoutError::NoRanks);
    }

    #[test]
    fn programs_have_their_ranks_one_after_the_other() {
        let program = |ranks| Program { ranks, argv: vec!["p".into()] };
        let shape = LaunchShape { programs: vec![program(3), program(1)], ..LaunchShape::default() };
        assert_eq!(shape.validate(6), Ok(()));
        assert_eq!((0..6).map(|rank| shape.program_of(rank, 6)).collect::<Vec<_>>(), [0, 0, 1, 1, 1, 2]);
        assert_eq!(shape.validate(4), Err(LayoutError::Programs { others: 4, ranks: 4 }));
        let empty = LaunchShape { programs: vec![program(1), program(0)], ..LaunchShape::default() };
        assert_eq!(empty.validate(6), Err(LayoutError::Program { number: 3 }));
        assert_eq!(LaunchShape { cpus_per_task: u32::MAX, ..LaunchShape::default() }.validate(1), Err(LayoutError::Cpus(u32::MAX)));
        assert_eq!(LaunchShape::default().program_of(5, 6), 0);
    }

    fn any_distribution() -> impl Strategy<Value = Distribution> {
        prop_oneof![Just(Distribution::Block), Just(Distribution::Cyclic), (1..5u32).prop_map(Distribution::Plane)]
    }

    /// Checks that every rank occurs once and in order, that each node has its number of ranks, and
    /// that its first rank is right.
    fn whole(nodes: &[NodeRanks], distribution: &Distribution, ranks: u32) -> Result<(), TestCaseError> {
        let counts: Vec<u32> = nodes.iter().map(|n| n.count).collect();
        let (mut next, mut of) = (0, vec![Vec::new(); nodes.len()]);
        for run in runs(&counts, distribution) {
            prop_assert_eq!(run.first, next);
            prop_assert!(run.count > 0);
            next += run.count;
            of[run.node].extend(run.first..next);
        }
        prop_assert_eq!(next, ranks);
        for (node, ranks) in nodes.iter().zip(of) {
            prop_assert_eq!(ranks.len(), node.count as usize);
            prop_assert_eq!(ranks.first(), Some(&node.first));
        }
        Ok(())
    }

    proptest! {
        #[test]
        fn every_rank_is_somewhere_once(
            nodes in 1..9u32, ranks in 1..60u32, most in prop::option::of(1..9u32), distribution in any_distribution(),
        ) {
            let ids = ids(nodes);
            match lay_out(&ids, ranks, most, &distribution) {
                Err(_) => prop_assert!(most.is_some_and(|most| most * nodes < ranks)),
                Ok(laid) => {
                    whole(&laid, &distribution, ranks)?;
                    prop_assert!(laid.iter().all(|n| n.count <= most.unwrap_or(u32::MAX)));
                    prop_assert_eq!(&laid[0].node, &ids[0], "the head has a rank");
                    prop_assert_eq!(laid[0].first, 0);
                }
            }
        }

        #[test]
        fn every_listed_rank_is_where_it_was_listed(listed in prop::collection::vec((0..6usize, 1..4u32), 0..20)) {
            let ids = ids(6);
            let listed: Vec<(NodeId, u32)> = std::iter::once((0, 1)).chain(listed).map(|(n, count)| (ids[n].clone(), count)).collect();
            let (laid, distribution) = list_out(&ids, &listed, None, None).unwrap();
            let expected: String = listed.iter().map(|(n, count)| n.as_str()[1..].repeat(*count as usize)).collect();
            prop_assert_eq!(drawn(&laid, &distribution), expected.clone());
            whole(&laid, &distribution, u32::try_from(expected.len()).unwrap())?;
        }
    }
}

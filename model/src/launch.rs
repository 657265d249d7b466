//! A launch: a set of ranks inside an allocation, spread over some of its nodes.

use crate::binding::RankBinding;
use crate::ids::{AllocationId, Epoch, LaunchId, NodeId};
use crate::resources::bytes_text;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;
use thiserror::Error;

/// What to start, the same text on every node of the launch.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LaunchSpec {
    /// Its id.
    pub id: LaunchId,
    /// A number of its own for `PMI_JOBID`, unique within the allocation, from 1.
    pub number: u32,
    /// The allocation it runs in.
    pub allocation: AllocationId,
    /// Under which epoch.
    pub epoch: Epoch,
    /// Program and arguments.
    pub argv: Vec<String>,
    /// Environment of every rank, before the wire-up variables.
    pub env: BTreeMap<String, String>,
    /// Working directory.
    pub working_dir: PathBuf,
    /// The nodes with their ranks, in rank order without a gap; the first is the head, where fences meet.
    pub nodes: Vec<NodeRanks>,
    /// Whether the first rank has a terminal, and of which size at first.
    #[serde(default)]
    pub pty: Option<TerminalSize>,
    /// How each node's ranks are bound to what it has of the node.
    #[serde(default)]
    pub binding: RankBinding,
}

/// A terminal's size, in characters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TerminalSize {
    /// Lines.
    pub rows: u16,
    /// Characters in a line.
    pub columns: u16,
}

impl Default for TerminalSize {
    /// What programs expect where nobody says otherwise.
    fn default() -> Self {
        Self { rows: 24, columns: 80 }
    }
}

/// One node's ranks: `first .. first + count`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeRanks {
    /// The node.
    pub node: NodeId,
    /// Its first global rank.
    pub first: u32,
    /// How many ranks, at least 1.
    pub count: u32,
}

/// A layout that cannot be.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum LayoutError {
    #[error("a launch needs at least one rank")]
    NoRanks,
    #[error("{ranks} ranks do not fit: {nodes} nodes × {tasks_per_node} tasks per node = {most}")]
    TooMany { ranks: u32, nodes: u32, tasks_per_node: u32, most: u64 },
}

/// Block layout: fills the nodes in order, as evenly as `ranks` allows and at most `tasks_per_node` on each where that is given.
pub fn block_layout(nodes: &[NodeId], ranks: u32, tasks_per_node: Option<u32>) -> Result<Vec<NodeRanks>, LayoutError> {
    if ranks == 0 || nodes.is_empty() {
        return Err(LayoutError::NoRanks);
    }
    let node_count = u32::try_from(nodes.len()).unwrap_or(u32::MAX);
    if let Some(most) = tasks_per_node
        && u64::from(ranks) > u64::from(node_count) * u64::from(most)
    {
        let most_ranks = u64::from(node_count) * u64::from(most);
        return Err(LayoutError::TooMany { ranks, nodes: node_count, tasks_per_node: most, most: most_ranks });
    }
    let (each, extra) = (ranks / node_count, ranks % node_count);
    let mut first = 0;
    let mut out = Vec::new();
    for (i, node) in (0u32..).zip(nodes) {
        let count = match tasks_per_node {
            Some(most) => most.min(ranks - first),
            None => each + u32::from(i < extra),
        };
        if count == 0 {
            break;
        }
        out.push(NodeRanks { node: node.clone(), first, count });
        first += count;
    }
    Ok(out)
}

impl LaunchSpec {
    /// Ranks in all.
    pub fn size(&self) -> u32 {
        self.nodes.iter().map(|n| n.count).sum()
    }

    /// This node's part, where it has one.
    pub fn part(&self, node: &NodeId) -> Option<&NodeRanks> {
        self.nodes.iter().find(|n| &n.node == node)
    }
}

/// How one rank ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum RankOutcome {
    /// It exited with this code.
    Exited { code: u8 },
    /// A signal ended it.
    Signalled { signal: u8 },
    /// It could not be started: 126 (found, not executable) or 127 (not found).
    NotStarted { code: u8 },
}

impl RankOutcome {
    /// The code that a shell would give: the exit code, or 128 + signal.
    pub fn code(self) -> i32 {
        match self {
            Self::Exited { code } | Self::NotStarted { code } => i32::from(code),
            Self::Signalled { signal } => 128 + i32::from(signal),
        }
    }
}

/// Processes of one launch that the kernel killed because memory was over.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemoryKill {
    /// The launch's number; 0 is the script.
    pub launch: u32,
    /// Whether the kernel killed all of it; else a process of it.
    pub whole: bool,
    /// The most memory that they ever had together, in bytes, where the kernel tells. (Under cgroup version 1: all of the
    /// allocation's work there.)
    pub had_bytes: Option<u64>,
    /// How much the allocation may have on that node; `None`: no limit of its own, the machine itself had no more.
    pub limit_bytes: Option<u64>,
}

/// The exit code of what was killed for its memory: 128 + SIGKILL.
pub const MEMORY_KILL_CODE: i32 = 137;

/// `launch 1 was killed: it had 63 MiB, the allocation's limit is 64 MiB`
impl fmt::Display for MemoryKill {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let part = if self.whole { "" } else { "a process of " };
        match self.launch {
            0 => write!(f, "{part}the script was killed: ")?,
            number => write!(f, "{part}launch {number} was killed: ")?,
        }
        match self.had_bytes {
            Some(had) => write!(f, "it had {}", bytes_text(had))?,
            None => f.write_str("it wanted more memory")?,
        }
        match self.limit_bytes {
            Some(limit) => write!(f, ", the allocation's limit is {}", bytes_text(limit)),
            None => f.write_str(", and the machine had no more"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn layout(nodes: u32, ranks: u32, per_node: Option<u32>) -> Result<Vec<(u32, u32)>, LayoutError> {
        let ids: Vec<NodeId> = (0..nodes).map(|i| format!("n{i}").parse().unwrap()).collect();
        block_layout(&ids, ranks, per_node).map(|l| l.iter().map(|n| (n.first, n.count)).collect())
    }

    #[test]
    fn what_was_killed_for_its_memory_is_said_with_how_much_it_had() {
        let kill = MemoryKill { launch: 2, whole: true, had_bytes: Some(63 << 20), limit_bytes: Some(64 << 20) };
        assert_eq!(kill.to_string(), "launch 2 was killed: it had 63 MiB, the allocation's limit is 64 MiB");
        let kill = MemoryKill { launch: 0, whole: false, had_bytes: None, limit_bytes: None };
        assert_eq!(kill.to_string(), "a process of the script was killed: it wanted more memory, and the machine had no more");
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
    }
}

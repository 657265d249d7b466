//! A launch: a set of ranks inside an allocation, spread over some of its nodes.

use crate::binding::RankBinding;
use crate::ids::{AllocationId, Epoch, LaunchId, NodeId};
use crate::input::{NoSuchStdin, STDIN_VARIABLE, Stdin};
use crate::layout::{self, LaunchShape, LayoutError, RankRun};
use crate::node_ranks::NodeRanks;
use crate::resources::bytes_text;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;
use thiserror::Error;

/// What to start; the same text for every node of the launch.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LaunchSpec {
    /// Its id.
    pub id: LaunchId,
    /// Its `PMI_JOBID`: unique within the allocation, from 1.
    pub number: u32,
    /// The allocation that it runs in.
    pub allocation: AllocationId,
    /// The epoch of the allocation's claim.
    pub epoch: Epoch,
    /// Program and arguments; with several programs, those of the first ranks.
    pub argv: Vec<String>,
    /// Environment of every rank, without the wire-up variables.
    pub env: BTreeMap<String, String>,
    /// Working directory.
    pub working_dir: PathBuf,
    /// The nodes in the allocation's order, each with its number of ranks; the first is the head,
    /// where fences complete. It alone may have no rank.
    pub nodes: Vec<NodeRanks>,
    /// How ranks are distributed to the nodes, and which programs they run.
    pub shape: LaunchShape,
    /// Whether the other ranks are ended when a rank ends with an error.
    pub kill_on_bad_exit: bool,
    /// The initial size of the first rank's terminal; `None`: it has no terminal.
    pub pty: Option<TerminalSize>,
    /// How the ranks on each node are bound to the allocation's resources there.
    pub binding: RankBinding,
}

/// The environment variable by which a launch requests PMI over a port, with the value
/// [`PMI_PORT_ASKED`]. It is a variable and not a field because every version passes variables on,
/// and launches inherit them from the allocation.
pub const PMI_PORT_VARIABLE: &str = "LATTICE_PMI_PORT";
/// The only value of [`PMI_PORT_VARIABLE`].
pub const PMI_PORT_ASKED: &str = "1";

/// The environment variable by which a launch states how its ranks find each other: one of
/// [`Pmi`]'s names. Unset: [`Pmi::Auto`]. It is a variable for the same reasons as
/// [`PMI_PORT_VARIABLE`].
pub const PMI_VARIABLE: &str = "LATTICE_PMI";

/// How the ranks of a launch find each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Pmi {
    /// PMI-1 or PMI-2, as selected by the first line that a rank sends.
    Pmi,
    /// PMIx only; the launch is refused where PMIx is not available.
    Pmix,
    /// PMI, and also PMIx if the node offers it; the program chooses.
    #[default]
    Auto,
    /// As `Auto`, for a program that was found to use only PMI: no PMIx server is started.
    AutoPmi,
    /// As `Pmix`, chosen because the program was found to need it.
    AutoPmix,
    /// No wire-up.
    None,
}

impl Pmi {
    /// The name in requests. `pmi1` and `pmi2` are accepted as well.
    pub fn name(self) -> &'static str {
        match self {
            Self::Pmi => "pmi",
            Self::Pmix => "pmix",
            Self::Auto => "auto",
            Self::AutoPmi => "auto_pmi",
            Self::AutoPmix => "auto_pmix",
            Self::None => "none",
        }
    }

    /// Whether ranks get a PMI socket.
    pub fn has_pmi(self) -> bool {
        matches!(self, Self::Pmi | Self::Auto | Self::AutoPmi)
    }

    /// Whether a PMIx server is started for a launch with this many ranks. A single rank has no
    /// peers, so it gets a server only if its program is known to need one.
    pub fn has_pmix(self, ranks: u32) -> bool {
        match self {
            Self::Pmix | Self::AutoPmix => true,
            Self::Auto => ranks > 1,
            Self::Pmi | Self::AutoPmi | Self::None => false,
        }
    }

    /// Whether the user chose it, so that programs need not be examined.
    pub fn is_explicit(self) -> bool {
        !matches!(self, Self::Auto | Self::AutoPmi | Self::AutoPmix)
    }
}

impl FromStr for Pmi {
    type Err = NoSuchPmi;

    fn from_str(asked: &str) -> Result<Self, NoSuchPmi> {
        match asked {
            "pmi" | "pmi1" | "pmi2" => Ok(Self::Pmi),
            "pmix" => Ok(Self::Pmix),
            "auto" => Ok(Self::Auto),
            "auto_pmi" => Ok(Self::AutoPmi),
            "auto_pmix" => Ok(Self::AutoPmix),
            "none" => Ok(Self::None),
            _ => Err(NoSuchPmi { asked: asked.to_owned() }),
        }
    }
}

/// The name is not one of [`Pmi`]'s.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{PMI_VARIABLE}={asked}: give pmi (pmi1, pmi2), pmix, auto or none")]
pub struct NoSuchPmi {
    asked: String,
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
    /// The size that programs expect by default.
    fn default() -> Self {
        Self { rows: 24, columns: 80 }
    }
}

impl LaunchSpec {
    /// Total number of ranks.
    pub fn size(&self) -> u32 {
        self.nodes.iter().map(|n| n.count).sum()
    }

    /// Its nodes that have ranks: all of them, or all but the head.
    pub fn nodes_with_ranks(&self) -> &[NodeRanks] {
        &self.nodes[usize::from(self.has_empty_head())..]
    }

    /// Whether its head has no rank.
    pub fn has_empty_head(&self) -> bool {
        self.nodes.first().is_some_and(|head| head.count == 0)
    }

    /// How its ranks find each other.
    ///
    /// # Errors
    /// The requested name is unknown.
    pub fn pmi(&self) -> Result<Pmi, NoSuchPmi> {
        self.env.get(PMI_VARIABLE).map_or(Ok(Pmi::default()), |asked| asked.parse())
    }

    /// Whether ranks reach PMI over a port of their own instead of an inherited socket.
    pub fn pmi_by_port(&self) -> bool {
        self.env.get(PMI_PORT_VARIABLE).is_some_and(|asked| asked == PMI_PORT_ASKED)
    }

    /// Which of its ranks read standard input.
    ///
    /// # Errors
    /// The request is not possible.
    pub fn stdin(&self) -> Result<Stdin, NoSuchStdin> {
        let asked: Stdin = self.env.get(STDIN_VARIABLE).map_or(Ok(Stdin::None), |asked| asked.parse())?;
        asked.check(self.size(), self.pty.is_some()).map(|()| asked)
    }

    /// Its ranks in order.
    pub fn runs(&self) -> Vec<RankRun> {
        let counts: Vec<u32> = self.nodes.iter().map(|n| n.count).collect();
        layout::runs(&counts, &self.shape.distribution)
    }

    /// The ranks of one of its nodes, ascending: the first is local rank 0.
    pub fn ranks_on(&self, node: &NodeId) -> Vec<u32> {
        let of_node = |run: &RankRun| self.nodes.get(run.node).is_some_and(|n| &n.node == node);
        self.runs().into_iter().filter(of_node).flat_map(|run| run.first..run.first + run.count).collect()
    }

    /// The number of the program that a rank runs, from 0, and the program with its arguments.
    pub fn program_of(&self, rank: u32) -> (usize, &[String]) {
        let number = self.shape.program_of(rank, self.size());
        let behind = number.checked_sub(1).and_then(|at| self.shape.programs.get(at));
        (number, behind.map_or(&self.argv, |p| &p.argv))
    }

    /// The same launch with its ranks distributed according to `shape`; the number of ranks on each
    /// node stays.
    pub fn shaped(mut self, shape: LaunchShape) -> Result<Self, LayoutError> {
        self.shape = shape;
        self.check()?;
        layout::number(&mut self.nodes, &self.shape.distribution);
        Ok(self)
    }

    /// Checks that the shape fits the nodes: an explicit list must place each rank on an existing
    /// node, and give each node its number of ranks.
    pub fn check(&self) -> Result<(), LayoutError> {
        self.shape.validate(self.size())?;
        let layout::Distribution::Explicit(listed) = &self.shape.distribution else { return Ok(()) };
        let mut left: Vec<u64> = self.nodes.iter().map(|n| u64::from(n.count)).collect();
        for (node, count) in listed {
            let taken = left.get_mut(*node as usize).and_then(|left| Some((left.checked_sub(u64::from(*count))?, left)));
            let Some((now, left)) = taken.filter(|_| *count > 0) else { return Err(LayoutError::NoRanks) };
            *left = now;
        }
        if left.iter().any(|left| *left > 0) { Err(LayoutError::NoRanks) } else { Ok(()) }
    }

    /// The entry of this node, if the launch uses it.
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
    /// The exit code that a shell would report: the exit code, or 128 + signal.
    pub fn code(self) -> i32 {
        match self {
            Self::Exited { code } | Self::NotStarted { code } => i32::from(code),
            Self::Signalled { signal } => 128 + i32::from(signal),
        }
    }
}

/// Processes of one launch that the kernel killed for lack of memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemoryKill {
    /// The launch's number; 0: the script.
    pub launch: u32,
    /// Whether the kernel killed all its processes, or only one.
    pub whole: bool,
    /// Peak memory use of the launch in bytes, if the kernel reports it. (With cgroup version 1: of
    /// all work of the allocation on that node.)
    pub had_bytes: Option<u64>,
    /// The allocation's memory limit on that node, in bytes; `None`: it has no limit of its own,
    /// and the machine ran out of memory.
    pub limit_bytes: Option<u64>,
}

impl MemoryKill {
    /// What happened on which node, as a sentence for people.
    pub fn on(&self, node: &NodeId) -> String {
        format!("out of memory on {node}: {self}")
    }
}

/// The exit code of processes killed for lack of memory: 128 + SIGKILL.
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

    #[test]
    fn a_memory_kill_says_how_much_memory_was_used() {
        let kill = MemoryKill { launch: 2, whole: true, had_bytes: Some(63 << 20), limit_bytes: Some(64 << 20) };
        assert_eq!(kill.to_string(), "launch 2 was killed: it had 63 MiB, the allocation's limit is 64 MiB");
        let kill = MemoryKill { launch: 0, whole: false, had_bytes: None, limit_bytes: None };
        assert_eq!(kill.to_string(), "a process of the script was killed: it wanted more memory, and the machine had no more");
    }
}

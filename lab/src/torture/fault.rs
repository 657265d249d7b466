//! One fault: its kind, its subject, and how it is caused and ended.

use crate::cluster::Cluster;
use crate::faults;
use crate::lattice::Lattice;
use crate::networks::{Direction, From};
use anyhow::{Context, Result};
use serde::Serialize;
use std::fmt;
use std::path::Path;
use std::time::Duration;

/// The kind of a fault.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum What {
    KillAgent {
        node: String,
    },
    StopAgent {
        node: String,
    },
    RestartAgent {
        node: String,
    },
    /// The agent and all work of a node.
    LoseNode {
        node: String,
    },
    /// The index among its shims.
    KillShim {
        node: String,
        number: u64,
    },
    KillMember {
        id: u64,
    },
    KillLeader,
    StopMember {
        id: u64,
    },
    /// All members.
    KillQuorum,
    Cut {
        node: String,
        from: From,
        direction: Direction,
    },
    CutMember {
        id: u64,
        direction: Direction,
    },
    AgentClock {
        node: String,
        seconds: i64,
    },
    MemberClock {
        id: u64,
        seconds: i64,
    },
    SlowDisk {
        id: u64,
        ms: u64,
    },
    FullDisk {
        daemon: String,
    },
}

/// One fault of a plan.
#[derive(Clone, Debug)]
pub struct Fault {
    /// From 1.
    pub number: u32,
    /// In milliseconds after the begin.
    pub at_ms: u64,
    /// Its duration in milliseconds; 0: it ends at once.
    pub for_ms: u64,
    pub what: What,
}

/// What a fault hit, for ending it.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Hit {
    /// Members to start again.
    pub members: Vec<u64>,
    /// Runs whose shims were killed, as ALLOCATION-EPOCH.
    pub runs: Vec<String>,
}

impl What {
    /// The subjects that must not have another fault at the same time: nodes by name, `quorum` for faults that remove a
    /// member, clocks and disks each separately.
    pub fn hits(&self) -> Vec<String> {
        match self {
            Self::KillAgent { node }
            | Self::StopAgent { node }
            | Self::RestartAgent { node }
            | Self::LoseNode { node }
            | Self::KillShim { node, .. }
            | Self::Cut { node, from: From::All | From::Quorum, .. } => vec![node.clone()],
            Self::Cut { node, from: From::Peer(peer), .. } => vec![node.clone(), peer.clone()],
            Self::KillMember { .. } | Self::KillLeader | Self::StopMember { .. } | Self::KillQuorum | Self::CutMember { .. } => {
                vec!["quorum".to_owned()]
            }
            Self::AgentClock { node, .. } => vec![format!("clock of {node}")],
            Self::MemberClock { id, .. } => vec![format!("clock of member-{id}")],
            Self::SlowDisk { id, .. } => vec![format!("disk of member-{id}")],
            Self::FullDisk { daemon } if daemon.starts_with("member-") => vec!["quorum".to_owned()],
            Self::FullDisk { daemon } => vec![daemon.clone()],
        }
    }

    /// The nodes whose work it may affect.
    pub fn nodes(&self) -> Vec<&str> {
        match self {
            Self::KillAgent { node }
            | Self::StopAgent { node }
            | Self::RestartAgent { node }
            | Self::LoseNode { node }
            | Self::KillShim { node, .. }
            | Self::AgentClock { node, .. }
            | Self::Cut { node, from: From::All | From::Quorum, .. } => vec![node],
            Self::Cut { node, from: From::Peer(peer), .. } => vec![node, peer],
            Self::FullDisk { daemon } if !daemon.starts_with("member-") => vec![daemon],
            Self::KillMember { .. }
            | Self::KillLeader
            | Self::StopMember { .. }
            | Self::KillQuorum
            | Self::CutMember { .. }
            | Self::MemberClock { .. }
            | Self::SlowDisk { .. }
            | Self::FullDisk { .. } => Vec::new(),
        }
    }

    /// Whether it can delay the acknowledgement of the node's heartbeats for longer than usual.
    pub fn isolates(&self, node: &str) -> bool {
        match self {
            Self::KillAgent { .. } | Self::StopAgent { .. } | Self::RestartAgent { .. } | Self::LoseNode { .. } | Self::Cut { .. } => {
                self.nodes().contains(&node)
            }
            Self::KillMember { .. }
            | Self::KillLeader
            | Self::StopMember { .. }
            | Self::KillQuorum
            | Self::CutMember { .. }
            | Self::SlowDisk { .. }
            | Self::FullDisk { .. } => true,
            Self::KillShim { .. } | Self::AgentClock { .. } | Self::MemberClock { .. } => false,
        }
    }

    /// Causes the fault.
    pub fn begin(&self, dir: &Path) -> Result<Hit> {
        let mut hit = Hit::default();
        match self {
            Self::KillAgent { node } => drop(faults::kill_node(dir, node)?),
            Self::StopAgent { node } => drop(faults::stop_node(dir, node)?),
            Self::RestartAgent { node } => drop(faults::restart_node(dir, node)?),
            Self::LoseNode { node } => hit.runs = faults::lose_node(dir, node)?,
            Self::KillShim { node, number } => hit.runs.extend(faults::kill_shim(dir, node, usize::try_from(*number)?)?),
            Self::KillMember { id } => hit.members = kill(dir, &[*id])?,
            Self::KillLeader => hit.members = kill(dir, &[leader(dir)?])?,
            Self::StopMember { id } => drop(faults::stop_member(dir, *id)?),
            Self::KillQuorum => hit.members = kill(dir, &Cluster::load(dir)?.members.iter().map(|m| m.id).collect::<Vec<_>>())?,
            Self::Cut { node, from, direction } => drop(faults::cut_node(dir, node, from, *direction)?),
            Self::CutMember { id, direction } => drop(faults::cut_node(dir, &member(*id), &From::All, *direction)?),
            Self::AgentClock { node, seconds } => faults::shift_clock(dir, node, *seconds)?,
            Self::MemberClock { id, seconds } => faults::shift_member_clock(dir, *id, *seconds)?,
            Self::SlowDisk { id, ms } => faults::slow_disk(dir, *id, Duration::from_millis(*ms))?,
            Self::FullDisk { daemon } => faults::fill_disk(dir, daemon)?,
        }
        Ok(hit)
    }

    /// Ends the fault.
    pub fn end(&self, dir: &Path, hit: &Hit) -> Result<()> {
        match self {
            Self::KillAgent { node } | Self::LoseNode { node } => drop(faults::start_node(dir, node)?),
            Self::StopAgent { node } => drop(faults::cont_node(dir, node)?),
            Self::RestartAgent { .. } | Self::KillShim { .. } => {}
            Self::KillMember { .. } | Self::KillLeader | Self::KillQuorum => {
                hit.members.iter().try_for_each(|id| faults::start_member(dir, *id).map(drop))?;
            }
            Self::StopMember { id } => drop(faults::cont_member(dir, *id)?),
            Self::Cut { node, .. } => drop(faults::heal_node(dir, node)?),
            Self::CutMember { id, .. } => drop(faults::heal_node(dir, &member(*id))?),
            Self::AgentClock { node, .. } => faults::shift_clock(dir, node, 0)?,
            Self::MemberClock { id, .. } => faults::shift_member_clock(dir, *id, 0)?,
            Self::SlowDisk { id, .. } => faults::slow_disk(dir, *id, Duration::ZERO)?,
            Self::FullDisk { daemon } => faults::empty_disk(dir, daemon)?,
        }
        Ok(())
    }
}

fn member(id: u64) -> String {
    format!("member-{id}")
}

fn kill(dir: &Path, ids: &[u64]) -> Result<Vec<u64>> {
    ids.iter().map(|id| faults::kill_member(dir, *id).map(|_| *id)).collect()
}

/// The leading member, according to the first agent that answers.
fn leader(dir: &Path) -> Result<u64> {
    let cluster = Cluster::load(dir)?;
    let ask = |node: &str| Lattice::to(&cluster, node).ok()?.leader().ok().flatten();
    let running = cluster.nodes.iter().filter(|n| n.daemon.alive());
    running.into_iter().find_map(|n| ask(&n.id)).context("no agent names a leader")
}

impl fmt::Display for What {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let cut = |direction: &Direction| match direction {
            Direction::Both => "both ways",
            Direction::In => "what is sent to it",
            Direction::Out => "what it sends",
        };
        match self {
            Self::KillAgent { node } => write!(f, "SIGKILL to the agent of {node}"),
            Self::StopAgent { node } => write!(f, "SIGSTOP to the agent of {node}"),
            Self::RestartAgent { node } => write!(f, "the agent of {node} is restarted"),
            Self::LoseNode { node } => write!(f, "SIGKILL to all of {node}"),
            Self::KillShim { node, number } => write!(f, "SIGKILL to shim {number} of {node}"),
            Self::KillMember { id } => write!(f, "SIGKILL to member-{id}"),
            Self::KillLeader => f.write_str("SIGKILL to the leader"),
            Self::StopMember { id } => write!(f, "SIGSTOP to member-{id}"),
            Self::KillQuorum => f.write_str("SIGKILL to all members"),
            Self::Cut { node, from, direction } => {
                let from = match from {
                    From::All => "everybody",
                    From::Quorum => "the quorum",
                    From::Peer(peer) => peer,
                };
                write!(f, "{node} is cut from {from}, {}", cut(direction))
            }
            Self::CutMember { id, direction } => write!(f, "member-{id} is cut from everybody, {}", cut(direction)),
            Self::AgentClock { node, seconds } => write!(f, "the clock of {node} is wrong by {seconds} s"),
            Self::MemberClock { id, seconds } => write!(f, "the clock of member-{id} is wrong by {seconds} s"),
            Self::SlowDisk { id, ms } => write!(f, "each sync of member-{id} takes {ms} ms longer"),
            Self::FullDisk { daemon } => write!(f, "the disk of {daemon} is full"),
        }
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.for_ms {
            0 => write!(f, "f{}: {}", self.number, self.what),
            for_ms => write!(f, "f{}: {}, for {:.1} s", self.number, self.what, for_ms as f64 / 1000.0),
        }
    }
}

//! vClusters: queues, each with a scheduler of its own and, where it has some, nodes of its own.

use crate::ids::Revision;
use crate::node::Node;
use crate::time::Timestamp;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;
use thiserror::Error;

/// The vCluster that always exists and has no record: of all work that names none, and of all nodes that have no other home.
pub const DEFAULT_VCLUSTER: &str = "default";
/// Bytes of a name.
pub const NAME_BYTES_MAX: usize = 64;

/// A vCluster as it was made. Which nodes are its own is said by the nodes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct VCluster {
    /// As specifications name it.
    pub name: String,
    /// How its queue is served.
    pub scheduler: SchedulerKind,
    /// The tenant whose work alone it takes; empty: everybody's.
    pub tenant: String,
    /// How many nodes have it as their home. 0: its work is placed on those that have none.
    pub nodes: u32,
    /// Who made it.
    pub made_by: String,
    /// When.
    pub made_at: Timestamp,
    /// The last change.
    pub revision: Revision,
}

/// How a queue is served.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum SchedulerKind {
    /// First come first served.
    InteractiveFifo,
}

/// Kinds that the documents have and this version has not.
const NOT_BUILT: &[&str] = &["hpc-backfill", "ml-training", "service-bin-pack", "sensitive-reservation"];

/// Why a text is no scheduler of this version.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum SchedulerError {
    /// A documented one.
    #[error("scheduler {0} is not built in this version, so it is refused; interactive-fifo is")]
    NotBuilt(&'static str),
    /// Any other.
    #[error("{0:?} is no scheduler; interactive-fifo is")]
    Unknown(String),
}

impl fmt::Display for SchedulerKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::InteractiveFifo => "interactive-fifo",
        })
    }
}

impl FromStr for SchedulerKind {
    type Err = SchedulerError;

    fn from_str(text: &str) -> Result<Self, SchedulerError> {
        match text {
            "interactive-fifo" | "fifo" => Ok(Self::InteractiveFifo),
            _ => Err(match NOT_BUILT.iter().find(|kind| **kind == text) {
                Some(kind) => SchedulerError::NotBuilt(kind),
                None => SchedulerError::Unknown(text.chars().take(40).collect()),
            }),
        }
    }
}

impl VCluster {
    /// The queue in which work stands whose label names `named`; there may be none of that name.
    pub fn queue(named: Option<&Self>) -> &str {
        named.map_or(DEFAULT_VCLUSTER, |v| &v.name)
    }

    /// Whether a node is one for such work, whatever is free of it: its home alone decides.
    pub fn may_use(named: Option<&Self>, node: &Node) -> bool {
        node.home == named.filter(|v| v.nodes > 0).map_or("", |v| &v.name)
    }

    /// Why it is none; `None`: it is one.
    pub fn keeps_off(named: Option<&Self>, node: &Node) -> Option<String> {
        let queue = Self::queue(named);
        match node.home.as_str() {
            _ if Self::may_use(named, node) => None,
            "" => Some(format!("is of vCluster {DEFAULT_VCLUSTER}; {queue} has nodes of its own")),
            other => Some(format!("is of vCluster {other}, not of {queue}")),
        }
    }
}

/// Whether a vCluster can have this name: it is part of a lease's, and typed in shells.
pub fn is_name(text: &str) -> bool {
    let plain = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.');
    !text.is_empty() && text.len() <= NAME_BYTES_MAX && text.bytes().all(plain)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_scheduler_is_built_or_refused_by_its_name() {
        for text in ["interactive-fifo", "fifo"] {
            assert_eq!(text.parse(), Ok(SchedulerKind::InteractiveFifo));
        }
        assert_eq!(SchedulerKind::InteractiveFifo.to_string().parse(), Ok(SchedulerKind::InteractiveFifo));
        for kind in NOT_BUILT {
            let refused = kind.parse::<SchedulerKind>().unwrap_err().to_string();
            assert!(refused.contains(kind) && refused.contains("not built"), "{refused}");
        }
        assert!(matches!("lottery".parse::<SchedulerKind>(), Err(SchedulerError::Unknown(_))));
    }

    #[test]
    fn a_name_is_one_word_of_a_shell() {
        assert!(is_name("hpc-batch") && is_name("a.b_1") && is_name(&"x".repeat(NAME_BYTES_MAX)));
        for bad in ["", "a b", "a/b", "a\n", "é", &"x".repeat(NAME_BYTES_MAX + 1)] {
            assert!(!is_name(bad), "{bad:?}");
        }
    }
}

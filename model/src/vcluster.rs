//! vClusters: queues, each with a scheduler of its own and possibly with nodes of its own.

use crate::duration::millis;
use crate::ids::Revision;
use crate::node::Node;
use crate::spec::AllocationSpec;
use crate::time::Timestamp;
use crate::weights::{Profile, Weights};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;
use thiserror::Error;

/// The vCluster that always exists. It holds all work that names no vCluster, and all nodes that
/// belong to none. It has a record only if its weights or its interval have been set.
pub const DEFAULT_VCLUSTER: &str = "default";
/// The longest [`VCluster::cycle_interval_ms`]: ten minutes.
pub const CYCLE_INTERVAL_MS_MAX: u32 = 600_000;
/// Largest size of a name, in bytes.
pub const NAME_BYTES_MAX: usize = 64;

/// A vCluster as created. Its nodes are not listed here: each node's record names its vCluster.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct VCluster {
    /// The name used in specifications.
    pub name: String,
    /// Its scheduler.
    pub scheduler: SchedulerKind,
    /// The only tenant whose work it accepts; empty: every tenant.
    pub tenant: String,
    /// Number of nodes that belong to it. 0: its work is placed on nodes that belong to no
    /// vCluster.
    pub nodes: u32,
    /// The weights of its score; `None`: those of its scheduler's profile.
    pub weights: Option<Weights>,
    /// The shortest time between two rounds of its scheduler, in milliseconds; 0: a round follows
    /// each change.
    pub cycle_interval_ms: u32,
    /// Whether its work may use nodes that other vClusters lend.
    pub borrows: bool,
    /// The longest walltime of work of other vClusters that may use its nodes while they are idle, in
    /// milliseconds. `None`: it lends no nodes.
    pub lend_ms: Option<u64>,
    /// Who created it.
    pub created_by: String,
    /// When it was created.
    pub created_at: Timestamp,
    /// The revision of its latest change.
    pub revision: Revision,
}

/// The kinds of schedulers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum SchedulerKind {
    /// First come first served.
    InteractiveFifo,
    /// By class and score; the first in the queue have reservations, and others may begin before
    /// them if that delays none of them. The score has the weights for batch work.
    HpcBackfill,
    /// The same with the weights for training: topology and conformance before the time of waiting.
    MlTraining,
    /// The same with the weights for services.
    ServiceBinPack,
}

impl SchedulerKind {
    /// The scheduler of the default vCluster.
    pub const OF_DEFAULT: Self = Self::HpcBackfill;
    /// All kinds.
    pub const ALL: [Self; 4] = [Self::HpcBackfill, Self::MlTraining, Self::ServiceBinPack, Self::InteractiveFifo];

    fn name(self) -> &'static str {
        match self {
            Self::InteractiveFifo => "interactive-fifo",
            Self::HpcBackfill => "hpc-backfill",
            Self::MlTraining => "ml-training",
            Self::ServiceBinPack => "service-bin-pack",
        }
    }

    /// The profile of its score; `None`: it serves in the order of submission, without a score.
    pub fn profile(self) -> Option<Profile> {
        match self {
            Self::InteractiveFifo => None,
            Self::HpcBackfill => Some(Profile::HpcBatch),
            Self::MlTraining => Some(Profile::MlTraining),
            Self::ServiceBinPack => Some(Profile::Service),
        }
    }
}

/// Kinds in the documents that this version does not implement.
const UNSUPPORTED_KINDS: &[&str] = &["sensitive-reservation"];
const KINDS: &str = "there are hpc-backfill, ml-training, service-bin-pack and interactive-fifo";

/// Why a text is not a scheduler of this version.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum SchedulerError {
    /// Documented, but not implemented.
    #[error("scheduler {0} is not built in this version; {KINDS}")]
    NotBuilt(&'static str),
    /// Unknown.
    #[error("{0:?} is not a scheduler; {KINDS}")]
    Unknown(String),
}

impl fmt::Display for SchedulerKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for SchedulerKind {
    type Err = SchedulerError;

    fn from_str(text: &str) -> Result<Self, SchedulerError> {
        let text = if text == "fifo" { Self::InteractiveFifo.name() } else { text };
        if let Some(kind) = Self::ALL.into_iter().find(|kind| kind.name() == text) {
            return Ok(kind);
        }
        Err(match UNSUPPORTED_KINDS.iter().find(|kind| **kind == text) {
            Some(kind) => SchedulerError::NotBuilt(kind),
            None => SchedulerError::Unknown(text.chars().take(40).collect()),
        })
    }
}

impl VCluster {
    /// The name of the vCluster `named`, or of the default vCluster for `None`.
    pub fn queue(named: Option<&Self>) -> &str {
        named.map_or(DEFAULT_VCLUSTER, |v| &v.name)
    }

    /// Whether work of the vCluster `named` may use a node. Only the node's vCluster counts, not
    /// whether the node is free.
    pub fn may_use(named: Option<&Self>, node: &Node) -> bool {
        node.home == named.filter(|v| v.nodes > 0).map_or("", |v| &v.name)
    }

    /// Whether a node of another vCluster is lent to work with this requeue count: the work's vCluster
    /// borrows, the node's lends for long enough, and the work gives the node back and continues later.
    /// `record` has the record of a vCluster, if it has one.
    pub fn lends<'v>(record: impl Fn(&str) -> Option<&'v Self>, node: &Node, spec: &AllocationSpec, requeue_count: u32) -> bool {
        let named = record(&spec.vcluster);
        let borrows = record(Self::queue(named)).is_some_and(|borrower| borrower.borrows);
        let lender = if node.home.is_empty() { DEFAULT_VCLUSTER } else { &node.home };
        let is_short = |lend_ms: u64| spec.walltime.is_some_and(|walltime| millis(walltime) <= lend_ms);
        borrows
            && !Self::may_use(named, node)
            && record(lender).and_then(|lender| lender.lend_ms).is_some_and(is_short)
            && spec.never_gives_back(requeue_count).is_none()
    }

    /// Why work of the vCluster `named` may not use a node; `None`: it may.
    pub fn keeps_off(named: Option<&Self>, node: &Node) -> Option<String> {
        let queue = Self::queue(named);
        match node.home.as_str() {
            _ if Self::may_use(named, node) => None,
            "" => Some(format!("is of vCluster {DEFAULT_VCLUSTER}; {queue} has nodes of its own")),
            other => Some(format!("is of vCluster {other}, not of {queue}")),
        }
    }
}

/// Work whose vCluster borrows nodes.
#[derive(Clone, Copy, Debug)]
pub struct Borrower<'v> {
    /// The record of the vCluster that it names, if that has one.
    named: Option<&'v VCluster>,
}

impl<'v> Borrower<'v> {
    /// The work with this specification; `None`: its vCluster borrows no nodes. `record` has the
    /// record of a vCluster, if it has one.
    pub fn of(record: impl Fn(&str) -> Option<&'v VCluster>, spec: &AllocationSpec) -> Option<Self> {
        let named = record(&spec.vcluster);
        let borrows = record(VCluster::queue(named)).is_some_and(|borrower| borrower.borrows);
        borrows.then_some(Self { named })
    }

    /// Whether the work has the node from the vCluster with the record `lender`; `None`: the
    /// default one.
    pub fn has_from(self, lender: Option<&VCluster>, node: &Node) -> bool {
        !VCluster::may_use(self.named, node) && VCluster::may_use(lender, node)
    }
}

/// Whether this is a valid name: it becomes part of a lease's name and is typed in shells.
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
        for kind in SchedulerKind::ALL {
            assert_eq!(kind.to_string().parse(), Ok(kind));
        }
        for kind in UNSUPPORTED_KINDS {
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

//! How the members stand.

use lattice_ledger::shortage::Shortage;
use lattice_model::{AllocationState, Generation, MemberId, NodeId, NodeState, Revision, Timestamp};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt;

/// How the members stand, as one of them sees it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct QuorumStatus {
    pub cluster: String,
    /// The member that answers.
    pub member: MemberId,
    pub leader: Option<MemberId>,
    pub term: u64,
    pub generation: Generation,
    pub revision: Revision,
    pub members: Vec<MemberStatus>,
    pub nodes: Vec<(NodeState, u32)>,
    pub allocations: Vec<(AllocationState, u32)>,
    pub audit_records: u64,
    pub at: Timestamp,
    /// What the member that answers refused to callers whose certificate does not fit, and how often since it began.
    pub refused: Vec<(String, u64)>,
    /// The committed cluster level.
    pub level: u32,
    /// After a recovery: nodes that are not Down and have not said yet what they run.
    pub awaited: Vec<NodeId>,
    /// How far those are who are told what happens to nodes.
    pub notified: Vec<NotifyStanding>,
    /// Nodes that fell silent together, so that none of them is declared Down; only the leader knows it.
    pub held_back: u64,
    /// What is amiss with the members' clocks, as far as this member knows.
    pub clocks: Option<ClockAlarm>,
}

/// What is amiss with the members' clocks.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ClockAlarm {
    /// These are ahead of those of the majority by so many milliseconds.
    Apart(BTreeMap<MemberId, i64>),
    /// No majority of them agrees, or answers.
    NoMajority,
    /// They agree, and the ledger's time is so many milliseconds behind them: it never leaps.
    Time { behind_ms: i64 },
}

impl ClockAlarm {
    /// Whether it says the same of the same members, by other numbers perhaps.
    pub fn is_like(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Apart(these), Self::Apart(those)) => these.keys().eq(those.keys()),
            (Self::NoMajority, Self::NoMajority) | (Self::Time { .. }, Self::Time { .. }) => true,
            (Self::Apart(_) | Self::NoMajority | Self::Time { .. }, _) => false,
        }
    }
}

impl fmt::Display for ClockAlarm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let off = |ahead_ms: i64| (ahead_ms.unsigned_abs() / 1000, if ahead_ms < 0 { "behind" } else { "ahead of" });
        match self {
            Self::Apart(members) => {
                let each = members.iter().map(|(id, ahead_ms)| {
                    let (seconds, side) = off(*ahead_ms);
                    format!("the clock of member {id} is {seconds} s {side} those of the majority")
                });
                write!(f, "{}: set it right (NTP)", each.collect::<Vec<_>>().join(", "))
            }
            Self::NoMajority => f.write_str(
                "no majority of the members' clocks agrees to 5 s: the ledger's time goes on from its last entry; set the clocks right (NTP)",
            ),
            Self::Time { behind_ms } => {
                let (seconds, side) = off(behind_ms.saturating_neg());
                write!(f, "the ledger's time is {seconds} s {side} the members' clocks, and goes there slowly; a new leader begins with theirs")
            }
        }
    }
}

/// One way of notification in a [`QuorumStatus`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NotifyStanding {
    /// The setting that it is configured with.
    pub way: String,
    /// Everything up to this audit record was taken.
    pub upto: u64,
    /// Why nothing more is taken at present; only the leader knows it.
    pub trouble: Option<String>,
}

/// One member in a [`QuorumStatus`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemberStatus {
    pub id: MemberId,
    /// Where agents reach it, `host:port`.
    pub service: String,
    /// Where members reach it, `host:port`.
    pub raft: String,
    /// Whether it votes; one that does not is learning.
    pub votes: bool,
    /// The last log index known to be on its disk; `None` where this member does not know.
    pub matched: Option<u64>,
    /// The highest cluster level that it can follow; `None` where this member does not know.
    pub level: Option<u32>,
    /// When its certificate ends; `None` where this member does not know.
    pub certificate_until: Option<Timestamp>,
    /// What its disk lacks, as far as this member knows.
    pub shortage: Option<Shortage>,
    /// `leader`, `follower`, or `silent` (as the leader sees it), or `unknown` (asked of a follower).
    pub standing: String,
}

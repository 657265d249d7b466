//! The state of the members.

use lattice_ledger::EndedStatus;
use lattice_ledger::shortage::Shortage;
use lattice_model::{AllocationState, Generation, MemberId, NodeId, NodeState, Revision, Timestamp};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt;

/// The state of the members as seen by one of them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct QuorumStatus {
    pub cluster: String,
    /// The answering member.
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
    /// How often the answering member refused callers because of their certificate since it
    /// started, by cause.
    pub refused: Vec<(String, u64)>,
    /// The committed cluster level.
    pub level: u32,
    /// After a recovery: nodes that are not Down and have not reported what they run.
    pub awaited: Vec<NodeId>,
    /// The progress of notifications.
    pub notified: Vec<NotifyStatus>,
    /// Number of nodes that fell silent together, so that none of them becomes Down; known only to
    /// the leader.
    pub held_back: u64,
    /// A problem with the members' clocks, if known to this member.
    pub clocks: Option<ClockAlarm>,
    /// How much ended work is kept.
    pub ended: EndedStatus,
}

/// A problem with the members' clocks.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ClockAlarm {
    /// The clocks of these members are ahead of the majority's by this many milliseconds.
    Skewed(BTreeMap<MemberId, i64>),
    /// No majority of clocks agrees or answers.
    NoMajority,
    /// The clocks agree, but the ledger's time is this many milliseconds behind them: it never
    /// jumps.
    LedgerTime { behind_ms: i64 },
}

impl ClockAlarm {
    /// Whether it is the same problem with the same members, ignoring the numbers.
    pub fn is_like(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Skewed(these), Self::Skewed(those)) => these.keys().eq(those.keys()),
            (Self::NoMajority, Self::NoMajority) | (Self::LedgerTime { .. }, Self::LedgerTime { .. }) => true,
            (Self::Skewed(_) | Self::NoMajority | Self::LedgerTime { .. }, _) => false,
        }
    }
}

impl fmt::Display for ClockAlarm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let off = |ahead_ms: i64| (ahead_ms.unsigned_abs() / 1000, if ahead_ms < 0 { "behind" } else { "ahead of" });
        match self {
            Self::Skewed(members) => {
                let each = members.iter().map(|(id, ahead_ms)| {
                    let (seconds, side) = off(*ahead_ms);
                    format!("the clock of member {id} is {seconds} s {side} those of the majority")
                });
                write!(f, "{}: set it right (NTP)", each.collect::<Vec<_>>().join(", "))
            }
            Self::NoMajority => f.write_str(
                "no majority of the members' clocks agrees to 5 s: the ledger's time continues from its last entry; set the clocks right (NTP)",
            ),
            Self::LedgerTime { behind_ms } => {
                let (seconds, side) = off(behind_ms.saturating_neg());
                write!(f, "the ledger's time is {seconds} s {side} the members' clocks, and approaches them slowly; a new leader begins with their time")
            }
        }
    }
}

/// The progress of one kind of notification in a [`QuorumStatus`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NotifyStatus {
    /// The name of its configuration setting.
    pub channel: String,
    /// Everything up to this audit record was delivered.
    pub delivered_seq: u64,
    /// Why nothing is being delivered now; known only to the leader.
    pub last_error: Option<String>,
}

/// One member in a [`QuorumStatus`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemberStatus {
    pub id: MemberId,
    /// Its address for agents, `host:port`.
    pub service: String,
    /// Its address for members, `host:port`.
    pub raft: String,
    /// Whether it votes; otherwise it is a learner.
    pub votes: bool,
    /// The last log index known to be on its disk; `None`: unknown to this member.
    pub matched: Option<u64>,
    /// The highest cluster level that it supports; `None`: unknown to this member.
    pub level: Option<u32>,
    /// When its certificate expires; `None`: unknown to this member.
    pub certificate_until: Option<Timestamp>,
    /// Its shortage of disk space, if known to this member.
    pub shortage: Option<Shortage>,
    /// `leader`, `follower`, `learner` or `unreachable`, as the leader sees it. Another member knows only the leader and
    /// itself; its answer has `unknown` for the others.
    pub standing: String,
}

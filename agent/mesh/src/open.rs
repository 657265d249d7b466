//! The first frame of each stream, and the messages that have no file of their own.

use super::binding::WireBinding;
use super::launch::WireOutcome;
use super::shape::WireLaunchOptions;
use lattice_model::Principal;
use rkyv::{Archive, Deserialize, Serialize};

/// The first frame of a stream: the request that the stream is for.
#[derive(Clone, Debug, PartialEq, Eq, Archive, Serialize, Deserialize)]
pub enum Open {
    /// From an `api` agent, for a user: send the output that an allocation wrote on this node.
    /// [`LogItem`]s follow.
    Logs(Box<LogsOpen>),
    /// From an `api` agent, for a user: start a launch with this node as its head. [`LaunchItem`]s
    /// follow.
    Launch(Box<LaunchOpen>),
    /// From an `api` agent, for a user: abort a launch whose head is here. One [`HeadAnswer`]
    /// follows.
    Abort(AbortOpen),
    /// From an agent, for a user: run a program on a terminal. [`super::terminal::ToTerminal`]s
    /// follow in one direction and [`super::terminal::FromTerminal`]s in the other.
    Attach(super::terminal::AttachOpen),
    /// From an `api` agent, for a user: type at the terminal of a launch whose head is here. One
    /// [`HeadAnswer`] follows, and after it [`super::terminal::ToTerminal`]s.
    Keyboard(AbortOpen),
    /// From an `api` agent, for a user: follow the entry point of an allocation whose head is here.
    /// [`EntryItem`]s follow.
    Entry(EntryOpen),
    /// From an `api` agent: describe the state of allocations on this node. One [`StatusTexts`]
    /// follows.
    StatusTexts(StatusTextsOpen),
    /// From any agent: describe this node. One [`super::fact::FactAnswer`] follows.
    Fact(super::fact::FactOpen),
    /// From an agent that reaches no member: relay a session to one. One [`RelayAnswer`] follows.
    /// After [`RelayAnswer::Begun`] the stream carries the raw bytes of the session's TLS and no
    /// more frames.
    RelaySession,
    /// From an agent of a launch's tree: serve a subtree. [`super::branch::Down`]s follow in one
    /// direction and [`super::branch::Up`]s in the other.
    Branch(Box<super::branch::BranchOpen>),
    /// From an `api` agent, for a user: standard input of a launch whose head is here. One
    /// [`HeadAnswer`] follows, then [`WireInputChunk`](super::input::WireInputChunk)s in one direction and
    /// [`WireInputAck`](super::input::WireInputAck)s in the other.
    Input(AbortOpen),
    /// From an `api` agent, for a user: make a checkpoint of an allocation whose head is here.
    /// [`super::checkpoint::CheckpointItem`]s follow.
    Checkpoint(Box<super::checkpoint::CheckpointOpen>),
    /// From an allocation's head: save this node's part of a checkpoint.
    /// [`super::checkpoint::ToSaver`]s follow in one direction and
    /// [`super::checkpoint::FromSaver`]s in the other.
    CheckpointPart(Box<super::checkpoint::PartOpen>),
    /// From an `api` agent or a node of the allocation, for a user: what the allocation's work uses
    /// on this node. One [`super::usage::UsageAnswer`] follows.
    Usage(super::usage::UsageOpen),
    /// From an `api` agent or a node of the allocation, for a user: monitor the allocation's work
    /// on this node while it runs. [`super::monitor::MonitorItem`]s follow.
    Monitor(Box<super::monitor::MonitorOpen>),
    /// From an `api` agent or a node of the allocation, for a user: diagnose the allocation's work
    /// on this node. One [`super::diagnosis::DiagnosisAnswer`] follows.
    Diagnosis(Box<super::diagnosis::DiagnosisOpen>),
    /// Callers as for [`Open::Usage`]: the activity of each GPU that the allocation has on this
    /// node. One [`super::gpu_usage::GpusAnswer`] follows.
    UsageGpus(Box<super::usage::UsageOpen>),
    /// From an `api` agent, for an operator: take a new fingerprint of this node's software and
    /// firmware. One [`super::conformance::FingerprintAnswer`] follows.
    Fingerprint,
    /// From the broker: list the allocations with their head here that are saving themselves now.
    /// One [`super::checkpoint::SavingNow`] follows.
    Saving,
    /// Callers as for [`Open::Usage`]: the activity of each rank of the allocation's launches on
    /// this node. One [`super::ranks::RanksAnswer`] follows.
    Ranks(Box<super::usage::UsageOpen>),
    /// From an `api` agent, for a user: send a signal to the allocation's work on this node. One
    /// [`super::signal::SignalAnswer`] follows.
    Signal(Box<super::signal::SignalOpen>),
    /// From an `api` agent, for a user: what is in this agent's store of ended work. One
    /// [`super::history::HistoryAnswer`] follows.
    History(super::history::HistoryOpen),
    /// From an `api` agent, for a user: the steps of an allocation whose head is or was here. One
    /// [`super::steps::StepsAnswer`] follows.
    Steps(Box<super::steps::StepsOpen>),
}

/// Whether the agent relays the session.
#[derive(Clone, Debug, PartialEq, Eq, Archive, Serialize, Deserialize)]
pub enum RelayAnswer {
    /// It does, to the member that serves at this address, `host:port`.
    Begun { member: String },
    /// It does not.
    Refused { why: String },
}

/// Allocations whose state is asked for.
#[derive(Clone, Debug, PartialEq, Eq, Archive, Serialize, Deserialize)]
pub struct StatusTextsOpen {
    pub allocations: Vec<[u8; 16]>,
}

/// One line for people about each allocation asked for; empty: nothing to say.
#[derive(Clone, Debug, PartialEq, Eq, Archive, Serialize, Deserialize)]
pub struct StatusTexts(pub Vec<String>);

/// Which output is requested, and from where on.
#[derive(Clone, Debug, PartialEq, Eq, Archive, Serialize, Deserialize)]
pub struct LogsOpen {
    pub allocation: [u8; 16],
    pub epoch: u64,
    /// The launch's number; 0 is the script.
    pub launch: u32,
    pub rank: Option<u32>,
    pub stdout: bool,
    pub stderr: bool,
    pub follow: bool,
    /// Whether unfinished lines are sent as well, as they are written.
    pub at_once: bool,
    /// What the caller has already: (rank, stderr, segment, bytes of that segment).
    pub received: Vec<(u32, bool, u32, u64)>,
    /// Only this many last lines of each stream.
    pub tail: Option<u64>,
    /// Only output written after this time, in milliseconds since 1970.
    pub since_ms: Option<u64>,
    /// Only output written up to this time, in milliseconds since 1970.
    pub until_ms: Option<u64>,
    /// Whether to send [`LogItem::Written`].
    pub dated: bool,
    /// The user for whom the calling agent vouches.
    pub uid: u32,
    pub user: String,
}

/// An item of an answer to [`LogsOpen`].
#[derive(Clone, Debug, PartialEq, Eq, Archive, Serialize, Deserialize)]
pub enum LogItem {
    Chunk {
        rank: u32,
        stderr: bool,
        data: Vec<u8>,
        /// How often the program had truncated this output before.
        segment: u32,
        /// Where the piece ends, in bytes from the segment's beginning.
        end: u64,
    },
    /// What is missing from the output, as text for people.
    Notice(String),
    /// This node has no such output: there was none, or it was removed. The log store may have it.
    /// Nothing follows.
    NotHere,
    /// The output is complete. Nothing follows.
    End,
    /// When the chunks up to the next `Written` were written, in milliseconds since 1970. Sent only
    /// if [`LogsOpen::dated`] is set.
    Written(u64),
}

/// A launch that a user requests.
#[derive(Clone, Debug, PartialEq, Eq, Archive, Serialize, Deserialize)]
pub struct LaunchOpen {
    pub id: [u8; 16],
    pub allocation: [u8; 16],
    pub epoch: u64,
    pub argv: Vec<String>,
    pub ranks: u32,
    pub tasks_per_node: u32,
    pub binding: WireBinding,
    pub working_dir: String,
    pub env: Vec<(String, String)>,
    /// Rows and columns of a terminal for the first rank.
    pub pty: Option<(u16, u16)>,
    /// How the ranks are distributed, and what is reported about the launch.
    pub ask: WireLaunchOptions,
    pub uid: u32,
    pub user: String,
}

/// An existing launch of a user.
#[derive(Clone, Debug, PartialEq, Eq, Archive, Serialize, Deserialize)]
pub struct AbortOpen {
    pub id: [u8; 16],
    pub allocation: [u8; 16],
    pub epoch: u64,
    pub uid: u32,
    pub user: String,
}

/// An allocation of a user.
#[derive(Clone, Debug, PartialEq, Eq, Archive, Serialize, Deserialize)]
pub struct EntryOpen {
    pub allocation: [u8; 16],
    pub epoch: u64,
    pub uid: u32,
    pub user: String,
}

/// Progress of an entry point, as its head knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Archive, Serialize, Deserialize)]
pub enum EntryItem {
    /// It was ordered to start: its nodes have log files.
    Runs,
    /// It ended by itself with this code, and the allocation with it. Nothing follows. If the
    /// stream ends without this item, the caller learns the end from the quorum.
    Ended { code: i32 },
}

/// The head's answer to a request with an [`AbortOpen`].
#[derive(Clone, Debug, PartialEq, Eq, Archive, Serialize, Deserialize)]
pub enum HeadAnswer {
    /// Accepted: the launch ends soon or has ended, or the head takes the input.
    Done,
    Refused {
        why: String,
    },
}

/// Progress of a launch.
#[derive(Clone, Debug, PartialEq, Eq, Archive, Serialize, Deserialize)]
pub enum LaunchItem {
    Started {
        number: u32,
        nodes: Vec<(String, u32, u32)>,
    },
    Ended {
        code: i32,
        aborted: Option<String>,
    },
    Refused {
        why: String,
    },
    /// How ranks ended, if the caller asked for it; sent before [`LaunchItem::Ended`]. Per rank:
    /// (rank, index of its node in [`LaunchItem::Started`], outcome), ascending; outcome `None`:
    /// the rank was lost with its node.
    Exits(Vec<(u32, u32, Option<WireOutcome>)>),
}

/// The user for whom an `api` agent vouches.
pub fn vouched(uid: u32, user: &str) -> Principal {
    Principal { name: user.to_owned(), uid, gid: u32::MAX, groups: Vec::new() }
}

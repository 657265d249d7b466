//! What streams are opened for, and what is said by those that have no file of their own.

use super::binding::WireBinding;
use super::launch::WireOutcome;
use super::shape::WireAsk;
use lattice_model::Principal;
use rkyv::{Archive, Deserialize, Serialize};

/// The first frame of a stream: what it is for.
#[derive(Clone, Debug, PartialEq, Eq, Archive, Serialize, Deserialize)]
pub enum Open {
    /// From an `api` agent, for a user: an allocation's output on this node. Then [`LogItem`].
    Logs(Box<LogsOpen>),
    /// From an `api` agent, for a user: start a launch on its head. Then [`LaunchItem`].
    Launch(Box<LaunchOpen>),
    /// From an `api` agent, for a user: bring a launch of this head down. Then one [`HeadAnswer`].
    Abort(AbortOpen),
    /// From an agent, for a user: a program on a terminal. Then [`super::terminal::ToTerminal`] one way and
    /// [`super::terminal::FromTerminal`] the other.
    Attach(super::terminal::AttachOpen),
    /// From an `api` agent, for a user: what is typed at the terminal of a launch of this head. Then
    /// one [`HeadAnswer`], and [`super::terminal::ToTerminal`] after it.
    Keyboard(AbortOpen),
    /// From an `api` agent, for a user: how an allocation's entry point goes, of its head. Then [`EntryItem`].
    Entry(EntryOpen),
    /// From an `api` agent: what this one says of allocations on its node. Then one [`Words`].
    Words(WordsOpen),
    /// From any agent: what this one says of its node. Then one [`super::fact::FactAnswer`].
    Fact(super::fact::FactOpen),
    /// From an agent that reaches no member: carry a session there. Then one [`CarryAnswer`], and behind [`CarryAnswer::Begun`] no
    /// frames any more: the bytes of the session's TLS.
    Carry,
    /// From an agent of a launch's tree: serve a subtree of it. Then [`super::branch::Down`] one way and [`super::branch::Up`] the other.
    Branch(Box<super::branch::BranchOpen>),
    /// From an `api` agent, for a user: standard input of a launch of this head. Then one [`HeadAnswer`]; after it [`WirePiece`](super::input::WirePiece) one way
    /// and [`WireTaken`](super::input::WireTaken) the other.
    Input(AbortOpen),
    /// From an `api` agent, for a user: a checkpoint of an allocation of this head. Then [`super::checkpoint::CheckpointItem`].
    Checkpoint(Box<super::checkpoint::CheckpointOpen>),
    /// From an allocation's head: this node's part of a checkpoint. Then [`super::checkpoint::ToSaver`] one way and
    /// [`super::checkpoint::FromSaver`] the other.
    CheckpointPart(Box<super::checkpoint::PartOpen>),
    /// From an `api` agent or one of the allocation's nodes, for a user: what the allocation's work uses of this node. Then one
    /// [`super::usage::UsageAnswer`].
    Usage(super::usage::UsageOpen),
    /// From an `api` agent or one of the allocation's nodes, for a user: what is told of the allocation's work on this node while it runs.
    /// Then [`super::monitor::MonitorItem`].
    Monitor(Box<super::monitor::MonitorOpen>),
    /// From the same, for a user: what is the matter with the allocation's work on this node. Then one
    /// [`super::diagnosis::DiagnosisAnswer`].
    Diagnosis(Box<super::diagnosis::DiagnosisOpen>),
    /// As [`Open::Usage`]: what each GPU does that the allocation has on this node. Then one [`super::gpu_usage::GpusAnswer`].
    UsageGpus(Box<super::usage::UsageOpen>),
    /// From an `api` agent, for an operator: look once more at what this node is made of. Then one
    /// [`super::conformance::FingerprintAnswer`].
    Fingerprint,
    /// From the broker: which work whose head this node is saves itself now. Then one [`super::checkpoint::SavingNow`].
    Saving,
    /// As [`Open::Usage`]: what each rank does of the allocation's launches on this node. Then one [`super::ranks::RanksAnswer`].
    Ranks(Box<super::usage::UsageOpen>),
    /// From an `api` agent, for a user: a signal to the allocation's work on this node. Then one
    /// [`super::signal::SignalAnswer`].
    Signal(Box<super::signal::SignalOpen>),
}

/// Whether a session is carried.
#[derive(Clone, Debug, PartialEq, Eq, Archive, Serialize, Deserialize)]
pub enum CarryAnswer {
    /// To the member that serves there, `host:port`.
    Begun { member: String },
    /// It is not.
    Refused { why: String },
}

/// Whose word is wanted.
#[derive(Clone, Debug, PartialEq, Eq, Archive, Serialize, Deserialize)]
pub struct WordsOpen {
    pub allocations: Vec<[u8; 16]>,
}

/// What the agent says of each of them, for people; empty: nothing.
#[derive(Clone, Debug, PartialEq, Eq, Archive, Serialize, Deserialize)]
pub struct Words(pub Vec<String>);

/// Whose output is wanted, and from where on.
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
    /// Unfinished lines as well, as they come.
    pub at_once: bool,
    /// What the caller has: (rank, stderr, segment, bytes of that segment).
    pub received: Vec<(u32, bool, u32, u64)>,
    /// Only that many last lines of each stream.
    pub tail: Option<u64>,
    /// Only what was written after this, in milliseconds since 1970.
    pub since_ms: Option<u64>,
    /// Only what was written by this, in milliseconds since 1970.
    pub until_ms: Option<u64>,
    /// Whether [`LogItem::Written`] is wanted.
    pub dated: bool,
    /// The user for whom the calling agent vouches.
    pub uid: u32,
    pub user: String,
}

/// A piece of output.
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
    /// What is missing, for people.
    Notice(String),
    /// Nothing lies here: there was none, or it was removed. The log store may have it. Nothing follows.
    NotHere,
    /// There is no more, and will be no more.
    End,
    /// When the pieces that follow had been written, in milliseconds since 1970, up to the next of these. Only where
    /// [`LogsOpen::dated`] asks for it.
    Written(u64),
}

/// A launch that a user asks for.
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
    /// How its ranks are to lie, and what is to be told of them.
    pub ask: WireAsk,
    pub uid: u32,
    pub user: String,
}

/// A launch of a user's that is there already.
#[derive(Clone, Debug, PartialEq, Eq, Archive, Serialize, Deserialize)]
pub struct AbortOpen {
    pub id: [u8; 16],
    pub allocation: [u8; 16],
    pub epoch: u64,
    pub uid: u32,
    pub user: String,
}

/// An allocation of a user's.
#[derive(Clone, Debug, PartialEq, Eq, Archive, Serialize, Deserialize)]
pub struct EntryOpen {
    pub allocation: [u8; 16],
    pub epoch: u64,
    pub uid: u32,
    pub user: String,
}

/// How an entry point goes, as its head has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Archive, Serialize, Deserialize)]
pub enum EntryItem {
    /// It was told to begin: its nodes have files.
    Runs,
    /// It ended by itself with this code, and the allocation with it. Nothing follows. A stream that ends without this leaves the
    /// end for the quorum to tell.
    Ended { code: i32 },
}

/// What a head says to an [`AbortOpen`].
#[derive(Clone, Debug, PartialEq, Eq, Archive, Serialize, Deserialize)]
pub enum HeadAnswer {
    /// Its end follows, or it has ended; or what is typed is taken.
    Done,
    Refused {
        why: String,
    },
}

/// How a launch goes.
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
    /// How ranks ended, before [`LaunchItem::Ended`], where that was asked for: each with its node's place in
    /// [`LaunchItem::Started`], ascending; `None`: its node was lost with it.
    Exits(Vec<(u32, u32, Option<WireOutcome>)>),
}

/// The user that an `api` agent vouches for.
pub fn vouched(uid: u32, user: &str) -> Principal {
    Principal { name: user.to_owned(), uid, gid: u32::MAX, groups: Vec::new() }
}

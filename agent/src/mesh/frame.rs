//! What agents say to each other: rkyv, checked before it is touched, bounded, with a version in front.
//!
//! ```text
//!   frame = version (u8), 3 zero bytes, length (u32, little endian), rkyv
//! ```
//!
//! Every stream begins with an [`Open`] that says what it is for; what follows is of that purpose's types. The whole
//! protocol's version is in the handshake (ALPN), which refuses every other one.

use super::binding::WireBinding;
use super::call::WireCall;
use super::input::{WirePiece, WireTaken};
use super::shape::WireAsk;
use bytes::Bytes;
use lattice_model::binding::BindingRequest;
use lattice_model::{AllocationId, Epoch, LaunchId, LaunchShape, LaunchSpec, NodeRanks, Principal, RankBinding, RankOutcome, TerminalSize};
use rkyv::api::high::{HighDeserializer, HighSerializer, HighValidator};
use rkyv::rancor::Error as Rancor;
use rkyv::ser::allocator::ArenaHandle;
use rkyv::util::AlignedVec;
use rkyv::{Archive, Deserialize, Serialize};
use std::sync::atomic::{AtomicU64, Ordering};
use thiserror::Error;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

/// The protocol's version, in each frame and in [`ALPN`].
pub const VERSION: u8 = 2;
/// The handshake's protocol name.
pub const ALPN: &[u8] = b"lattice-mesh/2";
/// The longest frame, in bytes.
pub const FRAME_BYTES_MAX: usize = 64 * 1024 * 1024;

/// Frames refused since the agent began, by reason.
pub static REFUSED: Refused = Refused { version: AtomicU64::new(0), too_large: AtomicU64::new(0), malformed: AtomicU64::new(0) };

/// See [`REFUSED`].
#[derive(Debug)]
pub struct Refused {
    pub version: AtomicU64,
    pub too_large: AtomicU64,
    pub malformed: AtomicU64,
}

/// A frame that was not taken, or a stream that broke.
#[derive(Debug, Error)]
pub enum FrameError {
    #[error("a frame of version {0}; this agent speaks {VERSION}")]
    Version(u8),
    #[error("a frame of {0} bytes; at most {FRAME_BYTES_MAX} are taken")]
    TooLarge(usize),
    #[error("a frame that is no message of this stream")]
    Malformed,
    #[error("the stream ended")]
    Ended,
    #[error("the stream broke")]
    Io(#[from] std::io::Error),
}

impl FrameError {
    /// Why an agent that was asked did not answer, for people.
    pub fn unanswered(self) -> String {
        match self {
            Self::Ended | Self::Io(_) => "its agent does not answer: it is stopping, or cannot be reached".to_owned(),
            Self::Version(_) | Self::TooLarge(_) | Self::Malformed => self.to_string(),
        }
    }
}

/// One message as it travels: what is passed on to several peers is made once.
#[derive(Clone, Debug)]
pub struct Frame(Bytes);

impl Frame {
    /// A message's frame.
    pub fn of<T>(message: &T) -> Result<Self, FrameError>
    where
        T: for<'a> Serialize<HighSerializer<AlignedVec, ArenaHandle<'a>, Rancor>>,
    {
        let body = rkyv::to_bytes::<Rancor>(message).map_err(|_| FrameError::Malformed)?;
        if body.len() > FRAME_BYTES_MAX {
            return Err(FrameError::TooLarge(body.len()));
        }
        Ok(Self(Bytes::from_owner(body)))
    }

    /// Its message.
    pub fn message<T>(&self) -> Result<T, FrameError>
    where
        T: Archive,
        T::Archived: for<'a> rkyv::bytecheck::CheckBytes<HighValidator<'a, Rancor>> + Deserialize<T, HighDeserializer<Rancor>>,
    {
        rkyv::from_bytes::<T, Rancor>(&self.0).map_err(|_| {
            REFUSED.malformed.fetch_add(1, Ordering::Relaxed);
            FrameError::Malformed
        })
    }

    /// Writes it without a copy of its body.
    pub async fn send(&self, stream: &mut quinn::SendStream) -> Result<(), FrameError> {
        stream.write_all(&self.header()?).await.map_err(std::io::Error::from)?;
        stream.write_chunk(self.0.clone()).await.map_err(std::io::Error::from)?;
        Ok(())
    }

    /// Reads one. [`FrameError::Ended`] where the peer finished between two.
    pub async fn read<R: AsyncRead + Unpin>(stream: &mut R) -> Result<Self, FrameError> {
        let mut header = [0u8; 8];
        match stream.read_exact(&mut header).await {
            Err(error) if error.kind() == std::io::ErrorKind::UnexpectedEof => return Err(FrameError::Ended),
            other => other?,
        };
        if header[0] != VERSION {
            REFUSED.version.fetch_add(1, Ordering::Relaxed);
            return Err(FrameError::Version(header[0]));
        }
        let length = u32::from_le_bytes([header[4], header[5], header[6], header[7]]) as usize;
        if length > FRAME_BYTES_MAX {
            REFUSED.too_large.fetch_add(1, Ordering::Relaxed);
            return Err(FrameError::TooLarge(length));
        }
        // Grows with what arrives: an announced length alone costs nothing.
        let mut body = AlignedVec::<16>::new();
        let mut chunk = vec![0u8; length.min(64 * 1024)];
        while body.len() < length {
            let want = chunk.len().min(length - body.len());
            stream.read_exact(&mut chunk[..want]).await?;
            body.extend_from_slice(&chunk[..want]);
        }
        Ok(Self(Bytes::from_owner(body)))
    }

    fn header(&self) -> Result<[u8; 8], FrameError> {
        let length = u32::try_from(self.0.len()).map_err(|_| FrameError::TooLarge(self.0.len()))?;
        let mut header = [VERSION, 0, 0, 0, 0, 0, 0, 0];
        header[4..].copy_from_slice(&length.to_le_bytes());
        Ok(header)
    }
}

/// Writes one message.
pub async fn write<T, W>(stream: &mut W, message: &T) -> Result<(), FrameError>
where
    T: for<'a> Serialize<HighSerializer<AlignedVec, ArenaHandle<'a>, Rancor>>,
    W: AsyncWrite + Unpin,
{
    let frame = Frame::of(message)?;
    stream.write_all(&frame.header()?).await?;
    stream.write_all(&frame.0).await?;
    stream.flush().await?;
    Ok(())
}

/// Reads one message. [`FrameError::Ended`] where the peer finished between two.
pub async fn read<T, R>(stream: &mut R) -> Result<T, FrameError>
where
    T: Archive,
    T::Archived: for<'a> rkyv::bytecheck::CheckBytes<HighValidator<'a, Rancor>> + Deserialize<T, HighDeserializer<Rancor>>,
    R: AsyncRead + Unpin,
{
    Frame::read(stream).await?.message()
}

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
    /// From an `api` agent, for a user: standard input of a launch of this head. Then one [`HeadAnswer`]; after it [`WirePiece`] one way
    /// and [`WireTaken`] the other.
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

/// [`LaunchSpec`] on the wire.
#[derive(Clone, Debug, PartialEq, Eq, Archive, Serialize, Deserialize)]
pub struct WireLaunch {
    pub id: [u8; 16],
    pub number: u32,
    pub allocation: [u8; 16],
    pub epoch: u64,
    pub argv: Vec<String>,
    pub env: Vec<(String, String)>,
    pub working_dir: String,
    pub nodes: Vec<(String, u32, u32)>,
    /// Rows and columns of the first rank's terminal, where it has one.
    pub pty: Option<(u16, u16)>,
    pub binding: WireBinding,
}

/// From a head to a part. Between agents it goes as a [`super::branch::Down`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ToPart {
    /// Every part came to this fence.
    FenceDone { number: u32, blob: Vec<u8> },
    /// Bring the ranks down.
    Abort { code: i32, why: String },
    /// The launch is over and its end was told: it need not be remembered.
    Forget,
    /// A fence waits too long: who of this node's ranks has not come? Answered by [`ToHead::Absent`], where the shim knows.
    NameAbsent,
    /// Standard input. Only to a part that has said how much it has.
    Input(Box<WirePiece>),
    /// For the server of one part, by that of another.
    Call(Box<WireCall>),
}

/// From a part to its head. After each connect everything that is known is said again, then `Synced`.
#[derive(Clone, Debug, PartialEq, Eq, Archive, Serialize, Deserialize)]
pub enum ToHead {
    /// The shim has the launch: from here on it is remembered on this node.
    Begun,
    RankEnded {
        rank: u32,
        outcome: WireOutcome,
    },
    Fence {
        number: u32,
        blob: Vec<u8>,
    },
    Aborted {
        code: i32,
        why: String,
    },
    WalltimeOver,
    Lost {
        why: String,
    },
    Synced,
    /// See [`lattice_model::MemoryKill`].
    OutOfMemory {
        launch: u32,
        whole: bool,
        had_bytes: Option<u64>,
        limit_bytes: Option<u64>,
    },
    /// Ranks that have not come to the fence in which others wait.
    Absent {
        ranks: Vec<u32>,
    },
    /// How much of standard input its ranks took. `again`: what is beyond is to be sent.
    Input {
        taken: WireTaken,
        again: bool,
    },
    /// From its server, for that of another part.
    Call(Box<WireCall>),
}

/// [`RankOutcome`] on the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Archive, Serialize, Deserialize)]
pub enum WireOutcome {
    Exited(u8),
    Signalled(u8),
    NotStarted(u8),
}

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

impl From<&LaunchSpec> for WireLaunch {
    fn from(spec: &LaunchSpec) -> Self {
        Self {
            id: *spec.id.0.as_bytes(),
            number: spec.number,
            allocation: *spec.allocation.0.as_bytes(),
            epoch: spec.epoch.0,
            argv: spec.argv.clone(),
            env: spec.env.iter().map(|(k, v)| (k.clone(), v.clone())).collect(),
            working_dir: spec.working_dir.to_string_lossy().into_owned(),
            nodes: wire_nodes(&spec.nodes),
            pty: spec.pty.map(|size| (size.rows, size.columns)),
            binding: spec.binding.into(),
        }
    }
}

/// The ranks of each node, on the wire.
pub fn wire_nodes(nodes: &[NodeRanks]) -> Vec<(String, u32, u32)> {
    nodes.iter().map(|n| (n.node.to_string(), n.first, n.count)).collect()
}

impl TryFrom<WireLaunch> for LaunchSpec {
    type Error = FrameError;

    fn try_from(wire: WireLaunch) -> Result<Self, FrameError> {
        let mut nodes = Vec::with_capacity(wire.nodes.len());
        let mut next = 0u32;
        for (node, first, count) in wire.nodes {
            if first != next || count == 0 {
                return Err(FrameError::Malformed);
            }
            next = first.checked_add(count).ok_or(FrameError::Malformed)?;
            nodes.push(NodeRanks { node: node.parse().map_err(|_| FrameError::Malformed)?, first, count });
        }
        if nodes.is_empty() || wire.argv.is_empty() {
            return Err(FrameError::Malformed);
        }
        Ok(Self {
            id: LaunchId(uuid::Uuid::from_bytes(wire.id)),
            number: wire.number,
            allocation: AllocationId(uuid::Uuid::from_bytes(wire.allocation)),
            epoch: Epoch(wire.epoch),
            argv: wire.argv,
            env: wire.env.into_iter().collect(),
            working_dir: wire.working_dir.into(),
            nodes,
            pty: wire.pty.map(|(rows, columns)| TerminalSize { rows, columns }),
            binding: BindingRequest::try_from(wire.binding)?.over(RankBinding::default()),
            shape: LaunchShape::default(),
            // The head's affair alone.
            kill_on_bad_exit: false,
        })
    }
}

impl From<RankOutcome> for WireOutcome {
    fn from(outcome: RankOutcome) -> Self {
        match outcome {
            RankOutcome::Exited { code } => Self::Exited(code),
            RankOutcome::Signalled { signal } => Self::Signalled(signal),
            RankOutcome::NotStarted { code } => Self::NotStarted(code),
        }
    }
}

impl From<WireOutcome> for RankOutcome {
    fn from(outcome: WireOutcome) -> Self {
        match outcome {
            WireOutcome::Exited(code) => Self::Exited { code },
            WireOutcome::Signalled(signal) => Self::Signalled { signal },
            WireOutcome::NotStarted(code) => Self::NotStarted { code },
        }
    }
}

/// The user that an `api` agent vouches for.
pub fn vouched(uid: u32, user: &str) -> Principal {
    Principal { name: user.to_owned(), uid, gid: u32::MAX, groups: Vec::new() }
}

#[cfg(test)]
mod tests {
    use super::super::branch::Down;
    use super::*;
    use proptest::prelude::*;

    fn runtime() -> tokio::runtime::Runtime {
        tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap()
    }

    proptest! {
        #[test]
        fn what_is_written_is_read(number in any::<u32>(), blob in proptest::collection::vec(any::<u8>(), 0..4096), why in ".*") {
            runtime().block_on(async {
                let messages = [Down::FenceDone { number, blob, packed_from: None }, Down::Abort { code: -1, why }, Down::Forget];
                let mut bytes = Vec::new();
                for m in &messages { write(&mut bytes, m).await.unwrap(); }
                let mut rest = bytes.as_slice();
                for m in messages { assert_eq!(read::<Down, _>(&mut rest).await.unwrap(), m); }
                assert!(matches!(read::<Down, _>(&mut rest).await, Err(FrameError::Ended)));
            });
        }

        #[test]
        fn hostile_bytes_are_refused_without_a_panic(mut bytes in proptest::collection::vec(any::<u8>(), 0..600), framed in any::<bool>()) {
            runtime().block_on(async {
                if framed && bytes.len() >= 8 {
                    let length = u32::try_from(bytes.len() - 8).unwrap();
                    bytes[0] = VERSION;
                    bytes[4..8].copy_from_slice(&length.to_le_bytes());
                }
                if let Ok(Open::Branch(open)) = read::<Open, _>(&mut bytes.as_slice()).await {
                    drop(open.shape.of(open.launch));
                }
            });
        }
    }

    #[test]
    fn another_version_and_a_frame_too_large_are_refused_and_counted() {
        runtime().block_on(async {
            let before = REFUSED.version.load(Ordering::Relaxed);
            let other = [9u8, 0, 0, 0, 1, 0, 0, 0, 0];
            assert!(matches!(read::<Down, _>(&mut other.as_slice()).await, Err(FrameError::Version(9))));
            assert!(REFUSED.version.load(Ordering::Relaxed) > before);
            let large = [VERSION, 0, 0, 0, 255, 255, 255, 255];
            assert!(matches!(read::<Down, _>(&mut large.as_slice()).await, Err(FrameError::TooLarge(_))));
        });
    }
}

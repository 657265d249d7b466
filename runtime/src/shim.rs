//! The protocol between an agent and the shims of its node, and where a shim keeps its things.
//!
//! ```text
//!   agent ── ToShim ──▶ shim      length (u32, little endian, at most FRAME_BYTES_MAX) + MessagePack with field names
//!         ◀─ FromShim ──
//! ```
//!
//! Jobs outlive upgrades of the agent, so the protocol is additive and self-describing: fields are named, new ones
//! have defaults, a message of an unknown kind is skipped. Everything is idempotent. After each connect the shim
//! replays all that it knows (launches, ended ranks, the last and the pending fence, aborts), then says
//! [`FromShim::Synced`]: neither side keeps count of what the other has seen.
//!
//! What an agent can rest on: nothing is told of an end before it is in the file [`ShimDir::exits`] (read it with
//! [`crate::exits::read`] when the shim is dead); an abort that a rank's end means is told before that end; a frame
//! that was sent whole is acted on, also when the agent died right after it.

mod frame;
mod living;
mod start;

pub use frame::{Decoder, FrameError, encode};
pub use living::{Living, NotOurs};
pub use start::{StartError, StartedShim, connect_shim, start_shim};

use crate::data_mounts::Mount;
use lattice_model::{
    AllocationId, Assignment, Boot, Call, DesiredShare, Epoch, LaunchId, LaunchSpec, MemoryKill, Placement, Principal, RankOutcome,
    TerminalSize,
};
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The major version that both sides must share.
pub const PROTOCOL_MAJOR: u32 = 1;
/// The longest frame, in bytes, without its length.
pub const FRAME_BYTES_MAX: usize = 64 * 1024 * 1024;

/// The code of a launch that was refused and never started here.
pub const REFUSED_CODE: i32 = 125;

/// What a shim is started with: `shim.json` in its directory, written by the agent before the start.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ShimConfig {
    /// [`PROTOCOL_MAJOR`] of the agent that wrote it.
    pub protocol: u32,
    /// The allocation.
    pub allocation: AllocationId,
    /// Under which epoch.
    pub epoch: Epoch,
    /// As whom work runs.
    pub owner: Principal,
    /// The image in the root-owned cache, already verified, and where it is mounted.
    pub image: Option<(PathBuf, PathBuf)>,
    /// What else is mounted for it, in its own namespace.
    pub mounts: Vec<Mount>,
    /// The allocation's scope in the cgroup v2 tree (absolute path); `None`: this machine has none, said in `doctor`.
    pub scope: Option<PathBuf>,
    /// The directories of cgroup version 1 that each process of the work joins; its limits are there already.
    pub v1_groups: Vec<PathBuf>,
    /// What of the node is the allocation's own, to be shared out among ranks; `None`: nothing was told apart.
    pub placement: Option<Placement>,
    /// How long SIGTERM is given before SIGKILL, in milliseconds.
    pub grace_ms: u64,
    /// This node's name.
    pub node: String,
    /// The limit of open files (soft, hard) that work is to have; `None`: the one that the shim is started with.
    pub open_files: Option<(u64, u64)>,
    /// Under which boot of the machine it was started.
    pub boot: Option<Boot>,
    /// What the quorum said of the allocation when it was started: for an agent that has lost its own memory of it. The
    /// shim makes the files of the script from it, on the node that runs the script.
    pub share: Option<Box<DesiredShare>>,
    /// Which processors and GPUs of the node are its own, for the same.
    pub assignment: Option<Box<Assignment>>,
    /// How much of the log files is kept on the node, in bytes on the disk; `None`: all of it.
    pub log_room: Option<LogRoom>,
    /// Whether work runs under a run lease alone: see [`ToShim::RunLease`].
    pub run_lease: bool,
    /// Whether setuid programs and file capabilities give rights to work.
    pub work_may_gain_privileges: bool,
}

/// The shim's clock, CLOCK_BOOTTIME, in milliseconds: it goes on while a machine sleeps.
pub fn boottime_ms() -> u64 {
    let now = nix::time::clock_gettime(nix::time::ClockId::CLOCK_BOOTTIME).map(Duration::from);
    now.map_or(0, |d| u64::try_from(d.as_millis()).unwrap_or(u64::MAX))
}

/// How much room an allocation's log files may take on a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LogRoom {
    /// What is flushed is kept up to this much, for live reading.
    pub ring_bytes: u64,
    /// What is not flushed is kept up to this much; then the oldest goes.
    pub spool_bytes_max: u64,
}

/// How far a log file is in the log store.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FlushedLog {
    /// The launch's number; 0 is the script.
    pub number: u32,
    /// The rank.
    pub rank: u32,
    /// Which of its outputs.
    pub stream: LogStream,
    /// How often its program had truncated it before.
    pub segment: u32,
    /// Bytes from the file's beginning.
    pub bytes: u64,
}

/// The files of one allocation on one node, below the agent's state directory. All owned by root, mode 0700,
/// but for the log files and the script themselves, which the owner owns.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ShimDir(pub PathBuf);

impl ShimDir {
    /// `<state>/alloc/<allocation>-<epoch>`.
    pub fn of(state_dir: &Path, allocation: AllocationId, epoch: Epoch) -> Self {
        Self(state_dir.join("alloc").join(format!("{allocation}-{epoch}")))
    }

    /// The [`ShimConfig`].
    pub fn config(&self) -> PathBuf {
        self.0.join("shim.json")
    }

    /// The socket on which the shim accepts its agent. Bound by the agent and inherited as fd 3, so that no connect comes too early.
    pub fn socket(&self) -> PathBuf {
        self.0.join("shim.sock")
    }

    /// Which process the shim is: [`Living`], written by itself.
    pub fn living(&self) -> PathBuf {
        self.0.join("shim.id")
    }

    /// Exit statuses, written as they happen: what is left when the shim itself dies.
    pub fn exits(&self) -> PathBuf {
        self.0.join("exits")
    }

    /// The shim's own diagnostics.
    pub fn shim_log(&self) -> PathBuf {
        self.0.join("shim.log")
    }

    /// What the site's hooks wrote.
    pub fn hooks_log(&self) -> PathBuf {
        self.0.join("hooks.log")
    }

    /// Where the log files lie.
    pub fn logs(&self) -> PathBuf {
        self.0.join("logs")
    }

    /// What the agent knows of the log files: how far they are flushed, when they grew.
    pub fn spool(&self) -> PathBuf {
        self.0.join("spool.json")
    }

    /// There once all output of an ended allocation is in the log store.
    pub fn flushed(&self) -> PathBuf {
        self.0.join("flushed")
    }

    /// The allocation's script. Mode 0400, owned by the user, who cannot come to it by its path (the directories are
    /// root's): its interpreter opens it as `/proc/self/fd/3`, which asks for rights on the file alone.
    pub fn script(&self) -> PathBuf {
        self.0.join("script")
    }

    /// How far the allocation's checkpoint is, on its head.
    pub fn checkpoint(&self) -> PathBuf {
        self.0.join("checkpoint.json")
    }

    /// Since when its walltime runs, on its head, of work that can save itself.
    pub fn walltime_began(&self) -> PathBuf {
        self.0.join("walltime-began")
    }

    /// The checkpoint that the end of its walltime waits for, on its head.
    pub fn walltime_awaits(&self) -> PathBuf {
        self.0.join("walltime-awaits")
    }

    /// Where one launch's log files lie: an allocation may have thousands of launches, and who reads one looks at no other.
    pub fn launch_logs(&self, launch_number: u32) -> PathBuf {
        self.logs().join(launch_number.to_string())
    }

    /// One log file: `<launch number>/<rank>.out` or `.err`; the script is launch 0, rank 0.
    pub fn log(&self, launch_number: u32, rank: u32, stream: LogStream) -> PathBuf {
        self.launch_logs(launch_number).join(format!("{rank}.{}", stream.suffix()))
    }
}

/// Which of a process's two outputs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum LogStream {
    /// Standard output.
    Out,
    /// Standard error.
    Err,
}

impl LogStream {
    /// `out` or `err`.
    pub fn suffix(self) -> &'static str {
        match self {
            Self::Out => "out",
            Self::Err => "err",
        }
    }
}

/// From the agent to the shim.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ToShim {
    /// Opens the connection. A newer connection replaces an older one.
    Hello { protocol: u32 },
    /// Walltime runs from now on, unless it does already: that many milliseconds from the first of these, by CLOCK_BOOTTIME.
    /// `u64::MAX`: without end, a service. The last of these counts; once walltime is over, none does.
    Go { walltime_ms: u64 },
    /// Starts the allocation's script (launch 0, rank 0), unless that was done. Answered by [`FromShim::ScriptStarted`] each time.
    StartScript { text: String, args: Vec<String>, env: Vec<(String, String)>, working_dir: PathBuf },
    /// Starts this node's ranks of a launch, unless that was done. `env` of the spec is complete but for the
    /// wire-up variables (`PMI_*`, `MPI_LOCAL*`) and each rank's own `LATTICE_RANK`, `LATTICE_LOCAL_RANK`, `LATTICE_LOCAL_SIZE`.
    /// Answered by [`FromShim::LaunchStarted`] each time; or, where it cannot be (another epoch, a number that is taken, no
    /// ranks for this node, no mounts, after a Stop), by [`FromShim::Aborted`] with [`REFUSED_CODE`]. A rank whose program
    /// cannot be run ends as [`RankOutcome::NotStarted`], its reason in its `.err`; the other ranks are left alone.
    StartLaunch { launch: LaunchSpec },
    /// Every node came to fence `number`: the merged key-value pairs, as the head sent them.
    FenceDone {
        launch: LaunchId,
        number: u32,
        #[serde(with = "serde_bytes")]
        blob: Vec<u8>,
    },
    /// A fence of this launch waits for this node: answered by [`FromShim::Absent`].
    NameAbsent { launch: LaunchId },
    /// The launch has a new head: what its servers here asked other nodes, and what is not answered, is asked again at once.
    AskAgain { launch: LaunchId },
    /// A server of another node asks or answers: see [`FromShim::Call`].
    Call { launch: LaunchId, call: Call },
    /// Brings this node's ranks of the launch down (SIGTERM, then SIGKILL after 2 s): it was aborted elsewhere.
    Abort { launch: LaunchId, code: i32, why: String },
    /// The end of this launch is journalled: the shim may forget it (its replay leaves it out from now on).
    /// Ignored while a rank of it lives. Keeps a shim small that sees thousands of launches.
    Forget { launch: LaunchId },
    /// Was typed at the terminal of a launch's first rank ([`LaunchSpec::pty`]). Nothing to do where it has none here.
    Typed {
        launch: LaunchId,
        #[serde(with = "serde_bytes")]
        bytes: Vec<u8>,
    },
    /// A piece of standard input for those ranks of a launch that [`LaunchSpec::stdin`] names, with its place in bytes from the
    /// beginning. What was taken before is passed over, and so is what does not follow it: see [`FromShim::InputTaken`].
    Input {
        launch: LaunchId,
        offset: u64,
        #[serde(with = "serde_bytes")]
        bytes: Vec<u8>,
        /// Nothing follows.
        last: bool,
    },
    /// That terminal is to have another size.
    Resized { launch: LaunchId, size: TerminalSize },
    /// Starts a program on a terminal that the agent made and keeps the other end of, unless that was done: in a session
    /// of its own with `tty` as its controlling terminal, in a cgroup of its own below `work`. `session` is the agent's
    /// name for it, never used twice. Answered by [`FromShim::AttachStarted`] each time, or by [`FromShim::AttachEnded`].
    Attach { session: u64, tty: PathBuf, argv: Vec<String>, env: Vec<(String, String)>, working_dir: PathBuf },
    /// These log files are in the log store that far: what was before may go when room is needed ([`ShimConfig::log_room`]).
    LogsFlushed { files: Vec<FlushedLog> },
    /// The work may run until then, by [`boottime_ms`]; never earlier than was said before. Before the first of these nothing is
    /// started; at the time that was said last all of it is killed, and nothing is started or extended ever again.
    /// Of no meaning without [`ShimConfig::run_lease`].
    RunLease { until_ms: u64 },
    /// Sends a signal to the ranks that live here (`to`), once. Answered by [`FromShim::Signalled`] with the same
    /// `request`. Not sent again where the connection broke: it may have been delivered.
    Signal { request: u64, signal: i32, to: SignalWhom },
    /// Ends all work: SIGTERM, the grace, SIGKILL. [`FromShim::Stopped`] follows when nothing is left.
    Stop { why: StopReason, grace_ms: u64 },
    /// Nothing more will come: kill what is left (for 10 s at most), unmount, remove the socket, exit with 0. No
    /// [`FromShim::Stopped`] follows; the connection closes. Scope and directory are the agent's to remove.
    Quit,
}

/// Which processes of an allocation a signal of its owner's goes to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum SignalWhom {
    /// Each rank of each launch, and no process that a rank started.
    Ranks,
    /// All processes of the launches.
    Launches,
    /// The script, and no process that it started.
    Script,
}

/// Why all work of an allocation was ended by the shim.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum StopReason {
    /// The walltime was over.
    Walltime,
    /// The agent said so.
    Asked,
}

/// From the shim to the agent.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum FromShim {
    /// Answers the agent's.
    Hello { protocol: u32, allocation: AllocationId, epoch: Epoch, pid: u32 },
    /// Mounts are made and processes can be started; or they could not be, for this reason.
    Ready { failed: Option<String> },
    /// Walltime runs.
    Going,
    /// The script was started (replayed while it is known).
    ScriptStarted,
    /// The script ended.
    ScriptEnded { outcome: RankOutcome },
    /// This launch was started here (replayed while it is known).
    LaunchStarted { launch: LaunchSpec },
    /// One rank ended.
    RankEnded { launch: LaunchId, rank: u32, outcome: RankOutcome },
    /// All ranks of this node came to fence `number`, with these new pairs.
    Fence {
        launch: LaunchId,
        number: u32,
        #[serde(with = "serde_bytes")]
        blob: Vec<u8>,
    },
    /// The ranks of this node that have not come to the fence in which others wait.
    Absent { launch: LaunchId, ranks: Vec<u32> },
    /// A server of this node asks another node's, or answers it. What is not answered is asked again.
    Call { launch: LaunchId, call: Call },
    /// So many bytes of standard input were taken by each rank here that still reads it; `None`: none does any more.
    /// `again`: what is beyond is to be sent (again): said when ranks begin, and in each replay.
    InputTaken { launch: LaunchId, upto: Option<u64>, again: bool },
    /// Answers a [`ToShim::StartLaunch`] of a launch that has ended here, and whose end the agent acknowledged.
    Over { launch: LaunchId },
    /// This node brought the launch down: a rank died after init, called abort or spoke garbage.
    Aborted { launch: LaunchId, code: i32, why: String },
    /// The attached program's process is made: it has the terminal. (Replayed while it lives.)
    AttachStarted { session: u64 },
    /// The attached program ended, or could not be started, and then `why`. Replayed for the newest ones.
    AttachEnded { session: u64, outcome: RankOutcome, why: Option<String> },
    /// Processes of this launch (`None`: of the script) were killed because memory was over; told before their ends.
    OutOfMemory { launch: Option<LaunchId>, kill: MemoryKill },
    /// It keeps a run lease, which lasts until then; `None`: none was granted yet. Told in each replay, before [`FromShim::Ready`].
    RunLease { until_ms: Option<u64> },
    /// The run lease lapsed, and all work was killed for that; told before the ends that it means, and replayed.
    RunLeaseLapsed,
    /// That signal was sent to so many processes.
    Signalled { request: u64, processes: u32 },
    /// All work is being ended from now on; said before the first signal is sent, and replayed while it is so.
    Stopping { why: StopReason },
    /// All work was ended, and nothing of it is left.
    Stopped { why: StopReason },
    /// The replay after a connect is over; what follows is new.
    Synced,
}

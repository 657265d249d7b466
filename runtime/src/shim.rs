//! The protocol between an agent and the shims of its node, and the files of a shim.
//!
//! ```text
//!   agent ── ToShim ──▶ shim      length (u32, little endian, at most FRAME_BYTES_MAX) + MessagePack with field names
//!         ◀─ FromShim ──
//! ```
//!
//! Jobs outlive upgrades of the agent, so the protocol is additive and self-describing: fields are named, new ones have
//! defaults, a message of an unknown kind is skipped. Everything is idempotent. After each connect the shim replays all
//! that it knows (launches, ended ranks, the last and the pending fence, aborts), then sends [`FromShim::Synced`]:
//! neither side tracks what the other has received.
//!
//! Guarantees for the agent: an end is in the file [`ShimDir::exits`] before it is reported, unless the disk is full
//! (read the file with [`crate::exits::read_recorded`] when the shim is dead); an abort that follows from a rank's end
//! is reported before that end; a frame that was sent completely is acted on, even if the agent died right after it.

mod frame;
mod living;
mod start;

pub use frame::{Decoder, FrameError, encode};
pub use living::{Living, NotOurs};
pub use start::{StartError, StartedShim, connect_shim, start_shim};

use crate::data_mounts::Mount;
use lattice_model::task_group::TASKS_MAX;
use lattice_model::{
    AllocationId, Assignment, Boot, Call, DesiredShare, Entrypoint, Epoch, LaneReport, LaneWork, LaunchId, LaunchSpec, MemoryKill,
    Placement, Principal, RankOutcome, TaskIndices, TerminalSize, millis,
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

/// The configuration of a shim: `shim.json` in its directory, written by the agent before the start.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ShimConfig {
    /// [`PROTOCOL_MAJOR`] of the agent that wrote it.
    pub protocol: u32,
    /// The allocation.
    pub allocation: AllocationId,
    /// The epoch of its claim.
    pub epoch: Epoch,
    /// The user of the work.
    pub owner: Principal,
    /// The image in the root-owned cache, already verified, and its mount point.
    pub image: Option<(PathBuf, PathBuf)>,
    /// Further mounts in the shim's own namespace.
    pub mounts: Vec<Mount>,
    /// The allocation's scope in the cgroup v2 tree (absolute path); `None`: this machine has none, as `doctor` shows.
    pub scope: Option<PathBuf>,
    /// The directories of cgroup version 1 that each process of the work joins; their limits are set already.
    pub v1_groups: Vec<PathBuf>,
    /// The part of the node that belongs to the allocation, to be divided among ranks; `None`: nothing was assigned.
    pub placement: Option<Placement>,
    /// Time between SIGTERM and SIGKILL, in milliseconds.
    pub grace_ms: u64,
    /// This node's name.
    pub node: String,
    /// The limit of open files (soft, hard) for work; `None`: the limit that the shim is started with.
    pub open_files: Option<(u64, u64)>,
    /// The machine's boot in which the shim was started.
    pub boot: Option<Boot>,
    /// The allocation as the quorum reported it at the start, for an agent that has lost its state. On the node that
    /// runs the script the shim makes the script's files from it.
    pub share: Option<Box<DesiredShare>>,
    /// The processors and GPUs of the node that the allocation has, for the same purpose.
    pub assignment: Option<Box<Assignment>>,
    /// How much of the log files stays on the node, in bytes on the disk; `None`: all of it.
    pub log_limits: Option<LogLimits>,
    /// Whether work may run only under a run lease: see [`ToShim::RunLease`].
    pub run_lease: bool,
    /// Whether work can gain rights by setuid programs and file capabilities.
    pub work_may_gain_privileges: bool,
}

/// The shim's clock, CLOCK_BOOTTIME, in milliseconds: it continues while a machine is suspended.
pub fn boottime_ms() -> u64 {
    let now = nix::time::clock_gettime(nix::time::ClockId::CLOCK_BOOTTIME).map(Duration::from);
    now.map_or(0, millis)
}

/// The disk space that an allocation's log files may use on a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LogLimits {
    /// Flushed bytes that stay for live reading, at most.
    pub ring_bytes: u64,
    /// Unflushed bytes that stay, at most; beyond that the oldest are removed.
    pub spool_bytes_max: u64,
}

/// How far a log file has been uploaded to the log store.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FlushedLog {
    /// The launch's number; 0 is the script.
    pub number: u32,
    /// The rank.
    pub rank: u32,
    /// Standard output or standard error.
    pub stream: LogStream,
    /// How often its program had truncated the file before.
    pub segment: u32,
    /// Uploaded bytes, from the file's beginning.
    pub bytes: u64,
}

/// The files of one allocation on one node, below the agent's state directory. Root owns all of them, mode 0700, except
/// the log files and the script, which the user owns.
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

    /// The socket on which the shim accepts its agent. The agent binds it and the shim inherits it as fd 3, so that no
    /// connect comes too early.
    pub fn socket(&self) -> PathBuf {
        self.0.join("shim.sock")
    }

    /// The identity of the shim's process: [`Living`], written by the shim.
    pub fn living(&self) -> PathBuf {
        self.0.join("shim.id")
    }

    /// Exit statuses, written as they happen: they remain when the shim itself dies.
    pub fn exits(&self) -> PathBuf {
        self.0.join("exits")
    }

    /// The shim's own diagnostics.
    pub fn shim_log(&self) -> PathBuf {
        self.0.join("shim.log")
    }

    /// The output of the site's hooks.
    pub fn hooks_log(&self) -> PathBuf {
        self.0.join("hooks.log")
    }

    /// The directory of the log files.
    pub fn logs(&self) -> PathBuf {
        self.0.join("logs")
    }

    /// The agent's state of the log files: how far they are uploaded, when they grew.
    pub fn spool(&self) -> PathBuf {
        self.0.join("spool.json")
    }

    /// Exists once all output of an ended allocation is in the log store.
    pub fn flushed(&self) -> PathBuf {
        self.0.join("flushed")
    }

    /// The steps of the allocation, on its head.
    pub fn steps(&self) -> PathBuf {
        self.0.join("steps.jsonl")
    }

    /// The allocation's script. Mode 0444, owned by root, as the directories are, so nobody else reaches it by its path:
    /// its interpreter opens it as `/proc/self/fd/3`, which checks only the file's own permissions.
    pub fn script(&self) -> PathBuf {
        self.0.join("script")
    }

    /// The file that a task of a lane writes to until it gets a log file of its own.
    pub fn task_output(&self, stream: LogStream) -> PathBuf {
        self.0.join(format!("task.{}", stream.suffix()))
    }

    /// The state of the allocation's checkpoint, on its head.
    pub fn checkpoint(&self) -> PathBuf {
        self.0.join("checkpoint.json")
    }

    /// When the walltime began, on the head of work that can save itself.
    pub fn walltime_began(&self) -> PathBuf {
        self.0.join("walltime-began")
    }

    /// The checkpoint that the end of the walltime waits for, on the head.
    pub fn walltime_awaits(&self) -> PathBuf {
        self.0.join("walltime-awaits")
    }

    /// When a replica of a scaled service was asked to leave, on its head.
    pub fn drain(&self) -> PathBuf {
        self.0.join("drain")
    }

    /// The directory of one launch's log files. An allocation may have thousands of launches, and a reader needs only
    /// one.
    pub fn launch_logs(&self, launch_number: u32) -> PathBuf {
        self.logs().join(launch_number.to_string())
    }

    /// One log file: `<launch number>/<rank>.out` or `.err`; the script is launch 0, rank 0.
    pub fn log(&self, launch_number: u32, rank: u32, stream: LogStream) -> PathBuf {
        self.launch_logs(launch_number).join(format!("{rank}.{}", stream.suffix()))
    }
}

/// Standard output or standard error of a process.
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

/// Messages from the agent to the shim.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ToShim {
    /// Opens the connection. A newer connection replaces an older one.
    Hello { protocol: u32 },
    /// Starts the walltime, unless it runs already: this many milliseconds from the first `Go`, by CLOCK_BOOTTIME.
    /// `u64::MAX`: no end (a service). The value of the last `Go` counts; once the walltime has ended, later ones are
    /// ignored.
    Go { walltime_ms: u64 },
    /// Starts the allocation's script (launch 0, rank 0), unless it was started already. Answered by
    /// [`FromShim::ScriptStarted`] each time.
    StartScript { text: String, args: Vec<String>, env: Vec<(String, String)>, working_dir: PathBuf },
    /// Opens a lane of a task group, unless it is open: its tasks, which [`ToShim::LeaseTasks`] names, run `program`
    /// one after another. Answered each time: by [`FromShim::LaneOpened`] once the lane is open, or by
    /// [`FromShim::ScriptEnded`] if it cannot be opened or has ended.
    OpenLane { lane: Box<LaneSpec> },
    /// All tasks that the lane holds now. Those that have not ended here run in ascending order. A task that is no
    /// longer listed is killed if it runs, and forgotten if it waits. When the list is empty, `is_last` is set and
    /// nothing runs, the lane ends as a script does: [`FromShim::ScriptEnded`], with code 0.
    LeaseTasks { work: LaneWork },
    /// Starts this node's ranks of a launch, unless they were started already. `env` of the spec is complete except for
    /// the wire-up variables (`PMI_*`, `MPI_LOCAL*`) and each rank's own `LATTICE_RANK`, `LATTICE_LOCAL_RANK`,
    /// `LATTICE_LOCAL_SIZE`. Answered by [`FromShim::LaunchStarted`] each time; or, if it cannot be started (another
    /// epoch, a number that is taken, no ranks for this node, no mounts, after a Stop), by [`FromShim::Aborted`] with
    /// [`REFUSED_CODE`]. A rank with a program that cannot be run ends as [`RankOutcome::NotStarted`], with the reason
    /// in its `.err`; the other ranks continue.
    StartLaunch { launch: LaunchSpec },
    /// Every node has contributed to fence `number`: the merged key-value pairs from the head.
    FenceDone {
        launch: LaunchId,
        number: u32,
        #[serde(with = "serde_bytes")]
        blob: Vec<u8>,
    },
    /// A fence of this launch waits for this node: answered by [`FromShim::Absent`].
    NameAbsent { launch: LaunchId },
    /// The launch has a new head: unanswered calls of its servers here to other nodes are sent again at once.
    ResendRequests { launch: LaunchId },
    /// A call or an answer of another node's server: see [`FromShim::Call`].
    Call { launch: LaunchId, call: Call },
    /// Ends this node's ranks of the launch (SIGTERM, then SIGKILL after 2 s): it was aborted elsewhere.
    Abort { launch: LaunchId, code: i32, why: String },
    /// The end of this launch is in the journal: the shim may forget it, and its replay leaves it out from now on.
    /// Ignored while a rank of it lives. Keeps a shim with thousands of launches small.
    Forget { launch: LaunchId },
    /// Input typed at the terminal of a launch's first rank ([`LaunchSpec::pty`]). Ignored if the rank has no terminal
    /// here.
    Typed {
        launch: LaunchId,
        #[serde(with = "serde_bytes")]
        bytes: Vec<u8>,
    },
    /// A piece of standard input for the ranks of a launch that [`LaunchSpec::stdin`] names, with its position in bytes
    /// from the beginning. The shim skips bytes that it already accepted, and ignores a piece that does not follow
    /// them: see [`FromShim::InputAck`].
    Input {
        launch: LaunchId,
        offset: u64,
        #[serde(with = "serde_bytes")]
        bytes: Vec<u8>,
        /// Whether this is the end of the input.
        last: bool,
    },
    /// Sets the size of that terminal.
    Resized { launch: LaunchId, size: TerminalSize },
    /// Starts a program on a terminal of which the agent keeps the other end, unless it was started already: in its own
    /// session with `tty` as its controlling terminal, in its own cgroup below `work`. `session` is the agent's name
    /// for it, never used twice. Answered by [`FromShim::AttachStarted`] each time, or by [`FromShim::AttachEnded`].
    Attach { session: u64, tty: PathBuf, argv: Vec<String>, env: Vec<(String, String)>, working_dir: PathBuf },
    /// These log files are uploaded that far: uploaded bytes may be removed when space is needed
    /// ([`ShimConfig::log_limits`]).
    LogsFlushed { files: Vec<FlushedLog> },
    /// The work may run until this time, by [`boottime_ms`]; never earlier than an earlier message said. Nothing is
    /// started before the first `RunLease`. When the latest time is reached, all work is killed, and nothing is ever
    /// started or extended again. No meaning without [`ShimConfig::run_lease`].
    RunLease { until_ms: u64 },
    /// Sends a signal to the ranks that live here (`to`), once. Answered by [`FromShim::Signalled`] with the same
    /// `request`. Not sent again after a broken connection: it may have been delivered.
    Signal { request: u64, signal: i32, to: SignalTarget },
    /// Ends all work: SIGTERM, the grace, SIGKILL. [`FromShim::Stopped`] follows when nothing is left.
    Stop { why: StopReason, grace_ms: u64 },
    /// The last message: kill what is left (waiting 10 s at most), unmount, remove the socket, exit with 0. No
    /// [`FromShim::Stopped`] follows; the connection closes. The agent removes scope and directory.
    Quit,
}

/// How the tasks of a lane run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LaneSpec {
    /// The group's indices.
    pub indices: TaskIndices,
    /// The script or command of each task. A command runs once, as a script does.
    pub program: Entrypoint,
    /// The environment of each task, without `LATTICE_TASK_INDEX`, `SLURM_ARRAY_TASK_ID` and the job number.
    pub env: Vec<(String, String)>,
    /// The working directory.
    pub working_dir: PathBuf,
    /// The walltime of each task, in milliseconds; `None`: no limit.
    pub walltime_ms: Option<u64>,
    /// The job number of the group's first task, if the tasks get the variables that Slurm sets: each task has its own
    /// `SLURM_JOB_ID`.
    #[serde(default)]
    pub slurm_number: Option<u64>,
}

/// How many tasks of a lane have their log files in one directory: task `ordinal` is rank `ordinal` of launch
/// [`task_launch`].
pub const TASKS_PER_LOG_DIRECTORY: u32 = 1000;

/// The launch number under which the output of a task of a lane is stored.
pub const fn task_launch(ordinal: u32) -> u32 {
    1 + ordinal / TASKS_PER_LOG_DIRECTORY
}

/// The largest value of [`task_launch`]. Launches in a lane have larger numbers.
pub const TASK_LAUNCH_MAX: u32 = task_launch(TASKS_MAX - 1);

/// The processes of an allocation that get a signal from its owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum SignalTarget {
    /// Each rank of each launch, without processes that a rank started.
    Ranks,
    /// All processes of the launches.
    Launches,
    /// The script, without processes that it started.
    Script,
}

/// Why the shim ended all work of an allocation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum StopReason {
    /// The walltime ended.
    Walltime,
    /// The agent requested it.
    Requested,
}

/// Messages from the shim to the agent.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum FromShim {
    /// Answers the agent's `Hello`.
    Hello { protocol: u32, allocation: AllocationId, epoch: Epoch, pid: u32 },
    /// Mounts are made and processes can be started; or they could not be made, with the reason.
    Ready { failed: Option<String> },
    /// The walltime runs.
    Going,
    /// The script was started (replayed while it is known).
    ScriptStarted,
    /// The script ended, or the lane: everything that it held was reported, and no further task comes.
    ScriptEnded { outcome: RankOutcome },
    /// The lane is open (replayed while it is open).
    LaneOpened,
    /// The lane begins no task, because a task's end cannot be written to the disk and the quorum has not confirmed it;
    /// `None`: the lane continues (replayed while it pauses).
    LanePaused { why: Option<String> },
    /// All leased tasks that ended and are not yet confirmed by [`ToShim::LeaseTasks`]. `left`: the leased tasks that
    /// have not ended. Sent soon when few are left, and otherwise at most twice a second.
    TasksEnded { report: LaneReport, left: u32 },
    /// This launch was started here (replayed while it is known).
    LaunchStarted { launch: LaunchSpec },
    /// One rank ended.
    RankEnded { launch: LaunchId, rank: u32, outcome: RankOutcome },
    /// All ranks of this node arrived at fence `number`, with these new pairs.
    Fence {
        launch: LaunchId,
        number: u32,
        #[serde(with = "serde_bytes")]
        blob: Vec<u8>,
    },
    /// The ranks of this node that have not arrived at the fence in which others wait.
    Absent { launch: LaunchId, ranks: Vec<u32> },
    /// A call of this node's server to another node's, or its answer. Unanswered calls are repeated.
    Call { launch: LaunchId, call: Call },
    /// Each rank here that still reads standard input got this many bytes; `None`: no rank reads it any more. `again`:
    /// the bytes beyond must be sent (again). Sent with `again` when ranks begin, and in each replay.
    InputAck { launch: LaunchId, upto: Option<u64>, again: bool },
    /// Answers a [`ToShim::StartLaunch`] for a launch that has ended here, when the agent has acknowledged its end.
    LaunchEnded { launch: LaunchId },
    /// This node ended the launch: a rank died after init, called abort or violated the protocol.
    Aborted { launch: LaunchId, code: i32, why: String },
    /// The attached program's process exists: it has the terminal. (Replayed while it lives.)
    AttachStarted { session: u64 },
    /// The attached program ended; or it could not be started, and then `why` is set. Replayed for the newest ones.
    AttachEnded { session: u64, outcome: RankOutcome, why: Option<String> },
    /// Processes of this launch (`None`: of the script) were killed because memory was used up; sent before their ends.
    OutOfMemory { launch: Option<LaunchId>, kill: MemoryKill },
    /// The end of the run lease; `None`: none was granted yet. Sent in each replay, before [`FromShim::Ready`].
    RunLease { until_ms: Option<u64> },
    /// The run lease lapsed, and all work was killed for that; sent before the ends that follow from it, and replayed.
    RunLeaseLapsed,
    /// The signal was sent to this many processes.
    Signalled { request: u64, processes: u32 },
    /// Output could not be written to one of the user's files; the log of errors has the reason as well. Only the first
    /// failure is sent. (The latest is replayed.)
    FileFailed { why: String },
    /// Output waits for a file system of the user that does not answer; `None`: it no longer does. Sent when the reason
    /// changes, which it does as output grows. (Replayed while output waits.)
    FilesLate { why: Option<String> },
    /// All work is being ended from now on; sent before the first signal, and replayed while it lasts.
    Stopping { why: StopReason },
    /// All work was ended, and no process of it is left.
    Stopped { why: StopReason },
    /// The replay after a connect is over; what follows is new.
    Synced,
}

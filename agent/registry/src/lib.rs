//! The allocations on this node, and a handle on the task of each. The tasks themselves are in
//! `agent::allocation`.

pub mod access;
mod command;

pub use command::{Command, LaneAnswer, OpenTerminal, SendSignal, TerminalEvent};

use lattice_agent_common::clock::now;
use lattice_mesh::launch::{ToHead, ToPart};
use lattice_mesh::terminal::ToTerminal;
use lattice_model::{AllocationId, DesiredShare, Epoch, JobStepEvent, LaunchId, LaunchSpec, NodeId, Timestamp};
use lattice_output::logs::Activity;
use lattice_output::spool::launches;
use lattice_output::steps::{self, StepFile};
use lattice_runtime::shim::{ShimDir, SignalTarget, TASK_LAUNCH_MAX};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use thiserror::Error;
use tokio::sync::{mpsc, oneshot, watch};

/// Capacity of the queue of commands to one allocation's task.
const COMMANDS_QUEUE_LEN: usize = 256;
/// Messages queued for a launch's head, besides one for the end of each rank. A head that falls
/// further behind is disconnected, and gets everything again when it reconnects.
const TO_HEAD_QUEUE_LEN: usize = 1024;
/// How long a user's request waits until the allocation runs and its shim has reported everything
/// that it has.
const RUN_STATE_WAIT: Duration = Duration::from_secs(10);

/// How long the shim may take to report the number of processes that got a signal.
const SIGNAL_ANSWER_TIMEOUT: Duration = Duration::from_secs(5);

/// Whether launches can start in an allocation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RunState {
    /// The allocation has not been started yet, or its shim has not reported yet what it has.
    NotYet,
    /// It runs, and everything that the shim has is known.
    Running,
    /// It is being ended.
    Ending,
}

/// A handle on an allocation's task.
#[derive(Clone, Debug)]
pub struct AllocationHandle {
    /// The share as the quorum described it when the task began.
    pub share: Arc<DesiredShare>,
    commands: mpsc::Sender<Command>,
    dir: ShimDir,
    steps: StepFile,
    /// Closes when the task ends.
    pub activity: watch::Receiver<Activity>,
    /// Whether launches can start.
    pub run_state: watch::Receiver<RunState>,
    /// Its current activity, for `node status`.
    pub detail: watch::Receiver<Detail>,
    /// When this agent began to run the task.
    pub since: Timestamp,
}

/// What an allocation's task reports about itself.
#[derive(Clone, Debug, Default)]
pub struct Detail {
    pub shim_pid: Option<u32>,
    pub text: String,
    /// Why a port that it exposes is not listed as a service; `None`: all are, or it exposes none.
    pub unlisted: Option<String>,
    /// Why output waits for files of the user; `None`: it does not wait.
    pub files_late: Option<String>,
}

impl Detail {
    /// What its status shows.
    pub fn status_text(&self) -> String {
        let unlisted = self.unlisted.as_ref().map(|why| format!("not listed as a service yet: {why}"));
        let texts = [Some(self.text.clone()), unlisted, self.files_late.clone()];
        texts.into_iter().flatten().collect::<Vec<_>>().join("; ")
    }
}

impl AllocationHandle {
    /// The directory of its shim.
    pub fn dir(&self) -> &ShimDir {
        &self.dir
    }

    /// Records that a launch whose head is here began or ended. Blocks.
    ///
    /// # Errors
    /// The record cannot be written.
    pub fn record_step(&self, event: &JobStepEvent) -> io::Result<()> {
        self.steps.append(event)
    }

    /// Attaches a head to a launch and returns the receiver of the launch's messages. A later head
    /// of the same launch replaces it.
    pub async fn attach(&self, me: &NodeId, launch: LaunchSpec) -> mpsc::Receiver<ToHead> {
        let ranks = launch.part(me).map_or(0, |p| p.count as usize);
        let (to_head, receiver) = mpsc::channel(TO_HEAD_QUEUE_LEN + ranks);
        let _ = self.commands.send(Command::Attach { launch: Box::new(launch), to_head }).await;
        receiver
    }

    /// Requests a program on a terminal; its progress arrives at the receiver of `terminal.news`.
    pub async fn open_terminal(&self, terminal: OpenTerminal) {
        let _ = self.commands.send(Command::OpenTerminal(Box::new(terminal))).await;
    }

    /// Sends a signal once to the allocation's work on this node. Returns how many processes got
    /// it, or why that is unknown.
    pub async fn signal(&self, signal: i32, to: SignalTarget) -> Result<u32, SignalError> {
        self.wait_until_running().await?;
        let (answer, processes) = oneshot::channel();
        let _ = self.commands.send(Command::Signal(SendSignal { signal, to, answer })).await;
        match tokio::time::timeout(SIGNAL_ANSWER_TIMEOUT, processes).await {
            Ok(Ok(processes)) => Ok(processes),
            Ok(Err(_)) => Err(SignalError::ShimLost),
            Err(_) => Err(SignalError::ShimSilent),
        }
    }

    /// Sends input to the terminal of a launch's first rank. Waits while the shim is slow.
    pub async fn send_input(&self, launch: LaunchId, message: ToTerminal) {
        let _ = self.commands.send(Command::Typed { launch, message }).await;
    }

    /// Waits up to `RUN_STATE_WAIT` until the allocation runs and its shim has reported what it
    /// has; or says why nothing can be started in it.
    pub async fn wait_until_running(&self) -> Result<(), NotRunning> {
        let allocation = self.share.allocation;
        let mut run_state = self.run_state.clone();
        let settled = tokio::time::timeout(RUN_STATE_WAIT, run_state.wait_for(|s| *s != RunState::NotYet)).await;
        match settled.map(|s| s.map(|s| *s)) {
            Ok(Ok(RunState::Running)) => Ok(()),
            Ok(Ok(RunState::Ending) | Err(_)) => Err(NotRunning::Ending { allocation }),
            Ok(Ok(RunState::NotYet)) | Err(_) => Err(NotRunning::NotYet { allocation }),
        }
    }

    /// Passes a head's message to the launch.
    pub async fn send_to_launch(&self, launch: LaunchId, message: ToPart) {
        let _ = self.commands.send(Command::FromHead { launch, message }).await;
    }

    /// The highest number that a launch here ever had, by the log files and the record of steps;
    /// numbers are never reused. Blocks. In a lane of a task group the lowest numbers belong to the
    /// output of its tasks.
    pub fn highest_launch_number(&self) -> u32 {
        let of_files = launches(&self.dir).ok().and_then(|numbers| numbers.last().copied()).unwrap_or(0);
        let of_steps = steps::read(&self.dir).map_or(0, |steps| steps.launch_number_max());
        let on_disk = of_files.max(of_steps);
        if self.share.lane.is_some() { on_disk.max(TASK_LAUNCH_MAX) } else { on_disk }
    }

    /// Sends a command from the driver's thread (blocking). It is lost only if the task has ended.
    pub fn command(&self, command: Command) {
        let _ = self.commands.blocking_send(command);
    }
}

/// Why nothing can be started in an allocation on this node.
#[derive(Debug, Error)]
pub enum NotRunning {
    #[error("allocation {} is being ended", .allocation.short())]
    Ending { allocation: AllocationId },
    #[error("allocation {} is not running yet", .allocation.short())]
    NotYet { allocation: AllocationId },
}

/// Why it is unknown how many processes of an allocation got a signal.
#[derive(Debug, Error)]
pub enum SignalError {
    #[error(transparent)]
    NotRunning(#[from] NotRunning),
    #[error("the line to its shim broke: whether the signal was sent is not known")]
    ShimLost,
    #[error("its shim did not answer in time: whether the signal was sent is not known")]
    ShimSilent,
}

/// The sending ends with which an allocation's task reports its state.
pub struct StateSenders {
    pub activity: watch::Sender<Activity>,
    pub run_state: watch::Sender<RunState>,
    pub detail: watch::Sender<Detail>,
}

/// What an allocation's task starts with: its ends of the channels of an [`AllocationHandle`].
pub struct TaskEnds {
    pub share: Arc<DesiredShare>,
    /// The directory of its shim.
    pub dir: ShimDir,
    /// For commands that the task sends to itself; weak, so that it does not keep the queue open.
    pub own: mpsc::WeakSender<Command>,
    pub queue: mpsc::Receiver<Command>,
    pub senders: StateSenders,
}

/// The allocations on this node, by id. All clones share one map.
#[derive(Clone, Default)]
pub struct Allocations {
    by_id: Arc<Mutex<BTreeMap<AllocationId, AllocationHandle>>>,
}

impl Allocations {
    /// The task of an allocation, under any epoch.
    pub fn get(&self, allocation: AllocationId) -> Option<AllocationHandle> {
        self.by_id.lock().get(&allocation).cloned()
    }

    /// The tasks of all allocations, ascending by allocation id.
    pub fn all(&self) -> Vec<AllocationHandle> {
        self.by_id.lock().values().cloned().collect()
    }

    /// The task of an allocation under this epoch.
    pub fn of_epoch(&self, allocation: AllocationId, epoch: Epoch) -> Option<AllocationHandle> {
        self.get(allocation).filter(|h| h.share.epoch == epoch)
    }

    /// The task of `share`'s allocation under its epoch; if there is none, `begin` starts one. Its
    /// files are below `state_dir`.
    pub fn ensure(&self, state_dir: &Path, share: &DesiredShare, begin: impl FnOnce(TaskEnds)) -> AllocationHandle {
        let mut map = self.by_id.lock();
        if let Some(handle) = map.get(&share.allocation)
            && handle.share.epoch == share.epoch
        {
            return handle.clone();
        }
        let (commands, queue) = mpsc::channel(COMMANDS_QUEUE_LEN);
        let (activity, activity_view) = watch::channel(Activity::default());
        let (run_state, run_state_view) = watch::channel(RunState::NotYet);
        let (detail, detail_view) = watch::channel(Detail::default());
        let share = Arc::new(share.clone());
        let dir = ShimDir::of(state_dir, share.allocation, share.epoch);
        let senders = StateSenders { activity, run_state, detail };
        begin(TaskEnds { share: Arc::clone(&share), dir: dir.clone(), own: commands.downgrade(), queue, senders });
        let (activity, run_state, detail) = (activity_view, run_state_view, detail_view);
        let steps = StepFile::new(dir.clone());
        let handle = AllocationHandle { share, commands, dir, steps, activity, run_state, detail, since: now() };
        map.insert(handle.share.allocation, handle.clone());
        handle
    }

    /// Removes the task of `share`, which has ended.
    pub fn forget(&self, share: &DesiredShare) {
        let mut map = self.by_id.lock();
        if map.get(&share.allocation).is_some_and(|h| h.share.epoch == share.epoch) {
            map.remove(&share.allocation);
        }
    }
}

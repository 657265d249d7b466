//! The allocations on this node, and the way to the task of each. What a task does is in `agent::allocation`.

mod command;

pub use command::{Command, News, OpenTerminal, SendSignal};

use lattice_agent_common::clock::now;
use lattice_mesh::launch::{ToHead, ToPart};
use lattice_mesh::terminal::ToTerminal;
use lattice_model::{AllocationId, DesiredShare, Epoch, LaunchId, LaunchSpec, NodeId, Timestamp};
use lattice_output::logs::Activity;
use lattice_output::spool::launches;
use lattice_runtime::shim::{ShimDir, SignalWhom};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use thiserror::Error;
use tokio::sync::{mpsc, oneshot, watch};

/// Commands waiting for one allocation's task.
const COMMANDS: usize = 256;
/// Messages waiting for a launch's head, besides one for each rank's end: one that is slower is cut off and hears
/// everything again when it is back.
const TO_HEAD: usize = 1024;
/// How long what a user wants begun waits for its allocation to run, and to be known whole.
const STANDING_WAIT: Duration = Duration::from_secs(10);

/// How long its shim may take to say to how many processes it sent a signal.
const SIGNAL_ANSWER: Duration = Duration::from_secs(5);

/// Whether launches can begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    /// Not told to start yet, or the shim has not said yet what it has.
    NotYet,
    /// Running, and everything that the shim has is known.
    Running,
    /// Being ended.
    Ending,
}

/// The way to an allocation's task.
#[derive(Clone, Debug)]
pub struct AllocationHandle {
    /// What it works on, as the quorum said when it began here.
    pub share: Arc<DesiredShare>,
    commands: mpsc::Sender<Command>,
    dir: ShimDir,
    /// Ends with the task.
    pub activity: watch::Receiver<Activity>,
    /// Whether launches can begin.
    pub standing: watch::Receiver<Standing>,
    /// For `node status`: what it does now.
    pub detail: watch::Receiver<Detail>,
    /// Since when this agent looks after it.
    pub since: Timestamp,
}

/// What an allocation's task says about itself.
#[derive(Clone, Debug, Default)]
pub struct Detail {
    pub shim_pid: Option<u32>,
    pub text: String,
}

impl AllocationHandle {
    /// Where its shim keeps its things.
    pub fn dir(&self) -> &ShimDir {
        &self.dir
    }

    /// Attaches a head; what it hears comes out of the receiver. A later head of the same launch replaces it.
    pub async fn attach(&self, me: &NodeId, launch: LaunchSpec) -> mpsc::Receiver<ToHead> {
        let ranks = launch.part(me).map_or(0, |p| p.count as usize);
        let (to_head, receiver) = mpsc::channel(TO_HEAD + ranks);
        let _ = self.commands.send(Command::Attach { launch: Box::new(launch), to_head }).await;
        receiver
    }

    /// Asks for a program on a terminal; what becomes of it comes out of the receiver that belongs to the request.
    pub async fn open_terminal(&self, terminal: OpenTerminal) {
        let _ = self.commands.send(Command::OpenTerminal(Box::new(terminal))).await;
    }

    /// Signals its work here, once, and gives how many processes got it; or why that is not known.
    pub async fn signal(&self, signal: i32, to: SignalWhom) -> Result<u32, SignalError> {
        self.settled().await?;
        let (answer, processes) = oneshot::channel();
        let _ = self.commands.send(Command::Signal(SendSignal { signal, to, answer })).await;
        match tokio::time::timeout(SIGNAL_ANSWER, processes).await {
            Ok(Ok(processes)) => Ok(processes),
            Ok(Err(_)) => Err(SignalError::ShimLost),
            Err(_) => Err(SignalError::ShimSilent),
        }
    }

    /// Types at the terminal of a launch's first rank. A slow shim makes the typist wait.
    pub async fn type_at(&self, launch: LaunchId, message: ToTerminal) {
        let _ = self.commands.send(Command::Typed { launch, message }).await;
    }

    /// Waits a moment for an allocation that is about to run, or whose shim has not told yet what it has; or says why
    /// nothing can be begun in it.
    pub async fn settled(&self) -> Result<(), NotRunning> {
        let allocation = self.share.allocation;
        let mut standing = self.standing.clone();
        let settled = tokio::time::timeout(STANDING_WAIT, standing.wait_for(|s| *s != Standing::NotYet)).await;
        match settled.map(|s| s.map(|s| *s)) {
            Ok(Ok(Standing::Running)) => Ok(()),
            Ok(Ok(Standing::Ending) | Err(_)) => Err(NotRunning::Ending { allocation }),
            Ok(Ok(Standing::NotYet)) | Err(_) => Err(NotRunning::NotYet { allocation }),
        }
    }

    /// Passes on what a head says.
    pub async fn pass_on(&self, launch: LaunchId, message: ToPart) {
        let _ = self.commands.send(Command::FromHead { launch, message }).await;
    }

    /// The highest number that a launch here ever had: its log files have it, and it is never used again.
    pub fn highest_launch_number(&self) -> u32 {
        launches(&self.dir).ok().and_then(|numbers| numbers.last().copied()).unwrap_or(0)
    }

    /// Tells the task, from the driver's thread. Fails only when the task has ended.
    pub fn command(&self, command: Command) {
        let _ = self.commands.blocking_send(command);
    }
}

/// Why nothing can be begun in an allocation on this node.
#[derive(Debug, Error)]
pub enum NotRunning {
    #[error("allocation {} is being ended", .allocation.short())]
    Ending { allocation: AllocationId },
    #[error("allocation {} is not running yet", .allocation.short())]
    NotYet { allocation: AllocationId },
}

/// Why it is not known how many processes of an allocation got a signal.
#[derive(Debug, Error)]
pub enum SignalError {
    #[error(transparent)]
    NotRunning(#[from] NotRunning),
    #[error("the line to its shim broke: whether the signal was sent is not known")]
    ShimLost,
    #[error("its shim did not answer in time: whether the signal was sent is not known")]
    ShimSilent,
}

/// Where an allocation's task says how it is.
pub struct Says {
    pub activity: watch::Sender<Activity>,
    pub standing: watch::Sender<Standing>,
    pub detail: watch::Sender<Detail>,
}

/// What the task of an allocation begins with: its ends of the channels of an [`AllocationHandle`].
pub struct TaskEnds {
    pub share: Arc<DesiredShare>,
    /// Where its shim keeps its things.
    pub dir: ShimDir,
    /// For what it asks of itself; does not keep the queue open.
    pub own: mpsc::WeakSender<Command>,
    pub queue: mpsc::Receiver<Command>,
    pub says: Says,
}

/// The allocations on this node, by id. Cloneable; all clones are one.
#[derive(Clone, Default)]
pub struct Allocations(Arc<Mutex<BTreeMap<AllocationId, AllocationHandle>>>);

impl Allocations {
    /// The task of an allocation, under any epoch.
    pub fn get(&self, allocation: AllocationId) -> Option<AllocationHandle> {
        self.0.lock().get(&allocation).cloned()
    }

    /// All of them, ascending.
    pub fn all(&self) -> Vec<AllocationHandle> {
        self.0.lock().values().cloned().collect()
    }

    /// The task of an allocation under this epoch.
    pub fn of_epoch(&self, allocation: AllocationId, epoch: Epoch) -> Option<AllocationHandle> {
        self.get(allocation).filter(|h| h.share.epoch == epoch)
    }

    /// The task of `share`'s allocation; where there is none, `begin` begins it. Its files are below `state_dir`.
    pub fn ensure(&self, state_dir: &Path, share: &DesiredShare, begin: impl FnOnce(TaskEnds)) -> AllocationHandle {
        let mut map = self.0.lock();
        if let Some(handle) = map.get(&share.allocation)
            && handle.share.epoch == share.epoch
        {
            return handle.clone();
        }
        let (commands, queue) = mpsc::channel(COMMANDS);
        let (activity, activity_view) = watch::channel(Activity::default());
        let (standing, standing_view) = watch::channel(Standing::NotYet);
        let (detail, detail_view) = watch::channel(Detail::default());
        let share = Arc::new(share.clone());
        let dir = ShimDir::of(state_dir, share.allocation, share.epoch);
        let says = Says { activity, standing, detail };
        begin(TaskEnds { share: Arc::clone(&share), dir: dir.clone(), own: commands.downgrade(), queue, says });
        let (activity, standing, detail) = (activity_view, standing_view, detail_view);
        let handle = AllocationHandle { share, commands, dir, activity, standing, detail, since: now() };
        map.insert(handle.share.allocation, handle.clone());
        handle
    }

    /// The task of `share`'s allocation has ended.
    pub fn forget(&self, share: &DesiredShare) {
        let mut map = self.0.lock();
        if map.get(&share.allocation).is_some_and(|h| h.share.epoch == share.epoch) {
            map.remove(&share.allocation);
        }
    }
}

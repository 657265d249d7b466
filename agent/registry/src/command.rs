//! Commands to an allocation's task.

use lattice_mesh::launch::{ToHead, ToPart};
use lattice_mesh::terminal::ToTerminal;
use lattice_model::{Assignment, DesiredShare, LaneReport, LaneWork, LaunchId, LaunchSpec, RankOutcome};
use lattice_node::LaunchEnd;
use lattice_runtime::shim::{FlushedLog, SignalTarget};
use std::path::PathBuf;
use tokio::sync::{mpsc, oneshot};

/// The quorum's answer to a lane of a task group.
#[derive(Debug)]
pub enum LaneAnswer {
    /// What the lane may run now.
    Work(LaneWork),
    /// The quorum does not have the claim, so it did not take the report.
    ClaimOver { report: LaneReport },
    /// It refuses this lane for good.
    Refused,
}

/// A command to an allocation's task.
#[derive(Debug)]
pub enum Command {
    Prepare {
        /// The parts of this node that belong to the allocation.
        assignment: Option<Assignment>,
    },
    Adopt,
    Start(Box<DesiredShare>),
    /// The walltime of the running work has changed.
    ChangeWalltime(Box<DesiredShare>),
    /// Tasks that the running lane holds may have been cancelled.
    ChangeLane(Box<DesiredShare>),
    Stop,
    Undo,
    /// A head, on this node or another, asks to start this node's part of its launch and to receive
    /// its messages.
    Attach {
        launch: Box<LaunchSpec>,
        to_head: mpsc::Sender<ToHead>,
    },
    /// A message from the head of a launch.
    FromHead {
        launch: LaunchId,
        message: ToPart,
    },
    /// Run a program on a terminal that was created here.
    OpenTerminal(Box<OpenTerminal>),
    /// A user sends a signal to the allocation's work.
    Signal(SendSignal),
    /// The log store has these log files up to these positions.
    LogsFlushed {
        files: Vec<FlushedLog>,
    },
    /// Input, a new size or the end of input for the terminal of a launch's first rank, which runs
    /// here.
    Typed {
        launch: LaunchId,
        message: ToTerminal,
    },
    /// The quorum's answer to the lane; sent by the task that asked.
    LaneAdvanced {
        answer: LaneAnswer,
    },
    /// The launch of an inline command has ended; sent by the task that waits for that.
    EntryEnded {
        end: LaunchEnd,
    },
}

/// A signal that a user sends.
#[derive(Debug)]
pub struct SendSignal {
    pub signal: i32,
    pub to: SignalTarget,
    /// Receives the number of processes that got the signal; dropped if that stays unknown.
    pub answer: oneshot::Sender<u32>,
}

/// A program to run on a terminal. A task of the agent holds the other end of the terminal.
#[derive(Debug)]
pub struct OpenTerminal {
    /// A number that is never used twice, not even by an earlier run of this agent.
    pub session: u64,
    /// Path of the programs' end of the terminal.
    pub tty: PathBuf,
    pub argv: Vec<String>,
    pub env: Vec<(String, String)>,
    pub working_dir: PathBuf,
    /// A capacity of two is enough. When it is closed the terminal is gone, and no program may be
    /// started on it.
    pub news: mpsc::Sender<TerminalEvent>,
}

/// Progress of a program on a terminal.
#[derive(Debug, PartialEq, Eq)]
pub enum TerminalEvent {
    /// Its process has started on the terminal.
    Started,
    /// It ended; or it could not be started, and `why` says the reason.
    Ended { outcome: RankOutcome, why: Option<String> },
    /// Nobody will know how it ended.
    Lost { why: String },
}

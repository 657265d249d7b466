//! What an allocation's task is asked to do.

use lattice_mesh::launch::{ToHead, ToPart};
use lattice_mesh::terminal::ToTerminal;
use lattice_model::{Assignment, DesiredShare, LaunchId, LaunchSpec, RankOutcome};
use lattice_node::LaunchEnd;
use lattice_runtime::shim::{FlushedLog, SignalWhom};
use std::path::PathBuf;
use tokio::sync::{mpsc, oneshot};

/// What an allocation's task is told.
#[derive(Debug)]
pub enum Command {
    Prepare {
        /// What of this node is to be its own.
        assignment: Option<Assignment>,
    },
    Adopt,
    Start(Box<DesiredShare>),
    /// It has another walltime than it began with.
    ChangeWalltime(Box<DesiredShare>),
    Stop,
    Undo,
    /// A head, here or elsewhere, wants this node's part of its launch started, and to hear of it.
    Attach {
        launch: Box<LaunchSpec>,
        to_head: mpsc::Sender<ToHead>,
    },
    /// From the head of a launch.
    FromHead {
        launch: LaunchId,
        message: ToPart,
    },
    /// A terminal was made here: a program is to run on it.
    OpenTerminal(Box<OpenTerminal>),
    /// A user signals its work.
    Signal(SendSignal),
    /// Log files are in the log store that far.
    LogsFlushed {
        files: Vec<FlushedLog>,
    },
    /// What is typed at the terminal of a launch's first rank, which is here.
    Typed {
        launch: LaunchId,
        message: ToTerminal,
    },
    /// The launch of an inline command is over (told by the launch's own task).
    EntryOver {
        end: LaunchEnd,
    },
}

/// A signal that a user sends.
#[derive(Debug)]
pub struct SendSignal {
    pub signal: i32,
    pub to: SignalWhom,
    /// How many processes got it. Dropped where that will not be known.
    pub answer: oneshot::Sender<u32>,
}

/// A program that is to run on a terminal whose other end an agent's task holds.
#[derive(Debug)]
pub struct OpenTerminal {
    /// Never used twice, not by an earlier life of this agent either.
    pub session: u64,
    /// The programs' end.
    pub tty: PathBuf,
    pub argv: Vec<String>,
    pub env: Vec<(String, String)>,
    pub working_dir: PathBuf,
    /// Room for two messages is enough. Once it is closed the terminal is gone, and nobody is to be put on it any more.
    pub news: mpsc::Sender<News>,
}

/// What becomes of it.
#[derive(Debug, PartialEq, Eq)]
pub enum News {
    /// Its process has the terminal.
    Started,
    /// It ended; or it could not be started, and then `why`.
    Ended { outcome: RankOutcome, why: Option<String> },
    /// How it ended will not be known.
    Lost { why: String },
}

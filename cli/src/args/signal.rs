//! `lattice signal` and `lattice requeue`.

use clap::{Args, ValueEnum};
use lattice_model::signal::WorkSignal;

const SIGNAL_HELP: &str = "Examples:
  lattice signal 1f0c9a4e
      SIGUSR1 to every rank, on all of its nodes: to the process that the launch started, and to no child of it
  lattice signal @last --signal TERM --to script
      SIGTERM to the script, which can end well by itself
  lattice signal 1f0c9a4e --signal STOP --to launches
      all processes of its launches stand still until they get CONT

A program that does not catch a signal is ended by it, as by kill(1). Each process gets it once; where a node
does not answer it is said that this is not known. For its owner, and for operators; theirs to somebody else's
work is in the audit log.";

#[derive(Args)]
#[command(after_help = SIGNAL_HELP)]
pub struct Signal {
    /// The allocations: ids, the beginnings of such, or @last
    #[arg(required = true)]
    pub ids: Vec<String>,
    /// Which: a name or a number
    #[arg(short, long, value_name = "SIGNAL", default_value = "USR1")]
    pub signal: WorkSignal,
    /// Who gets it
    #[arg(long, value_enum, default_value_t = Whom::Ranks)]
    pub to: Whom,
}

/// Which processes get a signal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Whom {
    /// Each rank of its launches itself
    Ranks,
    /// All processes of its launches
    Launches,
    /// The script itself
    Script,
}

impl Whom {
    /// As the API has it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Ranks => "ranks",
            Self::Launches => "launches",
            Self::Script => "script",
        }
    }
}

const REQUEUE_HELP: &str = "Examples:
  lattice requeue 1f0c9a4e --reason 'wrong library on n3'
      it is ended (SIGTERM, then SIGKILL) and waits for nodes again, with the place in the queue that it had

It begins from its last checkpoint where it has one, else from its beginning, and counts as a requeue
(--max-requeues) where it had begun. `lattice logs ID --previous` shows what it wrote before, `lattice status
ID` who requeued it and why. Work that was submitted with --requeue=never is refused. For its owner, and for
operators.";

#[derive(Args)]
#[command(after_help = REQUEUE_HELP)]
pub struct Requeue {
    /// The allocations: ids, the beginnings of such, or @last
    #[arg(required = true)]
    pub ids: Vec<String>,
    /// Why, for its owner and for the audit log
    #[arg(long, value_name = "TEXT", default_value = "asked for")]
    pub reason: String,
}

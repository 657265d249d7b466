//! `lattice signal` and `lattice requeue`.

use clap::{Args, ValueEnum};
use lattice_model::signal::WorkSignal;

const SIGNAL_HELP: &str = "Examples:
  lattice signal 1f0c9a4e
      SIGUSR1 to every rank on all of its nodes: to the process that was started
      as the rank, not to its children
  lattice signal @last --signal TERM --to script
      SIGTERM to the script, which can then end in its own way
  lattice signal 1f0c9a4e --signal STOP --to launches
      all processes of its launches stop until they get CONT

A program that does not catch a signal is ended by it, as by kill(1). Each
process gets the signal once; the answer names nodes that did not confirm it.

For the owner, admins of its tenant and operators; a signal to the work of
somebody else is in the audit log.";

#[derive(Args)]
#[command(after_help = SIGNAL_HELP)]
pub struct Signal {
    /// The allocations: ids, the beginnings of ids, or @last
    #[arg(required = true)]
    pub ids: Vec<String>,
    /// The signal: a name or a number
    #[arg(short, long, value_name = "SIGNAL", default_value = "USR1")]
    pub signal: WorkSignal,
    /// Which processes get it
    #[arg(long, value_enum, default_value_t = SignalTarget::Ranks)]
    pub to: SignalTarget,
}

/// Which processes get a signal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum SignalTarget {
    /// The process of each rank
    Ranks,
    /// All processes of all launches
    Launches,
    /// The process of the script
    Script,
}

impl SignalTarget {
    /// The name in the API.
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
      it is ended (SIGTERM, then SIGKILL), keeps its place in the queue, and
      waits for nodes again

It begins from its last checkpoint if it has one, else from its beginning. An
attempt that had begun counts for --max-requeues. `lattice logs ID --previous`
shows what that attempt wrote, `lattice status ID` who requeued it and why. Work
that was submitted with --requeue=never is refused.

For the owner, admins of its tenant and operators.";

#[derive(Args)]
#[command(after_help = REQUEUE_HELP)]
pub struct Requeue {
    /// The allocations: ids, the beginnings of ids, or @last
    #[arg(required = true)]
    pub ids: Vec<String>,
    /// Why, for its owner and for the audit log
    #[arg(long, value_name = "TEXT", default_value = "asked for")]
    pub reason: String,
}

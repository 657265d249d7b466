//! The programs on attached terminals, living and ended.

use lattice_model::RankOutcome;
use lattice_runtime::process::StartReport;
use lattice_runtime::shim::FromShim;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::collections::{BTreeMap, VecDeque};

/// The attached programs.
#[derive(Default)]
pub(super) struct Attached {
    /// By the agent's name for the session.
    pub(super) living: BTreeMap<u64, Living>,
    pub(super) ended: VecDeque<(u64, RankOutcome, Option<String>)>,
    /// How many there have been in total; it numbers their cgroups.
    pub(super) count: u32,
}

pub(super) struct Living {
    pub(super) number: u32,
    pub(super) pid: i32,
    pub(super) start: StartReport,
}

impl Attached {
    /// The messages for an agent after a connect.
    pub fn replay(&self) -> Vec<FromShim> {
        let living = self.living.keys().map(|session| FromShim::AttachStarted { session: *session });
        let ended = self.ended.iter().cloned();
        living.chain(ended.map(|(session, outcome, why)| FromShim::AttachEnded { session, outcome, why })).collect()
    }

    /// The pids of the living ones, which are also their sessions.
    pub fn pids(&self) -> Vec<i32> {
        self.living.values().map(|living| living.pid).collect()
    }

    /// Hangs up their terminals: an interactive shell does not end by SIGTERM.
    pub fn hang_up(&self) {
        for living in self.living.values() {
            let _ = kill(Pid::from_raw(living.pid), Signal::SIGHUP);
        }
    }
}

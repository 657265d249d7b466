//! The signal before the walltime ends: to the script, or to the ranks.
//!
//! The shim sends it, because the shim has the walltime and outlives the agent. So it is sent once in an attempt,
//! whatever happens to the agent. Each task of a lane has a walltime, and a warning, of its own.

use super::{Ending, Process, Script, Shim, Walltime};
use crate::shim_log::log_line;
use lattice_model::EndWarning;
use lattice_runtime::process;

impl Shim {
    /// Sends the warnings that are due.
    pub(super) fn check_warnings(&mut self, now: u64) {
        if !matches!(self.ending, Ending::No) {
            return;
        }
        if let Some((since, until)) = self.warned_walltime()
            && let Some(warning) = self.warning.take_due(now, since, until)
        {
            self.warn(&warning);
        }
        let task = self.lane.as_mut().and_then(|lane| lane.task.as_mut());
        if let Some(warning) = task.and_then(|task| task.take_warning(now)) {
            self.warn(&warning);
        }
    }

    /// When the allocation's own warning is due.
    pub(super) fn warning_due(&self) -> Option<u64> {
        self.warned_walltime().and_then(|(since, until)| self.warning.due_ms(since, until))
    }

    /// The allocation's walltime, once a process has begun that could get the warning.
    fn warned_walltime(&self) -> Option<(u64, u64)> {
        let has_begun = matches!(self.script, Script::Running(_)) || !self.launches.is_empty();
        match (self.walltime, self.ending) {
            (Walltime::Runs { since, until }, Ending::No) if has_begun => Some((since, until)),
            (Walltime::NotYet | Walltime::Runs { .. } | Walltime::Over, _) => None,
        }
    }

    /// As in Slurm, the script gets only a signal that is for the script alone. A command's task is its only process.
    fn warn(&self, warning: &EndWarning) {
        let is_meant = |process: &Process| match process {
            Process::Script => warning.script_only,
            Process::Task => warning.script_only || self.is_command,
            Process::Rank { .. } => !warning.script_only,
            Process::Bridge { .. } | Process::Attached { .. } => false,
        };
        let meant = self.processes.iter().filter(|(_, process)| is_meant(process)).map(|(pid, _)| *pid);
        let sent = process::signal_each(meant, warning.signal);
        log_line(&format!(
            "{} s before its walltime ends, signal {} was sent to {sent} processes",
            warning.before.as_secs(),
            warning.signal
        ));
    }
}

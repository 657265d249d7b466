//! Signals that the work's owner sends to it.

use super::{Process, Shim};
use lattice_runtime::process;
use lattice_runtime::shim::{FromShim, SignalTarget};

impl Shim {
    /// Sends the signal to the living processes and reports their number. A process that we have not reaped keeps its
    /// pid, so no other process is hit.
    pub(super) fn signal(&mut self, request: u64, signal: i32, to: SignalTarget) {
        let begun: Vec<i32> = match to {
            SignalTarget::Ranks => self.launches.values().flat_map(|launch| launch.pids()).collect(),
            SignalTarget::Launches => {
                self.launches.iter().flat_map(|(number, launch)| self.work.processes_of_launch(*number, &launch.pids())).collect()
            }
            SignalTarget::Script => {
                let is_script = |process: &Process| matches!(process, Process::Script | Process::Task);
                self.processes.iter().filter(|(_, process)| is_script(process)).map(|(pid, _)| *pid).collect()
            }
        };
        let sent = process::signal_each(begun, signal);
        self.agent.send(&FromShim::Signalled { request, processes: u32::try_from(sent).unwrap_or(u32::MAX) });
    }
}

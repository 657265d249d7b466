//! Kills for lack of memory. The shim detects them, writes them to disk and reports them before the ends of processes
//! that they cause.

use super::{Script, Shim};
use crate::log_files;
use crate::shim_log::log_line;
use lattice_model::resources::bytes_text;
use lattice_runtime::cgroup::Scope;
use lattice_runtime::exits::ExitRecord;
use lattice_runtime::shim::FromShim;
use std::io::{Read, Seek};

/// The error log mentions the shim's own memory if it has at least this many bytes; a shim without ranks uses less.
const HELD_BYTES_SHOWN: u64 = 8 << 20;

impl Shim {
    /// Handles the kernel's notification that memory was used up somewhere in the scope.
    pub(super) fn handle_memory_events(&mut self) {
        // Reading re-arms the notification.
        if let Some(events) = &mut self.memory_events {
            let _ = events.rewind().and_then(|()| events.read(&mut [0; 1024]));
        }
        let script = (!matches!(self.script, Script::None) || self.lane.is_some()).then_some(0);
        for number in script.into_iter().chain(self.launches.keys().copied()).collect::<Vec<_>>() {
            self.look_for_memory_kill(number);
        }
    }

    /// Checks whether the kernel has killed processes of this launch (0 is the script) for lack of memory. If so,
    /// reports it, and ends the rest of the launch. The script is not ended; a task's error log mentions the kill.
    pub(super) fn look_for_memory_kill(&mut self, number: u32) {
        let Some(kill) = self.memory.as_mut().and_then(|m| m.kill_in(number)) else { return };
        log_line(&format!("out of memory: {kill}"));
        if number == 0
            && let Some(lane) = &mut self.lane
        {
            return lane.memory_ran_out(&format!("out of memory: {kill}"));
        }
        if number == 0 {
            log_files::append_error(&self.dir, 0, 0, &format!("out of memory: {kill}"));
            self.script_kill = Some(kill);
            self.record(&ExitRecord::OutOfMemory { launch: None, kill });
            return self.agent.send(&FromShim::OutOfMemory { launch: None, kill });
        }
        let Some(launch) = self.launches.get_mut(&number) else { return };
        let (id, first) = (launch.id(), launch.rank(0));
        log_files::append_error(&self.dir, number, first, &format!("out of memory: {kill}"));
        let held = self.config.scope.clone().map(Scope::at).and_then(|scope| scope.shim_memory_bytes());
        if let Some(held) = held.filter(|bytes| *bytes >= HELD_BYTES_SHOWN) {
            let held = bytes_text(held);
            let why = format!("lattice-shim uses {held} of the allocation's memory for values that its ranks put by PMI");
            log_files::append_error(&self.dir, number, first, &why);
        }
        launch.memory_kill = Some(kill);
        self.record(&ExitRecord::OutOfMemory { launch: Some(id), kill });
        self.agent.send(&FromShim::OutOfMemory { launch: Some(id), kill });
        self.bring_down(number);
    }
}

//! The replay after each connect: all that the shim knows.

use super::{Ending, Script, Shim, Walltime, now_ms};
use crate::launch::Happening;
use crate::user_files::UserFiles;
use lattice_model::LaunchId;
use lattice_model::input::Taken;
use lattice_runtime::shim::{FromShim, PROTOCOL_MAJOR, REFUSED_CODE};

impl Shim {
    /// Sends everything that the shim knows to an agent that has just connected.
    pub(super) fn replay(&mut self) {
        let (allocation, epoch) = (self.config.allocation, self.config.epoch);
        let agent = &mut self.agent;
        let pid = std::process::id();
        agent.send(&FromShim::Hello { protocol: PROTOCOL_MAJOR, allocation, epoch, pid });
        for message in self.run_lease.replay() {
            agent.send(&message);
        }
        agent.send(&FromShim::Ready { failed: self.failed.clone() });
        if !matches!(self.walltime, Walltime::NotYet) {
            agent.send(&FromShim::Going);
        }
        // Before any end, so that the agent knows the reason of the ends that follow.
        if let Ending::Terminating { why, .. } | Ending::Killing { why, .. } | Ending::Stopped { why } = self.ending {
            agent.send(&FromShim::Stopping { why });
        }
        if let Some(kill) = self.script_kill {
            agent.send(&FromShim::OutOfMemory { launch: None, kill });
        }
        // The ends of a lane's tasks go before its own end.
        let has_ended = !matches!(self.script, Script::None);
        for message in self.lane.iter_mut().flat_map(|lane| lane.replay(now_ms(), has_ended)) {
            agent.send(&message);
        }
        match self.script {
            Script::None => {}
            Script::Running(_) => agent.send(&FromShim::ScriptStarted),
            Script::Ended(outcome) => {
                agent.send(&FromShim::ScriptStarted);
                agent.send(&FromShim::ScriptEnded { outcome });
            }
        }
        for launch in self.launches.values() {
            let id = launch.id();
            agent.send(&FromShim::LaunchStarted { launch: launch.spec.clone() });
            for happening in launch.replay() {
                if let Happening::Fence { number, blob } = happening {
                    agent.send(&FromShim::Fence { launch: id, number, blob });
                }
            }
            if let Some(taken) = launch.input_taken() {
                agent.send(&input_taken(id, taken, true));
            }
            if let Some(kill) = launch.memory_kill {
                agent.send(&FromShim::OutOfMemory { launch: Some(id), kill });
            }
            if let Some((code, why)) = launch.aborted.clone() {
                agent.send(&FromShim::Aborted { launch: id, code, why });
            }
            for (local, outcome) in launch.outcomes() {
                agent.send(&FromShim::RankEnded { launch: id, rank: launch.rank(local), outcome });
            }
        }
        for (launch, why) in &self.refused {
            agent.send(&FromShim::Aborted { launch: *launch, code: REFUSED_CODE, why: why.clone() });
        }
        for message in self.attached.replay() {
            agent.send(&message);
        }
        if let Some(why) = self.file_failure.clone() {
            agent.send(&FromShim::FileFailed { why });
        }
        if let Some(why) = self.user_files.as_ref().and_then(UserFiles::late) {
            agent.send(&FromShim::FilesLate { why: Some(why.to_owned()) });
        }
        if let Ending::Stopped { why } = self.ending {
            agent.send(&FromShim::Stopped { why });
        }
        agent.send(&FromShim::Synced);
        agent.replayed();
    }

    /// Reports how much of a launch's standard input was taken, if that changed; `again`: in any case, and requests the
    /// rest.
    pub(super) fn report_input(&mut self, number: u32, again: bool) {
        let Some(launch) = self.launches.get_mut(&number) else { return };
        let progress = launch.input_to_report();
        if let Some(taken) = if again { launch.input_taken() } else { progress } {
            self.agent.send(&input_taken(launch.id(), taken, again));
        }
    }
}

/// The message with how much of a launch's standard input was taken here.
fn input_taken(launch: LaunchId, taken: Taken, again: bool) -> FromShim {
    let upto = match taken {
        Taken::UpTo(bytes) => Some(bytes),
        Taken::Closed => None,
    };
    FromShim::InputAck { launch, upto, again }
}

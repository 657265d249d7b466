//! The record of a launch as a step of its allocation: when it began, and how it ended. The launch of an
//! inline command has no record of its own: it begins and ends with its allocation.

use super::handles::Handles;
use lattice_agent_common::clock::now;
use lattice_agent_common::environment::entry_launch_id;
use lattice_model::{EndReason, JobStep, JobStepEnd, JobStepEvent, LaunchSpec};
use lattice_node::LaunchEnd;
use lattice_registry::AllocationHandle;
use tokio::task::JoinHandle;

/// Records one launch.
pub(super) struct StepRecorder {
    handle: AllocationHandle,
    launch_number: u32,
    /// The task that records the beginning. The launch does not wait for it, but the record of its end
    /// does.
    began: JoinHandle<()>,
    /// The user who ended the launch.
    cancelled_by: Option<String>,
}

impl StepRecorder {
    /// Records that a launch began, unless that is recorded already. `None`: the launch has no record
    /// of its own.
    pub(super) fn begin(handles: &Handles, spec: &LaunchSpec) -> Option<Self> {
        if spec.id == entry_launch_id(spec.allocation, spec.epoch) {
            return None;
        }
        let handle = handles.allocations.of_epoch(spec.allocation, spec.epoch)?;
        let began = write(&handle, JobStepEvent::Began(JobStep::of(spec, now())));
        Some(Self { handle, launch_number: spec.number, began, cancelled_by: None })
    }

    /// Notes that a user ended the launch.
    pub(super) fn cancelled(&mut self, by: String) {
        self.cancelled_by = Some(by);
    }

    /// Records the launch's end, and returns once that is written.
    pub(super) async fn end(self, end: &LaunchEnd) {
        let reason = reason(end, self.cancelled_by.as_deref());
        self.write_end(JobStepEnd::of(&reason, end.code, now())).await;
    }

    /// Records that the launch's allocation is being ended.
    pub(super) async fn end_with_allocation(self) {
        self.write_end(JobStepEnd::with_allocation(now())).await;
    }

    async fn write_end(self, end: JobStepEnd) {
        let Self { handle, launch_number, began, .. } = self;
        // A failed write was logged.
        let _ = began.await;
        let _ = write(&handle, JobStepEvent::Ended { launch_number, end }).await;
    }
}

fn write(handle: &AllocationHandle, event: JobStepEvent) -> JoinHandle<()> {
    let handle = handle.clone();
    tokio::task::spawn_blocking(move || {
        if let Err(error) = handle.record_step(&event) {
            let allocation = handle.share.allocation;
            tracing::warn!(%allocation, %error, "a step cannot be recorded: `lattice status --steps` will lack it or its end");
        }
    })
}

/// Why a launch ended.
fn reason(end: &LaunchEnd, cancelled_by: Option<&str>) -> EndReason {
    match (end, cancelled_by) {
        (_, Some(by)) => EndReason::Cancelled { by: by.to_owned() },
        (LaunchEnd { walltime_over: true, .. }, None) => EndReason::WalltimeExceeded,
        (LaunchEnd { out_of_memory: Some((node, kill)), .. }, None) => EndReason::OutOfMemory { node: node.clone(), kill: *kill },
        (LaunchEnd { code, aborted: Some(why), .. }, None) => EndReason::LaunchAborted { code: *code, why: why.clone() },
        (LaunchEnd { code, .. }, None) => EndReason::Exited { code: *code },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_cause_of_an_end_is_its_reason() {
        let end = |code| LaunchEnd { code, aborted: None, walltime_over: false, out_of_memory: None, bad: Default::default() };
        assert_eq!(reason(&end(3), None), EndReason::Exited { code: 3 });
        let aborted = LaunchEnd { aborted: Some("rank 1 died".into()), ..end(9) };
        assert_eq!(reason(&aborted, None), EndReason::LaunchAborted { code: 9, why: "rank 1 died".into() });
        assert_eq!(reason(&aborted, Some("ada")), EndReason::Cancelled { by: "ada".into() });
        assert_eq!(reason(&LaunchEnd { walltime_over: true, ..end(143) }, None), EndReason::WalltimeExceeded);
    }
}

//! The lane of a task group, and its present task.
//!
//! ```text
//!   Running ──walltime over, or revoked──▶ Terminating ──grace over──▶ Killed
//!      ╰───────────────────its process ended──────┴──────────────────────┴──▶ Clearing ──nothing of it is left──▶ next
//! ```

use crate::lane::Lane;
use crate::task_output::TaskOutput;
use lattice_model::end_warning::PendingWarning;
use lattice_model::{EndWarning, TaskIndices, TaskOutcome};
use lattice_runtime::exits::ExitRecord;
use lattice_runtime::process::{Environment, NotStarted, StartReport};
use lattice_runtime::shim::FromShim;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::time::Instant;

/// How many tries to start a task may fail in a row for a reason of the node, before the lane ends.
const STARTS_FAILED_MAX: u32 = 3;
/// The pause after such a failure, in milliseconds.
const START_RETRY_MS: u64 = 500;

/// The lane, and what is the same for all its tasks.
pub(super) struct OpenLane {
    pub(super) lane: Lane,
    pub(super) indices: TaskIndices,
    pub(super) walltime_ms: Option<u64>,
    /// The job number of the first task, if tasks get Slurm's variables.
    pub(super) slurm_number: Option<u64>,
    pub(super) argv: Vec<String>,
    pub(super) env: Environment,
    pub(super) working_dir: PathBuf,
    /// The cgroup of launch 0.
    pub(super) group: Option<OwnedFd>,
    /// The script.
    pub(super) inherit: Vec<OwnedFd>,
    pub(super) output: TaskOutput,
    pub(super) task: Option<Task>,
    pub(super) starts: Starts,
    /// Set while no task begins because the end of one is not on the disk.
    pub(super) pause: Option<Pause>,
    /// Whether the cgroup was killed as a whole since it was made.
    pub(super) group_killed: bool,
}

/// The end of a task that could not be written to the disk. If further tasks ran and the shim died, the quorum would
/// lease all of them again. So none begins until this end is written, or confirmed by the quorum.
pub(super) struct Pause {
    pub(super) ordinal: u32,
    pub(super) outcome: TaskOutcome,
    /// When to write it again.
    pub(super) retry_at: u64,
    /// Why it is not written; `None`: it was tried once, and the quorum may confirm it at once.
    pub(super) why: Option<String>,
}

impl Pause {
    /// The pause between two tries to write the end, in milliseconds.
    pub(super) const RETRY_MS: u64 = 500;

    pub(super) fn record(&self) -> ExitRecord {
        ExitRecord::Task { ordinal: self.ordinal, outcome: self.outcome }
    }
}

/// The latest tries to start a task that failed for a reason of the node, such as a full disk.
#[derive(Default)]
pub(super) struct Starts {
    failed_count: u32,
    /// When to try again.
    pub(super) retry_at: Option<u64>,
    /// Why the lane ends: too many failed in a row.
    pub(super) failure: Option<NotStarted>,
}

impl Starts {
    /// One failed. Returns whether it was the last try.
    pub(super) fn has_given_up(&mut self, failure: NotStarted, now: u64) -> bool {
        self.failed_count += 1;
        let is_last = self.failed_count >= STARTS_FAILED_MAX;
        if is_last {
            self.failure = Some(failure);
        } else {
            self.retry_at = Some(now.saturating_add(START_RETRY_MS));
        }
        is_last
    }
}

/// The task that runs, or that is being cleared away.
pub(super) struct Task {
    pub(super) ordinal: u32,
    pub(super) pid: i32,
    pub(super) start: StartReport,
    pub(super) began: Instant,
    /// The same in milliseconds of CLOCK_BOOTTIME.
    pub(super) began_ms: u64,
    /// The signal before its walltime ends.
    pub(super) warning: PendingWarning,
    pub(super) phase: Phase,
    /// When its output files become log files, if it still runs then.
    pub(super) long_at: Option<u64>,
    /// When it has run for so long that those behind it are returned; `None`: since then.
    pub(super) slow_at: Option<u64>,
    /// Whether the kernel killed some of it for lack of memory.
    pub(super) out_of_memory: bool,
    pub(super) start_result: StartResult,
}

/// Whether the program of a task was executed, as far as is known.
pub(super) enum StartResult {
    Started,
    /// It was not, for a reason of its own: that is the task's outcome.
    Failed,
    /// It was not, for this reason of the node: the task waits again.
    FailedByNode(NotStarted),
}

/// See the module. All times are milliseconds of CLOCK_BOOTTIME.
#[derive(Clone, Copy)]
pub(super) enum Phase {
    Running { until: Option<u64> },
    Terminating { why: Cut, kill_at: u64 },
    Killed { why: Cut },
    Clearing { outcome: TaskOutcome, retry_at: u64 },
}

/// Why a task is ended before it ends by itself.
#[derive(Clone, Copy)]
pub(super) enum Cut {
    Walltime,
    Revoked,
}

impl Cut {
    pub(super) fn outcome(self) -> TaskOutcome {
        match self {
            Self::Walltime => TaskOutcome::WalltimeExceeded,
            Self::Revoked => TaskOutcome::Cancelled,
        }
    }
}

impl Task {
    /// How long it has run, in microseconds; `None`: its program was not executed.
    pub(super) fn took_us(&self) -> Option<u64> {
        match self.start_result {
            StartResult::Started => Some(u64::try_from(self.began.elapsed().as_micros()).unwrap_or(u64::MAX)),
            StartResult::Failed | StartResult::FailedByNode(_) => None,
        }
    }

    /// The signal before its walltime ends, once, if it is due.
    pub(super) fn take_warning(&mut self, now: u64) -> Option<EndWarning> {
        match self.phase {
            Phase::Running { until: Some(until) } => self.warning.take_due(now, self.began_ms, until),
            Phase::Running { until: None } | Phase::Terminating { .. } | Phase::Killed { .. } | Phase::Clearing { .. } => None,
        }
    }

    fn warning_due(&self) -> Option<u64> {
        match self.phase {
            Phase::Running { until: Some(until) } => self.warning.due_ms(self.began_ms, until),
            Phase::Running { until: None } | Phase::Terminating { .. } | Phase::Killed { .. } | Phase::Clearing { .. } => None,
        }
    }

    fn due_ms(&self) -> Option<u64> {
        let phase = match self.phase {
            Phase::Running { until } => until,
            Phase::Terminating { kill_at: at, .. } | Phase::Clearing { retry_at: at, .. } => Some(at),
            Phase::Killed { .. } => None,
        };
        phase.into_iter().chain(self.warning_due()).chain(self.long_at).chain(self.slow_at).min()
    }
}

impl OpenLane {
    /// When there is something to do.
    pub(super) fn due_ms(&self) -> Option<u64> {
        let task = self.task.as_ref().and_then(Task::due_ms);
        // While the lane pauses, nothing begins: a start that is due would wake the shim again and again.
        let next = self.pause.as_ref().map_or(self.starts.retry_at, |pause| Some(pause.retry_at));
        task.into_iter().chain(self.lane.report_due_ms()).chain(next).min()
    }

    /// Why no task begins, if that was reported.
    pub(super) fn pause_reason(&self) -> Option<String> {
        self.pause.as_ref().and_then(|pause| pause.why.clone())
    }

    /// The messages for an agent after a connect. `has_ended`: the end of the lane itself follows, and it may get no
    /// tasks.
    pub(super) fn replay(&mut self, now: u64, has_ended: bool) -> Vec<FromShim> {
        let mut messages = if has_ended { Vec::new() } else { vec![FromShim::LaneOpened] };
        if let Some(why) = self.pause_reason().filter(|_| !has_ended) {
            messages.push(FromShim::LanePaused { why: Some(why) });
        }
        if self.lane.has_unconfirmed() {
            let (report, left) = self.lane.report(now);
            messages.push(FromShim::TasksEnded { report, left });
        }
        messages
    }

    /// The kernel killed processes of the running task for lack of memory.
    pub(super) fn memory_ran_out(&mut self, why: &str) {
        if let Some(task) = &mut self.task {
            task.out_of_memory = true;
            self.output.note(why);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lattice_model::IndexRun;

    #[test]
    fn a_start_that_is_due_wakes_nobody_while_the_lane_pauses() {
        let mut open = OpenLane {
            lane: Lane::default(),
            indices: TaskIndices::new([IndexRun::single(0)]).unwrap(),
            walltime_ms: None,
            slurm_number: None,
            argv: Vec::new(),
            env: Environment::default(),
            working_dir: PathBuf::new(),
            group: None,
            inherit: Vec::new(),
            output: TaskOutput::new(),
            task: None,
            starts: Starts::default(),
            pause: None,
            group_killed: false,
        };
        // The files of a task were refused, so the next one begins at once; the end of the first is not on the disk.
        open.starts.retry_at = Some(1000);
        assert_eq!(open.due_ms(), Some(1000));
        open.pause = Some(Pause { ordinal: 0, outcome: TaskOutcome::Exited(126), retry_at: 1000 + Pause::RETRY_MS, why: None });
        assert_eq!(open.due_ms(), Some(1000 + Pause::RETRY_MS));
        open.pause = None;
        assert_eq!(open.due_ms(), Some(1000));
    }
}

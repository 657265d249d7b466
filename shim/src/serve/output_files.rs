//! The user's own files of the script, of ranks and of tasks: opened before these begin, complete before their ends are
//! reported.

use super::{Shim, now_ms};
use crate::log_files;
use crate::shim_log::log_line;
use crate::surroundings::Inputs;
use crate::user_files::plan::Files;
use crate::user_files::{NotOpened, UserFiles, open_log};
use lattice_model::{LaunchSpec, NodeRanks, TaskOutcome};
use lattice_runtime::exits::ExitRecord;
use lattice_runtime::process::NotStarted;
use lattice_runtime::shim::{FromShim, task_launch};
use std::fs::File;
use std::time::Duration;

/// The exit code of a task whose files its user may not have.
const FILES_REFUSED_CODE: i32 = 126;

impl Shim {
    /// Opens the files of the script. Returns its standard input, if it has a file for that.
    pub(super) fn open_script_files(&mut self) -> Result<Option<File>, NotStarted> {
        let files = self.user_files.as_ref().and_then(|files| files.plan.of_script());
        self.open_logged(0, 0, files)
    }

    /// Opens the files of this node's ranks of a launch, and makes their log files before. Ranks without files are left
    /// out.
    pub(super) fn open_rank_files(&mut self, spec: &LaunchSpec, part: &NodeRanks) -> Inputs {
        let mut inputs = Inputs::new();
        for rank in spec.ranks_on(&part.node) {
            let Some(files) = self.user_files.as_ref().and_then(|files| files.plan.of_rank(spec.number, rank)) else { break };
            let logs = log_files::create_directory(&self.dir, spec.number)
                .and_then(|()| log_files::create(&self.dir, spec.number, rank, &self.config.owner));
            let input = logs.and_then(|_| self.open_logged(spec.number, rank, Some(files)));
            inputs.insert(rank, input);
        }
        inputs
    }

    fn open_logged(&mut self, number: u32, rank: u32, files: Option<Files>) -> Result<Option<File>, NotStarted> {
        let (Some(files), Some(user_files)) = (files, &mut self.user_files) else { return Ok(None) };
        let dir = &self.dir;
        let opened = user_files.open((number, rank), files, |to| open_log(&dir.log(number, rank, to.stream)));
        opened.map_err(|why| NotStarted { code: 126, why: why.to_string() })
    }

    /// Opens the files of a task whose output files were made. Returns its standard input, if it has a file for that.
    pub(super) fn open_task_files(&mut self, ordinal: u32) -> Result<Option<File>, NotOpened> {
        let (Some(open), Some(user_files)) = (&self.lane, &mut self.user_files) else { return Ok(None) };
        let files = open.indices.index_of(ordinal).and_then(|index| user_files.plan.of_task(ordinal, index));
        let Some(files) = files else { return Ok(None) };
        let dir = &self.dir;
        user_files.open((task_launch(ordinal), ordinal), files, |to| open_log(&dir.task_output(to.stream)))
    }

    /// A task's files cannot be opened: that is the task's outcome. The next one begins at once.
    pub(super) fn refuse_task(&mut self, ordinal: u32, why: &str, now: u64) {
        if let Some(open) = &mut self.lane {
            open.output.note(why);
            open.starts.retry_at = Some(now);
        }
        self.note_outcome(ordinal, TaskOutcome::Exited(FILES_REFUSED_CODE), None);
    }

    /// The end of a task, on the disk as well. `took_us`: how long it ran, in microseconds; `None`: it did not.
    pub(super) fn note_outcome(&mut self, ordinal: u32, outcome: TaskOutcome, took_us: Option<u64>) {
        let number = task_launch(ordinal);
        self.catch_up(number, ordinal, true);
        let Some(open) = &mut self.lane else { return };
        open.output.end(&self.dir, ordinal);
        open.lane.end(outcome, took_us);
        if !open.lane.has_tasks_of(number) {
            self.log_ring.over(number);
        }
        if !self.record(&ExitRecord::Task { ordinal, outcome }) {
            self.pause_lane(ordinal, outcome);
        }
    }

    /// Waits until all that the script, a rank or a task has written is in the user's files. `is_last`: nothing of it is
    /// left that could write.
    pub(super) fn catch_up(&mut self, number: u32, rank: u32, is_last: bool) {
        if let Some(files) = &mut self.user_files {
            files.catch_up(number, rank, is_last, !self.processes.is_empty());
            self.report_file_failures();
        }
    }

    /// The same for all output, when nothing is left that could write.
    pub(super) fn catch_up_all(&mut self, wait_max: Duration) {
        if let Some(files) = &mut self.user_files {
            files.catch_up_all(wait_max);
            self.report_file_failures();
        }
    }

    /// The loop begins a turn, which limits how long it waits for the user's files.
    pub(super) fn begin_files_turn(&mut self) {
        let (lease_end, wait_max) = (self.run_lease.ends(), self.files_wait_max());
        if let Some(files) = &mut self.user_files {
            files.begin_turn(lease_end.map(|end| Duration::from_millis(end.saturating_sub(now_ms()))), wait_max);
        }
    }

    /// Makes the log files keep what is not in the user's files yet.
    pub(super) fn hold_uncopied(&mut self, now: u64) {
        if let Some(files) = &self.user_files
            && self.log_ring.due().is_some_and(|due| due <= now)
        {
            self.log_ring.hold(files.positions());
        }
    }

    /// Reports that output waits for a file system that does not answer, or waits no longer.
    pub(super) fn report_late_files(&mut self, now: u64) {
        if let Some(files) = &mut self.user_files
            && files.look_for_lateness(now)
        {
            self.agent.send(&FromShim::FilesLate { why: files.late().map(str::to_owned) });
        }
    }

    /// Reports output that could not be written to the user's files: in the error log of the process that wrote it, and
    /// to the agent.
    pub(super) fn report_file_failures(&mut self) {
        let failures = self.user_files.as_ref().map(UserFiles::take_failures).unwrap_or_default();
        for failure in failures {
            let (number, rank) = (failure.number, failure.rank);
            log_line(&format!("launch {number}, rank {rank}: {}", failure.why));
            match &self.lane {
                // Only the present task has logs that are copied.
                Some(lane) => lane.output.note(&failure.why),
                None => log_files::append_error(&self.dir, number, rank, &failure.why),
            }
            // The agent logs only the first failure: each task of a group may fail so.
            if self.file_failure.is_none() {
                self.agent.send(&FromShim::FileFailed { why: failure.why.clone() });
            }
            self.file_failure = Some(failure.why);
        }
    }
}

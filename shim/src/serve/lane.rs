//! Runs the tasks of a lane of a task group, one after another, without asking the agent in between.
//! All tasks run in the cgroup of launch 0, where a script would run.

use super::ending::KILL_RETRY_MS;
use super::open_lane::{Cut, OpenLane, Pause, Phase, StartResult, Starts, Task};
use super::starting::borrowed;
use super::{Ending, KILLED, Process, Script, Shim, Walltime, now_ms};
use crate::lane::Lane;
use crate::launch::Happening;
use crate::shim_log::log_line;
use crate::task_output::{TaskOutput, Which};
use crate::user_files::NotOpened;
use crate::{log_files, script, slurm};
use lattice_model::end_warning::PendingWarning;
use lattice_model::{Entrypoint, LaneWork, RankOutcome, TaskOutcome, with_causes};
use lattice_runtime::process::{self, Environment, NotStarted, Program, StartReport};
use lattice_runtime::shim::{FromShim, LaneSpec, task_launch};
use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Instant;

/// How long a task runs before its output files become log files even if they are empty, in milliseconds.
const SHORT_TASK_MS: u64 = 200;
/// How long a task runs before the lane returns those that wait behind it, so that other lanes can run them, in
/// milliseconds: more than twice as long as all that a lane holds should last.
const SLOW_TASK_MS: u64 = 5000;
/// The code of a launch that still runs when the task that began it has ended: 128 + SIGTERM.
const TASK_ENDED_CODE: i32 = 143;
/// The signal that ends a lane when all work is ended: SIGTERM.
const STOP_SIGNAL: u8 = 15;
const TASK_ENDED: &str = "the task that began it has ended";

impl Shim {
    /// Opens the lane, unless it was opened already. If that fails, it ends as a script that cannot be started.
    pub(super) fn open_lane(&mut self, spec: LaneSpec) {
        match self.script {
            Script::None if self.lane.is_none() => {}
            Script::None => {
                self.agent.send(&FromShim::LaneOpened);
                if let Some(why) = self.lane.as_ref().and_then(OpenLane::pause_reason) {
                    self.agent.send(&FromShim::LanePaused { why: Some(why) });
                }
                return;
            }
            Script::Running(_) => return,
            Script::Ended(outcome) => return self.agent.send(&FromShim::ScriptEnded { outcome }),
        }
        match self.make_lane(spec) {
            Ok(lane) => {
                self.lane = Some(lane);
                self.agent.send(&FromShim::LaneOpened);
            }
            Err(failure) => self.lane_failed(&failure),
        }
    }

    /// The lane ends because of its node. The error log of launch 0 says why.
    fn lane_failed(&mut self, NotStarted { code, why }: &NotStarted) {
        log_line(why);
        let files = log_files::create_directory(&self.dir, 0).and_then(|()| log_files::create(&self.dir, 0, 0, &self.config.owner));
        if files.is_ok() {
            log_files::append_error(&self.dir, 0, 0, why);
        }
        self.script_ended(RankOutcome::NotStarted { code: *code });
    }

    fn make_lane(&self, spec: LaneSpec) -> Result<OpenLane, NotStarted> {
        let refused = |why| NotStarted { code: 126, why };
        if let Some(why) = self.unstartable() {
            return Err(refused(why.to_string()));
        }
        let LaneSpec { indices, program, env, working_dir, walltime_ms, slurm_number } = spec;
        let (argv, inherit) = match program {
            Entrypoint::Script { text, args } => {
                let file = script::write(&self.dir, &text)?;
                (script::argv(&text, &args), vec![OwnedFd::from(file)])
            }
            Entrypoint::Command { argv } => (argv, Vec::new()),
        };
        let group = self.work.launch_group(0).map_err(|error| refused(with_causes(&error)))?;
        let env = self.with_gpus(&env);
        let env = Environment::new(env.iter().map(|(name, value)| (name, value)))?;
        let (lane, output) = (Lane::default(), TaskOutput::new());
        Ok(OpenLane {
            lane,
            indices,
            walltime_ms,
            slurm_number,
            argv,
            env,
            working_dir,
            group,
            inherit,
            output,
            task: None,
            starts: Starts::default(),
            pause: None,
            group_killed: false,
        })
    }

    /// The lane holds these tasks from now on.
    pub(super) fn lease_tasks(&mut self, mut work: LaneWork) {
        let Some(open) = &mut self.lane else { return };
        work.leased.remove(open.indices.count()..=u32::MAX);
        if open.lane.lease(work) {
            self.cut_task(Cut::Revoked);
        }
    }

    /// Ends the running task: SIGTERM now, SIGKILL after the grace.
    fn cut_task(&mut self, why: Cut) {
        let kill_at = now_ms().saturating_add(self.config.grace_ms);
        let Some(task) = self.lane.as_mut().and_then(|open| open.task.as_mut()) else { return };
        match task.phase {
            Phase::Running { .. } => {
                task.phase = Phase::Terminating { why, kill_at };
                self.work.signal_launch(0, &[task.pid], libc::SIGTERM);
                // A stopped process reacts to no other signal.
                self.work.signal_launch(0, &[task.pid], libc::SIGCONT);
            }
            Phase::Terminating { .. } | Phase::Killed { .. } | Phase::Clearing { .. } => {}
        }
    }

    /// The process of the running task was reaped.
    pub(super) fn task_ended(&mut self, outcome: RankOutcome) {
        if outcome == KILLED {
            self.look_for_memory_kill(0);
        }
        let Some(open) = &mut self.lane else { return };
        let Some(task) = &mut open.task else { return };
        let failure = task.start.failure();
        match &failure {
            None => {}
            Some(failure) if task.start.is_fault_of_node() => task.start_result = StartResult::FailedByNode(failure.clone()),
            Some(failure) => {
                open.output.note(&failure.why);
                task.start_result = StartResult::Failed;
            }
        }
        let outcome = match task.phase {
            Phase::Terminating { why, .. } | Phase::Killed { why } => why.outcome(),
            Phase::Running { .. } | Phase::Clearing { .. } => {
                TaskOutcome::Exited(failure.map_or(outcome.code(), |failure| i32::from(failure.code)))
            }
        };
        task.phase = Phase::Clearing { outcome, retry_at: 0 };
    }

    /// Does what is due for the lane: ends tasks whose time is over, clears up behind one, begins the next, reports.
    pub(super) fn check_lane(&mut self, now: u64) {
        if self.lane.is_none() {
            return;
        }
        if !matches!(self.ending, Ending::No) {
            self.abandon_task();
            return self.report_tasks(u64::MAX);
        }
        self.check_task_times(now);
        if let Some(outcome) = self.ended_task() {
            if self.is_cleared() {
                self.finish_task(outcome);
            } else if let Some(task) = self.lane.as_mut().and_then(|open| open.task.as_mut()) {
                task.phase = Phase::Clearing { outcome, retry_at: now + KILL_RETRY_MS };
            }
        }
        self.check_pause(now);
        self.start_task(now);
        // A pause may end with the answer to a report.
        let is_paused = self.lane.as_ref().is_some_and(|open| open.pause.is_some());
        self.report_tasks(if is_paused { u64::MAX } else { now });
        if self.lane.as_ref().is_some_and(|open| open.lane.is_over())
            && let Some(open) = self.lane.take()
        {
            open.output.remove(&self.dir);
            match open.starts.failure {
                Some(failure) => self.lane_failed(&failure),
                None => self.script_ended(RankOutcome::Exited { code: 0 }),
            }
        }
    }

    /// Called before all work is ended: a task that has ended by itself, or whose own walltime is over, has its outcome
    /// already. If it were returned at its walltime, each lane that begins it could end in the same way.
    pub(super) fn settle_task(&mut self, now: u64) {
        if let Some(outcome) = self.decided_outcome(now)
            && let Some(task) = self.lane.as_mut().and_then(|open| open.task.take())
        {
            self.note_end(&task, outcome);
        }
        self.report_tasks(u64::MAX);
    }

    /// The outcome of the present task, if it is decided already, whatever ends its processes.
    fn decided_outcome(&self, now: u64) -> Option<TaskOutcome> {
        let task = self.lane.as_ref()?.task.as_ref()?;
        match task.phase {
            Phase::Clearing { outcome, .. } => match task.start_result {
                StartResult::Started | StartResult::Failed => Some(outcome),
                StartResult::FailedByNode(_) => None,
            },
            Phase::Terminating { why: Cut::Walltime, .. } | Phase::Killed { why: Cut::Walltime } => Some(Cut::Walltime.outcome()),
            Phase::Running { until } => until.filter(|until| *until <= now).map(|_| Cut::Walltime.outcome()),
            Phase::Terminating { why: Cut::Revoked, .. } | Phase::Killed { why: Cut::Revoked } => None,
        }
    }

    /// All work was ended, and nothing of it is left: the lane ends as a script that SIGTERM ends. It is kept for the
    /// replay of the ends that are not confirmed.
    pub(super) fn end_stopped_lane(&mut self) {
        if self.lane.is_none() {
            return;
        }
        self.abandon_task();
        self.report_tasks(u64::MAX);
        self.script_ended(RankOutcome::Signalled { signal: STOP_SIGNAL });
    }

    /// The outcome of the present task, if its process has ended and what it left is being ended.
    fn ended_task(&self) -> Option<TaskOutcome> {
        match self.lane.as_ref()?.task.as_ref()?.phase {
            Phase::Clearing { outcome, .. } => Some(outcome),
            Phase::Running { .. } | Phase::Terminating { .. } | Phase::Killed { .. } => None,
        }
    }

    fn check_task_times(&mut self, now: u64) {
        let Some(open) = &mut self.lane else { return };
        let Some(task) = &mut open.task else { return };
        if task.long_at.take_if(|at| *at <= now).is_some() {
            // If this fails, it is tried again at the task's end, and a failure then is reported.
            let _ = open.output.move_to_logs(&self.dir, task.ordinal, Which::All);
        }
        task.slow_at = task.slow_at.filter(|at| *at > now);
        if task.slow_at.is_none() {
            open.lane.return_waiting();
        }
        match task.phase {
            Phase::Running { until: Some(until) } if until <= now => self.cut_task(Cut::Walltime),
            Phase::Terminating { why, kill_at } if kill_at <= now => {
                task.phase = Phase::Killed { why };
                open.group_killed = true;
                self.work.signal_launch(0, &[task.pid], libc::SIGKILL);
            }
            Phase::Running { .. } | Phase::Terminating { .. } | Phase::Killed { .. } | Phase::Clearing { .. } => {}
        }
    }

    /// Whether nothing is left of the ended task. Otherwise ends what is left: launches as if they had aborted, other
    /// processes at once.
    fn is_cleared(&mut self) -> bool {
        if !process::has_child() {
            return true;
        }
        for number in self.waiting.keys().copied().collect::<Vec<_>>() {
            self.give_up(number, TASK_ENDED);
        }
        let living: Vec<u32> = self.launches.iter().filter(|(_, launch)| !launch.has_ended()).map(|(number, _)| *number).collect();
        for number in &living {
            self.handle_happenings(*number, vec![Happening::Abort { code: TASK_ENDED_CODE, why: TASK_ENDED.to_owned() }]);
        }
        if !living.is_empty() {
            return false;
        }
        let attached = self.attached.pids();
        if !self.work.has_launch_processes(&attached) {
            return true;
        }
        if let Some(open) = &mut self.lane {
            open.group_killed = true;
        }
        self.work.kill_launch_processes(&attached);
        false
    }

    /// Replaces a cgroup that was killed: the kernel kills each process that is born in it, because it compares the
    /// cgroup's count of kills with that of the parent process's cgroup (`cgroup_post_fork`). Without a new one, the
    /// lane begins no further task.
    fn renew_group(&mut self) {
        let Some(open) = &mut self.lane else { return };
        if !std::mem::take(&mut open.group_killed) || open.group.is_none() {
            return;
        }
        let removed = self.work.remove_launch(0);
        match self.work.launch_group(0) {
            Ok(group) if removed => open.group = group,
            Ok(_) => {
                log_line("the cgroup of the tasks could not be removed after it was killed: the lane ends");
                open.lane.close();
            }
            Err(error) => {
                log_line(&format!("the lane ends: {}", with_causes(&error)));
                open.lane.close();
            }
        }
        if let Some(memory) = &mut self.memory {
            memory.settle_tasks();
        }
    }

    /// Nothing of the task is left: its end is written to disk.
    fn finish_task(&mut self, outcome: TaskOutcome) {
        let Some(open) = &mut self.lane else { return };
        let Some(mut task) = open.task.take() else { return };
        self.renew_group();
        match std::mem::replace(&mut task.start_result, StartResult::Started) {
            StartResult::FailedByNode(failure) => return self.start_failed(task.ordinal, failure),
            result @ (StartResult::Started | StartResult::Failed) => task.start_result = result,
        }
        if let Some(open) = &mut self.lane {
            open.starts = Starts::default();
        }
        if task.out_of_memory
            && let Some(memory) = &mut self.memory
        {
            memory.settle_tasks();
        }
        self.note_end(&task, outcome);
    }

    /// Notes the end of the running task, on the disk as well.
    fn note_end(&mut self, task: &Task, outcome: TaskOutcome) {
        self.note_outcome(task.ordinal, outcome, task.took_us());
    }

    /// All work is being ended: a task that ends now runs again elsewhere.
    fn abandon_task(&mut self) {
        if self.ended_task().is_some()
            && let Some(open) = &mut self.lane
            && let Some(task) = open.task.take()
        {
            let ordinal = task.ordinal;
            self.catch_up(task_launch(ordinal), ordinal, true);
            if let Some(open) = &mut self.lane {
                open.output.end(&self.dir, ordinal);
            }
        }
    }

    /// The end of a task could not be written to the disk: no further task begins meanwhile.
    pub(super) fn pause_lane(&mut self, ordinal: u32, outcome: TaskOutcome) {
        if let Some(open) = &mut self.lane {
            open.pause = Some(Pause { ordinal, outcome, retry_at: now_ms() + Pause::RETRY_MS, why: None });
        }
    }

    /// Ends a pause if the quorum has the end that is not on the disk, or if it can be written now.
    fn check_pause(&mut self, now: u64) {
        let Some(open) = &mut self.lane else { return };
        let Some(pause) = &mut open.pause else { return };
        if open.lane.is_unconfirmed(pause.ordinal) {
            if pause.retry_at > now {
                return;
            }
            if let Err(error) = self.exits.append(&pause.record()) {
                pause.retry_at = now + Pause::RETRY_MS;
                if pause.why.is_none() {
                    let why = format!("the end of task {} cannot be written to disk: {error}", pause.ordinal);
                    log_line(&why);
                    pause.why = Some(why.clone());
                    self.agent.send(&FromShim::LanePaused { why: Some(why) });
                }
                return;
            }
        }
        if open.pause.take().is_some_and(|pause| pause.why.is_some()) {
            self.agent.send(&FromShim::LanePaused { why: None });
        }
    }

    /// Begins the next task, if there is one and the allocation's walltime leaves time for the task's own.
    fn start_task(&mut self, now: u64) {
        let Walltime::Runs { until, .. } = self.walltime else { return };
        if self.unstartable().is_some() {
            return;
        }
        let Some(open) = &mut self.lane else { return };
        if open.task.is_some() || open.pause.is_some() || open.starts.retry_at.is_some_and(|at| at > now) {
            return;
        }
        open.starts.retry_at = None;
        if open.walltime_ms.is_some_and(|walltime_ms| now.saturating_add(walltime_ms) > until) {
            return open.lane.close();
        }
        let Some(ordinal) = open.lane.begin() else { return };
        self.log_ring.not_over(task_launch(ordinal));
        let began = Instant::now();
        let input = match self.make_task_output().map(|()| self.open_task_files(ordinal)) {
            Ok(Ok(input)) => input,
            Ok(Err(NotOpened::Refused(why))) => return self.refuse_task(ordinal, &why, now),
            // The file system may answer on another node.
            Ok(Err(unanswered @ NotOpened::Unanswered)) => {
                return self.start_failed(ordinal, NotStarted { code: 126, why: unanswered.to_string() });
            }
            Err(failure) => return self.start_failed(ordinal, failure),
        };
        match self.spawn_task(ordinal, input.as_ref()) {
            Ok((pid, start)) => {
                self.processes.insert(pid, Process::Task);
                let warning = PendingWarning::new(self.task_warning.clone());
                if let Some(open) = &mut self.lane {
                    let until = open.walltime_ms.map(|walltime_ms| now.saturating_add(walltime_ms));
                    open.task = Some(Task {
                        ordinal,
                        pid,
                        start,
                        began,
                        began_ms: now,
                        warning,
                        phase: Phase::Running { until },
                        long_at: Some(now + SHORT_TASK_MS),
                        slow_at: Some(now + SLOW_TASK_MS),
                        out_of_memory: false,
                        start_result: StartResult::Started,
                    });
                }
            }
            // There is no process, so the node is at fault, and not the program.
            Err(failure) => self.start_failed(ordinal, failure),
        }
    }

    /// A task could not be started for a reason of the node: it waits again. After several in a row the lane ends.
    fn start_failed(&mut self, ordinal: u32, failure: NotStarted) {
        log_line(&format!("task {ordinal} of the group is not started: {}", failure.why));
        self.catch_up(task_launch(ordinal), ordinal, true);
        if let Some(open) = &mut self.lane {
            open.lane.put_back();
            if open.starts.has_given_up(failure, now_ms()) {
                open.lane.close();
            }
        }
    }

    fn make_task_output(&mut self) -> Result<(), NotStarted> {
        match &mut self.lane {
            Some(open) => open.output.begin(&self.dir, &self.config.owner),
            None => Ok(()),
        }
    }

    /// Starts a task whose output files were made. `input`: its standard input, if it has a file for that.
    fn spawn_task(&mut self, ordinal: u32, input: Option<&File>) -> Result<(i32, StartReport), NotStarted> {
        let refused = |why: &str| NotStarted { code: 126, why: why.to_owned() };
        let Some(open) = &mut self.lane else { return Err(refused("there is no lane")) };
        let Some([out, err]) = open.output.files() else { return Err(refused("it has no output files")) };
        let Some(index) = open.indices.index_of(ordinal) else { return Err(refused("its group has no such task")) };
        let env = ["LATTICE_TASK_INDEX", "SLURM_ARRAY_TASK_ID"].map(|name| (name.to_owned(), index.to_string()));
        let numbers = open.slurm_number.into_iter().flat_map(|first| slurm::of_task(first, ordinal));
        let env: Vec<(String, String)> = env.into_iter().chain(numbers).collect();
        let child = process::spawn(&Program {
            argv: &open.argv,
            env: &env,
            pid_variable: open.slurm_number.map(|_| slurm::PID_VARIABLE),
            shared_env: Some(&open.env),
            working_dir: &open.working_dir,
            user: Some(&self.config.owner),
            stdin: input.unwrap_or(&self.null).as_fd(),
            stdout: out.as_fd(),
            stderr: err.as_fd(),
            inherit: &open.inherit,
            cgroup: open.group.as_ref().map(AsFd::as_fd),
            v1_groups: &borrowed(&self.v1_groups),
            open_files: self.open_files,
            binding: None,
            terminal: false,
        })?;
        Ok((child.pid, child.into_start_report()))
    }

    /// Reports ends of tasks, if a report is due at this time.
    fn report_tasks(&mut self, now: u64) {
        if let Some(open) = &mut self.lane
            && open.lane.report_due_ms().is_some_and(|due| due <= now)
        {
            let (report, left) = open.lane.report(now_ms());
            self.agent.send(&FromShim::TasksEnded { report, left });
        }
    }
}

//! Steps of jobs: the rows of `squeue --steps`, `sacct` and `scontrol show step`.

use crate::context::Context;
use crate::format::Field;
use crate::job::Job;
use crate::job_id::Step;
use crate::state::JobState;
use crate::time::{UNKNOWN, short_duration};
use crate::units::or_null;
use lattice_api::v1;
use lattice_model::hostlist;

/// The columns of `squeue --steps`.
pub const DEFAULT: &str = "%.15i %.8j %.9P %.8u %.9M %N";
/// The name of the step in which a script runs.
const BATCH: &str = "batch";
/// The signal number that Slurm reports for a step that ran out of memory.
const MEMORY_SIGNAL: i32 = 125;

/// A step and its job.
#[derive(Clone, Debug)]
pub struct StepRow {
    /// The job.
    pub job: Job,
    /// The step as the agent reports it.
    pub step: v1::JobStep,
}

impl StepRow {
    /// The step of a job's script or command, for a job whose steps are unknown.
    pub fn of_unknown(job: &Job) -> Self {
        let step = v1::JobStep {
            step: BATCH.to_owned(),
            name: BATCH.to_owned(),
            ranks: 1,
            node_count: job.node_count(),
            is_entry: true,
            ..Default::default()
        };
        Self { job: job.clone(), step }
    }

    /// Its id, such as `12.0` or `12.batch`.
    pub fn id_text(&self) -> String {
        format!("{}.{}", self.job.id_text(), self.step.step)
    }

    /// Whether it is the named step.
    pub fn is(&self, step: Step) -> bool {
        match step {
            Step::Batch => self.step.step == BATCH,
            Step::Extern => false,
            Step::Number(number) => self.step.step.parse() == Ok(number),
        }
    }

    /// Whether it runs.
    pub fn is_running(&self) -> bool {
        self.state() == JobState::Running
    }

    /// Its state.
    pub fn state(&self) -> JobState {
        if self.step.is_entry { self.job.state() } else { JobState::of(&self.step.state, &self.step.reason, false) }
    }

    /// Its exit code as Slurm writes it: `3:0`.
    pub fn exit_text(&self) -> String {
        match self.state() {
            _ if self.step.is_entry => self.job.exit_text(),
            JobState::OutOfMemory => format!("0:{MEMORY_SIGNAL}"),
            _ => format!("{}:0", self.step.exit_code.unwrap_or(0)),
        }
    }

    /// When it began.
    pub fn began_ms(&self) -> Option<u64> {
        if self.step.is_entry { self.job.start_ms() } else { Some(self.step.began_at_ms).filter(|ms| *ms > 0) }
    }

    /// When it ended.
    pub fn ended_ms(&self) -> Option<u64> {
        if self.step.is_entry { self.job.ended_ms() } else { Some(self.step.ended_at_ms).filter(|ms| *ms > 0) }
    }

    /// How long it has run; `None`: that is not known.
    pub fn elapsed_ms(&self, now_ms: u64) -> Option<u64> {
        if self.step.is_entry {
            return self.job.elapsed_ms(now_ms);
        }
        self.began_ms().map(|began| self.ended_ms().unwrap_or(now_ms).saturating_sub(began))
    }

    /// Its nodes as a hostlist; the job's nodes if those of the step are unknown.
    pub fn nodes_text(&self) -> String {
        if self.step.nodes.is_empty() { self.job.nodes_text() } else { self.step.nodes.clone() }
    }

    /// The names of its nodes.
    pub fn node_names(&self) -> Vec<String> {
        hostlist::in_order(&self.nodes_text()).unwrap_or_default().iter().map(|node| node.as_str().to_owned()).collect()
    }

    /// The logical processors that the job has on the step's nodes.
    pub fn cpus(&self, context: &Context<'_>) -> u64 {
        let of_job = self.job.cpus(context);
        if self.step.is_entry {
            return of_job;
        }
        let nodes = u64::from(self.job.node_count().max(1));
        (of_job * u64::from(self.step.node_count) / nodes).max(1)
    }

    /// The lines of its record in `scontrol show step`.
    pub fn lines(&self, context: &Context<'_>) -> Vec<String> {
        let (job, step, clock) = (&self.job, &self.step, &context.clock);
        let mut lines = vec![
            format!(
                "StepId={} UserId={} StartTime={} TimeLimit=UNLIMITED",
                self.id_text(),
                or_null(&context.uid_text(&job.allocation.owner)),
                clock.text_or(self.began_ms(), UNKNOWN)
            ),
            format!("State={} Partition={} NodeList={}", self.state().name(), job.partition(context), or_null(&self.nodes_text())),
            format!("Nodes={} CPUs={} Tasks={} Name={} Network=(null)", step.node_count, self.cpus(context), step.ranks, step.name),
        ];
        if self.state().is_final() {
            lines.push(format!("EndTime={} ExitCode={}", clock.text_or(self.ended_ms(), UNKNOWN), self.exit_text()));
        }
        lines
    }
}

/// A field with a letter and a name.
const fn both(letter: char, name: &'static str, heading: &'static str, value: fn(&StepRow, &Context<'_>) -> String) -> Field<StepRow> {
    Field { letter: Some(letter), name, heading, value }
}

/// The fields of `squeue --steps`.
pub const STEP_FIELDS: &[Field<StepRow>] = &[
    both('A', "NumTasks", "TASKS", |row, _| row.step.ranks.to_string()),
    both('C', "NumCPUs", "CPUS", |row, c| row.cpus(c).to_string()),
    both('i', "StepID", "STEPID", |row, _| row.id_text()),
    both('j', "StepName", "NAME", |row, _| or_null(&row.step.name)),
    both('l', "TimeLimit", "TIME_LIMIT", |_, _| "UNLIMITED".to_owned()),
    both('M', "TimeUsed", "TIME", |row, c| {
        row.elapsed_ms(c.clock.now_ms).map_or_else(|| "INVALID".to_owned(), |ms| short_duration(ms / 1000))
    }),
    both('N', "Nodes", "NODELIST", |row, _| row.nodes_text()),
    both('P', "Partition", "PARTITION", |row, c| row.job.partition(c).to_owned()),
    both('S', "StartTime", "START_TIME", |row, c| c.clock.text_or(row.began_ms(), "N/A")),
    both('t', "StepState", "STATE", |row, _| row.state().name().to_owned()),
    both('u', "UserName", "USER", |row, _| or_null(&row.job.allocation.owner)),
    both('U', "UserID", "UID", |row, c| or_null(&c.uid_text(&row.job.allocation.owner))),
    both('F', "JobID", "JOBID", |row, _| row.job.number().to_string()),
];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::array::rows;
    use crate::format::Layout;
    use crate::time::{Clock, Utc};
    use lattice_cli_syntax::compat::Compat;
    use std::collections::BTreeMap;

    /// 2026-03-05T10:00:12.034Z
    const NOW: u64 = 1_772_704_812_034;

    fn row(step: v1::JobStep) -> StepRow {
        let job = v1::Allocation {
            number: 12,
            name: "train".into(),
            state: "Running".into(),
            owner: "ada".into(),
            nodes: vec!["n1".into(), "n2".into()],
            started_at_ms: NOW - 100_000,
            share: Some(v1::Amount { cores: 4, memory_bytes: 0, gpus: 0 }),
            ..Default::default()
        };
        StepRow { job: rows(job, &[], false).remove(0), step }
    }

    fn with(test: impl FnOnce(&Context<'_>)) {
        let (compat, clock, nodes) = (Compat::default(), Clock::new(NOW, &Utc, None), BTreeMap::new());
        test(&Context { compat: &compat, clock: &clock, uid_of: &|_| Some(1000), nodes: &nodes });
    }

    fn launch() -> v1::JobStep {
        v1::JobStep {
            step: "3".into(),
            name: "sim".into(),
            state: "Failed".into(),
            reason: "exit_code 2".into(),
            exit_code: Some(2),
            ranks: 4,
            nodes: "n1".into(),
            node_count: 1,
            began_at_ms: NOW - 70_000,
            ended_at_ms: NOW - 10_000,
            ..Default::default()
        }
    }

    #[test]
    fn a_step_has_its_own_state_and_times() {
        let failed = row(launch());
        assert_eq!((failed.id_text(), failed.state().name(), failed.exit_text()), ("12.3".into(), "FAILED", "2:0".into()));
        assert_eq!(failed.elapsed_ms(NOW), Some(60_000));
        assert!(failed.is(Step::Number(3)) && !failed.is(Step::Batch) && !failed.is(Step::Extern));
        let running = row(v1::JobStep { state: "Running".into(), exit_code: None, ended_at_ms: 0, ..launch() });
        assert!(running.is_running());
        let late = row(v1::JobStep { reason: "walltime_exceeded".into(), exit_code: Some(143), ..launch() });
        assert_eq!(late.state(), JobState::Timeout);
        let batch = StepRow::of_unknown(&failed.job);
        assert_eq!((batch.id_text(), batch.elapsed_ms(NOW), batch.is_running()), ("12.batch".into(), Some(100_000), true));
        with(|context| {
            assert_eq!(failed.cpus(context), 4);
            assert_eq!((failed.node_names(), batch.node_names()), (vec!["n1".to_owned()], vec!["n1".to_owned(), "n2".to_owned()]));
            let layout = Layout::of_letters(DEFAULT, STEP_FIELDS).unwrap();
            assert_eq!(layout.heading(), "         STEPID     NAME PARTITION     USER      TIME NODELIST");
            assert_eq!(layout.line(&failed, context), "           12.3      sim   default      ada      1:00 n1");
            let lines = failed.lines(context);
            assert!(lines[0].starts_with("StepId=12.3 UserId=1000 StartTime=2026-03-05T09:59:02 "), "{lines:?}");
            assert_eq!(lines[2], "Nodes=1 CPUs=4 Tasks=4 Name=sim Network=(null)");
            assert_eq!(lines[3], "EndTime=2026-03-05T10:00:02 ExitCode=2:0");
        });
    }
}

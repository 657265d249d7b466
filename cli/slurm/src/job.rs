//! A row about a job: an allocation, the waiting tasks of an array, one of its tasks, or ended work of the store.

use crate::context::Context;
use crate::state::{self, JobState};
use crate::units::folded;
use lattice_api::v1;
use lattice_cli_syntax::slurm::PRIORITY_MAX;
use lattice_model::output_files::{NameFacts, has_pattern};
use lattice_model::{DEFAULT_VCLUSTER, hostlist};
use std::path::Path;
use std::rc::Rc;

/// The preemption class of work that names none.
const CLASS_DEFAULT: u8 = 5;
/// Slurm reports this number as the signal of a job that had too little memory.
const MEMORY_SIGNAL: i32 = 125;

/// Whether an allocation is a task group, which is an array in Slurm's words.
pub fn is_array(a: &v1::Allocation) -> bool {
    !a.task_group.is_empty()
}

/// A row.
#[derive(Clone, Debug)]
pub struct Job {
    /// The job as the agent reports it; all rows of an array share it.
    pub allocation: Rc<v1::Allocation>,
    /// Which part of it this row is about.
    pub part: Part,
    /// For ended work from the accounting store: the values that only the store has.
    pub recorded: Option<Box<Recorded>>,
}

/// The part of an allocation that a row is about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Part {
    /// All of it.
    Whole,
    /// The tasks of an array that wait.
    Waiting {
        /// Their indices and the array's limit, such as `3-99%20`.
        indices: String,
    },
    /// One task of an array.
    Task(Box<Task>),
}

/// One task of an array.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Task {
    /// Its index.
    pub index: u32,
    /// Its position among the indices, from 0.
    pub ordinal: u32,
    /// Its state, as Lattice names it.
    pub state: String,
    /// Why it ended.
    pub reason: String,
    /// Its exit code.
    pub exit_code: Option<i32>,
    /// The nodes of the lanes that ran it, the latest last; empty: not requested.
    pub nodes: Vec<String>,
}

impl Task {
    /// The first task of a range.
    pub fn of(range: &v1::TaskRange) -> Self {
        let index = range.indices.as_ref().map_or(0, |run| run.first);
        let v1::TaskRange { state, reason, exit_code, nodes, .. } = range.clone();
        Self { index, ordinal: 0, state, reason, exit_code, nodes }
    }
}

/// What the accounting store knows of ended work.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Recorded {
    /// The number of its user.
    pub uid: u32,
    /// Its nodes as a hostlist.
    pub nodes: String,
    /// The number of these nodes.
    pub node_count: u32,
    /// Cores × milliseconds of all attempts.
    pub core_ms: u64,
}

impl Job {
    /// Ended work of the store, whose job number is given.
    pub fn of_record(record: v1::HistoryRecord, number: u64) -> Self {
        let recorded = Recorded { uid: record.uid, nodes: record.nodes, node_count: record.node_count, core_ms: record.core_ms };
        let allocation = v1::Allocation {
            id: record.id,
            number,
            name: record.name,
            state: record.state,
            reason: record.reason,
            owner: record.user,
            nodes_requested: record.node_count,
            tasks_per_node: 1,
            exit_code: record.exit_code,
            requeue_count: record.requeue_count,
            preempted_count: record.preempted_count,
            submitted_at_ms: record.submitted_at_ms,
            claimed_at_ms: record.claimed_at_ms,
            started_at_ms: record.started_at_ms,
            ended_at_ms: record.ended_at_ms,
            tenant: record.tenant,
            vcluster: record.vcluster,
            tags: record.tags,
            ..Default::default()
        };
        Self { allocation: Rc::new(allocation), part: Part::Whole, recorded: Some(Box::new(recorded)) }
    }

    /// The number of the job, or of the array that it is part of.
    pub fn base_number(&self) -> u64 {
        self.allocation.number
    }

    /// Its own number.
    pub fn number(&self) -> u64 {
        match &self.part {
            Part::Whole | Part::Waiting { .. } => self.allocation.number,
            Part::Task(task) => self.allocation.number + u64::from(task.ordinal),
        }
    }

    /// Its id, such as `12`, `12_3` or `12_[3-99%20]`.
    pub fn id_text(&self) -> String {
        let number = self.allocation.number;
        match &self.part {
            Part::Whole if is_array(&self.allocation) => format!("{number}_[{}]", self.indices_text()),
            Part::Whole => number.to_string(),
            Part::Waiting { indices } => format!("{number}_[{indices}]"),
            Part::Task(task) => format!("{number}_{}", task.index),
        }
    }

    /// Of an array: the index of the task, or the indices of those that wait.
    pub fn indices_text(&self) -> String {
        match &self.part {
            Part::Whole => self.allocation.task_group.split(" (").next().unwrap_or_default().to_owned(),
            Part::Waiting { indices } => indices.clone(),
            Part::Task(task) => task.index.to_string(),
        }
    }

    /// The task, if it is one.
    pub fn task(&self) -> Option<&Task> {
        match &self.part {
            Part::Task(task) => Some(task),
            Part::Whole | Part::Waiting { .. } => None,
        }
    }

    /// Its files of output and input as absolute paths. Patterns are replaced, except in a name with a pattern that
    /// differs between nodes, ranks or tasks.
    pub fn files(&self) -> v1::OutputFiles {
        let a = &self.allocation;
        let index = self.task().map(|task| task.index);
        let facts = NameFacts {
            job: self.number(),
            group: self.base_number(),
            index,
            name: &a.name,
            user: &a.owner,
            node: "",
            node_index: 0,
            rank: 0,
            step: None,
        };
        let of_one_row: &[char] =
            if is_array(a) && index.is_none() { &['N', 'n', 't', 's', 'J', 'a', 'j'] } else { &['N', 'n', 't', 's', 'J'] };
        let path = |name: &str| match name {
            "" => String::new(),
            name => {
                let name = if has_pattern(name, of_one_row) { name.to_owned() } else { facts.resolve(name) };
                Path::new(&a.working_dir).join(name).to_string_lossy().into_owned()
            }
        };
        let given = a.output_files.clone().unwrap_or_default();
        let stderr = if given.stderr.is_empty() { &given.stdout } else { &given.stderr };
        v1::OutputFiles { stdout: path(&given.stdout), stderr: path(stderr), stdin: path(&given.stdin), append: given.append }
    }

    /// Its state.
    pub fn state(&self) -> JobState {
        match &self.part {
            Part::Whole => JobState::of(&self.allocation.state, &self.allocation.reason, self.allocation.held),
            Part::Waiting { .. } => JobState::Pending,
            Part::Task(task) => JobState::of(&task.state, &task.reason, false),
        }
    }

    /// Why it ended, in Lattice's words.
    fn why_ended(&self) -> &str {
        self.task().map_or(&self.allocation.reason, |task| &task.reason)
    }

    /// Why it is in its state, as Slurm names it.
    pub fn reason(&self, now_ms: u64) -> &'static str {
        state::reason(&self.allocation, self.state(), self.why_ended(), now_ms)
    }

    /// Who cancelled it.
    pub fn cancelled_by(&self) -> Option<&str> {
        // A task's reason does not say who cancelled the array.
        let by = self.why_ended().strip_prefix("cancelled by ").or_else(|| self.allocation.reason.strip_prefix("cancelled by "));
        by.map(|by| by.split([' ', ':', ';']).next().unwrap_or(by))
    }

    /// The exit code, and the signal that ended it. Lattice does not know whether a code above 128 was the program's own.
    pub fn exit(&self) -> (i32, i32) {
        let code = self.task().map_or(self.allocation.exit_code, |task| task.exit_code);
        match self.state() {
            JobState::OutOfMemory => (0, MEMORY_SIGNAL),
            JobState::Pending | JobState::Running | JobState::Configuring | JobState::Suspended => (0, 0),
            _ => (code.unwrap_or_else(|| i32::from(self.state() == JobState::Failed)), 0),
        }
    }

    /// The exit code and the signal as Slurm writes them: `0:0`.
    pub fn exit_text(&self) -> String {
        let (code, signal) = self.exit();
        format!("{code}:{signal}")
    }

    /// Whether its nodes must follow each other by their names.
    pub fn is_contiguous(&self) -> bool {
        self.allocation.topology == "contiguous"
    }

    /// Its nodes as a hostlist; empty: it has none, or the caller did not ask for them.
    pub fn nodes_text(&self) -> String {
        match (&self.part, &self.recorded) {
            (_, Some(recorded)) => recorded.nodes.clone(),
            (Part::Waiting { .. }, None) => String::new(),
            (Part::Task(task), None) => task.nodes.last().cloned().unwrap_or_default(),
            (Part::Whole, None) => folded(&self.allocation.nodes),
        }
    }

    /// The names of its nodes.
    pub fn node_names(&self) -> Vec<String> {
        match (&self.part, &self.recorded) {
            (_, Some(recorded)) => {
                hostlist::in_order(&recorded.nodes).unwrap_or_default().iter().map(|node| node.as_str().to_owned()).collect()
            }
            (Part::Waiting { .. }, None) => Vec::new(),
            // The name is empty if the node is not known any more.
            (Part::Task(task), None) => task.nodes.last().filter(|node| !node.is_empty()).cloned().into_iter().collect(),
            (Part::Whole, None) => self.allocation.nodes.clone(),
        }
    }

    /// How many nodes it has, or wants if it has none.
    pub fn node_count(&self) -> u32 {
        match (&self.part, &self.recorded) {
            (_, Some(recorded)) => recorded.node_count,
            (Part::Whole, None) if !self.allocation.nodes.is_empty() => u32::try_from(self.allocation.nodes.len()).unwrap_or(u32::MAX),
            _ => self.allocation.nodes_requested.max(1),
        }
    }

    /// How many ranks it has.
    pub fn task_count(&self) -> u32 {
        match self.allocation.ranks {
            0 => self.node_count().saturating_mul(self.allocation.tasks_per_node.max(1)),
            ranks => ranks,
        }
    }

    /// How many logical processors it has, or wants if it has none.
    pub fn cpus(&self, context: &Context<'_>) -> u64 {
        let elapsed = self.elapsed_ms(context.clock.now_ms).unwrap_or(0);
        if let Some(recorded) = &self.recorded {
            let mean = (recorded.core_ms + elapsed / 2).checked_div(elapsed).unwrap_or(0);
            return mean.max(u64::from(recorded.node_count));
        }
        if let Some(share) = self.allocation.share.as_ref().filter(|share| share.cores > 0) {
            return u64::from(share.cores) * u64::from(self.node_count());
        }
        let whole: u64 = self.node_names().iter().filter_map(|node| context.nodes.get(node)).map(|node| u64::from(node.cores)).sum();
        if whole > 0 { whole } else { u64::from(self.task_count()) }
    }

    /// The memory that it has or wants on all nodes, in bytes; 0: all memory of nodes that are not known yet.
    pub fn memory_bytes(&self, context: &Context<'_>) -> u64 {
        match &self.allocation.share {
            Some(share) => share.memory_bytes.saturating_mul(u64::from(self.node_count())),
            None => self.node_names().iter().filter_map(|node| context.nodes.get(node)).map(|node| node.memory_bytes).sum(),
        }
    }

    /// The GPUs that it has or wants on all nodes.
    pub fn gpus(&self, context: &Context<'_>) -> u64 {
        match &self.allocation.share {
            Some(share) => u64::from(share.gpus) * u64::from(self.node_count()),
            None => self.node_names().iter().filter_map(|node| context.nodes.get(node)).map(|node| u64::from(node.gpus)).sum(),
        }
    }

    /// What it has or wants, as Slurm lists trackable resources: `cpu=4,mem=8G,node=1`.
    pub fn tres_text(&self, context: &Context<'_>) -> String {
        let mut parts = vec![format!("cpu={}", self.cpus(context))];
        let memory = self.memory_bytes(context);
        if memory > 0 {
            parts.push(format!("mem={}", crate::units::memory_text(memory)));
        }
        parts.push(format!("node={}", self.node_count()));
        parts.push(format!("billing={}", self.cpus(context)));
        let gpus = self.gpus(context);
        if gpus > 0 {
            parts.push(format!("gres/gpu={gpus}"));
        }
        parts.join(",")
    }

    /// When it began, or is expected to begin. The times of tasks of an array are not known.
    pub fn start_ms(&self) -> Option<u64> {
        let a = &self.allocation;
        match self.state() {
            JobState::Pending | JobState::Suspended => {
                let begin = a.timing.as_ref().map(|timing| timing.begin_ms).filter(|begin| *begin > 0);
                a.expected_start_ms.or(begin)
            }
            _ if self.task().is_some() => None,
            JobState::Configuring => Some(a.claimed_at_ms).filter(|ms| *ms > 0),
            _ => Some(a.started_at_ms).filter(|ms| *ms > 0),
        }
    }

    /// When it ended.
    pub fn ended_ms(&self) -> Option<u64> {
        Some(self.allocation.ended_at_ms).filter(|ms| *ms > 0 && self.task().is_none() && self.state().is_final())
    }

    /// When it ended, or must have ended.
    pub fn end_ms(&self) -> Option<u64> {
        if self.state().is_final() {
            return self.ended_ms();
        }
        let limit_ms = self.limit_seconds()?.saturating_mul(1000);
        self.start_ms().map(|start| start.saturating_add(limit_ms))
    }

    /// How long it has run; `None`: that is not known, or it has not begun.
    pub fn elapsed_ms(&self, now_ms: u64) -> Option<u64> {
        match self.state() {
            JobState::Pending | JobState::Suspended => None,
            _ => {
                let end = if self.state().is_final() { self.ended_ms()? } else { now_ms };
                self.start_ms().map(|start| end.saturating_sub(start))
            }
        }
    }

    /// Its walltime; `None`: it has none.
    pub fn limit_seconds(&self) -> Option<u64> {
        Some(self.allocation.walltime_seconds).filter(|seconds| *seconds > 0)
    }

    /// Its priority: the greatest is served first, and held work has 0.
    pub fn priority(&self) -> u64 {
        match self.state() {
            JobState::Pending | JobState::Suspended if self.allocation.held => 0,
            JobState::Pending | JobState::Suspended => PRIORITY_MAX.saturating_sub(u64::from(self.allocation.queue_position)),
            _ => PRIORITY_MAX,
        }
    }

    /// Its partition.
    pub fn partition<'a>(&'a self, context: &'a Context<'_>) -> &'a str {
        let vcluster = if self.allocation.vcluster.is_empty() { DEFAULT_VCLUSTER } else { self.allocation.vcluster.as_str() };
        context.compat.partition_of(vcluster)
    }

    /// Its account.
    pub fn account<'a>(&'a self, context: &'a Context<'_>) -> &'a str {
        context.compat.account_of(&self.allocation.tenant)
    }

    /// Its QOS.
    pub fn qos<'a>(&self, context: &'a Context<'_>) -> &'a str {
        let class = self.allocation.preemption_class.and_then(|class| u8::try_from(class).ok());
        context.compat.qos_of(class.unwrap_or(CLASS_DEFAULT))
    }
}

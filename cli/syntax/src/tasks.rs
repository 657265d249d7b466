//! Task groups on the command line: the options that make one, and its tasks behind its id, as in `ID[7]`. The same
//! brackets name a replica of a scaled service.

use crate::UsageError;
use crate::files::FileFlags;
use clap::Args;
use lattice_api::v1;
use lattice_model::task_group::NoSuchIndices;
use lattice_model::{TaskGroup, TaskIndices};
use std::str::FromStr;
use thiserror::Error;

/// The options of a submission that a launch or a session does not have: its tasks, and files of its user's. So they
/// are not in `SubmitFlags`.
#[derive(Args, Clone, Debug, Default, PartialEq, Eq)]
pub struct TaskFlags {
    /// Run the work once for each index of LIST, as tasks of one allocation: 0-99, 1,5,9 or 0-98:2; with %N at most N of
    /// them at the same time. The index is in LATTICE_TASK_INDEX. --array is the same option
    #[arg(long, value_name = "LIST[%N]", value_parser = TaskGroup::parse, overrides_with_all = ["task_group", "array"])]
    task_group: Option<TaskGroup>,
    /// Slurm's name of --task-group. Errors name the option that was typed, so it is no alias.
    #[arg(long, hide = true, value_name = "LIST[%N]", value_parser = TaskGroup::parse, overrides_with_all = ["task_group", "array"])]
    array: Option<TaskGroup>,
    /// Of a task group: when more than N tasks have failed, cancel those that wait [default: never]
    #[arg(long, value_name = "N", overrides_with = "max_failures")]
    max_failures: Option<u32>,
    #[command(flatten)]
    pub files: FileFlags,
}

impl TaskFlags {
    /// Merges two sets of options: a value of `self` wins over one of `under`.
    pub fn merge_over(self, under: Self) -> Self {
        // Two options have the list: either of `self` wins over both of `under`.
        let has_list = self.task_group.is_some() || self.array.is_some();
        let (task_group, array) = if has_list { (self.task_group, self.array) } else { (under.task_group, under.array) };
        Self { task_group, array, max_failures: self.max_failures.or(under.max_failures), files: self.files.merge_over(under.files) }
    }

    /// The task group in the specification; `None`: the work is none.
    ///
    /// # Errors
    /// An option of task groups without a list of tasks.
    pub fn to_message(&self) -> Result<Option<v1::TaskGroup>, UsageError> {
        let Some(group) = self.task_group.as_ref().or(self.array.as_ref()) else {
            return match self.max_failures {
                None => Ok(None),
                Some(_) => Err(UsageError::new("--max-failures is for task groups, and this work is not one")
                    .with_hint("add the indices of its tasks, such as --task-group=0-99, or leave --max-failures out")),
            };
        };
        Ok(Some(v1::TaskGroup {
            indices: index_runs(&group.indices),
            concurrency: group.concurrent_max.unwrap_or_default(),
            max_failures: self.max_failures,
        }))
    }
}

/// Indices as the API has them.
pub fn index_runs(indices: &TaskIndices) -> Vec<v1::IndexRun> {
    indices.runs().iter().map(|run| v1::IndexRun { first: run.first, last: run.last, step: run.step }).collect()
}

/// An allocation, or some tasks of a task group or replicas of a service: `ID` or `ID[LIST]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    /// The id, the beginning of one, or `@last`.
    pub key: String,
    /// The tasks or replicas; `None`: all of it.
    pub tasks: Option<TaskIndices>,
}

/// An allocation, or one task of a task group or replica of a service: `ID` or `ID[INDEX]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OneTarget {
    /// The id, the beginning of one, or `@last`.
    pub key: String,
    /// The index of the task, or the number of the replica; `None`: all of it.
    pub task: Option<u32>,
}

/// The text names no allocation and no tasks.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum TargetError {
    #[error("tasks of a task group, and replicas of a service, are written as '1f0c9a4e[7]' or '1f0c9a4e[10-20,30]', in quotes")]
    Malformed,
    #[error(transparent)]
    Indices(#[from] NoSuchIndices),
    #[error("one task or replica can be named here: write one index, as in '1f0c9a4e[7]'")]
    Several,
    #[error("a whole task group is named here, and its tasks with --tasks, as in --tasks=10-20,30")]
    WithTasks,
}

impl FromStr for Target {
    type Err = TargetError;

    fn from_str(text: &str) -> Result<Self, TargetError> {
        let Some((key, list)) = text.split_once('[') else { return Ok(Self { key: text.to_owned(), tasks: None }) };
        let list = list.strip_suffix(']').filter(|_| !key.is_empty()).ok_or(TargetError::Malformed)?;
        Ok(Self { key: key.to_owned(), tasks: Some(TaskIndices::parse(list)?) })
    }
}

impl FromStr for OneTarget {
    type Err = TargetError;

    fn from_str(text: &str) -> Result<Self, TargetError> {
        let Target { key, tasks } = text.parse::<Target>()?;
        match tasks {
            None => Ok(Self { key, task: None }),
            Some(tasks) if tasks.count() == 1 => Ok(Self { key, task: Some(tasks.first()) }),
            Some(_) => Err(TargetError::Several),
        }
    }
}

/// The text is no job number.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum NoJobNumber {
    #[error("a job number is a number from 1 on, such as 4711")]
    Malformed,
    #[error(
        "task {task} of job {group} has no records of its own: name the job, {group}; `lattice status '{group}[{task}]'` shows the task"
    )]
    Task { group: u64, task: u32 },
}

/// A job by its number, or one of its tasks: `42`, `42[7]` or `42_7`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct JobOrTask {
    /// The job number.
    pub job: u64,
    /// The index of the task; `None`: the whole job.
    pub task: Option<u32>,
}

impl FromStr for JobOrTask {
    type Err = NoJobNumber;

    fn from_str(text: &str) -> Result<Self, NoJobNumber> {
        match parse_job(text) {
            Ok(job) => Ok(Self { job, task: None }),
            Err(NoJobNumber::Task { group, task }) => Ok(Self { job: group, task: Some(task) }),
            Err(malformed @ NoJobNumber::Malformed) => Err(malformed),
        }
    }
}

impl JobOrTask {
    /// The whole jobs of a list, and the single tasks, as requests have them.
    pub fn divided(all: &[Self]) -> (Vec<u64>, Vec<v1::TaskOfJob>) {
        let jobs = all.iter().filter(|one| one.task.is_none()).map(|one| one.job);
        let tasks = all.iter().filter_map(|one| Some(v1::TaskOfJob { job: one.job, index: one.task? }));
        (jobs.collect(), tasks.collect())
    }
}

/// Parses a job number. A task, as `42[7]` or `42_7`, is refused: records are of whole jobs.
pub(crate) fn parse_job(text: &str) -> Result<u64, NoJobNumber> {
    let number = |text: &str| text.parse::<u64>().ok().filter(|number| *number > 0);
    let task = text.strip_suffix(']').and_then(|text| text.split_once('[')).or_else(|| text.split_once('_'));
    match task.and_then(|(group, task)| number(group).zip(task.parse().ok())) {
        Some((group, task)) => Err(NoJobNumber::Task { group, task }),
        None => number(text).ok_or(NoJobNumber::Malformed),
    }
}

/// Parses the key of a whole task group.
pub(crate) fn parse_group_key(text: &str) -> Result<String, TargetError> {
    match text.parse::<Target>()? {
        Target { key, tasks: None } => Ok(key),
        Target { tasks: Some(_), .. } => Err(TargetError::WithTasks),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser, Debug)]
    struct Line {
        #[command(flatten)]
        flags: TaskFlags,
    }

    #[test]
    fn records_are_found_by_the_number_of_a_job_and_not_of_a_task() {
        assert_eq!(parse_job("4711"), Ok(4711));
        for bad in ["", "0", "-1", "x", "1f0c", "4711[", "[3]", "_3"] {
            assert_eq!(parse_job(bad), Err(NoJobNumber::Malformed), "{bad}");
        }
        for task in ["42[7]", "42_7"] {
            assert_eq!(parse_job(task), Err(NoJobNumber::Task { group: 42, task: 7 }));
        }
        let all: Vec<JobOrTask> = ["12", "42_7", "42[0]"].iter().map(|text| text.parse().unwrap()).collect();
        let task = |index| v1::TaskOfJob { job: 42, index };
        assert_eq!(JobOrTask::divided(&all), (vec![12], vec![task(7), task(0)]));
        assert_eq!("42_x".parse::<JobOrTask>(), Err(NoJobNumber::Malformed));
    }

    fn parsed(line: &str) -> Result<TaskFlags, String> {
        let words = std::iter::once("x").chain(line.split_whitespace());
        Line::try_parse_from(words).map(|line| line.flags).map_err(|error| error.to_string())
    }

    fn message(line: &str) -> Option<v1::TaskGroup> {
        parsed(line).unwrap().to_message().unwrap()
    }

    fn group(runs: &[(u32, u32, u32)], concurrency: u32, max_failures: Option<u32>) -> Option<v1::TaskGroup> {
        let indices = runs.iter().map(|(first, last, step)| v1::IndexRun { first: *first, last: *last, step: *step }).collect();
        Some(v1::TaskGroup { indices, concurrency, max_failures })
    }

    #[test]
    fn a_list_has_ranges_steps_and_a_limit_under_both_names() {
        assert_eq!(message(""), None);
        assert_eq!(message("--task-group=0-99%20"), group(&[(0, 99, 1)], 20, None));
        assert_eq!(message("--array 0-99%20 --max-failures=3"), group(&[(0, 99, 1)], 20, Some(3)));
        assert_eq!(message("--array=1,5,10-20:5 --max-failures 0"), group(&[(1, 1, 1), (5, 5, 1), (10, 20, 5)], 0, Some(0)));
        assert_eq!(message("--task-group=7"), group(&[(7, 7, 1)], 0, None));
        assert_eq!(message("--task-group=1 --array=2"), group(&[(2, 2, 1)], 0, None), "the last one wins");
        assert_eq!(message("--array=2 --task-group=1"), group(&[(1, 1, 1)], 0, None));
        let merged = |over: &str, under: &str| parsed(over).unwrap().merge_over(parsed(under).unwrap()).to_message().unwrap();
        assert_eq!(merged("--task-group=1", "--array=2 --max-failures=4"), group(&[(1, 1, 1)], 0, Some(4)));
        assert_eq!(merged("--max-failures=1", "--array=2 --max-failures=4"), group(&[(2, 2, 1)], 0, Some(1)));
    }

    #[test]
    fn a_list_that_is_none_is_refused_under_the_name_that_was_typed() {
        for (list, why) in [
            ("", "is no index and no range"),
            ("x", "\"x\" is no index and no range"),
            ("-1", "\"-1\" is no index"),
            ("1-", "\"1-\" is no index"),
            ("1,,2", "\"\" is no index"),
            ("0-9:0", "\"0-9:0\" is no index"),
            ("9-0", "\"9-0\" ends before it begins"),
            ("0-9%0", "\"0\" is no number of tasks"),
            ("0-9%", "\"\" is no number of tasks"),
            ("0-9%1%2", "\"1%2\" is no number of tasks"),
            ("2147483648", "is larger than the largest index"),
            ("99999999999999999999", "is larger than the largest index"),
            ("0-1000000", "more than 1000000 tasks"),
            ("0-999999,0-999999", "more than 1000000 tasks"),
            ("0-2147483647", "more than 1000000 tasks"),
        ] {
            for option in ["--task-group", "--array"] {
                let refused = parsed(&format!("{option}={list}")).unwrap_err();
                assert!(refused.contains(why) && refused.contains(&format!("'{option} <LIST[%N]>'")), "{option}={list}: {refused}");
            }
        }
        let many = (0..3000).map(|index| (index * index).to_string()).collect::<Vec<_>>().join(",");
        assert!(parsed(&format!("--array={many}")).unwrap_err().contains("separate ranges"));
        assert!(parsed("--max-failures=-1").is_err() && parsed("--max-failures=x").is_err());
        let alone = parsed("--max-failures=1").unwrap().to_message().unwrap_err();
        assert_eq!(alone.what, "--max-failures is for task groups, and this work is not one");
        assert!(alone.hint.unwrap().contains("--task-group=0-99"));
    }

    #[test]
    fn tasks_follow_the_id_in_brackets() {
        let target = |text: &str| text.parse::<Target>().map(|t| (t.key, t.tasks.map(|tasks| tasks.to_string())));
        assert_eq!(target("1f0c"), Ok(("1f0c".into(), None)));
        assert_eq!(target("@last[7]"), Ok(("@last".into(), Some("7".into()))));
        assert_eq!(target("1f0c[10-20,30]"), Ok(("1f0c".into(), Some("10-20,30".into()))));
        for malformed in ["[7]", "1f0c[7", "1f0c[7]x", "["] {
            assert_eq!(target(malformed), Err(TargetError::Malformed), "{malformed}");
        }
        for list in ["1f0c[]", "1f0c[x]", "1f0c[9-0]", "1f0c[[7]]", "1f0c[7%2]", "1f0c[0-9999999]"] {
            assert!(matches!(target(list), Err(TargetError::Indices(_))), "{list}: {:?}", target(list));
        }
        let one = |text: &str| text.parse::<OneTarget>().map(|t| (t.key, t.task));
        assert_eq!((one("1f0c"), one("1f0c[7]")), (Ok(("1f0c".into(), None)), Ok(("1f0c".into(), Some(7)))));
        assert_eq!(one("1f0c[7-8]"), Err(TargetError::Several));
        assert_eq!(parse_group_key("@last"), Ok("@last".into()));
        assert_eq!(parse_group_key("1f0c[7]"), Err(TargetError::WithTasks));
    }
}

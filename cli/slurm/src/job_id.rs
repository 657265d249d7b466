//! How Slurm's commands name jobs, tasks of job arrays, and steps: `12`, `12_7`, `12_[1-3,9]`, `12.0`, `12_7.batch`,
//! `12+1`. Lattice's own ids and `@last` are accepted too.

use lattice_model::TaskIndices;
use lattice_model::task_group::NoSuchIndices;
use std::fmt;
use std::str::FromStr;
use thiserror::Error;

/// A job, or some of its tasks, or one of its steps.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JobId {
    /// The name of the job in a request: its number, or an id of Lattice or its beginning, or `@last`.
    pub key: String,
    /// The tasks of a job array; `None`: all of it.
    pub tasks: Option<TaskIndices>,
    /// The step; `None`: the whole job.
    pub step: Option<Step>,
    /// The component of a heterogeneous job. Lattice has no such jobs.
    pub het: Option<u32>,
}

/// A step of a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// The script itself.
    Batch,
    /// The processes beside the steps in an allocation of `salloc`.
    Extern,
    /// A launch, by Slurm's number, which begins at 0.
    Number(u32),
}

/// The text names no job.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum JobIdError {
    /// The job has no number and no id.
    #[error("Invalid job id {0}")]
    Job(String),
    /// The tasks are no list.
    #[error("Invalid job id {text}: {why}")]
    Tasks {
        /// The whole text.
        text: String,
        /// What is wrong.
        why: NoSuchIndices,
    },
    /// The step has no number.
    #[error("Invalid step id in {0}")]
    Step(String),
}

impl JobId {
    /// The job's number, if it is named by that.
    pub fn number(&self) -> Option<u64> {
        self.key.parse().ok()
    }

    /// The key of a request that may also name one task, as in `12[7]`; `None`: it names several tasks.
    pub fn key_with_task(&self) -> Option<String> {
        match &self.tasks {
            None => Some(self.key.clone()),
            Some(tasks) if tasks.count() == 1 => Some(format!("{}[{}]", self.key, tasks.first())),
            Some(_) => None,
        }
    }
}

impl FromStr for JobId {
    type Err = JobIdError;

    fn from_str(text: &str) -> Result<Self, JobIdError> {
        let (job, step) = match text.split_once('.') {
            None => (text, None),
            Some((job, "batch")) => (job, Some(Step::Batch)),
            Some((job, "extern")) => (job, Some(Step::Extern)),
            Some((job, number)) => {
                let number = number.parse().map_err(|_| JobIdError::Step(text.to_owned()))?;
                (job, Some(Step::Number(number)))
            }
        };
        let wrong = || JobIdError::Job(text.to_owned());
        let (job, het) = match job.split_once('+') {
            None => (job, None),
            Some((job, component)) => (job, Some(component.parse::<u32>().map_err(|_| wrong())?)),
        };
        let list = |list: &str| TaskIndices::parse(list).map_err(|why| JobIdError::Tasks { text: text.to_owned(), why });
        let (key, tasks) = if let Some((key, tasks)) = job.split_once('_') {
            let inner = tasks.strip_prefix('[').and_then(|inner| inner.strip_suffix(']'));
            // `12_*` of Slurm's own messages, and the limit in `12_[0-9%2]`, name nothing more.
            let tasks = inner.unwrap_or(tasks).split('%').next().unwrap_or_default();
            (key, if tasks == "*" { None } else { Some(list(tasks)?) })
        } else if let Some((key, tasks)) = job.split_once('[') {
            (key, Some(list(tasks.strip_suffix(']').ok_or_else(wrong)?)?))
        } else {
            (job, None)
        };
        let is_id = key == "@last" || (!key.is_empty() && key.bytes().all(|byte| byte.is_ascii_hexdigit() || byte == b'-'));
        if !is_id || key.starts_with('-') {
            return Err(wrong());
        }
        Ok(Self { key: key.to_owned(), tasks, step, het })
    }
}

/// As Slurm writes it.
impl fmt::Display for JobId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.key)?;
        match &self.tasks {
            None => {}
            Some(tasks) if tasks.count() == 1 => write!(f, "_{}", tasks.first())?,
            Some(tasks) => write!(f, "_[{tasks}]")?,
        }
        if let Some(component) = self.het {
            write!(f, "+{component}")?;
        }
        match self.step {
            None => Ok(()),
            Some(Step::Batch) => f.write_str(".batch"),
            Some(Step::Extern) => f.write_str(".extern"),
            Some(Step::Number(number)) => write!(f, ".{number}"),
        }
    }
}

/// The number of a step in Slurm's count, which begins at 0; a launch's number begins at 1. `None`: it is the script.
pub fn step_of_launch(launch: u32) -> Option<u32> {
    launch.checked_sub(1)
}

/// The number of the launch that is this step; the script is 0. `None`: there is no such launch.
pub fn launch_of_step(step: Step) -> Option<u32> {
    match step {
        Step::Batch => Some(0),
        Step::Extern => None,
        Step::Number(number) => number.checked_add(1),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(text: &str) -> JobId {
        text.parse().unwrap_or_else(|error| panic!("{text}: {error}"))
    }

    #[test]
    fn jobs_tasks_and_steps_are_read_and_written_as_slurm_does() {
        for text in ["12", "12_7", "12_[1-3,9]", "12.0", "12_7.3", "12.batch", "12.extern", "12+1", "12+1.0", "1f0c9a4e", "@last"] {
            assert_eq!(parsed(text).to_string(), text);
        }
        let of = |text: &str| {
            let id = parsed(text);
            (id.number(), id.tasks.as_ref().map(ToString::to_string), id.step, id.key_with_task())
        };
        assert_eq!(of("12"), (Some(12), None, None, Some("12".into())));
        assert_eq!(of("12_7"), (Some(12), Some("7".into()), None, Some("12[7]".into())));
        assert_eq!(of("12_[1-3]"), (Some(12), Some("1-3".into()), None, None));
        assert_eq!(of("12_[0-9%2]").1, Some("0-9".into()));
        assert_eq!((of("12_*"), of("12_[*]")), (of("12"), of("12")));
        assert_eq!(of("12.3").2, Some(Step::Number(3)));
        assert_eq!(of("1f0c9a4e-5b7d[7]"), (None, Some("7".into()), None, Some("1f0c9a4e-5b7d[7]".into())));
    }

    #[test]
    fn other_texts_are_refused() {
        for text in ["", "x", "12_", "12_x", "12_[1", "12.x", "12.", "_7", "-12", "12+x", "12 ", "nid1"] {
            assert!(text.parse::<JobId>().is_err(), "{text:?}");
        }
        assert_eq!("99x".parse::<JobId>().unwrap_err().to_string(), "Invalid job id 99x");
    }

    #[test]
    fn steps_begin_at_0_and_launches_at_1() {
        assert_eq!((step_of_launch(1), step_of_launch(0)), (Some(0), None));
        assert_eq!((launch_of_step(Step::Number(0)), launch_of_step(Step::Batch), launch_of_step(Step::Extern)), (Some(1), Some(0), None));
    }
}

//! The ids of jobs, as users of Slurm write them: `12`, `12_7`, `12_[1-3]`, `12.batch`, `12.0`.

use lattice_model::TaskIndices;
use std::str::FromStr;
use thiserror::Error;

/// One job, some tasks of an array, or a step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JobId {
    /// The job number.
    pub number: u64,
    /// The tasks of an array; `None`: all of the job.
    pub tasks: Option<TaskIndices>,
    /// The step, such as `batch` or `0`; `None`: all of the job.
    pub step: Option<String>,
}

/// The text is no id of a job.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("Invalid job id specified: {0}")]
pub struct InvalidJobId(pub String);

impl FromStr for JobId {
    type Err = InvalidJobId;

    fn from_str(text: &str) -> Result<Self, InvalidJobId> {
        let invalid = || InvalidJobId(text.chars().take(40).collect());
        let (job, step) = text.split_once('.').map_or((text, None), |(job, step)| (job, Some(step.to_owned())));
        let (number, tasks) = job.split_once('_').map_or((job, None), |(number, tasks)| (number, Some(tasks)));
        let is_number = !number.is_empty() && number.bytes().all(|b| b.is_ascii_digit());
        let number = if is_number { number.parse().ok() } else { None }.ok_or_else(invalid)?;
        let unwrapped =
            |tasks: &str| tasks.strip_prefix('[').map_or(Some(tasks.to_owned()), |rest| rest.strip_suffix(']').map(str::to_owned));
        let tasks = match tasks {
            Some(tasks) => {
                let listed = unwrapped(tasks).ok_or_else(invalid)?;
                let listed = listed.split_once('%').map_or(listed.as_str(), |(listed, _)| listed);
                Some(TaskIndices::parse(listed).map_err(|_| invalid())?)
            }
            None => None,
        };
        if step.as_deref() == Some("") {
            return Err(invalid());
        }
        Ok(Self { number, tasks, step })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_read_in_every_form() {
        let read = |text: &str| text.parse::<JobId>().ok().map(|id| (id.number, id.tasks.map(|t| t.runs().len()), id.step));
        assert_eq!(read("12"), Some((12, None, None)));
        assert_eq!(read("12_7"), Some((12, Some(1), None)));
        assert_eq!(read("12_[1-3,9%2].batch"), Some((12, Some(2), Some("batch".to_owned()))));
        assert_eq!(read("12.0"), Some((12, None, Some("0".to_owned()))));
        for wrong in ["", "x", "12_", "12_[1", "12.", "-1", "1,2"] {
            assert_eq!(read(wrong), None, "{wrong}");
        }
    }
}

//! Which events of an allocation the site's mail hook reports.

use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::fmt;
use std::str::FromStr;
use thiserror::Error;

/// Largest size of the name or address to which mail goes, in bytes.
pub const MAIL_USER_BYTES_MAX: usize = 254;
/// For how many tasks of a group [`MailEvent::ArrayTasks`] causes mails: for the first that end.
pub const TASK_MAILS_MAX: u32 = 100;

/// What the hook reports, and to whom.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Mail {
    /// The events; not empty.
    pub events: BTreeSet<MailEvent>,
    /// An address or a name; empty: the owner's name.
    #[serde(default)]
    pub user: String,
}

/// An event that can be reported.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum MailEvent {
    /// It began.
    Begin,
    /// It ended, in whatever way.
    End,
    /// It ended in another way than as Completed.
    Fail,
    /// It was requeued.
    Requeue,
    /// Half of its walltime is over.
    TimeLimit50,
    /// 80 % of its walltime are over.
    TimeLimit80,
    /// 90 % of its walltime are over.
    TimeLimit90,
    /// Its walltime is over.
    TimeLimit,
    /// No event of its own: `End` and `Fail` are also reported of each task of a task group.
    ArrayTasks,
}

impl MailEvent {
    /// Every event except [`Self::ArrayTasks`].
    pub const ALL: [Self; 8] =
        [Self::Begin, Self::End, Self::Fail, Self::Requeue, Self::TimeLimit50, Self::TimeLimit80, Self::TimeLimit90, Self::TimeLimit];
    /// The events at a part of the walltime, the first one first.
    pub const OF_WALLTIME: [Self; 3] = [Self::TimeLimit50, Self::TimeLimit80, Self::TimeLimit90];

    /// The name that users write.
    pub fn name(self) -> &'static str {
        match self {
            Self::Begin => "begin",
            Self::End => "end",
            Self::Fail => "fail",
            Self::Requeue => "requeue",
            Self::TimeLimit50 => "time_limit_50",
            Self::TimeLimit80 => "time_limit_80",
            Self::TimeLimit90 => "time_limit_90",
            Self::TimeLimit => "time_limit",
            Self::ArrayTasks => "array_tasks",
        }
    }

    /// At which part of the walltime it happens while the work runs, in percent; `None`: it depends on something else.
    pub fn percent(self) -> Option<u8> {
        match self {
            Self::TimeLimit50 => Some(50),
            Self::TimeLimit80 => Some(80),
            Self::TimeLimit90 => Some(90),
            Self::Begin | Self::End | Self::Fail | Self::Requeue | Self::TimeLimit | Self::ArrayTasks => None,
        }
    }
}

impl fmt::Display for MailEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// The text is no event.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{0:?} is no event: use {list}, {tasks}", tasks = MailEvent::ArrayTasks.name(), list = MailEvent::ALL.map(MailEvent::name).join(", "))]
pub struct NoSuchMailEvent(pub String);

impl FromStr for MailEvent {
    type Err = NoSuchMailEvent;

    /// In upper or lower case.
    fn from_str(text: &str) -> Result<Self, NoSuchMailEvent> {
        let known = Self::ALL.into_iter().chain([Self::ArrayTasks]).find(|event| event.name().eq_ignore_ascii_case(text));
        known.ok_or_else(|| NoSuchMailEvent(text.chars().take(40).collect()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_are_known_by_their_names_in_any_case() {
        for event in MailEvent::ALL.into_iter().chain([MailEvent::ArrayTasks]) {
            assert_eq!(event.to_string().to_uppercase().parse(), Ok(event));
        }
        let refused = "done".parse::<MailEvent>().unwrap_err().to_string();
        let list = "begin, end, fail, requeue, time_limit_50, time_limit_80, time_limit_90, time_limit, array_tasks";
        assert_eq!(refused, format!("\"done\" is no event: use {list}"));
        assert_eq!(MailEvent::OF_WALLTIME.map(MailEvent::percent), [Some(50), Some(80), Some(90)]);
    }
}

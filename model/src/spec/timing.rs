//! Bounds in time, the reservation, `nice`, the comment and the mail of a specification: what is refused, and what follows from them.

use super::{AllocationSpec, invalid};
use crate::duration::{clock_text, millis};
use crate::mail::{MAIL_USER_BYTES_MAX, MailEvent};
use crate::spec_error::SpecError;
use crate::task_group::{lane_walltime, task_walltime};
use crate::time::Timestamp;
use crate::timing::{AHEAD_MS_MAX, COMMENT_BYTES_MAX, NICE_MAX, Timing};
use std::collections::BTreeSet;
use std::time::Duration;

/// Largest size of the name of a reservation, in bytes: that of a vCluster.
const RESERVATION_BYTES_MAX: usize = 64;

impl AllocationSpec {
    /// The time before which it gets no nodes.
    pub fn begin(&self) -> Option<Timestamp> {
        self.timing.as_ref().and_then(|timing| timing.begin)
    }

    /// The time by which it must have ended.
    pub fn deadline(&self) -> Option<Timestamp> {
        self.timing.as_ref().and_then(|timing| timing.deadline)
    }

    /// The least walltime with which it may begin; `None`: it has no walltime.
    pub fn walltime_least(&self) -> Option<Duration> {
        let least = self.timing.as_ref().and_then(|timing| timing.walltime_min);
        least.or(self.walltime)
    }

    /// The last time at which it, or a lane of the task group, may begin and still end by its deadline; `None`: it may
    /// begin at any time. Not for the specification of a lane itself.
    pub fn begin_latest(&self) -> Option<Timestamp> {
        let (deadline, least) = (self.deadline()?, self.shortest_run()?);
        Some(Timestamp(deadline.0.saturating_sub(millis(least))))
    }

    /// The least walltime with which it, or a lane of the task group, may begin.
    fn shortest_run(&self) -> Option<Duration> {
        let least = self.walltime_least()?;
        Some(if self.tasks.is_some() { lane_walltime(least) } else { least })
    }

    /// The walltime that it gets if it begins at this time: less than it asks for only if its deadline is near. `None`:
    /// none, or it could not end by its deadline.
    pub fn walltime_at(&self, now: Timestamp) -> Option<Duration> {
        let (asked, least) = (self.walltime?, self.walltime_least()?);
        let left = self.deadline().map_or(asked, |deadline| Duration::from_millis(deadline.since_ms(now)).min(asked));
        (left >= least).then_some(left)
    }

    /// Of a lane: the walltime of its tasks. A deadline that cuts the lane short leaves them their least one.
    pub fn walltime_of_tasks(&self) -> Option<Duration> {
        let lane = self.walltime?;
        Some(task_walltime(self.walltime_least().map_or(lane, |least| lane.max(least))))
    }

    /// Checks its times against the present one.
    ///
    /// # Errors
    /// [`SpecError::Invalid`].
    pub fn validate_times(&self, now: Timestamp) -> Result<(), SpecError> {
        for (field, time) in [("begin", self.begin()), ("deadline", self.deadline())] {
            if let Some(time) = time.filter(|time| time.since_ms(now) > AHEAD_MS_MAX) {
                return Err(invalid(field, format!("{time} is more than 365 days ahead")));
            }
        }
        match self.begin_latest() {
            Some(latest) if latest < now => {
                let (deadline, least) = (self.deadline().unwrap_or_default(), self.shortest_run().unwrap_or_default());
                let what = if self.tasks.is_some() { "a lane, which has two walltimes of a task and a minute, takes" } else { "it takes" };
                let why = format!("it could not end by {deadline}: it is {now}, and {what} {}", clock_text(least));
                Err(invalid("deadline", why))
            }
            Some(_) | None => Ok(()),
        }
    }

    pub(super) fn validate_timing(&self) -> Result<(), SpecError> {
        if self.nice.unsigned_abs() > NICE_MAX.unsigned_abs() {
            return Err(invalid("nice", format!("{} given; -{NICE_MAX} to {NICE_MAX} are possible", self.nice)));
        }
        if self.comment.len() > COMMENT_BYTES_MAX || self.comment.chars().any(char::is_control) {
            return Err(invalid("comment", format!("at most {COMMENT_BYTES_MAX} bytes without control characters")));
        }
        if let Some(name) = &self.reservation
            && (name.is_empty() || name.len() > RESERVATION_BYTES_MAX || name.contains(char::is_control))
        {
            return Err(invalid("reservation", format!("its name has 1 to {RESERVATION_BYTES_MAX} bytes without control characters")));
        }
        if let Some(mail) = &self.mail {
            if mail.events.is_empty() {
                return Err(invalid("mail-type", "which events? Say begin, end, fail or others; or leave --mail-user out"));
            }
            self.validate_task_mail(&mail.events)?;
            if mail.user.len() > MAIL_USER_BYTES_MAX || !(mail.user.is_empty() || mail.user.split(',').all(is_recipient)) {
                let why = format!(
                    "a name or an address of at most {MAIL_USER_BYTES_MAX} bytes, which begins with a letter, a digit or _, \
                     and has no spaces, quotes or signs of a shell"
                );
                return Err(invalid("mail-user", why));
            }
        }
        let Some(Timing { begin, deadline, walltime_min }) = self.timing.as_deref() else { return Ok(()) };
        let bound = deadline.map(|_| "deadline").or(walltime_min.map(|_| "walltime-min"));
        if let Some(field) = bound
            && self.walltime.is_none()
        {
            return Err(invalid(field, "a service has no walltime, and ends when it is cancelled: leave it out"));
        }
        if let Some(least) = walltime_min
            && (least.is_zero() || self.walltime.is_some_and(|walltime| *least > walltime))
        {
            let walltime = self.walltime.map_or_else(String::new, clock_text);
            return Err(invalid("walltime-min", format!("more than 0 and at most the walltime, which is {walltime}")));
        }
        if let (Some(begin), Some(latest)) = (begin, self.begin_latest())
            && latest < *begin
        {
            let deadline = deadline.unwrap_or_default();
            return Err(invalid("deadline", format!("work that begins at {begin} could not end by {deadline}")));
        }
        Ok(())
    }

    /// Of single tasks only their ends are known to the quorum.
    fn validate_task_mail(&self, events: &BTreeSet<MailEvent>) -> Result<(), SpecError> {
        if !events.contains(&MailEvent::ArrayTasks) {
            return Ok(());
        }
        if self.tasks.is_none() {
            return Err(invalid("mail-type", "array_tasks is about the tasks of a task group, and this is none: leave it out"));
        }
        let others: Vec<MailEvent> = events.iter().copied().filter(|event| *event != MailEvent::ArrayTasks).collect();
        let is_end = |event: &MailEvent| matches!(event, MailEvent::End | MailEvent::Fail);
        match others.iter().find(|event| !is_end(event)) {
            Some(event) => {
                Err(invalid("mail-type", format!("array_tasks is possible with end and fail alone: of single tasks, {event} is not known")))
            }
            None if others.is_empty() => Err(invalid("mail-type", "array_tasks needs end or fail: which ends of tasks are meant?")),
            None => Ok(()),
        }
    }
}

/// Whether a mail program takes this for a name or an address. Some run what begins with `|`, and write to the file that
/// begins with `/` or `+`.
fn is_recipient(name: &str) -> bool {
    let is_bad = |c: char| c.is_control() || c.is_whitespace() || "|&;<>()[]{}$`\\\"'*?".contains(c);
    name.starts_with(|c: char| c.is_alphanumeric() || c == '_') && !name.contains(is_bad)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mail::Mail;
    use crate::task_group::TaskGroup;
    use crate::test_builders::spec;

    const HOUR: Duration = Duration::from_secs(3600);

    fn timed(timing: Timing) -> AllocationSpec {
        AllocationSpec { walltime: Some(HOUR), timing: timing.unless_empty(), ..spec() }
    }

    fn refused(spec: &AllocationSpec) -> String {
        spec.validate().unwrap_err().to_string()
    }

    #[test]
    fn bounds_that_contradict_each_other_are_refused() {
        let at = |seconds: u64| Some(Timestamp(seconds * 1000));
        assert_eq!(timed(Timing { begin: at(100), deadline: at(3700), walltime_min: None }).validate(), Ok(()));
        let late = timed(Timing { begin: at(101), deadline: at(3700), walltime_min: None });
        let wanted = "deadline: work that begins at 1970-01-01T00:01:41.000Z could not end by 1970-01-01T01:01:40.000Z";
        assert_eq!(refused(&late), wanted);
        let shorter = timed(Timing { begin: at(101), deadline: at(3700), walltime_min: Some(HOUR / 2) });
        assert_eq!(shorter.validate(), Ok(()));
        let longer = timed(Timing { walltime_min: Some(HOUR * 2), ..Timing::default() });
        assert_eq!(refused(&longer), "walltime-min: more than 0 and at most the walltime, which is 01:00:00");
        let service = AllocationSpec { walltime: None, ..timed(Timing { deadline: at(9), ..Timing::default() }) };
        assert!(refused(&service).starts_with("deadline: a service has no walltime"));
        let tasks = Some(Box::new(TaskGroup::parse("0-9").unwrap()));
        let group = |timing| AllocationSpec { tasks: tasks.clone(), ..timed(timing) };
        assert_eq!(group(Timing { walltime_min: Some(HOUR), ..Timing::default() }).validate(), Ok(()));
        // A lane has two walltimes of a task and a minute.
        let due = |deadline| group(Timing { begin: at(100), deadline, walltime_min: Some(HOUR / 2) });
        assert_eq!((due(at(3760)).validate(), due(at(3760)).begin_latest()), (Ok(()), at(100)));
        assert!(refused(&due(at(3759))).starts_with("deadline: work that begins at"));
        let late = due(at(3760)).validate_times(Timestamp(100_001)).unwrap_err().to_string();
        assert!(late.ends_with("and a lane, which has two walltimes of a task and a minute, takes 01:01:00"), "{late}");
    }

    #[test]
    fn tasks_of_a_lane_have_half_of_it_and_at_least_their_least_walltime() {
        let of = |lane, walltime_min| {
            let timing = Timing { walltime_min, ..Timing::default() }.unless_empty();
            AllocationSpec { walltime: lane, timing, ..spec() }.walltime_of_tasks()
        };
        let lane = |task| Some(lane_walltime(task));
        assert_eq!((of(lane(HOUR), None), of(None, None)), (Some(HOUR), None));
        assert_eq!(of(lane(HOUR), lane(HOUR / 2)), Some(HOUR));
        assert_eq!(of(Some(Duration::from_secs(57)), lane(Duration::from_secs(1))), Some(Duration::from_secs(1)));
    }

    #[test]
    fn times_are_compared_with_the_clock() {
        let now = Timestamp(10_000_000);
        let in_s = |seconds: u64| Some(Timestamp(now.0 + seconds * 1000));
        let ahead = |begin| timed(Timing { begin, ..Timing::default() }).validate_times(now);
        assert_eq!((ahead(Some(Timestamp(5))), ahead(in_s(365 * 86_400))), (Ok(()), Ok(())));
        assert!(ahead(in_s(365 * 86_400 + 1)).unwrap_err().to_string().ends_with("is more than 365 days ahead"));
        let due = |deadline, walltime_min| timed(Timing { begin: None, deadline, walltime_min });
        assert_eq!(due(in_s(3600), None).validate_times(now), Ok(()));
        let why = due(in_s(3599), None).validate_times(now).unwrap_err().to_string();
        let wanted = "deadline: it could not end by 1970-01-01T03:46:39.000Z: it is 1970-01-01T02:46:40.000Z, and it takes 01:00:00";
        assert_eq!(why, wanted);
        let short = due(in_s(3000), Some(HOUR / 2));
        assert_eq!((short.validate_times(now), short.walltime_at(now)), (Ok(()), Some(Duration::from_secs(3000))));
        assert_eq!(short.walltime_at(Timestamp(now.0 + 1_200_000)), Some(HOUR / 2));
        assert_eq!(short.walltime_at(Timestamp(now.0 + 1_200_001)), None);
        assert_eq!(timed(Timing::default()).walltime_at(now), Some(HOUR));
    }

    #[test]
    fn nice_comment_and_mail_have_limits() {
        assert!(refused(&AllocationSpec { nice: 10_001, ..spec() }).starts_with("nice: 10001 given"));
        assert_eq!(AllocationSpec { nice: -10_000, comment: "x".repeat(1024), ..spec() }.validate(), Ok(()));
        assert!(refused(&AllocationSpec { comment: "x".repeat(1025), ..spec() }).starts_with("comment"));
        assert!(refused(&AllocationSpec { comment: "a\nb".into(), ..spec() }).starts_with("comment"));
        assert!(refused(&AllocationSpec { reservation: Some(String::new()), ..spec() }).starts_with("reservation: its name has"));
        assert_eq!(AllocationSpec { reservation: Some("course".into()), ..spec() }.validate(), Ok(()));
        let mail = |events: &[MailEvent], user: &str| {
            let mail = Mail { events: events.iter().copied().collect(), user: user.to_owned() };
            AllocationSpec { mail: Some(Box::new(mail)), ..spec() }
        };
        assert_eq!(mail(&[MailEvent::End], "ada@example.org").validate(), Ok(()));
        assert!(refused(&mail(&[], "ada")).starts_with("mail-type: which events?"));
        assert_eq!(mail(&[MailEvent::End], "").validate(), Ok(()));
        let of_tasks = |events: &[MailEvent]| {
            let tasks = Some(Box::new(TaskGroup::parse("0-9").unwrap()));
            AllocationSpec { tasks, ..mail(&[events, &[MailEvent::ArrayTasks]].concat(), "") }
        };
        assert_eq!(of_tasks(&[MailEvent::End, MailEvent::Fail]).validate(), Ok(()));
        assert!(refused(&of_tasks(&[])).contains("array_tasks needs end or fail"));
        assert!(refused(&of_tasks(&[MailEvent::Fail, MailEvent::Begin])).ends_with("of single tasks, begin is not known"));
        assert!(refused(&mail(&[MailEvent::End, MailEvent::ArrayTasks], "")).contains("about the tasks of a task group"));
        assert_eq!(mail(&[MailEvent::End], "ada,bob+jobs@example.org").validate(), Ok(()));
        for user in ["-x", "a b", "a\n", "|sh", "/etc/x", "+x", "a,|sh", "a,", "a;b", "$(a)"] {
            assert!(refused(&mail(&[MailEvent::End], user)).starts_with("mail-user"), "{user:?}");
        }
    }
}

//! The options of a submission for its times, its place in the queue, its comment, its reservation and its mail.

use crate::UsageError;
use crate::civil::{Civil, Clock};
use clap::Args;
use lattice_api::v1;
use lattice_model::duration::{self, BareNumber, DurationError};
use lattice_model::mail::{MailEvent, NoSuchMailEvent};
use lattice_model::millis;
use lattice_model::time::Timestamp;
use lattice_model::timing::NICE_MAX;
use std::collections::BTreeSet;
use std::str::FromStr;
use std::time::Duration;
use thiserror::Error;

/// The `nice` of `--nice` without a number, as in Slurm.
const NICE_DEFAULT: &str = "100";
/// Names of times of day.
const NAMED_HOURS: [(&str, u32); 5] = [("midnight", 0), ("elevenses", 11), ("noon", 12), ("fika", 15), ("teatime", 16)];

/// See the module documentation.
#[derive(Args, Clone, Debug, Default, PartialEq, Eq)]
pub struct StartFlags {
    /// Begin at this time at the earliest, until then it is not in its queue: 16:00, tomorrow, noon, 2026-03-05,
    /// 2026-03-05T16:00 (all in your time zone), with a zone as in 2026-03-05T16:00:00Z, or from now on: 2h, now+30minutes
    #[arg(long, value_name = "TIME", overrides_with = "begin")]
    pub begin: Option<StartTime>,
    /// It ends as Cancelled when it could not end by this time any more; written as for --begin. Of a task group, the
    /// tasks that have not ended by then are cancelled
    #[arg(long, value_name = "TIME", overrides_with = "deadline")]
    pub deadline: Option<StartTime>,
    /// It, or each task of a task group, may begin with less than its walltime if it fits in no other way now, but with
    /// at least this
    #[arg(long, alias = "time-min", value_name = "TIME", overrides_with = "walltime_min", value_parser = parse_least)]
    pub walltime_min: Option<Duration>,
    /// Wait in its queue for the nodes of --topology for this long at most, and then take nodes of any topology groups
    #[arg(long, value_name = "TIME", overrides_with = "topology_wait", value_parser = parse_least)]
    pub topology_wait: Option<Duration>,
    /// Be later in its queue, as if it had waited so many minutes less; 100 if no number is given. Operators alone may
    /// give a number below 0
    #[arg(
        long,
        value_name = "MINUTES",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = NICE_DEFAULT,
        overrides_with = "nice",
        value_parser = clap::value_parser!(i32).range(-i64::from(NICE_MAX)..=i64::from(NICE_MAX))
    )]
    pub nice: Option<i32>,
    /// A text for people
    #[arg(long, value_name = "TEXT", overrides_with = "comment")]
    pub comment: Option<String>,
    /// Begin on the nodes of this reservation, while it is open: `lattice admin reservation list` shows whose work may
    #[arg(long, value_name = "NAME", overrides_with = "reservation")]
    pub reservation: Option<String>,
    /// Of what you get mail, if your site sends any: begin, end, fail, requeue, time_limit, time_limit_50, time_limit_80
    /// or time_limit_90 (that part of the walltime is over), separated by commas; all: the first four. With array_tasks,
    /// end and fail are also about each task of a task group, of the first 100 [default: none]
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    pub mail_type: Vec<MailType>,
    /// Who gets the mail: an address or a name [default: you]
    #[arg(long, value_name = "NAME", overrides_with = "mail_user")]
    pub mail_user: Option<String>,
}

impl StartFlags {
    /// Merges two sets of options: a value of `self` wins over one of `under`.
    pub fn merge_over(self, under: Self) -> Self {
        Self {
            begin: self.begin.or(under.begin),
            deadline: self.deadline.or(under.deadline),
            walltime_min: self.walltime_min.or(under.walltime_min),
            topology_wait: self.topology_wait.or(under.topology_wait),
            nice: self.nice.or(under.nice),
            comment: self.comment.or(under.comment),
            reservation: self.reservation.or(under.reservation),
            mail_type: if self.mail_type.is_empty() { under.mail_type } else { self.mail_type },
            mail_user: self.mail_user.or(under.mail_user),
        }
    }

    /// The first of these options that was given.
    pub fn first_given(&self) -> Option<&'static str> {
        let given = [
            ("--begin", self.begin.is_some()),
            ("--deadline", self.deadline.is_some()),
            ("--walltime-min", self.walltime_min.is_some()),
            ("--topology-wait", self.topology_wait.is_some()),
            ("--nice", self.nice.is_some()),
            ("--comment", self.comment.is_some()),
            ("--reservation", self.reservation.is_some()),
            ("--mail-type", !self.mail_type.is_empty()),
            ("--mail-user", self.mail_user.is_some()),
        ];
        given.into_iter().find(|(_, set)| *set).map(|(flag, _)| flag)
    }

    /// Sets these options in the specification. Times without a zone are in the zone of `clock`.
    ///
    /// # Errors
    /// A time does not exist.
    pub fn apply(&self, spec: &mut v1::AllocationSpec, clock: &Clock) -> Result<(), UsageError> {
        let at = |flag: &str, time: Option<StartTime>| time.map_or(Ok(0), |time| Ok(time.resolve(flag, clock)?.0));
        let timing = v1::Timing {
            begin_ms: at("--begin", self.begin)?,
            deadline_ms: at("--deadline", self.deadline)?,
            walltime_min_seconds: self.walltime_min.map_or(0, |least| least.as_secs()),
        };
        spec.timing = (timing != v1::Timing::default()).then_some(timing);
        if let (Some(wait), Some(resources)) = (self.topology_wait, spec.resources.as_mut()) {
            resources.topology_wait_seconds = wait.as_secs();
        }
        spec.nice = self.nice.unwrap_or_default();
        spec.comment = self.comment.clone().unwrap_or_default();
        spec.reservation = self.reservation.clone().unwrap_or_default();
        spec.mail = self.mail();
        Ok(())
    }

    /// `None`: no mail is wanted. The server refuses a recipient without events.
    fn mail(&self) -> Option<v1::Mail> {
        let events: BTreeSet<MailEvent> = self.mail_type.iter().flat_map(|kind| kind.events()).copied().collect();
        let is_wanted = !events.is_empty() || (self.mail_type.is_empty() && self.mail_user.is_some());
        let events = events.into_iter().map(|event| event.name().to_owned()).collect();
        is_wanted.then(|| v1::Mail { events, user: self.mail_user.clone().unwrap_or_default() })
    }
}

/// A word of `--mail-type`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MailType {
    None,
    All,
    Event(MailEvent),
}

impl MailType {
    /// The events that it names.
    fn events(&self) -> &[MailEvent] {
        match self {
            Self::None => &[],
            Self::All => &[MailEvent::Begin, MailEvent::End, MailEvent::Fail, MailEvent::Requeue],
            Self::Event(event) => std::slice::from_ref(event),
        }
    }
}

impl FromStr for MailType {
    type Err = NoSuchMailEvent;

    fn from_str(text: &str) -> Result<Self, NoSuchMailEvent> {
        match text {
            none if none.eq_ignore_ascii_case("none") => Ok(Self::None),
            all if all.eq_ignore_ascii_case("all") => Ok(Self::All),
            event => event.parse().map(Self::Event),
        }
    }
}

/// The time of a start or of a deadline, as it was written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StartTime {
    /// This long after now.
    After(Duration),
    /// With a time zone.
    At(Timestamp),
    /// The next moment with this time of day.
    Daily(TimeOfDay),
    /// On this day, at the beginning if no time is given.
    On(Day, TimeOfDay),
}

/// A time of day.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TimeOfDay {
    hour: u32,
    minute: u32,
    second: u32,
}

/// A day.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Day {
    /// This many days after today.
    InDays(u32),
    Date {
        year: i32,
        month: u32,
        day: u32,
    },
    /// The next day with this date, today included.
    Yearly {
        month: u32,
        day: u32,
    },
}

/// The text is no time.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{0:?} is not a time: write 16:00, tomorrow, 2026-03-05, 2026-03-05T16:00, or from now on 2h or now+30minutes")]
pub struct NoSuchTime(String);

impl FromStr for StartTime {
    type Err = NoSuchTime;

    fn from_str(text: &str) -> Result<Self, NoSuchTime> {
        parse(text.trim()).ok_or_else(|| NoSuchTime(text.chars().take(40).collect()))
    }
}

impl StartTime {
    /// The time by this clock.
    ///
    /// # Errors
    /// There is no such day or time.
    pub fn resolve(self, flag: &str, clock: &Clock) -> Result<Timestamp, UsageError> {
        let none = || UsageError::new(format!("{flag}: there is no such day or time"));
        match self {
            Self::After(time) => Ok(Timestamp(clock.now.0.saturating_add(millis(time)))),
            Self::At(time) => Ok(time),
            Self::Daily(time) => {
                let on = |days| clock.utc(&time.on(clock.today().after_days(days)));
                [0, 1].into_iter().filter_map(on).find(|at| *at > clock.now).ok_or_else(none)
            }
            Self::On(Day::InDays(days), time) => clock.utc(&time.on(clock.today().after_days(days))).ok_or_else(none),
            Self::On(Day::Date { year, month, day }, time) => clock.utc(&time.on(Civil::day(year, month, day))).ok_or_else(none),
            Self::On(Day::Yearly { month, day }, time) => {
                let on = |years| clock.utc(&time.on(Civil::day(clock.today().year + years, month, day)));
                // Today counts, even if the time is past.
                let today = clock.utc(&clock.today()).unwrap_or_default();
                [0, 1].into_iter().filter_map(on).find(|at| *at >= today).ok_or_else(none)
            }
        }
    }
}

impl TimeOfDay {
    fn on(self, day: Civil) -> Civil {
        Civil { hour: self.hour, minute: self.minute, second: self.second, ..day }
    }

    /// `16:00`, `16:00:30`, `4:00PM`, `noon`.
    fn parse(text: &str) -> Option<Self> {
        let text = text.to_ascii_lowercase();
        if let Some((_, hour)) = NAMED_HOURS.iter().find(|(name, _)| *name == text) {
            return Some(Self { hour: *hour, ..Self::default() });
        }
        let (clock, half) = match (text.strip_suffix("am"), text.strip_suffix("pm")) {
            (Some(clock), _) => (clock.trim_end(), Some(0)),
            (None, Some(clock)) => (clock.trim_end(), Some(12)),
            (None, None) => (text.as_str(), None),
        };
        let mut parts = clock.split(':').map(|part| number(part, 1, 2));
        let (hour, minute) = (parts.next()??, parts.next()??);
        let second = parts.next().unwrap_or(Some(0))?;
        let hour = match half {
            Some(add) if (1..=12).contains(&hour) => hour % 12 + add,
            Some(_) => return None,
            None => hour,
        };
        (parts.next().is_none() && hour < 24 && minute < 60 && second < 60).then_some(Self { hour, minute, second })
    }
}

impl Day {
    /// `2026-03-05`, `030526`, `03/05`, `03/05/26`, `today`, `tomorrow`.
    fn parse(text: &str) -> Option<Self> {
        let century = |year: u32| i32::try_from(2000 + year).ok();
        if text.eq_ignore_ascii_case("today") {
            return Some(Self::InDays(0));
        }
        if text.eq_ignore_ascii_case("tomorrow") {
            return Some(Self::InDays(1));
        }
        if text.len() == 6 && text.bytes().all(|b| b.is_ascii_digit()) {
            let (month, day, year) = (number(&text[..2], 2, 2)?, number(&text[2..4], 2, 2)?, number(&text[4..], 2, 2)?);
            return Some(Self::Date { year: century(year)?, month, day });
        }
        if text.contains('/') {
            let parts: Vec<u32> = text.split('/').map(|part| number(part, 1, 2)).collect::<Option<_>>()?;
            return match parts[..] {
                [month, day] => Some(Self::Yearly { month, day }),
                [month, day, year] => Some(Self::Date { year: century(year)?, month, day }),
                _ => None,
            };
        }
        let parts: Vec<&str> = text.split('-').collect();
        let [year, month, day] = parts[..] else { return None };
        let (year, month, day) = (number(year, 4, 4)?, number(month, 1, 2)?, number(day, 1, 2)?);
        Some(Self::Date { year: i32::try_from(year).ok()?, month, day })
    }
}

/// A number of `least` to `most` digits.
fn number(text: &str, least: usize, most: usize) -> Option<u32> {
    let fits = (least..=most).contains(&text.len()) && text.bytes().all(|b| b.is_ascii_digit());
    if fits { text.parse().ok() } else { None }
}

/// Why a least walltime is refused.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
enum LeastError {
    #[error(transparent)]
    Duration(#[from] DurationError),
    #[error("more than 0 is needed")]
    Zero,
}

/// Parses a walltime: a number without a unit is minutes.
fn parse_least(text: &str) -> Result<Duration, LeastError> {
    let time = duration::parse(text, BareNumber::Minutes)?;
    if time.is_zero() { Err(LeastError::Zero) } else { Ok(time) }
}

fn parse(text: &str) -> Option<StartTime> {
    let lower = text.to_ascii_lowercase();
    if let Some(rest) = lower.strip_prefix("now") {
        return after_now(rest.trim()).map(StartTime::After);
    }
    if let Some(time) = TimeOfDay::parse(text) {
        return Some(StartTime::Daily(time));
    }
    if let Some(day) = Day::parse(text) {
        return Some(StartTime::On(day, TimeOfDay::default()));
    }
    let zoned = text.contains('-').then(|| Timestamp::from_rfc_3339(text)).flatten();
    if let Some(at) = zoned {
        return Some(StartTime::At(at));
    }
    if let Some((day, time)) = text.split_once([' ', 'T']).or_else(|| text.split_once('+'))
        && let (Some(day), Some(time)) = (Day::parse(day), TimeOfDay::parse(time.trim()))
    {
        return Some(StartTime::On(day, time));
    }
    // A number without a unit is refused: users of Slurm would read it differently from others.
    let has_unit = text.bytes().any(|b| b.is_ascii_alphabetic());
    let after = has_unit.then(|| duration::parse(text, BareNumber::Seconds).ok()).flatten();
    after.map(StartTime::After)
}

/// What follows `now`: nothing, `+60`, `+1hour`, `+2 weeks`.
fn after_now(rest: &str) -> Option<Duration> {
    if rest.is_empty() {
        return Some(Duration::ZERO);
    }
    let rest = rest.strip_prefix('+')?.trim();
    let digits = rest.bytes().take_while(u8::is_ascii_digit).count();
    let (count, unit) = (rest.get(..digits)?.parse::<u64>().ok()?, rest.get(digits..)?.trim());
    let seconds = match unit {
        "" | "s" | "sec" | "second" | "seconds" => 1,
        "m" | "min" | "minute" | "minutes" => 60,
        "h" | "hour" | "hours" => 3600,
        "d" | "day" | "days" => 86_400,
        "w" | "week" | "weeks" => 604_800,
        _ => return None,
    };
    count.checked_mul(seconds).map(Duration::from_secs)
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    /// Thursday, 2026-03-05T10:00:12.034Z.
    const NOW: Timestamp = Timestamp(1_772_704_812_034);

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        flags: StartFlags,
    }

    fn flags(line: &str) -> StartFlags {
        Line::try_parse_from(std::iter::once("x").chain(line.split_whitespace())).unwrap().flags
    }

    fn at(text: &str) -> String {
        let clock = Clock { now: NOW, ..Clock::default() };
        text.parse::<StartTime>().unwrap().resolve("--begin", &clock).unwrap().to_string()
    }

    #[test]
    fn times_are_read_in_the_forms_of_slurm_and_of_lattice() {
        for (text, wanted) in [
            ("now", "2026-03-05T10:00:12.034Z"),
            ("now+60", "2026-03-05T10:01:12.034Z"),
            ("now+1hour", "2026-03-05T11:00:12.034Z"),
            ("now + 2 weeks", "2026-03-19T10:00:12.034Z"),
            ("2h", "2026-03-05T12:00:12.034Z"),
            ("90s", "2026-03-05T10:01:42.034Z"),
            ("16:00", "2026-03-05T16:00:00.000Z"),
            ("4:00PM", "2026-03-05T16:00:00.000Z"),
            ("12:00am", "2026-03-06T00:00:00.000Z"),
            ("10:00", "2026-03-06T10:00:00.000Z"),
            ("10:00:30", "2026-03-05T10:00:30.000Z"),
            ("noon", "2026-03-05T12:00:00.000Z"),
            ("midnight", "2026-03-06T00:00:00.000Z"),
            ("teatime", "2026-03-05T16:00:00.000Z"),
            ("today", "2026-03-05T00:00:00.000Z"),
            ("tomorrow", "2026-03-06T00:00:00.000Z"),
            ("010830", "2030-01-08T00:00:00.000Z"),
            ("12/31/26", "2026-12-31T00:00:00.000Z"),
            ("03/05", "2026-03-05T00:00:00.000Z"),
            ("03/04", "2027-03-04T00:00:00.000Z"),
            ("2026-03-31", "2026-03-31T00:00:00.000Z"),
            ("2026-03-31T08:30", "2026-03-31T08:30:00.000Z"),
            ("2026-03-31T08:30:15", "2026-03-31T08:30:15.000Z"),
            ("2026-03-31T08:30:15+02:00", "2026-03-31T06:30:15.000Z"),
            ("tomorrow 16:00", "2026-03-06T16:00:00.000Z"),
        ] {
            assert_eq!(at(text), wanted, "{text}");
        }
        for bad in ["", "soon", "90", "24:00", "13:00PM", "now-5", "now+1fortnight", "2026-3", "2026-03-31T", "1/2/3/4"] {
            assert!(bad.parse::<StartTime>().is_err(), "{bad}");
        }
        let nowhere = "2026-02-30".parse::<StartTime>().unwrap().resolve("--begin", &Clock { now: NOW, ..Clock::default() });
        assert_eq!(nowhere.unwrap_err().what, "--begin: there is no such day or time");
    }

    #[test]
    fn the_options_are_set_in_the_specification() {
        let line = "--begin=16:00 --deadline 2026-03-06 --time-min=30 --nice --comment x --mail-type=BEGIN,time_limit_80 --mail-user=ada";
        let mut spec = v1::AllocationSpec::default();
        flags(line).apply(&mut spec, &Clock { now: NOW, ..Clock::default() }).unwrap();
        let timing = v1::Timing { begin_ms: 1_772_726_400_000, deadline_ms: 1_772_755_200_000, walltime_min_seconds: 1800 };
        assert_eq!((spec.timing, spec.nice, spec.comment.as_str()), (Some(timing), 100, "x"));
        let events = vec!["begin".to_owned(), "time_limit_80".to_owned()];
        assert_eq!(spec.mail, Some(v1::Mail { events, user: "ada".to_owned() }));
        let mut plain = v1::AllocationSpec::default();
        flags("").apply(&mut plain, &Clock::default()).unwrap();
        assert_eq!(plain, v1::AllocationSpec::default());
    }

    #[test]
    fn options_of_the_command_line_win_and_none_means_no_mail() {
        let both = flags("--nice=-5 --mail-type=none").merge_over(flags("--begin=2h --nice=7 --mail-type=all --mail-user=ada"));
        assert_eq!((both.nice, both.begin, both.mail()), (Some(-5), Some(StartTime::After(Duration::from_secs(7200))), None));
        assert_eq!(both.first_given(), Some("--begin"));
        let all = flags("--mail-type=all").mail().unwrap();
        assert_eq!(all.events, ["begin", "end", "fail", "requeue"]);
        assert_eq!(flags("--mail-user=ada").mail().map(|mail| mail.events), Some(vec![]), "the server asks for the events");
        for bad in ["--nice=10001", "--mail-type=done", "--begin=soon", "--walltime-min=0"] {
            assert!(Line::try_parse_from(["x", bad]).is_err(), "{bad}");
        }
    }
}

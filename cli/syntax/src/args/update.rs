//! `lattice update`.

use crate::flags::{TimeError, parse_tag_change, parse_walltime};
use crate::scaling::parse_time;
use crate::start_times::{NoSuchTime, StartTime};
use clap::Args;
use lattice_model::{Amount, ScaleMetric};
use std::str::FromStr;
use std::time::Duration;

const UPDATE_HELP: &str = "Examples:
  lattice update 1f0c9a4e --walltime 90
      90 minutes from its beginning; work that waits gets that walltime
  lattice update @last -t -30m
      30 minutes less than now; work that runs is ended then, with SIGTERM and
      its grace
  lattice update 1f0c9a4e --preemption-class 4 --name night-run
  lattice update 1f0c9a4e --tag campaign=42,quality=
      the tag campaign is 42, and there is no tag quality
  lattice update 4711 --project higgs
      its use counts for the project higgs from its present claim on
  lattice update 1f0c9a4e --begin tomorrow --nice 30
      it waits until tomorrow, and behind equal work that came up to half an
      hour later
  lattice update 1f0c9a4e --min-nodes 2 --max-nodes 6 --scale-target 0.7
      a scaled service has 2 to 6 replicas from now on, and another target
  lattice update 4711 --scale-metric queue_depth --scale-target 5
      it scales by the connections that wait from now on

The owner and admins of the work's tenant may change all of this while the work
waits for nodes or is held. While it has nodes, they may shorten the walltime,
to at least a minute more than the work has run, lower the class, and change
name, project, tags and comment. Operators may also lengthen the walltime and
raise the class then. If one change is refused, nothing changes.

--begin, --deadline, --reservation and --no-reservation are for work that has
not begun. Work that is in its queue keeps its place there; --nice moves it.

Of a task group, all of this can be changed until it has ended; of a scaled
service, all but the walltime, which it does not have. It holds for the lanes or
replicas that get nodes from then on. Those that have nodes keep what they had.

--min-nodes, --max-nodes and --scale-... are for scaled services, and hold at
once: if fewer or more replicas are wanted than the bounds allow, replicas leave
or are created. With any change of a --scale-... value, the windows of
--scale-up-window and --scale-down-window begin anew. Another metric needs its
own --scale-target and keeps the rest; with both, a service that `lattice scale`
sizes begins to scale by itself.

Of work that has ended, --project and --tag can be changed, in the record that
`lattice history` shows, if the cluster keeps accounts. `lattice usage` and
budgets stay as they are. Work that `lattice status` does not show any more is
named by its job number.

A node that is cut off gets the new walltime when it is connected again. The
work's environment keeps the name with which its attempt began. Who changed what
is in the audit log.";

#[derive(Args, Debug)]
#[command(after_help = UPDATE_HELP)]
pub struct Update {
    /// The allocations: ids, the beginnings of ids, or @last
    #[arg(required = true)]
    pub ids: Vec<String>,
    #[command(flatten)]
    pub changes: Changes,
}

/// At least one of them is needed.
#[derive(Args, Clone, Debug, Default, PartialEq, Eq)]
#[group(required = true, multiple = true)]
pub struct Changes {
    /// How long it may run, from its beginning: 90 (minutes), 90s, 10m, 2h, HH:MM:SS or D-HH; +1h: so much longer than
    /// now, -1h: so much shorter
    #[arg(short = 't', long, visible_alias = "time", value_name = "[+|-]TIME", allow_hyphen_values = true)]
    pub walltime: Option<NewWalltime>,
    /// How hard it is to preempt: 0 (the first to be preempted) to 10 (only its owner may preempt it); below 5, other
    /// work is also served first
    #[arg(long, visible_alias = "priority", value_name = "CLASS", value_parser = clap::value_parser!(u32).range(0..=10))]
    pub preemption_class: Option<u32>,
    /// A name for people
    #[arg(short = 'J', long, alias = "job-name", value_name = "NAME")]
    pub name: Option<String>,
    /// The project that it belongs to; empty: none
    #[arg(long, value_name = "NAME")]
    pub project: Option<String>,
    /// A label, and its new value; NAME= removes it. May be given more than once, and with commas; other tags stay
    #[arg(long = "tag", visible_alias = "tags", value_name = "NAME=VALUE", value_delimiter = ',', value_parser = parse_tag_change)]
    pub tags: Vec<(String, String)>,
    /// Of a scaled service: the lowest number of replicas
    #[arg(long, value_name = "N")]
    pub min_nodes: Option<u32>,
    /// Of a scaled service: the most replicas that it has
    #[arg(long, value_name = "N")]
    pub max_nodes: Option<u32>,
    /// Of a scaled service with a metric: while the metric is above this, replicas are added one by one
    #[arg(long, value_name = "NUMBER")]
    pub scale_target: Option<Amount>,
    /// Of a scaled service: what decides how many replicas it has, written as for `lattice submit`. Another metric than
    /// before needs --scale-target
    #[arg(long, value_name = "METRIC")]
    pub scale_metric: Option<ScaleMetric>,
    /// Of a scaled service with a metric: how often the metric is read
    #[arg(long, value_name = "TIME", value_parser = parse_time)]
    pub scale_interval: Option<Duration>,
    /// Of a scaled service with a metric: how long it must be above the target before a replica is added
    #[arg(long, value_name = "TIME", value_parser = parse_time)]
    pub scale_up_window: Option<Duration>,
    /// Of a scaled service with a metric: how long it must be below the threshold before a replica leaves
    #[arg(long, value_name = "TIME", value_parser = parse_time)]
    pub scale_down_window: Option<Duration>,
    /// Of a scaled service with a metric: below this part of the target, replicas leave one by one
    #[arg(long, value_name = "PART")]
    pub scale_down_threshold: Option<Amount>,
    /// Of a scaled service with a metric: how long nothing changes after a change
    #[arg(long, value_name = "TIME", value_parser = parse_time)]
    pub scale_cooldown: Option<Duration>,
    /// Of work that has not begun: begin at this time at the earliest, written as for `lattice submit --begin`; now: as
    /// soon as there are nodes
    #[arg(long, value_name = "TIME")]
    pub begin: Option<StartTime>,
    /// Of work that has not begun: it ends as Cancelled when it could not end by this time any more; none: it has no
    /// deadline
    #[arg(long, value_name = "TIME|none")]
    pub deadline: Option<NewDeadline>,
    /// Be later in its queue, as if it had waited so many minutes less; operators may also give less than 0
    #[arg(long, value_name = "MINUTES", allow_negative_numbers = true, value_parser = clap::value_parser!(i32).range(-10_000..=10_000))]
    pub nice: Option<i32>,
    /// A text for people; empty: none
    #[arg(long, value_name = "TEXT")]
    pub comment: Option<String>,
    /// Of work that has not begun: begin on the nodes of this reservation, while it is open
    #[arg(long, value_name = "NAME", conflicts_with = "no_reservation", value_parser = clap::builder::NonEmptyStringValueParser::new())]
    pub reservation: Option<String>,
    /// Of work that has not begun: begin on any nodes
    #[arg(long)]
    pub no_reservation: bool,
}

impl Changes {
    /// The new reservation, as requests name it; empty: none.
    pub fn new_reservation(&self) -> Option<String> {
        if self.no_reservation { Some(String::new()) } else { self.reservation.clone() }
    }
}

/// A deadline, or none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NewDeadline {
    None,
    At(StartTime),
}

impl FromStr for NewDeadline {
    type Err = NoSuchTime;

    fn from_str(text: &str) -> Result<Self, NoSuchTime> {
        if text.eq_ignore_ascii_case("none") { Ok(Self::None) } else { text.parse().map(Self::At) }
    }
}

/// A walltime, whole or as a difference to the present one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NewWalltime {
    Whole(Duration),
    Longer(Duration),
    Shorter(Duration),
}

impl FromStr for NewWalltime {
    type Err = TimeError;

    fn from_str(text: &str) -> Result<Self, TimeError> {
        match (text.strip_prefix('+'), text.strip_prefix('-')) {
            (Some(more), _) => parse_walltime(more).map(Self::Longer),
            (None, Some(less)) => parse_walltime(less).map(Self::Shorter),
            (None, None) => parse_walltime(text).map(Self::Whole),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        update: Update,
    }

    fn parsed(line: &[&str]) -> Result<Update, String> {
        let words = std::iter::once("update").chain(line.iter().copied());
        Line::try_parse_from(words).map(|line| line.update).map_err(|error| error.to_string())
    }

    #[test]
    fn a_walltime_is_whole_or_a_difference() {
        let minutes = |count: u64| Duration::from_secs(count * 60);
        for (typed, want) in [
            ("90", NewWalltime::Whole(minutes(90))),
            ("1-12", NewWalltime::Whole(minutes(36 * 60))),
            ("+90", NewWalltime::Longer(minutes(90))),
            ("+1-12", NewWalltime::Longer(minutes(36 * 60))),
            ("-30m", NewWalltime::Shorter(minutes(30))),
            ("-1:30:00", NewWalltime::Shorter(minutes(90))),
        ] {
            for line in [["1", "--walltime", typed], ["1", "-t", typed], ["1", "--time", typed]] {
                assert_eq!(parsed(&line).unwrap().changes.walltime, Some(want), "{line:?}");
            }
        }
        for bad in ["+", "-", "+0", "-0s", "++1h", "+soon", "0"] {
            assert!(parsed(&["1", "--walltime", bad]).is_err(), "{bad}");
        }
    }

    #[test]
    fn the_bounds_and_the_target_of_a_service_have_the_names_of_a_submission() {
        let changes = |line: &[&str]| parsed(line).map(|update| update.changes);
        let both = changes(&["1", "--min-nodes=2", "--max-nodes", "6", "--scale-target=0.7"]).unwrap();
        assert_eq!((both.min_nodes, both.max_nodes, both.scale_target), (Some(2), Some(6), Some(Amount(700_000))));
        let one = changes(&["1", "--max-nodes=3"]).unwrap();
        assert_eq!((one.min_nodes, one.max_nodes, one.scale_target, one.walltime), (None, Some(3), None, None));
        let windows = ["1", "--scale-up-window=30", "--scale-down-window=2m", "--scale-cooldown=1h", "--scale-interval=5s"];
        let windows = changes(&windows).unwrap();
        let seconds = |time: Option<Duration>| time.map_or(0, |time| time.as_secs());
        assert_eq!([seconds(windows.scale_up_window), seconds(windows.scale_down_window)], [30, 120]);
        assert_eq!([seconds(windows.scale_cooldown), seconds(windows.scale_interval)], [3600, 5]);
        let metric = changes(&["1", "--scale-metric", "queue_depth", "--scale-down-threshold=0.25"]).unwrap();
        assert_eq!((metric.scale_metric, metric.scale_down_threshold), (Some(ScaleMetric::QueueDepth), Some(Amount(250_000))));
        for bad in ["--scale-metric=sum(q)", "--scale-cooldown=0", "--scale-interval=soon", "--scale-down-threshold=half"] {
            assert!(changes(&["1", bad]).is_err(), "{bad}");
        }
        for (bad, why) in [("--min-nodes=-1", "invalid"), ("--max-nodes=many", "invalid"), ("--scale-target=100ms", "is no number")] {
            let refused = changes(&["1", bad]).unwrap_err();
            assert!(refused.contains(why), "{refused}");
        }
    }

    #[test]
    fn the_place_in_the_queue_is_changed_by_the_names_of_a_submission() {
        let changes = |line: &[&str]| parsed(line).map(|update| update.changes).unwrap();
        let all = changes(&["1", "--begin=now+60", "--deadline", "none", "--nice", "-5", "--comment=x"]);
        assert_eq!(all.begin, Some(StartTime::After(Duration::from_secs(60))));
        assert_eq!((all.deadline, all.nice, all.comment.as_deref()), (Some(NewDeadline::None), Some(-5), Some("x")));
        assert!(parsed(&["1", "--begin=soon"]).is_err() && parsed(&["1", "--nice=10001"]).is_err());
    }

    #[test]
    fn a_reservation_is_named_or_taken_away() {
        let of = |line: &[&str]| parsed(line).map(|update| update.changes.new_reservation());
        assert_eq!(of(&["1", "--reservation=course"]), Ok(Some("course".to_owned())));
        assert_eq!((of(&["1", "--no-reservation"]), of(&["1", "--nice=1"])), (Ok(Some(String::new())), Ok(None)));
        assert!(of(&["1", "--reservation=x", "--no-reservation"]).is_err() && of(&["1", "--reservation="]).is_err());
    }

    #[test]
    fn at_least_one_change_is_needed_and_all_are_possible() {
        let missing = parsed(&["1"]).unwrap_err();
        let options = ["--walltime", "--preemption-class", "--name", "--tag", "--min-nodes", "--max-nodes", "--scale-target"];
        assert!(options.iter().all(|option| missing.contains(option)), "{missing}");
        assert!(parsed(&["--name", "x"]).is_err(), "of what?");
        assert!(parsed(&["1", "--preemption-class", "11"]).is_err());
        let Update { ids, changes } = parsed(&["1", "2", "-t", "+1h", "--priority", "7", "-J", "x", "--tags", "a=1,b="]).unwrap();
        assert_eq!(changes.new_reservation(), None);
        let hour = NewWalltime::Longer(Duration::from_secs(3600));
        let tags = vec![("a".to_owned(), "1".to_owned()), ("b".to_owned(), String::new())];
        let walltime = Some(hour);
        assert_eq!(changes, Changes { walltime, preemption_class: Some(7), name: Some("x".to_owned()), tags, ..Changes::default() });
        assert_eq!(ids, ["1", "2"]);
    }
}

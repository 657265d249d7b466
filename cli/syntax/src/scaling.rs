//! The options of a submission that make it a scaled service.

use crate::UsageError;
use crate::flags::{TimeError, parse_positive};
use clap::Args;
use lattice_api::v1;
use lattice_model::duration::{self, BareNumber, DurationError};
use lattice_model::signal::WorkSignal;
use lattice_model::{Amount, ScaleMetric, millis};
use std::time::Duration;

/// Why `--service` and `--reactive` cannot both be given.
pub(crate) const SERVICE_OR_REACTIVE: &str = "--service is one allocation, --reactive has replicas";
/// What to do about two options that contradict each other.
pub(crate) const LEAVE_ONE_OUT: &str = "leave one of them out";

/// The options of a submission that make it a scaled service. They are not in `SubmitFlags`, because a launch or a
/// session has no replicas.
#[derive(Args, Clone, Debug, Default, PartialEq, Eq)]
pub struct ScalingFlags {
    /// Run it as a scaled service: several copies (replicas), each on a node of its own. Their number follows
    /// --scale-metric, or `lattice scale` sets it. It has no walltime
    #[arg(long)]
    pub reactive: bool,
    /// Of a --reactive service: the lowest number of replicas; it begins with that number
    #[arg(long, value_name = "N", overrides_with = "min_nodes")]
    min_nodes: Option<u32>,
    /// Of a --reactive service: the highest number of replicas
    #[arg(long, value_name = "N", overrides_with = "max_nodes")]
    max_nodes: Option<u32>,
    /// Of a --reactive service: the metric that sets the number of replicas, by its mean over them: gpu_utilization or
    /// cpu_utilization (0 to 1), connection_rate (connections accepted each second), queue_depth (waiting connections),
    /// or series of the metrics store, such as 'queue_length{queue="new"}' [default: none: `lattice scale` sets the
    /// number]
    #[arg(long, value_name = "METRIC", overrides_with = "scale_metric")]
    scale_metric: Option<ScaleMetric>,
    /// With --scale-metric: while the metric is above this, replicas are added one by one
    #[arg(long, value_name = "NUMBER", overrides_with = "scale_target")]
    scale_target: Option<Amount>,
    /// With --scale-metric: how often the metric is read [default: 60s]
    #[arg(long, value_name = "TIME", overrides_with = "scale_interval", value_parser = parse_time)]
    scale_interval: Option<Duration>,
    /// With --scale-metric: how long it must be above the target before a replica is added [default: 2m]
    #[arg(long, value_name = "TIME", overrides_with = "scale_up_window", value_parser = parse_time)]
    scale_up_window: Option<Duration>,
    /// With --scale-metric: how long it must be below the threshold before a replica leaves [default: 5m]
    #[arg(long, value_name = "TIME", overrides_with = "scale_down_window", value_parser = parse_time)]
    scale_down_window: Option<Duration>,
    /// With --scale-metric: below this part of the target, replicas leave one by one [default: 0.5]
    #[arg(long, value_name = "PART", overrides_with = "scale_down_threshold")]
    scale_down_threshold: Option<Amount>,
    /// With --scale-metric: how long nothing changes after a change [default: 3m]
    #[arg(long, value_name = "TIME", overrides_with = "scale_cooldown", value_parser = parse_time)]
    scale_cooldown: Option<Duration>,
    /// Of a --reactive service: the signal that a replica gets when it must leave [default: none]
    #[arg(long, value_name = "SIGNAL", overrides_with = "drain_signal")]
    drain_signal: Option<WorkSignal>,
    /// Of a --reactive service: how long a replica that must leave may go on, such as to finish its requests, before it is
    /// ended [default: 30s]
    #[arg(long, value_name = "TIME", overrides_with = "drain_grace", value_parser = parse_grace)]
    drain_grace: Option<Duration>,
}

impl ScalingFlags {
    /// The names of all these options.
    pub const NAMES: [&str; 12] = [
        "--reactive",
        "--min-nodes",
        "--max-nodes",
        "--scale-metric",
        "--scale-target",
        "--scale-interval",
        "--scale-up-window",
        "--scale-down-window",
        "--scale-down-threshold",
        "--scale-cooldown",
        "--drain-signal",
        "--drain-grace",
    ];

    /// Merges two sets of options: a value of `self` wins over one of `under`.
    pub fn merge_over(self, under: Self) -> Self {
        Self {
            reactive: self.reactive || under.reactive,
            min_nodes: self.min_nodes.or(under.min_nodes),
            max_nodes: self.max_nodes.or(under.max_nodes),
            scale_metric: self.scale_metric.or(under.scale_metric),
            scale_target: self.scale_target.or(under.scale_target),
            scale_interval: self.scale_interval.or(under.scale_interval),
            scale_up_window: self.scale_up_window.or(under.scale_up_window),
            scale_down_window: self.scale_down_window.or(under.scale_down_window),
            scale_down_threshold: self.scale_down_threshold.or(under.scale_down_threshold),
            scale_cooldown: self.scale_cooldown.or(under.scale_cooldown),
            drain_signal: self.drain_signal.or(under.drain_signal),
            drain_grace: self.drain_grace.or(under.drain_grace),
        }
    }

    /// Which of [`Self::NAMES`] were given.
    fn given(&self) -> impl Iterator<Item = &'static str> {
        let given = [
            self.reactive,
            self.min_nodes.is_some(),
            self.max_nodes.is_some(),
            self.scale_metric.is_some(),
            self.scale_target.is_some(),
            self.scale_interval.is_some(),
            self.scale_up_window.is_some(),
            self.scale_down_window.is_some(),
            self.scale_down_threshold.is_some(),
            self.scale_cooldown.is_some(),
            self.drain_signal.is_some(),
            self.drain_grace.is_some(),
        ];
        Self::NAMES.into_iter().zip(given).filter(|(_, set)| *set).map(|(name, _)| name)
    }

    /// The scaling part of the specification; `None`: the work does not scale. `is_service`: whether `--service` was
    /// given too.
    ///
    /// # Errors
    /// An option of scaled services without `--reactive`, `--reactive` with `--service` or without the bounds, or a
    /// metric without a target.
    pub fn to_message(&self, is_service: bool) -> Result<Option<v1::Scaling>, UsageError> {
        if !self.reactive {
            return match self.given().next() {
                None => Ok(None),
                Some(option) => Err(UsageError::new(format!("{option} is for scaled services, and this work is not one"))
                    .with_hint(format!("add --reactive, or leave {option} out"))),
            };
        }
        if is_service {
            return Err(UsageError::new(SERVICE_OR_REACTIVE).with_hint(LEAVE_ONE_OUT));
        }
        let (Some(replicas_min), Some(replicas_max)) = (self.min_nodes, self.max_nodes) else {
            return Err(UsageError::new("--reactive needs the lowest and the highest number of replicas")
                .with_hint("give both, such as --min-nodes=1 --max-nodes=8"));
        };
        let drain = v1::Drain {
            signal: self.drain_signal.map(|signal| signal.to_string()).unwrap_or_default(),
            grace_ms: self.drain_grace.map(millis),
        };
        let drain = Some(drain).filter(|drain| *drain != v1::Drain::default());
        Ok(Some(v1::Scaling { replicas_min, replicas_max, policy: self.policy()?, drain }))
    }

    fn policy(&self) -> Result<Option<v1::ScalePolicy>, UsageError> {
        let (metric, target) = match (&self.scale_metric, self.scale_target) {
            (Some(metric), Some(target)) => (metric.to_string(), target.to_string()),
            (Some(_), None) => {
                return Err(UsageError::new("--scale-metric needs --scale-target").with_hint("add it, such as --scale-target=0.8"));
            }
            (None, Some(_)) => {
                return Err(
                    UsageError::new("--scale-target needs --scale-metric").with_hint("add it, such as --scale-metric=cpu_utilization")
                );
            }
            (None, None) => {
                return match self.given().find(|option| option.starts_with("--scale-")) {
                    None => Ok(None),
                    Some(option) => Err(UsageError::new(format!("{option} needs a metric, and none is given"))
                        .with_hint(format!("add --scale-metric and --scale-target, or leave {option} out"))),
                };
            }
        };
        // 0: the default.
        let ms = |time: Option<Duration>| time.map_or(0, millis);
        Ok(Some(v1::ScalePolicy {
            metric,
            target,
            interval_ms: ms(self.scale_interval),
            up_window_ms: ms(self.scale_up_window),
            down_window_ms: ms(self.scale_down_window),
            down_threshold: self.scale_down_threshold.map(|part| part.to_string()).unwrap_or_default(),
            cooldown_ms: ms(self.scale_cooldown),
        }))
    }
}

/// Parses the time of an interval, a window or a cooldown.
pub(crate) fn parse_time(text: &str) -> Result<Duration, TimeError> {
    parse_positive(text, BareNumber::Seconds)
}

/// Parses a grace. Zero ends a replica at once.
fn parse_grace(text: &str) -> Result<Duration, DurationError> {
    duration::parse(text, BareNumber::Seconds)
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser, Debug)]
    struct Line {
        #[command(flatten)]
        flags: ScalingFlags,
    }

    fn parsed(line: &str) -> Result<ScalingFlags, String> {
        let words = std::iter::once("x").chain(line.split_whitespace());
        Line::try_parse_from(words).map(|line| line.flags).map_err(|error| error.to_string())
    }

    fn message(line: &str) -> Option<v1::Scaling> {
        parsed(line).unwrap().to_message(false).unwrap()
    }

    fn refused(line: &str) -> String {
        refused_of(line, false)
    }

    fn refused_of(line: &str, is_service: bool) -> String {
        let error = parsed(line).unwrap().to_message(is_service).unwrap_err();
        format!("{} | {}", error.what, error.hint.unwrap_or_default())
    }

    const BOUNDS: &str = "--reactive --min-nodes=2 --max-nodes=6";

    #[test]
    fn a_service_scales_by_a_metric_or_by_hand() {
        assert_eq!(message(""), None);
        let by_hand = v1::Scaling { replicas_min: 2, replicas_max: 6, policy: None, drain: None };
        assert_eq!(message(BOUNDS), Some(by_hand.clone()));
        let policy = v1::ScalePolicy { metric: "cpu_utilization".into(), target: "0.8".into(), ..Default::default() };
        let by_metric = v1::Scaling { policy: Some(policy.clone()), ..by_hand.clone() };
        assert_eq!(message(&format!("{BOUNDS} --scale-metric=cpu_utilization --scale-target=0.80")), Some(by_metric));
        let all = "--scale-metric q{a=\"b\"} --scale-target 100 --scale-interval 90 --scale-up-window 1m --scale-down-window 1h \
                   --scale-down-threshold 0.25 --scale-cooldown=10m --drain-signal usr1 --drain-grace=0";
        let policy = v1::ScalePolicy {
            metric: "q{a=\"b\"}".into(),
            target: "100".into(),
            interval_ms: 90_000,
            up_window_ms: 60_000,
            down_window_ms: 3_600_000,
            down_threshold: "0.25".into(),
            cooldown_ms: 600_000,
        };
        let drain = v1::Drain { signal: "SIGUSR1".into(), grace_ms: Some(0) };
        assert_eq!(message(&format!("{BOUNDS} {all}")), Some(v1::Scaling { policy: Some(policy), drain: Some(drain), ..by_hand }));
        let given: Vec<&str> = parsed(&format!("{BOUNDS} {all}")).unwrap().given().collect();
        assert_eq!(given, ScalingFlags::NAMES);
    }

    #[test]
    fn values_on_the_command_line_win() {
        let both = parsed("--max-nodes=9").unwrap().merge_over(parsed(BOUNDS).unwrap());
        assert_eq!(both.to_message(false).unwrap().map(|scaling| (scaling.replicas_min, scaling.replicas_max)), Some((2, 9)));
    }

    #[test]
    fn reactive_and_service_exclude_each_other() {
        assert_eq!(refused_of(BOUNDS, true), "--service is one allocation, --reactive has replicas | leave one of them out");
        assert_eq!(parsed("").unwrap().to_message(true).unwrap(), None);
    }

    #[test]
    fn an_option_without_its_partner_is_refused_and_the_partner_is_named() {
        assert_eq!(
            refused("--max-nodes=3"),
            "--max-nodes is for scaled services, and this work is not one | add --reactive, or leave --max-nodes out"
        );
        assert!(refused("--drain-grace=3").starts_with("--drain-grace is for scaled services"));
        for line in ["--reactive", "--reactive --min-nodes=1", "--reactive --max-nodes=2"] {
            assert!(refused(line).ends_with("give both, such as --min-nodes=1 --max-nodes=8"), "{line}");
        }
        let with = |options: &str| refused(&format!("{BOUNDS} {options}"));
        assert_eq!(with("--scale-metric=queue_depth"), "--scale-metric needs --scale-target | add it, such as --scale-target=0.8");
        assert!(with("--scale-target=1").ends_with("such as --scale-metric=cpu_utilization"));
        assert!(with("--scale-cooldown=1m").starts_with("--scale-cooldown needs a metric, and none is given | add --scale-metric"));
    }

    #[test]
    fn an_invalid_value_is_refused_with_the_name_of_its_option() {
        for (option, why) in [
            ("--scale-metric=sum(q)", "is neither gpu_utilization"),
            ("--scale-target=100ms", "is no number"),
            ("--scale-interval=0", "more than 0"),
            ("--scale-cooldown=soon", "is not a duration"),
            ("--drain-signal=FOO", "is not a signal"),
            ("--min-nodes=-1", "invalid"),
        ] {
            let refused = parsed(option).unwrap_err();
            let name = option.split('=').next().unwrap();
            assert!(refused.contains(why) && refused.contains(name), "{option}: {refused}");
        }
    }
}

//! A change of how a scaled service scales: its bounds, and when the number of its replicas changes by itself.

use lattice_model::{Amount, ScaleMetric, ScalePolicy, Scaling};
use serde::{Deserialize, Serialize};
use thiserror::Error;

/// A change of how a service scales; `None`: it keeps its value.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ScalingChange {
    /// The fewest replicas.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replicas_min: Option<u32>,
    /// The most replicas.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replicas_max: Option<u32>,
    /// What is looked at. Another metric than before needs a target.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub metric: Option<ScaleMetric>,
    /// The value of the metric above which another replica is wanted. Like everything below, of services with a metric.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub target: Option<Amount>,
    /// How often the metric is looked at, in milliseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub interval_ms: Option<u64>,
    /// For how long it must be above the target, in milliseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub up_window_ms: Option<u64>,
    /// For how long it must be below the threshold, in milliseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub down_window_ms: Option<u64>,
    /// The part of the target below which one replica less is wanted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub down_threshold: Option<Amount>,
    /// How long no change follows another one, in milliseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cooldown_ms: Option<u64>,
}

/// Why a service cannot scale like that.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum NoSuchPolicy {
    /// Something about a metric is to be changed, and there is none.
    #[error("it scales by no metric")]
    NoMetric,
    /// The target of the metric before says nothing about another one.
    #[error("another metric comes without a target")]
    NoTarget,
}

impl ScalingChange {
    /// How the service scales after the change.
    ///
    /// # Errors
    /// It has no metric that the change is about, or another metric and no target for it.
    pub fn apply_to(&self, scaling: &Scaling) -> Result<Scaling, NoSuchPolicy> {
        Ok(Scaling {
            replicas_min: self.replicas_min.unwrap_or(scaling.replicas_min),
            replicas_max: self.replicas_max.unwrap_or(scaling.replicas_max),
            policy: self.policy_after(scaling.policy.as_ref())?,
            drain: scaling.drain,
        })
    }

    fn policy_after(&self, before: Option<&ScalePolicy>) -> Result<Option<ScalePolicy>, NoSuchPolicy> {
        let base = match (&self.metric, before) {
            (Some(metric), Some(before)) if before.metric == *metric => before.clone(),
            (Some(metric), before) => {
                let target = self.target.ok_or(NoSuchPolicy::NoTarget)?;
                let usual = || ScalePolicy::new(metric.clone(), target);
                before.map_or_else(usual, |before| ScalePolicy { metric: metric.clone(), ..before.clone() })
            }
            (None, Some(before)) => before.clone(),
            (None, None) if self.concerns_metric() => return Err(NoSuchPolicy::NoMetric),
            (None, None) => return Ok(None),
        };
        Ok(Some(ScalePolicy {
            target: self.target.unwrap_or(base.target),
            interval_ms: self.interval_ms.unwrap_or(base.interval_ms),
            up_window_ms: self.up_window_ms.unwrap_or(base.up_window_ms),
            down_window_ms: self.down_window_ms.unwrap_or(base.down_window_ms),
            down_threshold: self.down_threshold.unwrap_or(base.down_threshold),
            cooldown_ms: self.cooldown_ms.unwrap_or(base.cooldown_ms),
            metric: base.metric,
        }))
    }

    fn concerns_metric(&self) -> bool {
        Self { replicas_min: None, replicas_max: None, ..self.clone() } != Self::default()
    }

    /// Its approximate size in the log beyond that of its numbers, in bytes.
    pub fn bytes_about(&self) -> usize {
        self.metric.as_ref().map_or(0, |metric| metric.to_string().len())
    }
}

/// The audit record's text about what is different, in parts.
pub fn scaling_details(before: &Scaling, next: &Scaling) -> Vec<String> {
    let mut details = Vec::new();
    let bounds = |scaling: &Scaling| format!("{} to {}", scaling.replicas_min, scaling.replicas_max);
    if bounds(next) != bounds(before) {
        details.push(format!("bounds {} instead of {}", bounds(next), bounds(before)));
    }
    let Some(policy) = &next.policy else { return details };
    let values = |policy: &ScalePolicy| {
        let ms = |ms: u64| format!("{ms} ms");
        [
            ("scale metric", policy.metric.to_string()),
            ("scale target", policy.target.to_string()),
            ("scale interval", ms(policy.interval_ms)),
            ("scale-up window", ms(policy.up_window_ms)),
            ("scale-down window", ms(policy.down_window_ms)),
            ("scale-down threshold", policy.down_threshold.to_string()),
            ("scale cooldown", ms(policy.cooldown_ms)),
        ]
    };
    match &before.policy {
        Some(before) => {
            for ((name, now), (_, before)) in values(policy).into_iter().zip(values(before)) {
                if now != before {
                    details.push(format!("{name} {now} instead of {before}"));
                }
            }
        }
        None => details.extend(values(policy).map(|(name, now)| format!("{name} {now}"))),
    }
    details
}

#[cfg(test)]
mod tests {
    use super::*;
    use lattice_model::Drain;

    fn amount(text: &str) -> Amount {
        text.parse().unwrap()
    }

    fn metric(text: &str) -> Option<ScaleMetric> {
        Some(text.parse().unwrap())
    }

    fn service(policy: Option<ScalePolicy>) -> Scaling {
        Scaling { replicas_min: 1, replicas_max: 3, policy, drain: Drain::default() }
    }

    fn by_processors() -> ScalePolicy {
        ScalePolicy::new(ScaleMetric::CpuUtilization, amount("0.8"))
    }

    #[test]
    fn each_value_is_changed_alone_and_recorded() {
        let before = service(Some(by_processors()));
        let change = |change: ScalingChange| {
            let next = change.apply_to(&before).unwrap();
            (scaling_details(&before, &next), next.policy.unwrap())
        };
        let none = ScalingChange::default;
        assert_eq!(change(none()), (vec![], by_processors()));
        let (texts, policy) = change(ScalingChange { interval_ms: Some(5000), cooldown_ms: Some(1000), ..none() });
        assert_eq!(texts, ["scale interval 5000 ms instead of 60000 ms", "scale cooldown 1000 ms instead of 180000 ms"]);
        assert_eq!(policy, ScalePolicy { interval_ms: 5000, cooldown_ms: 1000, ..by_processors() });
        let down_threshold = Some(amount("0.25"));
        let windows = ScalingChange { up_window_ms: Some(1000), down_window_ms: Some(2000), down_threshold, ..none() };
        let (texts, policy) = change(windows);
        assert_eq!(
            texts,
            [
                "scale-up window 1000 ms instead of 120000 ms",
                "scale-down window 2000 ms instead of 300000 ms",
                "scale-down threshold 0.25 instead of 0.5"
            ]
        );
        assert_eq!((policy.up_window_ms, policy.down_window_ms, policy.down_threshold), (1000, 2000, amount("0.25")));
    }

    #[test]
    fn another_metric_comes_with_its_target_and_keeps_the_rest() {
        let before = service(Some(ScalePolicy { cooldown_ms: 1000, ..by_processors() }));
        let same = ScalingChange { metric: metric("cpu_utilization"), ..ScalingChange::default() };
        assert_eq!(same.apply_to(&before), Ok(before.clone()));
        let alone = ScalingChange { metric: metric("queue_depth"), ..ScalingChange::default() };
        assert_eq!(alone.apply_to(&before), Err(NoSuchPolicy::NoTarget));
        let both = ScalingChange { target: Some(amount("5")), ..alone };
        let next = both.apply_to(&before).unwrap();
        let policy = next.policy.clone().unwrap();
        assert_eq!((policy.metric, policy.target, policy.cooldown_ms), (ScaleMetric::QueueDepth, amount("5"), 1000));
        let texts = ["scale metric queue_depth instead of cpu_utilization", "scale target 5 instead of 0.8"];
        assert_eq!(scaling_details(&before, &next), texts);
        assert_eq!(both.apply_to(&next), Ok(next), "a repetition changes nothing");
    }

    #[test]
    fn a_service_without_a_metric_gets_one_but_no_other_value_of_one() {
        let by_hand = service(None);
        let window = ScalingChange { up_window_ms: Some(1000), ..ScalingChange::default() };
        assert_eq!(window.apply_to(&by_hand), Err(NoSuchPolicy::NoMetric));
        let alone = ScalingChange { metric: metric("queue_depth"), ..window.clone() };
        assert_eq!(alone.apply_to(&by_hand), Err(NoSuchPolicy::NoTarget));
        let whole = ScalingChange { target: Some(amount("5")), ..alone };
        let next = whole.apply_to(&by_hand).unwrap();
        let policy = ScalePolicy { up_window_ms: 1000, ..ScalePolicy::new(ScaleMetric::QueueDepth, amount("5")) };
        assert_eq!(next.policy, Some(policy));
        assert_eq!(scaling_details(&by_hand, &next)[..2], ["scale metric queue_depth", "scale target 5"]);
        let bounds = ScalingChange { replicas_max: Some(9), ..ScalingChange::default() };
        assert_eq!(bounds.apply_to(&by_hand).unwrap().policy, None);
    }
}

//! Scaled services: how one scales, how many replicas it has, and where its metric is.

use super::values::{text, time};
use crate::spec::scaling_request;
use crate::v1;
use lattice_model::CheckpointSignal;
use lattice_model::scaling::Scaling;
use serde::Serialize;
use utoipa::ToSchema;

/// How a service scales. Times are in milliseconds.
#[derive(Clone, Debug, PartialEq, Serialize, ToSchema)]
#[schema(as = Scaling)]
pub struct ScalingJson {
    replicas_min: u32,
    replicas_max: u32,
    /// Null: the number changes only on request.
    policy: Option<PolicyJson>,
    /// Its name, as the option takes it.
    drain_signal: Option<String>,
    drain_grace_ms: u64,
}

/// When the number of replicas changes by itself.
#[derive(Clone, Debug, PartialEq, Serialize, ToSchema)]
#[schema(as = ScalePolicy)]
pub struct PolicyJson {
    metric: String,
    target: f64,
    down_threshold: f64,
    interval_ms: u64,
    up_window_ms: u64,
    down_window_ms: u64,
    cooldown_ms: u64,
}

impl ScalingJson {
    /// `None`: it is no scaled service.
    pub fn of(scaling: Option<&v1::Scaling>) -> Option<Self> {
        let Scaling { replicas_min, replicas_max, policy, drain } = scaling_request(scaling?).ok()?;
        let policy = policy.map(|policy| PolicyJson {
            metric: policy.metric.to_string(),
            target: policy.target.as_f64(),
            down_threshold: policy.down_threshold.as_f64(),
            interval_ms: policy.interval_ms,
            up_window_ms: policy.up_window_ms,
            down_window_ms: policy.down_window_ms,
            cooldown_ms: policy.cooldown_ms,
        });
        let drain_signal = drain.signal.and_then(CheckpointSignal::of_number).map(|signal| signal.to_string());
        Some(Self { replicas_min, replicas_max, policy, drain_signal, drain_grace_ms: drain.grace_ms })
    }
}

/// The replicas of a service, and what its loop found.
#[derive(Clone, Debug, PartialEq, Serialize, ToSchema)]
#[schema(as = ScalingState)]
pub struct ScalingStateJson {
    wanted: u32,
    waiting: u32,
    running: u32,
    leaving: u32,
    /// Where the metric is; null: it was not looked at yet.
    reading: Option<ReadingJson>,
    /// The last change of `wanted`.
    change: Option<ScaleChangeJson>,
    alternations: u32,
    early_ends: u32,
}

/// Where a metric is.
#[derive(Clone, Debug, PartialEq, Serialize, ToSchema)]
#[schema(as = MetricReading)]
pub struct ReadingJson {
    /// above, within, below, missing
    look: String,
    since: Option<String>,
    /// Its value then.
    value: Option<f64>,
    /// Why it had none.
    why: Option<String>,
    /// How many looks in a row had none, counted up to 3.
    missing: u32,
}

/// A change of the wanted number of replicas.
#[derive(Clone, Debug, PartialEq, Serialize, ToSchema)]
#[schema(as = ScaleChange)]
pub struct ScaleChangeJson {
    at: Option<String>,
    from: u32,
    to: u32,
    /// Null: the metric asked for it.
    by: Option<String>,
    value: Option<f64>,
}

impl From<&v1::ScalingState> for ScalingStateJson {
    fn from(state: &v1::ScalingState) -> Self {
        Self {
            wanted: state.wanted,
            waiting: state.waiting,
            running: state.running,
            leaving: state.leaving,
            reading: state.reading.as_ref().map(|reading| ReadingJson {
                look: reading.look.clone(),
                since: time(reading.since_ms),
                value: reading.value,
                why: text(&reading.why),
                missing: reading.missing,
            }),
            change: state.change.as_ref().map(|change| ScaleChangeJson {
                at: time(change.at_ms),
                from: change.from,
                to: change.to,
                by: text(&change.by),
                value: change.value,
            }),
            alternations: state.alternations,
            early_ends: state.early_ends,
        }
    }
}

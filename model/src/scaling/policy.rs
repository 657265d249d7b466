//! How a service scales, as its user requests it.

use super::amount::Amount;
use super::metric::ScaleMetric;
use crate::ids::AllocationId;
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// Largest number of replicas of one service.
pub const REPLICAS_MAX: u32 = 1000;
/// The shortest and the longest interval, window and cooldown.
pub const TIMES: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(86_400));
/// The longest time that a replica may take to leave.
pub const DRAIN_MAX: Duration = Duration::from_secs(3600);

/// How a service scales.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Scaling {
    /// The fewest replicas, at least 1; the service begins with this number.
    pub replicas_min: u32,
    /// The most replicas, at most [`REPLICAS_MAX`].
    pub replicas_max: u32,
    /// When their number changes by itself; `None`: only when somebody asks for it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub policy: Option<ScalePolicy>,
    /// How a replica leaves.
    #[serde(default)]
    pub drain: Drain,
}

/// When the number of replicas changes by itself, by one at a time.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ScalePolicy {
    /// The metric that is compared with the target.
    pub metric: ScaleMetric,
    /// Above this value for the whole of `up_window_ms`, another replica is wanted. More than 0.
    pub target: Amount,
    /// How often the metric is looked at, in milliseconds.
    pub interval_ms: u64,
    /// For how long the metric must be above the target, in milliseconds.
    pub up_window_ms: u64,
    /// For how long the metric must be below `down_threshold` × `target`, in milliseconds.
    pub down_window_ms: u64,
    /// Below this fraction of the target one replica fewer is wanted. More than 0 and less than 1.
    pub down_threshold: Amount,
    /// The shortest time between two changes, in milliseconds.
    pub cooldown_ms: u64,
}

impl ScalePolicy {
    /// With the usual interval, windows, threshold and cooldown.
    pub fn new(metric: ScaleMetric, target: Amount) -> Self {
        Self {
            metric,
            target,
            interval_ms: 60_000,
            up_window_ms: 120_000,
            down_window_ms: 300_000,
            down_threshold: Amount(500_000),
            cooldown_ms: 180_000,
        }
    }

    /// Below this value there are too many replicas.
    pub fn floor(&self) -> Amount {
        self.target.times(self.down_threshold)
    }
}

/// How a replica leaves: its entry in the service registry goes first, then it has some time, then it
/// is ended like work that is cancelled. It may end by itself before.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Drain {
    /// The number of the signal that it gets when it must leave; `None`: it gets none before its time
    /// is over.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub signal: Option<u8>,
    /// Its time, in milliseconds; at most [`DRAIN_MAX`].
    pub grace_ms: u64,
}

impl Default for Drain {
    fn default() -> Self {
        Self { signal: None, grace_ms: 30_000 }
    }
}

/// The place of a replica in its service.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReplicaOf {
    /// The scaled service.
    pub service: AllocationId,
    /// The replica's number in it, from 0. No other replica of the service ever has the same.
    pub number: u32,
}

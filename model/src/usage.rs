//! The use of nodes over time, in daily buckets, from which budgets and fair shares are computed.
//!
//! ```text
//!   an attempt runs from `started_at` to its end ──NodeUse──▶ node-ms and GPU-ms ──▶ a bucket for each day (UTC)
//!                                                              budget: the sum of the period │ fair share: each day by its age
//! ```
//!
//! A node counts from the start of the work, not from the claim: the time of the prologue is not
//! charged. A share of a node counts as its largest fraction of the cores, the memory or the GPUs,
//! because others cannot have that part.

use crate::allocation::Allocation;
use crate::ids::NodeId;
use crate::resources::Resources;
use crate::time::Timestamp;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;
use thiserror::Error;

/// A day, in milliseconds.
pub const DAY_MS: u64 = 24 * 60 * 60 * 1000;
/// An hour, in milliseconds.
pub const HOUR_MS: u64 = 60 * 60 * 1000;
/// After this time, use counts half for the fair share: the default of Slurm's
/// `PriorityDecayHalfLife`.
pub const HALF_LIFE: Duration = Duration::from_secs(7 * 24 * 60 * 60);
/// How many days count for fair shares: eight half-lives. Older use would count less than one part in
/// 256.
pub const SHARE_DAYS: u32 = 56;
/// A whole node, in the unit of [`NodeUse::node_millionths`].
pub const WHOLE_NODE: u64 = 1_000_000;

/// The number of a day since the Unix epoch, in UTC.
pub fn day_of(time: Timestamp) -> u32 {
    u32::try_from(time.0 / DAY_MS).unwrap_or(u32::MAX)
}

/// How many days budgets look back, today included; older use is forgotten.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "u32", into = "u32")]
pub struct BudgetPeriod(u32);

impl BudgetPeriod {
    /// The longest period, in days: it bounds the number of buckets.
    pub const DAYS_MAX: u32 = 366;

    /// This many days.
    ///
    /// # Errors
    /// [`InvalidPeriod`]: none, or more than [`Self::DAYS_MAX`].
    pub fn of_days(days: u32) -> Result<Self, InvalidPeriod> {
        if (1..=Self::DAYS_MAX).contains(&days) { Ok(Self(days)) } else { Err(InvalidPeriod { days }) }
    }

    /// The period to record: this one, but at least the days that count for fair shares.
    #[must_use]
    pub fn kept(self) -> Self {
        self.max(Self(SHARE_DAYS))
    }

    /// Its length in days.
    pub fn days(self) -> u32 {
        self.0
    }

    /// How many milliseconds between two times are within the period, if it ends at `to`.
    pub fn recorded_ms(self, from: Timestamp, to: Timestamp) -> u64 {
        days_between(from, to, self).map(|(_, ms)| ms).sum()
    }

    /// The period's first day, if it ends at `now`.
    pub fn first_day(self, now: Timestamp) -> u32 {
        first_of(now, self.0)
    }
}

impl Default for BudgetPeriod {
    fn default() -> Self {
        Self(90)
    }
}

impl fmt::Display for BudgetPeriod {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl From<BudgetPeriod> for u32 {
    fn from(period: BudgetPeriod) -> Self {
        period.0
    }
}

impl TryFrom<u32> for BudgetPeriod {
    type Error = InvalidPeriod;

    fn try_from(days: u32) -> Result<Self, InvalidPeriod> {
        Self::of_days(days)
    }
}

/// No budget can look back over this many days.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("a budget period of {days} days is not possible: 1 to {} days are", BudgetPeriod::DAYS_MAX)]
pub struct InvalidPeriod {
    pub days: u32,
}

/// The first of the last `days` days, today included.
fn first_of(now: Timestamp, days: u32) -> u32 {
    day_of(now).saturating_sub(days.saturating_sub(1))
}

/// An amount of use; sums saturate.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "(u64, u64)", into = "(u64, u64)")]
pub struct Used {
    /// Nodes × milliseconds.
    pub node_ms: u64,
    /// GPUs × milliseconds.
    pub gpu_ms: u64,
}

impl Used {
    /// The sum of both.
    #[must_use]
    pub fn plus(self, other: Self) -> Self {
        Self { node_ms: self.node_ms.saturating_add(other.node_ms), gpu_ms: self.gpu_ms.saturating_add(other.gpu_ms) }
    }

    /// Whether nothing was used.
    pub fn is_none(self) -> bool {
        self == Self::default()
    }
}

impl From<(u64, u64)> for Used {
    fn from((node_ms, gpu_ms): (u64, u64)) -> Self {
        Self { node_ms, gpu_ms }
    }
}

impl From<Used> for (u64, u64) {
    fn from(used: Used) -> Self {
        (used.node_ms, used.gpu_ms)
    }
}

/// What an allocation uses while it runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NodeUse {
    /// Its nodes, in millionths of a node.
    pub node_millionths: u64,
    /// Its GPUs.
    pub gpus: u64,
}

impl NodeUse {
    /// What the current claim of an allocation uses. `size_of`: the registered size of a node; a
    /// share of a node without one counts as a whole node.
    pub fn of(allocation: &Allocation, size_of: impl Fn(&NodeId) -> Option<Resources>) -> Self {
        let has_whole_nodes = allocation.spec.share.is_none();
        allocation.shares.iter().fold(Self::default(), |sum, share| {
            let size = if has_whole_nodes { None } else { size_of(share.node) };
            let part = size.map_or(WHOLE_NODE, |size| part_of_node(&share.resources, &size));
            Self {
                node_millionths: sum.node_millionths.saturating_add(part),
                gpus: sum.gpus.saturating_add(u64::from(share.resources.gpus)),
            }
        })
    }

    /// What this uses from one time to another, within the last `days` days (UTC), today included.
    pub fn within(self, (from, to): (Timestamp, Timestamp), now: Timestamp, days: u32) -> Used {
        let begin = Timestamp(u64::from(first_of(now, days)) * DAY_MS);
        self.for_ms(to.since_ms(from.max(begin)))
    }

    /// What [`DailyUse::add`] records from one time to another, with this period.
    pub fn recorded(self, (from, to): (Timestamp, Timestamp), period: BudgetPeriod) -> Used {
        days_between(from, to, period).fold(Used::default(), |sum, (_, ms)| sum.plus(self.for_ms(ms)))
    }

    /// What this uses in `ms` milliseconds.
    pub fn for_ms(self, ms: u64) -> Used {
        let node_ms = u128::from(ms) * u128::from(self.node_millionths) / u128::from(WHOLE_NODE);
        Used { node_ms: u64::try_from(node_ms).unwrap_or(u64::MAX), gpu_ms: ms.saturating_mul(self.gpus) }
    }
}

/// The largest fraction of a resource that the share has, rounded up, in millionths.
fn part_of_node(share: &Resources, size: &Resources) -> u64 {
    let part = |some: u64, all: u64| match all {
        0 => 0,
        all => u64::try_from((u128::from(some) * u128::from(WHOLE_NODE)).div_ceil(u128::from(all))).unwrap_or(u64::MAX),
    };
    let cores = part(share.cores.into(), size.cores.into());
    let gpus = part(share.gpus.into(), size.gpus.into());
    cores.max(gpus).max(part(share.memory_bytes, size.memory_bytes)).min(WHOLE_NODE)
}

/// The days from one time to another, each with its milliseconds between them. Days before the period
/// are left out, so there are not more than the period has, however long the work ran.
fn days_between(from: Timestamp, to: Timestamp, period: BudgetPeriod) -> impl Iterator<Item = (u32, u64)> {
    let days = day_of(from).max(period.first_day(to))..=day_of(to);
    days.map(move |day| {
        let begin = u64::from(day) * DAY_MS;
        (day, to.0.min(begin.saturating_add(DAY_MS)).saturating_sub(from.0.max(begin)))
    })
}

/// The use of one day.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DayUse {
    /// Days since the Unix epoch, in UTC.
    pub day: u32,
    /// What was used on that day.
    pub used: Used,
}

/// Use by days; days without any are absent.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct DailyUse(BTreeMap<u32, Used>);

impl DailyUse {
    /// Adds what was used from one time to another, to each of the days between, and forgets days
    /// before the period. Returns the first day that has more than before; `None`: nothing was
    /// used, or all of it before the period.
    pub fn add(&mut self, node_use: NodeUse, from: Timestamp, to: Timestamp, period: BudgetPeriod) -> Option<u32> {
        self.forget_before(period.first_day(to));
        let mut first_changed = None;
        for (day, ms) in days_between(from, to, period) {
            let used = node_use.for_ms(ms);
            if !used.is_none() {
                let bucket = self.0.entry(day).or_default();
                *bucket = bucket.plus(used);
                first_changed = first_changed.or(Some(day));
            }
        }
        first_changed
    }

    /// Replaces the buckets of these days. The oldest are forgotten if there are more days than any
    /// period has.
    pub fn replace(&mut self, days: impl IntoIterator<Item = DayUse>) {
        self.0.extend(days.into_iter().map(|DayUse { day, used }| (day, used)));
        while self.0.len() > BudgetPeriod::DAYS_MAX as usize {
            self.0.pop_first();
        }
    }

    fn forget_before(&mut self, first_kept: u32) {
        while self.0.first_key_value().is_some_and(|(day, _)| *day < first_kept) {
            self.0.pop_first();
        }
    }

    /// The buckets from this day on, oldest first.
    pub fn since(&self, day: u32) -> impl Iterator<Item = DayUse> {
        self.0.range(day..).map(|(day, used)| DayUse { day: *day, used: *used })
    }

    /// The number of days with use.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether nothing was used.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The latest day with use.
    pub fn last_day(&self) -> Option<u32> {
        self.0.last_key_value().map(|(day, _)| *day)
    }

    /// What was used in the last `days` days (UTC), today included.
    pub fn within(&self, now: Timestamp, days: u32) -> Used {
        if days == 0 {
            return Used::default();
        }
        self.since(first_of(now, days)).fold(Used::default(), |sum, day| sum.plus(day.used))
    }

    /// Node-milliseconds of the last [`SHARE_DAYS`], each day's by its age: half after one half-life, a
    /// quarter after two. The age counts from the end of the day, so that today counts in full.
    pub fn decayed(&self, now: Timestamp, half_life: Duration) -> u64 {
        let half_life_ms = half_life.as_millis().max(1) as f64;
        let weighed = |DayUse { day, used }: DayUse| {
            let age_ms = now.0.saturating_sub((u64::from(day) + 1).saturating_mul(DAY_MS));
            used.node_ms as f64 * (-(age_ms as f64) / half_life_ms).exp2()
        };
        // A conversion from a float saturates.
        self.since(first_of(now, SHARE_DAYS)).map(weighed).sum::<f64>().round() as u64
    }
}

#[cfg(test)]
mod tests;

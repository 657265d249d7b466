//! `lattice top`.

use super::ttl::{BoundedTimeError, parse_bounded};
use clap::Args;
use std::time::Duration;

const TOP_EXAMPLES: &str = "Examples:
  lattice top
      the cluster, live, on one screen: queue, nodes, usage and alerts; ? shows
      the keys, q ends it
  lattice top 1f0c9a4e
      the sum of all its nodes, now and over the last 30 seconds
  lattice top @last --per-node --duration=10m
      each node, with mean and maximum of the last ten minutes
  lattice top 77ab01cd --duration=6h
      the last six hours; of work that has ended: the last six hours of its run
  lattice top @last --per-gpu
      each of its GPUs: how busy, how full, its power, why its clocks are
      reduced
  lattice top @last --per-rank
      each rank: its node, process, busy processors, memory and activity over
      one second; and which rank is the busiest, which the least busy

The agents of its nodes measure once a second and keep one hour. For a longer
time, and for work that has ended, the store for metrics is asked; NOW is then
the last value that it has. SOURCE is where a number comes from, AGE how long
ago it was measured. What a node cannot measure is not shown.";

#[derive(Args)]
#[command(after_help = TOP_EXAMPLES)]
pub struct Top {
    /// The allocation; without one, the whole cluster is shown, live, on one screen
    pub id: Option<String>,
    /// Each node on its own, not the sum
    #[arg(long, requires = "id", conflicts_with_all = ["per_gpu", "per_rank", "wide"])]
    pub per_node: bool,
    /// Each of its GPUs on its own
    #[arg(long, requires = "id", conflicts_with_all = ["per_rank", "wide"])]
    pub per_gpu: bool,
    /// Each rank on its own
    #[arg(long, requires = "id", conflicts_with = "wide")]
    pub per_rank: bool,
    /// One line for each node, with a column for each number
    #[arg(long, requires = "id")]
    pub wide: bool,
    /// The period of MEAN and MAX, 1s to 90d; a bare number is seconds [default: 30s; for work that has ended: its
    /// whole run]
    #[arg(long, requires = "id", value_name = "TIME", value_parser = parse_duration)]
    pub duration: Option<Duration>,
    /// Of the whole cluster: the time between two refreshes, 1s to 10m; a bare number is seconds [default: 2s]
    #[arg(long, conflicts_with = "id", value_name = "TIME", value_parser = parse_interval)]
    pub interval: Option<Duration>,
}

impl Top {
    /// The defaults: all nodes of an allocation together.
    pub fn of(id: String) -> Self {
        Self { id: Some(id), per_node: false, per_gpu: false, per_rank: false, wide: false, duration: None, interval: None }
    }
}

/// The documents' name for `top` and, with `--stream`, for `watch`.
#[derive(Args)]
pub struct Metrics {
    /// The allocation
    pub id: String,
    /// Follow it to its end
    #[arg(long)]
    pub stream: bool,
}

fn parse_duration(text: &str) -> Result<Duration, BoundedTimeError> {
    parse_bounded(text, Duration::from_secs(1)..=Duration::from_secs(90 * 86_400), "1s to 90d")
}

fn parse_interval(text: &str) -> Result<Duration, BoundedTimeError> {
    parse_bounded(text, Duration::from_secs(1)..=Duration::from_secs(600), "1s to 10m")
}

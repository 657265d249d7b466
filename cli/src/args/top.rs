//! `lattice top`.

use clap::Args;
use lattice_model::duration::{self, BareNumber};
use std::time::Duration;

const TOP_EXAMPLES: &str = "Examples:
  lattice top 1f0c9a4e
      what all its nodes together use now, and over the last 30 seconds
  lattice top @last --per-node --duration=10m
      node by node, with means and maxima of the last ten minutes
  lattice top 77ab01cd --duration=6h
      the same of six hours, or of the last six hours of work that has ended
  lattice top @last --per-gpu
      each GPU that it has: how busy, how full, what it draws, why its clocks are held down
  lattice top @last --per-rank
      each rank of its launches over a second: where it is, its process, the processors that it keeps busy, memory, what it does;
      and which is the busiest and which the least busy one

The agents of its nodes measure once a second, and answer themselves. They keep an hour: MEAN and MAX of longer are asked of the store
for metrics, and so is all of what has ended, where NOW is the last that was told. SOURCE says what each number comes from, AGE how long
ago it was measured; what cannot be had on a node is not shown.";

#[derive(Args)]
#[command(after_help = TOP_EXAMPLES)]
pub struct Top {
    /// The allocation
    pub id: String,
    /// Each node for itself, not their sums
    #[arg(long, conflicts_with_all = ["per_gpu", "per_rank", "wide"])]
    pub per_node: bool,
    /// Each of its GPUs for itself
    #[arg(long, conflicts_with_all = ["per_rank", "wide"])]
    pub per_gpu: bool,
    /// Each rank of its launches for itself
    #[arg(long, conflicts_with = "wide")]
    pub per_rank: bool,
    /// A line for each node, with a column for each number
    #[arg(long)]
    pub wide: bool,
    /// How far back MEAN and MAX reach: up to 90d, a bare number is seconds; not said: the last 30s, of what has ended all of it
    #[arg(long, value_name = "TIME", value_parser = top_duration)]
    pub duration: Option<Duration>,
}

impl Top {
    /// Of an allocation all nodes together, as where nothing is said.
    pub fn of(id: String) -> Self {
        Self { id, per_node: false, per_gpu: false, per_rank: false, wide: false, duration: None }
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

fn top_duration(text: &str) -> Result<Duration, String> {
    let duration = duration::parse(text, BareNumber::Seconds).map_err(|e| e.to_string())?;
    let bounds = Duration::from_secs(1)..=Duration::from_secs(90 * 86_400);
    if bounds.contains(&duration) { Ok(duration) } else { Err("1s to 90d are possible".to_owned()) }
}

//! `lattice watch`, `lattice diag`, `lattice compare`.

use super::ttl::{BoundedTimeError, parse_bounded};
use clap::Args;
use std::time::Duration;

const WATCH_EXAMPLES: &str = "Examples:
  lattice watch 1f0c9a4e
      every number of each of its nodes, every 5 seconds, and alerts
  lattice watch @last --alerts-only
      alerts alone: thresholds that the site has set, and launches that hang
  lattice watch 1f0c9a4e --metrics=cpu_cores,memory_used --interval=1s -o json

The numbers come from the agents of its nodes. SOURCE is where a number comes
from, AGE how long ago it was measured, or the alert was raised. A line says
when a node stops answering, and when it answers again. The command ends with
the allocation. Also understood: network_rx_bytes for network_received_bytes,
network_tx_bytes for network_sent_bytes, gpu_util for gpu_utilization.";

#[derive(Args)]
#[command(after_help = WATCH_EXAMPLES)]
pub struct Watch {
    /// The allocation
    pub id: String,
    /// Show alerts alone, no numbers
    #[arg(long, conflicts_with = "metrics")]
    pub alerts_only: bool,
    /// Show only these numbers, named as `lattice top` names them
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    pub metrics: Vec<String>,
    /// The time between two measurements of a node, 1s to 1h; a bare number is seconds
    #[arg(long, value_name = "TIME", default_value = "5s", value_parser = parse_interval)]
    pub interval: Duration,
}

impl Watch {
    /// The defaults: all numbers and alerts of an allocation.
    pub fn of(id: String) -> Self {
        Self { id, alerts_only: false, metrics: Vec::new(), interval: Duration::from_secs(5) }
    }
}

fn parse_interval(text: &str) -> Result<Duration, BoundedTimeError> {
    parse_bounded(text, Duration::from_secs(1)..=Duration::from_secs(3600), "1s to 1h")
}

const DIAG_EXAMPLES: &str = "Examples:
  lattice diag 1f0c9a4e
      each process: its state, what it waits for in the kernel, and for how
      long; pressure, GPUs, network and storage of each node
  lattice diag 1f0c9a4e --stacks
      the kernel stack of each process: where a rank hangs
  lattice diag 1f0c9a4e --storage
      how full each mount is, which mount does not answer, and how long requests
      to disks took

STATE is the kernel's: R runs, S waits, D waits uninterruptibly, T is stopped,
Z has ended. STILL is how long ago the process last ran. SOURCE is where a value
comes from, AGE how old it is. What no node can measure is \"unsupported\", and
the line says why. Look first at lines that begin with !.";

#[derive(Args)]
#[command(after_help = DIAG_EXAMPLES)]
pub struct Diag {
    /// The allocation
    pub id: String,
    /// Show the kernel stack of each process
    #[arg(long, conflicts_with_all = ["network", "storage"])]
    pub stacks: bool,
    /// Show only the network
    #[arg(long)]
    pub network: bool,
    /// Show only storage
    #[arg(long)]
    pub storage: bool,
}

const COMPARE_EXAMPLES: &str = "Examples:
  lattice compare 1f0c9a4e 77ab01cd
      how many processors each kept busy, from its own start
  lattice compare 1f0c9a4e 77ab01cd --metric=memory_used -o json

Metrics are, summed over the nodes of an allocation: cpu_cores, memory_used,
io_read_bytes, io_write_bytes, network_received_bytes, network_sent_bytes,
gpu_memory_used, gpu_power_draw, processes and threads; gpu_utilization is the
mean of its nodes, io_latency_p99 (in seconds) that of the slowest node. Also
understood: network_rx_bytes, network_tx_bytes and gpu_util.

The numbers come from the store for metrics: MEAN and MAX are of at most
about sixty windows of 30 s, spread over each run. Without a store that
answers, they come from the agents of work that runs, and are of its last hour.";

#[derive(Args)]
#[command(after_help = COMPARE_EXAMPLES)]
pub struct Compare {
    /// The allocations, 2 to 8
    #[arg(required = true, num_args = 2..=8, value_name = "ID")]
    pub ids: Vec<String>,
    /// The metric to compare
    #[arg(long, value_name = "METRIC", default_value = "cpu_cores")]
    pub metric: String,
}

//! `lattice watch`, `lattice diag`, `lattice compare`.

use clap::Args;
use lattice_model::duration::{self, BareNumber};
use std::time::Duration;

const WATCH_EXAMPLES: &str = "Examples:
  lattice watch 1f0c9a4e
      all that is measured on each of its nodes, every 5 seconds, and alerts as they come and go
  lattice watch @last --alerts-only
      alerts alone: thresholds of the site, and launches that hang
  lattice watch 1f0c9a4e --metrics=cpu_cores,memory_used --interval=1s -o json

Its nodes' agents tell it themselves; SOURCE says what each number comes from, AGE how long ago it was measured, or the alert was
raised. network_rx_bytes, network_tx_bytes and gpu_util are understood for network_received_bytes, network_sent_bytes and gpu_utilization. A node that goes away is said, and told of again when it is back. Ends with the allocation.";

#[derive(Args)]
#[command(after_help = WATCH_EXAMPLES)]
pub struct Watch {
    /// The allocation
    pub id: String,
    /// Alerts alone, no numbers
    #[arg(long, conflicts_with = "metrics")]
    pub alerts_only: bool,
    /// Only these numbers, by the names that `lattice top` shows
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    pub metrics: Vec<String>,
    /// Between two numbers of a node: 1s to 1h, a bare number is seconds
    #[arg(long, value_name = "TIME", default_value = "5s", value_parser = interval)]
    pub interval: Duration,
}

impl Watch {
    /// All of an allocation, as where nothing is said.
    pub fn of(id: String) -> Self {
        Self { id, alerts_only: false, metrics: Vec::new(), interval: Duration::from_secs(5) }
    }
}

fn interval(text: &str) -> Result<Duration, String> {
    let interval = duration::parse(text, BareNumber::Seconds).map_err(|e| e.to_string())?;
    let bounds = Duration::from_secs(1)..=Duration::from_secs(3600);
    if bounds.contains(&interval) { Ok(interval) } else { Err("1s to 1h are possible".to_owned()) }
}

const DIAG_EXAMPLES: &str = "Examples:
  lattice diag 1f0c9a4e
      each process with its state, what it waits for in the kernel and since when; pressure, GPUs, network and storage of each node
  lattice diag 1f0c9a4e --stacks
      the kernel's calls of each process that it waits in: where a rank hangs
  lattice diag 1f0c9a4e --storage
      how full each mount is, which one does not answer, and how long requests to disks took

STATE is the kernel's: R runs, S waits, D waits uninterruptibly, T is stopped, Z has ended. STILL is how long ago it last ran. SOURCE is
what says so, AGE how old it is; what no node can tell is unsupported, with why. Lines that begin with ! are what somebody should look at.";

#[derive(Args)]
#[command(after_help = DIAG_EXAMPLES)]
pub struct Diag {
    /// The allocation
    pub id: String,
    /// With the kernel's stack of each process
    #[arg(long, conflicts_with_all = ["network", "storage"])]
    pub stacks: bool,
    /// Only the network
    #[arg(long)]
    pub network: bool,
    /// Only storage
    #[arg(long)]
    pub storage: bool,
}

const COMPARE_EXAMPLES: &str = "Examples:
  lattice compare 1f0c9a4e 77ab01cd
      processors that both kept busy, from the start of each
  lattice compare 1f0c9a4e 77ab01cd --metric=memory_used -o json

Metrics are cpu_cores, memory_used, io_read_bytes, io_write_bytes, network_received_bytes and network_sent_bytes (also network_rx_bytes and
network_tx_bytes), gpu_memory_used, gpu_power_draw, processes and threads, of all nodes of an allocation together; gpu_utilization (also
gpu_util), their mean; and io_latency_p99, in seconds, of the slowest node. The store for metrics is asked, for at most some sixty windows of 30 s, spread over a run: MEAN and MAX are of these. Where there is none, or it
does not answer, the agents of what runs tell mean and maximum of its last hour.";

#[derive(Args)]
#[command(after_help = COMPARE_EXAMPLES)]
pub struct Compare {
    /// The allocations, 2 to 8
    #[arg(required = true, num_args = 2..=8, value_name = "ID")]
    pub ids: Vec<String>,
    /// What is compared
    #[arg(long, value_name = "METRIC", default_value = "cpu_cores")]
    pub metric: String,
}

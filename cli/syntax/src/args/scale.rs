//! `lattice scale`.

use clap::Args;

const SCALE_HELP: &str = "Examples:
  lattice scale 1f0c9a4e 4
      four replicas from now on: missing ones are created, of surplus ones the
      latest leave

A replica that leaves is not found in the service registry any more. It has the
time of --drain-grace, and is then ended; it may end by itself before.

A service with --scale-metric follows its metric again when its cooldown is
over. The number can be what --min-nodes and --max-nodes of its submission
allow. `lattice status ID` shows the replicas, `lattice explain ID` what the
service waits for.

For the owner and for operators.";

#[derive(Args)]
#[command(after_help = SCALE_HELP)]
pub struct Scale {
    /// The service: its id, the beginning of it, or @last
    pub id: String,
    /// How many replicas are wanted
    #[arg(value_name = "N")]
    pub replicas: u32,
}

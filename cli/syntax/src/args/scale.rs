//! `lattice scale`.

use clap::Args;

const SCALE_HELP: &str = "Examples:
  lattice scale 1f0c9a4e 4
      four replicas from now on

If there are too few replicas, new ones are created. If there are too many, the
latest ones are asked to leave: the service registry does not list them any
more, and what has not ended by itself after --drain-grace is ended.

The number must be in the range of --min-nodes and --max-nodes, as submitted;
`lattice update ID --min-nodes N --max-nodes M` changes that. A service with
--scale-metric follows its metric again after its cooldown. `lattice status ID`
shows the replicas, `lattice explain ID` what the service waits for.

For the owner, admins of its tenant and operators.";

#[derive(Args)]
#[command(after_help = SCALE_HELP)]
pub struct Scale {
    /// The scaled service: its id, the beginning of it, or @last
    pub id: String,
    /// How many replicas are wanted
    #[arg(value_name = "N")]
    pub replicas: u32,
}

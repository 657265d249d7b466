//! `lattice vcluster …` and `lattice admin vcluster …`.

use super::rest::Rest;
use clap::{Args, Subcommand};

#[derive(Args)]
pub struct VCluster {
    #[command(subcommand)]
    pub command: VClusterCommand,
}

#[derive(Subcommand)]
pub enum VClusterCommand {
    /// List the vClusters: tenant, nodes, how much waits and runs, and which agent schedules each
    List,
    /// Show what waits in a vCluster, the next one first
    Queue(VClusterQueue),
}

#[derive(Args)]
pub struct VClusterQueue {
    /// The vCluster
    #[arg(default_value = lattice_model::DEFAULT_VCLUSTER)]
    pub name: String,
}

const VCLUSTER_EXAMPLES: &str = "Examples:
  lattice admin vcluster create debug --scheduler interactive-fifo \\
      --nodes n[1-4]
      a queue with four nodes that no other queue uses from now on
  lattice admin vcluster create physics --scheduler hpc-backfill \\
      --tenant physics
      a queue for the work of one tenant, on nodes that belong to no vCluster
  lattice admin vcluster set-config debug --nodes n[1-6]
      the whole list of its nodes; work that runs on other nodes continues there

The vCluster \"default\" always exists. It has the work that names no vCluster,
and the nodes that belong to no other. Its scheduler is hpc-backfill.";

#[derive(Args)]
#[command(after_help = VCLUSTER_EXAMPLES)]
pub struct VClusterAdmin {
    #[command(subcommand)]
    pub command: AdminVCluster,
}

#[derive(Subcommand)]
pub enum AdminVCluster {
    /// Create a vCluster
    Create(CreateVCluster),
    /// Change the tenant or the nodes of a vCluster; work that already waits or runs there stays
    SetConfig(SetVCluster),
    /// List the vClusters
    List,
    /// Show one vCluster
    Show(VClusterName),
    /// Delete a vCluster that has no work; its nodes belong to the default then
    Delete(VClusterName),
    #[command(hide = true, disable_help_flag = true)]
    SetWeights(Rest),
}

impl AdminVCluster {
    /// The command or option in this call that is documented but not implemented.
    pub fn unbuilt(&self) -> Option<&'static str> {
        match self {
            Self::Create(CreateVCluster { settings, .. }) | Self::SetConfig(SetVCluster { settings, .. }) => settings.unbuilt(),
            Self::SetWeights(_) => Some("set-weights"),
            Self::List | Self::Show(_) | Self::Delete(_) => None,
        }
    }
}

#[derive(Args)]
pub struct VClusterName {
    /// The vCluster
    #[arg(value_name = "NAME", required_unless_present = "named")]
    name: Option<String>,
    #[arg(long = "name", value_name = "NAME", hide = true, conflicts_with = "name")]
    named: Option<String>,
}

impl VClusterName {
    pub fn get(self) -> String {
        self.name.or(self.named).unwrap_or_default()
    }
}

#[derive(Args)]
pub struct CreateVCluster {
    #[command(flatten)]
    pub name: VClusterName,
    /// How its queue is scheduled: hpc-backfill (reservations for those that wait first; others overtake them where that
    /// delays none) or interactive-fifo (first come, first served)
    #[arg(long, alias = "scheduler-type", value_name = "KIND")]
    pub scheduler: String,
    #[command(flatten)]
    pub settings: VClusterSettings,
}

#[derive(Args)]
pub struct SetVCluster {
    #[command(flatten)]
    pub name: VClusterName,
    #[command(flatten)]
    pub settings: VClusterSettings,
}

#[derive(Args)]
pub struct VClusterSettings {
    /// Take only the work of this tenant; `none`: of all tenants
    #[arg(long, value_name = "NAME|none")]
    pub tenant: Option<String>,
    /// All nodes that belong only to this vCluster, such as n1,n2 or n[1-8]; `none`: it uses the nodes of the vCluster
    /// "default"
    #[arg(long, value_name = "HOSTLIST|none")]
    pub nodes: Option<String>,
    #[arg(long, hide = true)]
    cycle_interval: Option<String>,
    #[arg(long, hide = true)]
    description: Option<String>,
    #[arg(long, hide = true, num_args = 0..=1)]
    borrow: Option<Option<String>>,
}

impl VClusterSettings {
    fn unbuilt(&self) -> Option<&'static str> {
        let given = [
            ("--cycle-interval", self.cycle_interval.is_some()),
            ("--description", self.description.is_some()),
            ("--borrow", self.borrow.is_some()),
        ];
        given.into_iter().find(|(_, set)| *set).map(|(flag, _)| flag)
    }
}

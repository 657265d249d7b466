//! `lattice vcluster …` and `lattice admin vcluster …`.

use super::rest::Rest;
use clap::{Args, Subcommand};

#[derive(Args)]
pub struct VCluster {
    #[command(subcommand)]
    pub what: VClusterCommand,
}

#[derive(Subcommand)]
pub enum VClusterCommand {
    /// Every vCluster: its tenant, its nodes, how much waits and runs, and whose agent serves it
    List,
    /// What waits in one, the next one first
    Queue(VClusterQueue),
}

#[derive(Args)]
pub struct VClusterQueue {
    /// The vCluster
    #[arg(default_value = lattice_model::DEFAULT_VCLUSTER)]
    pub name: String,
}

const VCLUSTER_EXAMPLES: &str = "Examples:
  lattice admin vcluster create --name debug --scheduler interactive-fifo --nodes n[1-4]
      a queue of its own on four nodes that no other queue uses from now on
  lattice admin vcluster create --name physics --scheduler interactive-fifo --tenant physics
      one for a tenant's work alone, placed on the nodes that are no vCluster's own
  lattice admin vcluster set-config --name debug --nodes n[1-6]
      all that are to be its own; what runs on others goes on there

The vCluster default always exists: it has the work that names none, and the nodes that are no other one's.";

#[derive(Args)]
#[command(after_help = VCLUSTER_EXAMPLES)]
pub struct VClusterAdmin {
    #[command(subcommand)]
    pub what: AdminVCluster,
}

#[derive(Subcommand)]
pub enum AdminVCluster {
    /// Create a vCluster
    Create(CreateVCluster),
    /// Change its tenant or its nodes; what waits or runs already stays
    SetConfig(SetVCluster),
    /// Every vCluster
    List,
    /// One vCluster
    Show(VClusterName),
    /// Forget a vCluster that has no work; its nodes are the default's then
    Delete(VClusterName),
    #[command(hide = true, disable_help_flag = true)]
    SetWeights(Rest),
}

impl AdminVCluster {
    /// What of it the documents have and this version has not.
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
    /// How its queue is served: interactive-fifo (first come first served)
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
    /// The tenant whose work alone it takes [none: everybody's]
    #[arg(long, value_name = "NAME|none")]
    pub tenant: Option<String>,
    /// All nodes that are its own, such as n1,n2 or n[1-8] [none: it shares the default's]
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

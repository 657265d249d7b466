//! `lattice admin …`: what it is about, and the limits of the whole cluster.

use super::network::AdminNetwork;
use super::node::{Drain, Node, OnNodes};
use super::quorum::Quorum;
use super::tenant::{Quota, Tenant, quota};
use super::vcluster::VClusterAdmin;
use clap::{Args, Subcommand};

#[derive(Args)]
pub struct Admin {
    #[command(subcommand)]
    pub what: AdminCommand,
}

#[derive(Subcommand)]
pub enum AdminCommand {
    /// Who work is accounted to (--tenant), and how much of the cluster it may have at once
    Tenant(Tenant),
    /// Queues with a scheduler and nodes of their own
    #[command(name = "vcluster")]
    VCluster(VClusterAdmin),
    /// The VNIs of network domains
    Network(AdminNetwork),
    /// Show the limits of the whole cluster, or change them
    Limits(SetLimits),
    #[command(hide = true)]
    Raft(Quorum),
    // As the documents write them: the same as under `lattice node`.
    #[command(hide = true)]
    Drain(Drain),
    #[command(hide = true)]
    Undrain(OnNodes),
    #[command(hide = true)]
    Node(Node),
}

#[derive(Args)]
pub struct SetLimits {
    /// Nodes of the whole cluster that may be claimed for sensitive use
    #[arg(long, value_name = "N")]
    pub sensitive_pool_size: Option<u32>,
    /// Without that limit
    #[arg(long, conflicts_with = "sensitive_pool_size")]
    pub no_sensitive_pool_size: bool,
    /// A user's allocations that wait or are suspended [none: no limit]
    #[arg(long, value_name = "N|none", value_parser = quota)]
    pub user_pending: Option<Quota>,
    /// A user's allocations that hold nodes at once (Staging or Running); further ones wait [none: no limit]
    #[arg(long, value_name = "N|none", value_parser = quota)]
    pub user_running: Option<Quota>,
    /// What a user may submit in a second, for long; a hundred times as much at once [none: no limit]
    #[arg(long, value_name = "N|none", value_parser = quota)]
    pub user_submissions_per_second: Option<Quota>,
    /// Bytes of a user's scripts, each text once, for which ended work is forgotten [none: no limit]
    #[arg(long, value_name = "N|none", value_parser = quota)]
    pub user_script_bytes: Option<Quota>,
    /// A user's ended allocations that are still shown [none: a share of the 10,000 of all users]
    #[arg(long, value_name = "N|none", value_parser = quota)]
    pub user_history: Option<Quota>,
    /// A tenant's allocations that wait or are suspended [none: no limit]
    #[arg(long, value_name = "N|none", value_parser = quota)]
    pub tenant_pending: Option<Quota>,
}

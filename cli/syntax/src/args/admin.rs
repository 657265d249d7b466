//! `lattice admin …`: its subcommands, and the limits of the whole cluster.

use super::accounting::Accounting;
use super::network::AdminNetwork;
use super::node::{Drain, Node, OnNodes};
use super::project::ProjectAdmin;
use super::quorum::Quorum;
use super::reservation::ReservationAdmin;
use super::role::RoleAdmin;
use super::tenant::{Quota, Tenant};
use super::token::TokenAdmin;
use super::trace::Trace;
use super::ttl::parse_ttl;
use super::vcluster::VClusterAdmin;
use clap::{Args, Subcommand, ValueEnum};
use lattice_model::access::RootMay;
use lattice_model::{BudgetPeriod, DagSize, SharePolicy};
use std::time::Duration;

#[derive(Args)]
pub struct Admin {
    #[command(subcommand)]
    pub command: AdminCommand,
}

#[derive(Subcommand)]
pub enum AdminCommand {
    /// Grant roles to accounts and groups, and revoke them
    Role(RoleAdmin),
    /// Issue tokens with which programs call the API over the network, and revoke them
    Token(TokenAdmin),
    /// Manage tenants (--tenant): their members, how much of the cluster each may use at once, and how much is meant
    /// for it
    Tenant(Tenant),
    /// Manage the projects of tenants (--project): which there are, and whose work each takes
    Project(ProjectAdmin),
    /// Manage vClusters: queues, each with a scheduler and, if wanted, nodes of its own
    #[command(name = "vcluster")]
    VCluster(VClusterAdmin),
    /// Set nodes aside for a time: for work of some people (--reservation), or for maintenance
    Reservation(ReservationAdmin),
    /// Manage the VNIs of network domains
    Network(AdminNetwork),
    /// Show the limits of the whole cluster, or change them
    Limits(SetLimits),
    /// Show the store of ended work, export it, move to another one
    Accounting(Accounting),
    /// Record what was submitted and when it ended, to try other weights on it
    Trace(Trace),
    #[command(hide = true)]
    Raft(Quorum),
    // The documents' names for commands of `lattice node`.
    #[command(hide = true)]
    Drain(Drain),
    #[command(hide = true)]
    Undrain(OnNodes),
    #[command(hide = true)]
    Node(Node),
}

#[derive(Args)]
pub struct SetLimits {
    /// Limit of the nodes that may be claimed for sensitive use in the whole cluster
    #[arg(long, value_name = "N")]
    pub sensitive_pool_size: Option<u32>,
    /// Remove that limit
    #[arg(long, conflicts_with = "sensitive_pool_size")]
    pub no_sensitive_pool_size: bool,
    /// How many allocations of a user may wait or be suspended; `none`: no limit
    #[arg(long, value_name = "N|none")]
    pub user_pending: Option<Quota>,
    /// How many allocations of a user may have nodes at once (Staging or Running); others wait; `none`: no limit
    #[arg(long, value_name = "N|none")]
    pub user_running: Option<Quota>,
    /// How many allocations a user may submit per second on average; a hundred times as many at once; `none`: no limit
    #[arg(long, value_name = "N|none")]
    pub user_submissions_per_second: Option<Quota>,
    /// How many bytes of a user's scripts are stored (equal scripts once); ended work is forgotten to stay below the
    /// limit; `none`: no limit
    #[arg(long, value_name = "N|none")]
    pub user_script_bytes: Option<Quota>,
    /// How many ended allocations of a user are kept and shown; `none`: a share of the memory for all users
    /// (--ended-memory)
    #[arg(long, value_name = "N|none")]
    pub user_history: Option<Quota>,
    /// How many allocations of a tenant may wait or be suspended; `none`: no limit
    #[arg(long, value_name = "N|none")]
    pub tenant_pending: Option<Quota>,
    /// How many days the budgets of tenants look back, today included (1 to 366); use before that is forgotten
    #[arg(long, value_name = "DAYS", value_parser = clap::value_parser!(u32).range(1..=i64::from(BudgetPeriod::DAYS_MAX)))]
    pub budget_period_days: Option<u32>,
    /// Whose shares (--cores, --mem, --gpus) a node may hold at a time; work that runs is not ended
    #[arg(long, value_name = "WHOSE")]
    pub share_policy: Option<WhoseShares>,
    /// How long ended work is kept and shown (1h to 366d, 7d at first), if --ended-memory suffices
    #[arg(long, value_name = "TIME", value_parser = parse_ttl)]
    pub ended_kept: Option<Duration>,
    /// How much memory the records of ended work may have in each member (1M to 64G, 256M at first); beyond it, the
    /// oldest work of the user who has most is forgotten
    #[arg(long, value_name = "SIZE", value_parser = crate::memory::parse)]
    pub ended_memory: Option<u64>,
    /// How many steps a DAG may have (1 to 10000, 1000 at first)
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=i64::from(DagSize::STEPS_MAX)))]
    pub dag_size: Option<u32>,
    /// For whom root acts on machines whose agents serve users
    #[arg(long, value_name = "WHOM")]
    pub root_acts_for: Option<RootActsFor>,
}

/// `--share-policy`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum WhoseShares {
    /// Everybody's (the default)
    Anyone,
    /// One tenant's; work without a tenant shares only with such work of the same user
    Tenant,
    /// One user's
    User,
}

impl WhoseShares {
    /// The policy in the cluster's limits.
    pub fn to_model(self) -> SharePolicy {
        match self {
            Self::Anyone => SharePolicy::Anyone,
            Self::Tenant => SharePolicy::Tenant,
            Self::User => SharePolicy::User,
        }
    }
}

/// `--root-acts-for`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum RootActsFor {
    /// For every user (the default): it shows, changes and cancels everybody's work
    Everybody,
    /// For itself: it may do what any user may, and what a role of user:root lets it do
    Itself,
}

impl RootActsFor {
    /// The value in the cluster's limits.
    pub fn to_model(self) -> RootMay {
        match self {
            Self::Everybody => RootMay::ActForEverybody,
            Self::Itself => RootMay::ActForItself,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_values_for_root_are_named_as_in_the_limits() {
        for value in RootActsFor::value_variants() {
            let typed = value.to_possible_value().map(|possible| possible.get_name().to_owned());
            assert_eq!(typed.as_deref(), Some(value.to_model().name()));
        }
    }
}

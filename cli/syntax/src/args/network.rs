//! `lattice network …` and `lattice admin network …`.

use super::of_tenant::{NamedOfTenant, OfTenant};
use super::ttl::parse_ttl;
use clap::{Args, Subcommand};
use std::time::Duration;

#[derive(Args)]
pub struct Network {
    #[command(subcommand)]
    pub command: NetworkCommand,
}

#[derive(Subcommand)]
pub enum NetworkCommand {
    /// List the network domains that have a VNI now
    List(OfTenant),
    /// Show one network domain and its allocations
    Status(NamedOfTenant),
}

#[derive(Args)]
pub struct AdminNetwork {
    #[command(subcommand)]
    pub command: AdminNetworkCommand,
}

#[derive(Subcommand)]
pub enum AdminNetworkCommand {
    /// Show the pool of VNIs, or change it; a domain keeps the VNI that it has
    Pool(VniPool),
    /// Set how long one domain keeps its VNI when it has no work
    SetGrace(SetGrace),
}

#[derive(Args)]
pub struct SetGrace {
    /// The domain
    #[arg(long, value_name = "NAME")]
    pub domain: String,
    /// The tenant of the domain [default: that of your submissions]
    #[arg(long, value_name = "NAME")]
    pub tenant: Option<String>,
    /// How long it keeps its VNI without work, at most 7d (a bare number is seconds)
    #[arg(long, value_name = "TIME", value_parser = parse_ttl)]
    pub grace: Duration,
}

#[derive(Args)]
pub struct VniPool {
    /// The first VNI; those below 1000 are reserved [default: unchanged; 1000 in a new cluster]
    #[arg(long, value_name = "VNI")]
    pub start: Option<u32>,
    /// The last VNI, at most 65535 [default: unchanged; 4095 in a new cluster]
    #[arg(long, value_name = "VNI")]
    pub end: Option<u32>,
    /// How long domains keep their VNI without work, at most 7d (a bare number is seconds) [default: unchanged; 5m in a
    /// new cluster]
    #[arg(long, value_name = "TIME", value_parser = parse_ttl)]
    pub grace: Option<Duration>,
}

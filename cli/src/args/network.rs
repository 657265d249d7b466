//! `lattice network …` and `lattice admin network …`.

use super::of_tenant::{NamedOfTenant, OfTenant};
use super::ttl::ttl;
use clap::{Args, Subcommand};
use std::time::Duration;

#[derive(Args)]
pub struct Network {
    #[command(subcommand)]
    pub what: NetworkCommand,
}

#[derive(Subcommand)]
pub enum NetworkCommand {
    /// The domains that have a VNI now
    List(OfTenant),
    /// One of them, with its allocations
    Status(NamedOfTenant),
}

#[derive(Args)]
pub struct AdminNetwork {
    #[command(subcommand)]
    pub what: AdminNetworkCommand,
}

#[derive(Subcommand)]
pub enum AdminNetworkCommand {
    /// Show the pool, or change it; a domain keeps the number that it has
    Pool(VniPool),
    /// How long one domain keeps its VNI without work, until it is released
    SetGrace(SetGrace),
}

#[derive(Args)]
pub struct SetGrace {
    /// The domain
    #[arg(long, value_name = "NAME")]
    pub domain: String,
    /// Of this tenant [default: that of your submissions]
    #[arg(long, value_name = "NAME")]
    pub tenant: Option<String>,
    /// At most 7d
    #[arg(long, value_name = "TIME", value_parser = ttl)]
    pub grace: Duration,
}

#[derive(Args)]
pub struct VniPool {
    /// The first VNI [1000 at the beginning; lower ones are reserved]
    #[arg(long, value_name = "VNI")]
    pub start: Option<u32>,
    /// The last VNI [4095 at the beginning; at most 65535]
    #[arg(long, value_name = "VNI")]
    pub end: Option<u32>,
    /// How long a domain keeps its VNI without work [5m at the beginning; at most 7d]
    #[arg(long, value_name = "TIME", value_parser = ttl)]
    pub grace: Option<Duration>,
}

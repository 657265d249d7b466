//! `lattice lease …`.

use super::ttl::parse_ttl;
use clap::{Args, Subcommand};
use std::time::Duration;

const LEASE_EXAMPLES: &str = "Examples:
  token=$(lattice lease grant nightly-build --ttl 30s -o name)
      take it, for this user on this node; the same command again gives the same
      token
  lattice lease renew nightly-build --token $token
      do this again and again, in time; exit code 4 means that it is lost: stop
  lattice lease release nightly-build --token $token

A lease has one holder at a time. Its token grows with every new grant: hand it
to what the lease protects, and have that refuse older tokens. A cordoned or
quarantined node gets no lease and renews none.";

#[derive(Args)]
#[command(after_help = LEASE_EXAMPLES)]
pub struct Lease {
    #[command(subcommand)]
    pub command: LeaseCommand,
}

#[derive(Subcommand)]
pub enum LeaseCommand {
    /// Take a lease, and print its token
    Grant(LeaseGrant),
    /// Renew a lease for its whole time
    Renew(LeaseToken),
    /// Give a lease back
    Release(LeaseToken),
    /// Take leases away from whoever holds them (operators)
    Revoke(LeaseRevoke),
    /// List the leases and their holders
    List(LeaseList),
}

#[derive(Args)]
pub struct LeaseGrant {
    /// The name of the lease
    pub name: String,
    /// How long it lasts unless it is renewed: 1s to 1h (a bare number is seconds)
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = parse_ttl)]
    pub ttl: Duration,
}

#[derive(Args)]
pub struct LeaseToken {
    /// The name of the lease
    pub name: String,
    /// The token that `grant` printed
    #[arg(long, value_name = "N")]
    pub token: u64,
}

#[derive(Args)]
pub struct LeaseRevoke {
    /// The leases
    #[arg(required_unless_present = "problem", conflicts_with = "problem")]
    pub names: Vec<String>,
    /// Revoke all leases whose node is under a hold, Down, or not registered
    #[arg(long)]
    pub problem: bool,
}

#[derive(Args)]
pub struct LeaseList {
    /// Show only leases whose node is under a hold, Down, or not registered
    #[arg(long)]
    pub problem: bool,
    /// After the list, print a line for each grant and each end; renewals are not shown
    #[arg(short, long, conflicts_with = "problem")]
    pub watch: bool,
}

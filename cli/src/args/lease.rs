//! `lattice lease …`.

use super::ttl::ttl;
use clap::{Args, Subcommand};
use std::time::Duration;

const LEASE_EXAMPLES: &str = "Examples:
  token=$(lattice lease grant nightly-build --ttl 30s -o name)
      take it, for this user at this machine's node; the same again gives the same token
  lattice lease renew nightly-build --token $token
      in time, again and again; exit code 4 means that it is lost: stop
  lattice lease release nightly-build --token $token

A lease has one holder at a time. Its token rises with every new grant: hand it to what you guard, and let that refuse
older ones. A cordoned or quarantined node gets no lease and renews none.";

#[derive(Args)]
#[command(after_help = LEASE_EXAMPLES)]
pub struct Lease {
    #[command(subcommand)]
    pub what: LeaseCommand,
}

#[derive(Subcommand)]
pub enum LeaseCommand {
    /// Take a lease; its token is the answer
    Grant(LeaseGrant),
    /// Give it its whole time again
    Renew(LeaseToken),
    /// Give it back
    Release(LeaseToken),
    /// Take leases away from whoever holds them (operators)
    Revoke(LeaseRevoke),
    /// Who holds what
    List(LeaseList),
}

#[derive(Args)]
pub struct LeaseGrant {
    /// What it is about
    pub name: String,
    /// How long it lives unless it is renewed: 1s to 1h
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = ttl)]
    pub ttl: Duration,
}

#[derive(Args)]
pub struct LeaseToken {
    /// The lease
    pub name: String,
    /// What the grant answered
    #[arg(long, value_name = "N")]
    pub token: u64,
}

#[derive(Args)]
pub struct LeaseRevoke {
    /// The leases
    #[arg(required_unless_present = "bad", conflicts_with = "bad")]
    pub names: Vec<String>,
    /// All whose holder is held, Down or not registered
    #[arg(long)]
    pub bad: bool,
}

#[derive(Args)]
pub struct LeaseList {
    /// Only those whose holder is held, Down or not registered
    #[arg(long)]
    pub bad: bool,
    /// Then a line for each grant and each end; renewals are no changes
    #[arg(short, long, conflicts_with = "bad")]
    pub watch: bool,
}

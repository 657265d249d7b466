//! `lattice service …`.

use super::of_tenant::{NamedOfTenant, OfTenant};
use clap::{Args, Subcommand};

const SERVICE_EXAMPLES: &str = "Examples:
  lattice submit --service --expose api:8080/http serve.sh
      offers port 8080 of its nodes as \"api\" while it runs
  curl http://$(lattice service lookup api -o name | head -1)/
      its address, also from inside other work of the tenant

Lattice does not check whether something listens there. --liveness-probe ends
work that stops serving, and its addresses with it.";

#[derive(Args)]
#[command(after_help = SERVICE_EXAMPLES)]
pub struct Service {
    #[command(subcommand)]
    pub command: ServiceCommand,
}

#[derive(Subcommand)]
pub enum ServiceCommand {
    /// List the services that running work offers
    List(OfTenant),
    /// Show the addresses of a service
    Lookup(NamedOfTenant),
}

//! `lattice admin tenant member …`.

use clap::{Args, Subcommand};
use lattice_model::access::SubjectName;

const MEMBER_EXAMPLES: &str = "Examples:
  lattice admin tenant member add physics group:physics --default
      work of this group that names no tenant belongs to physics from now on
  lattice admin tenant member add physics user:alice
  lattice admin tenant member remove physics alice
  lattice admin tenant member list physics

A tenant that never had members takes work from everybody. From the first member
on it takes new work from its members and its admins alone; when the last member
is removed, from its admins alone. Work that was submitted before stays.

SUBJECT is user:NAME or group:NAME; a NAME alone is an account. The agent that
serves the command looks up its number.

Admins of the tenant add and remove accounts. Groups and --default are for
system admins, as they decide about work of other tenants, too. Operators may
also list members. `lattice whoami` shows an account's own tenants.";

#[derive(Args)]
#[command(after_help = MEMBER_EXAMPLES)]
pub struct TenantMembers {
    #[command(subcommand)]
    pub command: MemberCommand,
}

#[derive(Subcommand)]
pub enum MemberCommand {
    /// Make an account or a group a member of a tenant
    Add(AddTenantMember),
    /// Remove a member from a tenant
    Remove(MemberOfTenant),
    /// List the members of a tenant
    List(MembersOfTenant),
}

#[derive(Args)]
pub struct AddTenantMember {
    #[command(flatten)]
    pub member: MemberOfTenant,
    /// Make the tenant its default: work that names no tenant belongs to it, and not to an earlier default (system admins)
    #[arg(long)]
    pub default: bool,
}

#[derive(Args)]
pub struct MemberOfTenant {
    /// The tenant
    #[arg(value_name = "TENANT")]
    pub tenant: String,
    /// The member: user:NAME, group:NAME, or NAME for an account
    #[arg(value_name = "SUBJECT")]
    pub subject: SubjectName,
}

#[derive(Args)]
pub struct MembersOfTenant {
    /// The tenant
    #[arg(value_name = "TENANT")]
    pub tenant: String,
}

//! `lattice admin tenant …`.

use clap::{Args, Subcommand};
use std::str::FromStr;
use thiserror::Error;

#[derive(Args)]
pub struct Tenant {
    #[command(subcommand)]
    pub command: TenantCommand,
}

#[derive(Subcommand)]
pub enum TenantCommand {
    /// Create a tenant; without quotas it has no limits
    Create(SetTenant),
    /// Change the quotas of a tenant; work that runs continues, even above a lower quota
    #[command(alias = "set-quota")]
    Update(SetTenant),
    /// List the tenants, their quotas, and how much of them is in use
    List,
    /// Show one tenant
    Show(ShowTenant),
    /// Delete a tenant that has no work; work under its name then has no quotas
    Delete(TenantName),
}

#[derive(Args)]
pub struct TenantName {
    /// The tenant
    #[arg(value_name = "NAME", required_unless_present = "named")]
    name: Option<String>,
    #[arg(long = "name", value_name = "NAME", hide = true, conflicts_with = "name")]
    named: Option<String>,
}

impl TenantName {
    pub fn get(self) -> String {
        self.name.or(self.named).unwrap_or_default()
    }
}

#[derive(Args)]
pub struct ShowTenant {
    #[command(flatten)]
    pub name: TenantName,
    #[arg(long, hide = true)]
    quotas: bool,
}

#[derive(Args)]
pub struct SetTenant {
    #[command(flatten)]
    pub name: TenantName,
    /// How many nodes all of its allocations may have at once; `none`: no limit
    #[arg(long, value_name = "N|none")]
    pub max_nodes: Option<Quota>,
    /// How many of its allocations may have nodes at once; `none`: no limit
    #[arg(long, value_name = "N|none")]
    pub max_concurrent_allocations: Option<Quota>,
}

/// A quota as it is typed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Quota {
    Unlimited,
    AtMost(u32),
}

/// The text is not a quota.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("write a number, or none")]
pub struct QuotaError;

impl FromStr for Quota {
    type Err = QuotaError;

    fn from_str(text: &str) -> Result<Self, QuotaError> {
        match text {
            "none" => Ok(Self::Unlimited),
            number => number.parse().map(Self::AtMost).map_err(|_| QuotaError),
        }
    }
}

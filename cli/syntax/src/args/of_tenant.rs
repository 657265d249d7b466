//! Options that select one tenant or all, for commands about what tenants own.

use clap::Args;

#[derive(Args)]
pub struct OfTenant {
    /// Only those of this tenant [default: the tenant of your submissions, else the tenants of your allocations; for
    /// operators: all]
    #[arg(long, value_name = "NAME")]
    pub tenant: Option<String>,
    /// Those of all tenants that you may see, even if a tenant is set for your submissions
    #[arg(short, long, conflicts_with = "tenant")]
    pub all: bool,
}

#[derive(Args)]
pub struct NamedOfTenant {
    /// The name of the network domain or service
    pub name: String,
    #[command(flatten)]
    pub of: OfTenant,
}

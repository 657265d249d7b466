//! `lattice usage`.

use clap::Args;

#[derive(Args)]
pub struct Usage {
    /// The use of this tenant [default: your own use, and that of the tenant of your submissions]
    #[arg(long, value_name = "NAME")]
    pub tenant: Option<String>,
    /// The use of this project of the tenant
    #[arg(long, value_name = "NAME")]
    pub project: Option<String>,
    /// The use of this user
    #[arg(short, long, value_name = "NAME")]
    pub user: Option<String>,
    /// How many days to look back, today (UTC) included [default: the budget period, which is also the most]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub days: Option<u32>,
}

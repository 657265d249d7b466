//! `lattice admin limits`.

use crate::args::admin::SetLimits;
use crate::failure::Failure;
use crate::output::{Format, print, print_names};
use crate::session::{Session, answer};
use crate::table::block;
use lattice_api::v1;
use lattice_api::v1::quota_change::To;

pub async fn run(session: &Session, args: SetLimits) -> Result<(), Failure> {
    let client = session.connect().await?;
    let to = if args.no_sensitive_pool_size { Some(To::Unlimited(true)) } else { args.sensitive_pool_size.map(To::AtMost) };
    let limits = match to {
        None => answer(client.admin().get_limits(v1::GetLimitsRequest {})).await?,
        Some(to) => {
            let sensitive_pool_size = Some(v1::QuotaChange { to: Some(to) });
            answer(client.admin().set_limits(v1::SetLimitsRequest { sensitive_pool_size })).await?
        }
    };
    let shown = limits.sensitive_pool_size.map_or_else(|| "none".to_owned(), |limit| limit.to_string());
    match session.format() {
        Format::Table => {
            print(&block(&[("Sensitive pool size", shown), ("Nodes claimed for sensitive use", limits.sensitive_nodes.to_string())]))
        }
        Format::Data(notation) => notation
            .print(&serde_json::json!({ "sensitive_pool_size": limits.sensitive_pool_size, "sensitive_nodes": limits.sensitive_nodes })),
        Format::Name => print_names([shown.as_str()]),
    }
}

//! `lattice audit verify`.

use crate::failure::Failure;
use crate::output::{Format, print, print_json, print_names};
use crate::session::{Session, answer};
use lattice_api::v1;

/// A chain that does not hold is an error of the call.
pub async fn run(session: &Session) -> Result<(), Failure> {
    let client = session.connect().await?;
    let verified = answer(client.admin().verify_audit(v1::VerifyAuditRequest {})).await?;
    match session.format() {
        Format::Table => print(&format!("The audit log holds: {} records, head {}\n", verified.records, verified.head)),
        Format::Json => print_json(&serde_json::json!({ "records": verified.records, "head": verified.head })),
        Format::Name => print_names([verified.head.as_str()]),
    }
}

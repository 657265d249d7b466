//! Some records, by filter, in the order of the chain.

use super::{PAGE_BYTES_MAX, STEP};
use crate::store::audit::Step;
use crate::store::machine::{Agreed, AuditError};
use lattice_model::{AuditFilter, AuditRecord};
use lattice_quorum_client::wire::AuditFound;
use std::time::Instant;

/// The records behind `after`, up to `upto` (0: to the chain's end), that fit `filter`: at most `limit`, and what one step
/// reaches. Reads the disk: call it where blocking is allowed.
pub fn page(agreed: &Agreed, filter: &AuditFilter, after: u64, upto: u64, limit: usize) -> Result<AuditFound, AuditError> {
    let began = Instant::now();
    let end = agreed.ledger().audit_head().seq;
    let end = if upto == 0 { end } else { upto.min(end) };
    let mut page = AuditFound { records: Vec::new(), upto: after.min(end), end };
    let mut bytes = 0;
    let mut search = agreed.audit_search(filter, page.upto, end);
    while let Some(step) = search.step().map_err(|source| AuditError::Read { seq: search.reached() + 1, source })? {
        if let Step::Found(record) = step {
            bytes += bytes_about(&record);
            page.records.push(*record);
        }
        page.upto = search.reached();
        if page.records.len() >= limit || bytes >= PAGE_BYTES_MAX || began.elapsed() >= STEP {
            return Ok(page);
        }
    }
    page.upto = end;
    Ok(page)
}

/// About how many bytes a record takes in a message.
fn bytes_about(record: &AuditRecord) -> usize {
    384 + record.actor.len() + record.owner.as_ref().map_or(0, String::len) + record.detail.len()
}

//! Pages of records that match a filter, in the order of the chain.

use super::visible::VisibleTo;
use super::{PAGE_BYTES_MAX, STEP};
use lattice_model::{AuditFilter, AuditRecord};
use lattice_quorum_client::wire::AuditFound;
use lattice_store::audit::Step;
use lattice_store::machine::{Agreed, AuditError};
use std::time::Instant;

/// The records after `after`, up to `upto` (0: to the end of the chain), that match `filter` and are
/// visible to the user (`None`: an operator, who sees all): at most `limit`, and no more than one step
/// reads, but at least up to one further record. A user's records have no `previous`: that is the hash
/// of a record that may be another user's. Begins with the first record on this disk. The page's `upto`
/// also advances past records that are not visible. Reads the disk: call it where blocking is allowed.
pub fn page(
    agreed: &Agreed,
    filter: &AuditFilter,
    visible: Option<&VisibleTo>,
    after: u64,
    upto: u64,
    limit: usize,
) -> Result<AuditFound, AuditError> {
    let began = Instant::now();
    let end = agreed.audit_head().seq;
    let end = if upto == 0 { end } else { upto.min(end) };
    let base = agreed.audit_base().seq;
    let mut page = AuditFound { records: Vec::new(), upto: after.max(base).min(end), end, begins: base + 1, archive: String::new() };
    let mut bytes = 0;
    let narrowed = visible.map_or_else(|| filter.clone(), |visible| visible.narrowed(filter));
    let is_visible = |record: &AuditRecord| {
        visible.is_none_or(|visible| filter.matches(record) && visible.includes(record, |id| agreed.ledger().allocation(id).cloned()))
    };
    let from = page.upto;
    let mut search = agreed.audit_search(&narrowed, from, end);
    while let Some(step) = search.step().map_err(|source| agreed.unreadable(search.reached() + 1, source))? {
        if let Step::Found(mut record) = step
            && is_visible(&record)
        {
            if visible.is_some() {
                record.previous.clear();
            }
            bytes += bytes_about(&record);
            page.records.push(*record);
        }
        page.upto = search.reached();
        // A caller that gets no further would repeat the same step: an index may take longer to create.
        let is_late = page.upto > from && began.elapsed() >= STEP;
        if page.records.len() >= limit || bytes >= PAGE_BYTES_MAX || is_late {
            return Ok(page);
        }
    }
    page.upto = end;
    Ok(page)
}

/// Approximate size of a record in a message, in bytes.
fn bytes_about(record: &AuditRecord) -> usize {
    384 + record.actor.len() + record.owner.as_ref().map_or(0, String::len) + record.detail.len()
}

//! Signed exports of the audit log as evidence: pages of records, each signed as a whole by the
//! member that read them.
//!
//! A page is a JSON text, and the signature covers its exact bytes, so verification needs no rules
//! about white space or field order. A page states which part of the chain was searched with which
//! filter, so that consecutive pages prove that nothing was left out between them. `docs/audit.md`
//! describes the format and contains a program that verifies it.

use super::page::page;
use super::signer::Signer;
use lattice_model::{AuditFilter, AuditRecord, MemberId, Timestamp};
use lattice_quorum_client::wire::SignedPage;
use lattice_store::machine::{Agreed, AuditError};
use serde::Serialize;

/// The name and version of the format.
pub const FORMAT: &str = "lattice-audit-export/1";
/// Largest number of records in one page.
const PAGE_RECORDS_MAX: usize = 10_000;

/// The signed content.
#[derive(Serialize)]
struct Body<'a> {
    format: &'static str,
    cluster: &'a str,
    member: MemberId,
    /// When the page was made, in milliseconds since 1970.
    at: Timestamp,
    filter: &'a AuditFilter,
    /// The first record on the member's disk: the export begins there, and earlier records are in the
    /// archive.
    begins: u64,
    /// The page contains all matching records after this one …
    after: u64,
    /// … up to this one …
    upto: u64,
    /// … of an export that ends with this one.
    end: u64,
    records: &'a [AuditRecord],
}

/// One page of an export. Reads the disk: call it where blocking is allowed.
pub fn signed_page(
    agreed: &Agreed,
    signer: &Signer,
    at: Timestamp,
    filter: &AuditFilter,
    after: u64,
    end: u64,
) -> Result<SignedPage, AuditError> {
    let found = page(agreed, filter, None, after, end, PAGE_RECORDS_MAX)?;
    // The first page begins with the first record on this disk.
    let after = if after == 0 { found.begins - 1 } else { after };
    if after + 1 < found.begins {
        return Err(AuditError::Pruned { begins: found.begins });
    }
    let cluster = agreed.ledger().cluster().to_owned();
    let (member, upto, end) = (signer.member(), found.upto, found.end);
    let (begins, records) = (found.begins, &found.records);
    let body = Body { format: FORMAT, cluster: &cluster, member, at, filter, begins, after, upto, end, records };
    let body = serde_json::to_string(&body).expect("numbers, strings and unit variants always serialise");
    let signature = signer.sign(body.as_bytes());
    Ok(SignedPage { body, member, key: signer.public().to_owned(), signature, upto, end })
}

//! Reading the audit log: pages for people, verification of every hash and signature, signed
//! exports. Operators read everything; other users read the records that are `visible` to them, only
//! a few users at a time (`user_queries`).
//!
//! ```text
//!   ledger (pure) ──records──▶ store::audit ──▶ page    some records, by filter        lattice audit query
//!        ▲                                  ├─▶ walk    every hash, every signature    lattice audit verify
//!        │                                  ├─▶ export  pages, each signed whole       lattice audit export
//!        └── SignHead ── signer (leader)    └─▶ `audit_archive`: segments in an object store
//! ```
//!
//! A start reads only the seals of sealed segments; `audit_checks` reads the rest afterwards. Records
//! that the leader has read back from the archive (`confirmation`) are deleted on each member
//! (`audit_pruning`).
//!
//! A request may take longer than the timeout of a call: each step does what fits into [`STEP`], but
//! reads one further record at least, and returns where it stopped.

pub(crate) mod confirmation;
pub mod duty;
pub mod export;
pub mod page;
pub mod signer;
pub(crate) mod user_queries;
pub mod visible;
pub mod walk;

use std::time::Duration;

/// How long one step may read before it answers with its partial result.
pub const STEP: Duration = Duration::from_millis(800);
/// Approximate size of the records in one answer, in bytes.
const PAGE_BYTES_MAX: usize = 8 * 1024 * 1024;

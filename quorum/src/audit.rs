//! The audit log as it is read: pages for people, a walk over every link and signature, signed bundles.
//!
//! ```text
//!   ledger (pure) ──records──▶ store::audit ──▶ page    some records, by filter        lattice audit query
//!        ▲                                  ├─▶ walk    every link, every signature    lattice audit verify
//!        │                                  ├─▶ export  pages, each signed whole       lattice audit export
//!        └── SignHead ── signer (leader)    └─▶ `audit_archive`: segments in an object store
//! ```
//!
//! What is asked may take longer than an answer may: each step does what fits into [`STEP`] and says where it stopped.

pub mod duty;
pub mod export;
pub mod page;
pub mod signer;
pub mod walk;

use std::time::Duration;

/// How long one step may read before it answers with what it has.
pub const STEP: Duration = Duration::from_millis(800);
/// Bytes of records in one answer, about.
const PAGE_BYTES_MAX: usize = 8 * 1024 * 1024;

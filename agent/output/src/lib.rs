//! What work writes: files of its shim, spooled to a store, read from both.
//!
//! ```text
//!   shim's files ──▶ spool ──▶ log_store (objects)
//!        │  ▲ growth    │            │
//!        ╰──────────────┴──▶ logs ◀──╯     output_index: where which second is
//! ```

pub mod growth;
pub mod log_store;
pub mod logs;
pub mod output_index;
pub mod spool;

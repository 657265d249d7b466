//! The output of work: files written by its shim, spooled to a store, and read from both.
//!
//! ```text
//!   shim's files ──▶ spool ──▶ logs.store (objects)
//!        │  ▲ growth    │            │
//!        ╰──────────────┴──▶ logs ◀──╯     output_index: which bytes were written when
//!                                           steps: which launches began, and how they ended
//! ```

pub mod growth;
pub mod log_store;
pub mod logs;
pub mod output_index;
pub mod spool;
pub mod steps;

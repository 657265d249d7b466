//! Measures what work uses and does.
//!
//! ```text
//!   kernel_counts (programs in the kernel) ──▶ measuring (a thread) ──▶ alerting
//!                                                   ╰──▶ traces (in debug mode; audits come from agent::audit) ──▶ log store
//! ```

pub mod alerting;
pub mod kernel_counts;
pub mod measuring;
pub mod traces;

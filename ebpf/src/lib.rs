//! Counting in the kernel, for each allocation.
//!
//! ```text
//!   probes/ (Rust for the kernel) ── rebuild ──▶ probes.bpf.o (committed, embedded here)
//!                                                     │ load: each program alone
//!   types of the running kernel (btf) ── offsets ─────┤
//!                                                     ▼
//!   track(cgroup id) ──▶ map in the kernel, a set of sums for each processor ──▶ counts(cgroup id)
//! ```
//!
//! What is counted is in `shared/layout.rs`, which the programs include as well. A program that this kernel refuses, or whose types
//! are others than the program was written for, is not loaded and says why ([`Probe::why_not`]); the others count all the same.
//!
//! What is audited is told one by one, by programs that are loaded with the others and attached only while somebody asks for it
//! ([`Auditing`]); [`Events`] are what they tell.
//!
//! All that is loaded belongs to file descriptors of this process: however it ends, the kernel detaches and frees it, and nothing
//! is left behind. Who goes on counting an allocation after that has to keep what was counted.

mod audit;
mod btf;
mod calls;
mod cost;
mod loaded;
mod offsets;
mod probe;

#[path = "../shared/layout.rs"]
pub mod layout;

pub use audit::{AuditError, Auditing, Events, call_name};
pub use cost::{ClockError, Clocked, processors};
pub use loaded::{Counts, Probes, TrackError};
pub use probe::{LoadError, Probe};

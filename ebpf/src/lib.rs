//! Counters in the kernel for each allocation.
//!
//! ```text
//!   probes/ (Rust for the kernel) ── rebuild ──▶ probes.bpf.o (committed, embedded here)
//!                                                     │ load: each program separately
//!   types of the running kernel (btf) ── offsets ─────┤
//!                                                     ▼
//!   track(cgroup id) ──▶ map in the kernel, one set of sums for each processor ──▶ counts(cgroup id)
//! ```
//!
//! `shared/layout.rs` defines the counters; the kernel programs include it as well. A program is not loaded if this
//! kernel refuses it, or has other types than the program was written for; [`Probe::why_not`] gives the reason. The
//! other programs still count.
//!
//! Audits record single operations, by programs that are loaded with the others and attached only during an audit
//! ([`Auditing`]); [`Events`] reads the records.
//!
//! Everything that is loaded belongs to file descriptors of this process: however the process ends, the kernel detaches
//! and frees it, and nothing is left behind. To continue an allocation's counts after that, the caller must store them.

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

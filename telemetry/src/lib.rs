//! Measuring: what the work of each allocation uses, and the state of the node and of our own processes.
//!
//! ```text
//!   readers (cgroup v2, cgroup v1, procfs) ──▶ Usage ──▶ windows (pure) ─┐
//!   readers::Rapl, GPUs' drivers ──▶ energy (pure): joules of each allocation
//!   readers::Host (/proc), process (/proc/self) ─────────────────────────┼──▶ Samples ──▶ exposition ──▶ serve: /metrics
//!   parts of the process that count (Collect): gossip, journal, Raft … ──┘        │
//!                                                                                 └──▶ push: remote write, with a buffer on disk
//! ```
//!
//! Every metric is a [`catalogue::Family`] with unit, source and meaning: nothing else can be exported, and
//! `docs/metrics.md` is made of it ([`reference`]). What cannot be measured on a machine is absent, never 0.
//!
//! Nothing here decides anything, and nothing waits for it: a scrape, a push or a reader that fails loses only its own
//! numbers.

#![forbid(unsafe_code)]

pub mod alert;
pub mod catalogue;
pub mod energy;
pub mod exporter;
pub mod exposition;
pub mod histogram;
pub mod holding;
pub mod logging;
pub mod names;
pub mod process;
pub mod procfs;
pub mod push;
pub mod query;
pub mod readers;
pub mod reference;
pub mod sample;
pub mod serve;
pub mod settings;
pub mod usage;
pub mod window;

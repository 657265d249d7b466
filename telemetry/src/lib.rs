//! Measurement: the resource use of each allocation's work, and the state of the node and of our own processes.
//!
//! ```text
//!   readers (cgroup v2, cgroup v1, procfs) ──▶ Usage ──▶ windows (pure) ─┐
//!   readers::Rapl, GPUs' drivers ──▶ energy (pure): joules of each allocation
//!   readers::Host (/proc), process (/proc/self) ─────────────────────────┼──▶ Samples ──▶ exposition ──▶ serve
//!   counting parts of the process (Collect): gossip, journal, Raft … ────┘        │
//!                                                                                 └──▶ push: buffer on disk, store
//! ```
//!
//! Every metric is a [`catalogue::Family`] with unit, source and meaning: nothing else can be exported, and
//! `docs/metrics.md` is generated from it ([`reference`]). A value that a machine cannot measure is absent, never 0.
//!
//! Nothing here makes decisions, and nothing waits for it: a failing scrape, push or reader loses only its own values.

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

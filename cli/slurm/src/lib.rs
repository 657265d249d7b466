//! PURE: what Slurm's commands print, from the messages of `lattice.v1`: fields, formats, states, JSON.
//!
//! Nothing here asks an agent, reads a file or a clock: see [`context::Context`] for what comes from outside.
//!
//! ```text
//!   v1::Allocation, TaskRange ─▶ job ──────┬▶ squeue, scontrol_job, json
//!   v1::HistoryRecord ─────────▶           └▶ account (sacct)
//!   v1::JobStep ───────────────▶ step ─▶ squeue --steps, account, scontrol_step
//!   v1::Node, VCluster ────────▶ node, partition ─▶ sinfo, scontrol_node
//!   what the user asked for ───▶ format (-o, -O), listing (--format of sacct) ─▶ lines
//! ```

pub mod account;
pub mod array;
pub mod commands;
pub mod context;
pub mod file_name;
pub mod format;
pub mod job;
pub mod job_fields;
pub mod job_id;
pub mod json;
pub mod listing;
pub mod multi_prog;
pub mod node;
pub mod partition;
pub mod sacctmgr;
pub mod scontrol;
pub mod share;
pub mod sinfo;
pub mod sprio;
pub mod sstat;
pub mod state;
pub mod step;
pub mod task_exits;
pub mod time;
pub mod units;

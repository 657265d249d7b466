//! What a user may type: the command line of `lattice`, and the options in a script's lines. This crate parses it, or
//! refuses it with a remedy, without an agent.
//!
//! ```text
//!   command line ─▶ args ──────────▶ flags ─▶ the values of options: layout, memory, ...
//!     │  refused ─▶ mistyped            ▲
//!   script ───────▶ directives ─────────╯
//!   Slurm's names ▶ slurm ──────────────╯
//!   file of a DAG ▶ workflow ───────────╯ ──▶ specification ─▶ the message of a submission
//! ```

mod amounts;
pub mod args;
mod binding;
pub mod civil;
pub mod compat;
mod constraints;
mod data;
mod dependency;
pub mod directives;
pub mod files;
pub mod flags;
pub mod later;
pub mod layout;
mod memory;
pub mod mistyped;
mod network;
pub mod scaling;
pub mod shape;
mod share;
pub mod slurm;
pub mod slurm_args;
pub mod specification;
mod spread;
pub mod start_times;
pub mod tasks;
pub mod time;
mod unbuilt;
mod usage;
pub mod warning;
pub mod workflow;

pub use usage::UsageError;

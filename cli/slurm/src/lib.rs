//! PURE: what Slurm's commands print, from the messages of `lattice.v1`: fields, formats, states, JSON.
//!
//! Nothing here asks an agent or reads a file.

pub mod commands;
pub mod file_name;
pub mod job_id;
pub mod multi_prog;
pub mod task_exits;

//! The hardware and software of a node, and its condition.
//!
//! ```text
//!   hwloc, hardware, devices, adapters, questions     what is there
//!   gpu_statuses, gpu_loads, disk, bounds             its condition, and how much of it work may have
//!   health, conformance, wipe, hooks                  what keeps work off, and what the site runs around it
//!   data_plane, fabric, image_cache, mpirun, pmix     what work finds here
//!   facts, features                                   what the node publishes about itself
//! ```

pub mod adapters;
pub mod bounds;
pub mod conformance;
pub mod data_plane;
pub mod devices;
pub mod disk;
pub mod fabric;
pub mod facts;
pub mod features;
pub mod gpu_loads;
pub mod gpu_statuses;
pub mod hardware;
pub mod health;
pub mod hooks;
pub mod hwloc;
pub mod image_cache;
pub mod machine;
pub mod mpirun;
pub mod pmix;
pub mod questions;
pub mod unsupported;
pub mod wipe;

//! What all packages of the agent share: settings, the clock, small files, the state of the node
//! and of its session.

pub mod clock;
pub mod config;
pub mod driver_queue;
pub mod environment;
pub mod file_system;
pub mod files;
pub mod limits;
pub mod node_problems;
pub mod node_view;
pub mod readiness;
pub mod session_state;
pub mod setup;
pub mod tasks;
pub mod token_bucket;
pub mod user_quota;

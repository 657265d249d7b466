//! What all wings of the agent share: its settings, the clock, small files, what is said of the node and of its session.

pub mod clock;
pub mod config;
pub mod environment;
pub mod file_system;
pub mod files;
pub mod limits;
pub mod node_view;
pub mod places;
pub mod readiness;
pub mod session_state;
pub mod setup;
pub mod troubles;

//! How an agent starts and stops: stages, each of which consumes the one before it, so that none begins too early.
//!
//! ```text
//!   Configured ──open──▶ Opened ──sweep──▶ Swept ──adopt──▶ Adopted ──serve──▶ Serving ──until_stopped──▶ over
//!   settings that        state, machine    nothing is left  each allocation    everybody is
//!   can be used          and sockets       that is unknown  has its task       answered
//! ```

mod adopted;
mod base;
mod configured;
mod connections;
mod machine;
mod opened;
mod saved_state;
mod serving;
mod swept;
mod wiring;

pub use configured::Configured;

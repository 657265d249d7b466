//! How an agent starts and stops: stages, each of which consumes the previous one, so that none
//! begins too early.
//!
//! ```text
//!   Configured ──open──▶ Opened ──sweep──▶ Swept ──adopt──▶ Adopted ──serve──▶ Serving ──until_stopped──▶ over
//!   usable settings      state, machine    no unknown       each allocation    requests are
//!                        and sockets       work is left     has its task       answered
//! ```

mod adopted;
mod base;
mod configured;
mod connections;
mod machine;
mod network_api;
mod opened;
mod saved_state;
mod serving;
mod swept;
mod wiring;

pub use configured::Configured;

//! Linux mechanism: everything that an agent or a shim asks of the kernel, and no policy about it.
//!
//! ```text
//!   failpoint  for tests: where the agent kills itself
//!   identity   who an account is here; boot id, start times, pidfds
//!   image      a user's SquashFS image, opened with the user's rights, verified into the root-owned cache
//!   mounts     loop devices and mounts in a namespace of one's own
//!   data_mounts what an allocation sees besides the machine's own view: directories elsewhere, scratch in memory
//!   project_quota a limit on what lies below a directory
//!   remove     a directory that a user filled, removed whatever is in it
//!   cgroup     scopes in the v2 tree: create, kill, watch, sweep, recognise
//!   binding    a process's processors and memory nodes
//!   process    one program: born inside its cgroup, as its user, with nothing of ours
//!   pty        terminals of our own making
//!   topology   processors, memory and GPUs of this machine
//!   exits      exit statuses on disk, for when the shim itself is dead
//!   sockets    whose the other end of a connection on this machine is
//!   shim       the agent's and the shim's protocol, and how a shim is started and found again
//! ```
//!
//! Calls block for as long as the kernel does; an agent makes them off its event loop.

pub mod binding;
pub mod cgroup;
pub mod data_mounts;
pub mod exits;
pub mod failpoint;
#[cfg(test)]
mod fuzz;
pub mod identity;
pub mod image;
pub mod mounts;
pub mod process;
pub mod project_quota;
pub mod pty;
pub mod remove;
pub mod shim;
pub mod sockets;
pub mod stuck;
pub mod topology;

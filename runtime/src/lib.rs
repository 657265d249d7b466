//! Linux mechanisms: every request of an agent or a shim to the kernel, without any policy.
//!
//! ```text
//!   failpoint  for tests: where the agent kills itself
//!   identity   accounts of this machine; boot id, start times, pidfds
//!   image      a user's SquashFS image, opened with the user's rights, verified into the root-owned cache
//!   mounts     loop devices and mounts in a namespace of one's own
//!   data_mounts an allocation's mounts besides the machine's own view: directories elsewhere, scratch in memory
//!   project_quota a limit on the bytes below a directory
//!   remove     removes a directory that a user filled, whatever is in it
//!   cgroup     scopes in the v2 tree: create, kill, watch, sweep, recognise
//!   binding    a process's processors and memory nodes
//!   process    one program: born inside its cgroup, as its user, with nothing of ours
//!   program_pages the resident pages of a program's own code
//!   pty        terminals that we make
//!   topology   processors, memory and GPUs of this machine
//!   exits      exit statuses on disk, for when the shim itself is dead
//!   sockets    the owner of the other end of a connection on this machine
//!   shim       the agent's and the shim's protocol, and how a shim is started and found again
//! ```
//!
//! Calls block for as long as the kernel does; an agent runs them outside of its event loop.

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
pub mod program_pages;
pub mod project_quota;
pub mod pty;
pub mod remove;
pub mod shim;
pub mod sockets;
pub mod stuck;
pub mod topology;

//! Clusters on one machine: started, broken on purpose, measured and taken away again.
//!
//! ```text
//!   up ──▶ cluster.json ──▶ node/quorum kill|start ──▶ down
//!            (who was started: pid, start time, boot)     (nothing is left: process, scope, mount, loop device, file)
//! ```
//!
//! The lab knows the product from outside: its binaries, their configuration files and `lattice -o json`. So it tests
//! what a user gets, and goes on working while the crates behind it change. Where members are measured or their histories
//! checked it speaks to them as an agent does, with the quorum's own client.
//!
//! | module | idea |
//! |---|---|
//! | [`binaries`] | building and finding what is started |
//! | [`process`] | processes that are known by more than their pid |
//! | [`cluster`] | the record of one lab cluster on disk |
//! | [`up`], [`faults`], [`down`] | its life |
//! | [`hub`], [`networks`] | networks that can be cut |
//! | [`small_disks`] | file systems that can be filled |
//! | [`lattice`] | the CLI, asked |
//! | [`fabric`] | a simulated manager of a fabric |
//! | [`machine`] | what this machine has and lacks |
//! | [`image`], [`ring`] | the demo's software environment and the program in it |
//! | [`fences`], [`streams`], [`pmi1`] | ranks that come to fences, what that is held against, and how they speak PMI |
//! | [`asked`] | work that is asked to save itself, and tells when it noticed |
//! | [`endpoint`] | work that is asked at a port of its own, for an example |
//! | [`quorum`] | members alone, on hosts that go wrong, and simulated agents |
//! | [`history`] | whether what clients saw can be explained by one order |
//! | [`sim`] | thousands of agents' gossip, and their fences, in virtual time |
//! | [`torture`] | random faults under load, and whether every promise holds after them |
//! | [`demo`], [`bench`] | what people run |

pub mod asked;
pub mod bench;
pub mod binaries;
pub mod cluster;
pub mod configs;
pub mod demo;
pub mod down;
pub mod endpoint;
pub mod fabric;
pub mod faults;
pub mod fences;
pub mod gpus;
pub mod history;
pub mod hub;
pub mod image;
pub mod interrupt;
pub mod lattice;
pub mod machine;
pub mod networks;
mod options;
pub mod pmi1;
pub mod ports;
pub mod preload;
pub mod process;
pub mod quorum;
pub mod ring;
#[cfg(test)]
mod settings_pages;
pub mod sim;
pub mod small_disks;
pub mod streams;
pub mod sweep;
pub mod torture;
pub mod up;

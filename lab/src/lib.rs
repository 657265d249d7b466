//! Clusters on one machine: started, broken on purpose, measured and removed.
//!
//! ```text
//!   up ──▶ cluster.json ──▶ node/quorum kill|start ──▶ down
//!            (pid, start time and boot of each process)        (no process, scope, mount, loop device or file is left)
//! ```
//!
//! The lab uses the product from outside: its binaries, their configuration files and `lattice -o json`. So it tests
//! what a user gets, and continues to work while the crates behind it change. To measure members or check their
//! histories it connects to them like an agent, with the quorum's own client.
//!
//! | module | content |
//! |---|---|
//! | [`binaries`] | building and finding the programs |
//! | [`process`] | processes that are identified by more than their pid |
//! | [`cluster`] | the record of one lab cluster on disk |
//! | [`up`], [`faults`], [`down`] | starting, breaking and removing it |
//! | [`hub`], [`networks`] | networks that can be cut |
//! | [`small_disks`] | file systems that can be filled |
//! | [`lattice`] | running the CLI |
//! | [`fabric`] | a simulated manager of a fabric |
//! | [`machine`] | what this machine has and lacks |
//! | [`image`], [`ring`] | the demo's software environment and the program in it |
//! | [`fences`], [`streams`], [`pmi1`] | ranks that enter fences, their baseline, and PMI-1 for both |
//! | [`asked`] | work that is asked to save itself, and records when it noticed |
//! | [`endpoint`] | an example of work that is asked at its own port |
//! | [`call`] | calls of an agent's API with given bytes, as a test's user |
//! | [`http_server`], [`http_load`] | a replica of a service, and clients that find it by its name |
//! | [`quorum`] | members without agents, on faulty hosts, and simulated agents |
//! | [`history`] | whether one order explains what clients saw |
//! | [`torture`] | random faults under load, and whether every promise holds after them |
//! | [`demo`] | a command for people |
//! | [`bench_program`] | the program of `lab/bench`, which measures and simulates |
//! | [`dice`] | random numbers by seed |

pub mod asked;
pub mod bench_program;
pub mod binaries;
pub mod call;
pub mod cluster;
pub mod configs;
pub mod demo;
pub mod dice;
pub mod down;
pub mod endpoint;
pub mod fabric;
pub mod faults;
pub mod fences;
pub mod gpus;
pub mod history;
pub mod http_load;
pub mod http_server;
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
pub mod small_disks;
pub mod streams;
pub mod sweep;
pub mod torture;
pub mod up;

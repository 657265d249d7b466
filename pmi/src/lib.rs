//! How the ranks of a launch find each other: the Process Management Interface, versions 1 and 2,
//! as a pure core.
//!
//! ```text
//!   rank ──socket──▶ Event::Bytes ┐            ┌ Action::Send ──▶ rank
//!   rank closes, ends ────────────┤            │
//!                                 ├─ Server ───┼ Action::Fence ─▶ ┐ from every node's Server
//!   head's merge ─ Event::FenceDone            │                  ├─ FenceHubs, up to the head's ─▶ FenceMerged
//!                                 └            └ Action::Abort    ┘ back to every node's Server
//! ```
//!
//! One [`Server`] serves all ranks of one launch on one node; it lives in the shim, because a rank
//! keeps its connection from `MPI_Init` to `MPI_Finalize` while agents may restart. [`FenceHub`]s
//! live in the agents: each agent that has others below it in the launch's [tree](Subtree) has one.
//! A hub may be lost at any moment; a new one is rebuilt from what the servers
//! [replay](Server::replay).
//!
//! A fence is numbered from 1. A node's contribution is a *blob*: the pairs that its ranks have put
//! since the last fence, as a plain sequence of records, so that the concatenation of two blobs is
//! a blob with the pairs of both. Only the servers inspect blobs.
//!
//! The server of the launch's first node stores the names that ranks publish; the other servers
//! send it requests ([`lattice_model::call`]).
//!
//! [`PmixServer`] holds the state of PMIx ranks, whose requests OpenPMIx answers (`lattice-pmix`,
//! [`bridge`]).
//!
//! A rank's first line determines its version of PMI. The wire formats are PMI-1 (source: the
//! grammar `src/pmi/maint/pmi-1.1.txt` of MPICH, and what Debian's MPICH 4.0.2 sends) and PMI-2
//! (`pmi-2.0.txt` there, and what Slurm's `libpmi2` sends).

#![forbid(unsafe_code)]

mod blob;
pub mod bridge;
mod deaths;
#[cfg(test)]
mod fuzz;
mod hub;
mod job;
mod kvs;
mod message;
mod names;
mod pmix;
mod server;
mod tree;
mod wire;

pub use blob::{BLOB_BYTES_MAX, CorruptBlob};
pub use hub::{Contributed, FenceHub, FenceMerged, FenceRefused};
pub use job::{Job, PmiConnection, process_mapping, rank_environment};
pub use kvs::{KEYS_MAX, KVS_BYTES_MAX};
pub use message::MESSAGE_BYTES_MAX;
pub use pmix::{PmixAction, PmixEvent, PmixServer};
pub use server::{Action, Event, Server};
pub use tree::{FANOUT_MAX, FANOUT_MIN, Subtree, fanout_for};
pub use wire::{KEY_BYTES_MAX, KVSNAME_BYTES_MAX, LINE_BYTES_MAX, MAPPING_BYTES_MAX, VALUE_BYTES_MAX};

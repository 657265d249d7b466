//! How the ranks of a launch find each other: the Process Management Interface, version 1, as a pure core.
//!
//! ```text
//!   rank ──socket──▶ Event::Bytes ┐            ┌ Action::Send ──▶ rank
//!   rank closes, ends ────────────┤            │
//!                                 ├─ Server ───┼ Action::Fence ─▶ ┐ from every node's Server
//!   head's merge ─ Event::FenceDone            │                  ├─ FenceHub (at the head) ─▶ FenceMerged
//!                                 └            └ Action::Abort    ┘ back to every node's Server
//! ```
//!
//! One [`Server`] serves all ranks of one launch on one node; it lives in the shim, because a rank keeps its
//! connection from `MPI_Init` to `MPI_Finalize` while agents come and go. One [`FenceHub`] per launch lives in the
//! agent of the launch's first node; it may be lost at any moment and be built anew from what the servers
//! [replay](Server::replay).
//!
//! A fence is numbered from 1. A node's contribution is a *blob*: the pairs that its ranks have put since the
//! last fence, as a plain sequence of records, so that blobs joined end to end are the blob of both. A star merges
//! them today; a tree of hubs can, with the same frames.
//!
//! The wire is PMI-1 (source: the grammar `src/pmi/maint/pmi-1.1.txt` of MPICH, and what Debian's MPICH 4.0.2
//! sends). PMI-2 is recognised by its first line and refused by name.

#![forbid(unsafe_code)]

mod blob;
mod hub;
mod job;
mod kvs;
mod server;
mod wire;

pub use blob::{BLOB_BYTES_MAX, CorruptBlob};
pub use hub::{FenceHub, FenceMerged, FenceRefused};
pub use job::{Job, process_mapping, rank_environment};
pub use kvs::{KEYS_MAX, KVS_BYTES_MAX};
pub use server::{Action, Event, Server};
pub use wire::{KEY_BYTES_MAX, KVSNAME_BYTES_MAX, LINE_BYTES_MAX, MAPPING_BYTES_MAX, VALUE_BYTES_MAX};

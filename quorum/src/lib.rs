//! The quorum: one to five members that agree on the ownership of nodes' resources and on the audit
//! log.
//!
//! ```text
//!   agents ──gRPC, mTLS──▶ service ──▶ proposer ──▶ Raft (openraft) ──▶ store::log     one sync for many commands
//!                             ▲            ▲           │  ▲
//!                 changes ────┘        leader's        │  └── network ──▶ the other members
//!                    ▲                 clocks          ▼
//!                    └───────────── store::machine: ledger::apply (pure) + audit chain + snapshots
//! ```
//!
//! | task | owns | talks by |
//! |---|---|---|
//! | proposer | the queue of commands | mpsc in (bounded: full is refused), oneshot out |
//! | reads | queries that wait for a check of leadership | mpsc in (bounded), oneshot out |
//! | leader_watch | whether there is a leader | watch out |
//! | duties | the leader's clocks and signatures, or a follower's heartbeat summaries | proposer, network |
//! | backups | when the next backup is due | snapshots on disk, the object store |
//! | archive | the audit chain in the object store | the disk, the object store |
//! | audit checks, until all are checked | the sealed segments that a start found | the disk |
//! | audit pruning, with an archive | the oldest audit segments, once they are archived | the disk, the object store |
//! | snapshot_stagger | this member's first snapshot since its start | openraft |
//! | one per means of notification | which audit records were sent | the disk, network |
//! | revocations | the revoked certificates of this process | watch in |
//! | metrics, two at most: pushed, and served with one per connection | their buffer; the connections | the disk, network |
//! | credentials | the current certificate | the files, the authority's key here or at another member; watch out |
//! | one per port, and one per handshake there | handshakes of accepted connections | mpsc out (bounded) |
//! | two servers, and the list of known addresses | the connections; those addresses | watch out |
//! | membership | whether this member was removed | network, watch out |
//! | one per entry under way (at most two) | the replies to its commands | oneshot out |
//! | one per step of a membership change | that step; one at a time | proposer, openraft |
//! | one per removed member | notifies it, for some seconds | network |
//! | one per run of the fencing hook | that run | mpsc out (bounded) |
//! | one per fetch of audit records | that fetch | network, the disk |
//! | one per session, one per watch | that stream | mpsc down (bounded), `Notify` (latest value), history of changes |
//! | those of `lattice-store` | the files | see there |
//! | openraft's own | Raft | |
//!
//! The order of stopping is in [`member::Member::stop`]: the servers, the tasks that live as long as
//! the member, fetches of audit records, Raft, then the tasks of single calls.
//!
//! An agent uses `QuorumClient` of the crate `lattice-quorum-client`. A process that hosts a member
//! uses [`member::run`], or [`member::Member`] if it must know when the member is ready. The crate
//! `lattice-ledger` describes the parts of the state and why each is agreed upon; `lattice-store`
//! describes what is on the disk.

pub mod audit;
pub mod backup;
pub mod cluster_clock;
pub mod config;
pub mod lease_clocks;
pub mod levels;
pub mod member;
pub mod permission;
pub mod rotation;
pub mod shortages;

mod accepting;
mod audit_archive;
mod audit_checks;
mod audit_pruning;
mod certificate_ends;
mod certify;
mod chain;
mod clock;
mod core;
mod fencing_hook;
#[cfg(test)]
mod fuzz;
mod gathered;
mod handover;
mod heartbeats;
#[cfg(test)]
mod hostile;
mod mail_hook;
mod mail_queue;
mod membership;
mod metrics;
mod network;
mod notify;
mod notify_state;
mod pace;
mod peers;
mod proposer;
mod raft_counts;
mod reads;
mod refused_claims;
mod service;
mod session_rebalance;
mod snapshot_stagger;
mod timekeeper;
mod waiting_nodes;
mod witnesses;

//! What a member of the quorum stores on its disk, and the state that it applies from its log.
//!
//! ```text
//!   DIR/lock                 held by the process that uses the directory
//!   DIR/member.json          the owner: cluster and member
//!   DIR/vote                 the last vote, replaced as a whole
//!   DIR/purged               the end of the purged part of the log, replaced as a whole
//!   DIR/log/FIRST.log        the log, in segments named by their first index
//!   DIR/log/synced           how far the log is synced, written in place (`synced_end`)
//!   DIR/audit/FIRST.audit    the audit chain, in append-only segments named by their first record
//!   DIR/INDEX.snapshot       the ledger as of a log index, with the audit chain's head; the last five are kept
//!   DIR/reserve              allocated but empty: disk space for emergencies ([`disk_reserve`])
//! ```
//!
//! Every record has its length and a checksum. If a crash interrupted a write (a torn tail), the
//! incomplete record is cut off, with a log message. If any other record of the log or of the audit
//! chain is damaged, even the last one that was synced, the member refuses to start, and names file
//! and offset. Sealed segments of the audit chain are the exception: a start reads only their seals,
//! and [`audit::Sealed::check`] reads the records later. The audit chain is *derived*: records of
//! entries after the last snapshot are created again by applying the log, so it is synced with each
//! snapshot and not with every entry.
//!
//! A damaged newest snapshot is moved aside, and the previous one is used with the log entries
//! after it.
//!
//! A snapshot contains only the head of the audit chain: before a member installs a snapshot from
//! another one, it fetches the missing records from there, and checks them against the head.
//!
//! Only `lattice-quorum` calls this crate: it gives [`log::Log`] and [`machine::Machine`] to
//! openraft, whose storage traits they implement, and reads the applied state
//! ([`machine::Agreed`]). Nothing here reads the configuration or connects to other members.
//!
//! | task | owns | channels |
//! |---|---|---|
//! | `quorum-log` (a thread) | the log's files | bounded channel of jobs, callbacks |
//! | `snapshot` (a thread, one for each snapshot) | the new snapshot's file | oneshot out |
//! | [`disk_reserve::DiskReserve::monitor`], spawned by the member | the reserve on the disk | the file system, watch out |

pub mod audit;
pub mod background;
pub mod changes;
pub mod directory;
pub mod disk_reserve;
pub mod log;
pub mod machine;
pub mod raft;
pub mod retained_snapshots;
pub mod roster;
pub mod snapshot_file;
pub mod synced;
#[cfg(any(test, feature = "test-builders"))]
pub mod test_builders;

mod durations;
mod error;
mod power;
mod record;
mod segments;
mod synced_end;

#[cfg(test)]
mod crash_tests;
#[cfg(test)]
mod fuzz;
#[cfg(test)]
mod hostile;

pub use durations::Durations;
pub use error::StoreError;

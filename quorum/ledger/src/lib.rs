//! What the quorum agrees on, as a pure function of the committed commands.
//!
//! ```text
//!   (Ledger, revision, Command) ──apply──▶ (Ledger, Outcome | Refusal, audit records, what changed)
//! ```
//!
//! ```text
//!   state ◀── apply_context ◀── a file per family of commands ◀── action (the table) ◀── command (apply)
//!     ▲                                   │
//!     ╰── refusal, outcome ◀──────────────╯          an arrow points from a module to one that it uses
//! ```
//!
//! Nothing here reads a clock, draws a number or touches a file: every member that applies the same commands holds
//! the same bytes. A refusal changes nothing but the revision and the time.
//!
//! Why each part needs agreement: *nodes* (size and standing decide claims), *holdings* (a part of a node is never
//! given twice), *holds* (what an operator took out of service is claimed by nobody, at once), *tenants* (two schedulers
//! together exceed no quota, not even for a moment), the cluster's *limits* (as the tenants' quotas), *vClusters* (whose queue work
//! stands in, and which nodes are for it, is the same for every scheduler), *allocations* (an acknowledged
//! submission is not lost; which checkpoint is its last is decided once, whatever an isolated attempt still saves), *sessions* (who has the one terminal of an allocation is known after any restart), *network domains* (no
//! two of them have one number, and what left one keeps it off others while it may still run), *services* (what is looked up runs),
//! the *run lease* and what is *fenced* (work that a silent node may still run is not begun elsewhere, and what was begun elsewhere is
//! known to whoever claims the node next), which nodes are
//! *admitted* (any member refuses the same ones), what a node is made of and what is expected of it (*drift* begins once, and outlives its leader),
//! *wipes* (a node that is to be wiped is claimed by nobody before that is confirmed), how far *notifications* are (a new leader goes on behind
//! the last), *leases* (one holder at a time, fenced by a rising token; renewals are the leader's memory), the
//! *gossip keys* (all agents seal with one key, and each opens a key before another seals with it: two keyrings would be two clusters), the
//! *revocations* (a stolen certificate counts nowhere, also not under another leader), the
//! *level* (no member meets a command that it does not know), the *generation* and what a *recovery* waits for (no work is placed that a
//! node may run already), the *audit head* (one history) and who signs it. Free capacity, heartbeats and progress are not here.
//!
//! **Holdings outlive their claim.** A part of a node counts against it from the claim until the node itself reports
//! that nothing is left, or comes back under another boot id. An ended or requeued allocation therefore does not free
//! its nodes at once: what was there before may still be there.

pub mod access;
pub mod audit_chain;
pub mod clocks;
pub mod history;
pub mod node_use;
pub mod shortage;
pub mod signing;

mod action;
mod admission;
mod allocations;
mod apply_context;
mod asker;
mod claims;
mod command;
mod conformance;
mod ended;
mod fencing;
mod holds;
mod key_rotation;
mod leases;
mod level;
mod limits;
mod members;
mod networks;
mod node_health;
mod nodes;
mod notifications;
mod outcome;
mod preemptions;
mod recovery;
mod refusal;
mod registration;
mod reports;
mod requeues;
mod revocations;
mod services;
mod sessions;
mod state;
mod telemetry;
mod tenants;
#[cfg(any(test, feature = "test-builders"))]
pub mod test_builders;
mod urgency;
mod user_limits;
mod user_usage;
mod vclusters;
mod views;
mod waits;
mod walltimes;
mod wipes;

#[cfg(test)]
mod admission_scenarios;
#[cfg(test)]
mod checkpoint_scenarios;
#[cfg(test)]
mod claim_scenarios;
#[cfg(test)]
mod conformance_scenarios;
#[cfg(test)]
mod fencing_properties;
#[cfg(test)]
mod fencing_scenarios;
#[cfg(test)]
mod hold_scenarios;
#[cfg(test)]
mod keyring_scenarios;
#[cfg(test)]
mod lease_scenarios;
#[cfg(test)]
mod network_scenarios;
#[cfg(test)]
mod preemption_scenarios;
#[cfg(test)]
mod properties;
#[cfg(test)]
mod registration_scenarios;
#[cfg(test)]
mod requeue_scenarios;
#[cfg(test)]
mod revocation_scenarios;
#[cfg(test)]
pub(crate) mod scenarios;
#[cfg(test)]
mod session_scenarios;
#[cfg(test)]
mod telemetry_scenarios;
#[cfg(test)]
mod tenant_scenarios;
#[cfg(test)]
mod time_scenarios;
#[cfg(test)]
mod user_limit_scenarios;
#[cfg(test)]
mod vcluster_scenarios;
#[cfg(test)]
mod walltime_scenarios;
#[cfg(test)]
mod wipe_scenarios;

pub use access::{Access, AccessKind};
pub use action::Action;
pub use admission::growth;
pub use asker::Asker;
pub use audit_chain::{AuditFault, AuditHead};
pub use claims::{SCHEDULER_LEASE, scheduler_lease};
pub use command::{Command, ENTRY_LEAP_MS_MAX};
pub use conformance::DriftLimits;
pub use leases::held;
pub use level::{LEVEL_KNOWN, LEVEL_MAX};
pub use limits::LimitsStanding;
pub use members::MembersStep;
pub use networks::{DomainStanding, VniPoolChange, VniPoolStanding, domain_of};
pub use node_health::{DrainWish, NodeHealth, cut};
pub use outcome::{Applied, Changed, Outcome};
pub use recovery::{HeldShare, beyond};
pub use refusal::{Conflict, Refusal, WalltimeRefusal};
pub use registration::{NodeStanding, Registration};
pub use revocations::REVOCATIONS_MAX;
pub use services::{Endpoint, ServiceStanding};
pub use state::keyring::{self, Keyring};
pub use state::revocations::Revocation;
pub use state::user_limits::{UserLimit, UserLimits};
pub use state::{
    Admission, ClusterLimits, Domain, DomainKey, ENDED_KEPT_MAX, ENDED_KEPT_MS, Holding, LEVEL_FIRST, LIVE_MAX, Lease, Ledger, NODES_MAX,
    NotifyWay, Recovery,
};
pub use tenants::{QuotaChange, TenantChange, TenantStanding};
pub use urgency::Urgency;
pub use user_limits::UserLimitsChange;
pub use vclusters::{VClusterChange, VClusterStanding};
pub use views::{ListFilter, ListPlace, WatchPlace};

use apply_context::{ApplyContext, Subject};

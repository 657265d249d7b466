//! The replicated state machine of the quorum, as a pure function of the committed commands.
//!
//! ```text
//!   (Ledger, revision, Command) ──apply──▶ (Ledger, Outcome | Refusal, audit records, changes)
//! ```
//!
//! ```text
//!   state ◀── apply_context ◀── a file per family of commands ◀── action (the table) ◀── command (apply)
//!     ▲                                   │
//!     ╰── outcome ◀───────────────────────╯          an arrow points from a module to one that it uses
//! ```
//!
//! Nothing here reads a clock, generates a random number or accesses a file: every member that
//! applies the same commands has the same bytes. A refusal changes only the revision and the time.
//!
//! Why each part needs agreement:
//!
//! * *nodes*: size and state decide about claims;
//! * *holdings*: no part of a node is assigned twice;
//! * *holds*: a node taken out of service gets no claim from that moment on;
//! * *tenants* and the cluster's *limits*: concurrent schedulers never exceed a quota together;
//! * *roles* and the *members* of tenants: whoever loses one has lost it at every agent, and a tenant takes the
//!   same work everywhere;
//! * *access tokens*: a token grants the same at every agent, and a revoked one grants nothing;
//! * *reservations*: no work gets a node in a window that is not for it, whichever scheduler proposes the claim;
//! * *vClusters*: every scheduler sees the same queues and the same nodes for them;
//! * *allocations*: an acknowledged submission is never lost, and its latest checkpoint is decided
//!   once, whatever an isolated attempt still saves;
//! * *dependencies*: an end reaches all its dependents once, whoever leads then;
//! * *DAGs*: all of their allocations are submitted, or none, and their graph outlives the records of
//!   its parts;
//! * *job numbers*: no two allocations ever have the same;
//! * *names* of live work: no singleton begins beside earlier work of its user with its name;
//! * the *tasks* of groups: each ends once, whatever an isolated node still reports;
//! * *scaled services*: each has as many replicas as are wanted, whoever runs its loop;
//! * *sessions*: after any restart it is known who has an allocation's only terminal;
//! * *network domains*: no two have the same VNI, and a VNI is not reused while work with it may
//!   run;
//! * *services*: a service that a lookup returns is running;
//! * *usage* by tenant, project and user: budgets survive any member, and every scheduler computes
//!   with the same;
//! * *ended work* that accounting does not have yet: each end is given to one store, once;
//! * the *marks* of budgets: reaching a mark is recorded once, whoever leads;
//! * the *run lease* and *fenced* holdings: work that may still run on a silent node is not started
//!   elsewhere, and whoever claims that node next knows what was started elsewhere;
//! * *admissions* and *removals*: every member refuses the same nodes;
//! * conformance: a *drift* begins once, and survives a change of the leader;
//! * *wipes*: nobody claims a node before its wipe is confirmed;
//! * *notifications*: a new leader continues after the last one delivered;
//! * *leases*: one holder at a time, fenced by an increasing token (renewals are only in the
//!   leader's memory);
//! * *gossip keys*: all agents encrypt with one key, and every agent can decrypt with a key before
//!   any agent encrypts with it (two keyrings would mean two clusters);
//! * *revocations*: a stolen certificate is invalid everywhere, also under another leader;
//! * the *level*: no member reads a command that it does not know;
//! * the *generation* and a *recovery*: no work is placed that a node may already run;
//! * the *audit head* and its signatures: there is one history;
//! * the *audit checkpoint*: members delete only records that the archive has.
//!
//! Free capacity, heartbeats and progress are not in the ledger.
//!
//! **Holdings outlive their claim.** A part of a node counts as used from the claim until the node
//! itself reports that nothing is left, or returns with another boot id. An ended or requeued
//! allocation therefore does not free its nodes at once: its processes may still be there.

pub mod access;
pub mod clocks;
pub mod history;
pub mod node_use;
pub mod signing;

mod access_tokens;
mod action;
mod admission;
mod allocations;
mod apply_context;
mod audit_checkpoint;
mod budgets;
mod claims;
mod command;
mod conformance;
mod corresponding;
mod dags;
mod dependencies;
mod ended;
mod ended_limits;
mod ended_work;
mod fencing;
mod holds;
mod indexes;
mod job_numbers;
mod key_rotation;
mod leases;
mod level;
mod limits;
mod login_submissions;
mod mail;
mod members;
mod networks;
mod node_health;
mod nodes;
mod notifications;
mod outcome;
mod preemptions;
mod projects;
mod recovery;
mod registration;
mod removal;
mod reports;
mod requester;
mod requeues;
mod reservations;
mod revocations;
mod roles;
mod scaled_services;
mod services;
mod sessions;
mod singletons;
mod state;
mod task_groups;
mod telemetry;
mod tenant_members;
mod tenants;
#[cfg(any(test, feature = "test-builders"))]
pub mod test_builders;
mod timing;
mod updates;
mod urgency;
mod usage;
mod user_limits;
mod user_usage;
mod vclusters;
mod views;
mod waits;
mod wipes;

#[cfg(test)]
mod access_token_properties;
#[cfg(test)]
mod access_token_scenarios;
#[cfg(test)]
mod admission_scenarios;
#[cfg(test)]
mod checkpoint_scenarios;
#[cfg(test)]
mod claim_scenarios;
#[cfg(test)]
mod conformance_scenarios;
#[cfg(test)]
mod corresponding_scenarios;
#[cfg(test)]
mod dag_scenarios;
#[cfg(test)]
mod dependency_scenarios;
#[cfg(test)]
mod ended_scenarios;
#[cfg(test)]
mod ended_work_scenarios;
#[cfg(test)]
mod fencing_properties;
#[cfg(test)]
mod fencing_scenarios;
#[cfg(test)]
mod hold_scenarios;
#[cfg(test)]
mod job_number_scenarios;
#[cfg(test)]
mod keyring_scenarios;
#[cfg(test)]
mod lane_scenarios;
#[cfg(test)]
mod lease_scenarios;
#[cfg(test)]
mod network_scenarios;
#[cfg(test)]
mod preemption_scenarios;
#[cfg(test)]
mod priority_scenarios;
#[cfg(test)]
mod project_scenarios;
#[cfg(test)]
mod properties;
#[cfg(test)]
mod registration_scenarios;
#[cfg(test)]
mod removal_scenarios;
#[cfg(test)]
mod requeue_scenarios;
#[cfg(test)]
mod reservation_scenarios;
#[cfg(test)]
mod revocation_scenarios;
#[cfg(test)]
mod role_properties;
#[cfg(test)]
mod role_scenarios;
#[cfg(test)]
mod scaled_service_properties;
#[cfg(test)]
mod scaled_service_scenarios;
#[cfg(test)]
pub(crate) mod scenarios;
#[cfg(test)]
mod session_scenarios;
#[cfg(test)]
mod share_policy_scenarios;
#[cfg(test)]
mod singleton_scenarios;
#[cfg(test)]
mod task_group_properties;
#[cfg(test)]
mod task_group_scenarios;
#[cfg(test)]
mod telemetry_scenarios;
#[cfg(test)]
mod tenant_member_scenarios;
#[cfg(test)]
mod tenant_scenarios;
#[cfg(test)]
mod time_scenarios;
#[cfg(test)]
mod timing_scenarios;
#[cfg(test)]
mod update_scenarios;
#[cfg(test)]
mod usage_scenarios;
#[cfg(test)]
mod user_limit_scenarios;
#[cfg(test)]
mod vcluster_scenarios;
#[cfg(test)]
mod wide_scenarios;
#[cfg(test)]
mod wipe_scenarios;

pub use access::{Access, AccessKind};
pub use action::Action;
pub use admission::growth;
pub use budgets::BudgetNotice;
pub use claims::{SCHEDULER_LEASE, scheduler_lease};
pub use command::{Command, ENTRY_LEAP_MS_MAX};
pub use conformance::DriftLimits;
pub use dags::{DagCursor, DagFilter, DagStatus, DagSummary, StepStatus};
pub use ended::{EndedLimitsChange, EndedStatus};
pub use ended_work::{ACCOUNTING_LEASE, Correction, EndsStatus};
pub use lattice_ledger_state::audit_chain::{AuditFault, AuditHead};
pub use lattice_ledger_state::budget_marks::ReachedMark;
pub use lattice_ledger_state::ended_place::EndedPlace;
pub use lattice_ledger_state::keyring::{self, Keyring};
pub use lattice_ledger_state::refusal::{Conflict, DependencyRefusal, ForgottenWork, Refusal, RemovalRefusal, UpdateRefusal};
pub use lattice_ledger_state::removals::{REMOVED_LEN_MAX, Removal};
pub use lattice_ledger_state::revocations::Revocation;
pub use lattice_ledger_state::scaling_change::ScalingChange;
pub use lattice_ledger_state::shortage;
pub use lattice_ledger_state::task_states::{LanesObstacle, TASK_RANGES_MAX, TaskCounts, TaskPlace, TaskStates, WhichTasks};
pub use lattice_ledger_state::user_limits::{UserLimit, UserLimits};
pub use leases::held;
pub use level::{LEVEL_KNOWN, LEVEL_MAX};
pub use limits::LimitsStatus;
pub use mail::MailNotice;
pub use members::MembersStep;
pub use networks::{DomainStatus, VniPoolChange, VniPoolStatus, domain_of};
pub use node_health::{DrainRequest, NodeHealth, cut};
pub use outcome::{Applied, Changed, ChangedShares, Outcome};
pub use preemptions::PreemptFor;
pub use recovery::{HeldShare, beyond};
pub use registration::{NodeStateChange, Registration};
pub use requester::Requester;
pub use reservations::ReservationChange;
pub use revocations::REVOCATIONS_MAX;
pub use scaled_services::ScalingStep;
pub use services::{Endpoint, ServiceStatus};
pub use state::{
    Admission, AuditCheckpoint, ClusterLimits, Domain, DomainKey, EndedLimits, Forgotten, Holding, LEVEL_FIRST, LIVE_MAX, Lease, Ledger,
    MAIL_CHANNEL, NODES_MAX, NotifyChannel, Recovery,
};
pub use task_groups::{LANES_WAITING_OF_USER_MAX, LIVE_WITH_LANES_MAX, lane_id};
pub use tenants::{QuotaChange, SoftLimitsChange, TenantChange, TenantStatus};
pub use updates::AllocationChange;
pub use urgency::Urgency;
pub use usage::{BudgetReport, UsageOf, UsageReport};
pub use user_limits::UserLimitsChange;
pub use vclusters::{VClusterChange, VClusterStatus, WeightsChange};
pub use views::{ListCursor, ListFilter, WantedLanes, WatchCursor};

use apply_context::{ApplyContext, Subject};

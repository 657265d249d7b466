//! Lattice's vocabulary: what every other crate means by an allocation, a share, a node, a launch.
//!
//! ```text
//!   AllocationSpec ──submit──▶ Allocation ──claim──▶ Share × nodes ──agents──▶ Launch × ranks
//!      (spec.rs)               (allocation.rs)        (claim.rs)                (launch.rs)
//! ```
//!
//! Everything here is plain data with its validation. No I/O, no clock, no randomness: times are
//! [`Timestamp`]s that somebody else took, ids are made by whoever creates the thing.

#![forbid(unsafe_code)]

pub mod allocation;
pub mod allocation_state;
pub mod attempt;
pub mod audit;
pub mod backoff;
pub mod binding;
pub mod call;
mod causes;
pub mod checkpoint;
pub mod claim;
pub mod config;
pub mod conformance;
pub mod constraint;
pub mod count;
pub mod data;
pub mod duration;
pub mod end_reason;
pub mod fact;
#[cfg(test)]
mod fuzz;
pub mod gpu_load;
pub mod gpu_look;
pub mod hostlist;
pub mod ids;
pub mod input;
pub mod launch;
pub mod layout;
pub mod lifecycle;
pub mod network;
pub mod node;
pub mod node_ranks;
pub mod operator_token;
pub mod preemption;
pub mod principal;
pub mod probe;
pub mod report;
pub mod resources;
pub mod run_lease;
pub mod session;
pub mod signal;
pub mod size;
pub mod spec;
pub mod spec_error;
pub mod telemetry;
pub mod tenant;
#[cfg(any(test, feature = "test-builders"))]
pub mod test_builders;
pub mod time;
pub mod topology;
pub mod user_running;
pub mod vcluster;
pub mod work_usage;

pub use allocation::{Allocation, Exclusion, WalltimeChange};
pub use allocation_state::AllocationState;
pub use attempt::Attempt;
pub use audit::{AllocationPrefix, AuditAction, AuditFilter, AuditRecord};
pub use backoff::Backoff;
pub use binding::{Placement, RankBinding};
pub use call::Call;
pub use causes::with_causes;
pub use checkpoint::{AskBy, AskSignal, Automatic, CheckpointPolicy, CheckpointRef, SignalTo};
pub use claim::{Claim, DesiredList, DesiredShare, Share, SharePhase};
pub use conformance::Conformance;
pub use constraint::Constraints;
pub use data::{Data, DataMount};
pub use end_reason::EndReason;
pub use ids::{AllocationId, Boot, CheckpointId, Epoch, Generation, Incarnation, LaunchId, MemberId, NodeId, Revision};
pub use input::Stdin;
pub use launch::{LaunchSpec, MemoryKill, RankOutcome, TerminalSize};
pub use layout::{Distribution, EntryLaunch, LaunchShape};
pub use network::{Connectivity, Exposed, VniPool};
pub use node::{CUT_OFF, Hold, HoldKind, HoldReason, Leaving, NO_REASON, Node, NodeAddresses, NodeState, UNWELL, When, Wipe};
pub use node_ranks::NodeRanks;
pub use operator_token::OperatorToken;
pub use preemption::{PreemptCause, Preemption};
pub use principal::Principal;
pub use probe::{LivenessProbe, ProbeCheck};
pub use report::{NodeReport, ReportItem};
pub use resources::Resources;
pub use session::InteractiveSession;
pub use spec::{AllocationSpec, Entrypoint, Image, OnIsolation, RequeuePolicy};
pub use spec_error::SpecError;
pub use telemetry::{TelemetryMode, TelemetryOrder};
pub use tenant::{Quota, Tenant};
pub use time::Timestamp;
pub use topology::{Assignment, NodeTopology};
pub use vcluster::{DEFAULT_VCLUSTER, SchedulerKind, VCluster};
pub use work_usage::WorkUsage;

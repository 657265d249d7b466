//! Lattice's vocabulary: what every other crate means by an allocation, a share, a node, a launch.
//!
//! ```text
//!   AllocationSpec ──submit──▶ Allocation ──claim──▶ Share × nodes ──agents──▶ Launch × ranks
//!      (spec.rs)               (allocation.rs)        (claim.rs)                (launch.rs)
//! ```
//!
//! Everything here is plain data with its validation. No I/O, no clock, no randomness: times are
//! [`Timestamp`]s that somebody else took, ids are made by whoever creates the thing.

pub mod allocation;
pub mod audit;
pub mod binding;
pub mod claim;
pub mod config;
pub mod constraint;
pub mod data;
pub mod duration;
pub mod hostlist;
pub mod ids;
pub mod launch;
pub mod network;
pub mod node;
pub mod principal;
pub mod probe;
pub mod report;
pub mod resources;
pub mod session;
pub mod size;
pub mod spec;
pub mod tenant;
pub mod time;
pub mod topology;
pub mod vcluster;

pub use allocation::{Allocation, AllocationState, EndReason};
pub use audit::{AllocationPrefix, AuditAction, AuditFilter, AuditRecord};
pub use binding::{Placement, RankBinding};
pub use claim::{Claim, DesiredList, DesiredShare, Share, SharePhase};
pub use constraint::Constraints;
pub use data::{Data, DataMount};
pub use ids::{AllocationId, Boot, Epoch, Generation, Incarnation, LaunchId, MemberId, NodeId, Revision};
pub use launch::{LaunchSpec, MemoryKill, NodeRanks, RankOutcome, TerminalSize};
pub use network::{Connectivity, Exposed, VniPool};
pub use node::{Hold, HoldKind, Leaving, Node, NodeAddresses, NodeState};
pub use principal::Principal;
pub use probe::{LivenessProbe, ProbeCheck};
pub use report::{NodeReport, ReportItem};
pub use resources::Resources;
pub use session::InteractiveSession;
pub use spec::{AllocationSpec, Entrypoint, Image, RequeuePolicy, SpecError};
pub use tenant::{Quota, Tenant};
pub use time::Timestamp;
pub use topology::{Assignment, NodeTopology};
pub use vcluster::{DEFAULT_VCLUSTER, SchedulerKind, VCluster};

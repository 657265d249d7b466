//! What programs read of the cluster, as JSON: the output of `lattice -o json`, and the bodies of REST. The fields are
//! documented and stable.
//!
//! ```text
//!   v1::* ──From──▶ json::* ──serde──▶ lattice -o json, /api/v1/…
//!                      └──utoipa──▶ openapi.json
//! ```
//!
//! One file for each view. Times are RFC 3339 in UTC, or null. A text that the agent leaves empty is null.

mod allocation;
mod amount;
mod attempt;
mod audit;
mod checkpoint;
mod dag;
mod dry_run;
mod ended;
mod explanation;
mod history;
mod job_step;
mod lease;
mod node;
mod quorum;
mod reservation;
mod scaling;
mod service;
mod session;
mod state;
mod task;
mod tenant;
mod token;
mod usage;
mod values;
mod vcluster;
mod whoami;

pub use allocation::{AllocationJson, CheckpointRefJson, DependencyJson, ExposedJson, LastStderrLine};
pub use amount::AmountJson;
pub use attempt::AttemptJson;
pub use audit::AuditRecordJson;
pub use checkpoint::CheckpointJson;
pub use dag::{DagEdgeJson, DagJson, DagStepJson, DagSummaryJson, StepCountsJson};
pub use dry_run::{DryRunDependencyJson, DryRunJson};
pub use ended::EndedWorkJson;
pub use explanation::{ClaimConflictJson, ExplanationJson, JudgementJson, NodeReasonJson, RefusedClaimJson, ScoreJson};
pub use history::{AccountingStatusJson, HistoryJson, HistoryRecordJson, UseSumJson};
pub use job_step::{JobStepJson, JobStepTotalsJson, JobStepsJson};
pub use lease::{LeaseJson, ListedLeaseJson};
pub use node::{ConformanceJson, LocalDomainJson, NodeJson, WatchedNodeJson};
pub use quorum::{MemberJson, NotifiedJson, QuorumStatusJson};
pub use reservation::ReservationJson;
pub use scaling::{PolicyJson, ReadingJson, ScaleChangeJson, ScalingJson, ScalingStateJson};
pub use service::{EndpointJson, ServiceJson};
pub use session::SessionJson;
pub use state::{end_reason, ends_by_ms, has_nodes};
pub use task::{LaneJson, TaskCountsJson, TaskJson, TaskRangeJson, TasksJson, index_run, lanes_of_task, task_end_reason};
pub use tenant::{ProjectJson, TenantJson, TenantMemberJson};
pub use token::AccessTokenJson;
pub use usage::{BudgetMarkJson, UsageJson, UsageOf};
pub use values::{disclosed, filled, queue, time};
pub use vcluster::VClusterJson;
pub use whoami::{AuthenticationJson, PermissionJson, WhoAmIJson};

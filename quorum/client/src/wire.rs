//! Messages between agents and members: MessagePack with field names inside gRPC, with the model's
//! types on both ends.

mod answer;
mod audit_walk;
mod leader_status;
mod request;
mod session;
mod status;
mod watch;

// Results and commands of the ledger are sent unchanged.
pub use answer::{Answer, AuditFound, Claimed, EndedWorkPage, RefusedClaim, SignedPage};
pub use audit_walk::{AuditWalk, KeyPeriod};
pub use lattice_ledger::{
    ACCOUNTING_LEASE, Action, Conflict, DagCursor, DagFilter, DagStatus, DagSummary, DomainStatus, DrainRequest, Endpoint, HeldShare,
    LimitsStatus, ListCursor, ListFilter, NodeHealth, Refusal, ServiceStatus, TenantStatus, UpdateRefusal, VClusterStatus, VniPoolChange,
    VniPoolStatus, WantedLanes, WatchCursor,
};
pub use leader_status::{AdmissionsStatus, AdmittedNode, KeyRole, KeyStatus, KeyringStatus, LeaseStatus, WaitingNode};
pub use request::{
    ALLOCATIONS_ASKED_MAX, CLAIMS_MAX, ENDED_WORK_MAX, MembersChange, MembersOrder, NODES_ASKED_MAX, NODES_SAMPLED_MAX, Proof, Request,
};
pub use session::{Down, HeldKeys, MayMove, MemberList, Up};
pub use status::{ClockAlarm, MemberStatus, NotifyStatus, QuorumStatus};
pub use watch::{Change, WatchAllocations, WatchMessage, WatchRequest};

/// Largest size of a message in either direction, in bytes.
pub const MESSAGE_BYTES_MAX: usize = 64 * 1024 * 1024;

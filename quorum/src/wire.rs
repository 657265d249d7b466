//! What agents and members say to each other. MessagePack with field names inside gRPC, and one vocabulary (the
//! model's) on both ends.

mod answer;
mod audit_walk;
mod peers;
mod request;
mod session;
mod standing;
mod status;
mod watch;

// What the ledger answers with, and what its commands carry, is sent as it is.
pub use crate::ledger::{
    Conflict, DomainStanding, Endpoint, HeldShare, LimitsStanding, ListFilter, ListPlace, OPERATOR_REMEDY, Refusal, ServiceStanding,
    TenantStanding, VClusterStanding, VniPoolChange, VniPoolStanding, WalltimeRefusal, WatchPlace,
};
pub use answer::{Answer, AuditFound, RefusedClaim, SignedPage};
pub use audit_walk::{AuditWalk, KeyPeriod};
pub use peers::{AuditPage, AuditPageRequest, HeartbeatSummary, RosterAnswer, RosterQuestion, SummaryAnswer};
pub use request::{MembersChange, MembersOrder, Request};
pub(crate) use session::cut;
pub use session::{Down, DrainWish, HeldKeys, MemberList, NodeHealth, Up};
pub use standing::{AdmissionsStanding, AdmittedNode, KeyRole, KeyStanding, KeyringStanding, LeaseStanding, WaitingNode};
pub use status::{ClockAlarm, MemberStatus, NotifyStanding, QuorumStatus};
pub use watch::{Change, WatchAllocations, WatchMessage, WatchRequest};

/// The longest message either side takes, in bytes.
pub const MESSAGE_BYTES_MAX: usize = 64 * 1024 * 1024;

//! What agents and members say to each other. MessagePack with field names inside gRPC, and one vocabulary (the
//! model's) on both ends.

mod answer;
mod audit_walk;
mod peers;
mod refusal;
mod request;
mod session;
mod standing;
mod status;
mod watch;

pub use answer::{Answer, AuditFound, Endpoint, RefusedClaim, SignedPage};
pub use audit_walk::{AuditWalk, KeyPeriod};
pub use peers::{AuditPage, AuditPageRequest, HeartbeatSummary, RosterAnswer, RosterQuestion, SummaryAnswer};
pub use refusal::{Conflict, OPERATOR_REMEDY, Refusal, WalltimeRefusal};
pub use request::{ListFilter, ListPlace, MembersChange, MembersOrder, Request, VniPoolChange};
pub(crate) use session::cut;
pub use session::{Down, DrainWish, HeldKeys, HeldShare, MemberList, NodeHealth, Up};
pub use standing::{
    AdmissionsStanding, AdmittedNode, DomainStanding, KeyRole, KeyStanding, KeyringStanding, LeaseStanding, LimitsStanding,
    ServiceStanding, TenantStanding, VClusterStanding, VniPoolStanding, WaitingNode,
};
pub use status::{ClockAlarm, MemberStatus, NotifyStanding, QuorumStatus};
pub use watch::{Change, WatchAllocations, WatchMessage, WatchPlace, WatchRequest};

/// The longest message either side takes, in bytes.
pub const MESSAGE_BYTES_MAX: usize = 64 * 1024 * 1024;

//! Messages between agents and members: MessagePack with field names inside gRPC, with the model's
//! types on both ends.

mod answer;
mod audit_walk;
mod request;
mod session;
mod standing;
mod status;
mod watch;

// Results and commands of the ledger are sent unchanged.
pub use answer::{Answer, AuditFound, RefusedClaim, SignedPage};
pub use audit_walk::{AuditWalk, KeyPeriod};
pub use lattice_ledger::{
    Conflict, DomainStanding, DrainWish, Endpoint, HeldShare, LimitsStanding, ListFilter, ListPlace, NodeHealth, Refusal, ServiceStanding,
    TenantStanding, VClusterStanding, VniPoolChange, VniPoolStanding, WalltimeRefusal, WatchPlace,
};
pub use request::{MembersChange, MembersOrder, NODES_ASKED_MAX, NODES_SAMPLED_MAX, Request};
pub use session::{Down, HeldKeys, MayMove, MemberList, Up};
pub use standing::{AdmissionsStanding, AdmittedNode, KeyRole, KeyStanding, KeyringStanding, LeaseStanding, WaitingNode};
pub use status::{ClockAlarm, MemberStatus, NotifyStanding, QuorumStatus};
pub use watch::{Change, WatchAllocations, WatchMessage, WatchRequest};

/// Largest size of a message in either direction, in bytes.
pub const MESSAGE_BYTES_MAX: usize = 64 * 1024 * 1024;

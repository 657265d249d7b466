//! What agents ask of a member, and tell it to do.

use super::audit_walk::AuditWalk;
use lattice_ledger::{Access, Action, ListFilter, ListPlace};
use lattice_model::{AllocationId, AllocationSpec, AllocationState, AuditFilter, Claim, Incarnation, NodeId, OperatorToken, Principal};
use serde::{Deserialize, Serialize};

/// A question or command. Commands are answered when they are committed and applied; questions are linearizable.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Request {
    /// A command, as it is committed: who may ask for it stands in its row of the table in `ledger/action.rs`.
    Command(Box<Action>),
    /// Creates an allocation. Its id is the idempotency key: the same id with the same spec and owner again is the same
    /// success. `claim`: what the scheduler proposes for it, where the one who submits is the scheduler and sees room: it
    /// is taken in the same commit, or refused without a word, and the allocation waits as any other. `life`: answered
    /// with [`super::Answer::Submitted`], which tells the asking agent's own node what it is to do while it is in this life.
    Submit { id: AllocationId, spec: Box<AllocationSpec>, owner: Principal, claim: Option<Claim>, life: Option<Incarnation> },
    /// Whether such a submission would be taken now (success). Nothing is submitted.
    CheckSubmission { spec: Box<AllocationSpec>, owner: Principal },
    /// One allocation by its id or a unique prefix of it (at least 4 hexadecimal digits).
    GetAllocation { key: String },
    /// Allocations, newest first, at most `limit` (and 1,000), of this user alone where given, in these states alone where some are given.
    /// `before`: those behind this place alone, which is that of the last one of the answer before.
    ListAllocations { uid: Option<u32>, states: Vec<AllocationState>, limit: u32, before: Option<ListPlace>, filter: ListFilter },
    /// All nodes.
    ListNodes,
    /// A scheduler's proposal.
    Claim(Claim),
    /// Takes a lease for `ttl_ms`, for the agent of `holder` or a user beside it. Idempotent for the same holder: the token stays.
    AcquireLease { name: String, holder: NodeId, ttl_ms: u64, user: Option<Principal> },
    /// Audit records that fit `filter`, behind `after`, at most `limit` (and 10,000), in the order of the chain. An answer
    /// may have fewer: the next one begins behind its `upto`.
    QueryAudit { filter: AuditFilter, after: u64, limit: u32 },
    /// Checks a part of the chain on one member's disk: from its beginning, or from where `from` stopped.
    VerifyAudit { from: Option<Box<AuditWalk>> },
    /// The same as a query, signed by the leader. `end`: the export ends with this record; 0: with the last there is.
    ExportAudit { filter: AuditFilter, after: u64, end: u64 },
    /// Writes down an access before it happens. Answered when it is committed.
    RecordAccess(Access),
    /// How the members stand. Answered by the member asked, leader or not.
    Status,
    /// The hash of the state that the member asked has applied: the same on every member at the same revision.
    StateHash,
    /// How the members stand, as the leader sees them.
    Members,
    /// A change of the members, given again until it is done.
    ChangeMembers(MembersOrder),
    /// Gives a lease its whole time again. In the leader's memory: nothing is written.
    RenewLease { name: String, token: u64, holder: NodeId, user: Option<Principal> },
    /// All leases, by name.
    ListLeases,
    /// What stood against the last claim for an allocation, as the leader remembers it.
    RefusedClaim { id: AllocationId },
    /// Asks for the caller's next certificate: its name, role and hosts for the key that signed this request (PKCS#10, DER).
    /// Answered by the member asked, where it has the authority's key.
    RenewCertificate { request: Vec<u8> },
    /// All tenants, by name.
    ListTenants,
    /// The pool that network domains have their numbers from.
    GetVniPool,
    /// Network domains that have a number: of these tenants (of all where none is given), with this name (with any where none is given).
    ListDomains { tenants: Option<Vec<String>>, name: Option<String> },
    /// Names of services that are offered now, by these tenants (by all where none is given).
    ListServices { tenants: Option<Vec<String>> },
    /// Where a service is offered now, by these tenants (by all where none is given).
    LookupService { name: String, tenants: Option<Vec<String>> },
    /// Limits of the whole cluster.
    GetLimits,
    /// A question about allocations, nodes or tenants, answered by the member asked from what it has, agreed with nobody.
    Stale(Box<Request>),
    /// How the gossip keys stand.
    ListKeys,
    /// The names that were revoked.
    ListRevocations,
    /// Copies what the member asked has applied to the place that its configuration names. For members' certificates alone:
    /// an operator asks on a member's machine.
    Backup,
    /// All vClusters: `default` first, then by name.
    ListVClusters,
    /// All sessions, by allocation.
    ListSessions,
    /// A request that carries an operator's wish, with the proof that they made it. Who is recorded is that operator and the machine.
    AsOperator { token: OperatorToken, request: Box<Request> },
    /// Which nodes wait for admission, and which admitted names have not registered.
    ListAdmissions,
}

impl From<Action> for Request {
    fn from(action: Action) -> Self {
        Self::Command(Box::new(action))
    }
}

/// An operator's order.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MembersOrder {
    /// Who gives it. The name is the operator's whom the quorum knows by their token, at a machine.
    pub by: Principal,
    /// What is to be.
    pub change: MembersChange,
}

/// A change of the members. Each is idempotent.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum MembersChange {
    /// A member that runs with an empty folder learns, then votes.
    Add { id: u64, service: String, raft: String },
    /// A member loses its vote, then is forgotten.
    Remove { id: u64 },
    /// The same in one change of votes.
    Replace { old: u64, id: u64, service: String, raft: String },
    /// Another member leads: this one, or the one that has most of the log.
    Transfer { to: Option<u64> },
}

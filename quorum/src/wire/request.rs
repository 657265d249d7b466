//! What agents ask of a member, and tell it to do.

use super::audit_walk::AuditWalk;
use crate::ledger::keyring::Secret;
use crate::ledger::{Access, DomainKey, QuotaChange, TenantChange, UserLimitsChange, VClusterChange};
use lattice_model::{
    AllocationId, AllocationSpec, AllocationState, AuditFilter, Claim, Epoch, HoldKind, Incarnation, NodeId, OperatorToken, Preemption,
    Principal, TelemetryMode, Timestamp, When,
};
use serde::{Deserialize, Serialize};
use std::time::Duration;
use uuid::Uuid;

/// A question or command. Commands are answered when they are committed and applied; questions are linearizable.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Request {
    /// Creates an allocation. Its id is the idempotency key: the same id with the same spec and owner again is the same
    /// success. `claim`: what the scheduler proposes for it, where the one who submits is the scheduler and sees room: it
    /// is taken in the same commit, or refused without a word, and the allocation waits as any other. `life`: answered
    /// with [`super::Answer::Submitted`], which tells the asking agent's own node what it is to do while it is in this life.
    Submit { id: AllocationId, spec: Box<AllocationSpec>, owner: Principal, claim: Option<Claim>, life: Option<Incarnation> },
    /// Whether such a submission would be taken now (success). Nothing is submitted.
    CheckSubmission { spec: Box<AllocationSpec>, owner: Principal },
    /// Ends an allocation. Ended ones stay as they are (success).
    Cancel { id: AllocationId, by: Principal },
    /// Has an allocation save itself and give its nodes back: it is Suspended then, and otherwise ended. Of this claim: where it
    /// is over, its nodes are given back (success).
    Preempt {
        allocation: AllocationId,
        epoch: Epoch,
        by: Principal,
        order: Preemption,
        /// End work that cannot save itself all the same.
        kill: bool,
    },
    /// Ends this claim of an allocation and puts it back into the queue, to begin again, where its requeue rules let
    /// it. Where that claim is over, nothing is done (success).
    RequeueAllocation { allocation: AllocationId, epoch: Epoch, by: Principal, reason: String },
    /// Has an allocation that waits for nodes wait for none until it is resumed. One that is held already stays so (success).
    HoldAllocation { allocation: AllocationId, by: Principal },
    /// Gives an allocation that has not ended another walltime. `as_operator`: what an agent writes there is replaced; it is true where
    /// an operator's token comes with the request.
    SetWalltime { allocation: AllocationId, by: Principal, walltime: Duration, as_operator: bool },
    /// Has an allocation wait for nodes that was to stay Suspended until somebody says this.
    Resume { allocation: AllocationId, by: Principal },
    /// Has an allocation's work be measured in this mode on all of its nodes, for so long (Debug). `id` is the idempotency key.
    SetTelemetry { allocation: AllocationId, by: Principal, id: Uuid, mode: TelemetryMode, duration_ms: u64 },
    /// Drains a node ([`Request::SetHold`]), and has what runs there save itself and go elsewhere where it can. Checkpoints have ids
    /// made of `seed` and the allocation's; said again with another one, it is tried again.
    DrainUrgently { node: NodeId, by: String, reason: String, deadline: Option<When>, seed: Uuid },
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
    /// Gives a lease back, whatever holds there are.
    ReleaseLease { name: String, token: u64, user: Option<Principal> },
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
    /// Takes a lease away, where a token is given only that grant of it.
    RevokeLease { name: String, token: Option<u64>, by: String },
    /// Keeps new work and leases off a node. A further reason is appended. `until`: when it ends by itself; `deadline`, of a
    /// drain: when what is still there is ended. Both by the leader's clock.
    SetHold {
        node: NodeId,
        kind: HoldKind,
        by: String,
        reason: String,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        until: Option<When>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        deadline: Option<When>,
    },
    /// Lifts such a hold.
    LiftHold { node: NodeId, kind: HoldKind, by: String },
    /// What stood against the last claim for an allocation, as the leader remembers it.
    RefusedClaim { id: AllocationId },
    /// Asks for the caller's next certificate: its name, role and hosts for the key that signed this request (PKCS#10, DER).
    /// Answered by the member asked, where it has the authority's key.
    RenewCertificate { request: Vec<u8> },
    /// Creates a tenant, or changes its quotas. The same again is the same success.
    SetTenant { change: TenantChange, by: String },
    /// Forgets a tenant that has no work. Its name is without limits then.
    DeleteTenant { name: String, by: String },
    /// All tenants, by name.
    ListTenants,
    /// The pool that network domains have their numbers from.
    GetVniPool,
    /// Makes it another one. Domains keep the numbers that they have. The same again is the same success.
    SetVniPool { change: VniPoolChange, by: String },
    /// How long one network domain keeps its number without work, instead of what the pool says, until it is released.
    SetDomainGrace { domain: DomainKey, grace_ms: u64, by: String },
    /// Network domains that have a number: of these tenants (of all where none is given), with this name (with any where none is given).
    ListDomains { tenants: Option<Vec<String>>, name: Option<String> },
    /// Names of services that are offered now, by these tenants (by all where none is given).
    ListServices { tenants: Option<Vec<String>> },
    /// Where a service is offered now, by these tenants (by all where none is given).
    LookupService { name: String, tenants: Option<Vec<String>> },
    /// Limits of the whole cluster.
    GetLimits,
    /// Makes them other ones. The same again is the same success.
    SetLimits { sensitive_pool_size: QuotaChange, users: UserLimitsChange, by: String },
    /// A question about allocations, nodes or tenants, answered by the member asked from what it has, agreed with nobody.
    Stale(Box<Request>),
    /// Brings in a gossip key that the asker has drawn, or names the one that is being brought in. The leader takes the steps behind it.
    RotateKeys { secret: Secret, by: String },
    /// How the gossip keys stand.
    ListKeys,
    /// Certificates of this name, of any role, that were issued until now count no more, anywhere. The gossip key is replaced.
    Revoke { name: String, by: String, reason: String },
    /// The names that were revoked.
    ListRevocations,
    /// Copies what the member asked has applied to the place that its configuration names. For members' certificates alone:
    /// an operator asks on a member's machine.
    Backup,
    /// Creates a vCluster, or changes one. The same again is the same success.
    SetVCluster { change: VClusterChange, by: String },
    /// Forgets a vCluster that has no work. Its nodes are the default's then.
    DeleteVCluster { name: String, by: String },
    /// All vClusters: `default` first, then by name.
    ListVClusters,
    /// Opens a session in an allocation that runs and is held for one; for its owner alone.
    CreateSession { id: Uuid, allocation: AllocationId, by: Principal },
    /// Ends a session, and the allocation that is held for it.
    DeleteSession { id: Uuid, allocation: AllocationId, by: Principal },
    /// All sessions, by allocation.
    ListSessions,
    /// A node is being booted: it is expected back under another boot id.
    BootNode { node: NodeId, by: String, reason: String },
    /// Somebody vouches that nothing runs any more on a node that is not heard: its work is ended there. The same again is the
    /// same success.
    ConfirmDead { node: NodeId, by: String, reason: String },
    /// What a node's software and firmware are now is what is expected of it. The same again is the same success.
    AcceptDrift { node: NodeId, by: String, reason: String },
    /// A request that carries an operator's wish, with the proof that they made it. Who is recorded is that operator and the machine.
    AsOperator { token: OperatorToken, request: Box<Request> },
    /// A node is claimed by nobody until its own hook has wiped it. `force`: one that failed is tried again.
    Wipe { node: NodeId, by: String, reason: String, force: bool },
    /// A node of this name may register. The same again is the same success.
    Admit { node: NodeId, by: String, reason: String },
    /// It may not, as long as it has not. The same again is the same success.
    WithdrawAdmission { node: NodeId, by: String },
    /// Which nodes wait for admission, and which admitted names have not registered.
    ListAdmissions,
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

/// What becomes of the pool of VNIs. What is not said stays as it is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct VniPoolChange {
    /// See [`lattice_model::VniPool::start`].
    pub start: Option<u32>,
    /// See [`lattice_model::VniPool::end`].
    pub end: Option<u32>,
    /// See [`lattice_model::VniPool::grace_ms`].
    pub grace_ms: Option<u64>,
}

/// Which allocations a list has, besides whose they are and in which states; what is `None` matters not.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ListFilter {
    /// Their owner's name.
    pub user: Option<String>,
    /// Their own name.
    pub name: Option<String>,
    /// The vCluster in whose queue they stand or stood.
    pub vcluster: Option<String>,
    pub tenant: Option<String>,
    /// A node of their present or last claim.
    pub node: Option<NodeId>,
}

/// A place in the list of all allocations, the newest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct ListPlace {
    pub submitted_at: Timestamp,
    pub id: AllocationId,
}

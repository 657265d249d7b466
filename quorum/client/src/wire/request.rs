//! Requests from agents to members.

use super::audit_walk::AuditWalk;
use lattice_ledger::{Access, Action, DagCursor, DagFilter, ListCursor, ListFilter, UsageOf, WhichTasks};
use lattice_model::access::SubjectName;
use lattice_model::access_token::TokenId;
use lattice_model::{
    AllocationId, AllocationSpec, AllocationState, AuditFilter, Claim, DagSubmission, Epoch, Incarnation, LaneReport, NodeId,
    OperatorToken, Principal,
};
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;

/// Largest number of allocations in the answer to [`Request::GetAllocations`].
pub const ALLOCATIONS_ASKED_MAX: usize = 256;
/// Largest number of nodes in the answer to [`Request::GetNodes`].
pub const NODES_ASKED_MAX: usize = 1000;
/// Largest number of nodes in the answer to [`Request::SampleNodes`].
pub const NODES_SAMPLED_MAX: u32 = 64;
/// Largest number of records in the answer to [`Request::EndedWork`].
pub const ENDED_WORK_MAX: u32 = 1000;
/// Largest number of claims in one request.
pub const CLAIMS_MAX: usize = 256;

/// A query or a command. Commands are answered when they are committed and applied. Queries are
/// linearizable, except those that the receiving member answers by itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Request {
    /// A command in the form in which it is committed. The table in `quorum/ledger/src/action.rs`
    /// states who may request it.
    Command(Box<Action>),
    /// Creates an allocation. Its id is the idempotency key: repeating the same id with the same
    /// spec and owner is a success. `claim`: the scheduler's proposal, if the submitting agent is
    /// the scheduler and sees free nodes. It is granted in the same commit, or silently refused,
    /// and then the allocation waits like any other. `life`: if set, the answer is
    /// [`super::Answer::Submitted`]. That contains the list for the requesting agent's own node if
    /// the claim uses that node, the node is still in this incarnation, and the member that answers
    /// is the leader. `login_tenants`: as in [`Action::SubmitByLogin`].
    Submit {
        id: AllocationId,
        spec: Box<AllocationSpec>,
        owner: Principal,
        claim: Option<Claim>,
        life: Option<Incarnation>,
        login_tenants: BTreeSet<String>,
    },
    /// Checks whether such a submission would be accepted now (success). Nothing is submitted.
    CheckSubmission { spec: Box<AllocationSpec>, owner: Principal, login_tenants: BTreeSet<String> },
    /// One allocation by its job number, its id or a unique prefix of it (at least 4 hexadecimal digits).
    GetAllocation { key: String },
    /// As many [`Self::GetAllocation`], at most [`ALLOCATIONS_ASKED_MAX`]: answered with
    /// [`super::Answer::Allocations`]. The outcomes are those of the first keys, one at least, and
    /// fewer than asked for if the records are large. `node`: allocations of other nodes are unknown.
    /// For the certificate of a node, the member that receives the request sets it to that node.
    GetAllocations { keys: Vec<String>, node: Option<String> },
    /// Allocations, newest first, at most `limit` (and 1,000): of this user, if given; in these
    /// states, if any are given. `before`: only those after this position, which is that of the
    /// last allocation in the previous answer.
    ListAllocations { uid: Option<u32>, states: Vec<AllocationState>, limit: u32, before: Option<ListCursor>, filter: ListFilter },
    /// All nodes.
    ListNodes,
    /// The nodes with the first [`NODES_ASKED_MAX`] of these names; names that are not registered are
    /// left out.
    GetNodes { names: BTreeSet<NodeId> },
    /// `count` random nodes that are Ready, at most [`NODES_SAMPLED_MAX`].
    SampleNodes { count: u32 },
    /// A scheduler's proposals, at most [`CLAIMS_MAX`], which are committed in this order. Each is
    /// granted or refused separately.
    Claims(Vec<Claim>),
    /// A lane of a task group reports ended tasks, and gets the tasks that it may run: answered with
    /// [`super::Answer::LaneWork`]. Sent by the agent of the lane's head, `node`, with the lane's
    /// present epoch. A repetition changes nothing.
    AdvanceLane { id: AllocationId, epoch: Epoch, node: NodeId, report: LaneReport },
    /// The numbers of a task group's tasks, and the states of those that are asked for: answered with
    /// [`super::Answer::Tasks`].
    GetTasks { id: AllocationId, which: WhichTasks },
    /// Acquires a lease for `ttl_ms`, for the agent of `holder` or for a user on that node.
    /// Idempotent for the same holder and user: the token stays.
    AcquireLease { name: String, holder: NodeId, ttl_ms: u64, user: Option<Principal> },
    /// Audit records that match `filter`, after `after`, at most `limit` (and 10,000), in the order
    /// of the chain. An answer may have fewer: the next request starts after its `upto`. `by`: a user,
    /// who gets the records of their own work and of the work of tenants that they administer.
    /// `None`: an operator with a proof, who gets all records.
    QueryAudit { filter: AuditFilter, after: u64, limit: u32, by: Option<Principal> },
    /// Verifies a part of the chain on one member's disk: from its beginning, or from where `from`
    /// stopped.
    VerifyAudit { from: Option<Box<AuditWalk>> },
    /// As [`Self::QueryAudit`], but the leader signs the answer. `end`: the last record of the
    /// export; 0: the latest record.
    ExportAudit { filter: AuditFilter, after: u64, end: u64 },
    /// Records an access before it happens. Answered when it is committed.
    RecordAccess(Access),
    /// The state of the members. Answered by the receiving member, leader or not.
    Status,
    /// The hash of the state that the receiving member has applied: the same on every member at the
    /// same revision.
    StateHash,
    /// The state of the members as seen by the leader; without a leader, as seen by the receiving
    /// member.
    Members,
    /// A membership change; repeated by the caller until it is done.
    ChangeMembers(MembersOrder),
    /// Renews a lease for its full time to live, only in the leader's memory.
    RenewLease { name: String, token: u64, holder: NodeId, user: Option<Principal> },
    /// All leases, by name.
    ListLeases,
    /// Why the latest claim for an allocation was refused, from the leader's memory; or why the
    /// leader refuses all claims now.
    RefusedClaim { id: AllocationId },
    /// Requests the caller's next certificate: with the same name, role and hosts for the key that
    /// signed this request (PKCS#10, DER). Answered by the receiving member, if it has the
    /// authority's key.
    RenewCertificate { request: Vec<u8> },
    /// All tenants, by name.
    ListTenants,
    /// The VNI pool.
    GetVniPool,
    /// Network domains that have a VNI: of these tenants (`None`: all), with this name (`None`:
    /// any).
    ListDomains { tenants: Option<Vec<String>>, name: Option<String> },
    /// The names of services exposed now by these tenants (`None`: all).
    ListServices { tenants: Option<Vec<String>> },
    /// The endpoints of a service exposed now by these tenants (`None`: all).
    LookupService { name: String, tenants: Option<Vec<String>> },
    /// What a tenant, project or user has used in the last `days` days (`None`: the budget period).
    GetUsage { of: UsageOf, days: Option<u32> },
    /// The cluster-wide limits.
    GetLimits,
    /// A query about the applied state (allocations, nodes, tenants, vClusters, reservations, sessions, networks,
    /// services, usage or limits), answered by the receiving member from its own state without contacting
    /// others.
    Stale(Box<Request>),
    /// The state of the gossip keys.
    ListKeys,
    /// The revoked names.
    ListRevocations,
    /// Copies the receiving member's applied state to the backup location in its configuration.
    /// Only with a member's certificate: an operator runs the command on a member's machine.
    Backup,
    /// All vClusters: `default` first, then by name.
    ListVClusters,
    /// All reservations, by name.
    ListReservations,
    /// All sessions, by allocation.
    ListSessions,
    /// A request on behalf of an operator, with the proof that the operator made it. The operator
    /// and the machine are recorded as its author.
    AsOperator { proof: Proof, request: Box<Request> },
    /// The roles and tenants of a user in the ledger. The user also counts as a member of `login_tenants`. Of the tenants
    /// that are closed to the user, the answer contains only those in `about`, because such names are not public.
    StandingOf { by: Principal, login_tenants: BTreeSet<String>, about: BTreeSet<String> },
    /// All granted roles, sorted.
    ListRoles,
    /// The members of a tenant, sorted.
    ListTenantMembers { tenant: String },
    /// The registered projects of a tenant, by name: answered with [`super::Answer::Projects`].
    ListProjects { tenant: String },
    /// One token of the network API, unless it is revoked or forgotten: answered with
    /// [`super::Answer::TokenRecord`].
    TokenRecord { id: TokenId },
    /// The tokens of the network API of accounts of this name (`None`: all), by account, then by id.
    ListTokens { account: Option<SubjectName> },
    /// Nodes that wait for admission, and admitted names that have not registered.
    ListAdmissions,
    /// Checks whether such a DAG would be accepted now (success). Nothing is submitted.
    CheckDag { owner: Principal, dag: Box<DagSubmission>, login_tenants: BTreeSet<String> },
    /// One DAG with the states of its steps, by its id or a unique prefix of it (at least 4 hexadecimal
    /// digits).
    GetDag { key: String },
    /// DAGs without their steps, newest first, at most `limit` (and 1,000). `before`: only those after
    /// this position, which is that of the last DAG in the previous answer.
    ListDags { filter: DagFilter, limit: u32, before: Option<DagCursor> },
    /// Ended work that waits for the accounting store, with numbers above `after`, at most `limit` (and
    /// [`ENDED_WORK_MAX`]), and fewer if they are large: answered with [`super::Answer::EndedWork`]. With a
    /// limit of 0: only the counts. The store confirms the records that it has by [`Action::Account`].
    EndedWork { after: u64, limit: u32 },
}

impl From<Action> for Request {
    fn from(action: Action) -> Self {
        Self::Command(Box::new(action))
    }
}

/// The proof that somebody may act as an operator.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Proof {
    /// Signed with an operator's key. Its owner may do everything.
    Token(OperatorToken),
    /// An account for which the agent vouches, and the API method that it called, for example
    /// `NodeService/SetHold`. The account's roles must allow the method.
    Account { by: Principal, method: String },
}

/// An operator's membership change.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MembersOrder {
    /// Who orders it: the operator's name as verified by the token, and the machine.
    pub by: Principal,
    /// The change.
    pub change: MembersChange,
}

/// A membership change. Each is idempotent, except a `Transfer` without a named member.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum MembersChange {
    /// Adds a member that was started with an empty directory: first as a learner, then with a
    /// vote.
    Add { id: u64, service: String, raft: String },
    /// Removes a member: first its vote, then the member.
    Remove { id: u64 },
    /// Adds member `id` and removes member `old` in one change of votes.
    Replace { old: u64, id: u64, service: String, raft: String },
    /// Moves the leadership to this member; `None`: to one that answers, preferably with enough
    /// disk space, and among those to the one with most of the log.
    Transfer { to: Option<u64> },
}

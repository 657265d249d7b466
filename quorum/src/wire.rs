//! What agents and members say to each other. MessagePack with field names inside gRPC: additive, and one
//! vocabulary (the model's) on both ends.

use crate::audit::walk::AuditWalk;
use crate::ledger::keyring::{Keyring, Secret};
use crate::ledger::{Access, AuditHead, ClusterLimits, DomainKey, QuotaChange, TenantChange, VClusterChange};
use crate::roster::Roster;
use crate::store::room::Shortage;
use lattice_model::conformance::Components;
use lattice_model::lifecycle::{Event, Illegal};
use lattice_model::network::{DomainState, NoVni};
use lattice_model::tenant::Excess;
use lattice_model::{
    Allocation, AllocationId, AllocationSpec, AllocationState, AuditFilter, AuditRecord, Boot, Claim, DesiredList, DesiredShare,
    Entrypoint, Epoch, Generation, HoldKind, Incarnation, InteractiveSession, MemberId, Node, NodeAddresses, NodeId, NodeReport, NodeState,
    Preemption, Principal, Quota, ReportItem, Resources, Revision, SharePhase, TelemetryMode, Tenant, Timestamp, VCluster, VniPool, When,
};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use thiserror::Error;
use uuid::Uuid;

/// The longest message either side takes, in bytes.
pub const MESSAGE_BYTES_MAX: usize = 64 * 1024 * 1024;

/// A question or command. Commands are answered when they are committed and applied; questions are linearizable.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Request {
    /// Creates an allocation. Its id is the idempotency key: the same id with the same spec and owner again is the same
    /// success. `claim`: what the scheduler proposes for it, where the one who submits is the scheduler and sees room: it
    /// is taken in the same commit, or refused without a word, and the allocation waits as any other. `life`: answered, by members
    /// that know it, with [`Answer::Submitted`], which tells the asking agent's own node what it is to do while it is in this life.
    Submit {
        id: AllocationId,
        spec: Box<AllocationSpec>,
        owner: Principal,
        #[serde(default)]
        claim: Option<Claim>,
        #[serde(default)]
        life: Option<Incarnation>,
    },
    /// Ends an allocation. Ended ones stay as they are (success).
    Cancel { id: AllocationId, by: Principal },
    /// Has an allocation save itself and give its nodes back: it is Suspended then, and otherwise ended. Of this claim: where it
    /// is over, its nodes are given back (success).
    Preempt { allocation: AllocationId, epoch: Epoch, by: Principal, order: Preemption },
    /// Has an allocation wait for nodes that was to stay Suspended until somebody says this.
    Resume { allocation: AllocationId, by: Principal },
    /// Has an allocation's work be measured in this mode on all of its nodes, for so long (Debug). `id` is the idempotency key.
    SetTelemetry { allocation: AllocationId, by: Principal, id: Uuid, mode: TelemetryMode, duration_ms: u64 },
    /// Drains a node ([`Request::SetHold`]), and has what runs there save itself and go elsewhere where it can. Checkpoints have ids
    /// made of `seed` and the allocation's; said again with another one, it is tried again.
    DrainUrgently {
        node: NodeId,
        by: String,
        reason: String,
        #[serde(default)]
        deadline: Option<When>,
        seed: Uuid,
    },
    /// One allocation by its id or a unique prefix of it (at least 4 hexadecimal digits).
    GetAllocation { key: String },
    /// Allocations, newest first, at most `limit` (and 1,000), of this user alone where given, in these states alone where some are given.
    /// `before`: those behind this place alone, which is that of the last one of the answer before. `paged`: answered with
    /// [`Answer::AllocationPage`], by members that know it.
    ListAllocations {
        uid: Option<u32>,
        states: Vec<AllocationState>,
        limit: u32,
        #[serde(default)]
        before: Option<ListPlace>,
        #[serde(default)]
        paged: bool,
    },
    /// All nodes.
    ListNodes,
    /// A scheduler's proposal.
    Claim(Claim),
    /// Takes a lease for `ttl_ms`, for the agent of `holder` or a user beside it. Idempotent for the same holder: the token stays.
    AcquireLease {
        name: String,
        holder: NodeId,
        ttl_ms: u64,
        #[serde(default)]
        user: Option<Principal>,
    },
    /// Gives a lease back, whatever holds there are.
    ReleaseLease {
        name: String,
        token: u64,
        #[serde(default)]
        user: Option<Principal>,
    },
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
    SetLimits { sensitive_pool_size: QuotaChange, by: String },
    /// A question about allocations, nodes or tenants, answered by the member asked from what it has, agreed with nobody.
    Stale(Box<Request>),
    /// Brings in a gossip key that the asker has drawn, or names the one that is being brought in. The leader takes the steps behind it.
    RotateKeys { secret: Secret, by: String },
    /// How the gossip keys stand.
    ListKeys,
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
    /// A node is claimed by nobody until its own hook has wiped it. `force`: one that failed is tried again.
    Wipe { node: NodeId, by: String, reason: String, force: bool },
}

/// An operator's order.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MembersOrder {
    /// Who gives it.
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

/// What a [`Request`] is answered with.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Answer {
    /// The command is committed.
    Done { revision: Revision },
    /// The submission is committed. `desired`: all that the asking agent's own node is to do now, as [`Down::Desired`] will say it as
    /// well, where the claim that came along has that node and the one who answers leads.
    Submitted { revision: Revision, desired: Option<DesiredList> },
    /// The claim holds under this epoch.
    Claimed { epoch: Epoch, revision: Revision },
    /// One allocation.
    Allocation(Box<Allocation>),
    /// Some allocations. There may be more behind them, unless there are none.
    Allocations(Vec<Allocation>),
    /// Some allocations, and whether there are more behind them.
    AllocationPage { allocations: Vec<Allocation>, more: bool },
    /// All nodes.
    Nodes(Vec<Node>),
    /// The lease is held under this fencing token for `ttl_ms` from the moment the request was sent.
    Lease { token: u64, ttl_ms: u64 },
    /// Some audit records.
    Audit(AuditFound),
    /// So much of the chain holds.
    AuditVerified(Box<AuditWalk>),
    /// A signed page of an export.
    AuditExported(SignedPage),
    /// How the members stand.
    Status(QuorumStatus),
    /// SHA-256 of the state as of this revision, in hexadecimal digits.
    StateHash { revision: Revision, hash: String },
    /// How far a change of the members is.
    Changed { done: bool, text: String },
    /// All leases, by name.
    Leases(Vec<LeaseStanding>),
    /// `None`: the last one was taken, or is forgotten.
    RefusedClaim(Option<RefusedClaim>),
    /// A certificate, PEM.
    Certificate { pem: String },
    /// The backup is whole.
    Backup { name: String, url: String, revision: Revision, audit_records: u64 },
    /// All tenants, by name.
    Tenants(Vec<TenantStanding>),
    /// The pool of VNIs, and what of it is in use.
    VniPool(VniPoolStanding),
    /// Network domains, by tenant and name.
    Domains(Vec<DomainStanding>),
    /// Names of services, by tenant and name; `more`: there are others behind them.
    Services { services: Vec<ServiceStanding>, more: bool },
    /// Where a service is offered; `more`: elsewhere as well.
    Endpoints { endpoints: Vec<Endpoint>, more: bool },
    /// Limits of the whole cluster, and what there is of them.
    Limits(LimitsStanding),
    /// What the member had `age_ms` ago at the latest, when it last was in touch with the leader, or as leader with a majority.
    Stale { age_ms: u64, answer: Box<Answer> },
    /// This gossip key is brought in.
    KeyAdded { id: u32 },
    /// How the gossip keys stand.
    Keyring(KeyringStanding),
    /// All vClusters: `default` first, then by name.
    VClusters(Vec<VClusterStanding>),
    /// All sessions, by allocation.
    Sessions(Vec<InteractiveSession>),
}

/// The gossip keys, without their secrets, and how far the agents are with them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeyringStanding {
    /// The older one first.
    pub keys: Vec<KeyStanding>,
    /// Nodes that are not Down: those that count.
    pub nodes: u64,
    /// Nodes that the next step of a rotation waits for; the first 16 of them.
    pub awaited: Vec<NodeId>,
    /// How many they are.
    pub awaited_all: u64,
}

/// One key in a [`KeyringStanding`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeyStanding {
    pub id: u32,
    /// When it was brought in; `None`: it is the one of the agents' configuration.
    pub made_at: Option<Timestamp>,
    /// By whom.
    pub made_by: Option<String>,
    pub role: KeyRole,
    /// Nodes that open with it, as they last told this leader.
    pub have: u64,
    /// Nodes that seal with it.
    pub seal: u64,
}

/// What a key does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum KeyRole {
    /// It is given to the nodes, which open with it; it will seal.
    BroughtIn,
    Seals,
    /// It sealed until now.
    Opens,
}

/// The gossip keys that an agent has, on its disk and in use.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HeldKeys {
    /// Their ids.
    pub opens: Vec<u32>,
    /// The id of the one that it seals with.
    pub seals: u32,
}

impl HeldKeys {
    /// More ids than an agent can have are not believed.
    const MAX: usize = 8;

    /// As far as it is believed.
    pub fn bounded(mut self) -> Self {
        self.opens.truncate(Self::MAX);
        self
    }
}

/// How an agent finds its node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum NodeHealth {
    Well,
    /// Work goes on, and none comes.
    Unwell {
        why: String,
    },
    /// A check that the site trusts with it found that the hardware failed.
    Failed {
        why: String,
    },
}

impl NodeHealth {
    /// Bytes that are believed of a reason.
    const WHY_BYTES_MAX: usize = 512;
    /// Of one that becomes a hold's.
    const FAILURE_BYTES_MAX: usize = 256;

    /// As far as it is believed.
    pub fn bounded(self) -> Self {
        match self {
            Self::Well => Self::Well,
            Self::Unwell { why } => Self::Unwell { why: cut(why, Self::WHY_BYTES_MAX) },
            Self::Failed { why } => Self::Failed { why: cut(why, Self::FAILURE_BYTES_MAX) },
        }
    }
}

/// What others say, as long as it may be.
pub(crate) fn cut(mut why: String, most: usize) -> String {
    why.retain(|c| !c.is_control());
    let end = (0..=why.len().min(most)).rev().find(|end| why.is_char_boundary(*end));
    why.truncate(end.unwrap_or_default());
    why
}

/// A place in the list of all allocations, the newest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct ListPlace {
    pub submitted_at: Timestamp,
    pub id: AllocationId,
}

/// A tenant and what it has.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TenantStanding {
    pub tenant: Tenant,
    /// Nodes that its allocations have.
    pub nodes: u32,
    /// Its allocations that have nodes.
    pub allocations: u32,
}

/// A vCluster and what it has.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct VClusterStanding {
    pub vcluster: VCluster,
    /// Its own nodes; of `default` all that are no other one's.
    pub nodes: BTreeSet<NodeId>,
    /// Its allocations that wait.
    pub pending: u32,
    /// Its allocations that have nodes.
    pub running: u32,
    /// The node whose agent serves its queue at present.
    pub served_by: Option<NodeId>,
}

/// What becomes of the pool of VNIs. What is not said stays as it is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct VniPoolChange {
    /// See [`VniPool::start`].
    pub start: Option<u32>,
    /// See [`VniPool::end`].
    pub end: Option<u32>,
    /// See [`VniPool::grace_ms`].
    pub grace_ms: Option<u64>,
}

/// The pool of VNIs and what of it is in use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct VniPoolStanding {
    pub pool: VniPool,
    /// Domains that have one of its numbers.
    pub used: u32,
    /// Domains that have a number which it had once.
    pub outside: u32,
}

/// A network domain as the leader sees it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DomainStanding {
    pub tenant: String,
    pub name: String,
    pub vni: u32,
    /// Its allocations that have nodes.
    pub members: Vec<AllocationId>,
    pub state: DomainState,
    /// For how long it keeps its number without work.
    pub grace_ms: u64,
    /// Where none has: nodes that have not said yet that nothing of its work is left there.
    pub nodes: Vec<NodeId>,
}

/// A name under which running allocations of a tenant offer something.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServiceStanding {
    pub tenant: String,
    pub name: String,
    pub endpoints: u32,
    /// By how many allocations.
    pub allocations: u32,
}

/// Where a service is offered.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Endpoint {
    pub tenant: String,
    pub allocation: AllocationId,
    pub node: NodeId,
    /// By which other nodes reach that one.
    pub host: String,
    pub port: u16,
    pub protocol: String,
}

/// Limits of the whole cluster, and what there is of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LimitsStanding {
    pub limits: ClusterLimits,
    /// Nodes that are claimed for sensitive use.
    pub sensitive_nodes: u32,
}

/// A lease as the leader sees it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeaseStanding {
    pub name: String,
    pub holder: NodeId,
    /// For whom the holder's agent vouches; `None`: for itself.
    pub user: Option<String>,
    pub token: u64,
    pub ttl_ms: u64,
    /// How long it lives from now if it is not renewed, by the leader's clock; `None` where that has not begun.
    pub left_ms: Option<u64>,
    /// Why nobody should go on holding a lease at this node.
    pub bad: Option<String>,
}

/// Records of the audit log that fit a filter.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AuditFound {
    /// In the order of the chain.
    pub records: Vec<AuditRecord>,
    /// All records up to this one were looked at.
    pub upto: u64,
    /// The last one to be looked at.
    pub end: u64,
}

/// A page of an export; see [`crate::audit::export`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SignedPage {
    /// The JSON text that is signed.
    pub body: String,
    /// Who signed.
    pub member: MemberId,
    /// The public half of the key, 64 hexadecimal digits.
    pub key: String,
    /// Ed25519 over the bytes of `body`, 128 hexadecimal digits.
    pub signature: String,
    /// All records up to this one were looked at.
    pub upto: u64,
    /// The last one to be looked at.
    pub end: u64,
}

/// Why a request was not granted. A refusal changed nothing.
#[derive(Clone, Debug, PartialEq, Eq, Error, Serialize, Deserialize)]
pub enum Refusal {
    #[error("there is no allocation {key}")]
    NoSuchAllocation { key: String },
    #[error("{key} could be any of {}: give more digits", candidates.join(", "))]
    AmbiguousAllocation { key: String, candidates: Vec<String> },
    #[error("allocation {id} exists already, with another specification or owner")]
    AllocationExists { id: AllocationId },
    #[error("allocation {id} belongs to {owner}")]
    NotYours { id: AllocationId, owner: String },
    #[error("there is no node {node}")]
    NoSuchNode { node: NodeId },
    #[error("allocation {id} is {state}, not Pending")]
    NotPending { id: AllocationId, state: AllocationState },
    #[error("allocation {id} was requeued {now} times, the claim saw {seen}")]
    StaleRequeueCount { id: AllocationId, seen: u32, now: u32 },
    /// Up to 16 conflicts.
    #[error("the claim conflicts with what stands: {}", conflicts.iter().map(ToString::to_string).collect::<Vec<_>>().join("; "))]
    Conflict { conflicts: Vec<Conflict> },
    #[error("the claim is malformed: {why}")]
    MalformedClaim { why: String },
    #[error("lease {name} is held by {}node {holder}", user.as_ref().map(|u| format!("{u} at ")).unwrap_or_default())]
    LeaseHeld {
        name: String,
        holder: NodeId,
        #[serde(default)]
        user: Option<String>,
        /// Of a role's own lease: its token, under which every agent of that role may act while it stands.
        #[serde(default)]
        token: Option<u64>,
    },
    #[error("lease token {token} is not the present one of {name}")]
    StaleLease { name: String, token: u64 },
    /// The work under that claim was taken from the node: it ends there.
    #[error(
        "allocation {id} is claimed anew, or waits to be, after epoch {seen} (its last one is {now}): what is reported of {seen} counts no more"
    )]
    StaleEpoch { id: AllocationId, seen: Epoch, now: Epoch },
    #[error("node {node} is registered as incarnation {now}; this report is of {seen}")]
    StaleIncarnation { node: NodeId, seen: Incarnation, now: Incarnation },
    #[error("this needs the certificate role {needed}; the caller's is {role}")]
    Role { needed: String, role: String },
    #[error("{what} has {bytes} bytes; at most {most} are taken")]
    TooLarge { what: String, bytes: u64, most: u64 },
    #[error("the request is malformed: {why}")]
    Malformed { why: String },
    #[error("this is for operators; {name} is none")]
    NotOperator { name: String },
    #[error("{why}")]
    Members { why: String },
    #[error("the walk along the audit chain began on member {began}, this is member {this}: begin again")]
    OtherMember { began: MemberId, this: MemberId },
    #[error("the audit chain is broken at record {seq}: {why}")]
    AuditBroken { seq: u64, why: String },
    /// The caller should try another member, or again later.
    #[error("there is no answer now: {why}")]
    Unavailable { why: String },
    #[error("node {node} is under {kind} by {by}: {reason}")]
    Held { node: NodeId, kind: HoldKind, by: String, reason: String },
    #[error("there is no lease {name}")]
    NoSuchLease { name: String },
    #[error("lease {name} is {owner}'s")]
    LeaseNotYours { name: String, owner: String },
    #[error("allocation rejected: {0}")]
    Quota(Excess),
    #[error("there is no tenant {name:?}")]
    NoSuchTenant { name: String },
    #[error("tenant {name:?} exists already, with other quotas")]
    TenantExists { name: String },
    #[error("tenant {name:?} has work: {live} allocations have not ended")]
    TenantHasWork { name: String, live: u64 },
    #[error("there are {most} {what} already, and no more are taken")]
    TooMany { what: String, most: u64 },
    /// The caller should ask the one that does lead, where it is named, or again later.
    #[error("{}", leader.map_or("no member leads at present".to_owned(), |leader| format!("member {leader} leads")))]
    NotLeader { leader: Option<MemberId> },
    /// The leader has too little room on its disk, or so many others have that no majority is left.
    #[error("{}", short.iter().map(|(id, shortage)| format!("member {id}: {shortage}")).collect::<Vec<_>>().join("; "))]
    DiskFull { short: Vec<(MemberId, Shortage)> },
    #[error("no backup was made: {why}")]
    NoBackup { why: String },
    #[error("not yet at this cluster level: this needs level {needed}, the cluster has agreed on {now}")]
    ClusterLevel { needed: u32, now: u32 },
    /// Some of those that there are, and how many that is.
    #[error("vCluster {name:?} not found; there {}", told(known, *all))]
    NoSuchVCluster { name: String, known: Vec<String>, all: u64 },
    #[error("vCluster {name} exists already, with another scheduler, tenant or nodes")]
    VClusterExists { name: String },
    #[error("vCluster {name} has work: {live} allocations have not ended")]
    VClusterHasWork { name: String, live: u64 },
    #[error("vCluster {name} takes work of tenant {tenant:?} alone; this is of {}", if given.is_empty() { "none".to_owned() } else { format!("{given:?}") })]
    VClusterOfTenant { name: String, tenant: String, given: String },
    #[error("node {node} is of vCluster {vcluster} already")]
    NodeHasHome { node: NodeId, vcluster: String },
    #[error("allocation {id} is {state}, not Running")]
    NotRunning { id: AllocationId, state: AllocationState },
    #[error("allocation {id} is not held for a session")]
    NotASession { id: AllocationId },
    #[error("allocation {id} has session {session} on {node} already, and has one at most")]
    SessionExists { id: AllocationId, session: Uuid, node: NodeId },
    #[error("there is no session {id}")]
    NoSuchSession { id: Uuid },
    #[error(transparent)]
    NoVni(NoVni),
    #[error("no service {name:?} is offered now")]
    NoSuchService { name: String },
    #[error("there is no network domain {name:?}")]
    NoSuchDomain { name: String },
    #[error("node {node}: {illegal}")]
    NodeState { node: NodeId, illegal: Illegal },
    #[error("node {node} is {state}: it is heard, so it is not dead")]
    NodeHeard { node: NodeId, state: NodeState },
    #[error("node {node} has not told what its software and firmware are")]
    NoFingerprint { node: NodeId },
    #[error("node {node} cannot be wiped: its agent has no wipe_hook")]
    NoWipeHook { node: NodeId },
    #[error("the last wipe of node {node} failed: {why}")]
    WipeFailed { node: NodeId, why: String },
    #[error("allocation {id} cannot be preempted: {why}")]
    NotPreemptible { id: AllocationId, why: String },
    #[error("allocation {id} is {state}, not Suspended")]
    NotSuspended { id: AllocationId, state: AllocationState },
    #[error("allocation {id} cannot be measured in this mode: {why}")]
    TelemetryMode { id: AllocationId, why: String },
}

fn told(known: &[String], all: u64) -> String {
    let shown = known.join(", ");
    let more = all.saturating_sub(known.len() as u64);
    if more == 0 { format!("are {shown}") } else { format!("are {shown} and {more} more") }
}

/// What to do where a node's state stands against something.
fn remedy_of(node: &NodeId, illegal: Illegal) -> Option<String> {
    let wait =
        || format!("`lattice node status {node}` shows what it waits for, `lattice node drain {node} --wait --reason ...` waits for it");
    match (illegal.event, illegal.state) {
        (Event::DrainLifted, NodeState::Draining) => Some(wait()),
        (Event::DrainLifted, _) => Some("it is Drained again when its agent is heard, and may be undrained then".to_owned()),
        (Event::BootBegun, NodeState::Down) => Some(format!(
            "`{} {node}` or `{} {node}` first, as `lattice node status {node}` shows it",
            HoldKind::Disable.exit(),
            HoldKind::Failure.exit()
        )),
        (Event::BootBegun, _) => Some(format!("drain it first: `lattice node drain {node} --wait --reason ...`")),
        _ => None,
    }
}

impl Refusal {
    /// What to do about it, where there is something.
    pub fn remedy(&self) -> Option<String> {
        Some(match self {
            Self::Held { node, kind: HoldKind::Wipe, .. } => {
                format!("it ends when the node's wipe hook confirms it (`lattice node status {node}` shows how far that is); `lattice node unwipe {node}` calls it back before")
            }
            Self::Held { node, kind, .. } => format!("work and leases stay off it until an operator lifts that: `{} {node}`", kind.exit()),
            Self::ClusterLevel { .. } => {
                "the level rises by itself when every member runs a version that knows it: `lattice quorum status` shows who lacks it"
                    .to_owned()
            }
            Self::NoSuchLease { .. } => "`lattice lease list` shows those that there are".to_owned(),
            Self::StaleLease { .. } => {
                "it ended, or was revoked: stop what you do under it, and take it again with `lattice lease grant`".to_owned()
            }
            Self::LeaseHeld { .. } => "it is free when its holder gives it back or lets it end: `lattice lease list` shows when".to_owned(),
            Self::LeaseNotYours { .. } => "an operator can revoke it: `lattice lease revoke`".to_owned(),
            Self::Quota(Excess { quota: Quota::SensitivePoolSize, .. }) => {
                "wait for sensitive work to end, or ask an operator for more: `lattice admin limits` shows the limit and what is claimed".to_owned()
            }
            Self::Quota(_) => {
                "wait for running allocations to complete, cancel some, or ask your tenant's administrator for more: `lattice admin tenant list` \
                 shows what is in use"
                    .to_owned()
            }
            Self::NoSuchTenant { .. } => "`lattice admin tenant list` shows those that there are".to_owned(),
            Self::TenantExists { name } => format!("change them with `lattice admin tenant update {name}`"),
            Self::TenantHasWork { .. } => "wait for it, or cancel it".to_owned(),
            Self::NoSuchVCluster { .. } => "`lattice vcluster list` shows them, and whose work each takes".to_owned(),
            Self::VClusterExists { name } => format!("change it with `lattice admin vcluster set-config --name {name}`"),
            Self::VClusterHasWork { .. } => "wait for it, or cancel it".to_owned(),
            Self::VClusterOfTenant { tenant, .. } => {
                format!("say --tenant {tenant} where that pays for it, or leave --vcluster out: the default takes everybody's")
            }
            Self::NodeHasHome { vcluster, .. } => {
                format!("take it away there first: `lattice admin vcluster set-config --name {vcluster} --nodes ...` with all that are to stay")
            }
            Self::NotASession { .. } | Self::SessionExists { .. } => "`lattice attach ID` opens a terminal in an allocation that runs".to_owned(),
            Self::NoSuchSession { .. } => "`lattice session list` shows yours".to_owned(),
            Self::NoVni(no_vni) => no_vni.remedy().to_owned(),
            Self::NoSuchService { .. } => {
                "a service is there while an allocation that offers it runs: `lattice service list` shows those that there are".to_owned()
            }
            Self::NoSuchDomain { .. } => {
                "a domain is there from its first allocation's claim to its grace's end: `lattice network list` shows those that there are".to_owned()
            }
            Self::NodeState { node, illegal } => return remedy_of(node, *illegal),
            Self::NodeHeard { node, .. } => {
                format!("`lattice node disable {node}` ends what it runs and takes it out of service; a node that is dead is Degraded soon")
            }
            Self::NoFingerprint { .. } => "its agent tells it when it is connected, from the version on that knows of it".to_owned(),
            Self::NoWipeHook { .. } => "set wipe_hook in its agent's configuration and start the agent again; one that has it is known within a heartbeat".to_owned(),
            Self::WipeFailed { node, .. } => format!("mend what it says, then `lattice node wipe {node} --force --reason ...`"),
            Self::NotSuspended { .. } => "what is Suspended and held can be resumed: `lattice status ID` says whether one is".to_owned(),
            Self::TelemetryMode { .. } => {
                "raw measurements go to the log store: it takes agents of this version with `log_store` in their configuration; `lattice nodes` \
                 shows those with the feature telemetry_debug"
                    .to_owned()
            }
            Self::TooMany { .. } => "give back what is not needed any more".to_owned(),
            Self::DiskFull { .. } => {
                "make room there, and it goes on by itself; or let a member lead whose disk has room: `lattice quorum transfer-leader`. Work that \
                 runs goes on"
                    .to_owned()
            }
            Self::NoSuchAllocation { .. }
            | Self::AmbiguousAllocation { .. }
            | Self::AllocationExists { .. }
            | Self::NotYours { .. }
            | Self::NoSuchNode { .. }
            | Self::NotPending { .. }
            | Self::NotRunning { .. }
            | Self::NotPreemptible { .. }
            | Self::StaleRequeueCount { .. }
            | Self::StaleEpoch { .. }
            | Self::Conflict { .. }
            | Self::MalformedClaim { .. }
            | Self::StaleIncarnation { .. }
            | Self::Role { .. }
            | Self::TooLarge { .. }
            | Self::Malformed { .. }
            | Self::OtherMember { .. }
            | Self::AuditBroken { .. }
            | Self::NotOperator { .. }
            | Self::Members { .. }
            | Self::NotLeader { .. }
            | Self::NoBackup { .. }
            | Self::Unavailable { .. } => return None,
        })
    }
}

/// One node that stood against a claim.
#[derive(Clone, Debug, PartialEq, Eq, Error, Serialize, Deserialize)]
#[error("{node}: {why}")]
pub struct Conflict {
    /// The node.
    pub node: NodeId,
    /// The allocation that has what was wanted, where it is one.
    pub holder: Option<AllocationId>,
    /// What stood against it.
    pub why: String,
}

/// A claim that was refused.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RefusedClaim {
    /// For whom nodes were claimed.
    pub allocation: AllocationId,
    /// When.
    pub at: Timestamp,
    /// What stood against it, at most 16.
    pub conflicts: Vec<Conflict>,
}

/// From an agent, up its session.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Up {
    /// Opens the session; answered by [`Down::Registered`].
    Register {
        node: NodeId,
        boot: Boot,
        size: Resources,
        addresses: NodeAddresses,
        schedulable: bool,
        /// The incarnation it had before, 0 at the first start: the quorum issues a higher one.
        incarnation: Incarnation,
        /// Whether this is a new life of the agent (a reconnect of the same life keeps its incarnation).
        new_life: bool,
        /// What its kernel cannot limit; see [`lattice_model::Node::unlimited`].
        #[serde(default)]
        unlimited: Vec<String>,
        /// What work may ask for of it; see [`lattice_model::Node::features`].
        #[serde(default)]
        features: Vec<String>,
        /// Said by an agent that lost its memory, or never had one: what it found of its work on the node. All else that
        /// the quorum believes there is lost.
        #[serde(default)]
        found: Option<Vec<(AllocationId, Epoch)>>,
        /// The gossip keys that it has; `None` from one of a version that takes no [`Down::Keyring`].
        #[serde(default, skip_serializing_if = "Option::is_none")]
        keys: Option<HeldKeys>,
        /// Whether it answers [`Down::Hear`].
        #[serde(default)]
        hears: bool,
        /// The agent that carries this session, where no member was reached without.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        through: Option<NodeId>,
        /// Whether it has the site's hook that wipes the node.
        #[serde(default)]
        wipes: bool,
    },
    /// All that the node has and has not reported yet, said once to a quorum of a higher generation than its last list's,
    /// before anything else: a quorum that was recovered from a backup does not know it. It stops nothing until it has a
    /// list of that generation.
    Holds { incarnation: Incarnation, held: Vec<HeldShare>, unreported: Vec<ReportItem> },
    /// I live. About every `heartbeat_ms`, and as soon as the gossip keys are others.
    Heartbeat {
        incarnation: Incarnation,
        seq: u64,
        /// The gossip keys that it has.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        keys: Option<HeldKeys>,
        /// How it finds its node.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        health: Option<NodeHealth>,
        /// What the node's software and firmware are: at the beginning of a session, and when they are others.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        conformance: Option<Components>,
    },
    /// The wipe of [`DesiredList::wipe`] is over; `failed`: what went wrong. Said until the list lacks it.
    Wiped {
        order: u64,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        failed: Option<String>,
    },
    /// Something to be committed; sent again until acknowledged.
    Report(NodeReport),
    /// The answer to a [`Down::Hear`]: those of the nodes that this agent's gossip has alive.
    Hears { alive: Vec<NodeId> },
}

/// One share as its node has it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HeldShare {
    /// As the quorum once said it.
    pub share: DesiredShare,
    /// How far the node is with it; `None`: it is being taken away.
    pub phase: Option<SharePhase>,
}

impl HeldShare {
    /// About how many bytes it takes in a message.
    pub fn bytes_about(&self) -> usize {
        let script = match &self.share.spec.entrypoint {
            Entrypoint::Script { text, .. } => text.len(),
            Entrypoint::Command { .. } => 0,
        };
        512 + self.share.spec.bytes_without_script() + script + self.share.nodes.len() * 64
    }
}

/// From a member, down an agent's session.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Down {
    /// The registration is committed.
    Registered {
        incarnation: Incarnation,
        generation: Generation,
        cluster: String,
        heartbeat_ms: u64,
        /// The last report of this incarnation that was acknowledged.
        report_seq: u64,
        /// Who the members are, for the next connect.
        members: MemberList,
    },
    /// The members changed.
    Members(MemberList),
    /// All that the node is to do now. Sent after registration and after each change that concerns the node.
    Desired(DesiredList),
    /// Reports up to `seq` of this incarnation are committed. `superseded`: claims that some of them spoke of and that do not
    /// stand any more ([`Refusal::StaleEpoch`]): the node stops what it has of them.
    Acked {
        incarnation: Incarnation,
        seq: u64,
        #[serde(default)]
        superseded: Vec<(AllocationId, Epoch)>,
    },
    /// A leader-acknowledged heartbeat.
    HeartbeatAck { seq: u64 },
    /// The session is over; connect to another member.
    Close { why: String },
    /// This member leads now, and leaves sessions to the others: the next one takes it. Only to agents that were ready to
    /// move when they opened the session.
    Move,
    /// The gossip keys, behind [`Down::Registered`] and at each change; none while agents use their configuration's. The newest ring
    /// (by generation, then by its revision) is the true one, whoever sent it last. Only to agents that said that they take it.
    Keyring { generation: Generation, ring: Keyring },
    /// Nothing comes of these nodes to the quorum: which of them does gossip have alive? Only to agents that said that they answer.
    Hear { nodes: Vec<NodeId> },
}

/// The members that vote, as agents need them. The newest list is the true one, whoever sent it last.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemberList {
    /// Of the recovery: a recovered quorum's lists are newer than all before.
    pub generation: Generation,
    /// The log index of the membership.
    pub since: u64,
    /// Every member's service address, `host:port`.
    pub services: Vec<String>,
}

impl MemberList {
    /// Whether this list is newer than `other`.
    pub fn is_newer_than(&self, other: &Self) -> bool {
        (self.generation, self.since) > (other.generation, other.since)
    }
}

/// A place in all that a watch may tell: everything up to `revision` is known.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct WatchPlace {
    /// Of the recovery: another one's revisions are other entries.
    pub generation: Generation,
    pub revision: Revision,
}

/// Opens a watch.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WatchRequest {
    /// Whether nodes are wanted (all of them).
    pub nodes: bool,
    /// Which allocations are wanted.
    pub allocations: WatchAllocations,
    /// Of these, this user's alone.
    #[serde(default)]
    pub uid: Option<u32>,
    /// Whether tenants are wanted (all of them).
    #[serde(default)]
    pub tenants: bool,
    /// Whether leases are wanted (all of them).
    #[serde(default)]
    pub leases: bool,
    /// Whether vClusters are wanted (all of them).
    #[serde(default)]
    pub vclusters: bool,
    /// Whether network domains and the pool of their numbers are wanted.
    #[serde(default)]
    pub domains: bool,
    /// Whether the watcher knows [`Change::Changes`] and [`Change::StartAgain`]. One that does not is told each change alone, and
    /// starts again whenever its stream ends.
    #[serde(default)]
    pub resumable: bool,
    /// What the watcher has already, of the same kinds of things: only what came after is told. `None`: it has nothing.
    #[serde(default)]
    pub since: Option<WatchPlace>,
}

impl WatchRequest {
    /// A watch of nothing yet, that can be resumed.
    pub fn nothing() -> Self {
        let allocations = WatchAllocations::None;
        Self {
            nodes: false,
            allocations,
            uid: None,
            tenants: false,
            leases: false,
            vclusters: false,
            domains: false,
            resumable: true,
            since: None,
        }
    }
}

/// Which allocations a watch is about.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum WatchAllocations {
    None,
    /// All that have not ended; one that ends is sent once more, ended.
    Live,
    /// This one, ended or not.
    One(AllocationId),
}

/// What a watch says, in the order of revisions. A watcher that is too slow is cut off.
///
/// ```text
///   resumable, from nothing:  Start, Changes … complete (the list)    then Changes for each entry that concerns it
///   resumable, since a place: Changes … up to now                     then the same; or StartAgain, and the end
///   not resumable:            Start with the list                     then each change alone
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Change {
    /// A list begins: all that is watched, as of `revision`. What was known before counts no more.
    Start {
        generation: Generation,
        revision: Revision,
        nodes: Vec<Node>,
        allocations: Vec<Allocation>,
        #[serde(default)]
        tenants: Vec<Tenant>,
        /// The list itself comes as [`Change::Changes`].
        #[serde(default)]
        resumable: bool,
    },
    /// A part of what the entry of this revision changed, or of the list; it counts once the last part is there (`complete`).
    /// Then everything up to that revision is known: a watch may be opened with `since` there, at any member. Without a
    /// change it says that nothing up to there concerns this watch.
    Changes { revision: Revision, changes: Vec<Change>, complete: bool },
    /// What came after the place that the watcher has is not known here any more: it starts again, from a list.
    StartAgain { why: String },
    /// This node changed (or is new).
    Node(Box<Node>),
    /// This allocation changed (or is new).
    Allocation(Box<Allocation>),
    /// This tenant changed (or is new).
    Tenant(Box<Tenant>),
    /// The tenant of this name was deleted.
    TenantDeleted(String),
    /// This lease was granted, or its time to live changed. Renewals are not told, nor how long it lives from now, nor what
    /// speaks against its holder.
    Lease(Box<LeaseStanding>),
    /// The lease of this name ended.
    LeaseEnded(String),
    /// This vCluster changed (or is new).
    VCluster(Box<VCluster>),
    /// The vCluster of this name was deleted.
    VClusterDeleted(String),
    /// This network domain has this number from now on. Who is in it is not told.
    Domain { tenant: String, name: String, vni: u32 },
    /// Its number is free again.
    DomainReleased { tenant: String, name: String },
    /// The pool that such numbers are from.
    VniPool(VniPool),
}

/// What a member tells the leader about the agents that have a session with it, once a second, in memory only.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HeartbeatSummary {
    pub from: MemberId,
    /// Each node heard of since the last summary: its incarnation and how many milliseconds ago.
    pub heard: Vec<(NodeId, Incarnation, u64)>,
    /// The gossip keys that some of them say they have, in the same lives: where the leader of this term was not told so yet.
    #[serde(default)]
    pub keys: Vec<(NodeId, HeldKeys)>,
    /// How some of them say their nodes are, likewise.
    #[serde(default)]
    pub health: Vec<(NodeId, NodeHealth)>,
    /// The highest cluster level that this member can follow; 0 from one that knows of none.
    #[serde(default)]
    pub level: u32,
    /// When its certificate ends.
    #[serde(default)]
    pub certificate_until: Option<Timestamp>,
    /// What its disk lacks. Answered with what each member's lacks.
    #[serde(default)]
    pub shortage: Option<Shortage>,
    /// What agents with a session there said of silent nodes: which node, and who hears it.
    #[serde(default)]
    pub words: Vec<(NodeId, NodeId)>,
    /// Whether it is to be answered with a [`SummaryAnswer`]; with [`SummaryAnswer::shortages`] alone otherwise.
    #[serde(default)]
    pub asks: bool,
}

/// What the leader answers.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct SummaryAnswer {
    /// What each member's disk lacks.
    pub shortages: BTreeMap<u64, Shortage>,
    /// Nodes that agents are to be asked about.
    pub silent: Vec<NodeId>,
}

/// From a member to another one: send the audit records behind this one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AuditPageRequest {
    /// The last record that is known.
    pub after: u64,
}

/// Some audit records, in order, and how far the sender's state goes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AuditPage {
    /// The last record of the sender's state.
    pub head: AuditHead,
    /// Records behind the one that was named; none where there are no more.
    pub records: Vec<AuditRecord>,
}

/// One member asks another who it is and who the members are.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RosterQuestion {
    pub cluster: String,
    /// Who asks.
    pub from: u64,
    /// What is committed, as far as it knows.
    pub roster: Roster,
}

/// The answer to a [`RosterQuestion`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RosterAnswer {
    pub cluster: String,
    /// Who answers.
    pub member: u64,
    /// Whether its log is empty.
    pub pristine: bool,
    /// What is committed, as far as it knows.
    pub roster: Roster,
}

/// How the members stand, as one of them sees it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct QuorumStatus {
    pub cluster: String,
    /// The member that answers.
    pub member: MemberId,
    pub leader: Option<MemberId>,
    pub term: u64,
    pub generation: Generation,
    pub revision: Revision,
    pub members: Vec<MemberStatus>,
    pub nodes: Vec<(NodeState, u32)>,
    pub allocations: Vec<(AllocationState, u32)>,
    pub audit_records: u64,
    pub at: Timestamp,
    /// What the member that answers refused to callers whose certificate does not fit, and how often since it began.
    #[serde(default)]
    pub refused: Vec<(String, u64)>,
    /// The committed cluster level.
    #[serde(default)]
    pub level: u32,
    /// After a recovery: nodes that are not Down and have not said yet what they run.
    #[serde(default)]
    pub awaited: Vec<NodeId>,
    /// How far those are who are told what happens to nodes.
    #[serde(default)]
    pub notified: Vec<NotifyStanding>,
}

/// One way of notification in a [`QuorumStatus`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NotifyStanding {
    /// The setting that it is configured with.
    pub way: String,
    /// Everything up to this audit record was taken.
    pub upto: u64,
    /// Why nothing more is taken at present; only the leader knows it.
    #[serde(default)]
    pub trouble: Option<String>,
}

/// One member in a [`QuorumStatus`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemberStatus {
    pub id: MemberId,
    /// Where agents reach it, `host:port`.
    pub service: String,
    /// Where members reach it, `host:port`.
    pub raft: String,
    /// Whether it votes; one that does not is learning.
    pub votes: bool,
    /// The last log index known to be on its disk; `None` where this member does not know.
    pub matched: Option<u64>,
    /// The highest cluster level that it can follow; `None` where this member does not know.
    #[serde(default)]
    pub level: Option<u32>,
    /// When its certificate ends; `None` where this member does not know.
    #[serde(default)]
    pub certificate_until: Option<Timestamp>,
    /// What its disk lacks, as far as this member knows.
    #[serde(default)]
    pub shortage: Option<Shortage>,
    /// `leader`, `follower`, or `silent` (as the leader sees it), or `unknown` (asked of a follower).
    pub standing: String,
}

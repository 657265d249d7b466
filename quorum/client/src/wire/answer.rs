//! The answers to granted requests.

use super::audit_walk::AuditWalk;
use super::leader_status::{AdmissionsStatus, KeyringStatus, LeaseStatus};
use super::status::QuorumStatus;
use lattice_ledger::{
    Conflict, DagStatus, DagSummary, DomainStatus, Endpoint, LimitsStatus, Refusal, Revocation, ServiceStatus, TaskStates, TenantStatus,
    UsageReport, VClusterStatus, VniPoolStatus,
};
use lattice_model::access::{Project, RoleBinding, Standing, TenantMember};
use lattice_model::access_token::AccessToken;
use lattice_model::ended_work::{AccountedUntil, EndedWork};
use lattice_model::{
    Allocation, AllocationId, AuditRecord, DesiredList, Epoch, InteractiveSession, LaneWork, MemberId, Node, Reservation, Revision,
    Timestamp,
};
use serde::{Deserialize, Serialize};
use std::sync::Arc;

/// A claim was granted with this epoch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Claimed {
    /// The epoch of the claim.
    pub epoch: Epoch,
    /// The ledger's revision afterwards.
    pub revision: Revision,
}

/// The answer to a [`super::Request`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Answer {
    /// The command is committed. For [`super::Request::CheckSubmission`]: the submission would be
    /// accepted, and nothing was committed.
    Done { revision: Revision },
    /// The submission is committed. `desired`: the complete list for the requesting agent's own
    /// node, which it will also receive as [`super::Down::Desired`]; only if the included claim
    /// uses that node and the answering member is the leader. `claimed`: whether the included claim
    /// was granted, as far as the answering member has applied the log; `None`: there was no claim.
    /// `number`: the allocation's job number.
    Submitted { revision: Revision, desired: Option<DesiredList>, claimed: Option<bool>, number: u64 },
    /// The outcome of each claim, in the order of the request.
    Claims(Vec<Result<Claimed, Refusal>>),
    /// One allocation.
    Allocation(Box<Allocation>),
    /// The outcome for each of the first keys, in the order of the request.
    Allocations(Vec<Result<Arc<Allocation>, Refusal>>),
    /// Some allocations; `more`: further ones follow.
    AllocationPage { allocations: Vec<Allocation>, more: bool },
    /// The tasks that a lane may run.
    LaneWork(LaneWork),
    /// The tasks of a group.
    Tasks(Box<TaskStates>),
    /// `cancelled`: number of tasks to be cancelled that had not ended; `ended`: number of those that
    /// had.
    TasksCancelled { cancelled: u32, ended: u32 },
    /// All nodes.
    Nodes(Vec<Node>),
    /// The lease is held with this fencing token for `ttl_ms` from the moment the request was sent.
    Lease { token: u64, ttl_ms: u64 },
    /// Some audit records.
    Audit(AuditFound),
    /// The result of verifying a part of the chain.
    AuditVerified(Box<AuditWalk>),
    /// A signed page of an export.
    AuditExported(SignedPage),
    /// The state of the members.
    Status(QuorumStatus),
    /// SHA-256 of the state as of this revision, in hexadecimal digits.
    StateHash { revision: Revision, hash: String },
    /// The progress of a membership change.
    Changed { done: bool, text: String },
    /// All leases, ordered by name.
    Leases(Vec<LeaseStatus>),
    /// The latest refused claim of the allocation; `None`: its latest claim was granted, or the
    /// leader, which has refusals only in memory, knows none.
    RefusedClaim(Option<RefusedClaim>),
    /// A certificate, PEM.
    Certificate { pem: String },
    /// The backup is complete.
    Backup { name: String, url: String, revision: Revision, audit_records: u64 },
    /// All tenants, ordered by name.
    Tenants(Vec<TenantStatus>),
    /// The VNI pool and its usage.
    VniPool(VniPoolStatus),
    /// Network domains, by tenant and name.
    Domains(Vec<DomainStatus>),
    /// Service names, by tenant and name; `more`: further ones exist.
    Services { services: Vec<ServiceStatus>, more: bool },
    /// The endpoints of a service; `more`: further ones exist.
    Endpoints { endpoints: Vec<Endpoint>, more: bool },
    /// The recorded use.
    Usage(Box<UsageReport>),
    /// The cluster-wide limits and the current usage.
    Limits(LimitsStatus),
    /// A possibly outdated answer: the member's state is at most `age_ms` old. The age counts from
    /// the member's last contact with the leader; on the leader, with a majority.
    Stale { age_ms: u64, answer: Box<Answer> },
    /// A new gossip key has this id, and is being distributed.
    KeyAdded { id: u32 },
    /// The state of the gossip keys.
    Keyring(KeyringStatus),
    /// The revoked names in order; `issue_time`: the time of issue of a certificate that is signed
    /// now.
    Revocations { revoked: Vec<(String, Revocation)>, issue_time: Timestamp },
    /// All vClusters: `default` first, then by name.
    VClusters(Vec<VClusterStatus>),
    /// All reservations, ordered by name; some may be over.
    Reservations(Vec<Reservation>),
    /// All interactive sessions, ordered by allocation.
    Sessions(Vec<InteractiveSession>),
    /// Nodes that wait for admission, and admitted names that have not registered.
    Admissions(AdmissionsStatus),
    /// One DAG.
    Dag(Box<DagStatus>),
    /// Some DAGs; `more`: further ones follow.
    DagPage { dags: Vec<DagSummary>, more: bool },
    /// The roles and tenants of a user in the ledger.
    Standing(Box<Standing>),
    /// All granted roles, sorted.
    Roles(Vec<RoleBinding>),
    /// The members of a tenant: accounts by name, then groups by name.
    TenantMembers(Vec<TenantMember>),
    /// The registered projects of a tenant, by name.
    Projects(Vec<Project>),
    /// The record of a token; `None`: there is none, or it was revoked.
    TokenRecord(Option<Box<AccessToken>>),
    /// Tokens, by account, then by id.
    Tokens(Vec<AccessToken>),
    /// Ended work that accounting does not have yet.
    EndedWork(Box<EndedWorkPage>),
}

/// Ended work that waits for the accounting store, and how much of it there is.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct EndedWorkPage {
    /// In the order of the ends. It may be only a part of the ended work that waits.
    pub work: Vec<EndedWork>,
    /// How much the store has confirmed; `None`: no store gets ended work now.
    pub accounted: Option<AccountedUntil>,
    /// The number of the latest end.
    pub ended: u64,
    /// How many ends the store has not confirmed yet.
    pub waiting: u64,
    /// How many ends were dropped before a store had them, because too many waited.
    pub dropped: u64,
}

/// A refused claim.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RefusedClaim {
    /// The allocation.
    pub allocation: AllocationId,
    /// The time of the refusal.
    pub at: Timestamp,
    /// The reasons, at most 16.
    pub conflicts: Vec<Conflict>,
}

/// Records of the audit log that match a filter.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AuditFound {
    /// The records in the order of the chain.
    pub records: Vec<AuditRecord>,
    /// All records up to this one were examined.
    pub upto: u64,
    /// The last record to examine.
    pub end: u64,
    /// The first record on the member's disk. Earlier ones are only in the archive, and were not
    /// examined.
    pub begins: u64,
    /// The URL of the archive that is known to have earlier records, without secrets; empty: none.
    pub archive: String,
}

/// A page of an export; see `audit::export` in the crate `lattice-quorum`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SignedPage {
    /// The signed JSON text.
    pub body: String,
    /// The member that signed it.
    pub member: MemberId,
    /// The public key, 64 hexadecimal digits.
    pub key: String,
    /// Ed25519 over the bytes of `body`, 128 hexadecimal digits.
    pub signature: String,
    /// All records up to this one were examined.
    pub upto: u64,
    /// The last record to examine.
    pub end: u64,
}

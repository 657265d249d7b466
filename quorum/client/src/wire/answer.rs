//! What a request is answered with where it is granted.

use super::audit_walk::AuditWalk;
use super::standing::{AdmissionsStanding, KeyringStanding, LeaseStanding};
use super::status::QuorumStatus;
use lattice_ledger::{
    Conflict, DomainStanding, Endpoint, LimitsStanding, Revocation, ServiceStanding, TenantStanding, VClusterStanding, VniPoolStanding,
};
use lattice_model::{Allocation, AllocationId, AuditRecord, DesiredList, Epoch, InteractiveSession, MemberId, Node, Revision, Timestamp};
use serde::{Deserialize, Serialize};

/// What a [`super::Request`] is answered with.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Answer {
    /// The command is committed.
    Done { revision: Revision },
    /// The submission is committed. `desired`: all that the asking agent's own node is to do now, as [`super::Down::Desired`] will say
    /// it as well, where the claim that came along has that node and the one who answers leads.
    /// `claimed`: whether the claim holds that came with it; `None` where none did.
    Submitted { revision: Revision, desired: Option<DesiredList>, claimed: Option<bool> },
    /// The claim holds under this epoch.
    Claimed { epoch: Epoch, revision: Revision },
    /// One allocation.
    Allocation(Box<Allocation>),
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
    /// The names that were revoked, in their order; and when a certificate is issued that is signed now.
    Revocations { revoked: Vec<(String, Revocation)>, issue_time: Timestamp },
    /// All vClusters: `default` first, then by name.
    VClusters(Vec<VClusterStanding>),
    /// All sessions, by allocation.
    Sessions(Vec<InteractiveSession>),
    /// Which nodes wait for admission, and which admitted names have not registered.
    Admissions(AdmissionsStanding),
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

/// A page of an export; see `audit::export`.
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

//! The agreed state and its records. The files of the commands, beside this one, change them.

pub mod keyring;
pub mod revocations;
pub mod scripts;
pub mod submission_rates;
pub mod tenant_usage;
pub mod user_limits;
pub mod user_usage;

use super::audit_chain::AuditHead;
use imbl::OrdMap;
use keyring::Keyring;
use lattice_model::{
    Allocation, AllocationId, Epoch, Generation, InteractiveSession, MemberId, Node, NodeId, Principal, Resources, Revision, Tenant,
    Timestamp, VCluster, VniPool,
};
use revocations::Revocations;
use scripts::Scripts;
use serde::{Deserialize, Deserializer, Serialize};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fmt;
use std::sync::Arc;
use submission_rates::SubmissionRates;
use tenant_usage::TenantUsage;
use user_limits::UserLimits;
use user_usage::UserUsage;
use uuid::Uuid;

/// The level of a cluster that has agreed on none.
pub const LEVEL_FIRST: u32 = 1;
/// Ended allocations that stay in memory; older ones are forgotten (the audit log has them).
pub const ENDED_KEPT_MAX: usize = 10_000;
/// How long they stay at most, in milliseconds: a week.
pub const ENDED_KEPT_MS: u64 = 7 * 24 * 60 * 60 * 1000;
/// Allocations that have not ended, at most.
pub const LIVE_MAX: usize = 200_000;
/// Nodes, at most.
pub const NODES_MAX: usize = 100_000;

/// The agreed state. Entries are behind `Arc`, so that a snapshot or a watcher shares them instead of copying, and the large maps
/// are persistent ones: a copy for a snapshot is made between two commits, which wait for it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ledger {
    pub(super) cluster: String,
    pub(super) generation: Generation,
    pub(super) revision: Revision,
    /// The time of the last command; 0: there was none.
    pub(super) time: Timestamp,
    /// The last epoch issued.
    pub(super) epoch: Epoch,
    #[serde(deserialize_with = "one_by_one")]
    pub(super) nodes: OrdMap<NodeId, Arc<Node>>,
    /// What each node still carries, live or leaving. The sum never exceeds the registered size when a claim is added.
    #[serde(deserialize_with = "one_by_one")]
    pub(super) holdings: OrdMap<NodeId, Vec<Holding>>,
    #[serde(with = "scripts")]
    pub(super) allocations: OrdMap<AllocationId, Arc<Allocation>>,
    #[serde(skip)]
    pub(super) scripts: Scripts,
    /// Ended allocations, the first to end first.
    pub(super) ended: VecDeque<AllocationId>,
    pub(super) leases: BTreeMap<String, Lease>,
    /// The last fencing token issued, over all leases.
    pub(super) lease_token: u64,
    pub(super) audit: AuditHead,
    pub(super) signing: Signing,
    /// Accesses that were recorded last, the oldest first: one that is sent again is not recorded again.
    pub(super) accesses: VecDeque<Uuid>,
    /// What every member understands.
    pub(super) level: u32,
    pub(super) tenants: BTreeMap<String, Arc<Tenant>>,
    #[serde(skip)]
    pub(super) usage: TenantUsage,
    /// All but `default`.
    pub(super) vclusters: BTreeMap<String, Arc<VCluster>>,
    pub(super) sessions: BTreeMap<AllocationId, InteractiveSession>,
    /// After a recovery from a backup: what it still waits for.
    pub(super) recovery: Option<Recovery>,
    /// What gossip is sealed with. Secret: it is told to agents alone.
    pub(super) keyring: Keyring,
    pub(super) vni_pool: VniPool,
    /// Network domains that have a number.
    pub(super) domains: BTreeMap<DomainKey, Arc<Domain>>,
    /// Allocations that run and offer services.
    pub(super) offering: BTreeSet<AllocationId>,
    pub(super) limits: ClusterLimits,
    /// How long the run leases of claims are from now on, in milliseconds; 0: nobody said it yet.
    pub(super) run_lease_ms: u64,
    /// Up to which audit record others were told, each way.
    pub(super) notified: BTreeMap<NotifyWay, u64>,
    /// Allocations that are measured more closely now.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub(super) closely: BTreeSet<AllocationId>,
    /// Allocations with something that ends by the leader's clock, or had it until lately: see [`super::waits`].
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub(super) waiting: BTreeSet<AllocationId>,
    /// How soon users may submit again.
    #[serde(default, skip_serializing_if = "SubmissionRates::is_empty")]
    pub(super) rates: SubmissionRates,
    #[serde(skip)]
    pub(super) user_usage: UserUsage,
    #[serde(default, skip_serializing_if = "Revocations::is_empty")]
    pub(super) revocations: Revocations,
    /// Names that an operator admitted and under which no node has registered yet.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub(super) admitted: BTreeMap<NodeId, Admission>,
}

impl Default for Ledger {
    fn default() -> Self {
        Self {
            cluster: String::new(),
            generation: Generation(1),
            revision: Revision(0),
            time: Timestamp(0),
            epoch: Epoch(0),
            nodes: OrdMap::new(),
            holdings: OrdMap::new(),
            allocations: OrdMap::new(),
            scripts: Scripts::default(),
            ended: VecDeque::new(),
            leases: BTreeMap::new(),
            lease_token: 0,
            audit: AuditHead::default(),
            signing: Signing::default(),
            accesses: VecDeque::new(),
            level: LEVEL_FIRST,
            tenants: BTreeMap::new(),
            usage: TenantUsage::default(),
            vclusters: BTreeMap::new(),
            sessions: BTreeMap::new(),
            recovery: None,
            keyring: Keyring::default(),
            vni_pool: VniPool::default(),
            domains: BTreeMap::new(),
            offering: BTreeSet::new(),
            limits: ClusterLimits::default(),
            run_lease_ms: 0,
            notified: BTreeMap::new(),
            closely: BTreeSet::new(),
            waiting: BTreeSet::new(),
            rates: SubmissionRates::default(),
            user_usage: UserUsage::default(),
            revocations: Revocations::default(),
            admitted: BTreeMap::new(),
        }
    }
}

/// Reads a map by what is there: the map's own reading believes the number of entries that it is promised, and makes room for all of them.
fn one_by_one<'de, K, V, D>(from: D) -> Result<OrdMap<K, V>, D::Error>
where
    K: Deserialize<'de> + Ord + Clone,
    V: Deserialize<'de> + Clone,
    D: Deserializer<'de>,
{
    Ok(BTreeMap::deserialize(from)?.into_iter().collect())
}

/// A part of a node that some claim took and the node has not yet reported free.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Holding {
    /// Whose it is or was.
    pub allocation: AllocationId,
    /// Under which claim.
    pub epoch: Epoch,
    /// How much.
    pub resources: Resources,
    /// The number of the network domain that the claim was made in.
    pub vni: Option<u32>,
    /// How long its run lease is, in milliseconds; `None`: it runs without one.
    pub run_lease_ms: Option<u64>,
    /// Whether it is known, or vouched for, that nothing of it runs any more, though its node did not say so.
    pub fenced: bool,
}

/// One lease.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lease {
    /// Which node holds it.
    pub holder: NodeId,
    /// The fencing token; what is done under an older one is refused.
    pub token: u64,
    /// How long it lives after each renewal, in milliseconds, by the leader's monotonic clock.
    pub ttl_ms: u64,
    /// The revision of its grant, or of the last time that it was granted again.
    pub renewed: Revision,
    /// For whom the holder's agent vouches; `None`: for the agent itself.
    pub user: Option<Principal>,
}

/// An admission that was not used yet.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Admission {
    /// By whom.
    pub by: String,
    /// When.
    pub at: Timestamp,
    /// Why.
    pub reason: String,
}

/// What a recovery still waits for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Recovery {
    /// Nodes that have not said yet what they run.
    pub awaited: BTreeSet<NodeId>,
    /// What waited for its turn when the backup was made: a node that is awaited may run it.
    pub pending: BTreeSet<AllocationId>,
    /// Epochs up to this one may be of the lost quorum.
    pub epochs: Epoch,
}

/// A tenant and a name: two tenants may use one name for two domains.
pub type DomainKey = (String, String);

/// A domain that has a number.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Domain {
    /// Its number.
    pub vni: u32,
    /// Its allocations that have nodes.
    pub members: BTreeSet<AllocationId>,
    /// When the last of them lost its nodes.
    pub idle_since: Option<Timestamp>,
    /// For how long it keeps its number then, where an operator said so; else as the pool says.
    pub grace_ms: Option<u64>,
}

/// What the ledger knows of signing.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Signing {
    /// The present key of each member that signed or is about to: 64 hexadecimal digits.
    pub keys: BTreeMap<MemberId, String>,
    /// The chain is signed up to this record.
    pub upto: u64,
    /// The record that holds the last signature. What follows it is not signed yet.
    pub last: u64,
}

/// Limits of the whole cluster, whoever asks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClusterLimits {
    /// Nodes that may be claimed for sensitive use at once; one that several allocations share counts once. `None`: no limit.
    pub sensitive_pool_size: Option<u32>,
    /// Of each user and tenant.
    pub users: UserLimits,
}

/// A way in which others are told what happens to nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum NotifyWay {
    /// HTTP.
    Webhook,
    /// A program.
    Hook,
}

impl fmt::Display for NotifyWay {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Webhook => "notify_url",
            Self::Hook => "notify_hook",
        })
    }
}

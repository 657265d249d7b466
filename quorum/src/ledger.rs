//! What the quorum agrees on, as a pure function of the committed commands.
//!
//! ```text
//!   (Ledger, revision, Command) ──apply──▶ (Ledger, Outcome | Refusal, audit records, what changed)
//! ```
//!
//! Nothing here reads a clock, draws a number or touches a file: every member that applies the same commands holds
//! the same bytes. A refusal changes nothing but the revision and the time.
//!
//! Why each part needs agreement: *nodes* (size and standing decide claims), *holdings* (a part of a node is never
//! given twice), *holds* (what an operator took out of service is claimed by nobody, at once), *tenants* (two schedulers
//! together exceed no quota, not even for a moment), the cluster's *limits* (as the tenants' quotas), *vClusters* (whose queue work
//! stands in, and which nodes are for it, is the same for every scheduler), *allocations* (an acknowledged
//! submission is not lost; which checkpoint is its last is decided once, whatever an isolated attempt still saves), *sessions* (who has the one terminal of an allocation is known after any restart), *network domains* (no
//! two of them have one number, and what left one keeps it off others while it may still run), *services* (what is looked up runs),
//! the *run lease* and what is *fenced* (work that a silent node may still run is not begun elsewhere, and what was begun elsewhere is
//! known to whoever claims the node next), which nodes are
//! *admitted* (any member refuses the same ones), what a node is made of and what is expected of it (*drift* begins once, and outlives its leader),
//! *wipes* (a node that is to be wiped is claimed by nobody before that is confirmed), how far *notifications* are (a new leader goes on behind
//! the last), *leases* (one holder at a time, fenced by a rising token; renewals are the leader's memory), the
//! *gossip keys* (all agents seal with one key, and each opens a key before another seals with it: two keyrings would be two clusters), the
//! *revocations* (a stolen certificate counts nowhere, also not under another leader), the
//! *level* (no member meets a command that it does not know), the *generation* and what a *recovery* waits for (no work is placed that a
//! node may run already), the *audit head* (one history) and who signs it. Free capacity, heartbeats and progress are not here.
//!
//! **Holdings outlive their claim.** A part of a node counts against it from the claim until the node itself reports
//! that nothing is left, or comes back under another boot id. An ended or requeued allocation therefore does not free
//! its nodes at once: what was there before may still be there.

pub mod access;
pub mod audit_chain;
pub mod command;
pub mod keyring;
pub mod signing;

mod action;
mod admission;
mod allocations;
mod asker;
mod claims;
mod conformance;
mod ended;
mod fencing;
mod holds;
mod leases;
mod level;
mod limits;
mod networks;
mod nodes;
mod preemptions;
mod recovery;
mod reports;
mod requeues;
mod revocations;
mod scripts;
mod services;
mod sessions;
mod submission_rates;
mod telemetry;
mod tenants;
mod user_limits;
mod user_usage;
mod vclusters;
mod views;
mod waits;
mod walltimes;
mod wipes;

#[cfg(test)]
mod admission_scenarios;
#[cfg(test)]
mod checkpoint_scenarios;
#[cfg(test)]
mod conformance_scenarios;
#[cfg(test)]
mod fencing_properties;
#[cfg(test)]
mod fencing_scenarios;
#[cfg(test)]
mod hold_scenarios;
#[cfg(test)]
mod keyring_scenarios;
#[cfg(test)]
mod lease_scenarios;
#[cfg(test)]
mod network_scenarios;
#[cfg(test)]
mod preemption_scenarios;
#[cfg(test)]
mod properties;
#[cfg(test)]
mod revocation_scenarios;
#[cfg(test)]
pub(crate) mod scenarios;
#[cfg(test)]
mod session_scenarios;
#[cfg(test)]
mod telemetry_scenarios;
#[cfg(test)]
mod tenant_scenarios;
#[cfg(test)]
mod time_scenarios;
#[cfg(test)]
mod user_limit_scenarios;
#[cfg(test)]
mod vcluster_scenarios;
#[cfg(test)]
mod walltime_scenarios;
#[cfg(test)]
mod wipe_scenarios;

pub use access::{Access, AccessKind};
pub use action::Action;
pub use admission::Admission;
pub(crate) use admission::growth;
pub use asker::Asker;
pub use audit_chain::{AuditFault, AuditHead};
pub use claims::{SCHEDULER_LEASE, scheduler_lease};
pub use command::{Command, MembersStep, NodeStanding, NotifyWay, Outcome, Registration, Urgency};
pub use conformance::DriftLimits;
pub use keyring::Keyring;
pub use leases::{Lease, held};
pub use level::{LEVEL_FIRST, LEVEL_KNOWN, LEVEL_MAX};
pub use limits::ClusterLimits;
pub use networks::{Domain, DomainKey, domain_of};
pub use recovery::{Recovery, beyond};
pub use revocations::{REVOCATIONS_MAX, Revocation};
pub use tenants::{QuotaChange, TenantChange};
pub use user_limits::{UserLimit, UserLimits, UserLimitsChange};
pub use vclusters::VClusterChange;

use crate::wire::Refusal;
use imbl::OrdMap;
use lattice_model::{
    Allocation, AllocationId, AuditAction, AuditRecord, Epoch, Generation, InteractiveSession, Node, NodeId, Principal, Resources,
    Revision, Tenant, Timestamp, VCluster, VniPool,
};
use serde::{Deserialize, Deserializer, Serialize};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use uuid::Uuid;

/// Ended allocations that stay in memory; older ones are forgotten (the audit log has them).
pub const ENDED_KEPT_MAX: usize = 10_000;
/// How long they stay at most, in milliseconds: a week.
pub const ENDED_KEPT_MS: u64 = 7 * 24 * 60 * 60 * 1000;
/// Allocations that have not ended, at most.
pub const LIVE_MAX: usize = 200_000;
/// How much later than the one before a command may be that follows no [`Action::AdvanceTime`], in milliseconds.
pub const ENTRY_LEAP_MS_MAX: u64 = 60_000;
/// Nodes, at most.
pub const NODES_MAX: usize = 100_000;

/// The agreed state. Entries are behind `Arc`, so that a snapshot or a watcher shares them instead of copying, and the large maps
/// are persistent ones: a copy for a snapshot is made between two commits, which wait for it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ledger {
    cluster: String,
    generation: Generation,
    revision: Revision,
    /// The time of the last command; 0: there was none.
    time: Timestamp,
    /// The last epoch issued.
    epoch: Epoch,
    #[serde(deserialize_with = "one_by_one")]
    nodes: OrdMap<NodeId, Arc<Node>>,
    /// What each node still carries, live or leaving. The sum never exceeds the registered size when a claim is added.
    #[serde(deserialize_with = "one_by_one")]
    holdings: OrdMap<NodeId, Vec<Holding>>,
    #[serde(with = "scripts")]
    allocations: OrdMap<AllocationId, Arc<Allocation>>,
    #[serde(skip)]
    scripts: scripts::Scripts,
    /// Ended allocations, the first to end first.
    ended: VecDeque<AllocationId>,
    leases: BTreeMap<String, Lease>,
    /// The last fencing token issued, over all leases.
    lease_token: u64,
    audit: AuditHead,
    signing: signing::Signing,
    /// Accesses that were recorded last, the oldest first: one that is sent again is not recorded again.
    accesses: VecDeque<Uuid>,
    /// What every member understands.
    level: u32,
    tenants: BTreeMap<String, Arc<Tenant>>,
    #[serde(skip)]
    usage: tenants::Usage,
    /// All but `default`.
    vclusters: BTreeMap<String, Arc<VCluster>>,
    sessions: BTreeMap<AllocationId, InteractiveSession>,
    /// After a recovery from a backup: what it still waits for.
    recovery: Option<Recovery>,
    /// What gossip is sealed with. Secret: it is told to agents alone.
    keyring: Keyring,
    vni_pool: VniPool,
    /// Network domains that have a number.
    domains: BTreeMap<DomainKey, Arc<Domain>>,
    /// Allocations that run and offer services.
    offering: BTreeSet<AllocationId>,
    limits: ClusterLimits,
    /// How long the run leases of claims are from now on, in milliseconds; 0: nobody said it yet.
    run_lease_ms: u64,
    /// Up to which audit record others were told, each way.
    notified: BTreeMap<NotifyWay, u64>,
    /// Allocations that are measured more closely now.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    closely: BTreeSet<AllocationId>,
    /// Allocations with something that ends by the leader's clock, or had it until lately: see [`waits`].
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    waiting: BTreeSet<AllocationId>,
    /// How soon users may submit again.
    #[serde(default, skip_serializing_if = "submission_rates::SubmissionRates::is_empty")]
    rates: submission_rates::SubmissionRates,
    #[serde(skip)]
    user_usage: user_usage::UserUsage,
    #[serde(default, skip_serializing_if = "revocations::Revocations::is_empty")]
    revocations: revocations::Revocations,
    /// Names that an operator admitted and under which no node has registered yet.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    admitted: BTreeMap<NodeId, Admission>,
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

/// What one command did.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Applied {
    /// The answer.
    pub result: Result<Outcome, Refusal>,
    /// New links of the audit chain; whoever applies writes them to disk.
    pub audit: Vec<AuditRecord>,
    /// What readers should look at again.
    pub changed: Changed,
}

/// What changed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Changed {
    /// Nodes that changed.
    pub nodes: BTreeSet<NodeId>,
    /// Allocations that changed.
    pub allocations: BTreeSet<AllocationId>,
    /// Nodes whose desired list changed.
    pub desired: BTreeSet<NodeId>,
    /// Tenants that changed, or were deleted.
    pub tenants: BTreeSet<String>,
    /// Leases that were granted, changed or ended.
    pub leases: BTreeSet<String>,
    /// Whether the gossip keys changed.
    pub keyring: bool,
    /// Whether a name was revoked.
    pub revocations: bool,
    /// vClusters that changed, or were deleted.
    pub vclusters: BTreeSet<String>,
    /// Network domains that were given a number, or whose number is free again.
    pub domains: BTreeSet<DomainKey>,
    /// Whether the pool of those numbers is another one now.
    pub vni_pool: bool,
    /// Whether the limits of the cluster and its users are others now.
    pub limits: bool,
}

impl Changed {
    /// Adds what another command changed.
    pub fn merge(&mut self, other: Self) {
        self.nodes.extend(other.nodes);
        self.allocations.extend(other.allocations);
        self.desired.extend(other.desired);
        self.tenants.extend(other.tenants);
        self.leases.extend(other.leases);
        self.keyring |= other.keyring;
        self.revocations |= other.revocations;
        self.vclusters.extend(other.vclusters);
        self.domains.extend(other.domains);
        self.vni_pool |= other.vni_pool;
        self.limits |= other.limits;
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

/// One command's time and place, and what it has done so far.
struct Step {
    revision: Revision,
    at: Timestamp,
    audit: Vec<AuditRecord>,
    changed: Changed,
    /// What allocations counted for before this step changed them; `None`: they were not there.
    before: BTreeMap<AllocationId, Option<user_usage::Counts>>,
}

impl Step {
    fn new(revision: Revision, at: Timestamp) -> Self {
        Self { revision, at, audit: Vec::new(), changed: Changed::default(), before: BTreeMap::new() }
    }
}

/// What an audit record is about.
#[derive(Default)]
struct Subject<'a> {
    allocation: Option<AllocationId>,
    node: Option<&'a NodeId>,
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
            scripts: scripts::Scripts::default(),
            ended: VecDeque::new(),
            leases: BTreeMap::new(),
            lease_token: 0,
            audit: AuditHead::default(),
            signing: signing::Signing::default(),
            accesses: VecDeque::new(),
            level: LEVEL_FIRST,
            tenants: BTreeMap::new(),
            usage: tenants::Usage::default(),
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
            rates: submission_rates::SubmissionRates::default(),
            user_usage: user_usage::UserUsage::default(),
            revocations: revocations::Revocations::default(),
            admitted: BTreeMap::new(),
        }
    }
}

impl Ledger {
    /// Applies one committed command. `index` is the place of its log entry: it never falls, and several commands of
    /// one entry share it (nobody sees the state between them).
    ///
    /// Its time never goes back, and leaps by [`ENTRY_LEAP_MS_MAX`] at most where no [`Action::AdvanceTime`] vouches for more.
    pub fn apply(&mut self, index: Revision, command: &Command) -> Applied {
        self.time = self.time_of(command);
        let mut step = Step::new(index, self.time);
        self.revision = index;
        let result = self.admits(command.action.level()).and_then(|()| command.action.apply(self, &mut step));
        self.count_changed(&mut step);
        Applied { result, audit: step.audit, changed: step.changed }
    }

    fn time_of(&self, command: &Command) -> Timestamp {
        if self.time == Timestamp(0) {
            return command.at;
        }
        let latest = match command.action {
            Action::AdvanceTime => command.at.0,
            _ => self.time.0.saturating_add(ENTRY_LEAP_MS_MAX),
        };
        Timestamp(command.at.0.min(latest)).max(self.time)
    }

    /// The time of the last command; 0: there was none.
    pub fn time(&self) -> Timestamp {
        self.time
    }

    fn bootstrap(&mut self, step: &mut Step, cluster: &str) -> Result<Outcome, Refusal> {
        if !self.cluster.is_empty() {
            return if self.cluster == cluster {
                Ok(Outcome::Done)
            } else {
                Err(Refusal::Malformed { why: format!("this cluster is named {:?} already", self.cluster) })
            };
        }
        cluster.clone_into(&mut self.cluster);
        self.record(step, "quorum", AuditAction::ClusterBootstrapped, Subject::default(), cluster.to_owned());
        Ok(Outcome::Done)
    }

    fn record_members(&mut self, step: &mut Step, by: &Principal, change: &MembersStep) -> Result<Outcome, Refusal> {
        self.record(step, &by.name, AuditAction::MembersChanged, Subject::default(), change.to_string());
        Ok(Outcome::Done)
    }

    /// The text is hashed into the chain: a member that applies its log again must come to the same, whatever its version.
    fn record(&mut self, step: &mut Step, actor: &str, action: AuditAction, about: Subject<'_>, detail: String) {
        let owner = about.allocation.and_then(|id| self.allocations.get(&id)).map(|a| a.owner.name.as_str());
        let record = self.audit.link(step.revision, step.at, actor, action, about.allocation, owner, about.node, detail);
        step.audit.push(record);
    }

    /// Up to which audit record others were told this way; `None`: nobody was yet.
    pub fn notified(&self, way: NotifyWay) -> Option<u64> {
        self.notified.get(&way).copied()
    }

    /// Never back: what was taken is not told again for a word that was late.
    fn set_notified(&mut self, way: NotifyWay, upto: u64) -> Outcome {
        let told = self.notified.entry(way).or_default();
        *told = (*told).max(upto).min(self.audit.seq);
        Outcome::Done
    }

    /// The allocation, to be changed in this step.
    fn allocation_mut(&mut self, step: &mut Step, id: AllocationId) -> Option<&mut Allocation> {
        self.note_before(step, id);
        let allocation = Arc::make_mut(self.allocations.get_mut(&id)?);
        allocation.revision = step.revision;
        step.changed.allocations.insert(id);
        Some(allocation)
    }

    /// The node, to be changed in this step.
    fn node_mut(&mut self, step: &mut Step, id: &NodeId) -> Option<&mut Node> {
        let node = Arc::make_mut(self.nodes.get_mut(id)?);
        node.revision = step.revision;
        step.changed.nodes.insert(id.clone());
        Some(node)
    }
}

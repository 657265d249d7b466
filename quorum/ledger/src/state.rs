//! The replicated state and its records. The command files beside this one change them.

pub use super::ended_limits::{EndedLimits, Forgotten};
use imbl::{OrdMap, OrdSet};
use lattice_ledger_state::access_tokens::AccessTokens;
use lattice_ledger_state::allocation_index::AllocationIndex;
use lattice_ledger_state::audit_chain::AuditHead;
use lattice_ledger_state::budget_marks::BudgetMarks;
use lattice_ledger_state::dags::Dags;
use lattice_ledger_state::dependents::Dependents;
use lattice_ledger_state::domains::DomainIndex;
pub use lattice_ledger_state::domains::{Domain, DomainKey};
use lattice_ledger_state::ended_place::EndedPlace;
use lattice_ledger_state::ended_work::Ends;
use lattice_ledger_state::entries::{each_in_turn, one_by_one};
pub use lattice_ledger_state::holdings::Holding;
use lattice_ledger_state::holdings::Holdings;
use lattice_ledger_state::job_numbers::JobNumbers;
use lattice_ledger_state::keyring::Keyring;
use lattice_ledger_state::names::Names;
use lattice_ledger_state::node_index::NodeIndex;
use lattice_ledger_state::projects::Projects;
use lattice_ledger_state::removals::Removals;
use lattice_ledger_state::revocations::Revocations;
use lattice_ledger_state::role_bindings::RoleBindings;
use lattice_ledger_state::scaled_services::ServiceReplicas;
use lattice_ledger_state::scripts::Scripts;
use lattice_ledger_state::signed_head::SignedHead;
use lattice_ledger_state::submission_rates::SubmissionRates;
use lattice_ledger_state::task_groups::GroupTasks;
use lattice_ledger_state::tenant_members::TenantMembers;
use lattice_ledger_state::tenant_usage::TenantUsage;
use lattice_ledger_state::usage_records::UsageRecords;
use lattice_ledger_state::user_limits::UserLimits;
use lattice_ledger_state::user_usage::UserUsage;
use lattice_model::access::RootMay;
use lattice_model::{
    Allocation, AllocationId, BudgetPeriod, DagSize, Epoch, Generation, InteractiveSession, MemberId, Node, NodeId, Principal, Reservation,
    Revision, SharePolicy, Tenant, Timestamp, VCluster, VniPool,
};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fmt;
use std::sync::Arc;
use uuid::Uuid;

/// A port that accepts connections: the running allocation that exposes it, the rank of its node there,
/// and the port.
pub type OpenPort = (AllocationId, u32, u16);

/// The cluster level before the first was committed.
pub const LEVEL_FIRST: u32 = 1;
/// Largest number of allocations that have not ended.
pub const LIVE_MAX: usize = 200_000;
/// Largest number of nodes.
pub const NODES_MAX: usize = 100_000;

/// The replicated state. Entries are behind `Arc`, so that a snapshot or a watcher shares them
/// instead of copying. The large maps are persistent data structures, because the copy for a
/// snapshot is made between two commits and delays them.
///
/// Fields that are skipped in a snapshot are derived from the others: counts and indexes, so that
/// no command and no clock of the leader scans all nodes or allocations (see [`super::indexes`]).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(remote = "Self")]
pub struct Ledger {
    pub(super) cluster: String,
    pub(super) generation: Generation,
    pub(super) revision: Revision,
    /// The time of the last command; 0: none was applied.
    pub(super) time: Timestamp,
    /// The last epoch issued.
    pub(super) epoch: Epoch,
    #[serde(deserialize_with = "one_by_one")]
    pub(super) nodes: OrdMap<NodeId, Arc<Node>>,
    #[serde(skip)]
    pub(super) node_index: NodeIndex,
    pub(super) holdings: Holdings,
    #[serde(with = "lattice_ledger_state::scripts")]
    pub(super) allocations: OrdMap<AllocationId, Arc<Allocation>>,
    #[serde(skip)]
    pub(super) allocation_index: AllocationIndex,
    /// The last assigned job number. It never decreases. A task group gets the numbers of all its tasks.
    #[serde(default)]
    pub(super) jobs: u64,
    #[serde(skip)]
    pub(super) job_numbers: JobNumbers,
    #[serde(skip)]
    pub(super) dependents: Dependents,
    #[serde(skip)]
    pub(super) names: Names,
    /// Allocations whose changes have not reached all their dependents, each with the last dependent
    /// reached.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub(super) unsettled: BTreeMap<AllocationId, Option<AllocationId>>,
    /// The tasks of each task group.
    #[serde(default, skip_serializing_if = "OrdMap::is_empty", deserialize_with = "one_by_one")]
    pub(super) task_groups: OrdMap<AllocationId, Arc<GroupTasks>>,
    /// The replicas of each scaled service.
    #[serde(default, skip_serializing_if = "OrdMap::is_empty", deserialize_with = "one_by_one")]
    pub(super) scaled_services: OrdMap<AllocationId, Arc<ServiceReplicas>>,
    /// Task groups and scaled services whose lanes or replicas are not all created or ended.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub(super) unsettled_groups: BTreeSet<AllocationId>,
    /// Task groups with ended tasks that the groups waiting for them do not know of yet.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub(super) unsettled_tasks: BTreeSet<AllocationId>,
    /// Groups and services that lack lanes or replicas, because too many allocations live.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub(super) crowded_groups: BTreeSet<AllocationId>,
    /// Groups and services that lack some, because too many of their user wait; by user.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub(super) capped_groups: BTreeMap<u32, BTreeSet<AllocationId>>,
    /// How many lanes and replicas of each user wait for nodes; users without any are absent.
    #[serde(skip)]
    pub(super) lanes_waiting_of: BTreeMap<u32, u32>,
    #[serde(skip)]
    pub(super) scripts: Scripts,
    /// Ended allocations in the order of their end.
    #[serde(deserialize_with = "each_in_turn")]
    pub(super) ended: OrdSet<EndedPlace>,
    /// A summary of those that have been dropped.
    pub(super) forgotten: Forgotten,
    /// Ended work that waits until the accounting store has it.
    #[serde(default, skip_serializing_if = "Ends::is_empty")]
    pub(super) ends: Ends,
    pub(super) leases: BTreeMap<String, Lease>,
    /// The last fencing token issued, across all leases.
    pub(super) lease_token: u64,
    pub(super) audit: AuditHead,
    pub(super) signing: Signing,
    /// The archive has every audit record up to this one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) audit_checkpoint: Option<AuditCheckpoint>,
    /// The latest recorded accesses, oldest first: a repeated request is not recorded again.
    pub(super) accesses: VecDeque<Uuid>,
    /// The level of commands that every member understands.
    pub(super) level: u32,
    pub(super) tenants: BTreeMap<String, Arc<Tenant>>,
    #[serde(skip)]
    pub(super) usage: TenantUsage,
    /// All vClusters except `default`.
    pub(super) vclusters: BTreeMap<String, Arc<VCluster>>,
    /// Nodes that are set aside for a time.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub(super) reservations: BTreeMap<String, Arc<Reservation>>,
    pub(super) sessions: BTreeMap<AllocationId, InteractiveSession>,
    /// After a recovery from a backup: what must still be reported.
    pub(super) recovery: Option<Recovery>,
    /// The gossip keys. Secret: sent only to agents.
    pub(super) keyring: Keyring,
    pub(super) vni_pool: VniPool,
    /// Network domains that have a VNI.
    pub(super) domains: BTreeMap<DomainKey, Arc<Domain>>,
    #[serde(skip)]
    pub(super) domain_index: DomainIndex,
    /// The endpoints in the service registry.
    #[serde(default, skip_serializing_if = "OrdSet::is_empty", deserialize_with = "each_in_turn")]
    pub(super) open_ports: OrdSet<OpenPort>,
    pub(super) limits: ClusterLimits,
    /// The length of run leases for new claims, in milliseconds; 0: not set yet.
    pub(super) run_lease_ms: u64,
    /// For each kind of notification, the last audit record that was delivered.
    pub(super) notified: BTreeMap<NotifyChannel, u64>,
    /// The users' submission rates.
    #[serde(default, skip_serializing_if = "SubmissionRates::is_empty")]
    pub(super) rates: SubmissionRates,
    #[serde(skip)]
    pub(super) user_usage: UserUsage,
    #[serde(default, skip_serializing_if = "Revocations::is_empty")]
    pub(super) revocations: Revocations,
    /// Names that an operator has admitted and that have not registered yet.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub(super) admitted: BTreeMap<NodeId, Admission>,
    /// Names that an operator has removed and that have not registered since.
    #[serde(default, skip_serializing_if = "Removals::is_empty")]
    pub(super) removed: Removals,
    /// What tenants, projects and users have used.
    #[serde(default, skip_serializing_if = "UsageRecords::is_empty")]
    pub(super) usage_records: UsageRecords,
    /// The marks of budgets that are on record.
    #[serde(default, skip_serializing_if = "BudgetMarks::is_empty")]
    pub(super) budget_marks: BudgetMarks,
    #[serde(default, skip_serializing_if = "Dags::is_empty")]
    pub(super) dags: Dags,
    /// The granted roles.
    #[serde(default, skip_serializing_if = "RoleBindings::is_empty")]
    pub(super) roles: RoleBindings,
    /// The members of tenants, and which tenants are closed.
    #[serde(default, skip_serializing_if = "TenantMembers::is_empty")]
    pub(super) tenant_members: TenantMembers,
    /// The registered projects of tenants.
    #[serde(default, skip_serializing_if = "Projects::is_empty")]
    pub(super) projects: Projects,
    /// The tokens with which programs call the API over the network.
    #[serde(default, skip_serializing_if = "AccessTokens::is_empty")]
    pub(super) access_tokens: AccessTokens,
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
            node_index: NodeIndex::default(),
            holdings: Holdings::default(),
            allocations: OrdMap::new(),
            allocation_index: AllocationIndex::default(),
            jobs: 0,
            job_numbers: JobNumbers::default(),
            dependents: Dependents::default(),
            names: Names::default(),
            unsettled: BTreeMap::new(),
            task_groups: OrdMap::new(),
            scaled_services: OrdMap::new(),
            unsettled_groups: BTreeSet::new(),
            unsettled_tasks: BTreeSet::new(),
            crowded_groups: BTreeSet::new(),
            capped_groups: BTreeMap::new(),
            lanes_waiting_of: BTreeMap::new(),
            scripts: Scripts::default(),
            ended: OrdSet::new(),
            forgotten: Forgotten::default(),
            ends: Ends::default(),
            leases: BTreeMap::new(),
            lease_token: 0,
            audit: AuditHead::default(),
            signing: Signing::default(),
            audit_checkpoint: None,
            accesses: VecDeque::new(),
            level: LEVEL_FIRST,
            tenants: BTreeMap::new(),
            usage: TenantUsage::default(),
            vclusters: BTreeMap::new(),
            reservations: BTreeMap::new(),
            sessions: BTreeMap::new(),
            recovery: None,
            keyring: Keyring::default(),
            vni_pool: VniPool::default(),
            domains: BTreeMap::new(),
            domain_index: DomainIndex::default(),
            open_ports: OrdSet::new(),
            limits: ClusterLimits::default(),
            run_lease_ms: 0,
            notified: BTreeMap::new(),
            rates: SubmissionRates::default(),
            user_usage: UserUsage::default(),
            revocations: Revocations::default(),
            admitted: BTreeMap::new(),
            removed: Removals::default(),
            usage_records: UsageRecords::default(),
            budget_marks: BudgetMarks::default(),
            dags: Dags::default(),
            roles: RoleBindings::default(),
            tenant_members: TenantMembers::default(),
            projects: Projects::default(),
            access_tokens: AccessTokens::default(),
        }
    }
}

impl Serialize for Ledger {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        Self::serialize(self, serializer)
    }
}

/// Also builds the derived fields.
impl<'de> Deserialize<'de> for Ledger {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let mut ledger = Self::deserialize(deserializer)?;
        ledger.build_indexes();
        Ok(ledger)
    }
}

/// One lease.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lease {
    /// The node that holds it.
    pub holder: NodeId,
    /// The fencing token; requests with an older one are refused.
    pub token: u64,
    /// Time to live after each renewal, in milliseconds of the leader's monotonic clock.
    pub ttl_ms: u64,
    /// The revision of its latest grant.
    pub renewed: Revision,
    /// The user on whose behalf the holder's agent requested it; `None`: the agent itself.
    pub user: Option<Principal>,
}

/// An unused admission.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Admission {
    /// Who admitted the node.
    pub by: String,
    /// When.
    pub at: Timestamp,
    /// The reason.
    pub reason: String,
}

/// What a recovery still waits for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Recovery {
    /// Nodes that have not reported their work yet.
    pub awaited: BTreeSet<NodeId>,
    /// Allocations that were waiting when the backup was made: a node that has not reported may run
    /// them.
    pub pending: BTreeSet<AllocationId>,
    /// Epochs up to this one may have been issued by the lost quorum.
    pub epochs: Epoch,
    /// Job numbers up to this one may have been given by the lost quorum.
    #[serde(default)]
    pub jobs: u64,
    /// Scaled services of which a node has a replica that had no nodes in the backup (`true`: the running
    /// replicas will decide how many it wants), or whose number somebody has set since the recovery
    /// (`false`). `None`: it was decided.
    pub adopting: Option<BTreeMap<AllocationId, bool>>,
    /// Scaled services whose largest number of replicas somebody has changed since the recovery: a reported
    /// replica does not raise it.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub rebounded: BTreeSet<AllocationId>,
}

/// The state of signing.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Signing {
    /// The current public key of each member that has signed or is about to: 64 hexadecimal digits.
    pub keys: BTreeMap<MemberId, String>,
    /// The last record covered by a signature.
    pub upto: u64,
    /// The record that contains the latest signature. Later records are not signed yet.
    pub last: u64,
}

/// A signed record up to which the archive has every audit record.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AuditCheckpoint {
    /// The record, signed by the leader that has read the archive.
    pub signed: SignedHead,
    /// The generation whose folder of the archive has the records.
    pub generation: Generation,
    /// The archive's URL, without secrets.
    pub archive: String,
}

/// Cluster-wide limits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClusterLimits {
    /// Largest number of nodes claimed for sensitive work at a time; a node shared by several
    /// allocations counts once. `None`: no limit.
    pub sensitive_pool_size: Option<u32>,
    /// Limits for each user and tenant.
    pub users: UserLimits,
    /// How many days the budgets of tenants look back.
    #[serde(default)]
    pub budget_period: BudgetPeriod,
    /// Whose shares a node may hold at the same time.
    #[serde(default, skip_serializing_if = "SharePolicy::is_anyone")]
    pub share_policy: SharePolicy,
    /// How long ended allocations are kept, and in how much memory.
    pub ended: EndedLimits,
    /// How many steps a DAG may have.
    #[serde(default)]
    pub dag_size: DagSize,
    /// For whom a machine's root user may act.
    #[serde(default, skip_serializing_if = "RootMay::is_everybody")]
    pub root_may: RootMay,
}

/// The name of [`NotifyChannel::Mail`], and of its setting.
pub const MAIL_CHANNEL: &str = "mail_hook";

/// The ways in which notifications are sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum NotifyChannel {
    /// HTTP.
    Webhook,
    /// A program.
    Hook,
    /// A program that sends mail about allocations to their users.
    Mail,
}

impl fmt::Display for NotifyChannel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Webhook => "notify_url",
            Self::Hook => "notify_hook",
            Self::Mail => MAIL_CHANNEL,
        })
    }
}

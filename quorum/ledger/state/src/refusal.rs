//! Refusals: why a request was not granted, and what to do about it.

mod dependency;
mod remedy;
mod removal;
mod update;

pub use dependency::DependencyRefusal;
pub use removal::RemovalRefusal;
pub use update::UpdateRefusal;

use crate::shortage::Shortage;
use crate::user_limits::UserLimit;
use lattice_model::access::{Role, SubjectName};
use lattice_model::access_token::TokenId;
use lattice_model::count::counted;
use lattice_model::lifecycle::Illegal;
use lattice_model::network::NoVni;
use lattice_model::tenant::Excess;
use lattice_model::user_running::TooManyRunning;
use lattice_model::{AllocationId, AllocationState, DagId, Epoch, HoldKind, Incarnation, MemberId, NodeId, NodeState, Revision, Timestamp};
use serde::{Deserialize, Serialize};
use thiserror::Error;
use uuid::Uuid;

/// Why a request was not granted. A refused request changed nothing.
#[derive(Clone, Debug, PartialEq, Eq, Error, Serialize, Deserialize)]
pub enum Refusal {
    /// `forgotten`: it may have ended; `None`: it cannot be one of those.
    #[error("there is no allocation {key}")]
    NoSuchAllocation { key: String, forgotten: Option<ForgottenWork> },
    #[error("{key} could be any of {}: give more digits", candidates.join(", "))]
    AmbiguousAllocation { key: String, candidates: Vec<String> },
    #[error(
        "{key} is the job number of allocation {numbered}, and could be the id of {}: give more digits of the id that you mean",
        candidates.join(", ")
    )]
    NumberOrId { key: String, numbered: AllocationId, candidates: Vec<String> },
    #[error("allocation {id} exists already, with another specification or owner")]
    AllocationExists { id: AllocationId },
    #[error("allocation {id} belongs to {owner}")]
    NotYours { id: AllocationId, owner: String },
    #[error("there is no node {node}")]
    NoSuchNode { node: NodeId },
    #[error(
        "node {node} is not admitted to this cluster: an operator admits it by `lattice node admit {node}`, and it registers by itself then"
    )]
    NotAdmitted { node: NodeId },
    #[error(
        "node {node} was removed from this cluster by {by} at {at} ({reason}): an operator admits it again by `lattice node admit {node}`, \
         and it registers by itself then"
    )]
    NodeRemoved { node: NodeId, by: String, at: Timestamp, reason: String },
    #[error(
        "node {node} was removed before it reported that its work had ended, and that work may still run: boot the machine, and the node \
         registers by itself"
    )]
    NeedsBoot { node: NodeId },
    #[error("node {node} cannot be removed: {why}")]
    NotRemovable { node: NodeId, why: RemovalRefusal },
    #[error("node {node} has registered already: there is no admission to withdraw")]
    HasRegistered { node: NodeId },
    #[error("allocation {id} is {state}, not Pending")]
    NotPending { id: AllocationId, state: AllocationState },
    /// It depends on others; `what` is the rest of the sentence.
    #[error("allocation {id} {what}")]
    AwaitsOthers { id: AllocationId, what: String },
    /// `on`: as the submitter named it.
    #[error("it cannot depend on allocation {on}: {why}")]
    Dependency { on: String, why: DependencyRefusal },
    #[error("allocation {id} was requeued {}, the claim saw {seen}", counted(*now, "time"))]
    StaleRequeueCount { id: AllocationId, seen: u32, now: u32 },
    /// See [`lattice_model::Claim::after`].
    #[error("allocation {ahead} is ahead of {id} and still waits")]
    WaitsAhead { id: AllocationId, ahead: AllocationId },
    /// At most 16 conflicts.
    #[error("the claim conflicts with the current state: {}", conflicts.iter().map(ToString::to_string).collect::<Vec<_>>().join("; "))]
    Conflict { conflicts: Vec<Conflict> },
    #[error("the claim is malformed: {why}")]
    MalformedClaim { why: String },
    #[error("lease {name} is held by {}node {holder}", user.as_ref().map(|u| format!("{u} at ")).unwrap_or_default())]
    LeaseHeld {
        name: String,
        holder: NodeId,
        user: Option<String>,
        /// For a lease of an agents' role: its token, with which every agent of that role may act
        /// as long as the lease exists.
        token: Option<u64>,
    },
    #[error("lease token {token} is not the current token of lease {name}")]
    StaleLease { name: String, token: u64 },
    /// The work under that claim was taken from the node and ends there.
    #[error("allocation {id} was taken from this node after epoch {seen} (its last epoch is {now}): reports of epoch {seen} are refused")]
    StaleEpoch { id: AllocationId, seen: Epoch, now: Epoch },
    #[error("node {node} is registered as incarnation {now}; this report is of {seen}")]
    StaleIncarnation { node: NodeId, seen: Incarnation, now: Incarnation },
    #[error("node {node} is registered as incarnation {now}, which this registration does not replace: its agent registers again")]
    OtherIncarnation { node: NodeId, now: Incarnation },
    #[error("this needs the certificate role {needed}; the caller's is {role}")]
    Role { needed: String, role: String },
    #[error("{what} has {bytes} bytes; at most {most} are accepted")]
    TooLarge { what: String, bytes: u64, most: u64 },
    #[error("the request is malformed: {why}")]
    Malformed { why: String },
    #[error("the quorum refuses this node's certificate: {why}")]
    CertificateRefused { why: String },
    #[error("this needs a role that allows it, or an operator's credential: {why}")]
    NotOperator { why: String },
    #[error("{why}")]
    Members { why: String },
    #[error("the verification of the audit chain began on member {began}, and this is member {this}: start again")]
    OtherMember { began: MemberId, this: MemberId },
    #[error("the audit chain is broken at record {seq}: {why}")]
    AuditBroken { seq: u64, why: String },
    /// The caller should try another member, or retry later.
    #[error("the request could not be answered now: {why}")]
    Unavailable { why: String },
    #[error("node {node} is under {kind} by {by}: {reason}")]
    Held { node: NodeId, kind: HoldKind, by: String, reason: String },
    #[error("there is no lease {name}")]
    NoSuchLease { name: String },
    #[error("lease {name} is {owner}'s")]
    LeaseNotYours { name: String, owner: String },
    #[error("allocation rejected: {0}")]
    Quota(Excess),
    #[error("there is no tenant {name:?}{}", meant.as_ref().map(|meant| format!("; did you mean {meant:?}?")).unwrap_or_default())]
    NoSuchTenant { name: String, meant: Option<String> },
    #[error("work of tenant {tenant:?} may have preemption classes up to {most}; this has {class}")]
    ClassTooHigh { tenant: String, class: u8, most: u8 },
    #[error("user {user} is no member of tenant {tenant:?}")]
    NotOfTenant { tenant: String, user: String },
    /// Some of the tenants, and how many more there are.
    #[error("user {user} is in {} and has no default: which one pays?", describe_tenants(tenants, *more))]
    TenantNotNamed { user: String, tenants: Vec<String>, more: u64 },
    #[error("{subject} does not have the role {role}{}", tenant.as_ref().map(|tenant| format!(" of tenant {tenant:?}")).unwrap_or_default())]
    NoSuchBinding { subject: SubjectName, role: Role, tenant: Option<String> },
    #[error("{subject} is no member of tenant {tenant:?}")]
    NoSuchMember { tenant: String, subject: SubjectName },
    #[error("tenant {tenant:?} has no project {project:?}")]
    NoSuchProject { tenant: String, project: String },
    #[error("user {user} is no member of project {project:?} of tenant {tenant:?}")]
    NotOfProject { tenant: String, project: String, user: String },
    #[error("{subject} is no member of project {project:?} of tenant {tenant:?}")]
    NoSuchProjectMember { tenant: String, project: String, subject: SubjectName },
    /// Also if the requester may not see it.
    #[error("there is no token {id}")]
    NoSuchToken { id: TokenId },
    #[error("tenant {name:?} exists already, with other quotas")]
    TenantExists { name: String },
    #[error("tenant {name:?} has work that has not ended: {}", counted(*live, "allocation"))]
    TenantHasWork { name: String, live: u64 },
    #[error("the limit of {most} {what} is reached")]
    TooMany { what: String, most: u64 },
    /// The caller should ask the named leader, or retry later if none is named.
    #[error("{}", leader.map_or("no member leads at present".to_owned(), |leader| format!("member {leader} leads")))]
    NotLeader { leader: Option<MemberId> },
    /// The leader's disk has too little free space, or so many members' disks that the others are
    /// no majority.
    #[error("{}", short.iter().map(|(id, shortage)| format!("member {id}: {shortage}")).collect::<Vec<_>>().join("; "))]
    DiskFull { short: Vec<(MemberId, Shortage)> },
    #[error("no backup was made: {why}")]
    NoBackup { why: String },
    #[error("not yet at this cluster level: this needs level {needed}, the cluster has agreed on {now}")]
    ClusterLevel { needed: u32, now: u32 },
    /// Some of the existing names, and their total number.
    #[error("vCluster {name:?} not found; there {}", describe_known(known, *all))]
    NoSuchVCluster { name: String, known: Vec<String>, all: u64 },
    #[error("vCluster {name} exists already, with another scheduler, tenant or nodes")]
    VClusterExists { name: String },
    #[error("vCluster {name} has work that has not ended: {}", counted(*live, "allocation"))]
    VClusterHasWork { name: String, live: u64 },
    #[error("vCluster {name} accepts work of tenant {tenant:?} alone; this is of {}", if given.is_empty() { "none".to_owned() } else { format!("{given:?}") })]
    VClusterOfTenant { name: String, tenant: String, given: String },
    #[error("there is no reservation {name:?}{}", meant.as_ref().map(|meant| format!("; did you mean {meant:?}?")).unwrap_or_default())]
    NoSuchReservation { name: String, meant: Option<String> },
    #[error("reservation {name} exists already, with other nodes, times or users")]
    ReservationExists { name: String },
    #[error("node {node} is set aside by reservation {other} from {start} to {end}")]
    ReservationOverlaps { node: NodeId, other: String, start: Timestamp, end: Timestamp },
    /// `tenant`: that of the work; empty: none.
    #[error("reservation {name} is {}", not_of_reservation(user, tenant, *maintenance))]
    NotOfReservation { name: String, user: String, tenant: String, maintenance: bool },
    #[error("reservation {name} ended at {end}")]
    ReservationOver { name: String, end: Timestamp },
    #[error("allocation {id} may begin only in the window of reservation {name}: from {start} to {end}")]
    OutsideReservation { id: AllocationId, name: String, start: Timestamp, end: Timestamp },
    #[error("node {node} belongs to vCluster {vcluster} already")]
    NodeHasHome { node: NodeId, vcluster: String },
    #[error("allocation {id} is {state}, not Running")]
    NotRunning { id: AllocationId, state: AllocationState },
    #[error("allocation {id} stays as it is: {why}")]
    Update { id: AllocationId, why: UpdateRefusal },
    /// `what`: the tenant, vCluster or reservation.
    #[error("{what} has version {version}, and the change is for version {expected}: somebody changed it meanwhile")]
    OtherVersion { what: String, expected: u64, version: u64 },
    #[error("allocation {id} is no task group")]
    NotATaskGroup { id: AllocationId },
    #[error("allocation {id} is no lane of a task group")]
    NotALane { id: AllocationId },
    #[error("allocation {} is lane {number} of task group {}", id.short(), group.short())]
    LaneOfGroup { id: AllocationId, number: u32, group: AllocationId },
    #[error("allocation {} is replica {number} of scaled service {}", id.short(), service.short())]
    ReplicaOfService { id: AllocationId, number: u32, service: AllocationId },
    #[error("allocation {id} is no scaled service")]
    NotScaled { id: AllocationId },
    #[error("service {id} has {least} to {most} replicas, and {asked} were asked for")]
    ReplicasOutOfBounds { id: AllocationId, asked: u32, least: u32, most: u32 },
    /// The loop asked for a change that the ledger does not make.
    #[error("service {id} keeps its number of replicas: {why}")]
    ScalingStep { id: AllocationId, why: String },
    #[error("allocation {id} is not held for a session")]
    NotASession { id: AllocationId },
    #[error("allocation {id} already has session {session} on {node}; a second one is not possible")]
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
    #[error("node {node} is {state}: it still sends heartbeats, so it is not dead")]
    NodeHeard { node: NodeId, state: NodeState },
    #[error("node {node} has not reported its software and firmware")]
    NoFingerprint { node: NodeId },
    #[error("node {node} cannot be wiped: its agent has no hooks.wipe")]
    NoWipeHook { node: NodeId },
    #[error("the last wipe of node {node} failed: {why}")]
    WipeFailed { node: NodeId, why: String },
    #[error("allocation {id} cannot be preempted: {why}")]
    NotPreemptible { id: AllocationId, why: String },
    #[error("allocation {} cannot be requeued: {why}", id.short())]
    NotRequeueable { id: AllocationId, why: String },
    #[error("allocation {id} was requeued soon after it was claimed, and waits until {until} before it is claimed again")]
    Waits { id: AllocationId, until: Timestamp },
    #[error("allocation {id} could not end by its deadline, {deadline}")]
    DeadlineMissed { id: AllocationId, deadline: Timestamp },
    /// The work cannot save itself; `lost` states what ending it would lose.
    #[error("allocation {} cannot save itself; {lost}", id.short())]
    CannotSave { id: AllocationId, lost: String },
    #[error("allocation {id} is {state}, not Suspended")]
    NotSuspended { id: AllocationId, state: AllocationState },
    #[error("allocation {id} cannot be measured in this mode: {why}")]
    TelemetryMode { id: AllocationId, why: String },
    #[error("there is no DAG {key}")]
    NoSuchDag { key: String },
    #[error("{key} could be any of the DAGs {}: give more digits", candidates.join(", "))]
    AmbiguousDag { key: String, candidates: Vec<String> },
    #[error("DAG {id} exists already, with other steps or another owner")]
    DagExists { id: DagId },
    #[error("DAG {id} belongs to {owner}")]
    DagNotYours { id: DagId, owner: String },
    #[error("DAG exceeds maximum size ({}, limit: {most})", counted(*steps, "allocation"))]
    DagSize { steps: u64, most: u32 },
    /// A step cannot be submitted, so none of the DAG is.
    #[error("step {step:?}: {refusal}")]
    DagStep { step: String, refusal: Box<Refusal> },
    /// Ended work goes to one store alone, and this is another one.
    #[error("ended work of this cluster goes to accounting store {store}")]
    OtherStore { store: Uuid },
    /// A system admin has moved accounting away from this store.
    #[error("accounting was moved away from store {store}, so this store accepts no more ended work")]
    FormerStore { store: Uuid },
    /// Accounting is not moved before the store has everything.
    #[error("accounting store {store} still lacks {} of this cluster", counted(*waiting, "end"))]
    StoreBehind { store: Uuid, waiting: u64 },
    /// So much waits for the store that a correction would displace ended work.
    #[error("{} wait for accounting store {store}, and until they are stored no record can be corrected", counted(*waiting, "record"))]
    StoreTooFarBehind { store: Uuid, waiting: u64 },
    #[error("no agent with the role accounting has stored ended work yet")]
    NoStore,
    #[error("the records {what} would take {bytes} bytes of memory; at most {most} are possible")]
    DagMemory { what: String, bytes: u64, most: u64 },
    #[error("the tasks of {whose}'s groups that have not ended would take {bytes} bytes of memory; at most {most} are possible")]
    GroupMemory { whose: String, bytes: u64, most: u64 },
    /// `whose`: the user's or tenant's name.
    #[error("{}", over_user_limit(*limit, whose, [*current, *requested, *most], *retry_ms))]
    OverUserLimit {
        limit: UserLimit,
        whose: String,
        current: u64,
        requested: u64,
        most: u64,
        /// When a repetition will be accepted, if that depends only on time.
        retry_ms: Option<u64>,
    },
}

/// `more`: how many are not among these.
fn describe_tenants(tenants: &[String], more: u64) -> String {
    let word = if tenants.len() == 1 && more == 0 { "tenant" } else { "tenants" };
    let more = if more > 0 { format!(" and {more} more") } else { String::new() };
    format!("{word} {}{more}", tenants.join(", "))
}

fn describe_known(known: &[String], all: u64) -> String {
    let shown = known.join(", ");
    let more = all.saturating_sub(known.len() as u64);
    if more == 0 { format!("are {shown}") } else { format!("are {shown} and {more} more") }
}

fn not_of_reservation(user: &str, tenant: &str, maintenance: bool) -> String {
    match (maintenance, tenant.is_empty()) {
        (true, _) => "for maintenance: nobody's work uses it".to_owned(),
        (false, true) => format!("not for user {user}, and this is work of no tenant"),
        (false, false) => format!("not for user {user}, nor for tenant {tenant:?}"),
    }
}

fn over_user_limit(limit: UserLimit, whose: &str, [current, requested, most]: [u64; 3], retry_ms: Option<u64>) -> String {
    let again = retry_ms.map_or_else(String::new, |ms| format!(": try again in {} s", ms.div_ceil(1000)));
    let more = if requested > 1 { format!("; with {requested} more there would be {}", current + requested) } else { String::new() };
    match limit {
        UserLimit::Pending => format!("user {whose} has {} waiting, and may have {most}{more}", counted(current, "allocation")),
        UserLimit::Running => {
            let count = |n: u64| u32::try_from(n).unwrap_or(u32::MAX);
            TooManyRunning { user: whose.to_owned(), running: count(current), most: count(most) }.to_string()
        }
        UserLimit::TenantPending => {
            format!("tenant {whose:?} has {} waiting, and may have {most}{more}", counted(current, "allocation"))
        }
        UserLimit::SubmissionsPerSecond => {
            format!("user {whose} submits faster than {} a second{again}", counted(most, "allocation"))
        }
        UserLimit::ScriptBytes => format!(
            "the scripts of user {whose}'s work that has not ended have {current} bytes; with {requested} more they would exceed {most}"
        ),
        UserLimit::History => format!("user {whose} has {} that ended, and may have {most}", counted(current, "allocation")),
    }
}

/// Which ended allocations the ledger has no record of any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ForgottenWork {
    /// The latest end of one of them.
    pub until: Timestamp,
    /// How long records are kept where the memory suffices, in milliseconds.
    pub kept_ms: u64,
}

/// A node that prevents a claim.
#[derive(Clone, Debug, PartialEq, Eq, Error, Serialize, Deserialize)]
#[error("{node}: {why}")]
pub struct Conflict {
    /// The node.
    pub node: NodeId,
    /// The allocation that has the wanted resources, if it is exactly one.
    pub holder: Option<AllocationId>,
    /// Why the claim is not possible.
    pub why: String,
}

impl Refusal {
    /// Refuses a change for another version of the settings than their latest change made.
    pub fn of_other_version(what: impl FnOnce() -> String, expected: Option<u64>, latest: Revision) -> Result<(), Self> {
        match expected.filter(|expected| *expected != latest.0) {
            Some(expected) => Err(Self::OtherVersion { what: what(), expected, version: latest.0 }),
            None => Ok(()),
        }
    }
}

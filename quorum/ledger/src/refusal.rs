//! Refusals: why a request was not granted, and what to do about it.

use crate::shortage::Shortage;
use lattice_ledger_state::user_limits::UserLimit;
use lattice_model::access::{Role, SubjectName};
use lattice_model::access_token::TokenId;
use lattice_model::count::counted;
use lattice_model::dependency::{DEPENDENCIES_MAX, FOLLOWERS_MAX};
use lattice_model::duration::{clock_text, units_text};
use lattice_model::lifecycle::{Event, Illegal};
use lattice_model::network::NoVni;
use lattice_model::tenant::Excess;
use lattice_model::user_running::TooManyRunning;
use lattice_model::{AllocationId, AllocationState, DagId, Epoch, HoldKind, Incarnation, MemberId, NodeId, NodeState, Quota, Timestamp};
use serde::{Deserialize, Serialize};
use std::time::Duration;
use thiserror::Error;
use uuid::Uuid;

/// How a person becomes an operator.
const OPERATOR_REMEDY: &str = "`lattice whoami --can` shows what your roles allow; a system admin grants more by `lattice admin role grant`. \
     Root on a member's machine issues a credential: `lattice quorum ca operator --dir DIR --name NAME --out FILE`; put it at \
     ~/.config/lattice/operator.pem, or name it in LATTICE_OPERATOR";

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
        "node {node} was removed without a report of what was left of its work, and some may still run in this boot: boot the machine, and \
         it registers by itself then"
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
    #[error("allocation {ahead} is ahead of {id} and waits still")]
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
    /// Also where the requester may not know of it.
    #[error("there is no token {id}")]
    NoSuchToken { id: TokenId },
    #[error("tenant {name:?} exists already, with other quotas")]
    TenantExists { name: String },
    #[error("tenant {name:?} has work that has not ended: {}", counted(*live, "allocation"))]
    TenantHasWork { name: String, live: u64 },
    #[error("there are {most} {what} already, and no more are accepted")]
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
    #[error("reservation {name} is over since {end}")]
    ReservationOver { name: String, end: Timestamp },
    #[error("allocation {id} may begin only in the window of reservation {name}: from {start} to {end}")]
    OutsideReservation { id: AllocationId, name: String, start: Timestamp, end: Timestamp },
    #[error("node {node} is of vCluster {vcluster} already")]
    NodeHasHome { node: NodeId, vcluster: String },
    #[error("allocation {id} is {state}, not Running")]
    NotRunning { id: AllocationId, state: AllocationState },
    #[error("allocation {id} stays as it is: {why}")]
    Update { id: AllocationId, why: UpdateRefusal },
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
    #[error("accounting was moved away from store {store}: the next one that begins is another one")]
    FormerStore { store: Uuid },
    /// Accounting is not moved before the store has everything.
    #[error("accounting store {store} still lacks {} of this cluster", counted(*waiting, "end"))]
    StoreBehind { store: Uuid, waiting: u64 },
    /// So much waits for the store that a correction would take memory of ends.
    #[error("{} wait for accounting store {store}, and no record is corrected meanwhile", counted(*waiting, "record"))]
    StoreTooFarBehind { store: Uuid, waiting: u64 },
    #[error("no agent with the role accounting has stored ended work yet")]
    NoStore,
    #[error("the records {what} would have {bytes} bytes; at most {most} are kept")]
    DagMemory { what: String, bytes: u64, most: u64 },
    #[error("the tasks of {whose}'s groups that have not ended would take {bytes} bytes of memory; at most {most} are kept")]
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

impl Refusal {
    /// What to do about it, if anything.
    pub fn remedy(&self) -> Option<String> {
        Some(match self {
            Self::Held { node, kind: HoldKind::Wipe, .. } => {
                format!("it ends when the node's wipe hook confirms it (`lattice node status {node}` shows the progress); before the hook runs, `lattice node unwipe {node}` cancels it")
            }
            Self::Held { node, kind, .. } => format!("work and leases stay off it until an operator lifts that: `{} {node}`", kind.exit()),
            Self::ClusterLevel { .. } => {
                "the level rises by itself when every member runs a version that knows it: `lattice quorum status` shows which members lack it"
                    .to_owned()
            }
            Self::NotOperator { .. } => OPERATOR_REMEDY.to_owned(),
            Self::NoSuchLease { .. } => "`lattice lease list` lists them".to_owned(),
            Self::StaleLease { .. } => {
                "it expired or was revoked: stop what you do under it, and acquire it again with `lattice lease grant`".to_owned()
            }
            Self::LeaseHeld { .. } => "it is free when its holder releases it or lets it expire: `lattice lease list` shows when".to_owned(),
            Self::LeaseNotYours { .. } => "an operator can revoke it: `lattice lease revoke`".to_owned(),
            Self::Quota(excess) => remedy_of_quota(excess),
            Self::NoSuchTenant { .. } => "`lattice admin tenant list` lists them".to_owned(),
            Self::ClassTooHigh { tenant, most, .. } => {
                format!("give --preemption-class {most} or less, or ask an operator for more: `lattice admin tenant update {tenant} --class-max N`")
            }
            Self::NotOfTenant { tenant, user } => {
                format!("its admins add members: `lattice admin tenant member add {tenant} user:{user}`")
            }
            Self::TenantNotNamed { user, .. } => {
                format!("give --tenant, or a system admin sets a default: `lattice admin tenant member add TENANT user:{user} --default`")
            }
            Self::NoSuchBinding { .. } => "`lattice admin role list` shows who has which role".to_owned(),
            Self::NoSuchMember { tenant, .. } => format!("`lattice admin tenant member list {tenant}` lists them"),
            Self::NoSuchProject { tenant, .. } => {
                format!("leave --project out, or ask an admin of the tenant, who lists them: `lattice admin project list {tenant}`")
            }
            Self::NotOfProject { tenant, project, user } => {
                format!("an admin of the tenant adds members: `lattice admin project member add {tenant}/{project} user:{user}`")
            }
            Self::NoSuchProjectMember { tenant, .. } => format!("`lattice admin project list {tenant}` shows them"),
            Self::NoSuchToken { .. } => "`lattice admin token list` shows those that you may revoke".to_owned(),
            Self::TenantExists { name } => format!("change them with `lattice admin tenant update {name}`"),
            Self::TenantHasWork { .. } => "wait for it, or cancel it".to_owned(),
            Self::NoSuchVCluster { .. } => "`lattice vcluster list` shows them, and whose work each accepts".to_owned(),
            Self::VClusterExists { name } => format!("change it with `lattice admin vcluster set-config --name {name}`"),
            Self::VClusterHasWork { .. } => "wait for it, or cancel it".to_owned(),
            Self::VClusterOfTenant { tenant, .. } => {
                format!("give --tenant {tenant} if that tenant pays for it, or leave --vcluster out: the default one accepts all work")
            }
            Self::NoSuchReservation { .. } | Self::NotOfReservation { .. } => {
                "`lattice admin reservation list` shows them, and for whom each is".to_owned()
            }
            Self::ReservationExists { name } => format!("change it with `lattice admin reservation update {name}`"),
            Self::ReservationOverlaps { other, .. } => {
                format!("choose another time or other nodes, or change that one first: `lattice admin reservation update {other}`")
            }
            Self::ReservationOver { .. } => {
                "leave --reservation out, or name another one: `lattice admin reservation list` shows them".to_owned()
            }
            Self::NodeHasHome { vcluster, .. } => {
                format!("remove it there first: `lattice admin vcluster set-config --name {vcluster} --nodes ...` with all nodes that stay")
            }
            Self::Dependency { why, .. } => return why.remedy(),
            Self::Update { id, why } => why.remedy(*id),
            Self::NotATaskGroup { .. } => "`lattice submit --task-group` submits one; a lane is named by the id of its group".to_owned(),
            Self::LaneOfGroup { group, .. } => format!("name the group, {}: its lanes follow it", group.short()),
            Self::ReplicaOfService { service, .. } => format!("name the service, {}: its replicas follow it", service.short()),
            Self::NotScaled { .. } => "`lattice submit --reactive` submits one; it is scaled by its own id, not by that of a replica".to_owned(),
            Self::ReplicasOutOfBounds { id, least, most, .. } => {
                format!("ask for {least} to {most}, or change that first: `lattice update {} --min-nodes N --max-nodes M`", id.short())
            }
            Self::NotASession { .. } | Self::SessionExists { .. } => "`lattice attach ID` opens a terminal in an allocation that runs".to_owned(),
            Self::NoSuchSession { .. } => "`lattice session list` shows yours".to_owned(),
            Self::NoVni(no_vni) => no_vni.remedy().to_owned(),
            Self::NoSuchService { .. } => {
                "a service exists while an allocation that offers it runs: `lattice service list` lists them".to_owned()
            }
            Self::NoSuchDomain { .. } => {
                "a domain exists from its first claim until its grace period ends: `lattice network list` lists them".to_owned()
            }
            Self::HasRegistered { node } => format!("`lattice node disable {node} --reason ...` takes it out of service"),
            Self::NotRemovable { node, why } => why.remedy(node),
            Self::NodeState { node, illegal } => return remedy_of(node, *illegal),
            Self::NodeHeard { node, .. } => {
                format!("`lattice node disable {node}` ends what it runs and takes it out of service; a node that is dead is Degraded soon")
            }
            Self::NoFingerprint { .. } => "its agent reports it when it is connected, if its version supports that".to_owned(),
            Self::NoWipeHook { .. } => "set hooks.wipe in its agent's configuration and start the agent again; the quorum then knows it within a heartbeat".to_owned(),
            Self::WipeFailed { node, .. } => format!("fix what it reports, then `lattice node wipe {node} --force --reason ...`"),
            Self::CannotSave { .. } => "`lattice preempt --kill` ends it anyway; `lattice cancel` ends it for good".to_owned(),
            Self::NotRequeueable { id, .. } => format!("`lattice cancel {}` ends it, and it can be submitted again", id.short()),
            Self::NotSuspended { .. } => "only a held allocation that is Suspended can be resumed: `lattice status ID` shows its state".to_owned(),
            Self::TelemetryMode { .. } => {
                "raw measurements and audits go to the log store: they need agents of this version with `logs.store` in their configuration, and \
                 audits also BPF and cgroups of version 2; `lattice nodes` shows which nodes have the features telemetry_debug and telemetry_audit, \
                 `lattice-agent doctor` on a node shows what it lacks"
                    .to_owned()
            }
            Self::Role { needed, role } if needed == "api" && role == "node" => {
                "ask on a machine whose agent has a certificate of role api: one of role node sees only allocations that have or had a share on its own node".to_owned()
            }
            Self::OverUserLimit { limit, .. } => return remedy_of_user_limit(*limit),
            Self::NoSuchDag { .. } => {
                "`lattice dag list` shows yours; a DAG is forgotten together with the last of its allocations".to_owned()
            }
            Self::DagSize { .. } => {
                "split the workflow into smaller DAGs, or ask an operator for a larger limit: `lattice admin limits --dag-size N`".to_owned()
            }
            Self::DagStep { refusal, .. } => return refusal.remedy(),
            Self::OtherStore { .. } => {
                "if that store is not used any more: `lattice admin accounting move`, with --force if it is lost".to_owned()
            }
            Self::FormerStore { .. } => {
                "let an agent with another store begin; or let this store go on: `lattice admin accounting move --force`".to_owned()
            }
            Self::StoreBehind { .. } => {
                "try again when `lattice admin accounting status` shows that nothing waits; --force moves at once, and what that store has \
                 not confirmed goes to the next one, even if it has it already"
                    .to_owned()
            }
            Self::StoreTooFarBehind { .. } => "try again when `lattice admin accounting status` shows that less waits".to_owned(),
            Self::NoStore => "give an agent the role accounting and a store: `accounting.store` in its agent.yaml".to_owned(),
            Self::DagMemory { .. } => "submit again when some of the DAGs have ended and are forgotten, or submit smaller ones".to_owned(),
            Self::GroupMemory { .. } => {
                "cancel whole groups, or submit again when some have ended: separate ranges of tasks take memory, and ended groups do not count"
                    .to_owned()
            }
            Self::AmbiguousDag { .. } | Self::DagExists { .. } | Self::DagNotYours { .. } => return None,
            Self::TooMany { .. } => "release or delete what is not needed any more".to_owned(),
            Self::DiskFull { .. } => {
                "free disk space there, and it continues by itself; or let a member with enough space lead: `lattice quorum transfer-leader`. Running work \
                 continues"
                    .to_owned()
            }
            Self::NoSuchAllocation { key, forgotten: Some(ForgottenWork { until, kept_ms }) } => format!(
                "the quorum keeps ended work for {}, or less where the memory for it is full, and has forgotten some that ended until {until}. \
                 An operator finds forgotten work in the audit log: `lattice audit query --alloc {key}`",
                units_text(Duration::from_millis(*kept_ms))
            ),
            Self::NoSuchAllocation { forgotten: None, .. }
            | Self::AmbiguousAllocation { .. }
            | Self::NumberOrId { .. }
            | Self::AllocationExists { .. }
            | Self::NotYours { .. }
            | Self::NoSuchNode { .. }
            | Self::NotAdmitted { .. }
            | Self::NodeRemoved { .. }
            | Self::NeedsBoot { .. }
            | Self::NotPending { .. }
            | Self::AwaitsOthers { .. }
            | Self::NotALane { .. }
            | Self::ScalingStep { .. }
            | Self::NotRunning { .. }
            | Self::NotPreemptible { .. }
            | Self::StaleRequeueCount { .. }
            | Self::WaitsAhead { .. }
            | Self::StaleEpoch { .. }
            | Self::Conflict { .. }
            | Self::MalformedClaim { .. }
            | Self::StaleIncarnation { .. }
            | Self::Role { .. }
            | Self::TooLarge { .. }
            | Self::Malformed { .. }
            | Self::CertificateRefused { .. }
            | Self::OtherMember { .. }
            | Self::AuditBroken { .. }
            | Self::Members { .. }
            | Self::NotLeader { .. }
            | Self::NoBackup { .. }
            | Self::Waits { .. }
            | Self::DeadlineMissed { .. }
            | Self::OutsideReservation { .. }
            | Self::Unavailable { .. } => return None,
        })
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

/// Why an allocation is not changed.
#[derive(Clone, Debug, PartialEq, Eq, Error, Serialize, Deserialize)]
pub enum UpdateRefusal {
    #[error("it is {state}")]
    HasEnded { state: AllocationState },
    #[error("its walltime is over, and its work is being ended")]
    WalltimeIsOver,
    #[error("it runs for {} already, so {} is the least that its walltime can be", clock_text(*ran), clock_text(*least))]
    TooShort { ran: Duration, least: Duration },
    #[error("it is {state}, and only operators lengthen the walltime of work that has nodes: other work was planned with its end")]
    LongerWithNodes { state: AllocationState },
    #[error("it is {state}, and only operators raise the preemption class of work that has nodes: other work counts on it")]
    HigherWithNodes { state: AllocationState },
    #[error("it has nodes that vCluster {lender} has lent to it, and does not lend to such work")]
    NodesAreLent { lender: String },
    #[error("it scales by no metric, so it has no target, window or cooldown for one")]
    NoMetric,
    #[error("another metric needs a target of its own: the one that it has is for the metric before")]
    NoTarget,
    #[error("it is {state}: a time at which it begins, and a deadline, are for work that waits")]
    HasBegun { state: AllocationState },
    #[error("only operators put work before equal work, by a smaller nice")]
    SmallerNice,
    #[error("its settings have version {version}, and the change is for version {expected}: somebody changed them meanwhile")]
    OtherVersion { expected: u64, version: u64 },
}

impl UpdateRefusal {
    fn remedy(&self, id: AllocationId) -> String {
        let id = id.short();
        match self {
            Self::HasEnded { .. } | Self::WalltimeIsOver => "submit it again with other options".to_owned(),
            Self::TooShort { .. } => format!("`lattice cancel {id}` ends it at once"),
            Self::LongerWithNodes { .. } => "ask root on a machine whose agent has the role api; its owner may shorten it".to_owned(),
            Self::HigherWithNodes { .. } => "ask root on a machine whose agent has the role api; its owner may lower it".to_owned(),
            Self::NodesAreLent { lender } => format!(
                "`lattice preempt --hold {id}` has it give its nodes back; it can be changed then, and `lattice resume {id}` lets it continue \
                 on nodes that are not lent by {lender}"
            ),
            Self::HasBegun { .. } => format!("`lattice requeue {id}` puts it back into its queue"),
            Self::SmallerNice => "give the nice that it has, or a larger one; or ask an operator".to_owned(),
            Self::OtherVersion { .. } => "read it again, and repeat the change".to_owned(),
            Self::NoMetric => {
                format!("`lattice scale {id} N` sets its replicas; or give it a metric too, by --scale-metric and --scale-target")
            }
            Self::NoTarget => "add --scale-target (REST: scale_target)".to_owned(),
        }
    }
}

/// Why a submission cannot depend on an allocation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error, Serialize, Deserialize)]
pub enum DependencyRefusal {
    /// Also where the submitter may not know of it.
    #[error("there is none, or it ended so long ago that it is not known any more")]
    Unknown,
    #[error("it is the allocation itself")]
    Itself,
    #[error("it is another user's, and mutex and corresponding change what both of them do")]
    NotYours,
    #[error("{DEPENDENCIES_MAX} others exclude it already, and no more are possible")]
    TooMany,
    #[error("mutex is between allocations that get nodes themselves: task groups have lanes for that, and scaled services replicas")]
    Group,
    #[error("corresponding is between two task groups, and one of the two is none")]
    NotTaskGroups,
    #[error("the tasks of {FOLLOWERS_MAX} other groups correspond to its tasks already, and no more are possible")]
    TooManyFollowers,
    #[error("the tasks of a group correspond to those of {FOLLOWERS_MAX} others at most")]
    TooManyFollowed,
}

impl DependencyRefusal {
    fn remedy(self) -> Option<String> {
        match self {
            Self::Unknown => Some("`lattice status` lists what is known; leave out what has ended well".to_owned()),
            Self::NotYours => Some("another user's work can be waited for with the other conditions".to_owned()),
            Self::TooMany | Self::TooManyFollowers => Some("submit again when some of them have ended".to_owned()),
            Self::TooManyFollowed => Some("have one group correspond to some of them, and this one to that group".to_owned()),
            Self::NotTaskGroups => Some("use success, which waits until all of it has succeeded".to_owned()),
            Self::Group => Some("task groups and scaled services wait, and are waited for, with success, failure, any or after".to_owned()),
            Self::Itself => None,
        }
    }
}

/// Why a node is not removed.
#[derive(Clone, Debug, PartialEq, Eq, Error, Serialize, Deserialize)]
pub enum RemovalRefusal {
    #[error("it is {state}, and only nodes that are Drained or Down can be")]
    InService { state: NodeState },
    /// Some of the allocations, and their total number.
    #[error("{} may still run there: {}", counted(*all, "allocation"), describe_some(some, *all))]
    HasWork { some: Vec<AllocationId>, all: u64 },
    #[error("it has not registered")]
    Admitted,
}

impl RemovalRefusal {
    fn remedy(&self, node: &NodeId) -> String {
        match self {
            Self::InService { state: NodeState::Booting | NodeState::Failed } => {
                format!("take it out of service first: `lattice node disable {node} --reason ...`")
            }
            Self::InService { .. } => {
                format!("drain it first: `lattice node drain {node} --wait --reason ...`; a machine that is off is Down after a while")
            }
            Self::HasWork { .. } => format!(
                "wait until it has reported that nothing is left; if the machine is off: `lattice node confirm-dead {node} --reason ...`"
            ),
            Self::Admitted => format!("`lattice node admit --withdraw {node}` withdraws its admission"),
        }
    }
}

fn describe_some(some: &[AllocationId], all: u64) -> String {
    let shown: Vec<String> = some.iter().map(|id| id.short().to_string()).collect();
    let more = all.saturating_sub(some.len() as u64);
    if more == 0 { shown.join(", ") } else { format!("{} and {more} more", shown.join(", ")) }
}

fn describe_known(known: &[String], all: u64) -> String {
    let shown = known.join(", ");
    let more = all.saturating_sub(known.len() as u64);
    if more == 0 { format!("are {shown}") } else { format!("are {shown} and {more} more") }
}

/// What to do if a quota is exceeded.
fn remedy_of_quota(excess: &Excess) -> String {
    match excess {
        Excess { quota: Quota::SensitivePoolSize, .. } => {
            "wait for sensitive work to end, or ask an operator for more: `lattice admin limits` shows the limit and what is claimed".to_owned()
        }
        Excess { requested, limit, .. } if requested > limit => {
            "ask for less, or your tenant's administrator for more: `lattice admin tenant list` shows the quotas".to_owned()
        }
        Excess { .. } => {
            "wait for running allocations to complete, cancel some, or ask your tenant's administrator for more: `lattice admin tenant list` \
             shows what is in use"
                .to_owned()
        }
    }
}

/// What to do if a user or tenant has reached a limit.
fn remedy_of_user_limit(limit: UserLimit) -> Option<String> {
    Some(match limit {
        UserLimit::Pending | UserLimit::TenantPending => {
            "submit again when some of them have begun, or cancel some (`lattice status --state pending`); an operator can raise the \
             limit: `lattice admin limits`"
                .to_owned()
        }
        UserLimit::Running => {
            "it begins by itself when one of them has ended; an operator can raise the limit: `lattice admin limits`".to_owned()
        }
        UserLimit::SubmissionsPerSecond => "nothing was submitted; an operator can raise the limit: `lattice admin limits`".to_owned(),
        UserLimit::ScriptBytes => {
            "submit again when some of it has ended; one script with other arguments (`lattice submit FILE ARGS`) counts once. An \
             operator can raise the limit: `lattice admin limits`"
                .to_owned()
        }
        UserLimit::History => return None,
    })
}

/// What to do if a node's state does not allow something.
fn remedy_of(node: &NodeId, illegal: Illegal) -> Option<String> {
    match (illegal.event, illegal.state) {
        (Event::BootBegun, NodeState::Down) => Some(format!(
            "`{} {node}` or `{} {node}` first, as `lattice node status {node}` shows it",
            HoldKind::Disable.exit(),
            HoldKind::Failure.exit()
        )),
        (Event::BootBegun, _) => Some(format!("drain it first: `lattice node drain {node} --wait --reason ...`")),
        _ => None,
    }
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

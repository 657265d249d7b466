//! What can be committed.

use super::access::{Access, AccessKind};
use super::keyring::Secret;
use super::networks::DomainKey;
use super::signing::SignedHead;
use super::tenants::{QuotaChange, TenantChange};
use super::user_limits::UserLimitsChange;
use super::vclusters::VClusterChange;
use crate::wire::{HeldShare, Refusal, VniPoolChange};
use lattice_model::conformance::Components;
use lattice_model::{
    AllocationId, AllocationSpec, Boot, Claim, Epoch, HoldKind, Incarnation, MemberId, NodeAddresses, NodeId, NodeReport, NodeState,
    Preemption, Principal, ReportItem, Resources, Revision, TelemetryMode, Timestamp, When,
};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::time::Duration;
use uuid::Uuid;

/// A command with the time at which the leader proposed it: the only time that applying it knows.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Command {
    /// When the leader proposed it.
    pub at: Timestamp,
    /// What is to be done.
    pub action: Action,
}

/// What is to be done. Once a version is released, kinds are added and never changed: newer versions read its log.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Action {
    /// Names the cluster, once.
    Bootstrap { cluster: String },
    /// See [`crate::wire::Request::Submit`].
    Submit { id: AllocationId, spec: Box<AllocationSpec>, owner: Principal, claim: Option<Claim> },
    /// See [`crate::wire::Request::Cancel`].
    Cancel { id: AllocationId, by: Principal },
    /// See [`crate::wire::Request::Claim`].
    Claim(Claim),
    /// An agent opens its session.
    Register(Registration),
    /// An agent reports.
    Report(NodeReport),
    /// After a recovery: all that a node has. See [`crate::wire::Up::Holds`].
    Adopt { node: NodeId, incarnation: Incarnation, held: Vec<HeldShare>, unreported: Vec<ReportItem> },
    /// The leader's clocks say where nodes stand.
    NodeStates(Vec<NodeStanding>),
    /// See [`crate::wire::Request::ReleaseLease`].
    ReleaseLease { name: String, token: u64, user: Option<Principal> },
    /// The leader's timer for a lease ran out: it ends unless it was renewed after `renewed`.
    ExpireLease { name: String, token: u64, renewed: Revision },
    /// A step of a change of the members that is about to be taken: written down first.
    Members { by: Principal, step: MembersStep },
    /// See [`crate::wire::Request::RecordAccess`].
    RecordAccess(Access),
    /// The member signs with this key from now on: 64 hexadecimal digits.
    SetSigningKey { member: MemberId, key: String },
    /// The leader signed the audit chain.
    SignHead(SignedHead),
    /// See [`crate::wire::Request::AcquireLease`].
    GrantLease { name: String, holder: NodeId, ttl_ms: u64, user: Option<Principal> },
    /// See [`crate::wire::Request::RevokeLease`].
    RevokeLease { name: String, token: Option<u64>, by: String },
    /// See [`crate::wire::Request::SetHold`].
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
    /// See [`crate::wire::Request::LiftHold`]. `until`: the leader's clock says it of a hold that ends then.
    LiftHold {
        node: NodeId,
        kind: HoldKind,
        by: String,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        until: Option<Timestamp>,
    },
    /// Every member understands commands of this level.
    RaiseLevel { level: u32 },
    /// See [`crate::wire::Request::SetTenant`].
    SetTenant { change: TenantChange, by: String },
    /// See [`crate::wire::Request::DeleteTenant`].
    DeleteTenant { name: String, by: String },
    /// See [`crate::wire::Request::Revoke`].
    Revoke { name: String, by: String, reason: String },
    /// See [`crate::wire::Request::RotateKeys`].
    AddKey { secret: Secret, by: String },
    /// All agents that can be heard have the key: it seals from now on.
    SealWithKey { id: u32 },
    /// All of them seal with the one after it: the key is forgotten.
    RetireKey { id: u32 },
    /// See [`crate::wire::Request::SetVCluster`].
    SetVCluster { change: VClusterChange, by: String },
    /// See [`crate::wire::Request::DeleteVCluster`].
    DeleteVCluster { name: String, by: String },
    /// See [`crate::wire::Request::CreateSession`].
    CreateSession { id: Uuid, allocation: AllocationId, by: Principal },
    /// See [`crate::wire::Request::DeleteSession`].
    DeleteSession { id: Uuid, allocation: AllocationId, by: Principal },
    /// See [`crate::wire::Request::SetVniPool`].
    SetVniPool { change: VniPoolChange, by: String },
    /// The leader's clock says that network domains have been without work for long enough.
    ReleaseDomains,
    /// See [`crate::wire::Request::SetDomainGrace`].
    SetDomainGrace { domain: DomainKey, grace_ms: u64, by: String },
    /// See [`crate::wire::Request::SetLimits`].
    SetLimits {
        sensitive_pool_size: QuotaChange,
        #[serde(default, skip_serializing_if = "UserLimitsChange::is_none")]
        users: UserLimitsChange,
        by: String,
    },
    /// The leader's clock says that this deadline of the node's drain is past.
    EndDrained { node: NodeId, deadline: Timestamp },
    /// See [`crate::wire::Request::BootNode`].
    BootNode { node: NodeId, by: String, reason: String },
    /// Run leases of claims from now on are this long.
    SetRunLease { ms: u64 },
    /// A node that is Down was not heard for so long: run leases there that were shorter are over.
    Fence { node: NodeId, incarnation: Incarnation, silent_ms: u64 },
    /// See [`crate::wire::Request::ConfirmDead`].
    ConfirmDead { node: NodeId, by: String, reason: String },
    /// A node's agent says what its software and firmware are.
    Conforms { node: NodeId, incarnation: Incarnation, components: Components },
    /// And whether it could not look at them for too long.
    ConformanceStale { node: NodeId, incarnation: Incarnation, stale: bool },
    /// See [`crate::wire::Request::AcceptDrift`].
    AcceptDrift { node: NodeId, by: String, reason: String },
    /// The leader's clock says that the time to mend the drift that began then is over.
    DriftOver { node: NodeId, since: Timestamp },
    /// See [`crate::wire::Request::Wipe`].
    Wipe { node: NodeId, by: String, reason: String, force: bool },
    /// A node's agent says how this wipe ended: `failed`, where it did.
    Wiped {
        node: NodeId,
        order: u64,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        failed: Option<String>,
    },
    /// Whoever is notified this way has taken everything up to this audit record.
    Notified { way: NotifyWay, upto: u64 },
    /// See [`crate::wire::Request::Preempt`].
    Preempt { allocation: AllocationId, epoch: Epoch, by: Principal, order: Preemption, kill: bool },
    /// See [`crate::wire::Request::RequeueAllocation`].
    RequeueAllocation { allocation: AllocationId, epoch: Epoch, by: Principal, reason: String },
    /// See [`crate::wire::Request::HoldAllocation`].
    HoldAllocation { allocation: AllocationId, by: Principal },
    /// See [`crate::wire::Request::SetWalltime`].
    SetWalltime { allocation: AllocationId, by: Principal, walltime: Duration, as_operator: bool },
    /// See [`crate::wire::Request::Resume`].
    Resume { allocation: AllocationId, by: Principal },
    /// See [`crate::wire::Request::DrainUrgently`].
    DrainUrgently {
        node: NodeId,
        by: String,
        reason: String,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        deadline: Option<When>,
        seed: Uuid,
    },
    /// See [`crate::wire::Request::SetTelemetry`].
    SetTelemetry { allocation: AllocationId, by: Principal, id: Uuid, mode: TelemetryMode, duration_ms: u64 },
    /// The leader's clock says that waits until then are over.
    EndWaits { now: Timestamp },
    /// The leader's clock says that the time of this order is over.
    EndTelemetry { allocation: AllocationId, order: Uuid },
    /// A node's own checks ask for a drain; see [`crate::wire::DrainWish`].
    AskDrain { node: NodeId, incarnation: Incarnation, asked: Timestamp, reason: String },
    /// See [`crate::wire::Request::Admit`].
    Admit { node: NodeId, by: String, reason: String },
    /// See [`crate::wire::Request::WithdrawAdmission`].
    WithdrawAdmission { node: NodeId, by: String },
    /// It is [`Command::at`], however long ago the last command was: a leader has measured that by a clock that nobody sets, or begins to
    /// lead and knows it by the clocks of a majority.
    AdvanceTime,
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

/// What a command is for. Where there is too little room on the disk, the less urgent are refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Urgency {
    /// It begins something, or can wait.
    New,
    /// It ends work, gives something back, or keeps nodes in touch.
    Keeps,
    /// It may bring a member to the lead that has room.
    Mends,
}

/// One step of a change of the members. The membership itself is Raft's; this is for the audit log.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum MembersStep {
    /// A member begins to learn.
    Learn { id: u64, service: String, raft: String },
    /// From now on these vote.
    Vote { voters: Vec<u64> },
    /// A member without a vote is forgotten.
    Forget { id: u64 },
    /// Another member is to lead.
    HandOver { to: u64 },
}

impl fmt::Display for MembersStep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Learn { id, service, raft } => write!(f, "member {id} (service {service}, raft {raft}) learns"),
            Self::Vote { voters } => {
                let voters: Vec<String> = voters.iter().map(u64::to_string).collect();
                write!(f, "members {} vote", voters.join(", "))
            }
            Self::Forget { id } => write!(f, "member {id} leaves the cluster"),
            Self::HandOver { to } => write!(f, "member {to} is to lead"),
        }
    }
}

impl Action {
    /// The cluster level that it needs. Raising the level needs none: it is proposed when every member knows it.
    pub fn level(&self) -> u32 {
        match self {
            #[cfg(debug_assertions)]
            Self::GrantLease { name, .. } if name.starts_with(super::level::TRIAL_PREFIX) => super::LEVEL_MAX,
            Self::Bootstrap { .. }
            | Self::Submit { .. }
            | Self::Cancel { .. }
            | Self::Claim(_)
            | Self::Register(_)
            | Self::Report(_)
            | Self::Adopt { .. }
            | Self::NodeStates(_)
            | Self::ReleaseLease { .. }
            | Self::ExpireLease { .. }
            | Self::Members { .. }
            | Self::RecordAccess(_)
            | Self::SetSigningKey { .. }
            | Self::SignHead(_)
            | Self::GrantLease { .. }
            | Self::RevokeLease { .. }
            | Self::SetHold { .. }
            | Self::LiftHold { .. }
            | Self::RaiseLevel { .. }
            | Self::SetTenant { .. }
            | Self::DeleteTenant { .. }
            | Self::Revoke { .. }
            | Self::AddKey { .. }
            | Self::SealWithKey { .. }
            | Self::RetireKey { .. }
            | Self::SetVCluster { .. }
            | Self::DeleteVCluster { .. }
            | Self::CreateSession { .. }
            | Self::DeleteSession { .. }
            | Self::SetVniPool { .. }
            | Self::ReleaseDomains
            | Self::SetDomainGrace { .. }
            | Self::SetLimits { .. }
            | Self::EndDrained { .. }
            | Self::BootNode { .. }
            | Self::SetRunLease { .. }
            | Self::Fence { .. }
            | Self::ConfirmDead { .. }
            | Self::Conforms { .. }
            | Self::ConformanceStale { .. }
            | Self::AcceptDrift { .. }
            | Self::DriftOver { .. }
            | Self::Wipe { .. }
            | Self::Wiped { .. }
            | Self::Notified { .. }
            | Self::Preempt { .. }
            | Self::RequeueAllocation { .. }
            | Self::HoldAllocation { .. }
            | Self::SetWalltime { .. }
            | Self::Resume { .. }
            | Self::DrainUrgently { .. }
            | Self::SetTelemetry { .. }
            | Self::EndWaits { .. }
            | Self::EndTelemetry { .. }
            | Self::AskDrain { .. }
            | Self::Admit { .. }
            | Self::WithdrawAdmission { .. }
            | Self::AdvanceTime => super::LEVEL_FIRST,
        }
    }

    /// What it is for, where the disk has little room.
    pub fn urgency(&self) -> Urgency {
        match self {
            // Operators look into what fills the disks; once an hour at most for each of them, allocation and command.
            Self::RecordAccess(Access { kind: AccessKind::MeasurementsRead, .. }) => Urgency::Keeps,
            Self::Submit { .. }
            | Self::Claim(_)
            | Self::GrantLease { .. }
            | Self::RecordAccess(_)
            | Self::SetSigningKey { .. }
            | Self::SignHead(_)
            | Self::SetTenant { .. }
            | Self::AddKey { .. }
            | Self::SealWithKey { .. }
            | Self::RetireKey { .. }
            | Self::SetVCluster { .. }
            | Self::CreateSession { .. }
            | Self::SetVniPool { .. }
            | Self::SetDomainGrace { .. }
            | Self::SetLimits { .. }
            | Self::SetRunLease { .. }
            | Self::Notified { .. }
            | Self::Resume { .. }
            | Self::SetWalltime { .. }
            | Self::SetTelemetry { mode: TelemetryMode::Debug | TelemetryMode::Audit, .. }
            | Self::Admit { .. }
            | Self::RaiseLevel { .. } => Urgency::New,
            Self::Bootstrap { .. }
            | Self::HoldAllocation { .. }
            | Self::RequeueAllocation { .. }
            | Self::Cancel { .. }
            | Self::Register(_)
            | Self::Report(_)
            | Self::Adopt { .. }
            | Self::NodeStates(_)
            | Self::ReleaseLease { .. }
            | Self::ExpireLease { .. }
            | Self::RevokeLease { .. }
            | Self::SetHold { .. }
            | Self::LiftHold { .. }
            | Self::EndDrained { .. }
            | Self::BootNode { .. }
            | Self::ReleaseDomains
            | Self::Fence { .. }
            | Self::ConfirmDead { .. }
            | Self::Conforms { .. }
            | Self::ConformanceStale { .. }
            | Self::AcceptDrift { .. }
            | Self::DriftOver { .. }
            | Self::Wipe { .. }
            | Self::Wiped { .. }
            | Self::DeleteTenant { .. }
            | Self::DeleteVCluster { .. }
            | Self::Preempt { .. }
            | Self::DrainUrgently { .. }
            | Self::SetTelemetry { mode: TelemetryMode::Prod, .. }
            | Self::EndTelemetry { .. }
            | Self::EndWaits { .. }
            | Self::WithdrawAdmission { .. }
            | Self::AskDrain { .. }
            | Self::AdvanceTime
            | Self::Revoke { .. }
            | Self::DeleteSession { .. } => Urgency::Keeps,
            Self::Members { .. } => Urgency::Mends,
        }
    }

    /// About how many bytes it will take in the log.
    pub fn bytes_about(&self) -> usize {
        match self {
            Self::Submit { spec, claim, .. } => {
                let script = match &spec.entrypoint {
                    lattice_model::Entrypoint::Script { text, .. } => text.len(),
                    lattice_model::Entrypoint::Command { .. } => 0,
                };
                spec.bytes_without_script() + script + 256 + claim.as_ref().map_or(0, claim_bytes)
            }
            Self::Claim(claim) => claim_bytes(claim),
            Self::Adopt { held, unreported, .. } => 256 + unreported.len() * 512 + held.iter().map(HeldShare::bytes_about).sum::<usize>(),
            Self::NodeStates(standings) => 64 + standings.len() * 128,
            Self::Register(_) | Self::Report(_) | Self::SignHead(_) => 512,
            Self::RecordAccess(access) => 512 + access.detail.len(),
            Self::Bootstrap { .. }
            | Self::Cancel { .. }
            | Self::ReleaseLease { .. }
            | Self::ExpireLease { .. }
            | Self::SetSigningKey { .. }
            | Self::GrantLease { .. }
            | Self::RevokeLease { .. }
            | Self::LiftHold { .. }
            | Self::EndDrained { .. }
            | Self::SetTenant { .. }
            | Self::DeleteTenant { .. }
            | Self::AddKey { .. }
            | Self::SealWithKey { .. }
            | Self::RetireKey { .. }
            | Self::DeleteVCluster { .. }
            | Self::CreateSession { .. }
            | Self::DeleteSession { .. }
            | Self::SetVniPool { .. }
            | Self::SetDomainGrace { .. }
            | Self::ReleaseDomains
            | Self::SetLimits { .. }
            | Self::SetRunLease { .. }
            | Self::Fence { .. }
            | Self::DriftOver { .. }
            | Self::ConformanceStale { .. }
            | Self::Notified { .. }
            | Self::HoldAllocation { .. }
            | Self::Resume { .. }
            | Self::SetWalltime { .. }
            | Self::SetTelemetry { .. }
            | Self::EndTelemetry { .. }
            | Self::EndWaits { .. }
            | Self::WithdrawAdmission { .. }
            | Self::AdvanceTime
            | Self::RaiseLevel { .. } => 256,
            Self::Revoke { name, reason, .. } => 256 + name.len() + reason.len(),
            Self::Preempt { order, .. } => 512 + order.reason.len(),
            Self::Conforms { components, .. } => 256 + components.iter().map(|(name, value)| 8 + name.len() + value.len()).sum::<usize>(),
            Self::Wiped { failed, .. } => 256 + failed.as_ref().map_or(0, String::len),
            Self::SetVCluster { change, .. } => change.bytes_about(),
            Self::SetHold { reason, .. }
            | Self::BootNode { reason, .. }
            | Self::ConfirmDead { reason, .. }
            | Self::AcceptDrift { reason, .. }
            | Self::DrainUrgently { reason, .. }
            | Self::RequeueAllocation { reason, .. }
            | Self::AskDrain { reason, .. }
            | Self::Admit { reason, .. }
            | Self::Wipe { reason, .. } => 256 + reason.len(),
            Self::Members { .. } => 1024,
        }
    }
}

fn claim_bytes(claim: &Claim) -> usize {
    128 + claim.shares.len() * 96
}

/// An agent's registration; see [`crate::wire::Up::Register`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Registration {
    /// Who.
    pub node: NodeId,
    /// Under which boot.
    pub boot: Boot,
    /// With how much.
    pub size: Resources,
    /// Reached where.
    pub addresses: NodeAddresses,
    /// Whether it takes work.
    pub schedulable: bool,
    /// The incarnation it had before; 0 where it is not known.
    pub incarnation: Incarnation,
    /// Whether this is a new life of the agent.
    pub new_life: bool,
    /// What its kernel cannot limit; see [`lattice_model::Node::unlimited`].
    pub unlimited: Vec<String>,
    /// What work may ask for of it; see [`lattice_model::Node::features`].
    pub features: Vec<String>,
    /// An agent that lost its memory: what it found of its work, and nothing else of it is left. `None`: it remembers.
    pub found: Option<Vec<(AllocationId, Epoch)>>,
    /// Who carries its session; see [`lattice_model::Node::through`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub through: Option<NodeId>,
    /// Whether it has the site's hook that wipes the node.
    pub wipes: bool,
    /// Why it gets no work, as its agent finds it: it is never Ready. `None`: it is well.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unwell: Option<String>,
    /// What its software and firmware are, where that was said already.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub conformance: Option<Components>,
    /// Whether the leader that proposes it admits every node (its `node_admission`). It overwrites what others wrote here.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub automatic: bool,
    /// From which address it came: for the leader's list of nodes that wait for admission. It is never in the log.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from: Option<String>,
}

/// Where the leader's clocks see a node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeStanding {
    /// Which node.
    pub node: NodeId,
    /// The incarnation that was (not) heard: a node that registered meanwhile is left alone.
    pub incarnation: Incarnation,
    /// Where it stands.
    pub state: NodeState,
    /// Why, for people.
    pub reason: String,
}

/// What a granted command did.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Outcome {
    /// It is done, or was already.
    Done,
    /// The claim holds.
    Claimed { epoch: Epoch },
    /// The agent is registered.
    Registered { incarnation: Incarnation, report_seq: u64 },
    /// The lease is held.
    Leased { token: u64 },
    /// The report counts as heard, so that those behind it are; what it says is refused, for this reason.
    Unheeded(Refusal),
    /// This gossip key is brought in.
    KeyAdded { id: u32 },
}

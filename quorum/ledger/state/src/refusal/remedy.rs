//! What to do about each refusal.

use super::{ForgottenWork, Refusal};
use crate::user_limits::UserLimit;
use lattice_model::duration::units_text;
use lattice_model::lifecycle::{Event, Illegal};
use lattice_model::tenant::Excess;
use lattice_model::{HoldKind, NodeId, NodeState, Quota};
use std::time::Duration;

/// How a person becomes an operator.
const OPERATOR_REMEDY: &str = "`lattice whoami --can` shows what your roles allow; a system admin grants more by `lattice admin role grant`. \
     Root on a member's machine issues a credential: `lattice quorum ca operator --dir DIR --name NAME --out FILE`; put it at \
     ~/.config/lattice/operator.pem, or name it in LATTICE_OPERATOR";

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
            Self::OtherVersion { .. } => "read it again, and repeat the change".to_owned(),
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
                "start an agent of role accounting with another store, or return to this one: `lattice admin accounting move --force`".to_owned()
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
            | Self::OtherIncarnation { .. }
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

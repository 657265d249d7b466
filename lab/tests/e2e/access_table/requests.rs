//! One request for each method of the API, and who owns its object.

use lattice_api::v1;
use prost::Message;

/// Who owns the object of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Target {
    /// The caller: an object that it makes, or a list of objects that it may see.
    OfCaller,
    /// The owner of the work, which is in the tenant.
    Work,
    /// The owner of the work; the object is in no tenant.
    WithoutTenant,
    /// The tenant itself.
    Tenant,
    /// Nobody: it is a part of the cluster.
    Cluster,
}

/// The objects that requests name.
#[derive(Clone, Debug, Default)]
pub struct Work {
    /// An allocation that runs.
    pub running: String,
    /// A held allocation, for this caller alone.
    pub held: String,
    /// A session, in another allocation.
    pub session: String,
    pub dag: String,
    /// The token of a lease of the owner with the name [`LEASE`].
    pub lease: u64,
}

/// Methods that end what their request names, if they are allowed.
pub const ENDS: [&str; 4] = ["AllocationService/Cancel", "DagService/Cancel", "LeaseService/Release", "SessionService/Delete"];

/// The lease of the owner.
pub const LEASE: &str = "walked";

/// A name that no node and no other object has.
const NONE: &str = "nosuch";
/// An id that no object has.
const ID: &str = "7d0c1f0e-5b1a-4c58-9a53-0c0ffee0c0de";

/// The request for a method; `None` if it has none.
pub fn of(method: &str, work: &Work) -> Option<(Target, Vec<u8>)> {
    let (service, name) = method.split_once('/')?;
    match service {
        "AccountingService" => accounting(name),
        "AdminService" => admin(name),
        "AllocationService" => allocation(name, work),
        "DagService" => dag(name, work),
        "LeaseService" => lease(name, work),
        "NodeService" => node(name),
        "ReservationService" => reservation(name),
        "SessionService" => session(name, work),
        "VClusterService" => vcluster(name),
        "WatchService" => watch(name),
        _ => None,
    }
}

fn to(target: Target, request: &impl Message) -> Option<(Target, Vec<u8>)> {
    Some((target, request.encode_to_vec()))
}

/// A request without content.
fn empty(target: Target) -> Option<(Target, Vec<u8>)> {
    Some((target, Vec::new()))
}

/// The store of ended work, which this cluster does not have.
fn accounting(name: &str) -> Option<(Target, Vec<u8>)> {
    match name {
        // Each caller's own history.
        "History" => empty(Target::OfCaller),
        "Export" => to(Target::Tenant, &v1::HistoryRequest { tenant: super::TENANT.to_owned(), ..Default::default() }),
        "Status" | "MoveStore" => empty(Target::Cluster),
        _ => None,
    }
}

fn admin(name: &str) -> Option<(Target, Vec<u8>)> {
    use Target::{Cluster, OfCaller};
    match name {
        "AddTenantMember" | "GrantRole" | "ListRoles" | "ListTenantMembers" | "RemoveTenantMember" | "RevokeRole" => people(name),
        "AddProjectMember" | "CreateProject" | "DeleteProject" | "ListProjects" | "RemoveProjectMember" => project(name),
        // Without a name.
        "IssueToken" => empty(Cluster),
        "ListTokens" => empty(OfCaller),
        // There is no such token.
        "RevokeToken" => to(OfCaller, &v1::RevokeTokenRequest { id: "0".repeat(16) }),
        "GetLimits" | "GetVniPool" | "ListGossipKeys" | "ListNetworkDomains" | "ListRevocations" | "ListServices" | "ListTenants"
        | "ListTracedWork" | "QuorumStatus" | "RotateGossipKeys" | "VerifyAudit" | "WhoAmI" => empty(Cluster),
        "GetUserUsage" | "QueryAudit" => empty(OfCaller),
        "ExportAudit" => {
            let filter = v1::AuditFilter { user: NONE.to_owned(), ..Default::default() };
            to(Cluster, &v1::ExportAuditRequest { filter: Some(filter) })
        }
        "ChangeMembers" => {
            let change = v1::change_members_request::Change::Remove(v1::RemoveMember { id: 999 });
            to(Cluster, &v1::ChangeMembersRequest { change: Some(change) })
        }
        // Without a name.
        "CreateTenant" => empty(Cluster),
        "UpdateTenant" => to(Cluster, &v1::TenantRequest { name: NONE.to_owned(), ..Default::default() }),
        "DeleteTenant" => to(Cluster, &v1::DeleteTenantRequest { name: NONE.to_owned() }),
        "GetTenantUsage" => to(Cluster, &v1::GetTenantUsageRequest { tenant: super::TENANT.to_owned(), ..Default::default() }),
        "LookupService" => to(Cluster, &v1::LookupServiceRequest { name: NONE.to_owned(), ..Default::default() }),
        // Without a name.
        "RevokeCertificates" => empty(Cluster),
        // Below the minimum.
        "SetLimits" => to(Cluster, &v1::SetLimitsRequest { dag_size: Some(0), ..Default::default() }),
        "SetNetworkGrace" => {
            to(Cluster, &v1::SetNetworkGraceRequest { tenant: super::TENANT.to_owned(), name: NONE.to_owned(), grace_ms: 1000 })
        }
        // Below the minimum.
        "SetVniPool" => to(Cluster, &v1::SetVniPoolRequest { start: Some(1), ..Default::default() }),
        // Without lines.
        "StoreTrace" => to(Cluster, &v1::StoreTraceRequest { is_last: true, ..Default::default() }),
        _ => None,
    }
}

/// Roles, and members of tenants.
fn people(name: &str) -> Option<(Target, Vec<u8>)> {
    use Target::{Cluster, OfCaller, Tenant};
    let tenant = super::TENANT.to_owned();
    match name {
        // It is a member already.
        "AddTenantMember" => to(Tenant, &v1::TenantMemberRequest { tenant, subject: "user:nobody".to_owned(), is_default: false }),
        // It is no member.
        "RemoveTenantMember" => to(Tenant, &v1::TenantMemberRequest { tenant, subject: "user:games".to_owned(), is_default: false }),
        "ListTenantMembers" => to(Tenant, &v1::ListTenantMembersRequest { tenant }),
        // This role cannot be granted.
        "GrantRole" => {
            let (role, subject) = ("user".to_owned(), "user:games".to_owned());
            to(Cluster, &v1::RoleRequest { role, subject, tenant: String::new() })
        }
        // It does not have this role.
        "RevokeRole" => {
            let (role, subject) = ("operator".to_owned(), "user:games".to_owned());
            to(Cluster, &v1::RoleRequest { role, subject, tenant: String::new() })
        }
        "ListRoles" => empty(OfCaller),
        _ => None,
    }
}

fn project(name: &str) -> Option<(Target, Vec<u8>)> {
    let (tenant, project, subject) = (super::TENANT.to_owned(), NONE.to_owned(), "user:nobody".to_owned());
    match name {
        // Without a name.
        "CreateProject" => to(Target::Tenant, &v1::ProjectRequest { tenant, project: String::new() }),
        "DeleteProject" => to(Target::Tenant, &v1::ProjectRequest { tenant, project }),
        "ListProjects" => to(Target::Tenant, &v1::ListProjectsRequest { tenant }),
        // There is no such project.
        "AddProjectMember" | "RemoveProjectMember" => to(Target::Tenant, &v1::ProjectMemberRequest { tenant, project, subject }),
        _ => None,
    }
}

fn allocation(name: &str, work: &Work) -> Option<(Target, Vec<u8>)> {
    use Target::{Cluster, OfCaller, Work};
    let key = work.running.clone();
    match name {
        // Without a specification.
        "Submit" => to(OfCaller, &v1::SubmitRequest { id: ID.to_owned(), ..Default::default() }),
        "List" => empty(Cluster),
        "Get" => to(Work, &v1::GetAllocationRequest { key, ..Default::default() }),
        "Cancel" => to(Work, &v1::CancelRequest { key: work.held.clone() }),
        "Compare" => to(Work, &v1::CompareRequest { keys: vec![key.clone(), key], metric: String::new() }),
        "Diagnose" => to(Work, &v1::DiagnoseRequest { key, processes: true, ..Default::default() }),
        "Explain" => to(Work, &v1::ExplainRequest { key }),
        // It runs.
        "Hold" => to(Work, &v1::HoldAllocationRequest { key }),
        "Resume" => to(Work, &v1::ResumeRequest { key }),
        // It has no nodes.
        "Preempt" => to(Work, &v1::PreemptRequest { key: work.held.clone(), id: ID.to_owned(), ..Default::default() }),
        "Requeue" => to(Work, &v1::RequeueRequest { key: work.held.clone(), ..Default::default() }),
        "Logs" => to(Work, &v1::LogsRequest { key, ..Default::default() }),
        "ReadTelemetry" => to(Work, &v1::ReadTelemetryRequest { key, ..Default::default() }),
        // It is no service.
        "Scale" => to(Work, &v1::ScaleRequest { key, replicas: 1 }),
        // It has this mode already.
        "SetTelemetry" => to(Work, &v1::SetTelemetryRequest { key, id: ID.to_owned(), mode: "prod".to_owned(), duration_ms: 0 }),
        // SIGCONT.
        "Signal" => to(Work, &v1::SignalRequest { key, signal: 18, ..Default::default() }),
        "StreamMetrics" => to(Work, &v1::StreamMetricsRequest { key, ..Default::default() }),
        "Top" => to(Work, &v1::TopRequest { key, ..Default::default() }),
        "Update" => to(Work, &v1::UpdateAllocationRequest { key, name: Some("walked".to_owned()), ..Default::default() }),
        "Watch" => to(Work, &v1::WatchAllocationRequest { key, ..Default::default() }),
        "ListSteps" => to(Work, &v1::ListStepsRequest { key }),
        // It is no task group.
        "GetTasks" => to(Work, &v1::GetTasksRequest { key, ..Default::default() }),
        "CancelTasks" => to(Work, &v1::CancelTasksRequest { key, ..Default::default() }),
        "RetryTasks" => to(Work, &v1::RetryTasksRequest { key, id: ID.to_owned(), ..Default::default() }),
        "AbortLaunch" | "Attach" | "Launch" | "LaunchInput" => launch(name, key),
        "Checkpoint" | "GetCheckpoint" | "ListCheckpoints" | "RemoveCheckpoint" | "VerifyCheckpoint" => checkpoint(name, key),
        _ => None,
    }
}

fn launch(name: &str, key: String) -> Option<(Target, Vec<u8>)> {
    match name {
        // There is no such launch.
        "AbortLaunch" => to(Target::Work, &v1::AbortLaunchRequest { id: ID.to_owned(), allocation: key }),
        "LaunchInput" => {
            use v1::launch_input_request::{Start, What};
            let start = Start { id: ID.to_owned(), allocation: key, standard: true };
            to(Target::Work, &v1::LaunchInputRequest { what: Some(What::Start(start)) })
        }
        // Without a program.
        "Launch" => to(Target::Work, &v1::LaunchRequest { id: ID.to_owned(), allocation: key, ..Default::default() }),
        "Attach" => {
            use v1::attach_request::{Start, What};
            let start = Start { key, argv: vec!["/bin/true".to_owned()], ..Default::default() };
            to(Target::Work, &v1::AttachRequest { what: Some(What::Start(start)) })
        }
        _ => None,
    }
}

/// Checkpoints of work that was submitted without a way to save itself.
fn checkpoint(name: &str, allocation: String) -> Option<(Target, Vec<u8>)> {
    match name {
        "Checkpoint" => to(Target::Work, &v1::CheckpointRequest { id: ID.to_owned(), allocation, ..Default::default() }),
        "ListCheckpoints" => to(Target::Work, &v1::ListCheckpointsRequest { allocation }),
        "GetCheckpoint" | "RemoveCheckpoint" | "VerifyCheckpoint" => {
            to(Target::Work, &v1::CheckpointKey { allocation, checkpoint: ID.to_owned() })
        }
        _ => None,
    }
}

fn dag(name: &str, work: &Work) -> Option<(Target, Vec<u8>)> {
    match name {
        // Without an id.
        "Submit" => empty(Target::OfCaller),
        "List" => empty(Target::Cluster),
        "Get" => to(Target::Work, &v1::GetDagRequest { key: work.dag.clone(), ..Default::default() }),
        "Cancel" => to(Target::Work, &v1::CancelDagRequest { key: work.dag.clone() }),
        _ => None,
    }
}

fn lease(name: &str, work: &Work) -> Option<(Target, Vec<u8>)> {
    let (lease, token) = (LEASE.to_owned(), work.lease);
    match name {
        "List" => empty(Target::Cluster),
        // Without a name.
        "Grant" => empty(Target::OfCaller),
        "Renew" => to(Target::WithoutTenant, &v1::RenewLeaseRequest { name: lease, token }),
        "Release" => to(Target::WithoutTenant, &v1::ReleaseLeaseRequest { name: lease, token }),
        // There is no such lease.
        "Revoke" => to(Target::Cluster, &v1::RevokeLeaseRequest { name: NONE.to_owned(), token: None }),
        _ => None,
    }
}

fn node(name: &str) -> Option<(Target, Vec<u8>)> {
    let target = Target::Cluster;
    let (node, reason) = (NONE.to_owned(), "walked".to_owned());
    match name {
        "Fingerprint" | "GossipMembers" | "List" | "ListAdmissions" | "LocalStatus" | "WatchGossip" => empty(target),
        "Fact" => to(target, &v1::NodeFactRequest { node }),
        "Waits" => to(target, &v1::NodeWaitsRequest { node }),
        "AcceptDrift" => to(target, &v1::AcceptDriftRequest { node, reason }),
        // Without a reason.
        "Admit" => to(target, &v1::AdmitNodeRequest { node, reason: String::new() }),
        "WithdrawAdmission" => to(target, &v1::WithdrawAdmissionRequest { node }),
        "Remove" => to(target, &v1::RemoveNodeRequest { node, reason }),
        "Boot" => to(target, &v1::BootNodeRequest { node, reason }),
        "ConfirmDead" => to(target, &v1::ConfirmDeadRequest { node, reason }),
        "SetHold" => to(target, &v1::SetHoldRequest { node, kind: "cordon".to_owned(), reason, ..Default::default() }),
        "LiftHold" => to(target, &v1::LiftHoldRequest { node, kind: "cordon".to_owned() }),
        "Wipe" => to(target, &v1::WipeRequest { node, reason, force: false }),
        _ => None,
    }
}

fn session(name: &str, work: &Work) -> Option<(Target, Vec<u8>)> {
    match name {
        "List" => empty(Target::Cluster),
        // For work that was not submitted for a session.
        "Create" => to(Target::Work, &v1::CreateSessionRequest { id: ID.to_owned(), allocation: work.running.clone() }),
        "Delete" => to(Target::Work, &v1::DeleteSessionRequest { key: work.session.clone() }),
        _ => None,
    }
}

fn vcluster(name: &str) -> Option<(Target, Vec<u8>)> {
    let (target, vcluster) = (Target::Cluster, NONE.to_owned());
    match name {
        "List" => empty(target),
        "Queue" => to(target, &v1::VClusterQueueRequest { name: "default".to_owned() }),
        // Without a name.
        "Create" => empty(target),
        "SetConfig" => to(target, &v1::SetVClusterRequest { name: vcluster, cycle_interval_ms: Some(0), ..Default::default() }),
        "SetWeights" => to(target, &v1::SetWeightsRequest { name: vcluster, ..Default::default() }),
        "Delete" => to(target, &v1::DeleteVClusterRequest { name: vcluster }),
        _ => None,
    }
}

fn reservation(name: &str) -> Option<(Target, Vec<u8>)> {
    let target = Target::Cluster;
    match name {
        "List" => empty(target),
        // Without nodes.
        "Create" => to(target, &v1::SetReservationRequest { name: NONE.to_owned(), ..Default::default() }),
        "Update" => to(target, &v1::SetReservationRequest { name: NONE.to_owned(), comment: Some("x".to_owned()), ..Default::default() }),
        "Delete" => to(target, &v1::DeleteReservationRequest { name: NONE.to_owned() }),
        _ => None,
    }
}

fn watch(name: &str) -> Option<(Target, Vec<u8>)> {
    use v1::watch_request::What;
    // One allocation is for those who may see it; a list shows each caller what it may see.
    let what = What::Allocations(v1::WatchedAllocations { key: String::new(), all_users: true });
    (name == "Watch").then(|| (Target::Cluster, v1::WatchRequest { what: Some(what), since: None }.encode_to_vec()))
}

//! Every call of both services with every role: granted or refused according to the table. And what
//! a stolen node certificate can read and write.

use crate::auditing::find;
use crate::lab::{Agent, Lab, PATIENCE, claim, lease, owner, spec, status, submit, submit_large};
use hyper_util::rt::TokioIo;
use lattice_api::operator::METHODS;
use lattice_api::pack::pack;
use lattice_api::v1::Packed;
use lattice_api::v1::quorum_client::QuorumClient as Grpc;
use lattice_api::v1::raft_client::RaftClient;
use lattice_ledger::access::TEXT_BYTES_MAX;
use lattice_ledger::keyring::Secret;
use lattice_ledger::test_builders::LimitsChange;
use lattice_ledger::{
    ACCOUNTING_LEASE, Access, AccessKind, Action, AllocationChange, Correction, QuotaChange, Requester, ReservationChange, TenantChange,
    UsageOf, VClusterChange, WhichTasks,
};
use lattice_model::access::{
    MemberChange, MemberStep, ProjectChange, ProjectStep, Relation, Role as Granted, RoleBinding, Scopes, Subject, rule,
};
use lattice_model::access_token::{AccessToken, TokenId};
use lattice_model::ended_work::{AccountedUntil, EndedWork};
use lattice_model::{
    AllocationId, AllocationSpec, AllocationState, AuditFilter, Boot, CheckpointId, Claim, Connectivity, DagId, DagStep, DagSubmission,
    Epoch, Exposed, HoldKind, LaneReport, PreemptCause, Preemption, Principal, ReportItem, TaskSet, TelemetryMode, Timestamp, Used,
};
use lattice_pki::identity::Role;
use lattice_quorum::permission::{Call, Grant, Person, name_of_person, person};
use lattice_quorum_client::wire::{
    ALLOCATIONS_ASKED_MAX, Answer, Change, DagFilter, EndedWorkPage, ListFilter, MembersChange, MembersOrder, Refusal, Request,
    VniPoolChange, WatchAllocations, WatchMessage, WatchRequest,
};
use lattice_quorum_client::{CallError, QuorumClient};
use rustls::pki_types::ServerName;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;
use tonic::transport::{Channel, Endpoint, Uri};
use uuid::Uuid;

const ROLES: [Role; 4] = [Role::Quorum, Role::Api, Role::Node, Role::Operator];
/// Enough for an answer; calls that are granted but cannot succeed are not waited for.
const ANSWER_TIMEOUT: Duration = Duration::from_millis(400);

fn name(role: Role) -> &'static str {
    match role {
        Role::Quorum => "member-2",
        Role::Api => "n1",
        Role::Node => "n2",
        Role::Operator => "anna",
        Role::Service => unreachable!("members accept no connection of a service account"),
    }
}

fn root() -> Principal {
    Principal { name: "root".into(), uid: 0, gid: 0, groups: vec![] }
}

fn access(by: Principal, allocation: AllocationId, node: Option<&str>) -> Access {
    let node = node.map(|node| node.parse().unwrap());
    Access { id: Uuid::new_v4(), by, kind: AccessKind::LogsRead, allocation: Some(allocation), node, detail: "its output".into() }
}

/// Requests of this kind in the name of `who`; empty if the call is not a request. Requests about an
/// allocation are about `of`. Requests that would change something that the other tests need are
/// about something that does not exist.
fn examples(call: Call, who: &str, of: AllocationId) -> Vec<Request> {
    let holder = who.parse().unwrap();
    let id = Uuid::new_v4();
    vec![match call {
        Call::Command => {
            let (of_users, of_operators) = commands();
            return of_users.into_iter().chain(of_operators).map(Request::from).collect();
        }
        Call::Submit => Request::Submit {
            id: AllocationId(id),
            spec: Box::new(spec(1)),
            owner: owner(),
            claim: None,
            life: None,
            login_tenants: [].into(),
        },
        Call::CheckSubmission => Request::CheckSubmission { spec: Box::new(spec(1)), owner: owner(), login_tenants: [].into() },
        Call::GetAllocation => Request::GetAllocation { key: of.to_string() },
        Call::GetAllocations => Request::GetAllocations { keys: vec![of.to_string()], node: None },
        Call::ListAllocations => {
            Request::ListAllocations { uid: None, states: vec![], limit: 1, before: None, filter: ListFilter::default() }
        }
        Call::ListNodes => Request::ListNodes,
        Call::GetNodes => Request::GetNodes { names: BTreeSet::from([holder]) },
        Call::SampleNodes => Request::SampleNodes { count: 1 },
        Call::Claims => Request::Claims(vec![]),
        Call::AdvanceLane => Request::AdvanceLane { id: of, epoch: Epoch(1), node: holder, report: LaneReport::default() },
        Call::GetTasks => Request::GetTasks { id: of, which: WhichTasks::Counts },
        Call::AcquireLease => Request::AcquireLease { name: "mine".into(), holder, ttl_ms: 60_000, user: Some(owner()) },
        Call::RenewLease => Request::RenewLease { name: "mine".into(), token: 9, holder, user: Some(owner()) },
        Call::QueryAudit => {
            let query = |by| Request::QueryAudit { filter: AuditFilter::default(), after: 0, limit: 1, by };
            return vec![query(None), query(Some(owner()))];
        }
        Call::VerifyAudit => Request::VerifyAudit { from: None },
        Call::ExportAudit => Request::ExportAudit { filter: AuditFilter::default(), after: 0, end: 0 },
        Call::RecordAccess => Request::RecordAccess(access(root(), of, None)),
        Call::Status => Request::Status,
        Call::StateHash => Request::StateHash,
        Call::Members => Request::Members,
        Call::ChangeMembers => Request::ChangeMembers(MembersOrder { by: root(), change: MembersChange::Remove { id: 9 } }),
        Call::ListLeases => Request::ListLeases,
        Call::RefusedClaim => Request::RefusedClaim { id: of },
        Call::RenewCertificate => Request::RenewCertificate { request: vec![0; 8] },
        Call::ListTenants => Request::ListTenants,
        Call::GetVniPool => Request::GetVniPool,
        Call::ListDomains => Request::ListDomains { tenants: None, name: None },
        Call::ListServices => Request::ListServices { tenants: None },
        Call::LookupService => Request::LookupService { name: "web".into(), tenants: None },
        Call::GetUsage => Request::GetUsage { of: UsageOf::User("anna".into()), days: None },
        Call::GetLimits => Request::GetLimits,
        Call::ListKeys => Request::ListKeys,
        Call::ListRevocations => Request::ListRevocations,
        Call::Backup => Request::Backup,
        Call::ListVClusters => Request::ListVClusters,
        Call::ListReservations => Request::ListReservations,
        Call::ListSessions => Request::ListSessions,
        Call::ListAdmissions => Request::ListAdmissions,
        Call::CheckDag => Request::CheckDag { owner: owner(), dag: Box::new(dag()), login_tenants: [].into() },
        Call::GetDag => Request::GetDag { key: DagId(id).to_string() },
        Call::ListDags => Request::ListDags { filter: DagFilter::default(), limit: 1, before: None },
        Call::StandingOf => Request::StandingOf { by: owner(), login_tenants: [].into(), about: [].into() },
        Call::ListRoles => Request::ListRoles,
        Call::ListProjects => Request::ListProjects { tenant: "elsewhere".into() },
        Call::ListTenantMembers => Request::ListTenantMembers { tenant: "elsewhere".into() },
        Call::TokenRecord => Request::TokenRecord { id: TokenId(7) },
        Call::ListTokens => Request::ListTokens { account: None },
        Call::EndedWork => Request::EndedWork { after: 0, limit: 1 },
        Call::Session
        | Call::WatchNodes
        | Call::WatchAllocations
        | Call::WatchTenants
        | Call::WatchLeases
        | Call::WatchVClusters
        | Call::WatchDomains
        | Call::WatchLimits
        | Call::Forward
        | Call::Append
        | Call::Vote
        | Call::InstallSnapshot
        | Call::Audit
        | Call::Heartbeats
        | Call::Roster
        | Call::Campaign => return vec![],
    }]
}

/// A DAG of one step.
fn dag() -> DagSubmission {
    let allocation = AllocationId(Uuid::new_v4());
    let step = DagStep { name: "a".into(), allocation, takes_env: false, spec: Box::new(spec(1)) };
    DagSubmission { name: "d".into(), env: Default::default(), steps: vec![step] }
}

/// An allocation that does not exist.
fn missing_allocation() -> AllocationId {
    AllocationId(Uuid::from_u128(7))
}

fn correction() -> Box<Correction> {
    let at = Timestamp(1);
    let work = EndedWork {
        sequence: 1,
        allocation: missing_allocation(),
        job: 1,
        name: "walked".into(),
        tenant: String::new(),
        project: String::new(),
        vcluster: String::new(),
        user: owner().name,
        uid: owner().uid,
        tags: Default::default(),
        state: AllocationState::Completed,
        reason: String::new(),
        exit_code: Some(0),
        nodes: String::new(),
        node_count: 0,
        submitted_at: at,
        claimed_at: None,
        started_at: None,
        ended_at: at,
        requeue_count: 0,
        preempted_count: 0,
        used: Used::default(),
        core_ms: 0,
        part_of: None,
        corrects: None,
    };
    Box::new(Correction { work, project: Some("higgs".into()), tags: Default::default() })
}

/// Every command for users, and every one for operators. Commands that would change something that the
/// other tests need are about something that does not exist.
fn commands() -> (Vec<Action>, Vec<Action>) {
    let node: lattice_model::NodeId = "nowhere".parse().unwrap();
    let (allocation, epoch, id) = (missing_allocation(), lattice_model::Epoch(1), Uuid::new_v4());
    let (by, reason) = ("root".to_owned(), "x".to_owned());
    let nobody = Subject::User { name: "nobody-has-this".into(), uid: 9999 };
    let binding = RoleBinding { subject: nobody.clone(), role: Granted::Operator, tenant: None };
    let member = MemberChange { tenant: "elsewhere".into(), step: MemberStep::Add { subject: nobody.clone(), is_default: false } };
    let project = ProjectChange { tenant: "elsewhere".into(), project: "x".into(), step: ProjectStep::Create };
    // A group gets no token, so this is refused.
    let token = AccessToken {
        id: TokenId(7),
        name: "walked".into(),
        account: Subject::Group { name: "nobody-has-this".into(), gid: 9999 },
        scopes: Scopes::all(),
        secret_sha256: [0; 32],
        issued_at: lattice_model::Timestamp(1),
        issued_by: by.clone(),
        expires_at: lattice_model::Timestamp(2),
    };
    let tenant = TenantChange {
        name: "physics".into(),
        create: true,
        max_nodes: QuotaChange::Keep,
        max_concurrent_allocations: QuotaChange::Keep,
        soft: Default::default(),
        expected_version: None,
    };
    let vcluster = VClusterChange { name: "elsewhere".into(), ..VClusterChange::default() };
    let order = Preemption {
        id: CheckpointId(id),
        by: by.clone(),
        reason: reason.clone(),
        cause: PreemptCause::Request,
        deadline_ms: 60_000,
        hold: false,
        failed: None,
    };
    let longer = AllocationChange { walltime: Some(Duration::from_secs(60)), ..AllocationChange::default() };
    let of_users = vec![
        Action::Cancel { id: allocation, by: owner() },
        Action::CancelTasks { id: allocation, tasks: TaskSet::first(1), by: owner() },
        Action::Scale { id: allocation, replicas: 2, by: owner() },
        Action::Preempt { allocation, epoch, by: owner(), order, kill: false },
        Action::RequeueAllocation { allocation, epoch, by: owner(), reason: reason.clone() },
        Action::HoldAllocation { allocation, by: owner() },
        Action::UpdateAllocation { allocation, by: owner(), change: longer, as_operator: false },
        Action::Resume { allocation, by: owner() },
        Action::SetTelemetry { allocation, by: owner(), id, mode: TelemetryMode::Debug, duration_ms: 60_000 },
        Action::ReleaseLease { name: "other".into(), token: 9, holder: node.clone(), user: Some(owner()) },
        Action::CreateSession { id, allocation, by: owner() },
        Action::DeleteSession { id, allocation, by: owner() },
        // Without steps it is refused.
        Action::SubmitDag { id: DagId(id), owner: owner(), dag: Box::new(DagSubmission { steps: vec![], ..dag() }) },
        Action::SubmitDag { id: DagId(id), owner: owner(), dag: Box::new(DagSubmission { steps: vec![], ..dag() }) }
            .by_login(["physics".to_owned()].into()),
        Action::CancelDag { id: DagId(id), by: owner() },
        Action::RevokeToken { id: TokenId(7), by: owner(), as_operator: false },
        // No store has been seen, so it is refused.
        Action::CorrectEndedWork { correction: correction(), by: owner(), as_operator: false },
    ];
    let of_operators = vec![
        Action::DrainUrgently { node: node.clone(), by: by.clone(), reason: reason.clone(), deadline: None, seed: id },
        Action::RevokeLease { name: "other".into(), token: None, by: by.clone() },
        Action::SetHold { node: node.clone(), kind: HoldKind::Cordon, by: by.clone(), reason: reason.clone(), until: None, deadline: None },
        Action::LiftHold { node: node.clone(), kind: HoldKind::Cordon, by: by.clone(), until: None },
        Action::SetTenant { change: tenant, by: by.clone() },
        Action::DeleteTenant { name: "elsewhere".into(), by: by.clone() },
        Action::SetVniPool { change: VniPoolChange::default(), by: by.clone() },
        Action::SetDomainGrace { domain: ("a".into(), "b".into()), grace_ms: 1, by: by.clone() },
        LimitsChange::default().by(&by),
        Action::GrantRole { binding, by: by.clone() },
        Action::RevokeRole { subject: nobody.name(), role: Granted::Operator, tenant: None, by: by.clone() },
        Action::SetTenantMember { change: member, by: by.clone() },
        Action::SetProject { change: project, by: by.clone() },
        Action::IssueToken { token },
        Action::AddKey { secret: Secret([7; 32]), by: by.clone() },
        Action::Revoke { name: "nobody-has-this".into(), by: by.clone(), reason: String::new() },
        Action::SetVCluster { change: vcluster, by: by.clone() },
        Action::DeleteVCluster { name: "elsewhere".into(), by: by.clone() },
        // Without a node it is refused.
        Action::SetReservation { change: ReservationChange { create: true, ..ReservationChange::default() }, by: by.clone() },
        Action::DeleteReservation { name: "elsewhere".into(), by: by.clone() },
        Action::BootNode { node: node.clone(), by: by.clone(), reason: reason.clone() },
        Action::ConfirmDead { node: node.clone(), by: by.clone(), reason: reason.clone() },
        Action::AcceptDrift { node: node.clone(), by: by.clone(), reason: reason.clone() },
        Action::Wipe { node: node.clone(), by: by.clone(), reason: reason.clone(), force: false },
        Action::Admit { node: node.clone(), by: by.clone(), reason: reason.clone() },
        Action::RemoveNode { node: node.clone(), by: by.clone(), reason },
        // No store has been seen, so it is refused.
        Action::MoveAccounting { by: by.clone(), force: false },
        Action::WithdrawAdmission { node, by },
    ];
    (of_users, of_operators)
}

/// Commands that only members may propose.
const OF_MEMBERS: &[&str] = &[
    "Bootstrap",
    "Submit",
    "Claim",
    "Register",
    "Report",
    "Adopt",
    "NodeStates",
    "ExpireLease",
    "Members",
    "RecordAccess",
    "SetSigningKey",
    "SignHead",
    "ArchiveAudit",
    "GrantLease",
    "RaiseLevel",
    "SealWithKey",
    "RetireKey",
    "ReleaseDomains",
    "EndDrained",
    "SetRunLease",
    "Fence",
    "Conforms",
    "ConformanceStale",
    "DriftOver",
    "Wiped",
    "Notified",
    "EndWaits",
    "AdvanceLane",
    "SettleDependents",
    "EndTelemetry",
    "CheckBudgets",
    "AskDrain",
    "AdvanceTime",
    "ByToken",
];

/// The commands that an agent requests for itself, under a lease that it has.
const UNDER_A_LEASE: [&str; 3] = ["Account", "PreemptFor", "StepScaling"];

#[test]
fn every_command_is_requested_here_or_proposed_only_by_members() {
    let (of_users, of_operators) = commands();
    let mut known: Vec<&str> =
        of_users.iter().chain(&of_operators).map(Action::name).chain(OF_MEMBERS.iter().copied()).chain(UNDER_A_LEASE).collect();
    let mut all = Action::NAMES.to_vec();
    known.sort_unstable();
    all.sort_unstable();
    assert_eq!(known, all);
}

#[test]
fn users_ask_for_commands_of_users_and_operators_for_those_of_operators() {
    let (of_users, of_operators) = commands();
    for mut action in of_users {
        let name = action.name();
        let is_of_user = match action.requester() {
            Requester::User(..)
            | Requester::UserOfDag(..)
            | Requester::Owner(_)
            | Requester::UserOrOperator { .. }
            | Requester::OwnerOrOperator { .. } => true,
            Requester::Member | Requester::Operator(..) => false,
        };
        assert!(is_of_user, "{name}");
    }
    for mut action in of_operators {
        let name = action.name();
        assert!(matches!(action.requester(), Requester::Operator(..)), "{name}");
    }
}

/// The methods of a command that operators request; `None`: they do not.
fn methods_for_operators(action: &mut Action) -> Option<&'static [&'static str]> {
    match action.requester() {
        Requester::Operator(_, methods) | Requester::UserOrOperator { methods, .. } | Requester::OwnerOrOperator { methods, .. } => {
            Some(methods)
        }
        Requester::Member | Requester::User(..) | Requester::UserOfDag(..) | Requester::Owner(_) => None,
    }
}

#[test]
fn clients_sign_for_every_method_that_a_command_names() {
    let (of_users, of_operators) = commands();
    for mut action in of_users.into_iter().chain(of_operators) {
        let name = action.name();
        let Some(methods) = methods_for_operators(&mut action) else { continue };
        assert!(!methods.is_empty() && methods.iter().all(|method| METHODS.contains(method)), "{name}: {methods:?}");
    }
}

#[test]
fn a_user_without_a_role_and_root_call_nothing_that_needs_an_operator() {
    let (of_users, of_operators) = commands();
    for mut action in of_users.into_iter().chain(of_operators) {
        let Some(methods) = methods_for_operators(&mut action) else { continue };
        for method in methods {
            let rule = rule(method).unwrap();
            assert!(!rule.user.covers(Relation::Foreign) && !rule.root.covers(Relation::Foreign), "{method}");
        }
    }
}

/// Some of the commands that only members may propose.
fn proposed_by_members() -> Vec<Action> {
    let node: lattice_model::NodeId = "nowhere".parse().unwrap();
    let allocation = missing_allocation();
    vec![
        Action::AdvanceTime,
        Action::RaiseLevel { level: 1 },
        Action::SetRunLease { ms: 1 },
        Action::ReleaseDomains,
        Action::CheckBudgets { tenants: vec!["physics".into()] },
        Action::Bootstrap { cluster: "other".into() },
        Action::SealWithKey { id: 9 },
        Action::RetireKey { id: 9 },
        Action::Submit { id: allocation, spec: Box::new(spec(1)), owner: owner(), claim: None },
        Action::Claim(Claim { allocation, requeue_count: 0, lease_token: 9, shares: vec![], after: None, by: None, walltime: None }),
        Action::GrantLease { name: "other".into(), holder: node.clone(), ttl_ms: 1, user: None },
        Action::Fence { node, incarnation: lattice_model::Incarnation(1), silent_ms: 1 },
    ]
}

/// A connection for the holder of a certificate with this name and role that uses gRPC directly.
pub async fn dial(lab: &Lab, who: &str, role: Role, address: String) -> Channel {
    let config = lab.agent(who, role).material().borrow().client(b"h2").unwrap();
    let connector = tokio_rustls::TlsConnector::from(Arc::new(config));
    let connect = tower::service_fn(move |_: Uri| {
        let (connector, address) = (connector.clone(), address.clone());
        async move {
            let stream = tokio::net::TcpStream::connect(&address).await?;
            let stream = connector.connect(ServerName::try_from("member-1").unwrap(), stream).await?;
            Ok::<_, std::io::Error>(TokioIo::new(stream))
        }
    });
    Endpoint::from_static("http://member-1").connect_with_connector(connect).await.unwrap()
}

/// Whether this is the table's refusal; anything else is an answer, or a refusal of another kind.
fn is_refused(why: &str) -> bool {
    why.contains("needs the certificate role")
}

/// Whether the table refuses a call that is not a request.
async fn other_is_refused(lab: &Lab, call: Call, role: Role) -> bool {
    let client = lab.client(&[1], name(role), role);
    let nothing = WatchRequest::nothing();
    let watched = match call {
        Call::Session => {
            let opened = client.session(Agent::registration(name(role), Boot(Uuid::nil()), 0)).await;
            return opened.is_err_and(|error| is_refused(&error.to_string()));
        }
        Call::WatchNodes => WatchRequest { nodes: true, ..nothing },
        Call::WatchAllocations => WatchRequest { allocations: WatchAllocations::Live, ..nothing },
        Call::WatchTenants => WatchRequest { tenants: true, ..nothing },
        Call::WatchLeases => WatchRequest { leases: true, ..nothing },
        Call::WatchVClusters => WatchRequest { vclusters: true, ..nothing },
        Call::WatchDomains => WatchRequest { domains: true, ..nothing },
        Call::WatchLimits => WatchRequest { limits: true, ..nothing },
        Call::Forward => {
            let mut grpc = Grpc::new(dial(lab, name(role), role, lab.config(1).listens().0).await);
            let mut request = tonic::Request::new(pack(&Request::ListNodes).unwrap());
            request.metadata_mut().insert("lattice-forwarded", tonic::metadata::MetadataValue::from_static("1"));
            return grpc.call(request).await.is_err_and(|status| is_refused(status.message()));
        }
        _ => {
            let mut raft = RaftClient::new(dial(lab, name(role), role, lab.config(1).listens().1).await);
            let nothing = Packed::default();
            let answer = match call {
                Call::Append => raft.append(nothing).await,
                Call::Vote => raft.vote(nothing).await,
                Call::InstallSnapshot => raft.install_snapshot(nothing).await,
                Call::Audit => raft.audit(nothing).await,
                Call::Heartbeats => raft.heartbeats(nothing).await,
                Call::Roster => raft.roster(nothing).await,
                Call::Campaign => raft.campaign(nothing).await,
                other => panic!("{other:?} is a request"),
            };
            return answer.is_err_and(|status| is_refused(status.message()));
        }
    };
    client.watch(&watched).await.is_err_and(|error| is_refused(&error.to_string()))
}

/// The refusal of the only allocation in an answer is the refusal of the call.
fn outcome(answer: Result<Answer, CallError>) -> Result<Answer, CallError> {
    match &answer {
        Ok(Answer::Allocations(outcomes)) => match &outcomes[..] {
            [Err(refusal)] => Err(CallError::from(refusal.clone())),
            _ => answer,
        },
        _ => answer,
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_call_is_granted_or_refused_to_every_role_as_the_table_says() {
    let mut lab = Lab::new(1, |_| {});
    let member = lab.start(1, true).await;
    tokio::time::timeout(PATIENCE, member.ready()).await.unwrap();
    let api = lab.api(&[1]);
    let (_one, _two) = (Agent::register(&api, "n1").await, Agent::register(&lab.client(&[1], "n2", Role::Node), "n2").await);
    let (own, foreign) = (submit(&api, 1).await, submit(&api, 1).await);
    let token = lease(&api, "n1").await;
    claim(&api, own, token, &["n2"]).await.unwrap();
    claim(&api, foreign, token, &["n1"]).await.unwrap();
    for role in ROLES {
        let client = lab.client(&[1], name(role), role);
        for call in Call::ALL {
            let grant = call.row().of(role);
            for (at, mut request) in examples(*call, name(role), own).into_iter().enumerate() {
                assert_eq!(Call::of(&request), *call);
                let whose = person(&mut request).unwrap();
                let is_read = matches!(call, Call::QueryAudit | Call::ExportAudit);
                assert_eq!(name_of_person(&mut request).is_some() || is_read, whose != Person::Itself, "{request:?}");
                let of_operator = matches!(whose, Person::Operator(_));
                if grant == Grant::Yes && of_operator {
                    // An agent's claim to act for an operator is not accepted.
                    let answer = client.call(&request, PATIENCE).await;
                    assert!(matches!(&answer, Err(CallError::Refused(Refusal::NotOperator { .. }))), "{request:?} as {role}: {answer:?}");
                }
                let request = if of_operator { lab.as_operator("anna", request) } else { request };
                let is_own = grant == Grant::Own && matches!(call, Call::GetAllocation | Call::GetAllocations | Call::RecordAccess);
                let within = if grant == Grant::No || is_own { PATIENCE } else { ANSWER_TIMEOUT };
                let answer = outcome(client.call(&request, within).await);
                assert!(!matches!(&answer, Err(CallError::Refused(Refusal::NotOperator { .. }))), "{request:?} as {role}: {answer:?}");
                let refused = matches!(&answer, Err(CallError::Refused(Refusal::Role { .. })));
                // The same request about another's object is refused.
                if is_own {
                    let others = outcome(client.call(&examples(*call, name(role), foreign)[at], PATIENCE).await);
                    assert!(matches!(&others, Err(CallError::Refused(Refusal::Role { .. }))), "{request:?} as {role}: {others:?}");
                    assert!(answer.is_ok(), "{request:?} as {role}: {answer:?}");
                }
                assert_eq!(refused, grant == Grant::No, "{request:?} as {role}");
            }
            if examples(*call, name(role), own).is_empty() {
                assert_eq!(other_is_refused(&lab, *call, role).await, grant == Grant::No, "{call:?} as {role}");
            }
        }
        // Nobody may request commands that only members may propose.
        for action in proposed_by_members() {
            let answer = client.call(&Request::from(action), PATIENCE).await;
            let Err(CallError::Refused(refusal)) = answer else { panic!("as {role}: {answer:?}") };
            let why = refusal.to_string();
            assert!(if role == Role::Api { why.contains("only members propose") } else { is_refused(&why) }, "as {role}: {why}");
        }
    }
    member.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_agent_advances_the_lanes_of_its_own_node_alone() {
    let mut lab = Lab::new(1, |_| {});
    let member = lab.start(1, true).await;
    tokio::time::timeout(PATIENCE, member.ready()).await.unwrap();
    let advance = |node: &str| Request::AdvanceLane {
        id: missing_allocation(),
        epoch: Epoch(1),
        node: node.parse().unwrap(),
        report: LaneReport::default(),
    };
    for role in [Role::Api, Role::Node] {
        let client = lab.client(&[1], name(role), role);
        let answer = client.call(&advance(name(role)), PATIENCE).await;
        assert!(matches!(&answer, Err(CallError::Refused(Refusal::NoSuchAllocation { .. }))), "its own, as {role}: {answer:?}");
        let answer = client.call(&advance("n9"), PATIENCE).await;
        let Err(CallError::Refused(Refusal::Malformed { why })) = answer else { panic!("another's, as {role}: {answer:?}") };
        assert_eq!(why, format!("{} may not report for the lanes of n9", name(role)));
    }
    member.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_agent_confirms_ended_work_under_its_own_lease_alone() {
    let mut lab = Lab::new(1, |_| {});
    let member = lab.start(1, true).await;
    tokio::time::timeout(PATIENCE, member.ready()).await.unwrap();
    let (api, node) = (lab.api(&[1]), lab.client(&[1], "n2", Role::Node));
    let _agent = Agent::register(&api, "n1").await;
    let lease = Request::AcquireLease { name: ACCOUNTING_LEASE.into(), holder: "n1".parse().unwrap(), ttl_ms: 60_000, user: None };
    let Ok(Answer::Lease { token, .. }) = api.call(&lease, PATIENCE).await else { panic!("nobody has it") };
    let store = Uuid::from_u128(5);
    let account = |node: &str, sequence| {
        Request::from(Action::Account { until: AccountedUntil { store, sequence }, node: node.parse().unwrap(), lease_token: token })
    };
    let page = Request::EndedWork { after: 0, limit: 9 };
    let before = api.call(&page, PATIENCE).await;
    assert_eq!(before, Ok(Answer::EndedWork(Box::default())));
    api.call(&account("n1", 0), PATIENCE).await.unwrap();
    let id = submit(&api, 1).await;
    api.call(&Request::from(Action::Cancel { id, by: owner() }), PATIENCE).await.unwrap();
    let Ok(Answer::EndedWork(found)) = api.call(&page, PATIENCE).await else { panic!("a page") };
    assert_eq!((found.work.len(), found.work[0].allocation, found.work[0].sequence), (1, id, 1));
    let accounted = Some(AccountedUntil { store, sequence: 0 });
    assert_eq!((found.accounted, found.ended, found.waiting, found.dropped), (accounted, 1, 1, 0));
    let Ok(Answer::EndedWork(counts)) = api.call(&Request::EndedWork { after: 0, limit: 0 }, PATIENCE).await else { panic!("a page") };
    assert_eq!(*counts, EndedWorkPage { work: vec![], ..(*found).clone() });
    // Not in the name of another, and not with a node's certificate.
    let Err(CallError::Refused(Refusal::Malformed { why })) = api.call(&account("n9", 1), PATIENCE).await else { panic!("it is n1's") };
    assert_eq!(why, "n1 may not use leases of n9");
    refused(&node, page.clone()).await;
    refused(&node, account("n2", 1)).await;
    api.call(&account("n1", 1), PATIENCE).await.unwrap();
    let Ok(Answer::EndedWork(after)) = api.call(&page, PATIENCE).await else { panic!("a page") };
    assert_eq!((after.work.len(), after.waiting, after.ended), (0, 0, 1));
    member.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_leader_alone_lifts_a_hold_at_its_end() {
    let mut lab = Lab::new(1, |_| {});
    let member = lab.start(1, true).await;
    tokio::time::timeout(PATIENCE, member.ready()).await.unwrap();
    let api = lab.api(&[1]);
    let (node, by) = ("nowhere".parse().unwrap(), "anna".to_owned());
    let lift = Action::LiftHold { node, kind: HoldKind::Cordon, by, until: Some(lattice_model::Timestamp(1)) };
    let answer = api.call(&lab.as_operator("anna", Request::from(lift)), PATIENCE).await;
    assert!(matches!(&answer, Err(CallError::Refused(Refusal::Malformed { .. }))), "{answer:?}");
    member.stop().await;
}

/// An allocation on this node alone, with a secret in its environment, that exposes a service.
async fn work(lab: &Lab, api: &QuorumClient, token: u64, node: &str, tenant: &str) -> AllocationId {
    let change = TenantChange {
        name: tenant.into(),
        create: true,
        max_nodes: QuotaChange::Keep,
        max_concurrent_allocations: QuotaChange::Keep,
        soft: Default::default(),
        expected_version: None,
    };
    api.call(&lab.as_operator("root", Request::from(Action::SetTenant { change, by: "root".into() })), PATIENCE).await.unwrap();
    let id = AllocationId(Uuid::new_v4());
    let mut spec = AllocationSpec { tenant: tenant.into(), ..spec(1) };
    spec.env.insert("SECRET".into(), format!("of {node}"));
    let exposed = Exposed { name: "web".into(), port: 80, protocol: "tcp".into() };
    spec.connectivity = Connectivity { expose: vec![exposed], ..Connectivity::default() };
    let request = Request::Submit { id, spec: Box::new(spec), owner: owner(), claim: None, life: None, login_tenants: [].into() };
    api.call(&request, PATIENCE).await.unwrap();
    claim(api, id, token, &[node]).await.unwrap();
    id
}

async fn refused(client: &QuorumClient, request: Request) {
    let answer = client.call(&request, PATIENCE).await;
    assert!(matches!(answer, Err(CallError::Refused(Refusal::Role { .. }))), "{request:?}: {answer:?}");
}

fn several(ids: &[AllocationId], node: Option<&str>) -> Request {
    Request::GetAllocations { keys: ids.iter().map(|id| id.to_string()).collect(), node: node.map(str::to_owned) }
}

/// The outcomes of reads of several allocations, from the leader or from one member's own state.
async fn ids_in_answer(client: &QuorumClient, request: &Request) -> Vec<Result<AllocationId, Refusal>> {
    let answer = match client.call(request, PATIENCE).await.unwrap() {
        Answer::Stale { answer, .. } => *answer,
        answer => answer,
    };
    let Answer::Allocations(found) = answer else { panic!("{answer:?}") };
    found.into_iter().map(|outcome| outcome.map(|found| found.id)).collect()
}

/// How many refusals because of a caller's role the member has counted.
async fn refused_by_role(client: &QuorumClient) -> u64 {
    let counts = status(client).await.refused;
    counts.into_iter().find(|(cause, _)| cause == "certificates of another role").map_or(0, |(_, count)| count)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_length_of_an_answer_does_not_reveal_to_a_node_what_exists_elsewhere() {
    let mut lab = Lab::new(1, |_| {});
    let member = lab.start(1, true).await;
    tokio::time::timeout(PATIENCE, member.ready()).await.unwrap();
    let (api, node) = (lab.api(&[1]), lab.client(&[1], "n2", Role::Node));
    let (_one, _two) = (Agent::register(&api, "n1").await, Agent::register(&node, "n2").await);
    let token = lease(&api, "n1").await;
    let (own, foreign) = (submit_large(&api).await, submit_large(&api).await);
    claim(&api, own, token, &["n2"]).await.unwrap();
    claim(&api, foreign, token, &["n1"]).await.unwrap();

    let fit = ids_in_answer(&node, &several(&[own; ALLOCATIONS_ASKED_MAX], None)).await.len();
    assert!((2..ALLOCATIONS_ASKED_MAX).contains(&fit), "{fit} records");
    for other in [foreign, missing_allocation()] {
        let mut ids = vec![own; fit - 1];
        ids.extend([other, own]);
        // The node in the certificate counts, whatever the request contains.
        for named in [None, Some("n1")] {
            let request = several(&ids, named);
            for request in [request.clone(), Request::Stale(Box::new(request))] {
                let found = ids_in_answer(&node, &request).await;
                assert_eq!(found.len(), fit + 1, "{other}, in the name of {named:?}");
                assert!(matches!(found[fit - 1..], [Err(Refusal::Role { .. }), Ok(last)] if last == own), "{:?}", &found[fit - 1..]);
            }
        }
    }
    // Another client that names a node gets less, and nothing more.
    let restricted = ids_in_answer(&api, &several(&[foreign, own], Some("n2"))).await;
    assert!(matches!(restricted[..], [Err(Refusal::NoSuchAllocation { .. }), Ok(found)] if found == own), "{restricted:?}");
    member.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_nodes_certificate_sees_its_own_allocations_alone_and_records_only_what_happens_there() {
    let mut lab = Lab::new(1, |_| {});
    let member = lab.start(1, true).await;
    tokio::time::timeout(PATIENCE, member.ready()).await.unwrap();
    let api = lab.api(&[1]);
    let node = lab.client(&[1], "n2", Role::Node);
    let (_one, mut two) = (Agent::register(&api, "n1").await, Agent::register(&node, "n2").await);
    let _three = Agent::register(&lab.client(&[1], "n3", Role::Node), "n3").await;
    let token = lease(&api, "n1").await;
    let foreign = work(&lab, &api, token, "n1", "physics").await;

    // What it receives: nothing about work on other nodes, before or after; only what is claimed
    // for the node itself.
    let everything = WatchRequest { nodes: true, allocations: WatchAllocations::Live, ..WatchRequest::nothing() };
    let mut watch = node.watch(&everything).await.unwrap();
    let allocations_in = |changes: Vec<Change>| -> Vec<AllocationId> {
        changes
            .into_iter()
            .filter_map(|change| if let Change::Allocation(allocation) = change { Some(allocation.id) } else { None })
            .collect()
    };
    loop {
        if let WatchMessage::Changes { changes, complete, .. } = watch.next().await.unwrap() {
            assert_eq!(allocations_in(changes), []);
            if complete {
                break;
            }
        }
    }
    let (_other, own) = (work(&lab, &api, token, "n3", "biology").await, work(&lab, &api, token, "n2", "chemistry").await);
    let mut seen = Vec::new();
    while !seen.contains(&own) {
        if let WatchMessage::Changes { changes, .. } = watch.next().await.unwrap() {
            seen.extend(allocations_in(changes));
        }
    }
    assert_eq!(seen, [own]);

    // What it can read.
    let request = |id: AllocationId| Request::GetAllocation { key: id.to_string() };
    let Ok(Answer::Allocation(found)) = node.call(&request(own), PATIENCE).await else { panic!("its own") };
    assert_eq!(found.spec.env["SECRET"], "of n2");
    for id in [foreign, AllocationId(Uuid::from_u128(1))] {
        refused(&node, request(id)).await;
        refused(&node, Request::Stale(Box::new(request(id)))).await;
        refused(&node, Request::GetAllocation { key: id.to_string()[..4].to_owned() }).await;
    }
    let unknown = AllocationId(Uuid::from_u128(1));
    let several = several(&[foreign, own, unknown, own], None);
    for request in [several.clone(), Request::Stale(Box::new(several))] {
        let counted = refused_by_role(&api).await;
        let ids = ids_in_answer(&node, &request).await;
        assert!(
            matches!(ids[..], [Err(Refusal::Role { .. }), Ok(one), Err(Refusal::Role { .. }), Ok(other)] if one == own && other == own),
            "{ids:?}"
        );
        assert_eq!(refused_by_role(&api).await, counted + 2, "{request:?}");
    }
    let mut one = node.watch(&WatchRequest { allocations: WatchAllocations::One(foreign), ..WatchRequest::nothing() }).await.unwrap();
    loop {
        if let WatchMessage::Changes { changes, complete, .. } = one.next().await.unwrap() {
            assert_eq!(allocations_in(changes), []);
            if complete {
                break;
            }
        }
    }
    // Services of the tenants whose work is here, whichever tenants it asks for.
    two.report(ReportItem::Prepared { allocation: own, epoch: found.epoch }).await;
    two.report(ReportItem::PortsOpen { allocation: own, epoch: found.epoch, ports: vec![80] }).await;
    for tenants in [None, Some(vec!["physics".to_owned(), "chemistry".to_owned()])] {
        let Ok(Answer::Services { services, .. }) = node.call(&Request::ListServices { tenants }, PATIENCE).await else {
            panic!("its own")
        };
        assert_eq!(services.iter().map(|s| s.tenant.as_str()).collect::<Vec<_>>(), ["chemistry"]);
    }

    // What it can write: nothing about other nodes or others' work, no invented people, no second
    // line, and nothing above the size limits.
    let good = access(owner(), own, Some("n2"));
    let person = |name: &str, uid| Principal { name: name.into(), uid, gid: 0, groups: vec![] };
    for bad in [
        Access { node: Some("n1".parse().unwrap()), ..good.clone() },
        Access { allocation: Some(foreign), ..good.clone() },
        Access { allocation: None, ..good.clone() },
        Access { kind: AccessKind::AuditExported, ..good.clone() },
        Access { kind: AccessKind::Denied, ..good.clone() },
    ] {
        refused(&node, Request::RecordAccess(bad)).await;
    }
    for bad in [
        Access { by: person("bob", 1001), ..good.clone() },
        Access { by: person("bob", 0), ..good.clone() },
        Access { by: person("alice", 1001), ..good.clone() },
        Access { by: person("alice\nroot", 1000), ..good.clone() },
        Access { by: person(&"a".repeat(3 << 20), 1000), ..good.clone() },
        Access { detail: "a\nb".into(), ..good.clone() },
        Access { detail: "x".repeat(TEXT_BYTES_MAX + 1), ..good.clone() },
    ] {
        let answer = node.call(&Request::RecordAccess(bad), PATIENCE).await;
        assert!(matches!(answer, Err(CallError::Refused(Refusal::Malformed { .. } | Refusal::TooLarge { .. }))), "{answer:?}");
    }
    for good in [good, access(root(), own, None), Access { detail: "x".repeat(TEXT_BYTES_MAX), ..access(root(), own, Some("n2")) }] {
        node.call(&Request::RecordAccess(good), PATIENCE).await.unwrap();
    }
    let records = find(
        &lab,
        &api,
        AuditFilter { node: Some("n2".parse().unwrap()), actions: vec![lattice_model::AuditAction::LogsRead], ..AuditFilter::default() },
    )
    .await;
    assert_eq!(records.iter().map(|r| r.actor.as_str()).collect::<Vec<_>>(), ["alice", "root", "root"]);
    assert!(records.iter().all(|r| r.detail.starts_with("at n2: ") && r.allocation == Some(own)), "{records:?}");
    member.stop().await;
}

//! What accounts may do by the roles that are granted to them, and what users read of the audit log.

use crate::auditing::find;
use crate::lab::{Agent, Lab, PATIENCE, as_account, owner, spec, submit};
use crate::permissions::dial;
use lattice_api::pack::{pack, unpack};
use lattice_api::v1::quorum_client::QuorumClient as Grpc;
use lattice_ledger::{Access, AccessKind, Action, QuotaChange, TenantChange, VClusterChange, WeightsChange};
use lattice_model::access::{MemberChange, MemberStep, Role, RoleBinding, Subject, TenantMember};
use lattice_model::{AllocationId, AllocationSpec, AuditAction, AuditFilter, AuditRecord, HoldKind, Principal};
use lattice_pki::identity;
use lattice_quorum::member::Member;
use lattice_quorum_client::wire::{Answer, MembersChange, MembersOrder, Refusal, Request};
use lattice_quorum_client::{CallError, QuorumClient};
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use tonic::metadata::MetadataValue;
use uuid::Uuid;

const SET_HOLD: &str = "NodeService/SetHold";
const ADD_MEMBER: &str = "AdminService/AddTenantMember";

fn person(name: &str, uid: u32) -> Principal {
    Principal { name: name.to_owned(), uid, gid: uid, groups: vec![] }
}

fn subject(of: &Principal) -> Subject {
    Subject::User { name: of.name.clone(), uid: of.uid }
}

fn hold(node: &str) -> Request {
    let (node, reason) = (node.parse().unwrap(), "disk".to_owned());
    Request::from(Action::SetHold { node, kind: HoldKind::Cordon, by: "alice".to_owned(), reason, until: None, deadline: None })
}

async fn start_one(lab: &mut Lab) -> Member {
    let member = lab.start(1, true).await;
    tokio::time::timeout(PATIENCE, member.ready()).await.unwrap();
    member
}

/// A command of an operator with a certificate.
async fn act(lab: &Lab, api: &QuorumClient, action: Action) {
    api.call(&lab.as_operator("anna", Request::from(action)), PATIENCE).await.unwrap();
}

async fn grant(lab: &Lab, api: &QuorumClient, to: &Principal, role: Role, tenant: Option<&str>) {
    let binding = RoleBinding { subject: subject(to), role, tenant: tenant.map(str::to_owned) };
    act(lab, api, Action::GrantRole { binding, by: "anna".to_owned() }).await;
}

async fn make_tenant(lab: &Lab, api: &QuorumClient, name: &str) {
    let (max_nodes, max_concurrent_allocations) = (QuotaChange::Keep, QuotaChange::Keep);
    let change = TenantChange {
        name: name.to_owned(),
        create: true,
        max_nodes,
        max_concurrent_allocations,
        soft: Default::default(),
        expected_version: None,
    };
    act(lab, api, Action::SetTenant { change, by: "anna".to_owned() }).await;
}

/// Why a request is refused that lacks an operator's proof or role.
async fn reason(client: &QuorumClient, request: &Request) -> String {
    match client.call(request, PATIENCE).await {
        Err(CallError::Refused(Refusal::NotOperator { why })) => why,
        other => panic!("{request:?}: {other:?}"),
    }
}

/// A request that a member forwards, and the answer, in the form of `service::answer`.
#[derive(Serialize)]
enum Forward {
    Answer(Box<Request>),
}

#[derive(Deserialize)]
enum Forwarded {
    Answered(Box<Result<Answer, Refusal>>),
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn agents_of_compute_nodes_and_members_vouch_for_no_account() {
    let mut lab = Lab::new(1, |_| {});
    let member = start_one(&mut lab).await;
    let api = lab.api(&[1]);
    grant(&lab, &api, &owner(), Role::SystemAdmin, None).await;
    let request = as_account(&owner(), SET_HOLD, hold("n1"));
    for (name, role) in [("n2", identity::Role::Node), ("member-1", identity::Role::Quorum)] {
        let why = format!("{name} vouches for an account with a certificate of role {role}; api is needed");
        assert_eq!(reason(&lab.client(&[1], name, role), &request).await, why);
    }
    // Nor does a member forward a proof.
    let channel = dial(&lab, "member-1", identity::Role::Quorum, lab.config(1).listens().0).await;
    let mut forward = tonic::Request::new(pack(&Forward::Answer(Box::new(request))).unwrap());
    forward.metadata_mut().insert("lattice-forwarded", MetadataValue::from_static("1"));
    let answer = Grpc::new(channel).call(forward).await.unwrap();
    let Forwarded::Answered(answer) = unpack(answer.get_ref()).unwrap();
    assert_eq!(*answer, Err(Refusal::Malformed { why: "members do not forward this request".to_owned() }));
    assert_eq!(find(&lab, &api, AuditFilter { actions: vec![AuditAction::HoldSet], ..AuditFilter::default() }).await, []);
    member.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_operator_by_role_holds_nodes_under_its_own_name_and_grants_no_roles() {
    let mut lab = Lab::new(1, |_| {});
    let member = start_one(&mut lab).await;
    let api = lab.api(&[1]);
    let _agent = Agent::register(&api, "n1").await;
    let alice = owner();
    let request = as_account(&alice, SET_HOLD, hold("n1"));
    assert_eq!(reason(&api, &request).await, "alice has no role that allows NodeService/SetHold");
    grant(&lab, &api, &alice, Role::Operator, None).await;
    let answer = api.call(&request, PATIENCE).await;
    assert!(matches!(answer, Ok(Answer::Done { .. })), "{answer:?}");
    let held = find(&lab, &api, AuditFilter { actions: vec![AuditAction::HoldSet], ..AuditFilter::default() }).await;
    assert_eq!(held.iter().map(|record| record.actor.as_str()).collect::<Vec<_>>(), ["alice@n1"]);

    // Refused: another account of that name, and a proof for another method.
    let namesake = as_account(&person("alice", 1001), SET_HOLD, hold("n1"));
    assert_eq!(reason(&api, &namesake).await, "alice has no role that allows NodeService/SetHold");
    let other = as_account(&alice, "NodeService/LiftHold", hold("n1"));
    assert_eq!(reason(&api, &other).await, "the proof of alice is for NodeService/LiftHold; NodeService/SetHold is needed");
    assert_eq!(reason(&api, &hold("n1")).await, "SetHold was sent without the proof of an operator");

    let binding = RoleBinding { subject: subject(&alice), role: Role::SystemAdmin, tenant: None };
    let granting = Request::from(Action::GrantRole { binding, by: "alice".to_owned() });
    let changing = Request::ChangeMembers(MembersOrder { by: alice.clone(), change: MembersChange::Remove { id: 9 } });
    let exporting = Request::ExportAudit { filter: AuditFilter::default(), after: 0, end: 0 };
    for (method, request) in
        [("AdminService/GrantRole", granting), ("AdminService/ChangeMembers", changing), ("AdminService/ExportAudit", exporting)]
    {
        assert_eq!(reason(&api, &as_account(&alice, method, request)).await, format!("alice has no role that allows {method}"));
    }
    let everything = Request::QueryAudit { filter: AuditFilter::default(), after: 0, limit: 1, by: None };
    let answer = api.call(&as_account(&alice, "AdminService/QueryAudit", everything), PATIENCE).await;
    assert!(matches!(&answer, Ok(Answer::Audit(page)) if page.records.len() == 1), "{answer:?}");
    member.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_role_counts_at_once_at_every_member_and_a_revoked_one_at_none() {
    let mut lab = Lab::new(3, |_| {});
    let members = [lab.start(1, true).await, lab.start(2, false).await, lab.start(3, false).await];
    for member in &members {
        tokio::time::timeout(PATIENCE, member.ready()).await.unwrap();
    }
    let (api, alice) = (lab.api(&[1, 2, 3]), owner());
    let each = [lab.api(&[1]), lab.api(&[2]), lab.api(&[3])];
    let request = as_account(&alice, SET_HOLD, hold("nowhere"));
    for round in 0..20 {
        grant(&lab, &api, &alice, Role::Operator, None).await;
        for (id, client) in (1..).zip(&each) {
            let answer = client.call(&request, PATIENCE).await;
            let allowed = matches!(&answer, Err(CallError::Refused(Refusal::NoSuchNode { .. })));
            assert!(allowed, "round {round}, member {id}: {answer:?}");
        }
        let (subject, by) = (subject(&alice).name(), "anna".to_owned());
        act(&lab, &api, Action::RevokeRole { subject, role: Role::Operator, tenant: None, by }).await;
        for (id, client) in (1..).zip(&each) {
            let why = reason(client, &request).await;
            assert_eq!(why, "alice has no role that allows NodeService/SetHold", "round {round}, member {id}");
        }
    }
    for member in members {
        member.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_admin_adds_members_to_its_tenant_and_to_no_other() {
    let mut lab = Lab::new(1, |_| {});
    let member = start_one(&mut lab).await;
    let (api, alice, bob) = (lab.api(&[1]), owner(), person("bob", 1001));
    for tenant in ["physics", "biology"] {
        make_tenant(&lab, &api, tenant).await;
    }
    grant(&lab, &api, &alice, Role::TenantAdmin, Some("physics")).await;
    let add = |tenant: &str| {
        let step = MemberStep::Add { subject: subject(&bob), is_default: false };
        let change = MemberChange { tenant: tenant.to_owned(), step };
        as_account(&alice, ADD_MEMBER, Request::from(Action::SetTenantMember { change, by: "alice".to_owned() }))
    };
    let answer = api.call(&add("physics"), PATIENCE).await;
    assert!(matches!(answer, Ok(Answer::Done { .. })), "{answer:?}");
    for other in ["biology", "chemistry"] {
        let why = format!("alice has no role that allows AdminService/AddTenantMember for tenant {other:?}");
        assert_eq!(reason(&api, &add(other)).await, why);
    }
    let added = find(&lab, &api, AuditFilter { actions: vec![AuditAction::TenantMemberAdded], ..AuditFilter::default() }).await;
    assert_eq!(added.iter().map(|record| record.actor.as_str()).collect::<Vec<_>>(), ["alice@n1"]);

    // The ledger's answers about the members and roles.
    let members = async |tenant: &str| api.call(&Request::ListTenantMembers { tenant: tenant.to_owned() }, PATIENCE).await;
    assert_eq!(members("physics").await, Ok(Answer::TenantMembers(vec![TenantMember { subject: subject(&bob), is_default: false }])));
    assert_eq!(members("biology").await, Ok(Answer::TenantMembers(vec![])));
    let missing = members("chemistry").await;
    assert!(matches!(missing, Err(CallError::Refused(Refusal::NoSuchTenant { .. }))), "{missing:?}");
    let binding = RoleBinding { subject: subject(&alice), role: Role::TenantAdmin, tenant: Some("physics".to_owned()) };
    assert_eq!(api.call(&Request::ListRoles, PATIENCE).await, Ok(Answer::Roles(vec![binding])));
    let physics = BTreeSet::from(["physics".to_owned()]);
    for (by, admin_of) in [(&alice, physics.clone()), (&bob, BTreeSet::new())] {
        let Ok(Answer::Standing(standing)) =
            api.call(&Request::StandingOf { by: by.clone(), login_tenants: [].into(), about: [].into() }, PATIENCE).await
        else {
            panic!("no standing of {by:?}")
        };
        assert_eq!((&standing.roles.admin_of, &standing.member_of), (&admin_of, &physics), "{by:?}");
    }
    let outdated =
        api.call(&Request::Stale(Box::new(Request::StandingOf { by: alice, login_tenants: [].into(), about: [].into() })), PATIENCE).await;
    assert!(matches!(outdated, Err(CallError::Refused(Refusal::Malformed { .. }))), "{outdated:?}");
    member.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_tenants_admin_adds_and_removes_accounts_and_a_system_admin_adds_groups_and_sets_defaults() {
    let mut lab = Lab::new(1, |_| {});
    let member = start_one(&mut lab).await;
    let (api, alice, bob, carol) = (lab.api(&[1]), owner(), person("bob", 1001), person("carol", 1002));
    make_tenant(&lab, &api, "physics").await;
    grant(&lab, &api, &alice, Role::TenantAdmin, Some("physics")).await;
    grant(&lab, &api, &carol, Role::SystemAdmin, None).await;
    let lasers = Subject::Group { name: "lasers".to_owned(), gid: 50 };
    let change = |by: &Principal, step: MemberStep| {
        let method = if matches!(step, MemberStep::Add { .. }) { ADD_MEMBER } else { "AdminService/RemoveTenantMember" };
        let change = MemberChange { tenant: "physics".to_owned(), step };
        as_account(by, method, Request::from(Action::SetTenantMember { change, by: by.name.clone() }))
    };
    let add = |subject: &Subject, is_default| MemberStep::Add { subject: subject.clone(), is_default };
    let remove = |subject: &Subject| MemberStep::Remove { subject: subject.name() };
    let bob = subject(&bob);
    let (no_group, no_removal) = (
        "alice may add accounts to tenant \"physics\"; a system admin adds groups and sets defaults",
        "alice may remove accounts from tenant \"physics\"; a system admin removes groups",
    );
    // The tenant's admin tries each step; then the system admin does it.
    for (step, refused) in [
        (add(&bob, false), None),
        (add(&bob, true), Some(no_group)),
        (add(&lasers, false), Some(no_group)),
        (add(&lasers, true), Some(no_group)),
        (remove(&lasers), Some(no_removal)),
    ] {
        match refused {
            Some(why) => assert_eq!(reason(&api, &change(&alice, step.clone())).await, why),
            None => drop(api.call(&change(&alice, step.clone()), PATIENCE).await.unwrap()),
        }
        let answer = api.call(&change(&carol, step.clone()), PATIENCE).await;
        assert!(matches!(answer, Ok(Answer::Done { .. })), "{step:?}: {answer:?}");
    }
    let members = async || api.call(&Request::ListTenantMembers { tenant: "physics".to_owned() }, PATIENCE).await;
    assert_eq!(members().await, Ok(Answer::TenantMembers(vec![TenantMember { subject: bob.clone(), is_default: true }])));
    api.call(&change(&alice, remove(&bob)), PATIENCE).await.unwrap();
    assert_eq!(members().await, Ok(Answer::TenantMembers(vec![])));
    member.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_operator_changes_the_weights_of_a_vcluster_and_nothing_else_under_that_name() {
    let mut lab = Lab::new(1, |_| {});
    let member = start_one(&mut lab).await;
    let (api, alice) = (lab.api(&[1]), owner());
    grant(&lab, &api, &alice, Role::Operator, None).await;
    let weights = VClusterChange {
        name: "elsewhere".to_owned(),
        weights: WeightsChange { reset: true, ..WeightsChange::default() },
        ..VClusterChange::default()
    };
    let nodes = VClusterChange { nodes: Some(BTreeSet::from(["n1".parse().unwrap()])), ..weights.clone() };
    let set = |method: &str, change: &VClusterChange| {
        as_account(&alice, method, Request::from(Action::SetVCluster { change: change.clone(), by: "alice".to_owned() }))
    };
    let answer = api.call(&set("VClusterService/SetWeights", &weights), PATIENCE).await;
    assert!(matches!(answer, Err(CallError::Refused(Refusal::NoSuchVCluster { .. }))), "{answer:?}");
    let why = reason(&api, &set("VClusterService/SetWeights", &nodes)).await;
    assert!(why.starts_with("the proof of alice is for VClusterService/SetWeights; VClusterService/"), "{why}");
    assert_eq!(reason(&api, &set("VClusterService/SetConfig", &nodes)).await, "alice has no role that allows VClusterService/SetConfig");
    member.stop().await;
}

/// The record as a user reads it.
fn as_read(record: &AuditRecord) -> AuditRecord {
    AuditRecord { previous: String::new(), ..record.clone() }
}

/// All records that match the filter and that this user may read, one a page at most.
async fn visible(api: &QuorumClient, by: &Principal, filter: &AuditFilter) -> Vec<AuditRecord> {
    let (mut found, mut after) = (Vec::new(), 0);
    loop {
        let query = Request::QueryAudit { filter: filter.clone(), after, limit: 1, by: Some(by.clone()) };
        let Ok(Answer::Audit(page)) = api.call(&query, PATIENCE).await else { panic!("no page after {after}") };
        assert!(page.records.len() <= 1 && page.upto >= after && page.archive.is_empty(), "{page:?}");
        found.extend(page.records);
        after = page.upto;
        if after == page.end {
            return found;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_user_reads_its_own_audit_records_and_an_admin_those_of_its_tenant() {
    let mut lab = Lab::new(1, |_| {});
    let member = start_one(&mut lab).await;
    let api = lab.api(&[1]);
    let (alice, bob, carol, dave) = (owner(), person("bob", 1001), person("carol", 1002), person("dave", 1003));
    make_tenant(&lab, &api, "physics").await;
    grant(&lab, &api, &carol, Role::TenantAdmin, Some("physics")).await;
    let of_alice = submit(&api, 1).await;
    let of_bob = AllocationId(Uuid::new_v4());
    let spec = AllocationSpec { tenant: "physics".to_owned(), ..spec(1) };
    // Before anybody is a member, the tenant takes work from everybody.
    let request =
        Request::Submit { id: of_bob, spec: Box::new(spec), owner: bob.clone(), claim: None, life: None, login_tenants: [].into() };
    api.call(&request, PATIENCE).await.unwrap();
    for id in [of_alice, of_bob] {
        api.call(&Request::from(Action::Cancel { id, by: person("root", 0) }), PATIENCE).await.unwrap();
    }

    let all = find(&lab, &api, AuditFilter::default()).await;
    let about = |id| all.iter().filter(|record| record.allocation == Some(id)).map(as_read).collect::<Vec<_>>();
    let by_root = |records: &[AuditRecord]| records.iter().filter(|record| record.actor == "root@n1").cloned().collect::<Vec<_>>();
    let everything = AuditFilter::default();
    for (reader, id) in [(&alice, of_alice), (&bob, of_bob), (&carol, of_bob)] {
        let records = about(id);
        assert!(records.iter().any(|record| record.action == AuditAction::AllocationSubmitted), "{records:?}");
        assert_eq!(visible(&api, reader, &everything).await, records, "{reader:?}");
        // A filter selects among these.
        let of_root = AuditFilter { user: Some("root".to_owned()), ..AuditFilter::default() };
        assert!(!by_root(&records).is_empty(), "{records:?}");
        assert_eq!(visible(&api, reader, &of_root).await, by_root(&records), "{reader:?}");
    }
    for filter in [
        AuditFilter { user: Some("bob".to_owned()), ..AuditFilter::default() },
        AuditFilter { allocation: Some(of_bob.into()), ..AuditFilter::default() },
        AuditFilter { actions: vec![AuditAction::RoleGranted], ..AuditFilter::default() },
    ] {
        assert_eq!(visible(&api, &alice, &filter).await, [], "{filter:?}");
    }
    assert_eq!(visible(&api, &dave, &everything).await, []);
    let unproven = Request::QueryAudit { filter: everything, after: 0, limit: 1, by: None };
    assert_eq!(reason(&api, &unproven).await, "QueryAudit was sent without the proof of an operator");
    member.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_denied_call_is_recorded_for_an_api_agent_alone() {
    let mut lab = Lab::new(1, |_| {});
    let member = start_one(&mut lab).await;
    let api = lab.api(&[1]);
    let detail = "NodeService/SetHold: no role".to_owned();
    let denied = Access { id: Uuid::new_v4(), by: owner(), kind: AccessKind::Denied, allocation: None, node: None, detail };
    let by_node = lab.client(&[1], "n2", identity::Role::Node).call(&Request::RecordAccess(denied.clone()), PATIENCE).await;
    assert!(matches!(by_node, Err(CallError::Refused(Refusal::Role { .. }))), "{by_node:?}");
    api.call(&Request::RecordAccess(denied), PATIENCE).await.unwrap();
    let records = find(&lab, &api, AuditFilter { actions: vec![AuditAction::AccessDenied], ..AuditFilter::default() }).await;
    let found: Vec<_> = records.iter().map(|record| (record.actor.as_str(), record.detail.as_str())).collect();
    assert_eq!(found, [("alice", "at n1: NodeService/SetHold: no role")]);
    assert_eq!(visible(&api, &owner(), &AuditFilter::default()).await, records.iter().map(as_read).collect::<Vec<_>>());
    member.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_user_reads_records_of_the_exact_name_and_none_of_the_quorums_own_actors() {
    let mut lab = Lab::new(1, |_| {});
    let member = start_one(&mut lab).await;
    let api = lab.api(&[1]);
    let _agent = Agent::register(&api, "n1").await;
    let (alice, root) = (owner(), person("root", 0));
    let of_alice = submit(&api, 1).await;
    api.call(&Request::from(Action::Cancel { id: of_alice, by: root.clone() }), PATIENCE).await.unwrap();
    grant(&lab, &api, &alice, Role::Operator, None).await;
    api.call(&as_account(&alice, SET_HOLD, hold("n1")), PATIENCE).await.unwrap();
    // One record of each of these as the actor.
    let reserved = ["fencing_hook", "quorum", "scaling", "scheduler", "wipe"];
    for by in ["alice@corp", "root"].into_iter().chain(reserved) {
        let (detail, by) = ("NodeService/SetHold: no role".to_owned(), person(by, if by == "root" { 0 } else { 2000 }));
        let denied = Access { id: Uuid::new_v4(), by, kind: AccessKind::Denied, allocation: None, node: None, detail };
        api.call(&Request::RecordAccess(denied), PATIENCE).await.unwrap();
    }

    let (all, everything) = (find(&lab, &api, AuditFilter::default()).await, AuditFilter::default());
    let of = |actors: &[&str], owner: Option<&str>| {
        let is_of = |record: &&AuditRecord| actors.contains(&record.actor.as_str()) || owner.is_some() && record.owner.as_deref() == owner;
        all.iter().filter(is_of).map(as_read).collect::<Vec<_>>()
    };
    for actor in ["alice", "alice@corp", "alice@n1", "root", "root@n1"].iter().chain(&reserved) {
        assert!(all.iter().any(|record| record.actor == *actor), "{actor}: {all:?}");
    }
    for (reader, records) in [
        (&alice, of(&["alice"], Some("alice"))),
        (&person("alice@corp", 2000), of(&["alice@corp"], None)),
        (&root, of(&["root", "root@n1"], None)),
        // Accounts with the names of others' actors.
        (&person("alice@n1", 2001), vec![]),
        (&person("root@n1", 2002), vec![]),
        (&person("corp", 2003), vec![]),
    ] {
        assert_eq!(visible(&api, reader, &everything).await, records, "{reader:?}");
    }
    for name in reserved {
        assert_eq!(visible(&api, &person(name, 2000), &everything).await, [], "{name}");
    }
    let of_node = Request::QueryAudit { filter: everything, after: 0, limit: 1, by: Some(person("node:n1", 2000)) };
    let answer = api.call(&of_node, PATIENCE).await;
    assert!(matches!(answer, Err(CallError::Refused(Refusal::Malformed { .. }))), "{answer:?}");
    member.stop().await;
}

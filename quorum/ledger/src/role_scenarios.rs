//! Scenarios of roles: their grants, and what each lets its holders do to others' work.

use super::roles::BINDINGS_MAX;
use super::scenarios::{LimitsChange, Story, id, node, prepared, spec, user};
use super::{
    Access, AccessKind, Action, AllocationChange, DependencyRefusal, Outcome, QuotaChange, Refusal, SoftLimitsChange, TenantChange,
    UpdateRefusal,
};
use lattice_model::access::{Role, RoleBinding, RootMay, Subject, SubjectName};
use lattice_model::{
    AllocationSpec, AllocationState, AuditAction, AuditRecord, CheckpointId, DagId, DagStep, DagSubmission, Dependency,
    DependencyCondition, Epoch, PreemptCause, Preemption, Principal, RequeuePolicy, TaskSet, TelemetryMode,
};
use std::time::Duration;
use uuid::Uuid;

const OWNER: u32 = 7;
const ADMIN: u32 = 1;
const OPERATOR: u32 = 2;
const SYSTEM_ADMIN: u32 = 3;
const NOBODY: u32 = 4;

fn account(uid: u32) -> Subject {
    Subject::User { name: format!("u{uid}"), uid }
}

fn grant(subject: Subject, role: Role, tenant: Option<&str>) -> Action {
    Action::GrantRole { binding: RoleBinding { subject, role, tenant: tenant.map(str::to_owned) }, by: "anna@n1".into() }
}

fn revoke(subject: SubjectName, role: Role, tenant: Option<&str>) -> Action {
    Action::RevokeRole { subject, role, tenant: tenant.map(str::to_owned), by: "anna@n1".into() }
}

fn tenant(name: &str) -> Action {
    let (max_nodes, max_concurrent_allocations) = (QuotaChange::Keep, QuotaChange::Keep);
    let soft = SoftLimitsChange::default();
    let change = TenantChange { name: name.into(), create: true, max_nodes, max_concurrent_allocations, soft, expected_version: None };
    Action::SetTenant { change, by: "root".into() }
}

fn root_acts_for(root_may: RootMay) -> Action {
    LimitsChange { root_may: Some(root_may), ..LimitsChange::default() }.by("anna@n1")
}

/// Root, as members name it in requests about others' work.
fn root() -> Principal {
    Principal { name: "root@n1".into(), uid: 0, gid: 0, groups: vec![] }
}

fn submission(number: u128, tenant: &str, owner: u32) -> Action {
    let walltime = Some(Duration::from_secs(3600));
    let spec = AllocationSpec { tenant: tenant.into(), walltime, ..spec(1, RequeuePolicy::Always, 3) };
    Action::Submit { id: id(number), spec: Box::new(spec), owner: user(owner), claim: None }
}

/// One account for each role. Allocation 1 is of tenant physics, 2 of none.
fn with_roles() -> Story {
    let mut s = Story::new(2);
    s.done(tenant("physics"));
    s.done(submission(1, "physics", OWNER));
    s.done(submission(2, "", OWNER));
    s.done(grant(account(ADMIN), Role::TenantAdmin, Some("physics")));
    s.done(grant(account(OPERATOR), Role::Operator, None));
    s.done(grant(account(SYSTEM_ADMIN), Role::SystemAdmin, None));
    s
}

/// Everything that only some may do to an allocation.
fn attempts(number: u128, by: &Principal) -> Vec<Action> {
    let (allocation, epoch, by) = (id(number), Epoch(1), by.clone());
    let (order, cause) = (CheckpointId(Uuid::from_u128(1)), PreemptCause::Request);
    let order = Preemption { id: order, by: by.name.clone(), reason: "x".into(), cause, deadline_ms: 1000, hold: false, failed: None };
    let change = AllocationChange { name: Some("other".into()), ..AllocationChange::default() };
    vec![
        Action::HoldAllocation { allocation, by: by.clone() },
        Action::Resume { allocation, by: by.clone() },
        Action::Preempt { allocation, epoch, by: by.clone(), order, kill: true },
        Action::RequeueAllocation { allocation, epoch, by: by.clone(), reason: "x".into() },
        Action::UpdateAllocation { allocation, by: by.clone(), change, as_operator: false },
        Action::SetTelemetry { allocation, by: by.clone(), id: Uuid::from_u128(2), mode: TelemetryMode::Prod, duration_ms: 0 },
        Action::CancelTasks { id: allocation, tasks: TaskSet::first(1), by: by.clone() },
        Action::Scale { id: allocation, replicas: 1, by: by.clone() },
        Action::DeleteSession { id: Uuid::from_u128(3), allocation, by: by.clone() },
        Action::Cancel { id: allocation, by },
    ]
}

/// The names of the commands that are refused because the allocation is somebody else's.
fn refused(s: &mut Story, number: u128, by: &Principal) -> Vec<&'static str> {
    let mut refused = Vec::new();
    for action in attempts(number, by) {
        let name = action.name();
        if matches!(s.act(action), Err(Refusal::NotYours { .. })) {
            refused.push(name);
        }
    }
    refused
}

fn shown(records: &[AuditRecord]) -> Vec<(AuditAction, &str, &str)> {
    records.iter().map(|record| (record.action, record.actor.as_str(), record.detail.as_str())).collect()
}

#[test]
fn a_role_is_granted_once_and_revoked_once() {
    let mut s = Story::new(0);
    s.done(tenant("physics"));
    let group = Subject::Group { name: "phys".into(), gid: 50 };
    let records = s.acted(grant(account(7), Role::Operator, None));
    assert_eq!(shown(&records), [(AuditAction::RoleGranted, "anna@n1", "operator to user:u7 (uid 7)")]);
    assert!(s.acted(grant(account(7), Role::Operator, None)).is_empty(), "said again");
    let records = s.acted(grant(group.clone(), Role::TenantAdmin, Some("physics")));
    assert_eq!(shown(&records), [(AuditAction::RoleGranted, "anna@n1", "tenant-admin of physics to group:phys (gid 50)")]);
    assert!(s.ledger.roles_of(&user(7)).operator && !s.ledger.roles_of(&user(8)).operator);
    assert!(!s.ledger.roles_of(&Principal { uid: 8, ..user(7) }).operator, "the same name with another number");
    let in_group = Principal { groups: vec![50], ..user(8) };
    assert_eq!(s.ledger.roles_of(&in_group).admin_of, ["physics".to_owned()].into());
    assert_eq!(s.ledger.role_bindings().count(), 2);

    let records = s.acted(revoke(account(7).name(), Role::Operator, None));
    assert_eq!(shown(&records), [(AuditAction::RoleRevoked, "anna@n1", "operator from user:u7 (uid 7)")]);
    assert!(!s.ledger.roles_of(&user(7)).operator);
    let again = s.act(revoke(account(7).name(), Role::Operator, None)).unwrap_err();
    assert_eq!(again.to_string(), "user:u7 does not have the role operator");
    let other = s.act(revoke(group.name(), Role::TenantAdmin, Some("zoology"))).unwrap_err();
    assert_eq!(other.to_string(), "group:phys does not have the role tenant-admin of tenant \"zoology\"");
    assert!(other.remedy().is_some());
    s.done(revoke(group.name(), Role::TenantAdmin, Some("physics")));
    assert_eq!(s.ledger.role_bindings().count(), 0);
}

#[test]
fn a_role_is_revoked_from_all_accounts_of_the_name() {
    let mut s = Story::new(0);
    let renumbered = Subject::User { name: "u7".into(), uid: 70 };
    s.done(grant(account(7), Role::Operator, None));
    s.done(grant(renumbered, Role::Operator, None));
    s.done(grant(account(7), Role::SystemAdmin, None));
    let records = s.acted(revoke(account(7).name(), Role::Operator, None));
    let wanted = ["operator from user:u7 (uid 7)", "operator from user:u7 (uid 70)"];
    assert_eq!(shown(&records), wanted.map(|detail| (AuditAction::RoleRevoked, "anna@n1", detail)));
    assert!(s.ledger.roles_of(&user(7)).system_admin);
}

#[test]
fn a_grant_that_makes_no_sense_is_refused() {
    let mut s = Story::new(0);
    s.done(tenant("physics"));
    let nameless = Subject::User { name: String::new(), uid: 7 };
    let lines = Subject::Group { name: "a\nb".into(), gid: 7 };
    let malformed = [
        grant(account(7), Role::TenantAdmin, None),
        grant(account(7), Role::Operator, Some("physics")),
        grant(account(7), Role::SystemAdmin, Some("physics")),
        grant(nameless, Role::Operator, None),
        grant(lines, Role::Operator, None),
    ];
    for action in malformed {
        assert!(matches!(s.act(action.clone()), Err(Refusal::Malformed { .. })), "{action:?}");
    }
    assert!(matches!(s.act(grant(account(7), Role::TenantAdmin, Some("physic"))), Err(Refusal::NoSuchTenant { meant: Some(_), .. })));
    for uid in 0..u32::try_from(BINDINGS_MAX).unwrap() {
        s.done(grant(account(uid), Role::Operator, None));
    }
    assert!(matches!(s.act(grant(account(7), Role::SystemAdmin, None)), Err(Refusal::TooMany { most, .. }) if most == BINDINGS_MAX as u64));
    s.done(grant(account(7), Role::Operator, None));
}

#[test]
fn each_role_acts_on_the_work_that_the_table_names() {
    let all: Vec<&str> = attempts(1, &root()).iter().map(Action::name).collect();
    let none: Vec<&str> = vec![];
    let (namesake, stranger) = (Principal { name: "u2@n1".into(), ..user(OPERATOR) }, Principal { uid: 9, ..user(OPERATOR) });
    let cases = [
        (user(OWNER), none.clone(), none.clone()),
        (user(ADMIN), none.clone(), all.clone()),
        (user(OPERATOR), none.clone(), none.clone()),
        (namesake, all.clone(), all.clone()),
        (stranger, all.clone(), all.clone()),
        (user(SYSTEM_ADMIN), none.clone(), none.clone()),
        (user(NOBODY), all.clone(), all.clone()),
        (root(), vec!["UpdateAllocation"], vec!["UpdateAllocation"]),
    ];
    for (by, of_tenant, of_none) in cases {
        let mut s = with_roles();
        assert_eq!(refused(&mut s, 1, &by), of_tenant, "{by:?}");
        assert_eq!(refused(&mut s, 2, &by), of_none, "{by:?}");
        let cancelled = [1, 2].map(|number| s.state(number) == AllocationState::Cancelled);
        assert_eq!(cancelled, [&of_tenant, &of_none].map(|refused| !refused.contains(&"Cancel")), "{by:?}");
    }
}

#[test]
fn who_loses_a_role_loses_what_it_allowed() {
    let mut s = with_roles();
    assert!(s.ledger.may("AllocationService/Cancel", &user(ADMIN), &user(OWNER), "physics"));
    s.done(revoke(account(ADMIN).name(), Role::TenantAdmin, Some("physics")));
    assert!(!s.ledger.may("AllocationService/Cancel", &user(ADMIN), &user(OWNER), "physics"));
    assert!(matches!(s.act(Action::Cancel { id: id(1), by: user(ADMIN) }), Err(Refusal::NotYours { .. })));
    assert!(!s.ledger.may("AllocationService/NoSuchMethod", &user(SYSTEM_ADMIN), &user(OWNER), "physics"));
}

#[test]
fn root_acts_for_itself_where_the_site_narrows_it_and_by_a_role_that_it_has() {
    let mut s = with_roles();
    let applied = s.apply(root_acts_for(RootMay::ActForItself));
    let detail = "sensitive_pool_size unlimited, root_acts_for itself";
    assert_eq!(shown(&applied.audit), [(AuditAction::LimitsSet, "anna@n1", detail)]);
    assert!(applied.changed.limits && s.ledger.cluster_limits().root_may == RootMay::ActForItself);
    assert!(s.acted(root_acts_for(RootMay::ActForItself)).is_empty(), "said again");
    assert_eq!(refused(&mut s, 1, &root()).len(), attempts(1, &root()).len());
    s.done(grant(Subject::User { name: "root".into(), uid: 0 }, Role::Operator, None));
    assert!(refused(&mut s, 1, &root()).is_empty(), "members append the machine to the name of root alone");
    s.done(revoke(SubjectName { is_group: false, name: "root".into() }, Role::Operator, None));
    s.done(root_acts_for(RootMay::ActForEverybody));
    assert_eq!(refused(&mut s, 2, &root()), ["UpdateAllocation"]);
}

#[test]
fn proven_operators_lengthen_what_runs_and_a_role_alone_changes_what_the_owner_may() {
    let mut s = with_roles();
    let epoch = s.claimed(1, &[0]);
    s.report(0, prepared(1, epoch));
    let update = |by: Principal, count: u64, as_operator: bool| {
        let change = AllocationChange { walltime: Some(Duration::from_secs(count * 60)), ..AllocationChange::default() };
        Action::UpdateAllocation { allocation: id(1), by, change, as_operator }
    };
    let minutes = |by: Principal, count: u64| update(by, count, false);
    let longer = Refusal::Update { id: id(1), why: UpdateRefusal::LongerWithNodes { state: AllocationState::Running } };
    s.done(minutes(user(ADMIN), 50));
    s.done(minutes(user(OPERATOR), 45));
    s.done(grant(account(OWNER), Role::Operator, None));
    for by in [ADMIN, OWNER, OPERATOR, SYSTEM_ADMIN] {
        assert_eq!(s.act(minutes(user(by), 90)), Err(longer.clone()));
    }
    for by in [user(NOBODY), root()] {
        assert!(matches!(s.act(minutes(by, 40)), Err(Refusal::NotYours { .. })));
    }
    // The member has checked the proof, and names the person with the machine.
    s.done(update(Principal { name: "u2@n1".into(), ..user(OPERATOR) }, 90, true));
    assert_eq!(s.ledger.allocation(id(1)).unwrap().spec.walltime, Some(Duration::from_secs(90 * 60)));
}

#[test]
fn work_that_excludes_others_is_submitted_by_their_owner_and_by_root_and_by_nobody_for_a_role() {
    let mut s = with_roles();
    let excluding = |number: u128, by: u32, other: u128| {
        let depends_on = vec![Dependency { on: id(other), condition: DependencyCondition::Mutex }];
        let spec = AllocationSpec { depends_on, ..spec(1, RequeuePolicy::Never, 0) };
        Action::Submit { id: id(number), spec: Box::new(spec), owner: user(by), claim: None }
    };
    let is_refused =
        |result: &Result<Outcome, Refusal>| matches!(result, Err(Refusal::Dependency { why: DependencyRefusal::NotYours, .. }));
    for by in [NOBODY, ADMIN, OPERATOR, SYSTEM_ADMIN] {
        for other in [1, 2] {
            let result = s.act(excluding(9, by, other));
            assert!(is_refused(&result), "{by} {other}: {result:?}");
        }
    }
    for (number, by, other) in [(10, OWNER, 1), (11, OWNER, 2), (12, 0, 1), (13, 0, 2)] {
        s.done(excluding(number, by, other));
    }
    s.done(root_acts_for(RootMay::ActForItself));
    s.done(grant(account(0), Role::SystemAdmin, None));
    let result = s.act(excluding(14, 0, 1));
    assert!(is_refused(&result), "{result:?}");
}

#[test]
fn a_dag_is_cancelled_by_an_admin_of_the_tenant_of_all_its_steps() {
    let mut s = with_roles();
    s.done(tenant("zoology"));
    let submit = |number: u128, tenants: [&str; 2]| {
        let step = |(step, tenant): (u128, &str)| {
            let spec = AllocationSpec { tenant: tenant.into(), ..spec(1, RequeuePolicy::Never, 0) };
            DagStep { name: format!("s{step}"), allocation: id(number * 10 + step), takes_env: true, spec: Box::new(spec) }
        };
        let dag = DagSubmission { name: "flow".into(), env: [].into(), steps: (0..).zip(tenants).map(step).collect() };
        Action::SubmitDag { id: DagId(Uuid::from_u128(number)), owner: user(OWNER), dag: Box::new(dag) }
    };
    let cancel = |number: u128, by: u32| Action::CancelDag { id: DagId(Uuid::from_u128(number)), by: user(by) };
    s.done(submit(1, ["physics", "physics"]));
    s.done(submit(2, ["physics", "zoology"]));
    let tenants = [1, 2].map(|number| s.ledger.dag_status(s.ledger.dag(DagId(Uuid::from_u128(number))).unwrap()).tenant);
    assert_eq!(tenants, ["physics", ""]);
    for (number, by) in [(1, NOBODY), (2, NOBODY), (2, ADMIN)] {
        assert!(matches!(s.act(cancel(number, by)), Err(Refusal::DagNotYours { .. })), "{by} {number}");
    }
    s.done(cancel(1, ADMIN));
    s.done(cancel(2, OPERATOR));
    assert_eq!([10, 11, 20, 21].map(|number| s.state(number)), [AllocationState::Cancelled; 4]);
}

#[test]
fn a_lease_is_renewed_and_released_by_its_user_operators_system_admins_and_root() {
    let mut s = with_roles();
    let lease = Action::GrantLease { name: "build".into(), holder: node(0), ttl_ms: 1000, user: Some(user(OWNER)) };
    let release =
        |token: u64, by: &Principal| Action::ReleaseLease { name: "build".into(), token, holder: node(0), user: Some(by.clone()) };
    let refused = |s: &mut Story, token: u64, by: &Principal| {
        let not_yours = Refusal::LeaseNotYours { name: "build".into(), owner: "u7".into() };
        assert_eq!(s.ledger.renewable("build", token, &node(0), Some(by)).err(), Some(not_yours.clone()), "{by:?}");
        assert_eq!(s.act(release(token, by)), Err(not_yours), "{by:?}");
    };
    let namesake = Principal { name: "u2@n1".into(), ..user(OPERATOR) };
    for by in [OWNER, OPERATOR, SYSTEM_ADMIN, 0].map(user) {
        let Ok(Outcome::Leased { token }) = s.act(lease.clone()) else { panic!("nobody holds it") };
        for other in [user(ADMIN), user(NOBODY), namesake.clone()] {
            refused(&mut s, token, &other);
        }
        assert!(s.ledger.renewable("build", token, &node(0), Some(&by)).is_ok(), "{by:?}");
        s.done(release(token, &by));
        assert!(s.ledger.lease("build").is_none(), "{by:?}");
    }
    let Ok(Outcome::Leased { token }) = s.act(lease) else { panic!("nobody holds it") };
    s.done(root_acts_for(RootMay::ActForItself));
    refused(&mut s, token, &user(0));
}

#[test]
fn the_admins_of_a_tenant_go_with_it() {
    let mut s = Story::new(0);
    for name in ["physics", "zoology"] {
        s.done(tenant(name));
        s.done(grant(account(ADMIN), Role::TenantAdmin, Some(name)));
    }
    s.done(grant(account(OPERATOR), Role::Operator, None));
    let delete = Action::DeleteTenant { name: "physics".into(), by: "anna@n1".into() };
    let records = s.acted(delete);
    assert_eq!(shown(&records), [(AuditAction::TenantDeleted, "anna@n1", "physics, with 0 members and 1 admin")]);
    assert_eq!(s.ledger.roles_of(&user(ADMIN)).admin_of, ["zoology".to_owned()].into());
    s.done(tenant("physics"));
    assert!(!s.ledger.may("AllocationService/Cancel", &user(ADMIN), &user(OWNER), "physics"), "another tenant of that name");
    assert!(s.ledger.roles_of(&user(OPERATOR)).operator);
}

#[test]
fn a_new_tenant_of_a_former_name_gives_its_admins_nothing_of_the_former_work() {
    let mut s = with_roles();
    let dag = DagId(Uuid::from_u128(9));
    let spec = Box::new(AllocationSpec { tenant: "physics".into(), ..spec(1, RequeuePolicy::Never, 0) });
    let step = DagStep { name: "a".into(), allocation: id(3), takes_env: false, spec };
    let steps = DagSubmission { name: "d".into(), env: Default::default(), steps: vec![step] };
    s.done(Action::SubmitDag { id: dag, owner: user(OWNER), dag: Box::new(steps) });
    for number in [1, 3] {
        s.done(Action::Cancel { id: id(number), by: user(OWNER) });
    }
    let administered = |s: &Story, number| {
        let allocation = s.ledger.allocation(id(number)).unwrap();
        let roles = s.ledger.roles_of(&user(ADMIN));
        assert_eq!(roles.administered(&allocation.spec.tenant, allocation.ended_at), s.ledger.administered_tenant(allocation));
        s.ledger.administered_tenant(allocation).to_owned()
    };
    let of_dag = |s: &Story| s.ledger.dag_tenant(s.ledger.find_dag(&dag.to_string()).unwrap()).to_owned();
    assert_eq!((administered(&s, 1), of_dag(&s)), ("physics".to_owned(), "physics".to_owned()));
    s.done(Action::DeleteTenant { name: "physics".into(), by: "anna@n1".into() });
    s.done(tenant("physics"));
    s.done(grant(account(ADMIN), Role::TenantAdmin, Some("physics")));
    assert_eq!((administered(&s, 1), of_dag(&s)), (String::new(), String::new()));
    // A change of the tenant makes no new one of it, and new work is its own.
    s.done(submission(4, "physics", OWNER));
    s.done(Action::Cancel { id: id(4), by: user(OWNER) });
    let since = s.ledger.tenant("physics").unwrap().since;
    let soft = SoftLimitsChange { gpu_hours_budget: QuotaChange::AtMost(7), ..SoftLimitsChange::default() };
    let (max_nodes, max_concurrent_allocations) = (QuotaChange::Keep, QuotaChange::Keep);
    let change =
        TenantChange { name: "physics".into(), create: false, max_nodes, max_concurrent_allocations, soft, expected_version: None };
    s.done(Action::SetTenant { change, by: "root".into() });
    assert_eq!((s.ledger.tenant("physics").unwrap().since, administered(&s, 4)), (since, "physics".to_owned()));
}

#[test]
fn a_requested_and_a_removed_checkpoint_of_somebody_else_are_on_record() {
    let mut s = with_roles();
    for (number, kind, action) in [
        (1, AccessKind::CheckpointRequested, AuditAction::CheckpointRequested),
        (2, AccessKind::CheckpointRemoved, AuditAction::CheckpointRemoved),
    ] {
        let (access, allocation, detail) = (Uuid::from_u128(number), Some(id(1)), "at n1: checkpoint 7".to_owned());
        let records = s.acted(Action::RecordAccess(Access { id: access, by: user(ADMIN), kind, allocation, node: None, detail }));
        assert_eq!(shown(&records), [(action, "u1", "at n1: checkpoint 7")]);
        assert_eq!((records[0].allocation, records[0].owner.as_deref()), (allocation, Some("u7")));
    }
}

#[test]
fn a_denial_is_on_record_with_who_was_refused_and_may_concern_no_allocation() {
    let mut s = Story::new(0);
    let detail = "AdminService/GrantRole: this needs a role that allows it, or an operator's credential".to_owned();
    let denied = |number, allocation| Access {
        id: Uuid::from_u128(number),
        by: user(NOBODY),
        kind: AccessKind::Denied,
        allocation,
        node: None,
        detail: detail.clone(),
    };
    for (number, allocation) in [(1, None), (2, Some(id(9)))] {
        let records = s.acted(Action::RecordAccess(denied(number, allocation)));
        assert_eq!(shown(&records), [(AuditAction::AccessDenied, "u4", detail.as_str())]);
        assert_eq!(records[0].allocation, allocation);
        assert!(s.acted(Action::RecordAccess(denied(number, allocation))).is_empty(), "sent again");
    }
}

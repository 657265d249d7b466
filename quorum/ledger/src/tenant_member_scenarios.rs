//! Scenarios of the members of tenants, and of the tenant for work that names none.

use super::scenarios::{LimitsChange, Story, id, spec, user};
use super::tenant_members::MEMBERS_MAX;
use super::{Action, AllocationChange, Outcome, QuotaChange, Refusal, SoftLimitsChange, TenantChange, lane_id};
use lattice_model::access::{
    LOGIN_TENANTS_MAX, MemberChange, MemberStep, Role, RoleBinding, Roles, RootMay, Standing, Subject, SubjectName, TenantMember,
};
use lattice_model::{
    AllocationSpec, Amount, AuditAction, AuditRecord, DagId, DagStep, DagSubmission, Drain, Principal, RequeuePolicy, ScaleMetric,
    ScalePolicy, Scaling, TaskGroup, TaskIndices,
};
use std::collections::BTreeSet;
use uuid::Uuid;

fn account(uid: u32) -> Subject {
    Subject::User { name: format!("u{uid}"), uid }
}

fn group(gid: u32) -> Subject {
    Subject::Group { name: format!("g{gid}"), gid }
}

fn in_groups(uid: u32, groups: &[u32]) -> Principal {
    Principal { groups: groups.to_vec(), ..user(uid) }
}

/// The standing of a user, with all tenants that are closed to it.
fn standing(s: &Story, uid: u32, login_tenants: &BTreeSet<String>) -> Standing {
    s.ledger.standing_of(&user(uid), login_tenants, &s.ledger.tenants.keys().cloned().collect())
}

fn tenants(s: &mut Story, names: &[&str]) {
    for name in names {
        let (max_nodes, max_concurrent_allocations) = (QuotaChange::Keep, QuotaChange::Keep);
        let soft = SoftLimitsChange::default();
        let change =
            TenantChange { name: (*name).into(), create: true, max_nodes, max_concurrent_allocations, soft, expected_version: None };
        s.done(Action::SetTenant { change, by: "root".into() });
    }
}

fn change(tenant: &str, step: MemberStep) -> Action {
    Action::SetTenantMember { change: MemberChange { tenant: tenant.into(), step }, by: "anna@n1".into() }
}

fn add(tenant: &str, subject: Subject, is_default: bool) -> Action {
    change(tenant, MemberStep::Add { subject, is_default })
}

fn remove(tenant: &str, subject: &Subject) -> Action {
    change(tenant, MemberStep::Remove { subject: subject.name() })
}

fn grant(uid: u32, role: Role, tenant: Option<&str>) -> Action {
    let binding = RoleBinding { subject: account(uid), role, tenant: tenant.map(str::to_owned) };
    Action::GrantRole { binding, by: "anna@n1".into() }
}

fn of_tenant(tenant: &str) -> AllocationSpec {
    AllocationSpec { tenant: tenant.into(), ..spec(1, RequeuePolicy::Never, 0) }
}

fn submission(number: u128, spec: AllocationSpec, owner: &Principal) -> Action {
    Action::Submit { id: id(number), spec: Box::new(spec), owner: owner.clone(), claim: None }
}

/// The tenant that a submission gets. A dry run gives the same result.
fn submit(s: &mut Story, number: u128, tenant: &str, owner: &Principal) -> Result<String, Refusal> {
    let dry = s.ledger.admits_submission(&of_tenant(tenant), owner, &[].into(), s.now());
    let result = s.act(submission(number, of_tenant(tenant), owner));
    assert_eq!(dry.err(), result.clone().err());
    result.map(|_| stored(s, number))
}

fn stored(s: &Story, number: u128) -> String {
    s.ledger.allocation(id(number)).unwrap().spec.tenant.clone()
}

fn not_named(tenants: &[&str]) -> Result<String, Refusal> {
    let tenants = tenants.iter().map(|name| (*name).to_owned()).collect();
    Err(Refusal::TenantNotNamed { user: "u7".into(), tenants, more: 0 })
}

fn shown(records: &[AuditRecord]) -> Vec<(AuditAction, &str, &str)> {
    records.iter().map(|record| (record.action, record.actor.as_str(), record.detail.as_str())).collect()
}

#[test]
fn a_tenant_with_members_takes_work_of_these_and_its_admins_and_of_root() {
    let mut s = Story::new(0);
    tenants(&mut s, &["physics", "zoology"]);
    assert_eq!(submit(&mut s, 1, "physics", &user(4)), Ok("physics".into()), "it has no members");
    s.done(add("physics", account(1), false));
    s.done(add("physics", group(50), false));
    s.done(grant(3, Role::TenantAdmin, Some("physics")));
    s.done(grant(5, Role::Operator, None));
    s.done(grant(6, Role::SystemAdmin, None));
    for (number, owner) in
        [(11, user(1)), (12, in_groups(2, &[49, 50])), (13, Principal { gid: 50, ..user(2) }), (14, user(3)), (15, user(0))]
    {
        assert_eq!(submit(&mut s, number, "physics", &owner), Ok("physics".into()), "{owner:?}");
    }
    for owner in [user(4), user(5), user(6), in_groups(2, &[51]), Principal { uid: 9, ..user(1) }] {
        let refused = Refusal::NotOfTenant { tenant: "physics".into(), user: owner.name.clone() };
        assert_eq!(submit(&mut s, 20, "physics", &owner), Err(refused), "{owner:?}");
    }
    let refused = submit(&mut s, 20, "physics", &user(4)).unwrap_err();
    assert_eq!(refused.to_string(), "user u4 is no member of tenant \"physics\"");
    let remedy = "its admins add members: `lattice admin tenant member add physics user:u4`";
    assert_eq!(refused.remedy().as_deref(), Some(remedy));
    assert_eq!(submit(&mut s, 20, "zoology", &user(4)), Ok("zoology".into()));
    assert!(matches!(submit(&mut s, 21, "physicz", &user(4)), Err(Refusal::NoSuchTenant { .. })));
}

#[test]
fn root_that_acts_for_itself_is_a_member_or_is_refused() {
    let mut s = Story::new(0);
    tenants(&mut s, &["physics"]);
    s.done(add("physics", account(1), false));
    s.done(LimitsChange { root_may: Some(RootMay::ActForItself), ..LimitsChange::default() }.by("root"));
    assert!(matches!(submit(&mut s, 1, "physics", &user(0)), Err(Refusal::NotOfTenant { .. })));
    s.done(add("physics", account(0), false));
    assert_eq!(submit(&mut s, 1, "physics", &user(0)), Ok("physics".into()));
}

#[test]
fn work_that_names_no_tenant_gets_a_default_or_is_refused_for_who_is_in_any() {
    let mut s = Story::new(0);
    tenants(&mut s, &["a", "b", "c", "d"]);
    let owner = in_groups(7, &[50, 51]);
    assert_eq!(submit(&mut s, 1, "", &owner), Ok(String::new()));
    s.done(grant(7, Role::TenantAdmin, Some("b")));
    assert_eq!(submit(&mut s, 2, "", &owner), Ok(String::new()), "b takes work from everybody");
    s.done(add("a", group(50), false));
    assert_eq!(submit(&mut s, 3, "", &owner), not_named(&["a"]), "also of one tenant alone");
    assert_eq!(submit(&mut s, 3, "", &user(4)), Ok(String::new()), "in none");
    s.done(add("b", account(1), false));
    assert_eq!(submit(&mut s, 9, "", &owner), not_named(&["a", "b"]), "an admin, and no member");
    s.done(add("a", group(50), true));
    assert_eq!(submit(&mut s, 9, "", &owner), Ok("a".into()), "the default of a group");
    s.done(add("c", group(51), true));
    assert_eq!(submit(&mut s, 4, "", &owner), not_named(&["a", "b", "c"]), "its groups have different ones");
    s.done(add("d", account(7), true));
    assert_eq!(submit(&mut s, 4, "", &owner), Ok("d".into()), "the account's own comes first");
    s.done(add("b", account(7), true));
    assert_eq!(submit(&mut s, 5, "", &owner), Ok("b".into()), "the later default");
    assert_eq!(s.ledger.tenant_members("d").unwrap(), [TenantMember { subject: account(7), is_default: false }]);
    s.done(add("b", account(7), false));
    assert_eq!(submit(&mut s, 6, "", &owner), Ok("b".into()), "it stays the default");
    s.done(remove("b", &account(7)));
    assert_eq!(submit(&mut s, 7, "", &owner), not_named(&["a", "b", "c", "d"]));
    assert_eq!(submit(&mut s, 7, "c", &owner), Ok("c".into()), "the remedy");
    let refused = submit(&mut s, 8, "", &owner).unwrap_err();
    assert_eq!(refused.to_string(), "user u7 is in tenants a, b, c, d and has no default: which one pays?");
    let remedy = "give --tenant, or a system admin sets a default: `lattice admin tenant member add TENANT user:u7 --default`";
    assert_eq!(refused.remedy().as_deref(), Some(remedy));
    assert_eq!(submit(&mut s, 8, "", &in_groups(8, &[51])), Ok("c".into()), "another one in that group");
}

#[test]
fn a_refusal_names_few_of_many_tenants() {
    let mut s = Story::new(0);
    let names: Vec<String> = (10..29).map(|number| format!("t{number}")).collect();
    tenants(&mut s, &names.iter().map(String::as_str).collect::<Vec<_>>());
    s.done(add("t10", account(7), false));
    let one = submit(&mut s, 1, "", &user(7)).unwrap_err();
    assert_eq!(one.to_string(), "user u7 is in tenant t10 and has no default: which one pays?");
    for name in &names {
        s.done(add(name, account(7), false));
    }
    let refused = submit(&mut s, 1, "", &user(7)).unwrap_err();
    let named = "t10, t11, t12, t13, t14, t15, t16, t17, t18, t19, t20, t21, t22, t23, t24, t25 and 3 more";
    assert_eq!(refused.to_string(), format!("user u7 is in tenants {named} and has no default: which one pays?"));
}

#[test]
fn a_tenant_whose_last_member_has_left_accepts_work_only_from_its_admins_and_root() {
    let mut s = Story::new(0);
    tenants(&mut s, &["a"]);
    s.done(add("a", account(7), true));
    s.done(grant(3, Role::TenantAdmin, Some("a")));
    s.done(remove("a", &account(7)));
    assert_eq!(s.ledger.tenant_members("a"), Ok(vec![]));
    for owner in [user(7), user(4)] {
        let refused = Refusal::NotOfTenant { tenant: "a".into(), user: owner.name.clone() };
        assert_eq!(submit(&mut s, 1, "a", &owner), Err(refused), "{owner:?}");
    }
    assert_eq!(submit(&mut s, 1, "", &user(7)), Ok(String::new()), "its default is gone");
    assert!(matches!(submit(&mut s, 2, "", &user(3)), Err(Refusal::TenantNotNamed { .. })));
    assert_eq!(submit(&mut s, 2, "a", &user(3)), Ok("a".into()));
    assert_eq!(submit(&mut s, 3, "a", &user(0)), Ok("a".into()));
    let closed = BTreeSet::from(["a".to_owned()]);
    assert_eq!((standing(&s, 4, &BTreeSet::new()).closed_to_it, standing(&s, 3, &BTreeSet::new()).member_of), (closed.clone(), closed));
}

#[test]
fn a_repeated_submission_is_the_same_although_the_default_has_changed() {
    let mut s = Story::new(0);
    tenants(&mut s, &["a", "b"]);
    let owner = user(7);
    s.done(add("a", account(7), true));
    assert_eq!(submit(&mut s, 1, "", &owner), Ok("a".into()));
    s.done(add("b", account(7), true));
    let again = |s: &mut Story, tenant: &str| s.act(submission(1, of_tenant(tenant), &owner));
    assert_eq!((again(&mut s, ""), again(&mut s, "a")), (Ok(Outcome::Submitted { number: 1 }), Ok(Outcome::Submitted { number: 1 })));
    assert_eq!(again(&mut s, "b"), Err(Refusal::AllocationExists { id: id(1) }));
    let change = AllocationChange { name: Some("later".into()), ..AllocationChange::default() };
    s.done(Action::UpdateAllocation { allocation: id(1), by: owner.clone(), change, as_operator: false });
    for tenant in ["a", "b"] {
        s.done(remove(tenant, &account(7)));
        s.done(add(tenant, account(1), false));
    }
    assert_eq!((again(&mut s, ""), stored(&s, 1)), (Ok(Outcome::Submitted { number: 1 }), "a".to_owned()));
    let other = AllocationSpec { sensitive: true, ..of_tenant("") };
    assert_eq!(s.act(submission(1, other, &owner)), Err(Refusal::AllocationExists { id: id(1) }));
}

#[test]
fn steps_of_a_dag_get_the_tenant_and_one_that_cannot_keeps_all_of_them_away() {
    let mut s = Story::new(0);
    tenants(&mut s, &["a", "b"]);
    let owner = user(7);
    let dag = |tenants: [&str; 2]| {
        let step = |(number, tenant): (u128, &str)| DagStep {
            name: format!("s{number}"),
            allocation: id(number),
            takes_env: true,
            spec: Box::new(of_tenant(tenant)),
        };
        DagSubmission { name: "flow".into(), env: [].into(), steps: (1..).zip(tenants).map(step).collect() }
    };
    let submit = |dag: DagSubmission| Action::SubmitDag { id: DagId(Uuid::from_u128(1)), owner: user(7), dag: Box::new(dag) };
    for tenant in ["a", "b"] {
        s.done(add(tenant, account(7), false));
    }
    let refused = s.act(submit(dag(["a", ""]))).unwrap_err();
    assert_eq!(s.ledger.admits_dag(&owner, &dag(["a", ""]), &[].into(), s.now()), Err(refused.clone()));
    let Refusal::DagStep { step, refusal } = &refused else { panic!("{refused:?}") };
    assert!(step == "s2" && matches!(**refusal, Refusal::TenantNotNamed { .. }) && refused.remedy().is_some());
    assert_eq!(s.ledger.allocations().count(), 0);

    s.done(add("a", account(7), true));
    assert_eq!(s.ledger.admits_dag(&owner, &dag(["b", ""]), &[].into(), s.now()), Ok(()));
    s.done(submit(dag(["b", ""])));
    assert_eq!([1, 2].map(|number| stored(&s, number)), ["b", "a"]);
    s.done(add("b", account(7), true));
    assert_eq!(s.act(submit(dag(["b", ""]))), Ok(Outcome::Done), "the first answer was lost");
    assert_eq!([1, 2].map(|number| stored(&s, number)), ["b", "a"]);
}

#[test]
fn lanes_and_replicas_have_the_tenant_of_the_whole_although_its_owner_has_left() {
    let mut s = Story::new(0);
    tenants(&mut s, &["a"]);
    s.done(add("a", account(7), true));
    let tasks = TaskGroup { indices: TaskIndices::parse("0-3").unwrap(), concurrent_max: Some(1), failures_max: None };
    s.done(submission(1, AllocationSpec { tasks: Some(Box::new(tasks)), ..of_tenant("") }, &user(7)));
    let policy = Some(ScalePolicy::new(ScaleMetric::CpuUtilization, Amount(500_000)));
    let scaling = Scaling { replicas_min: 1, replicas_max: 3, policy, drain: Drain::default() };
    let service = AllocationSpec { scaling: Some(Box::new(scaling)), walltime: None, ..of_tenant("") };
    s.done(submission(2, service, &user(7)));
    s.done(remove("a", &account(7)));
    s.done(add("a", account(1), false));
    s.done(Action::Scale { id: id(2), replicas: 2, by: user(7) });
    let parts = [lane_id(id(1), 0), lane_id(id(2), 0), lane_id(id(2), 1)];
    let of_parts = parts.map(|part| s.ledger.allocation(part).unwrap().spec.tenant.clone());
    assert_eq!(of_parts, ["a", "a", "a"]);
}

#[test]
fn a_member_is_added_once_and_removed_once_and_both_are_on_record() {
    let mut s = Story::new(0);
    tenants(&mut s, &["a", "b"]);
    let mut records = s.acted(add("a", account(7), false));
    assert!(s.acted(add("a", account(7), false)).is_empty(), "said again");
    records.extend(s.acted(add("a", account(7), true)));
    assert!(s.acted(add("a", account(7), true)).is_empty() && s.acted(add("a", account(7), false)).is_empty());
    records.extend(s.acted(add("b", account(7), true)));
    records.extend(s.acted(add("a", group(50), false)));
    let wanted = [TenantMember { subject: account(7), is_default: false }, TenantMember { subject: group(50), is_default: false }];
    assert_eq!(s.ledger.tenant_members("a").unwrap(), wanted);
    records.extend(s.acted(remove("a", &account(7))));
    records.extend(s.acted(remove("a", &group(50))));
    let (added, removed) = (AuditAction::TenantMemberAdded, AuditAction::TenantMemberRemoved);
    let wanted = [
        (added, "anna@n1", "user:u7 (uid 7) in a"),
        (added, "anna@n1", "user:u7 (uid 7) in a, its default"),
        (added, "anna@n1", "user:u7 (uid 7) in b, its default instead of a"),
        (added, "anna@n1", "group:g50 (gid 50) in a"),
        (removed, "anna@n1", "user:u7 (uid 7) from a"),
        (removed, "anna@n1", "group:g50 (gid 50) from a, which has none now and takes work from its admins alone"),
    ];
    assert_eq!(shown(&records), wanted);
    let refused = s.act(remove("a", &group(50))).unwrap_err();
    assert_eq!(refused.to_string(), "group:g50 is no member of tenant \"a\"");
    assert!(refused.remedy().is_some());
}

#[test]
fn members_of_what_is_no_tenant_and_those_that_nobody_could_name_are_refused() {
    let mut s = Story::new(0);
    tenants(&mut s, &["a", "b"]);
    for action in [add("c", account(7), false), remove("c", &account(7))] {
        assert!(matches!(s.act(action), Err(Refusal::NoSuchTenant { .. })));
    }
    assert!(matches!(s.ledger.tenant_members("c"), Err(Refusal::NoSuchTenant { .. })));
    assert_eq!(s.ledger.tenant_members("a"), Ok(vec![]));
    for name in ["", "a\nb", &"x".repeat(257)] {
        let subject = Subject::User { name: name.to_owned(), uid: 7 };
        assert!(matches!(s.act(add("a", subject, false)), Err(Refusal::Malformed { .. })), "{name:?}");
    }
    for uid in 0..u32::try_from(MEMBERS_MAX).unwrap() {
        s.done(add("a", account(uid), false));
    }
    assert!(matches!(s.act(add("a", group(50), false)), Err(Refusal::TooMany { what, .. }) if what == "members of tenant \"a\""));
    s.done(add("a", account(7), true));
    // The limit for all tenants together is reached earlier.
    let added = (0..).map_while(|gid| s.act(add("b", group(gid), false)).ok()).count();
    assert!(added > 0 && added < MEMBERS_MAX, "{added}");
    assert!(matches!(s.act(add("b", group(1_000), false)), Err(Refusal::TooMany { what, .. }) if what == "members of tenants"));
}

#[test]
fn the_members_of_a_tenant_go_with_it_and_so_do_its_defaults() {
    let mut s = Story::new(0);
    tenants(&mut s, &["a", "b"]);
    s.done(add("a", account(7), true));
    s.done(add("a", group(50), false));
    s.done(add("b", account(7), false));
    let records = s.acted(Action::DeleteTenant { name: "a".into(), by: "anna@n1".into() });
    assert_eq!(shown(&records), [(AuditAction::TenantDeleted, "anna@n1", "a, with 2 members and 0 admins")]);
    assert_eq!(submit(&mut s, 1, "", &user(7)), not_named(&["b"]), "its default is gone");
    assert_eq!(submit(&mut s, 1, "b", &user(7)), Ok("b".into()));
    tenants(&mut s, &["a"]);
    assert_eq!((s.ledger.tenant_members("a"), submit(&mut s, 2, "a", &user(4))), (Ok(vec![]), Ok("a".into())));
    s.done(remove("b", &account(7)));
    let records = s.acted(Action::Cancel { id: id(1), by: user(7) });
    assert!(!records.is_empty());
    let records = s.acted(Action::DeleteTenant { name: "b".into(), by: "anna@n1".into() });
    assert_eq!(shown(&records), [(AuditAction::TenantDeleted, "anna@n1", "b")]);
}

#[test]
fn a_standing_has_the_roles_the_tenants_that_are_open_and_closed_and_the_default() {
    let mut s = Story::new(0);
    tenants(&mut s, &["open", "own", "physics", "zoology"]);
    s.done(add("physics", account(7), true));
    s.done(add("own", group(60), false));
    s.done(add("zoology", account(1), false));
    s.done(grant(7, Role::TenantAdmin, Some("own")));
    let set = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<BTreeSet<String>>();
    let since = s.ledger.tenant("own").unwrap().since;
    let wanted = Standing {
        roles: Roles { admin_of: set(&["own"]), admin_since: [("own".to_owned(), since)].into(), ..Roles::default() },
        member_of: set(&["own", "physics"]),
        by_role: set(&["own"]),
        closed_to_it: set(&["zoology"]),
        default_tenant: Some("physics".into()),
    };
    assert_eq!(standing(&s, 7, &BTreeSet::new()), wanted);
    s.done(add("own", account(7), false));
    assert_eq!(standing(&s, 7, &BTreeSet::new()), Standing { by_role: set(&[]), ..wanted }, "it is a member, too");
    let stranger = Standing { closed_to_it: set(&["own", "physics", "zoology"]), ..Standing::default() };
    assert_eq!(standing(&s, 4, &BTreeSet::new()), stranger);
    s.done(add("own", account(4), false));
    s.done(add("physics", account(4), false));
    assert_eq!(standing(&s, 4, &BTreeSet::new()).default_tenant, None, "two, and none is the default");
}

#[test]
fn a_login_makes_its_user_a_member_for_one_command_and_sets_no_default() {
    let mut s = Story::new(0);
    tenants(&mut s, &["open", "physics"]);
    s.done(add("physics", account(1), false));
    let login = |name: &str| BTreeSet::from([name.to_owned()]);
    let of_physics = |number: u128| submission(number, of_tenant("physics"), &user(7));
    for refused in [of_physics(1), of_physics(1).by_login(login("open"))] {
        assert!(matches!(s.act(refused), Err(Refusal::NotOfTenant { .. })));
    }
    s.done(of_physics(1).by_login(login("physics")));
    assert_eq!(stored(&s, 1), "physics");
    assert!(s.act(of_physics(2)).is_err(), "the login is not in the ledger");

    let unnamed = |tenant: &str| submission(3, of_tenant(""), &user(7)).by_login(login(tenant));
    assert!(matches!(s.act(unnamed("physics")), Err(Refusal::TenantNotNamed { .. })), "a member without a default");
    s.done(unnamed("open"));
    assert_eq!(stored(&s, 3), "");

    let by_login = standing(&s, 7, &login("physics"));
    assert_eq!((by_login.member_of, by_login.closed_to_it), (login("physics"), BTreeSet::new()));
    let submission = Box::new(grant(7, Role::Operator, None));
    let granted = s.act(Action::SubmitByLogin { tenants: login("physics"), submission });
    assert!(matches!(granted, Err(Refusal::Malformed { .. })));
    let too_many = (0..=LOGIN_TENANTS_MAX).map(|number| format!("t{number}")).collect();
    assert!(matches!(s.act(of_physics(4).by_login(too_many)), Err(Refusal::TooMany { .. })));
}

#[test]
fn only_a_change_of_members_is_the_business_of_a_tenants_admins() {
    let named = SubjectName { is_group: false, name: "u7".into() };
    let change = MemberChange { tenant: "a".into(), step: MemberStep::Remove { subject: named } };
    let removal = Action::SetTenantMember { change, by: "u1".into() };
    assert_eq!((removal.concerns_tenant(), removal.needs_system_admin()), (Some("a"), false));
    assert!(!add("a", account(7), false).needs_system_admin());
    for action in [add("a", account(7), true), add("a", group(50), false), remove("a", &group(50))] {
        assert!(action.needs_system_admin(), "{action:?}");
    }
    assert_eq!(Action::DeleteTenant { name: "a".into(), by: "u1".into() }.concerns_tenant(), None);
}

//! Scenarios of projects: which ones work may name, and whose work each accepts.

use super::scenarios::{Story, id, spec, user};
use super::{Action, AllocationChange, Outcome, QuotaChange, Refusal, SoftLimitsChange, TenantChange};
use lattice_model::access::{Project, ProjectChange, ProjectStep, Subject};
use lattice_model::{AllocationSpec, AuditAction, Principal, RequeuePolicy};

fn account(uid: u32) -> Subject {
    Subject::User { name: user(uid).name, uid }
}

fn change(project: &str, step: ProjectStep) -> Action {
    Action::SetProject { change: ProjectChange { tenant: "physics".into(), project: project.into(), step }, by: "anna@n1".into() }
}

fn add(project: &str, uid: u32) -> Action {
    change(project, ProjectStep::Add { account: account(uid) })
}

/// A ledger with the tenant physics.
fn story() -> Story {
    let mut s = Story::new(0);
    let (max_nodes, max_concurrent_allocations) = (QuotaChange::Keep, QuotaChange::Keep);
    let soft = SoftLimitsChange::default();
    let change = TenantChange { name: "physics".into(), create: true, max_nodes, max_concurrent_allocations, soft, expected_version: None };
    s.done(Action::SetTenant { change, by: "anna@n1".into() });
    s
}

/// Submits work in this project; a dry run gives the same result.
fn submit(s: &mut Story, number: u128, project: &str, owner: &Principal) -> Result<Outcome, Refusal> {
    let spec = AllocationSpec { tenant: "physics".into(), project: project.into(), ..spec(1, RequeuePolicy::Never, 0) };
    let dry = s.ledger.admits_submission(&spec, owner, &[].into(), s.now());
    let result = s.act(Action::Submit { id: id(number), spec: Box::new(spec), owner: owner.clone(), claim: None });
    assert_eq!(dry.err(), result.clone().err());
    result
}

#[test]
fn work_of_a_tenant_with_projects_names_one_of_them_or_none() {
    let mut s = story();
    submit(&mut s, 1, "label", &user(7)).unwrap();
    s.done(change("higgs", ProjectStep::Create));
    s.done(change("higgs", ProjectStep::Create));
    let unknown = Refusal::NoSuchProject { tenant: "physics".into(), project: "label".into() };
    assert_eq!(submit(&mut s, 2, "label", &user(7)), Err(unknown));
    submit(&mut s, 3, "higgs", &user(7)).unwrap();
    submit(&mut s, 4, "", &user(7)).unwrap();
    s.done(change("higgs", ProjectStep::Delete));
    submit(&mut s, 5, "label", &user(7)).unwrap();
    assert!(matches!(s.act(change("higgs", ProjectStep::Delete)), Err(Refusal::NoSuchProject { .. })));
}

#[test]
fn work_gets_no_project_later_that_a_submission_could_not_name() {
    let mut s = story();
    s.done(change("higgs", ProjectStep::Create));
    s.done(add("higgs", 7));
    submit(&mut s, 1, "", &user(7)).unwrap();
    submit(&mut s, 2, "", &user(8)).unwrap();
    let update = |number, by, project: &str| {
        let change = AllocationChange { project: Some(project.to_owned()), ..AllocationChange::default() };
        Action::UpdateAllocation { allocation: id(number), by: user(by), change, as_operator: by == 0 }
    };
    s.done(update(1, 7, "higgs"));
    assert!(matches!(s.act(update(1, 7, "label")), Err(Refusal::NoSuchProject { .. })));
    assert!(matches!(s.act(update(2, 8, "higgs")), Err(Refusal::NotOfProject { .. })));
    assert!(matches!(s.act(update(2, 0, "higgs")), Err(Refusal::NotOfProject { .. })), "the owner counts");
    s.done(update(1, 7, ""));
}

#[test]
fn a_project_takes_work_of_its_members_from_the_first_one_on() {
    let mut s = story();
    s.done(change("higgs", ProjectStep::Create));
    s.done(add("higgs", 7));
    submit(&mut s, 1, "higgs", &user(7)).unwrap();
    let refused = Refusal::NotOfProject { tenant: "physics".into(), project: "higgs".into(), user: "u8".into() };
    assert!(refused.remedy().is_some());
    assert_eq!(submit(&mut s, 2, "higgs", &user(8)), Err(refused));
    let renumbered = Principal { name: "u7".into(), ..user(8) };
    assert!(matches!(submit(&mut s, 2, "higgs", &renumbered), Err(Refusal::NotOfProject { .. })));
    submit(&mut s, 3, "higgs", &user(0)).unwrap();
    let removal = change("higgs", ProjectStep::Remove { account: account(7).name() });
    s.done(removal.clone());
    assert!(matches!(s.act(removal), Err(Refusal::NoSuchProjectMember { .. })));
    assert!(matches!(submit(&mut s, 4, "higgs", &user(7)), Err(Refusal::NotOfProject { .. })), "it stays closed");
    let shown = Project { name: "higgs".into(), is_closed: true, members: vec![] };
    assert_eq!(s.ledger.projects_of("physics"), Ok(vec![shown]));
    // A later tenant of the same name has no projects.
    let deleted = Action::DeleteTenant { name: "physics".into(), by: "anna@n1".into() };
    for number in [1, 3] {
        s.done(Action::Cancel { id: id(number), by: user(0) });
    }
    s.done(deleted);
    assert!(matches!(s.ledger.projects_of("physics"), Err(Refusal::NoSuchTenant { .. })));
    assert!(s.ledger.projects.is_empty());
}

#[test]
fn a_change_of_the_project_is_admitted_as_a_submission_is() {
    let mut s = story();
    for project in ["higgs", "open"] {
        s.done(change(project, ProjectStep::Create));
    }
    s.done(add("higgs", 7));
    submit(&mut s, 1, "", &user(7)).unwrap();
    submit(&mut s, 2, "", &user(8)).unwrap();
    let update = |number: u128, by: u32, project: &str| {
        let change = AllocationChange { project: Some(project.to_owned()), ..AllocationChange::default() };
        Action::UpdateAllocation { allocation: id(number), by: user(by), change, as_operator: false }
    };
    s.done(update(1, 7, "higgs"));
    assert!(matches!(s.act(update(2, 8, "higgs")), Err(Refusal::NotOfProject { .. })));
    assert!(matches!(s.act(update(2, 8, "label")), Err(Refusal::NoSuchProject { .. })));
    s.done(update(2, 8, "open"));
    s.done(update(2, 8, ""));
    // Work keeps its project after its owner has left the project.
    s.done(change("higgs", ProjectStep::Remove { account: account(7).name() }));
    let renamed = AllocationChange { name: Some("other".to_owned()), ..AllocationChange::default() };
    s.done(Action::UpdateAllocation { allocation: id(1), by: user(7), change: renamed, as_operator: false });
    assert_eq!(s.ledger.allocation(id(1)).unwrap().spec.project, "higgs");
}

#[test]
fn malformed_changes_and_too_many_are_refused_and_change_nothing() {
    let mut s = story();
    for project in ["", "a/b", "a\nb"] {
        assert!(matches!(s.act(change(project, ProjectStep::Create)), Err(Refusal::Malformed { .. })), "{project:?}");
    }
    assert!(matches!(s.act(add("higgs", 7)), Err(Refusal::NoSuchProject { .. })));
    s.done(change("higgs", ProjectStep::Create));
    let group = Subject::Group { name: "phys".into(), gid: 50 };
    assert!(matches!(s.act(change("higgs", ProjectStep::Add { account: group })), Err(Refusal::Malformed { .. })));
    for number in 1..10 {
        s.done(change(&format!("p{number}"), ProjectStep::Create));
    }
    assert!(matches!(s.act(change("p10", ProjectStep::Create)), Err(Refusal::TooMany { .. })));
    for uid in 10..20 {
        s.done(add("higgs", uid));
    }
    assert!(matches!(s.act(add("higgs", 20)), Err(Refusal::TooMany { .. })));
    s.done(add("higgs", 19));
    assert_eq!((s.ledger.projects.count(), s.ledger.projects.count_members()), (10, 10));
}

#[test]
fn each_change_is_on_record_and_is_the_business_of_the_tenants_admins() {
    let mut s = story();
    let steps = [
        change("higgs", ProjectStep::Create),
        add("higgs", 7),
        change("higgs", ProjectStep::Remove { account: account(7).name() }),
        change("higgs", ProjectStep::Delete),
    ];
    let wanted = [
        (AuditAction::ProjectCreated, "physics/higgs"),
        (AuditAction::ProjectMemberAdded, "user:u7 (uid 7) in physics/higgs"),
        (AuditAction::ProjectMemberRemoved, "user:u7 (uid 7) from physics/higgs, which has none now and takes no work"),
        (AuditAction::ProjectDeleted, "physics/higgs"),
    ];
    for (step, (action, detail)) in steps.into_iter().zip(wanted) {
        assert_eq!((step.concerns_tenant(), step.needs_system_admin()), (Some("physics"), false));
        let records = s.acted(step);
        assert_eq!(records.len(), 1);
        assert_eq!((records[0].action, records[0].actor.as_str(), records[0].detail.as_str()), (action, "anna@n1", detail));
    }
}

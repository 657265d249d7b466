//! Scenarios of tenants and their quotas.

use super::scenarios::{Story, id, node, spec, user};
use super::{Action, Outcome, QuotaChange, SoftLimitsChange, TenantChange};
use crate::Refusal;
use lattice_model::{AllocationSpec, EndReason, Epoch, Quota, ReportItem, RequeuePolicy, Resources};

fn tenant(name: &str, create: bool, max_nodes: QuotaChange, max_concurrent_allocations: QuotaChange) -> Action {
    Action::SetTenant {
        change: TenantChange {
            name: name.into(),
            create,
            max_nodes,
            max_concurrent_allocations,
            soft: SoftLimitsChange::default(),
            expected_version: None,
        },
        by: "root".into(),
    }
}

fn of_physics(nodes: u32, policy: RequeuePolicy) -> AllocationSpec {
    AllocationSpec { tenant: "physics".into(), ..spec(nodes, policy, 2) }
}

fn submit(number: u128, spec: AllocationSpec) -> Action {
    Action::Submit { id: id(number), spec: Box::new(spec), owner: user(7), claim: None }
}

fn quota(result: Result<Outcome, Refusal>) -> (Quota, u32, u32, u32) {
    match result {
        Err(Refusal::Quota(e)) => (e.quota, e.current, e.requested, e.limit),
        other => panic!("{other:?}"),
    }
}

fn has(s: &Story) -> (u32, u32) {
    let status = s.ledger.tenant_statuses().into_iter().find(|t| t.tenant.name == "physics").unwrap();
    (status.nodes, status.allocations)
}

#[test]
fn what_would_exceed_a_quota_waits_and_is_not_claimed() {
    let mut s = Story::new(5);
    s.done(tenant("physics", true, QuotaChange::AtMost(3), QuotaChange::Keep));
    s.done(submit(1, of_physics(2, RequeuePolicy::Always)));
    s.done(submit(2, of_physics(2, RequeuePolicy::Never)));
    let epoch = s.claimed(1, &[0, 1]);
    assert_eq!(has(&s), (2, 1));
    // Two schedulers race: the second one is refused, and its allocation continues to wait.
    assert_eq!(quota(s.claim(2, &[2, 3])), (Quota::MaxNodes, 2, 2, 3));
    // A submission is accepted although it cannot run now. One that could never run is refused.
    s.done(submit(3, of_physics(2, RequeuePolicy::Never)));
    assert_eq!(quota(s.act(submit(4, of_physics(4, RequeuePolicy::Never)))), (Quota::MaxNodes, 0, 4, 3));
    s.done(submit(4, of_physics(1, RequeuePolicy::Never)));
    // Other tenants are not affected.
    s.submit(5, 1, RequeuePolicy::Never, 0);
    s.claimed(5, &[2]);
    // An allocation that ends or is requeued no longer counts.
    s.report(0, ReportItem::Ended { allocation: id(1), epoch, reason: EndReason::Exited { code: 1 } });
    assert_eq!(has(&s), (0, 0));
    for number in [0, 1] {
        s.report(number, ReportItem::Released { allocation: id(1), epoch, usage: None });
    }
    let epoch: Epoch = s.claimed(2, &[0, 1]);
    assert_eq!(quota(s.claim(1, &[3, 4])), (Quota::MaxNodes, 2, 2, 3));
    s.report(0, ReportItem::Ended { allocation: id(2), epoch, reason: EndReason::Exited { code: 0 } });
    assert_eq!(has(&s), (0, 0));
}

#[test]
fn a_quota_that_is_lowered_ends_nothing_and_keeps_new_work_off() {
    let mut s = Story::new(4);
    s.done(tenant("physics", true, QuotaChange::AtMost(4), QuotaChange::AtMost(2)));
    for number in [1, 2] {
        s.done(submit(number, of_physics(1, RequeuePolicy::Never)));
    }
    let epoch = s.claimed(1, &[0]);
    s.claimed(2, &[1]);
    s.done(submit(3, of_physics(1, RequeuePolicy::Never)));
    assert_eq!(quota(s.claim(3, &[2])), (Quota::MaxConcurrentAllocations, 2, 1, 2));
    s.done(tenant("physics", false, QuotaChange::AtMost(1), QuotaChange::Unlimited));
    assert_eq!(has(&s), (2, 2));
    let refused = s.claim(3, &[2]);
    assert!(
        refused.clone().unwrap_err().to_string().contains("exceeds max_nodes quota (current: 2, requested: 1, limit: 1)"),
        "{refused:?}"
    );
    assert!(refused.unwrap_err().remedy().is_some());
    s.report(0, ReportItem::Ended { allocation: id(1), epoch, reason: EndReason::Exited { code: 0 } });
    assert_eq!(has(&s), (1, 1));
    s.done(tenant("physics", false, QuotaChange::Unlimited, QuotaChange::Keep));
    s.done(submit(4, of_physics(3, RequeuePolicy::Never)));
    s.done(tenant("physics", false, QuotaChange::Keep, QuotaChange::AtMost(0)));
    assert_eq!(quota(s.act(submit(5, of_physics(1, RequeuePolicy::Never)))), (Quota::MaxConcurrentAllocations, 0, 1, 0));
}

#[test]
fn a_tenant_that_does_not_exist_is_refused_where_there_are_any() {
    let mut s = Story::new(1);
    let of = |tenant: &str| AllocationSpec { tenant: tenant.into(), ..spec(1, RequeuePolicy::Never, 0) };
    s.done(submit(1, of("physx")));
    s.done(tenant("physics", true, QuotaChange::Keep, QuotaChange::Keep));
    let refused = s.act(submit(2, of("physx"))).unwrap_err();
    assert_eq!(refused.to_string(), "there is no tenant \"physx\"; did you mean \"physics\"?");
    assert!(refused.remedy().is_some());
    assert_eq!(s.act(submit(2, of("zoology"))).unwrap_err().to_string(), "there is no tenant \"zoology\"");
    s.done(submit(2, of("")));
    s.done(submit(3, of("physics")));
}

#[test]
fn shares_of_one_node_are_one_node() {
    let mut s = Story::new(2);
    s.done(tenant("physics", true, QuotaChange::AtMost(1), QuotaChange::Keep));
    let size = s.ledger.node(&node(0)).unwrap().size;
    let half = Resources { cores: size.cores / 2, memory_bytes: size.memory_bytes / 2, gpus: size.gpus / 2 };
    for number in 1..=3 {
        s.done(submit(number, AllocationSpec { share: Some(half), ..of_physics(1, RequeuePolicy::Never) }));
    }
    s.claimed_share(1, 0, half);
    assert_eq!(quota(s.claim_share(2, 1, half)), (Quota::MaxNodes, 1, 1, 1));
    s.claimed_share(2, 0, half);
    assert_eq!(has(&s), (1, 2));
}

#[test]
fn tenants_are_made_once_changed_and_deleted_when_they_have_no_work() {
    let mut s = Story::new(1);
    let create = tenant("physics", true, QuotaChange::AtMost(3), QuotaChange::Keep);
    assert!(matches!(s.act(tenant("physics", false, QuotaChange::Keep, QuotaChange::Keep)), Err(Refusal::NoSuchTenant { .. })));
    s.done(create.clone());
    let revision = s.ledger.tenant("physics").unwrap().revision;
    s.done(create);
    assert_eq!(s.ledger.tenant("physics").unwrap().revision, revision, "said again");
    assert!(matches!(s.act(tenant("physics", true, QuotaChange::AtMost(4), QuotaChange::Keep)), Err(Refusal::TenantExists { .. })));
    for name in ["", "a\nb", &"x".repeat(129)] {
        assert!(matches!(s.act(tenant(name, true, QuotaChange::Keep, QuotaChange::Keep)), Err(Refusal::Malformed { .. })), "{name:?}");
    }
    s.done(submit(1, of_physics(1, RequeuePolicy::Never)));
    let delete = Action::DeleteTenant { name: "physics".into(), by: "root".into() };
    assert!(matches!(s.act(delete.clone()), Err(Refusal::TenantHasWork { live: 1, .. })));
    s.done(Action::Cancel { id: id(1), by: user(7) });
    s.done(delete.clone());
    assert!(matches!(s.act(delete), Err(Refusal::NoSuchTenant { .. })));
}

#[test]
fn of_two_changes_of_one_version_of_a_tenant_the_first_is_made() {
    let mut s = Story::new(1);
    s.done(tenant("physics", true, QuotaChange::AtMost(3), QuotaChange::Keep));
    let read = s.ledger.tenant("physics").unwrap().revision.0;
    let change_if = |nodes, expected| match tenant("physics", false, QuotaChange::AtMost(nodes), QuotaChange::Keep) {
        Action::SetTenant { change, by } => Action::SetTenant { change: TenantChange { expected_version: Some(expected), ..change }, by },
        other => panic!("{other:?}"),
    };
    s.done(change_if(4, read));
    let version = s.ledger.tenant("physics").unwrap().revision.0;
    let what = "tenant \"physics\"".to_owned();
    assert_eq!(s.act(change_if(5, read)), Err(Refusal::OtherVersion { what, expected: read, version }));
    assert!(s.acted(change_if(4, read)).is_empty(), "the answer was lost");
    assert_eq!(s.ledger.tenant("physics").unwrap().max_nodes, Some(4));
    s.done(change_if(5, version));
    assert_eq!(s.ledger.tenant("physics").unwrap().max_nodes, Some(5));
}

//! Scenarios of the share policy: whose shares may be on one node.

use super::scenarios::{LimitsChange, SIZE, Story, id, node, released, spec, user};
use super::{Action, Outcome, QuotaChange, Refusal, SoftLimitsChange, TenantChange};
use lattice_model::spec::share_of;
use lattice_model::{
    AllocationId, AllocationSpec, AllocationState, EndReason, ReportItem, RequeuePolicy, Resources, SharePolicy, WorkOwner,
};

const CORES: Resources = Resources { cores: 2, memory_bytes: 0, gpus: 0 };

fn policy(share_policy: SharePolicy) -> Action {
    LimitsChange { share_policy: Some(share_policy), ..LimitsChange::default() }.by("root")
}

/// Submits work that needs two cores of a node and is requeued if it fails.
fn submit(s: &mut Story, number: u128, tenant: &str, uid: u32) {
    let spec = AllocationSpec { share: Some(CORES), tenant: tenant.into(), ..spec(1, RequeuePolicy::Always, 9) };
    s.done(Action::Submit { id: id(number), spec: Box::new(spec), owner: user(uid), claim: None });
}

fn claim(s: &mut Story, number: u128, on: u8) -> Result<Outcome, Refusal> {
    s.claim_share(number, on, share_of(&CORES, &SIZE))
}

fn conflict(result: Result<Outcome, Refusal>) -> (Option<AllocationId>, String) {
    match result {
        Err(Refusal::Conflict { conflicts }) => (conflicts[0].holder, conflicts[0].why.clone()),
        other => panic!("{other:?}"),
    }
}

/// Work 1 belongs to a user of physics, 2 to another one, 3 to the first user under another tenant, 4 and 5 to
/// the two users without a tenant; work 1 is on node 0.
fn one_of_five_is_placed(share_policy: SharePolicy) -> Story {
    let mut s = Story::new(2);
    for tenant in ["physics", "chemistry"] {
        let (max_nodes, max_concurrent_allocations, soft) = (QuotaChange::Keep, QuotaChange::Keep, SoftLimitsChange::default());
        let change =
            TenantChange { name: tenant.into(), create: true, max_nodes, max_concurrent_allocations, soft, expected_version: None };
        s.done(Action::SetTenant { change, by: "root".into() });
    }
    s.done(policy(share_policy));
    for (number, tenant, uid) in [(1, "physics", 7), (2, "physics", 8), (3, "chemistry", 7), (4, "", 7), (5, "", 8)] {
        submit(&mut s, number, tenant, uid);
    }
    claim(&mut s, 1, 0).unwrap();
    s
}

#[test]
fn a_claim_beside_a_share_that_the_policy_keeps_apart_is_refused_with_the_reason() {
    let mut s = one_of_five_is_placed(SharePolicy::Tenant);
    let epoch = s.ledger.allocation(id(1)).unwrap().epoch;
    let holds = |work: &str, rule: &str| {
        let why = format!("holds {work}, allocation {} (epoch {epoch}): by the share policy {rule}", id(1));
        (Some(id(1)), why)
    };
    let of_one_tenant = "a node holds shares of one tenant at a time";
    for number in [3, 4, 5] {
        assert_eq!(conflict(claim(&mut s, number, 0)), holds("work of another tenant", of_one_tenant));
    }
    claim(&mut s, 2, 0).unwrap();
    // Work without a tenant shares a node only with other such work of its user.
    claim(&mut s, 4, 1).unwrap();
    assert!(conflict(claim(&mut s, 3, 1)).1.starts_with("holds work without a tenant"));
    assert!(conflict(claim(&mut s, 5, 1)).1.starts_with("holds work of another user"));

    let mut s = one_of_five_is_placed(SharePolicy::User);
    for number in [2, 5] {
        assert_eq!(conflict(claim(&mut s, number, 0)), holds("work of another user", "a node holds shares of one user at a time"));
    }
    claim(&mut s, 3, 0).unwrap();
    claim(&mut s, 4, 0).unwrap();

    let mut s = one_of_five_is_placed(SharePolicy::Anyone);
    for number in 2..=4 {
        claim(&mut s, number, 0).unwrap();
    }
}

#[test]
fn a_share_counts_until_its_node_has_released_it() {
    let mut s = one_of_five_is_placed(SharePolicy::Tenant);
    let epoch = s.ledger.allocation(id(1)).unwrap().epoch;
    s.report(0, ReportItem::Ended { allocation: id(1), epoch, reason: EndReason::Exited { code: 1 } });
    assert_eq!(s.state(1), AllocationState::Pending, "it was requeued, and its processes may still be there");
    // Schedulers do not get the ended record, so the node's record has the owner.
    s.done(Action::Cancel { id: id(1), by: user(7) });
    let leaving = &s.ledger.node(&node(0)).unwrap().leaving;
    assert_eq!(leaving[0].owner, Some(WorkOwner { uid: 7, tenant: "physics".into(), is_exclusive: false }));
    assert_eq!(conflict(claim(&mut s, 3, 0)).0, Some(id(1)));
    claim(&mut s, 2, 0).unwrap();
    s.report(0, released(1, epoch));
    assert_eq!(conflict(claim(&mut s, 3, 0)).0, Some(id(2)));
    s.done(Action::Cancel { id: id(2), by: user(8) });
    assert_eq!(conflict(claim(&mut s, 3, 0)).0, Some(id(2)), "not before it was released");
    let epoch = s.ledger.allocation(id(2)).unwrap().epoch;
    s.report(0, released(2, epoch));
    claim(&mut s, 3, 0).unwrap();
}

#[test]
fn a_policy_ends_nothing_and_a_mixed_node_takes_no_more_until_one_owner_is_left() {
    let mut s = one_of_five_is_placed(SharePolicy::Anyone);
    claim(&mut s, 3, 0).unwrap();
    let records = s.acted(policy(SharePolicy::Tenant));
    assert_eq!(records[0].detail, "sensitive_pool_size unlimited, share_policy tenant");
    assert!(s.acted(policy(SharePolicy::Tenant)).is_empty(), "a repetition changes nothing");
    assert_eq!(s.ledger.holdings(&node(0)).len(), 2, "both go on");
    // Neither tenant gets more of the node.
    assert_eq!(conflict(claim(&mut s, 2, 0)).0, Some(id(3)));
    let epoch = s.ledger.allocation(id(3)).unwrap().epoch;
    s.done(Action::Cancel { id: id(3), by: user(7) });
    s.report(0, released(3, epoch));
    claim(&mut s, 2, 0).unwrap();
    // The policy is part of a snapshot.
    let restored: super::Ledger = rmp_serde::from_slice(&rmp_serde::to_vec_named(&s.ledger).unwrap()).unwrap();
    assert_eq!(restored.cluster_limits().share_policy, SharePolicy::Tenant);
    s.ledger = restored;
    assert_eq!(conflict(claim(&mut s, 5, 0)).0, Some(id(1)));
    s.done(policy(SharePolicy::Anyone));
    claim(&mut s, 5, 0).unwrap();
}

#[test]
fn exclusive_work_is_beside_its_users_work_alone_and_no_other_comes_beside_it() {
    let mut s = Story::new(2);
    for (number, uid, exclusive_user) in [(1, 7, true), (2, 8, false), (3, 7, false), (4, 8, true)] {
        let spec = AllocationSpec { share: Some(CORES), exclusive_user, ..spec(1, RequeuePolicy::Always, 9) };
        s.done(Action::Submit { id: id(number), spec: Box::new(spec), owner: user(uid), claim: None });
    }
    claim(&mut s, 1, 0).unwrap();
    let (holder, why) = conflict(claim(&mut s, 2, 0));
    assert!(holder == Some(id(1)) && why.contains("work that shares a node only with its user's"), "{why}");
    assert!(why.ends_with("--exclusive=user keeps the two apart"), "{why}");
    claim(&mut s, 2, 1).unwrap();
    claim(&mut s, 4, 1).unwrap();
    claim(&mut s, 3, 0).unwrap();
}

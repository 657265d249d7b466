//! Scenarios of vClusters.

use super::scenarios::{Story, id, node, spec, user};
use super::{Action, AllocationChange, Outcome, PreemptFor, SCHEDULER_LEASE, VClusterChange, WeightsChange, scheduler_lease};
use crate::{Refusal, Requester, UpdateRefusal};
use lattice_model::{AllocationSpec, AllocationState, Factor, PreemptCause, RequeuePolicy, SchedulerKind, Weight};

fn change(name: &str, tenant: Option<&str>, nodes: Option<&[u8]>) -> VClusterChange {
    let nodes = nodes.map(|numbers| numbers.iter().map(|n| node(*n)).collect());
    VClusterChange { name: name.into(), tenant: tenant.map(str::to_owned), nodes, ..VClusterChange::default() }
}

fn create(name: &str, tenant: &str, nodes: &[u8]) -> Action {
    let change = VClusterChange { create: Some(SchedulerKind::InteractiveFifo), ..change(name, Some(tenant), Some(nodes)) };
    Action::SetVCluster { change, by: "root".into() }
}

fn set(name: &str, tenant: Option<&str>, nodes: Option<&[u8]>) -> Action {
    Action::SetVCluster { change: change(name, tenant, nodes), by: "root".into() }
}

fn delete(name: &str) -> Action {
    Action::DeleteVCluster { name: name.into(), by: "root".into() }
}

fn submit(number: u128, nodes: u32, vcluster: &str, tenant: &str) -> Action {
    let spec = AllocationSpec { vcluster: vcluster.into(), tenant: tenant.into(), ..spec(nodes, RequeuePolicy::Never, 0) };
    Action::Submit { id: id(number), spec: Box::new(spec), owner: user(7), claim: None }
}

fn serve(s: &mut Story, vcluster: &str, by: u8) -> u64 {
    let lease = Action::GrantLease { name: scheduler_lease(vcluster), holder: node(by), ttl_ms: 1000, user: None };
    match s.act(lease) {
        Ok(Outcome::Leased { token }) => token,
        other => panic!("{other:?}"),
    }
}

fn claim_under(s: &mut Story, token: u64, number: u128, nodes: &[u8]) -> Result<Outcome, Refusal> {
    let before = std::mem::replace(&mut s.token, token);
    let result = s.claim(number, nodes);
    s.token = before;
    result
}

#[test]
fn what_a_change_contains_decides_which_methods_may_ask_for_it() {
    let methods = |change: VClusterChange| match (Action::SetVCluster { change, by: "root".into() }).requester() {
        Requester::Operator(_, methods) => methods,
        other => panic!("{other:?}"),
    };
    let none = || change("small", None, None);
    let weights = || WeightsChange { reset: true, ..WeightsChange::default() };
    let (of_creation, of_config) = (["VClusterService/Create"], ["VClusterService/SetConfig", "VClusterService/Create"]);
    let of_weights = ["VClusterService/SetWeights", "VClusterService/SetConfig", "VClusterService/Create"];
    assert_eq!(methods(none()), of_weights, "it changes nothing");
    assert_eq!(methods(VClusterChange { weights: weights(), ..none() }), of_weights);
    for config in [
        change("small", Some(""), None),
        change("small", None, Some(&[])),
        VClusterChange { cycle_interval_ms: Some(1), ..none() },
        VClusterChange { borrows: Some(false), ..none() },
        VClusterChange { lend_ms: Some(0), ..none() },
    ] {
        assert_eq!(methods(config.clone()), of_config, "{config:?}");
        assert_eq!(methods(VClusterChange { weights: weights(), ..config.clone() }), of_config, "{config:?}");
        assert_eq!(methods(VClusterChange { create: Some(SchedulerKind::InteractiveFifo), ..config }), of_creation);
    }
    assert_eq!(methods(VClusterChange { create: Some(SchedulerKind::InteractiveFifo), ..none() }), of_creation);
}

#[test]
fn each_queue_is_claimed_for_under_its_own_lease_and_on_its_own_nodes() {
    let mut s = Story::new(4);
    s.done(create("small", "", &[2, 3]));
    let token = serve(&mut s, "small", 1);
    s.done(submit(1, 1, "small", ""));
    s.done(submit(2, 1, "", ""));
    // The token of the default vCluster's lease is not valid for vCluster small, and vice versa.
    assert!(matches!(s.claim(1, &[2]), Err(Refusal::StaleLease { name, .. }) if name == scheduler_lease("small")));
    assert!(matches!(claim_under(&mut s, token, 2, &[0]), Err(Refusal::StaleLease { name, .. }) if name == SCHEDULER_LEASE));
    let conflict = |result: Result<Outcome, Refusal>| match result {
        Err(Refusal::Conflict { conflicts }) => conflicts[0].why.clone(),
        other => panic!("{other:?}"),
    };
    let why = conflict(claim_under(&mut s, token, 1, &[0]));
    assert_eq!(why, "is of vCluster default; small has nodes of its own");
    assert_eq!(conflict(s.claim(2, &[2])), "is of vCluster small, not of default");
    assert!(matches!(claim_under(&mut s, token, 1, &[2]), Ok(Outcome::Claimed { .. })));
    s.claimed(2, &[0]);
    // Work of a vCluster without nodes of its own is placed on the default's nodes.
    s.done(create("guests", "", &[]));
    let token = serve(&mut s, "guests", 0);
    s.done(submit(3, 1, "guests", ""));
    assert_eq!(conflict(claim_under(&mut s, token, 3, &[3])), "is of vCluster small, not of guests");
    assert!(matches!(claim_under(&mut s, token, 3, &[1]), Ok(Outcome::Claimed { .. })));
}

#[test]
fn a_label_of_none_is_refused() {
    let mut s = Story::new(2);
    match s.act(submit(2, 1, "batch", "")) {
        Err(refusal @ Refusal::NoSuchVCluster { .. }) => {
            assert_eq!(refusal.to_string(), "vCluster \"batch\" not found; there are default");
            assert!(refusal.remedy().is_some());
        }
        other => panic!("{other:?}"),
    }
    s.done(submit(3, 1, "default", ""));
    s.claimed(3, &[1]);
    let refused = s.act(Action::GrantLease { name: scheduler_lease("batch"), holder: node(0), ttl_ms: 1000, user: None });
    assert!(matches!(refused, Err(Refusal::NoSuchVCluster { .. })), "a lease of no queue");
}

#[test]
fn work_of_another_tenant_is_refused() {
    let mut s = Story::new(1);
    s.done(create("physics", "physics", &[]));
    for (number, tenant) in [(1, "biology"), (2, "")] {
        let refused = s.act(submit(number, 1, "physics", tenant)).unwrap_err();
        assert!(matches!(refused, Refusal::VClusterOfTenant { .. }) && refused.to_string().contains("\"physics\" alone"), "{refused}");
    }
    s.done(submit(3, 1, "physics", "physics"));
    s.done(set("physics", Some(""), None));
    s.done(submit(2, 1, "physics", ""));
}

#[test]
fn homes_follow_what_is_set_and_a_vcluster_with_work_stays() {
    let mut s = Story::new(4);
    let home = |s: &Story, number| s.ledger.node(&node(number)).unwrap().home.clone();
    s.done(create("small", "", &[1, 2]));
    let revision = s.ledger.vcluster("small").unwrap().revision;
    s.done(create("small", "", &[2, 1]));
    assert_eq!(s.ledger.vcluster("small").unwrap().revision, revision, "said again");
    assert!(matches!(s.act(create("small", "", &[1])), Err(Refusal::VClusterExists { .. })));
    assert!(matches!(s.act(create("other", "", &[2])), Err(Refusal::NodeHasHome { vcluster, .. }) if vcluster == "small"));
    assert!(matches!(s.act(create("other", "", &[7])), Err(Refusal::NoSuchNode { .. })));
    assert!(matches!(s.act(set("none", None, Some(&[1]))), Err(Refusal::NoSuchVCluster { .. })));
    for name in ["default", "", "a b", "a/b", &"x".repeat(65)] {
        assert!(matches!(s.act(create(name, "", &[])), Err(Refusal::Malformed { .. })), "{name:?}");
    }
    s.done(set("small", None, Some(&[2, 3])));
    assert_eq!([0, 1, 2, 3].map(|n| home(&s, n)), ["", "", "small", "small"]);
    s.done(create("other", "", &[1]));
    let token = serve(&mut s, "small", 0);
    s.done(submit(1, 1, "small", ""));
    let of = |s: &Story, name: &str| {
        let all = s.ledger.vcluster_statuses();
        let found = all.into_iter().find(|v| v.vcluster.name == name).unwrap();
        (found.nodes.len(), found.pending, found.running, found.served_by)
    };
    assert_eq!(of(&s, "small"), (2, 1, 0, Some(node(0))));
    assert!(matches!(s.act(delete("small")), Err(Refusal::VClusterHasWork { live: 1, .. })));
    assert!(matches!(claim_under(&mut s, token, 1, &[2]), Ok(Outcome::Claimed { .. })));
    assert_eq!((of(&s, "small"), of(&s, "default")), ((2, 0, 1, Some(node(0))), (1, 0, 0, Some(node(0)))));
    s.done(Action::Cancel { id: id(1), by: user(7) });
    assert_eq!(s.ledger.allocation(id(1)).unwrap().state, AllocationState::Cancelled);
    s.done(delete("small"));
    assert_eq!([1, 2, 3].map(|n| home(&s, n)), ["other", "", ""]);
    assert!(s.ledger.lease(&scheduler_lease("small")).is_none(), "its lease goes with it");
    assert!(matches!(s.act(delete("small")), Err(Refusal::NoSuchVCluster { .. })));
    assert!(matches!(s.act(delete("default")), Err(Refusal::Malformed { .. })));
}

#[test]
fn there_are_so_many_and_no_more() {
    let mut s = Story::new(0);
    for number in 0..256 {
        s.done(create(&format!("v{number}"), "", &[]));
    }
    assert!(matches!(s.act(create("more", "", &[])), Err(Refusal::TooMany { most: 256, .. })));
    let refused = s.act(submit(1, 1, "more", "")).unwrap_err().to_string();
    assert!(refused.ends_with("and 241 more"), "{refused}");
}

/// n0 and n1 belong to `lender`, n2 and n3 to `borrower`. Returns the tokens of both leases.
fn lending(s: &mut Story) -> (u64, u64) {
    s.done(create("lender", "", &[0, 1]));
    s.done(create("borrower", "", &[2, 3]));
    let set = |name: &str, borrows, lend_ms| {
        let change = VClusterChange { borrows, lend_ms, ..change(name, None, None) };
        Action::SetVCluster { change, by: "root".into() }
    };
    s.done(set("borrower", Some(true), None));
    s.done(set("lender", None, Some(3_600_000)));
    (serve(s, "lender", 0), serve(s, "borrower", 2))
}

fn submit_to(s: &mut Story, number: u128, vcluster: &str, nodes: u32, change: impl Fn(&mut AllocationSpec)) {
    let mut spec = AllocationSpec { vcluster: vcluster.into(), ..spec(nodes, RequeuePolicy::Always, 3) };
    change(&mut spec);
    s.done(Action::Submit { id: id(number), spec: Box::new(spec), owner: user(7), claim: None });
}

#[test]
fn nodes_are_claimed_for_work_of_another_vcluster_where_they_are_lent_to_it() {
    let mut s = Story::new(4);
    let (_, token) = lending(&mut s);
    submit_to(&mut s, 1, "borrower", 3, |_| {});
    submit_to(&mut s, 2, "borrower", 1, |spec| spec.requeue = RequeuePolicy::Never);
    submit_to(&mut s, 3, "borrower", 1, |spec| spec.walltime = Some(std::time::Duration::from_secs(3601)));
    submit_to(&mut s, 4, "borrower", 1, |spec| spec.walltime = None);
    for number in 2..=4 {
        assert!(matches!(claim_under(&mut s, token, number, &[0]), Err(Refusal::Conflict { .. })), "{number}");
    }
    claim_under(&mut s, token, 1, &[2, 3, 0]).unwrap();
    let none = VClusterChange { lend_ms: Some(0), ..change("lender", None, None) };
    s.done(Action::SetVCluster { change: none, by: "root".into() });
    submit_to(&mut s, 5, "borrower", 1, |_| {});
    assert!(matches!(claim_under(&mut s, token, 5, &[1]), Err(Refusal::Conflict { .. })), "nothing is lent any more");
    let too_long = VClusterChange { lend_ms: Some(u64::MAX), ..change("lender", None, None) };
    let refused = s.act(Action::SetVCluster { change: too_long, by: "root".into() });
    assert!(matches!(refused, Err(Refusal::Malformed { .. })));
}

#[test]
fn lent_nodes_are_given_back_to_work_of_their_vcluster_whatever_its_class_and_own_ones_are_not() {
    let mut s = Story::new(4);
    let (lender, token) = lending(&mut s);
    submit_to(&mut s, 1, "borrower", 1, |spec| spec.preemption_class = 6);
    submit_to(&mut s, 2, "borrower", 1, |spec| spec.preemption_class = 6);
    submit_to(&mut s, 3, "lender", 2, |spec| spec.preemption_class = 2);
    let epoch = |s: &Story, number| s.ledger.allocation(id(number)).unwrap().epoch;
    claim_under(&mut s, token, 1, &[0]).unwrap();
    claim_under(&mut s, token, 2, &[2]).unwrap();
    let order = |s: &Story, number, lease_token| {
        Action::PreemptFor(PreemptFor { beneficiary: id(3), victims: vec![(id(number), epoch(s, number))], lease_token, deadline_ms: 1000 })
    };
    let own = order(&s, 2, lender);
    assert!(matches!(s.act(own), Err(Refusal::NotPreemptible { .. })));
    let foreign = order(&s, 1, token);
    assert!(matches!(s.act(foreign), Err(Refusal::StaleLease { .. })));
    let lent = order(&s, 1, lender);
    s.done(lent);
    let ordered = s.ledger.allocation(id(1)).unwrap().preemption.clone().unwrap();
    let reason = format!("vCluster lender needs the nodes that it lent, for allocation {}", id(3).short());
    assert_eq!((ordered.cause, ordered.reason), (PreemptCause::Reclaim, reason));
}

#[test]
fn work_with_lent_nodes_stays_work_that_they_are_lent_to() {
    let mut s = Story::new(4);
    let (_, token) = lending(&mut s);
    submit_to(&mut s, 1, "borrower", 1, |_| {});
    submit_to(&mut s, 2, "borrower", 1, |_| {});
    claim_under(&mut s, token, 1, &[0]).unwrap();
    claim_under(&mut s, token, 2, &[2]).unwrap();
    let update = |number, walltime_s: Option<u64>, preemption_class| {
        let walltime = walltime_s.map(std::time::Duration::from_secs);
        let change = AllocationChange { walltime, preemption_class, ..AllocationChange::default() };
        Action::UpdateAllocation { allocation: id(number), by: user(0), change, as_operator: true }
    };
    for (walltime_s, class) in [(Some(3601), None), (None, Some(10)), (Some(3600), Some(7))] {
        let why = UpdateRefusal::NodesAreLent { lender: "lender".into() };
        assert_eq!(s.act(update(1, walltime_s, class)), Err(Refusal::Update { id: id(1), why }));
        s.done(update(2, walltime_s, class));
    }
    s.done(update(1, Some(3600), Some(6)));
    // After the lender has stopped lending, it still gets them back as it could expect.
    let none = VClusterChange { lend_ms: Some(0), ..change("lender", None, None) };
    s.done(Action::SetVCluster { change: none, by: "root".into() });
    assert!(matches!(s.act(update(1, None, Some(7))), Err(Refusal::Update { .. })));
    s.done(update(1, Some(3000), Some(5)));
}

#[test]
fn of_two_changes_of_one_version_of_a_vcluster_the_first_is_made() {
    let mut s = Story::new(2);
    let version = |s: &Story, name: &str| {
        let all = s.ledger.vcluster_statuses();
        all.iter().find(|status| status.vcluster.name == name).unwrap().vcluster.revision.0
    };
    s.done(create("small", "", &[0]));
    // The default one has no record before its first change.
    assert_eq!(version(&s, "default"), 0);
    for name in ["small", "default"] {
        let read = version(&s, name);
        let borrowing = |borrows, expected| {
            let change = VClusterChange { borrows: Some(borrows), expected_version: Some(expected), ..change(name, None, None) };
            Action::SetVCluster { change, by: "root".into() }
        };
        s.done(borrowing(true, read));
        let now = version(&s, name);
        let what = format!("vCluster {name}");
        assert_eq!(s.act(borrowing(false, read)), Err(Refusal::OtherVersion { what, expected: read, version: now }));
        assert!(s.acted(borrowing(true, read)).is_empty(), "the answer was lost");
        s.done(borrowing(false, now));
    }
    let read = version(&s, "default");
    let weights = WeightsChange { reset: false, set: [(Factor::FairShare, Weight::new(0.5).unwrap())].into() };
    let weighing = VClusterChange { weights, expected_version: Some(read - 1), ..change("default", None, None) };
    let refused = s.act(Action::SetVCluster { change: weighing, by: "root".into() });
    assert!(matches!(refused, Err(Refusal::OtherVersion { .. })), "{refused:?}");
}

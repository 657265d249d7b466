use super::*;
use lattice_model::test_builders::spec_of;
use lattice_model::{
    AllocationId, AllocationSpec, AllocationState, DEFAULT_VCLUSTER, Dependencies, DependencyCondition, Epoch, Exclusion, LaneOf, Leaving,
    Node, NodeId, NodeState, Parent, ParentState, Resources, Revision, SchedulerKind, Share, SharePhase, TaskGroup, Tenant, Timestamp,
    VCluster, VniPool, test_builders,
};
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};

pub(crate) fn id(n: u64) -> AllocationId {
    format!("00000000-0000-4000-8000-{n:012x}").parse().unwrap()
}

pub(crate) fn node(n: u64, state: NodeState) -> Node {
    Node { hold_revision: Revision(n), revision: Revision(n), ..test_builders::node(&format!("n{n}"), state) }
}

fn excluded(node: &str) -> Exclusion {
    Exclusion { node: node.parse().unwrap(), why: "x".into(), failures: 1, until: Some(Timestamp(60_000)) }
}

pub(crate) fn pending(n: u64, nodes: u32, at: u64) -> Allocation {
    let mut allocation = test_builders::allocation(id(n));
    allocation.submitted_at = Timestamp(at);
    spec_of(&mut allocation).nodes = nodes;
    allocation
}

pub(crate) fn view(nodes: u64, allocations: Vec<Allocation>) -> View {
    let nodes: Table<_, _> = (1..=nodes).map(|n| node(n, NodeState::Ready)).map(|n| (n.id.clone(), n)).collect();
    let alive = nodes.keys().cloned().collect();
    let allocations = allocations.into_iter().map(|a| (a.id, a)).collect();
    View { nodes, allocations, alive, gossips_since: NOW, ..View::default() }
}

/// When the tests plan, an hour after the first moment.
pub(crate) const NOW: Timestamp = Timestamp(3_600_000);

/// What `look` finds in the plan of a state that is made from this view.
pub(crate) fn with_plan<R>(view: &View, now: Timestamp, look: impl FnOnce(&Plan<'_>) -> R) -> R {
    let state = State::from(view.clone());
    let plan = plan(&state, now);
    look(&plan)
}

fn place(view: &View, token_of: impl Fn(&str) -> Option<u64>) -> Vec<Claim> {
    with_plan(view, NOW, |plan| plan.claims(token_of))
}

fn explain(view: &View, allocation: &Allocation) -> Explanation {
    crate::explain(view, allocation, NOW)
}

fn obstacle(view: &View, allocation: &Allocation) -> Option<String> {
    Outlook::of(view, NOW).get(&allocation.id)?.obstacle.clone()
}

/// The same view with all allocations in a queue that is first come, first served.
fn in_fifo(mut view: View) -> View {
    view.vclusters.insert("fifo".into(), vcluster("fifo", SchedulerKind::InteractiveFifo, 0));
    for allocation in view.allocations.values_mut() {
        spec_of(allocation).vcluster = "fifo".into();
    }
    view
}

pub(crate) fn vcluster(name: &str, scheduler: SchedulerKind, nodes: u32) -> VCluster {
    VCluster {
        name: name.into(),
        scheduler,
        tenant: String::new(),
        nodes,
        weights: None,
        cycle_interval_ms: 0,
        borrows: false,
        lend_ms: None,
        created_by: "root".into(),
        created_at: Timestamp(0),
        revision: Revision(1),
    }
}

pub(crate) fn placed(view: &View) -> Vec<(AllocationId, Vec<String>)> {
    place(view, |_| Some(7)).into_iter().map(|c| (c.allocation, c.shares.iter().map(|s| s.node.to_string()).collect())).collect()
}

/// The claim for an allocation that is about to be submitted, by a new state.
pub(crate) fn newcomer(view: &View, newcomer: Allocation) -> Option<Claim> {
    place_newcomer(&mut State::default(), view.clone(), newcomer, 1)
}

#[test]
fn first_come_first_served() {
    let v = view(3, vec![pending(1, 2, 20), pending(2, 1, 10), pending(3, 1, 30)]);
    assert_eq!(placed(&v), [(id(2), vec!["n1".into()]), (id(1), vec!["n2".into(), "n3".into()])]);
}

#[test]
fn a_newcomer_is_placed_at_once_if_nobody_waits_and_it_fits() {
    let claimed = |view: &View, nodes| newcomer(view, pending(9, nodes, 9)).map(|c| (c.allocation, c.shares.len()));
    assert_eq!(claimed(&view(2, vec![]), 2), Some((id(9), 2)));
    assert_eq!(claimed(&view(2, vec![]), 3), None);
    assert_eq!(claimed(&view(2, vec![pending(1, 1, 1)]), 1), None, "one that came before is served first");
    // A state that is used again has no work that was not submitted.
    let (v, mut state) = (view(1, vec![]), State::default());
    for n in [8, 9] {
        assert_eq!(place_newcomer(&mut state, v.clone(), pending(n, 1, 9), 1).map(|claim| claim.allocation), Some(id(n)));
    }
}

#[test]
fn first_come_first_served_keeps_those_behind_waiting_but_an_impossible_one_does_not() {
    let mut v = in_fifo(view(3, vec![pending(1, 3, 10), pending(2, 1, 20)]));
    let mut running = pending(9, 1, 1);
    running.state = AllocationState::Running;
    running.shares = [Share { node: "n2".parse().unwrap(), resources: Resources::default(), phase: SharePhase::Prepared }].into();
    v.allocations.insert(running.id, running);
    assert_eq!(placed(&v), []);
    spec_of(v.allocations.get_mut(&id(1)).unwrap()).nodes = 4;
    assert_eq!(placed(&v), [(id(2), vec!["n1".into()])]);
    let why = explain(&v, &v.allocations[&id(1)]);
    assert!(why.summary.contains("this cluster has 3"), "{}", why.summary);
    assert_eq!(why.nodes, [("n2".parse().unwrap(), WhyNot::Taken(id(9)))]);
}

#[test]
fn an_ended_allocation_holds_its_nodes_until_they_released_it() {
    let mut v = view(1, vec![pending(1, 1, 10)]);
    let mut ended = pending(2, 1, 1);
    ended.state = AllocationState::Completed;
    ended.shares = [Share { node: "n1".parse().unwrap(), resources: Resources::default(), phase: SharePhase::Prepared }].into();
    v.allocations.insert(ended.id, ended);
    assert_eq!(placed(&v), []);
    v.allocations.get_mut(&id(2)).unwrap().shares.set_phase_of_rank(0, SharePhase::Released);
    assert_eq!(placed(&v).len(), 1);
}

#[test]
fn gossip_state_and_exclusion_only_subtract() {
    let mut v = view(4, vec![pending(1, 1, 10)]);
    v.alive.remove(&"n1".parse().unwrap());
    v.nodes.insert("n2".parse().unwrap(), node(2, NodeState::Degraded));
    let exclude = |v: &mut View, until: Option<u64>| {
        let (node, why) = ("n3".parse().unwrap(), "no image".to_owned());
        v.allocations.get_mut(&id(1)).unwrap().excluded = vec![Exclusion { node, why, failures: 1, until: until.map(Timestamp) }];
    };
    exclude(&mut v, Some(60_000));
    assert_eq!(placed(&v), [(id(1), vec!["n4".into()])]);
    let why = explain(&v, &v.allocations[&id(1)]);
    let texts: Vec<String> = why.nodes.iter().map(|(n, w)| format!("{n} {w}")).collect();
    assert_eq!(texts[..2], ["n1 is not seen alive by gossip", "n2 is Degraded"]);
    let excluded = "n3 is excluded until 1970-01-01T00:01:00.000Z, because this allocation could not begin there (no image)";
    assert!(texts[2].starts_with(excluded), "{}", texts[2]);
    // With too few other nodes it waits for the excluded ones, and those behind it do not wait for
    // it.
    spec_of(v.allocations.get_mut(&id(1)).unwrap()).nodes = 4;
    v.allocations.insert(id(2), pending(2, 1, 20));
    assert_eq!(placed(&v), [(id(2), vec!["n3".into()])]);
    let why = explain(&v, &v.allocations[&id(1)]).summary;
    assert!(why.contains("it waits for n3, where it could not begin, until 1970-01-01T00:01:00.000Z"), "{why}");
    exclude(&mut v, None);
    assert_eq!(explain(&v, &v.allocations[&id(1)]).nodes.len(), 2, "it may be taken again");
    // Each allocation that waits has a reason.
    v.allocations.get_mut(&id(1)).unwrap().waits_until = Some(Timestamp(5_000));
    v.allocations.get_mut(&id(1)).unwrap().quick_requeues = 3;
    let why = explain(&v, &v.allocations[&id(1)]).summary;
    assert!(why.contains("waits until 1970-01-01T00:00:05.000Z: it was requeued 3 times in a row"), "{why}");
    assert_eq!(placed(&v), [(id(2), vec!["n3".into()])], "and keeps nobody waiting");
}

/// `cores` of each of `nodes` nodes; the nodes have two.
pub(crate) fn shared(n: u64, nodes: u32, at: u64, cores: u32) -> Allocation {
    let mut allocation = pending(n, nodes, at);
    spec_of(&mut allocation).share = Some(Resources { cores, ..Resources::default() });
    allocation
}

/// Of one of five owners: two users of a tenant, one of them with another tenant too, and both without
/// any.
pub(crate) fn owned_by(number: u8, mut allocation: Allocation) -> Allocation {
    let (tenant, uid) = [("physics", 1), ("physics", 2), ("chemistry", 1), ("", 1), ("", 2)][usize::from(number)];
    allocation.owner.uid = uid;
    tenant.clone_into(&mut spec_of(&mut allocation).tenant);
    allocation
}

pub(crate) fn running_on(mut allocation: Allocation, node: &str, resources: Resources) -> Allocation {
    allocation.state = AllocationState::Running;
    allocation.shares = [Share { node: node.parse().unwrap(), resources, phase: SharePhase::Prepared }].into();
    allocation
}

#[test]
fn shares_meet_on_one_node_until_it_is_full() {
    let v = view(2, vec![shared(1, 1, 10, 1), shared(2, 1, 20, 1), shared(3, 1, 30, 1), pending(4, 1, 40)]);
    let claims = place(&v, |_| Some(1));
    let got: Vec<_> = claims.iter().map(|c| (c.allocation, c.shares[0].node.as_str(), c.shares[0].resources)).collect();
    let half = Resources { cores: 1, memory_bytes: 1 << 29, gpus: 0 };
    // The fourth wants a whole node, and no node is whole any more.
    assert_eq!(got, [(id(1), "n1", half), (id(2), "n1", half), (id(3), "n2", half)]);
    let why = explain(&v, &v.allocations[&id(3)]);
    assert!(why.summary.starts_with("wants 1 core of one node, 2 are free"), "{}", why.summary);
}

#[test]
fn a_share_goes_where_it_leaves_whole_nodes_whole() {
    let half = Resources { cores: 1, memory_bytes: 1 << 29, gpus: 0 };
    let mut v = view(3, vec![shared(1, 1, 10, 1), pending(2, 2, 20)]);
    let there = running_on(shared(9, 1, 1, 1), "n2", half);
    v.allocations.insert(there.id, there);
    assert_eq!(placed(&v), [(id(1), vec!["n2".into()]), (id(2), vec!["n1".into(), "n3".into()])]);
}

#[test]
fn a_tenant_at_its_quota_waits_and_keeps_nobody_else_waiting() {
    let of = |mut allocation: Allocation, tenant: &str| {
        spec_of(&mut allocation).tenant = tenant.into();
        allocation
    };
    let mut v = view(4, vec![of(pending(1, 2, 10), "physics"), pending(2, 1, 20), of(pending(3, 1, 30), "physics")]);
    let physics = Tenant { name: "physics".into(), max_nodes: Some(2), max_concurrent_allocations: None, ..Tenant::default() };
    v.tenants.insert("physics".into(), physics.clone());
    let there = of(running_on(pending(9, 1, 1), "n1", Resources { cores: 2, memory_bytes: 1 << 30, gpus: 0 }), "physics");
    v.allocations.insert(there.id, there);
    // One of the tenant's two nodes is left: it suffices for the third, not for the first.
    assert_eq!(placed(&v), [(id(2), vec!["n2".into()]), (id(3), vec!["n3".into()])]);
    let why = explain(&v, &v.allocations[&id(1)]).summary;
    let want = "waiting for quota headroom: tenant \"physics\" would exceed max_nodes quota (current: 1, requested: 2, limit: 2)";
    assert_eq!(why, want);
    assert_eq!(
        explain(&v, &v.allocations[&id(2)]).summary,
        "wants 1 node, 3 are free: an agent with the scheduler's lease will place it in its next pass"
    );
    // Two claims of one round do not exceed the quota either.
    v.tenants.insert("physics".into(), Tenant { max_nodes: None, max_concurrent_allocations: Some(2), ..physics.clone() });
    assert_eq!(placed(&v), [(id(1), vec!["n2".into(), "n3".into()]), (id(2), vec!["n4".into()])]);
    // A share on a node that the tenant already has needs no further node.
    let half = Resources { cores: 1, memory_bytes: 1 << 29, gpus: 0 };
    let mut v = view(2, vec![of(shared(1, 1, 10, 1), "physics"), of(shared(2, 1, 20, 1), "physics")]);
    v.tenants.insert("physics".into(), Tenant { max_nodes: Some(1), ..physics });
    let there = of(running_on(shared(9, 1, 1, 1), "n2", half), "physics");
    v.allocations.insert(there.id, there);
    assert_eq!(placed(&v), [(id(1), vec!["n2".into()])]);
}

/// Two nodes, and a tenant with one node of which it uses n1. The best fit for its work is n2, of
/// which another tenant has a part.
fn best_fit_beyond_the_quota(cores_used_of_n1: u32) -> View {
    let of = |mut allocation: Allocation, tenant: &str| {
        spec_of(&mut allocation).tenant = tenant.into();
        allocation
    };
    let mut v = view(2, vec![of(shared(1, 1, 10, 1), "physics"), shared(2, 1, 20, 1)]);
    for node in v.nodes.values_mut() {
        node.size = Resources { cores: 4, memory_bytes: 4 << 30, gpus: 0 };
    }
    let part = |cores| Resources { cores, memory_bytes: 1 << 30, gpus: 0 };
    for there in [
        of(running_on(shared(8, 1, 1, 1), "n1", part(cores_used_of_n1)), "physics"),
        of(running_on(shared(9, 1, 1, 3), "n2", part(3)), "chemistry"),
    ] {
        v.allocations.insert(there.id, there);
    }
    let physics = Tenant { name: "physics".into(), max_nodes: Some(1), max_concurrent_allocations: None, ..Tenant::default() };
    v.tenants.insert("physics".into(), physics);
    v
}

#[test]
fn a_share_goes_to_a_node_that_its_tenant_uses_if_the_quota_allows_no_other() {
    let v = best_fit_beyond_the_quota(1);
    assert_eq!(placed(&v), [(id(1), vec!["n1".into()]), (id(2), vec!["n2".into()])]);
    assert_eq!(Outlook::of(&v, NOW).get(&id(1)).unwrap().reason, "about to be placed: 2 are free");
}

#[test]
fn a_share_for_which_the_nodes_of_its_tenant_are_too_full_waits_for_the_quota_and_blocks_nobody() {
    let v = best_fit_beyond_the_quota(4);
    assert_eq!(placed(&v), [(id(2), vec!["n2".into()])]);
    let want = "waiting for quota headroom: tenant \"physics\" would exceed max_nodes quota (current: 1, requested: 1, limit: 1); of the \
                nodes that the tenant uses, 0 can take it now";
    assert_eq!(explain(&v, &v.allocations[&id(1)]).summary, want);
    assert_eq!(obstacle(&v, &v.allocations[&id(1)]).as_deref(), Some(want));
    let outlook = Outlook::of(&v, NOW);
    let expected = |n| outlook.get(&id(n)).map(|e| (e.place, e.reason.as_str()));
    assert_eq!(expected(1), Some((None, "quota: 1 of 1 nodes in use")));
    assert_eq!(expected(2), Some((Some(1), "about to be placed: 1 is free")));
}

#[test]
fn work_of_several_nodes_gets_as_many_new_ones_as_the_quota_allows() {
    let mut v = best_fit_beyond_the_quota(1);
    v.nodes.insert("n3".parse().unwrap(), Node { size: v.nodes[&"n1".parse::<NodeId>().unwrap()].size, ..node(3, NodeState::Ready) });
    v.alive.insert("n3".parse().unwrap());
    let nodes = |v: &mut View, nodes| spec_of(v.allocations.get_mut(&id(1)).unwrap()).nodes = nodes;
    v.tenants.get_mut("physics").unwrap().max_nodes = Some(2);
    nodes(&mut v, 2);
    assert_eq!(placed(&v)[0], (id(1), vec!["n2".into(), "n1".into()]));
    nodes(&mut v, 3);
    let why = explain(&v, &v.allocations[&id(1)]).summary;
    assert!(why.contains("(current: 0, requested: 3, limit: 2)"), "more than the tenant may ever use: {why}");
    // All must be of one group: n1 with n3, because the quota allows n2 with n4 only in part.
    v.nodes.insert("n4".parse().unwrap(), Node { size: v.nodes[&"n1".parse::<NodeId>().unwrap()].size, ..node(4, NodeState::Ready) });
    v.alive.insert("n4".parse().unwrap());
    nodes(&mut v, 2);
    spec_of(v.allocations.get_mut(&id(1)).unwrap()).constraints.conformance = true;
    let v = made_of(v, &[("n1", "6.6"), ("n2", "6.1"), ("n3", "6.6"), ("n4", "6.1")]);
    assert_eq!(placed(&v)[0], (id(1), vec!["n1".into(), "n3".into()]));
}

#[test]
fn a_group_that_is_too_small_does_not_hide_that_the_quota_keeps_work_off() {
    let of_physics = |mut allocation: Allocation| {
        spec_of(&mut allocation).tenant = "physics".into();
        allocation
    };
    let mut v = view(5, vec![of_physics(shared(1, 3, 10, 1)), shared(2, 3, 20, 1)]);
    for allocation in v.allocations.values_mut() {
        spec_of(allocation).constraints.conformance = true;
    }
    for node in v.nodes.values_mut() {
        node.size = Resources { cores: 4, memory_bytes: 4 << 30, gpus: 0 };
    }
    let part = Resources { cores: 1, memory_bytes: 1 << 30, gpus: 0 };
    for there in [running_on(shared(8, 1, 1, 1), "n1", part), running_on(shared(9, 1, 1, 1), "n2", part)] {
        v.allocations.insert(there.id, of_physics(there));
    }
    let physics = Tenant { name: "physics".into(), max_nodes: Some(3), max_concurrent_allocations: None, ..Tenant::default() };
    v.tenants.insert("physics".into(), physics);
    let v = made_of(v, &[("n1", "6.6"), ("n2", "6.6"), ("n3", "6.1"), ("n4", "6.1"), ("n5", "6.1")]);
    assert_eq!(placed(&v), [(id(2), vec!["n3".into(), "n4".into(), "n5".into()])], "it does not block the queue");
    let why = explain(&v, &v.allocations[&id(1)]).summary;
    assert!(why.contains("quota"), "{why}");
}

#[test]
fn a_user_with_as_many_running_allocations_as_may_be_waits_and_keeps_nobody_else_waiting() {
    let of = |mut allocation: Allocation, uid: u32| {
        (allocation.owner.uid, allocation.owner.name) = (uid, format!("u{uid}"));
        allocation
    };
    let queue = vec![of(pending(1, 1, 10), 7), of(pending(2, 1, 20), 7), of(pending(3, 1, 30), 8)];
    let mut v = view(5, queue);
    let there = of(running_on(pending(9, 1, 1), "n1", Resources { cores: 2, memory_bytes: 1 << 30, gpus: 0 }), 7);
    v.allocations.insert(there.id, there);
    assert_eq!(placed(&v).len(), 3, "without a limit");
    // Two claims of one round do not exceed the limit either.
    v.user_running = Some(2);
    assert_eq!(placed(&v), [(id(1), vec!["n2".into()]), (id(3), vec!["n3".into()])]);
    v.user_running = Some(1);
    assert_eq!(placed(&v), [(id(3), vec!["n2".into()])]);
    let outlook = Outlook::of(&v, NOW);
    let expected = outlook.get(&id(1)).unwrap();
    let why = expected.obstacle.clone().unwrap();
    let want = "user u7's running allocation is as many as one user may have (limit user_running: 1): it begins by itself when";
    assert!(why.starts_with(want), "{why}");
    assert_eq!(expected.reason, "user limit: 1 of 1 running");
    assert_eq!(explain(&v, &v.allocations[&id(2)]).summary, why);
    // Other users' allocations are not behind it.
    assert_eq!(Outlook::of(&v, NOW).get(&id(3)).unwrap().place, Some(1));
    // Work that has ended no longer counts, even while its node holds its share.
    v.allocations.get_mut(&id(9)).unwrap().state = AllocationState::Completed;
    assert_eq!(placed(&v).iter().map(|(id, _)| *id).collect::<Vec<_>>(), [id(1), id(3)]);
}

#[test]
fn what_gets_no_vni_waits_and_keeps_nobody_else_waiting() {
    let of = |mut allocation: Allocation, domain: &str| {
        let spec = spec_of(&mut allocation);
        (spec.tenant, spec.connectivity.network_domain) = ("physics".into(), domain.into());
        allocation
    };
    let queue = vec![of(pending(1, 1, 10), "a"), of(pending(2, 1, 20), "b"), of(pending(3, 1, 30), "a"), pending(4, 1, 40)];
    let mut v = view(4, queue);
    // The pool is not known: the quorum decides.
    assert_eq!(placed(&v).len(), 4);
    v.vni_pool = Some(VniPool { start: 1000, end: 1001, ..VniPool::default() });
    v.domains.insert(("chemistry".into(), "a".into()), 1001);
    // One number is left: the first takes it, the third joins that domain, the second waits.
    assert_eq!(placed(&v).iter().map(|(id, _)| *id).collect::<Vec<_>>(), [id(1), id(3), id(4)]);
    v.domains.insert(("physics".into(), "a".into()), 1000);
    let why = explain(&v, &v.allocations[&id(2)]).summary;
    assert!(why.starts_with("vni_pool_exhausted: cannot create network domain \"b\": VNI pool exhausted (2/2 in use); wait for"), "{why}");
    assert_eq!(obstacle(&v, &v.allocations[&id(3)]), None, "its domain has a number");
    // A number from before the pool shrank does not count against the present pool.
    v.vni_pool = Some(VniPool { start: 2000, end: 2000, ..VniPool::default() });
    assert_eq!(placed(&v).len(), 4);
}

#[test]
fn what_a_node_lacks_for_a_share_is_explained() {
    let mut v = view(2, vec![shared(1, 2, 10, 2)]);
    let half = Resources { cores: 1, memory_bytes: 1 << 29, gpus: 0 };
    let whole = v.nodes[&"n2".parse::<NodeId>().unwrap()].size;
    for there in [running_on(shared(8, 1, 1, 1), "n1", half), running_on(pending(9, 1, 1), "n2", whole)] {
        v.allocations.insert(there.id, there);
    }
    assert_eq!(placed(&v), []);
    let why = explain(&v, &v.allocations[&id(1)]);
    let texts: Vec<String> = why.nodes.iter().map(|(n, w)| format!("{n} {w}")).collect();
    assert_eq!(
        texts,
        [
            "n1 has too little free: 2 cores are wanted, 1 free; 1.0 GiB of memory is wanted, 512 MiB free".to_owned(),
            format!("n2 is taken by allocation {}", id(9).short()),
        ]
    );
    // Work that wants a whole node.
    spec_of(v.allocations.get_mut(&id(1)).unwrap()).share = None;
    assert_eq!(explain(&v, &v.allocations[&id(1)]).nodes[0].1, WhyNot::Taken(id(8)));
    // Work that asks for more than any node has blocks no other work.
    spec_of(v.allocations.get_mut(&id(1)).unwrap()).share = Some(Resources { gpus: 1, ..Resources::default() });
    v.allocations.insert(id(2), shared(2, 1, 20, 1));
    assert_eq!(placed(&v), [(id(2), vec!["n1".into()])]);
    assert!(explain(&v, &v.allocations[&id(1)]).summary.contains("has 0 that could ever serve it"));
}

#[test]
fn what_has_ended_and_is_not_released_counts_once() {
    let half = Resources { cores: 1, memory_bytes: 1 << 29, gpus: 0 };
    let mut v = view(1, vec![shared(1, 1, 10, 1)]);
    let mut ended = running_on(shared(9, 1, 1, 1), "n1", half);
    ended.state = AllocationState::Completed;
    ended.epoch = Epoch(4);
    let n1: NodeId = "n1".parse().unwrap();
    v.nodes.get_mut(&n1).unwrap().leaving =
        vec![Leaving { allocation: ended.id, epoch: Epoch(4), resources: half, fenced: false, owner: None }];
    v.allocations.insert(ended.id, ended);
    assert_eq!(Holdings::of(v.nodes.values(), v.allocations.values()).committed(&n1), half);
    assert_eq!(placed(&v), [(id(1), vec!["n1".into()])]);
}

proptest! {
    /// The claims of one round never exceed a node, and whole nodes are not shared.
    #[test]
    fn shares_never_exceed_a_node(wants in proptest::collection::vec((1u32..4, 0u32..3, 0u64..5), 0..12), nodes in 0u64..6) {
        let one = |(i, (n, cores, at)): (usize, &(u32, u32, u64))| {
            if *cores == 0 { pending(i as u64 + 1, *n, *at) } else { shared(i as u64 + 1, *n, *at, *cores) }
        };
        let v = view(nodes, wants.iter().enumerate().map(one).collect());
        let mut held: BTreeMap<NodeId, Resources> = BTreeMap::new();
        for claim in place(&v, |_| Some(1)) {
            let spec = &v.allocations[&claim.allocation].spec;
            for share in claim.shares {
                let sum = held.entry(share.node.clone()).or_default();
                prop_assert!(spec.share.is_some() || *sum == Resources::default());
                *sum = sum.plus(&share.resources);
                prop_assert!(v.nodes[&share.node].size.holds(sum));
                prop_assert_eq!(share.resources, spec.amount_of(&v.nodes[&share.node].size));
            }
        }
    }

    /// No two claims of one round share a node; each has exactly as many as asked for, of allowed
    /// nodes.
    #[test]
    fn claims_never_meet(wants in proptest::collection::vec((1u32..5, 0u64..5), 0..8), nodes in 0u64..8, dead in 0u64..8) {
        let allocations = wants.iter().enumerate().map(|(i, (n, at))| pending(i as u64 + 1, *n, *at)).collect();
        let mut v = view(nodes, allocations);
        v.alive.remove(&format!("n{dead}").parse::<NodeId>().unwrap());
        let mut seen = BTreeSet::new();
        for claim in place(&v, |_| Some(1)) {
            prop_assert_eq!(claim.shares.len(), v.allocations[&claim.allocation].spec.nodes as usize);
            for share in claim.shares {
                prop_assert!(v.alive.contains(&share.node));
                prop_assert!(seen.insert(share.node));
            }
        }
    }
}

#[test]
fn nodes_without_a_required_feature_are_never_used_and_explain_that() {
    let mut v = view(3, vec![pending(1, 1, 1), pending(2, 1, 2), pending(3, 2, 3)]);
    let mut change = |n: &str, change: &dyn Fn(&mut Node)| change(v.nodes.get_mut(&n.parse::<NodeId>().unwrap()).unwrap());
    change("n2", &|n| n.size.gpus = 4);
    change("n3", &|n| n.features = vec!["nvme_scratch".into()]);
    let mut spec = |n: u64, change: &dyn Fn(&mut AllocationSpec)| change(spec_of(v.allocations.get_mut(&id(n)).unwrap()));
    spec(1, &|s| s.constraints.features = ["nvme_scratch".to_owned()].into());
    spec(2, &|s| s.binding.gpus_per_task = 3);
    spec(3, &|s| s.constraints.gpus = 1);
    // The third could never be served here, and blocks no other work.
    assert_eq!(placed(&v), [(id(1), vec!["n3".into()]), (id(2), vec!["n2".into()])]);
    let lacks = |n: u64| -> Vec<(String, String)> {
        explain(&v, &v.allocations[&id(n)]).nodes.iter().map(|(node, why)| (node.to_string(), why.to_string())).collect()
    };
    assert_eq!(lacks(1)[0], ("n1".into(), "lacks the feature nvme_scratch".into()));
    assert_eq!(lacks(2)[0], ("n1".into(), "has 0 GPUs; its tasks there want 3".into()));
    assert_eq!(lacks(3)[1], ("n3".into(), "has 0 GPUs; 1 is wanted".into()));
}

#[test]
fn a_queue_waits_for_its_own_nodes_and_holds_up_no_other() {
    let of = |mut allocation: Allocation, vcluster: &str| {
        spec_of(&mut allocation).vcluster = vcluster.into();
        allocation
    };
    let vcluster = |name: &str, nodes| vcluster(name, SchedulerKind::InteractiveFifo, nodes);
    let mut v = view(4, vec![of(pending(1, 2, 10), "small"), of(pending(2, 1, 20), "small"), of(pending(3, 2, 30), "forgotten")]);
    for (number, allocation) in [(4, of(pending(4, 1, 40), "guests")), (5, of(pending(5, 1, 50), "guests"))] {
        v.allocations.insert(id(number), allocation);
    }
    v.vclusters = [("small".into(), vcluster("small", 2)), ("guests".into(), vcluster("guests", 0))].into();
    for n in ["n3", "n4"] {
        v.nodes.get_mut(&n.parse::<NodeId>().unwrap()).unwrap().home = "small".into();
    }
    let busy = running_on(of(pending(9, 1, 1), "small"), "n3", v.nodes[&"n3".parse::<NodeId>().unwrap()].size);
    v.allocations.insert(busy.id, busy);
    // The first waits for n3 and keeps the second waiting. A label without a vCluster means the
    // default queue, whose nodes the guests share.
    assert_eq!(placed(&v), [(id(3), vec!["n1".into(), "n2".into()])]);
    let guests = |name: &str| (name == "guests").then_some(1);
    assert_eq!(place(&v, guests), [], "they leave the nodes to what came first, although another agent claims these");
    let why = explain(&v, &v.allocations[&id(2)]);
    let want = "in the queue of vCluster small (n[3-4]): wants 1 node, 1 is free; 1 allocation submitted before it is served first; \
                expected to start at 1970-01-01T01:02:00.000Z on n3";
    assert_eq!(why.summary, want);
    assert_eq!(why.nodes[0].1.to_string(), "is of vCluster default; small has nodes of its own");
    assert_eq!(waiting_in(&v, "guests", NOW).iter().map(|a| a.id).collect::<Vec<_>>(), [id(4), id(5)]);
    // Work that asks for more nodes than its vCluster has blocks no other work.
    spec_of(v.allocations.get_mut(&id(1)).unwrap()).nodes = 3;
    assert!(placed(&v).contains(&(id(2), vec!["n4".into()])));
    assert!(explain(&v, &v.allocations[&id(1)]).summary.contains("this cluster has 2 that could ever serve it"));
    // Work that waits in another queue holds up a newcomer only where they share nodes.
    v.allocations.remove(&id(3));
    let of_queue = |v: &View, vcluster: &str| newcomer(v, of(pending(20, 1, 90), vcluster)).map(|c| c.shares[0].node.to_string());
    assert_eq!(of_queue(&v, ""), None);
    v.allocations.remove(&id(5));
    assert_eq!(of_queue(&v, ""), Some("n2".into()));
    assert_eq!(of_queue(&v, "guests"), None);
}

/// The view with fingerprints for the nodes.
fn made_of(mut view: View, kernels: &[(&str, &str)]) -> View {
    for (node, kernel) in kernels {
        let components = [("kernel".to_owned(), (*kernel).to_owned())].into();
        view.nodes.get_mut(&node.parse::<NodeId>().unwrap()).unwrap().conformance = Some(lattice_model::Conformance::first(components));
    }
    view
}

#[test]
fn work_of_several_nodes_goes_to_the_largest_group_and_spans_groups_where_none_is_large_enough() {
    let kernels = [("n1", "6.1"), ("n2", "6.6"), ("n4", "6.6"), ("n5", "6.1"), ("n6", "6.6")];
    let of = |nodes, require| {
        let mut wants = pending(1, nodes, 10);
        spec_of(&mut wants).constraints.conformance = require;
        made_of(view(6, vec![wants]), &kernels)
    };
    let names = |names: &[&str]| vec![(id(1), names.iter().map(|n| (*n).to_owned()).collect::<Vec<_>>())];
    assert_eq!(placed(&of(2, false)), names(&["n2", "n4"]));
    assert_eq!(placed(&of(3, true)), names(&["n2", "n4", "n6"]));
    assert_eq!(placed(&of(5, false)), names(&["n2", "n4", "n6", "n1", "n5"]), "n3 has told nothing");
    let none = of(4, true);
    assert_eq!(placed(&none), []);
    let explanation = explain(&none, &none.allocations[&id(1)]);
    assert_eq!(
        explanation.summary,
        "wants 4 nodes of one conformance group; this cluster has 3 that could ever serve it: it waits until there are more"
    );
}

#[test]
fn a_node_with_an_old_report_is_a_group_of_its_own() {
    let mut wants = pending(1, 2, 10);
    spec_of(&mut wants).constraints.conformance = true;
    let mut v = made_of(view(3, vec![wants]), &[("n1", "6.1"), ("n2", "6.1"), ("n3", "6.6")]);
    assert_eq!(placed(&v), [(id(1), vec!["n1".to_owned(), "n2".to_owned()])]);
    v.nodes.get_mut(&"n2".parse::<NodeId>().unwrap()).unwrap().conformance.as_mut().unwrap().stale = true;
    assert_eq!(placed(&v), []);
}

#[test]
fn a_node_that_drifted_is_used_last_for_work_of_one_node() {
    let mut v = made_of(view(2, vec![pending(1, 1, 10)]), &[("n1", "6.1")]);
    let drifted = v.nodes.get_mut(&"n1".parse::<NodeId>().unwrap()).unwrap();
    let before = drifted.conformance.take().unwrap();
    drifted.conformance = Some(before.then([("kernel".to_owned(), "6.6".to_owned())].into(), Timestamp(5), false));
    assert_eq!(placed(&v), [(id(1), vec!["n2".to_owned()])]);
}

#[test]
fn work_that_no_registered_node_can_serve_is_known_at_once() {
    let mut v = view(3, vec![]);
    v.nodes.insert("n3".parse().unwrap(), node(3, NodeState::Down));
    let misfit_text = |v: &View, change: &dyn Fn(&mut AllocationSpec)| {
        let mut spec = AllocationSpec::clone(&pending(1, 1, 1).spec);
        change(&mut spec);
        misfit(v.nodes.values(), &v.vclusters, &spec).map(|misfit| misfit.to_string())
    };
    assert_eq!(misfit_text(&v, &|spec| spec.nodes = 3), None, "one that is Down counts: it may come back");
    assert_eq!(misfit_text(&v, &|spec| spec.nodes = 4).as_deref(), Some("wants 4 nodes; this cluster has 3 that could ever serve it"));
    let share = |cores, memory_bytes, gpus| move |spec: &mut AllocationSpec| spec.share = Some(Resources { cores, memory_bytes, gpus });
    assert_eq!(misfit_text(&v, &share(2, 1 << 30, 0)), None);
    let none = |of: &str, why: &str| Some(format!("wants {of} of one node; this cluster has 0 that could ever serve it; n[1-3] {why}"));
    assert_eq!(misfit_text(&v, &share(16, 0, 0)), none("16 cores", "has 2 cores; 16 are wanted"));
    assert_eq!(misfit_text(&v, &share(0, 500 << 30, 0)), none("500.0 GiB", "has 1.0 GiB of memory; 500.0 GiB are wanted"));
    assert_eq!(misfit_text(&v, &share(0, 0, 4)), none("4 GPUs", "has 0 GPUs; 4 are wanted"));
    let four = misfit_text(&v, &|spec| (spec.tasks_per_node, spec.launch.shape.cpus_per_task) = (2, 2)).unwrap();
    assert!(four.ends_with("n[1-3] has 2 cores; its tasks there want 4"), "{four}");
    let named = |name: &'static str| move |spec: &mut AllocationSpec| spec.constraints.nodes = [name.parse().unwrap()].into();
    assert_eq!(misfit_text(&v, &named("n2")), None);
    assert!(misfit_text(&v, &named("n9")).unwrap().ends_with("n[1-3] is none of the nodes asked for (n9)"));
    // It gets the same text if it is submitted and waits.
    v.allocations.insert(id(1), pending(1, 4, 1));
    let why = explain(&v, &v.allocations[&id(1)]).summary;
    assert_eq!(why, "wants 4 nodes; this cluster has 3 that could ever serve it: it waits until there are more");
    assert_eq!(
        explain(&view(0, vec![]), &pending(1, 1, 1)).summary,
        "wants 1 node; this cluster has 0 that could ever serve it: it waits until there are more"
    );
}

#[test]
fn work_that_names_its_nodes_is_placed_on_these() {
    let mut v = view(3, vec![pending(1, 2, 10)]);
    spec_of(v.allocations.get_mut(&id(1)).unwrap()).constraints.nodes = ["n1", "n3"].map(|name| name.parse().unwrap()).into();
    assert_eq!(placed(&v), [(id(1), vec!["n1".into(), "n3".into()])]);
    v.alive.remove(&"n3".parse().unwrap());
    assert_eq!(placed(&v), [], "another one will not do");
}

#[test]
fn a_list_says_in_few_words_what_explain_says_in_a_sentence() {
    let mut v = view(3, vec![pending(1, 3, 10), pending(2, 1, 20), pending(3, 100, 5), pending(4, 1, 30), pending(5, 2, 6)]);
    let mut running = pending(9, 1, 1);
    running.state = AllocationState::Running;
    running.shares = [Share { node: "n2".parse().unwrap(), resources: Resources::default(), phase: SharePhase::Prepared }].into();
    v.allocations.insert(running.id, running);
    v.allocations.get_mut(&id(5)).unwrap().excluded = ["n1", "n3"].map(excluded).into();
    let v = in_fifo(v);
    let outlook = Outlook::of(&v, NOW);
    let of = |n: u64| outlook.get(&id(n)).map(|expected| (expected.place, expected.reason.as_str()));
    assert_eq!(of(9), None, "it does not wait");
    assert_eq!(of(3), Some((None, "wants 100 nodes, 3 could serve")));
    assert_eq!(of(5), Some((None, "2 nodes excluded: could not begin")));
    assert_eq!(of(1), Some((Some(1), "starts ~01:01Z: next, 2 of 3 free")));
    assert_eq!(of(2), Some((Some(2), "starts ~01:02Z: 1 ahead")));
    assert_eq!(of(4), Some((Some(3), "starts ~01:02Z: 2 ahead")));
    assert_eq!(outlook.get(&id(1)).unwrap().start, Some(Timestamp(NOW.0 + 60_000)));
    let summary_of = |n: u64| explain(&v, &v.allocations[&id(n)]).summary;
    let queue = "in the queue of vCluster fifo (n[1-3]): ";
    let want = format!("{queue}wants 3 nodes, 2 are free: it is next; expected to start at 1970-01-01T01:01:00.000Z on n[1-3]");
    assert_eq!(summary_of(1), want);
    assert!(summary_of(4).contains("2 allocations submitted before it are served first"), "{}", summary_of(4));
    assert!(
        summary_of(3).contains("this cluster has 3") && summary_of(5).contains("1 could serve it without those that are excluded"),
        "{}",
        summary_of(5)
    );
    let mut later = view(1, vec![pending(1, 1, 1), pending(2, 1, 2)]);
    let first = later.allocations.get_mut(&id(1)).unwrap();
    (first.waits_until, first.quick_requeues) = (Some(Timestamp(1_772_704_812_034)), 3);
    let outlook = Outlook::of(&later, NOW);
    assert_eq!(outlook.get(&id(1)).unwrap().reason, "requeued 3 times: waits to 10:00:12Z");
    assert_eq!(outlook.get(&id(2)).unwrap().place, Some(1), "others go by it");
    let alone = view(1, vec![pending(1, 1, 1)]);
    assert_eq!(Outlook::of(&alone, NOW).get(&id(1)).unwrap().reason, "about to be placed: 1 is free");
}

fn depending(mut allocation: Allocation, parents: Vec<Parent>, eligible_at: Option<u64>) -> Allocation {
    allocation.dependencies =
        Some(Box::new(Dependencies { parents, predecessor: None, begin: None, eligible_at: eligible_at.map(Timestamp) }));
    allocation
}

fn claimed(view: &View) -> Vec<AllocationId> {
    place(view, |_| Some(1)).iter().map(|claim| claim.allocation).collect()
}

pub(crate) fn parent(n: u64, condition: DependencyCondition, state: ParentState) -> Parent {
    Parent { on: id(n), condition, name: format!("job{n}"), asked_for_it: false, output: None, state }
}

#[test]
fn work_that_depends_on_other_work_is_in_line_from_the_time_at_which_that_is_as_it_must_be() {
    let waits = depending(pending(1, 1, 10), vec![parent(9, DependencyCondition::Success, ParentState::Unended)], None);
    let ended = parent(9, DependencyCondition::Any, ParentState::Ended(AllocationState::Failed));
    let eligible = depending(pending(2, 1, 20), vec![ended], Some(40));
    let v = view(1, vec![waits, eligible, pending(3, 1, 30)]);
    for (v, queue) in [(v.clone(), "default"), (in_fifo(v), "fifo")] {
        let order: Vec<AllocationId> = waiting_in(&v, queue, NOW).iter().map(|a| a.id).collect();
        assert_eq!(order, [id(3), id(2)], "{queue}");
        assert_eq!(claimed(&v), [id(3)], "{queue}");
        assert_eq!(Outlook::of(&v, NOW).get(&id(1)), None, "it holds up nobody");
    }
}

#[test]
fn a_plan_begins_only_one_of_two_that_exclude_each_other() {
    let mutex = || vec![parent(1, DependencyCondition::Mutex, ParentState::Unended)];
    let v = view(3, vec![pending(1, 1, 10), depending(pending(2, 1, 20), mutex(), Some(20)), pending(3, 1, 30)]);
    assert_eq!(claimed(&v), [id(1), id(3)]);
    let outlook = Outlook::of(&v, NOW);
    let excluded = outlook.get(&id(2)).unwrap();
    assert_eq!((excluded.place, excluded.reason.as_str()), (None, "not beside 00000000 (job1)"));
    let text = "waits for 00000000 (job1), which begins now: the two never run at the same time";
    assert_eq!((excluded.obstacle.as_deref(), explain(&v, &v.allocations[&id(2)]).summary.as_str()), (Some(text), text));

    // The first one has to wait for a node; the second one would run into its reservation.
    let size = node(2, NodeState::Ready).size;
    let mut long = depending(pending(2, 1, 20), mutex(), Some(20));
    spec_of(&mut long).walltime = Some(std::time::Duration::from_secs(7200));
    let v = view(2, vec![pending(1, 2, 10), long, running_on(pending(9, 1, 1), "n2", size)]);
    assert_eq!(claimed(&v), []);
    let text = "waits for 00000000 (job1), which is ahead of it: the two never run at the same time";
    assert_eq!(obstacle(&v, &v.allocations[&id(2)]).as_deref(), Some(text));
}

fn task_group(n: u64, at: u64) -> Allocation {
    let mut group = pending(n, 1, at);
    spec_of(&mut group).tasks = Some(Box::new(TaskGroup::parse("0-99").unwrap()));
    group
}

/// A lane as the ledger makes it, with the group's time.
fn lane(n: u64, of: &Allocation, number: u32) -> Allocation {
    let lane = Some(LaneOf { group: of.id, number, queued_at: of.queued_at(), revocations: 0 });
    Allocation { lane, spec: of.spec.clone(), ..pending(n, 1, 5 * u64::from(number)) }
}

#[test]
fn a_task_group_is_in_no_queue() {
    let group = task_group(1, 10);
    let v = view(2, vec![group.clone()]);
    assert_eq!((placed(&v), waiting_in(&v, DEFAULT_VCLUSTER, NOW).len(), v.somebody_waits(DEFAULT_VCLUSTER)), (vec![], 0, false));
    assert_eq!(Outlook::of(&v, NOW).get(&id(1)), None);
    assert_eq!(explain(&v, &group).summary, "does not wait for nodes");
    assert_eq!(newcomer(&v, pending(9, 2, 9)).map(|claim| claim.shares.len()), Some(2), "it keeps nobody waiting");
    assert!(newcomer(&v, task_group(9, 9)).is_none());
}

#[test]
fn lanes_of_a_task_group_come_one_after_another_in_the_order_of_their_numbers() {
    let group = task_group(50, 20);
    let lanes = vec![lane(9, &group, 0), lane(5, &group, 1), lane(7, &group, 2)];
    let others = vec![pending(1, 1, 10), pending(2, 1, 30), task_group(60, 20), pending(55, 1, 20)];
    let v = view(3, [others, lanes, vec![group]].concat());
    for (v, queue) in [(v.clone(), DEFAULT_VCLUSTER), (in_fifo(v), "fifo")] {
        let order: Vec<AllocationId> = waiting_in(&v, queue, NOW).iter().map(|a| a.id).collect();
        assert_eq!(order, [1, 9, 5, 7, 55, 2].map(id), "{queue}");
        assert_eq!(claimed(&v), [1, 9, 5].map(id), "{queue}");
    }
}

#[test]
fn lanes_of_a_task_group_are_one_class() {
    let group = task_group(50, 20);
    let mut renamed = lane(5, &group, 1);
    spec_of(&mut renamed).name = "other".into();
    let v = view(3, vec![lane(9, &group, 0), renamed, lane(7, &group, 2), group]);
    let state = State::from(v);
    let ordered = order::Ordered::of(&state, NOW);
    let classes: Vec<usize> = ordered.queues.iter().flat_map(|queue| queue.waiting.iter().map(|waiting| waiting.class)).collect();
    assert_eq!((classes, ordered.classes.all.len()), (vec![0, 0, 0], 1));
}

proptest! {
    #[test]
    fn the_reason_of_a_list_has_ten_to_forty_characters_and_its_order_is_that_of_the_queue(
        wanted in prop::collection::vec(1..5_000_000u32, 1..70), nodes in 0..6u64, tenant in ".{0,60}", excluded in 0..3u64, is_fifo: bool,
    ) {
        let mut all: Vec<_> = wanted.iter().zip(1..).map(|(nodes, n)| pending(n, 1 + nodes % 7 * (nodes / 7 % 2 * 100_000 + 1), 100 - n)).collect();
        for (at, allocation) in all.iter_mut().enumerate() {
            spec_of(allocation).tenant.clone_from(&tenant);
            spec_of(allocation).walltime = (at % 4 > 0).then(|| std::time::Duration::from_secs(at as u64 * 10_000));
            if at.is_multiple_of(3) {
                allocation.excluded = (1..=excluded).map(|n| crate::tests::excluded(&format!("n{n}"))).collect();
            }
        }
        let mut v = view(nodes, all);
        v.tenants.insert(tenant.clone(), Tenant { name: tenant, max_nodes: Some(4), max_concurrent_allocations: None, ..Tenant::default() });
        let (v, queue) = if is_fifo { (in_fifo(v), "fifo") } else { (v, "default") };
        let outlook = Outlook::of(&v, NOW);
        let mut next = 1;
        for waiting in waiting_in(&v, queue, NOW) {
            let expected = outlook.get(&waiting.id).unwrap();
            prop_assert!((10..=REASON_CHARS_MAX).contains(&expected.reason.chars().count()), "{:?}", expected.reason);
            let explained = explain(&v, waiting);
            prop_assert_eq!(explained.start, expected.start);
            if let Some(obstacle) = &expected.obstacle {
                prop_assert!(explained.summary.ends_with(obstacle));
            }
            if let Some(place) = expected.place {
                prop_assert_eq!(place, next);
                next += 1;
            }
        }
    }
}

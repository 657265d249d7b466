//! Where replicas of scaled services are placed, in which order, and why some wait.

use crate::backfill_tests::{HALF, began, lasting, placed, reason, summary};
use crate::order::Ordered;
use crate::plan::Decision;
use crate::tests::{NOW, id, newcomer, pending, shared, vcluster, view, with_plan};
use crate::{State, View, WhyNot, explain, waiting_in};
use lattice_model::test_builders::spec_of;
use lattice_model::{Allocation, AllocationId, Drain, Epoch, Leaving, NodeId, ReplicaOf, Resources, Scaling, SchedulerKind};
use proptest::prelude::*;
use std::collections::BTreeSet;

/// Makes this work a service that scales.
fn scaling(work: Allocation) -> Allocation {
    let mut service = lasting(work, 0);
    let scaling = Scaling { replicas_min: 1, replicas_max: 9, policy: None, drain: Drain::default() };
    spec_of(&mut service).scaling = Some(Box::new(scaling));
    service
}

/// A service whose replicas want a core each; the nodes have two.
pub(crate) fn service(n: u64, at: u64) -> Allocation {
    scaling(shared(n, 1, at, 1))
}

/// A replica as the ledger makes it.
pub(crate) fn replica(n: u64, of: &Allocation, number: u32) -> Allocation {
    let replica = Some(Box::new(ReplicaOf { service: of.id, number }));
    Allocation { replica, spec: of.spec.clone(), ..pending(n, 1, 5 * u64::from(number)) }
}

fn why(view: &View, n: u64) -> Vec<(NodeId, WhyNot)> {
    explain(view, &view.allocations[&id(n)], NOW).nodes
}

fn node(name: &str) -> NodeId {
    name.parse().unwrap()
}

#[test]
fn a_scaled_service_is_in_no_queue() {
    let v = view(2, vec![service(50, 10)]);
    assert_eq!((placed(&v), waiting_in(&v, "default", NOW).len(), v.somebody_waits("default")), (vec![], 0, false));
    assert_eq!(explain(&v, &v.allocations[&id(50)], NOW).summary, "does not wait for nodes");
    assert!(newcomer(&v, service(60, 20)).is_none());
}

#[test]
fn a_plan_puts_replicas_of_a_service_on_different_nodes() {
    let of = service(50, 10);
    let replicas = (0..4).map(|number| replica(5 + u64::from(number), &of, number));
    let v = view(3, replicas.chain([of.clone()]).collect());
    let on = |n, name: &str| (id(n), vec![name.to_owned()]);
    assert_eq!(placed(&v), [on(5, "n1"), on(6, "n2"), on(7, "n3")]);
    // Other work, and replicas of another service, may share their nodes.
    let other = service(60, 20);
    let v = view(2, vec![replica(5, &of, 0), replica(6, &of, 1), replica(7, &other, 0), shared(8, 1, 90, 1), of.clone(), other]);
    assert_eq!(placed(&v), [on(5, "n1"), on(7, "n1"), on(6, "n2"), on(8, "n2")]);
}

#[test]
fn a_replica_waits_where_each_free_node_has_one_and_that_is_the_reason() {
    let of = service(50, 10);
    let there = [began(replica(5, &of, 0), "n1", 10), began(replica(6, &of, 1), "n2", 10)];
    let full = began(lasting(pending(9, 1, 1), 0), "n3", 10);
    let mut v = view(3, there.into_iter().chain([full, replica(7, &of, 2), of.clone()]).collect());
    assert_eq!(placed(&v), []);
    assert_eq!(reason(&v, 7), "each free node has a replica of it");
    let text = summary(&v, 7);
    assert!(text.starts_with("wants 1 core of one node, 0 are free: it is next; when it starts is not known"), "{text}");
    assert!(text.ends_with("; each node that is free has a replica of it already"), "{text}");
    let replica_5 = WhyNot::Replica(id(5));
    assert_eq!(replica_5.to_string(), format!("has a replica of the same service already (allocation {})", id(5).short()));
    let all = [(node("n1"), replica_5), (node("n2"), WhyNot::Replica(id(6))), (node("n3"), WhyNot::Taken(id(9)))];
    assert_eq!(why(&v, 7), all);
    assert_eq!(explain(&v, &v.allocations[&id(7)], NOW).sooner, [], "no walltime helps");
    // Now each node is full, also n3, which has no replica.
    for (n, name) in [(15, "n1"), (16, "n2")] {
        let beside = began(lasting(shared(n, 1, 1, 1), 0), name, 10);
        v.allocations.insert(beside.id, beside);
    }
    assert!(!summary(&v, 7).contains("has a replica"), "{}", summary(&v, 7));
    v.allocations.remove(&id(9));
    assert_eq!(placed(&v), [(id(7), vec!["n3".to_owned()])]);
}

#[test]
fn a_replica_for_which_there_is_no_other_node_stops_nothing_behind_it() {
    let of = service(50, 10);
    let there = [began(replica(5, &of, 0), "n1", 10), began(replica(6, &of, 1), "n2", 10)];
    let behind = [pending(8, 1, 80), shared(9, 1, 90, 1)];
    let mut v = view(2, there.into_iter().chain([replica(7, &of, 2), of.clone()]).chain(behind).collect());
    v.vclusters.insert("fifo".into(), vcluster("fifo", SchedulerKind::InteractiveFifo, 0));
    for allocation in v.allocations.values_mut() {
        spec_of(allocation).vcluster = "fifo".into();
    }
    let decision = |v: &View, n| {
        with_plan(v, NOW, |plan| plan.planned.iter().find(|planned| planned.allocation.id == id(n)).unwrap().decision.clone())
    };
    assert_eq!(decision(&v, 7), Decision::NoOtherNode);
    assert!(summary(&v, 7).ends_with("; each node that is free has a replica of it already"), "{}", summary(&v, 7));
    assert_eq!(reason(&v, 7), "each free node has a replica of it");
    // What is next after it waits for a whole node, and stops the rest of the queue as ever.
    assert!(matches!(decision(&v, 8), Decision::Reserved(_)));
    assert_eq!(placed(&v), []);
    v.allocations.remove(&id(8));
    assert_eq!(placed(&v).iter().map(|(n, _)| *n).collect::<Vec<_>>(), [id(9)]);
}

#[test]
fn a_share_of_a_replica_that_leaves_keeps_others_of_its_service_off() {
    let (of, other) = (service(50, 10), service(60, 20));
    let mut v = view(1, vec![replica(5, &of, 0), replica(6, &of, 1), replica(8, &other, 0), of, other]);
    let leaving = Leaving { allocation: id(5), epoch: Epoch(4), resources: HALF, fenced: false, owner: None };
    v.nodes.get_mut(&node("n1")).unwrap().leaving = vec![leaving];
    assert_eq!(placed(&v), [(id(8), vec!["n1".to_owned()])]);
    assert_eq!(why(&v, 6), [(node("n1"), WhyNot::Replica(id(5)))]);
    v.nodes.get_mut(&node("n1")).unwrap().leaving.clear();
    assert_eq!(placed(&v), [5, 8].map(|n| (id(n), vec!["n1".to_owned()])));
}

#[test]
fn replicas_come_by_number_at_the_time_of_their_service() {
    let of = service(50, 20);
    let replicas = vec![replica(9, &of, 0), replica(5, &of, 1), replica(7, &of, 2)];
    let others = vec![pending(1, 1, 10), pending(2, 1, 30), pending(55, 1, 20)];
    let mut v = view(3, [others, replicas, vec![of]].concat());
    v.vclusters.insert("fifo".into(), vcluster("fifo", SchedulerKind::InteractiveFifo, 0));
    for allocation in v.allocations.values_mut() {
        spec_of(allocation).vcluster = "fifo".into();
    }
    let order: Vec<AllocationId> = waiting_in(&v, "fifo", NOW).iter().map(|a| a.id).collect();
    assert_eq!(order, [1, 9, 5, 7, 55, 2].map(id));
    // The watch does not show the service yet.
    v.allocations.remove(&id(50));
    let order: Vec<AllocationId> = waiting_in(&v, "fifo", NOW).iter().map(|a| a.id).collect();
    assert_eq!(order, [9, 5, 1, 7, 55, 2].map(id), "each has the time at which it was made");
}

#[test]
fn replicas_of_one_service_are_one_class_with_no_other_work() {
    let classes = |of: Allocation, other: Allocation, plain: Allocation| {
        let v = view(3, vec![replica(5, &of, 0), replica(6, &of, 1), replica(7, &other, 0), plain, of, other]);
        let state = State::from(v);
        let ordered = Ordered::of(&state, NOW);
        let class_of = |n| {
            let mut waiting = ordered.queues.iter().flat_map(|queue| &queue.waiting);
            waiting.find(|waiting| waiting.allocation.id == id(n)).map(|waiting| waiting.class)
        };
        let all: BTreeSet<_> = [5, 7, 8].map(class_of).into();
        (class_of(5) == class_of(6), all.len(), ordered.classes.all.len())
    };
    assert_eq!(classes(service(50, 10), service(60, 10), lasting(shared(8, 1, 10, 1), 0)), (true, 3, 3));
    // No two of these can be on one node.
    let whole = |n| scaling(pending(n, 1, 10));
    assert_eq!(classes(whole(50), whole(60), lasting(pending(8, 1, 10), 0)), (true, 1, 1));
}

/// Replicas of three services with nodes, replicas that wait, and other shares that wait. Each node
/// has six cores, and a service has one replica there at most.
fn a_view() -> impl Strategy<Value = View> {
    let held = prop::collection::btree_set((0..3_u64, 1..4_u64), 0..6);
    let waiting = prop::collection::vec((0..4_u64, 0..60_u64), 1..14);
    (held, waiting).prop_map(|(held, waiting)| {
        let of = |service_index: u64| service(900 + service_index, service_index);
        let held =
            held.into_iter().zip(0..).map(|((index, node), n)| began(replica(100 + n, &of(index), n as u32), &format!("n{node}"), 0));
        let waiting = waiting.into_iter().zip(0..).map(|((index, minutes), n)| match index {
            3 => lasting(shared(200 + n, 1, n, 1), minutes),
            index => replica(200 + n, &of(index), 100 + n as u32),
        });
        let mut v = view(3, held.chain(waiting).chain((0..3).map(of)).collect());
        v.nodes.values_mut().for_each(|node| node.size = Resources { cores: 6, memory_bytes: 3 << 30, gpus: 0 });
        v
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    /// This holds now and later, as far as the ends of work are known.
    #[test]
    fn no_plan_has_two_replicas_of_a_service_on_one_node(v in a_view()) {
        let state = State::from(v.clone());
        let plan = crate::plan(&state, NOW);
        for spans in &plan.state.spans {
            for (at, one) in spans.iter().enumerate() {
                for other in &spans[at + 1..] {
                    let meet = one.start_ms < other.end_ms && other.start_ms < one.end_ms;
                    let are_of_one = one.replica_of.is_some() && one.replica_of == other.replica_of;
                    prop_assert!(!(meet && are_of_one), "{one:?} {other:?}");
                }
            }
        }
    }
}

#[test]
fn random_views_have_replicas_that_wait_only_for_replicas_of_their_service() {
    use proptest::strategy::ValueTree;
    use proptest::test_runner::TestRunner;
    let mut runner = TestRunner::deterministic();
    let views: Vec<View> = (0..50).map(|_| a_view().new_tree(&mut runner).unwrap().current()).collect();
    let without_services = |view: &View| {
        let others = view.allocations.values().filter(|a| !a.is_scaled_service()).cloned();
        let plain = others.map(|mut allocation| {
            spec_of(&mut allocation).scaling = None;
            (allocation.id, Allocation { replica: None, ..allocation })
        });
        View { allocations: plain.collect(), ..view.clone() }
    };
    let begins_less = |view: &&View| placed(view).len() < placed(&without_services(view)).len();
    let count = views.iter().filter(begins_less).count();
    assert!(count > 5, "it matters in {count} of 50 views");
}

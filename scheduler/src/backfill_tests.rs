//! Backfill: exact plans, and a simulation in virtual time.

use crate::plan::plan_within;
use crate::tests::{NOW, id, node, owned_by, pending, running_on, shared, vcluster, view, with_plan};
use crate::why_not::why_not;
use crate::{Holdings, Outlook, Plan, RESERVATIONS_MAX, State, View, explain, waiting_in};
use lattice_model::claim::ClaimShare;
use lattice_model::test_builders::spec_of;
use lattice_model::{
    Allocation, AllocationId, AllocationState, Claim, NodeId, NodeState, Resources, SchedulerKind, Share, SharePhase, SharePolicy, Tenant,
    Timestamp,
};

use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

const MINUTE_MS: u64 = 60_000;
const WHOLE: Resources = Resources { cores: 2, memory_bytes: 1 << 30, gpus: 0 };
pub(crate) const HALF: Resources = Resources { cores: 1, memory_bytes: 1 << 29, gpus: 0 };

/// The allocation with a walltime of this many minutes; 0: without one.
pub(crate) fn lasting(mut allocation: Allocation, minutes: u64) -> Allocation {
    spec_of(&mut allocation).walltime = (minutes > 0).then(|| Duration::from_secs(minutes * 60));
    allocation
}

pub(crate) fn began(mut allocation: Allocation, node: &str, minutes_ago: u64) -> Allocation {
    let amount = if allocation.spec.share.is_some() { HALF } else { WHOLE };
    allocation.started_at = Some(Timestamp(NOW.0 - minutes_ago * MINUTE_MS));
    running_on(allocation, node, amount)
}

pub(crate) fn placed(view: &View) -> Vec<(AllocationId, Vec<String>)> {
    let claims = with_plan(view, NOW, |plan| plan.claims(|_| Some(1)));
    claims.into_iter().map(|c| (c.allocation, c.shares.iter().map(|s| s.node.to_string()).collect())).collect()
}

/// The minutes from now to each expected start.
pub(crate) fn starts(view: &View) -> Vec<(AllocationId, Option<u64>)> {
    let minutes = |(id, start): (AllocationId, Option<Timestamp>)| (id, start.map(|start| start.since_ms(NOW) / MINUTE_MS));
    with_plan(view, NOW, |plan| plan.expected_starts().map(minutes).collect())
}

pub(crate) fn reason(view: &View, n: u64) -> String {
    Outlook::of(view, NOW).get(&id(n)).unwrap().reason.clone()
}

pub(crate) fn summary(view: &View, n: u64) -> String {
    explain(view, &view.allocations[&id(n)], NOW).summary
}

/// n1 is held for 20 more minutes; 1 wants all three nodes.
fn one_of_three_is_held(behind: Vec<Allocation>) -> View {
    let held = began(lasting(pending(9, 1, 1), 30), "n1", 10);
    view(3, [vec![held, lasting(pending(1, 3, 10), 60)], behind].concat())
}

#[test]
fn work_that_ends_before_a_reservation_begins_now_and_longer_work_waits() {
    let v = one_of_three_is_held(vec![lasting(pending(2, 1, 20), 21), lasting(pending(3, 1, 30), 20), pending(4, 1, 40)]);
    assert_eq!(placed(&v), [(id(3), vec!["n2".into()]), (id(4), vec!["n3".into()])]);
    assert_eq!(with_plan(&v, NOW, |plan| plan.backfilled()), BTreeSet::from([id(3), id(4)]));
    assert_eq!(starts(&v), [(id(1), Some(20)), (id(2), Some(80))]);
    assert_eq!(reason(&v, 1), "starts ~01:20Z: next, 2 of 3 free");
    assert_eq!(reason(&v, 2), "starts ~02:20Z: 1 ahead");
    assert_eq!(reason(&v, 3), "about to be placed");
    assert_eq!(summary(&v, 1), "wants 3 nodes, 2 are free: it is next; expected to start at 1970-01-01T01:20:00.000Z on n[1-3]");
    let want = "wants 1 node, 2 are free; 1 allocation of its queue is ahead of it; expected to start at 1970-01-01T02:20:00.000Z on n1; if \
                it began now, it could delay work ahead of it";
    assert_eq!(summary(&v, 2), want);
    let why: Vec<String> = explain(&v, &v.allocations[&id(2)], NOW).nodes.iter().map(|(node, why)| format!("{node} {why}")).collect();
    let reserved = format!("is reserved for allocation {} from 1970-01-01T01:20:00.000Z on", id(1).short());
    assert_eq!(why, [format!("n1 is taken by allocation {}", id(9).short()), format!("n2 {reserved}"), format!("n3 {reserved}")]);
}

#[test]
fn nodes_that_a_reservation_does_not_need_are_free_for_any_time() {
    let held = |n, node, minutes| began(lasting(pending(n, 1, 1), minutes), node, 0);
    let v = view(
        4,
        vec![held(8, "n1", 10), held(9, "n2", 20), lasting(pending(1, 3, 10), 60), pending(2, 1, 20), lasting(pending(3, 1, 30), 0)],
    );
    // The reservation takes n1, n3 and n4, which are free at 10 minutes; at 20 minutes, one of n[1-4] is left over.
    assert_eq!(starts(&v), [(id(1), Some(10)), (id(3), Some(20))]);
    assert_eq!(placed(&v), [(id(2), vec!["n3".into()])]);
    let mut v = v;
    spec_of(v.allocations.get_mut(&id(1)).unwrap()).nodes = 2;
    // Two of the four suffice, and two are free: nothing waits.
    assert_eq!(placed(&v)[0], (id(1), vec!["n3".into(), "n4".into()]));
    spec_of(v.allocations.get_mut(&id(1)).unwrap()).nodes = 4;
    v.nodes.insert("n5".parse().unwrap(), node(5, NodeState::Ready));
    v.alive.insert("n5".parse().unwrap());
    // Four of five at 10 minutes: n1, n3, n4 and n5.
    assert_eq!(starts(&v)[0], (id(1), Some(10)));
    assert_eq!(placed(&v), [(id(2), vec!["n3".into()])]);
    let held = began(lasting(pending(7, 1, 1), 20), "n5", 0);
    v.allocations.insert(held.id, held);
    // Four of five at 20 minutes: one node that is free now is left to work without an end.
    assert_eq!(starts(&v), [(id(1), Some(20))]);
    assert_eq!(placed(&v), [(id(2), vec!["n3".into()]), (id(3), vec!["n4".into()])]);
}

#[test]
fn full_nodes_are_candidates_so_that_small_work_does_not_starve_large_work() {
    let held = |n: u64, minutes| began(lasting(pending(n, 1, 1), minutes), &format!("n{}", n - 7), 0);
    let mut v = view(2, vec![held(8, 10), held(9, 20), lasting(pending(1, 2, 10), 60), lasting(pending(2, 1, 20), 60)]);
    assert_eq!((placed(&v), starts(&v)), (vec![], vec![(id(1), Some(20)), (id(2), Some(80))]));
    // A node is free, but the small work must not take it.
    v.allocations.remove(&id(8));
    assert_eq!((placed(&v), starts(&v)), (vec![], vec![(id(1), Some(20)), (id(2), Some(80))]));
}

#[test]
fn shares_and_gpus_are_reserved_like_whole_nodes() {
    let gpus = |n, at, gpus| {
        let mut wants = shared(n, 1, at, 1);
        spec_of(&mut wants).share = Some(Resources { cores: 1, memory_bytes: 1, gpus });
        wants
    };
    let there = |n, minutes| {
        let mut there = began(lasting(gpus(n, 1, 2), minutes), "n1", 0);
        there.shares = [Share { node: "n1".parse().unwrap(), resources: there.spec.share.unwrap(), phase: SharePhase::Prepared }].into();
        there
    };
    let waiting = vec![lasting(gpus(1, 10, 4), 60), lasting(gpus(2, 20, 1), 30), lasting(gpus(3, 30, 1), 10), lasting(gpus(4, 40, 0), 600)];
    let mut v = view(1, [vec![there(8, 10), there(9, 20)], waiting].concat());
    v.nodes.values_mut().for_each(|node| node.size = Resources { cores: 8, memory_bytes: 8, gpus: 5 });
    // The first has four of five GPUs from minute 20 on: the fifth is free for any time.
    assert_eq!(placed(&v).iter().map(|(id, _)| *id).collect::<Vec<_>>(), [id(2), id(4)]);
    assert_eq!(starts(&v), [(id(1), Some(20)), (id(3), Some(30))]);
    v.allocations.remove(&id(2));
    assert_eq!(placed(&v).iter().map(|(id, _)| *id).collect::<Vec<_>>(), [id(3), id(4)]);
    v.nodes.values_mut().for_each(|node| node.size.gpus = 4);
    v.allocations.remove(&id(8));
    // Two are free now, and none is left over from minute 20 on.
    let longer = lasting(gpus(5, 25, 1), 21);
    v.allocations.insert(longer.id, longer);
    assert_eq!(placed(&v).iter().map(|(id, _)| *id).collect::<Vec<_>>(), [id(3), id(4)]);
}

#[test]
fn nodes_out_of_service_for_a_short_time_do_not_end_a_reservation() {
    let mut v = one_of_three_is_held(vec![lasting(pending(2, 1, 20), 120), lasting(pending(3, 1, 30), 5)]);
    let n3: NodeId = "n3".parse().unwrap();
    v.nodes.get_mut(&n3).unwrap().state = NodeState::Down;
    v.nodes.get_mut(&n3).unwrap().state_reason = "confirm-dead".into();
    v.nodes.get_mut(&n3).unwrap().state_since = Timestamp(NOW.0 - MINUTE_MS);
    assert_eq!(placed(&v), [(id(3), vec!["n2".into()])], "the long one would delay it");
    assert_eq!(starts(&v)[0], (id(1), None));
    assert_eq!(reason(&v, 1), "out of service: n3");
    let want = "wants 3 nodes, 1 is free: it is next; when it starts is not known: n3 is Down: confirm-dead";
    assert_eq!(summary(&v, 1), want);
    // After a longer time the other nodes are not reserved for it any more.
    v.nodes.get_mut(&n3).unwrap().state_since = Timestamp(NOW.0 - 60 * MINUTE_MS);
    assert_eq!((placed(&v), starts(&v)), (vec![(id(2), vec!["n2".into()])], vec![(id(3), Some(20))]));
    assert_eq!(summary(&v, 1), want);
    assert_eq!(explain(&v, &v.allocations[&id(1)], NOW).start, None);
    // A node that gossip does not show alive.
    let mut v = one_of_three_is_held(vec![lasting(pending(2, 1, 20), 120)]);
    v.alive.remove(&n3);
    assert_eq!(placed(&v), []);
    assert!(summary(&v, 1).ends_with("when it starts is not known: n3 is not seen alive by gossip"), "{}", summary(&v, 1));
    // It is expected back for a quarter of an hour from when gossip lost it, or else began.
    let since = |minutes| Timestamp(NOW.0 - minutes * MINUTE_MS);
    let given_up = vec![(id(2), vec!["n2".into()])];
    for (lost, gossips_since, want) in [
        (Some(since(14)), since(60), vec![]),
        (Some(since(15)), since(60), given_up.clone()),
        (None, since(14), vec![]),
        (None, since(15), given_up),
    ] {
        v.silent_since = lost.map(|lost| (n3.clone(), lost)).into_iter().collect();
        v.gossips_since = gossips_since;
        assert_eq!(placed(&v), want, "{lost:?}, {gossips_since:?}");
    }
    (v.silent_since, v.gossips_since) = (BTreeMap::new(), NOW);
    // Another node serves as well.
    v.nodes.insert("n4".parse().unwrap(), node(4, NodeState::Ready));
    v.alive.insert("n4".parse().unwrap());
    assert_eq!(starts(&v)[0], (id(1), Some(20)));
}

#[test]
fn a_start_behind_work_without_a_walltime_is_unknown() {
    let service = began(lasting(pending(9, 1, 1), 0), "n1", 10);
    let v = view(2, vec![service, lasting(pending(1, 2, 10), 60), lasting(pending(2, 2, 20), 60), lasting(pending(3, 1, 30), 100_000)]);
    assert_eq!((placed(&v), starts(&v)), (vec![(id(3), vec!["n2".into()])], vec![(id(1), None), (id(2), None)]));
    assert_eq!(reason(&v, 1), format!("waits for {}: it has no walltime", id(9).short()));
    assert!(summary(&v, 1).contains("on its nodes has no walltime"), "{}", summary(&v, 1));
    assert_eq!(Outlook::of(&v, NOW).get(&id(1)).unwrap().start, None);
}

#[test]
fn overdue_and_ended_work_counts_as_gone_in_a_minute_but_not_for_ever() {
    let late = began(lasting(pending(9, 1, 1), 10), "n1", 20);
    let mut ended = began(lasting(pending(8, 1, 1), 600), "n2", 1);
    (ended.state, ended.ended_at) = (AllocationState::Completed, Some(NOW));
    let mut preparing = running_on(lasting(pending(7, 1, 1), 30), "n3", WHOLE);
    (preparing.state, preparing.claimed_at) = (AllocationState::Staging, Some(Timestamp(NOW.0 - 20 * MINUTE_MS)));
    let v = view(3, vec![late, ended, preparing, lasting(pending(1, 2, 10), 60), lasting(pending(2, 3, 20), 60)]);
    assert_eq!(starts(&v), [(id(1), Some(1)), (id(2), Some(61))]);
    // What should have been gone for a quarter of an hour may never go, and short work is not kept waiting for it.
    let mut v = v;
    v.allocations.remove(&id(2));
    for stuck in [9, 8] {
        let mut v = v.clone();
        let stuck = v.allocations.get_mut(&id(stuck)).unwrap();
        (stuck.started_at, stuck.ended_at) = (Some(Timestamp(0)), stuck.ended_at.map(|_| Timestamp(0)));
        let constraints = &mut spec_of(v.allocations.get_mut(&id(1)).unwrap()).constraints;
        constraints.nodes = ["n1", "n2"].map(|name| name.parse().unwrap()).into();
        assert_eq!(starts(&v), [(id(1), None)]);
        assert!(reason(&v, 1).ends_with("which is overdue"), "{}", reason(&v, 1));
        assert!(summary(&v, 1).contains("should have left its nodes long ago"), "{}", summary(&v, 1));
    }
}

#[test]
fn a_reservation_far_ahead_leaves_other_nodes_to_those_behind_it() {
    let service = began(lasting(pending(9, 1, 1), 0), "n1", 10);
    let week = began(lasting(pending(8, 1, 1), 7 * 24 * 60), "n2", 0);
    let hour = began(lasting(pending(7, 1, 1), 60), "n3", 0);
    let on = |n, at, node: &str| {
        let mut allocation = lasting(pending(n, 1, at), 60);
        spec_of(&mut allocation).constraints.nodes = [node.parse().unwrap()].into();
        allocation
    };
    let (large, small) = (lasting(pending(3, 2, 12), 60), lasting(pending(4, 1, 13), 24 * 60));
    let v = view(4, vec![service, week, hour, on(1, 10, "n1"), on(2, 11, "n2"), large, small]);
    // n4 is free, and reserved with n3 for the large one, whatever waits for n1 and n2.
    assert_eq!(placed(&v), []);
    assert_eq!(starts(&v), [(id(1), None), (id(2), Some(7 * 24 * 60)), (id(3), Some(60)), (id(4), Some(120))]);
}

#[test]
fn services_do_not_starve_work_that_waits_for_a_service() {
    let service = |n, at| lasting(pending(n, 1, at), 0);
    let v = view(3, vec![began(service(9, 1), "n1", 10), lasting(pending(1, 3, 10), 60), service(2, 20), lasting(pending(3, 1, 30), 60)]);
    assert_eq!(placed(&v), [(id(3), vec!["n2".into()])], "the service would hold a node that the large one needs");
    // Of four nodes, three suffice: those that are free, and not the one that may never be.
    let mut v = v;
    v.allocations.insert(id(8), began(service(8, 1), "n2", 10));
    v.nodes.insert("n4".parse().unwrap(), node(4, NodeState::Ready));
    v.alive.insert("n4".parse().unwrap());
    assert_eq!(placed(&v), [(id(3), vec!["n3".into()])]);
}

#[test]
fn work_that_may_never_begin_takes_no_nodes_and_no_quota_from_work_with_a_walltime_behind_it() {
    let of = |mut allocation: Allocation| {
        spec_of(&mut allocation).tenant = "physics".into();
        allocation
    };
    let service = began(lasting(pending(9, 1, 1), 0), "n1", 10);
    let busy = began(lasting(pending(8, 1, 1), 30), "n2", 0);
    let (never, large) = (of(lasting(pending(1, 3, 10), 60)), of(lasting(pending(2, 2, 11), 60)));
    let mut v = view(3, vec![service, busy, never, large, lasting(pending(3, 1, 12), 60), lasting(pending(4, 1, 13), 30)]);
    let quota = Tenant { name: "physics".into(), max_nodes: Some(3), max_concurrent_allocations: None, ..Tenant::default() };
    v.tenants.insert("physics".into(), quota);
    assert_eq!(placed(&v), [(id(4), vec!["n3".into()])], "the others wait for the large one");
    assert_eq!(starts(&v), [(id(1), None), (id(2), Some(30)), (id(3), Some(90))]);
}

#[test]
fn a_reservation_takes_the_nodes_that_become_free_last_before_it_and_leaves_those_that_are_free() {
    let held = |n: u64, node: &str, minutes| began(lasting(pending(n, 1, 1), minutes), node, 0);
    let in_fifo = |mut allocation: Allocation| {
        spec_of(&mut allocation).vcluster = "fifo".into();
        allocation
    };
    let mut first = in_fifo(lasting(pending(1, 1, 10), 60));
    spec_of(&mut first).constraints.nodes = ["n5".parse().unwrap()].into();
    let (second, other) = (in_fifo(lasting(pending(2, 2, 11), 60)), lasting(pending(3, 1, 12), 120));
    let mut v = view(5, vec![held(93, "n3", 50), held(94, "n4", 50), held(95, "n5", 60), first, second, other]);
    v.vclusters.insert("fifo".into(), vcluster("fifo", SchedulerKind::InteractiveFifo, 0));
    // The second comes after the first, at minute 60, and needs neither n1 nor n2 until then.
    assert_eq!(starts(&v), [(id(1), Some(60)), (id(2), Some(60))]);
    assert_eq!(placed(&v), [(id(3), vec!["n1".into()])]);
}

#[test]
fn a_plan_of_too_much_work_begins_the_part_that_it_reaches() {
    // Each allocation is of another class, and looks at the nodes of which something is free.
    let waiting = (1..=200).map(|n| {
        let mut allocation = pending(n, 1, n);
        spec_of(&mut allocation).share = Some(Resources { memory_bytes: n, ..HALF });
        lasting(allocation, 60)
    });
    let v = view(100, waiting.collect());
    let state = State::from(v.clone());
    let plan = plan_within(&state, NOW, 5000);
    let begun: Vec<AllocationId> = plan.claims(|_| Some(1)).iter().map(|claim| claim.allocation).collect();
    assert!((50..150).contains(&begun.len()) && begun.iter().copied().eq((1..=begun.len() as u64).map(id)), "the first ones: {begun:?}");
    let last = plan.planned.last().unwrap();
    assert_eq!(plan.expected(last).reason, "behind 199: too much waits to look at");
    assert!(plan.sentence(last).ends_with("so much waits that a plan does not come to it"), "{}", plan.sentence(last));
}

#[test]
fn a_lower_class_goes_last_and_no_class_gets_ahead() {
    let of_class = |n, at, class| {
        let mut allocation = lasting(pending(n, 1, at), 60);
        spec_of(&mut allocation).preemption_class = class;
        allocation
    };
    let mut v = view(1, vec![of_class(1, 10, 5), of_class(2, 20, 10), of_class(3, 5, 4)]);
    assert_eq!(waiting_in(&v, "default", NOW).iter().map(|a| a.id).collect::<Vec<_>>(), [id(1), id(2), id(3)]);
    assert_eq!((placed(&v), starts(&v)), (vec![(id(1), vec!["n1".into()])], vec![(id(2), Some(60)), (id(3), Some(120))]));
    // A queue that is first come, first served has no classes.
    v.vclusters.insert("fifo".into(), vcluster("fifo", SchedulerKind::InteractiveFifo, 0));
    v.allocations.values_mut().for_each(|allocation| spec_of(allocation).vcluster = "fifo".into());
    assert_eq!(placed(&v), [(id(3), vec!["n1".into()])]);
}

#[test]
fn queues_that_share_nodes_respect_each_others_reservations() {
    let of = |mut allocation: Allocation, queue: &str| {
        spec_of(&mut allocation).vcluster = queue.into();
        allocation
    };
    for kind in [SchedulerKind::HpcBackfill, SchedulerKind::InteractiveFifo] {
        let mut v = one_of_three_is_held(vec![lasting(pending(2, 1, 20), 60), lasting(pending(3, 1, 30), 20)]);
        v.vclusters = ["guests", "large"].map(|name| (name.to_owned(), vcluster(name, kind, 0))).into();
        let large = of(v.allocations[&id(1)].clone(), "large");
        v.allocations.insert(large.id, large);
        let of_guests = of(lasting(pending(4, 1, 40), 10), "guests");
        v.allocations.insert(of_guests.id, of_guests);
        assert_eq!(placed(&v), [(id(3), vec!["n2".into()]), (id(4), vec!["n3".into()])], "{kind}");
        assert_eq!(starts(&v), [(id(1), Some(20)), (id(2), Some(80))], "{kind}");
    }
}

#[test]
fn work_that_would_use_up_a_quota_that_a_reservation_needs_waits() {
    let of = |mut allocation: Allocation| {
        spec_of(&mut allocation).tenant = "physics".into();
        allocation
    };
    let mut v = one_of_three_is_held(vec![of(lasting(pending(2, 1, 20), 60)), of(lasting(pending(3, 1, 30), 10))]);
    let first = of(v.allocations[&id(1)].clone());
    v.allocations.insert(first.id, first);
    spec_of(v.allocations.get_mut(&id(1)).unwrap()).constraints.nodes = ["n1", "n2"].map(|name| name.parse().unwrap()).into();
    spec_of(v.allocations.get_mut(&id(1)).unwrap()).nodes = 2;
    let quota = |max| Tenant { name: "physics".into(), max_nodes: Some(max), max_concurrent_allocations: None, ..Tenant::default() };
    v.tenants.insert("physics".into(), quota(2));
    // n3 is free for ever, but from minute 20 on the tenant uses both of its nodes.
    assert_eq!((placed(&v), starts(&v)), (vec![(id(3), vec!["n2".into()])], vec![(id(1), Some(20))]));
    assert_eq!(reason(&v, 2), "quota: kept for work ahead of it");
    assert!(summary(&v, 2).starts_with("waits for work of its tenant that is ahead of it"), "{}", summary(&v, 2));
    v.tenants.insert("physics".into(), quota(3));
    assert_eq!(placed(&v)[0], (id(2), vec!["n3".into()]));
}

#[test]
fn only_the_first_of_a_queue_have_reservations() {
    let held = began(lasting(pending(9000, 1, 1), 30), "n1", 10);
    let waiting = (1..=RESERVATIONS_MAX as u64 + 2).map(|n| lasting(pending(n, 2, n), 60));
    let v = view(2, std::iter::once(held).chain(waiting).chain([lasting(pending(8000, 1, 8000), 20)]).collect());
    assert_eq!(placed(&v), [(id(8000), vec!["n2".into()])], "those without a reservation are overtaken too");
    assert_eq!(starts(&v).len(), RESERVATIONS_MAX);
    let behind = RESERVATIONS_MAX as u64 + 2;
    assert_eq!(reason(&v, behind), format!("behind {} in its queue", behind - 1));
    assert_eq!(reason(&v, behind - 2), "starts ~01-03 02:20Z: 49 ahead");
    assert!(summary(&v, behind).ends_with("only the first 50 that wait in a queue have an expected start"), "{}", summary(&v, behind));
}

#[test]
fn first_come_first_served_shows_starts_and_lets_nothing_overtake() {
    let mut v = one_of_three_is_held(vec![lasting(pending(2, 1, 20), 10), lasting(pending(3, 3, 30), 10)]);
    v.vclusters.insert("fifo".into(), vcluster("fifo", SchedulerKind::InteractiveFifo, 0));
    v.allocations.values_mut().for_each(|allocation| spec_of(allocation).vcluster = "fifo".into());
    assert_eq!((placed(&v), starts(&v)), (vec![], vec![(id(1), Some(20)), (id(2), Some(80)), (id(3), Some(90))]));
    // With nodes out of service, nobody knows.
    v.nodes.get_mut(&"n3".parse::<NodeId>().unwrap()).unwrap().state = NodeState::Drained;
    assert_eq!((placed(&v), starts(&v)), (vec![], vec![]));
    assert_eq!(reason(&v, 2), "behind 1 in its queue");
}

/// One job of the simulation: whole nodes, or cores of one node.
#[derive(Clone, Debug)]
struct Job {
    arrives_min: u64,
    nodes: u32,
    /// 0: whole nodes.
    cores: u32,
    walltime_min: u64,
    /// How much earlier than its walltime it ends; it lasts at least a minute.
    early_min: u64,
    /// See [`owned_by`].
    owner: u8,
}

fn jobs(cores_max: u32) -> impl Strategy<Value = Vec<Job>> {
    let job = (0..60_u64, 1..5_u32, 0..=cores_max, 1..60_u64, 0..40_u64, 0..5_u8);
    let job = job.prop_map(|(arrives_min, nodes, cores, walltime_min, early_min, owner)| {
        let nodes = if cores > 0 { 1 + nodes % 2 } else { nodes };
        Job { arrives_min, nodes, cores, walltime_min, early_min, owner }
    });
    proptest::collection::vec(job, 1..40)
}

/// Runs jobs on four nodes of two cores in virtual time until all have ended.
struct Simulation {
    view: View,
    ends: BTreeMap<AllocationId, Timestamp>,
    /// The start that was expected first.
    expected: BTreeMap<AllocationId, Timestamp>,
    /// The start that was expected when the allocation became the first of those that wait.
    expected_as_first: BTreeMap<AllocationId, Timestamp>,
    has_waited: usize,
    state: State,
}

impl Simulation {
    fn run(jobs: &[Job], are_alike: bool, share_policy: SharePolicy) -> usize {
        let mut sim = Self {
            view: View { share_policy, ..view(4, vec![]) },
            ends: BTreeMap::new(),
            expected: BTreeMap::new(),
            expected_as_first: BTreeMap::new(),
            has_waited: 0,
            state: State::default(),
        };
        let mut arrivals: Vec<(Timestamp, Allocation)> = Vec::new();
        for (n, job) in (1..).zip(jobs) {
            let at = Timestamp(NOW.0 + job.arrives_min * MINUTE_MS);
            let job_of = if job.cores > 0 { shared(n, job.nodes, at.0, job.cores) } else { pending(n, job.nodes, at.0) };
            arrivals.push((at, owned_by(job.owner, lasting(job_of, job.walltime_min))));
        }
        arrivals.sort_by_key(|(at, allocation)| (*at, allocation.id));
        let mut arrivals = arrivals.into_iter().peekable();
        while let Some(now) = arrivals.peek().map(|(at, _)| *at).into_iter().chain(sim.ends.values().copied()).min() {
            let ended: Vec<AllocationId> = sim.ends.iter().filter(|(_, end)| **end <= now).map(|(id, _)| *id).collect();
            for id in ended {
                sim.ends.remove(&id);
                sim.view.allocations.remove(&id);
            }
            while let Some((_, allocation)) = arrivals.next_if(|(at, _)| *at <= now) {
                sim.view.allocations.insert(allocation.id, allocation);
            }
            sim.step(now, jobs, are_alike);
        }
        assert!(sim.view.allocations.is_empty(), "all work ran");
        sim.has_waited
    }

    fn step(&mut self, now: Timestamp, jobs: &[Job], are_alike: bool) {
        self.state.apply(self.view.clone());
        let planned = crate::plan(&self.state, now);
        let (claims, starts): (Vec<Claim>, Vec<_>) = (planned.claims(|_| Some(1)), planned.expected_starts().collect());
        self.assert_same_rules(&planned);
        // State kept from earlier plans does not change a plan.
        let made = State::from(self.view.clone());
        let again = crate::plan(&made, now);
        assert_eq!(
            format!("{claims:?} {starts:?}"),
            format!("{:?} {:?}", again.claims(|_| Some(1)), again.expected_starts().collect::<Vec<_>>())
        );
        assert_eq!(Outlook::of(&self.view, now), Outlook::of(&self.view, now));
        self.assert_order(&claims, are_alike, now);
        let first_waiting = starts.first().copied();
        for (id, start) in starts {
            let start = start.expect("all work has a walltime, and all nodes are in service");
            assert!(start > now, "what can begin now does not wait");
            self.expected.entry(id).or_insert(start);
        }
        if let Some((id, Some(start))) = first_waiting {
            self.has_waited += 1;
            let first = self.expected_as_first.entry(id).or_insert(start);
            assert!(start <= *first, "the first of the queue was expected at {first}, and is at {start} now");
        }
        for claim in claims {
            if are_alike && let Some(expected) = self.expected.get(&claim.allocation) {
                assert!(now <= *expected, "{} was expected at {expected} and starts at {now}", claim.allocation);
            }
            if let Some(expected) = self.expected_as_first.get(&claim.allocation) {
                assert!(now <= *expected, "{} was expected at {expected} and starts at {now}", claim.allocation);
            }
            self.begin(claim, now, jobs);
        }
        self.assert_not_overcommitted();
        self.assert_apart();
    }

    fn begin(&mut self, claim: Claim, now: Timestamp, jobs: &[Job]) {
        let allocation = self.view.allocations.get_mut(&claim.allocation).unwrap();
        assert_eq!(claim.shares.len(), allocation.spec.nodes as usize);
        let share = |s: ClaimShare| Share { node: s.node, resources: s.resources, phase: SharePhase::Prepared };
        (allocation.state, allocation.started_at) = (AllocationState::Running, Some(now));
        allocation.shares = claim.shares.into_iter().map(share).collect();
        let number = (1..).zip(jobs).find(|(n, _)| id(*n) == claim.allocation).unwrap();
        let lasts_min = number.1.walltime_min.saturating_sub(number.1.early_min).max(1);
        self.ends.insert(claim.allocation, Timestamp(now.0 + lasts_min * MINUTE_MS));
    }

    /// No work begins while the first waiting allocation would fit instead.
    fn assert_order(&self, claims: &[Claim], are_alike: bool, now: Timestamp) {
        let waiting = waiting_in(&self.view, "default", now);
        let begins = |id: AllocationId| claims.iter().any(|claim| claim.allocation == id);
        let Some(at) = waiting.iter().position(|a| !begins(a.id)).filter(|_| are_alike) else { return };
        let held: usize = self.view.allocations.values().filter(|a| !a.waits()).map(|a| a.spec.nodes as usize).sum();
        let ahead: usize = waiting[..at].iter().map(|a| a.spec.nodes as usize).sum();
        assert!(held + ahead + waiting[at].spec.nodes as usize > 4, "{} fits and waits", waiting[at].id);
    }

    /// The plan counts exactly those nodes as free for which an explanation has no reason.
    fn assert_same_rules(&self, plan: &Plan<'_>) {
        let held = Holdings::of(self.view.nodes.values(), self.view.allocations.values());
        for planned in &plan.planned {
            let class = &plan.classes.all[planned.class];
            for (at, node) in plan.state.nodes.iter().enumerate() {
                let is_free = class.candidates.contains(at) && plan.state.is_free_in_view(at, class.part(plan.state.columns, at).as_ref());
                let why = why_not(&self.view, &held, node, planned.allocation);
                assert_eq!(is_free, why.is_none(), "{}: {why:?}", node.id);
            }
        }
    }

    /// No node has shares of two owners whom the share policy keeps apart.
    fn assert_apart(&self) {
        let policy = self.view.share_policy;
        let mut there: BTreeMap<&NodeId, Vec<&Allocation>> = BTreeMap::new();
        for allocation in self.view.allocations.values() {
            for node in allocation.nodes() {
                let others = there.entry(node).or_default();
                for other in others.iter().copied() {
                    assert_eq!(policy.keeps_apart(allocation, Some(policy.owner_of(other))), None, "{node}");
                }
                others.push(allocation);
            }
        }
    }

    fn assert_not_overcommitted(&self) {
        let mut held: BTreeMap<NodeId, Resources> = BTreeMap::new();
        for share in self.view.allocations.values().flat_map(|a| a.shares.iter()) {
            let sum = held.entry(share.node.clone()).or_default();
            *sum = sum.plus(&share.resources);
            assert!(WHOLE.holds(sum), "{} has {sum}", share.node);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    /// If all nodes are alike, no work that ends by its walltime starts later than was first expected.
    #[test]
    fn no_start_is_later_than_was_first_expected(jobs in jobs(0)) {
        Simulation::run(&jobs, true, SharePolicy::Anyone);
    }

    /// With shares of nodes, this holds for the first waiting allocation.
    #[test]
    fn the_first_of_a_queue_never_starts_later_than_expected(jobs in jobs(2)) {
        Simulation::run(&jobs, false, SharePolicy::Anyone);
    }

    /// It holds under each share policy, and no node has work of two owners whom the policy keeps apart.
    #[test]
    fn the_first_of_a_queue_starts_as_expected_under_share_policies(jobs in jobs(2), is_by_user: bool) {
        Simulation::run(&jobs, false, if is_by_user { SharePolicy::User } else { SharePolicy::Tenant });
    }
}

#[test]
fn the_simulation_makes_work_wait() {
    let job =
        |n: u64| Job { arrives_min: n % 7, nodes: 1 + (n % 4) as u32, cores: 0, walltime_min: 5 + n * 7 % 30, early_min: n % 9, owner: 0 };
    let jobs: Vec<Job> = (0..40).map(job).collect();
    assert!(Simulation::run(&jobs, true, SharePolicy::Anyone) > 20);
}

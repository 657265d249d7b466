//! Nodes that vClusters lend each other, in whole plans.

use crate::tests::{NOW, id, node, pending, placed, vcluster, view, with_plan};
use crate::{Outlook, View, explain, misfit};
use lattice_model::constraint::CHECKPOINTS;
use lattice_model::test_builders::spec_of;
use lattice_model::{
    Allocation, AllocationId, AllocationState, CheckpointPolicy, CheckpointSignal, Node, NodeState, Resources, SchedulerKind, Share,
    SharePhase, Timestamp, VCluster,
};
use proptest::prelude::*;
use std::time::Duration;

const MINUTE_MS: u64 = 60_000;
const WHOLE: Resources = Resources { cores: 2, memory_bytes: 1 << 30, gpus: 0 };

/// Work of this vCluster that saves itself, with a walltime of this many minutes.
fn work(n: u64, vcluster: &str, nodes: u32, minutes: u64) -> Allocation {
    let mut allocation = pending(n, nodes, n);
    let spec = spec_of(&mut allocation);
    spec.vcluster = vcluster.into();
    spec.walltime = Some(Duration::from_secs(minutes * 60));
    spec.checkpoint = Some(CheckpointPolicy::by_signal(CheckpointSignal::USR1));
    allocation
}

/// The allocation has begun on these nodes now.
fn runs(mut allocation: Allocation, nodes: &[&str]) -> Allocation {
    let share = |node: &&str| Share { node: node.parse().unwrap(), resources: WHOLE, phase: SharePhase::Prepared };
    allocation.state = AllocationState::Running;
    allocation.shares = nodes.iter().map(share).collect();
    allocation.started_at = Some(NOW);
    allocation
}

/// `lender` has n1 and n2, and lends them for up to two hours; `borrower` has n3 and n4.
fn lending(kind: SchedulerKind, allocations: Vec<Allocation>) -> View {
    let mut view = view(4, allocations);
    for (name, home) in [("n1", "lender"), ("n2", "lender"), ("n3", "borrower"), ("n4", "borrower")] {
        let node = view.nodes.get_mut(&name.parse().unwrap()).unwrap();
        (node.home, node.features) = (home.into(), vec![CHECKPOINTS.into()]);
    }
    let lender = VCluster { lend_ms: Some(120 * MINUTE_MS), ..vcluster("lender", kind, 2) };
    let borrower = VCluster { borrows: true, ..vcluster("borrower", SchedulerKind::HpcBackfill, 2) };
    view.vclusters = [("lender".into(), lender), ("borrower".into(), borrower)].into();
    view
}

fn lent(allocations: Vec<Allocation>) -> View {
    lending(SchedulerKind::HpcBackfill, allocations)
}

fn preempted(view: &View) -> Vec<(AllocationId, Vec<AllocationId>)> {
    let all = with_plan(view, NOW, |plan| plan.preemptions());
    all.into_iter().map(|(_, of)| (of.beneficiary, of.victims.into_iter().map(|(id, _)| id).collect())).collect()
}

#[test]
fn waiting_work_gets_its_own_nodes_and_then_lent_ones() {
    assert_eq!(placed(&lent(vec![work(1, "borrower", 3, 60)])), [(id(1), vec!["n3".into(), "n4".into(), "n1".into()])]);
    assert_eq!(placed(&lent(vec![work(1, "borrower", 2, 60)])), [(id(1), vec!["n3".into(), "n4".into()])]);
    let busy = runs(work(9, "borrower", 2, 600), &["n3", "n4"]);
    assert_eq!(placed(&lent(vec![busy.clone(), work(1, "borrower", 1, 60)])), [(id(1), vec!["n1".into()])]);
    // It borrows instead of preempting work of a lower class.
    let mut low = busy;
    spec_of(&mut low).preemption_class = 1;
    let v = lent(vec![low, work(1, "borrower", 1, 60)]);
    assert_eq!((placed(&v), preempted(&v)), (vec![(id(1), vec!["n1".into()])], vec![]));
}

#[test]
fn only_work_that_gives_nodes_back_borrows_and_only_for_as_long_as_they_are_lent() {
    let mut lost = work(1, "borrower", 3, 60);
    spec_of(&mut lost).checkpoint = None;
    let mut endless = work(1, "borrower", 3, 60);
    spec_of(&mut endless).walltime = None;
    for kept_off in [lost, endless, work(1, "borrower", 3, 121), work(1, "", 3, 60)] {
        let v = lent(vec![kept_off.clone()]);
        assert_eq!(placed(&v), [], "{:?}", kept_off.spec);
        assert!(misfit(v.nodes.values(), &v.vclusters, &kept_off.spec).is_some());
    }
    let fits = work(1, "borrower", 4, 120);
    let v = lent(vec![fits.clone()]);
    assert_eq!((placed(&v).len(), misfit(v.nodes.values(), &v.vclusters, &fits.spec)), (1, None));
    for change in [
        |v: &mut View| v.vclusters.get_mut("borrower").unwrap().borrows = false,
        |v: &mut View| {
            v.vclusters.get_mut("lender").unwrap().lend_ms = None;
        },
    ] {
        let mut v = lent(vec![fits.clone()]);
        change(&mut v);
        assert_eq!(placed(&v), []);
    }
}

#[test]
fn work_of_the_lender_comes_first() {
    // Submitted later, and of the same class.
    let v = lent(vec![work(1, "borrower", 3, 60), work(2, "lender", 2, 60)]);
    assert_eq!(placed(&v), [(id(2), vec!["n1".into(), "n2".into()])]);
    let waits = |minutes| vec![runs(work(9, "lender", 1, 30), &["n2"]), work(1, "borrower", 3, minutes), work(2, "lender", 2, 60)];
    assert_eq!(placed(&lent(waits(60))), [], "the reservation of the lender's work would begin later");
    assert_eq!(placed(&lent(waits(30))), [(id(1), vec!["n3".into(), "n4".into(), "n1".into()])]);
}

#[test]
fn work_that_waits_for_nodes_to_be_lent_says_so() {
    let v = lent(vec![runs(work(9, "lender", 2, 60), &["n1", "n2"]), work(1, "borrower", 3, 60)]);
    let reason = &Outlook::of(&v, NOW).get(&id(1)).unwrap().reason.clone();
    assert_eq!(reason, "waits to borrow: 2 of 3 are its own");
    let why = explain(&v, &v.allocations[&id(1)], NOW).summary;
    assert!(why.ends_with("its vCluster has 2 that could ever serve it: it waits until others lend it nodes"), "{why}");
}

#[test]
fn the_lender_gets_its_nodes_back_whatever_the_classes() {
    let borrowed = |class| {
        let mut allocation = runs(work(9, "borrower", 3, 60), &["n3", "n4", "n1"]);
        spec_of(&mut allocation).preemption_class = class;
        allocation
    };
    for kind in [SchedulerKind::HpcBackfill, SchedulerKind::InteractiveFifo] {
        for class in [1, 5, 9] {
            let v = lending(kind, vec![borrowed(class), work(1, "lender", 2, 60)]);
            assert_eq!(preempted(&v), [(id(1), vec![id(9)])], "{kind}, class {class}");
        }
        let v = lending(kind, vec![borrowed(5), work(1, "lender", 1, 60)]);
        assert_eq!((preempted(&v), placed(&v)), (vec![], vec![(id(1), vec!["n2".into()])]), "its other node is free");
    }
    // A node that was moved to another vCluster was not lent.
    let mut v = lent(vec![borrowed(5), work(1, "lender", 2, 60)]);
    v.vclusters.get_mut("borrower").unwrap().borrows = false;
    assert_eq!(preempted(&v), []);
    // The waiting work is not the lender's.
    assert_eq!(preempted(&lent(vec![borrowed(5), work(1, "borrower", 2, 600)])), []);
}

#[test]
fn the_default_vcluster_lends_and_borrows_as_well() {
    let mut v = lent(vec![work(1, "borrower", 2, 600), work(2, "", 2, 60)]);
    for name in ["n1", "n2"] {
        v.nodes.get_mut(&name.parse().unwrap()).unwrap().home.clear();
    }
    let default = |borrows, lend_ms| VCluster { borrows, lend_ms, ..vcluster("default", SchedulerKind::HpcBackfill, 0) };
    v.vclusters.insert("default".into(), default(false, Some(60 * MINUTE_MS)));
    v.allocations.insert(id(1), work(1, "borrower", 3, 60));
    v.allocations.remove(&id(2));
    assert_eq!(placed(&v), [(id(1), vec!["n3".into(), "n4".into(), "n1".into()])]);
    v.vclusters.insert("default".into(), default(true, None));
    let of_borrower = v.vclusters.get_mut("borrower").unwrap();
    (of_borrower.borrows, of_borrower.lend_ms) = (false, Some(60 * MINUTE_MS));
    v.allocations = [(id(2), work(2, "", 3, 60))].into();
    assert_eq!(placed(&v), [(id(2), vec!["n1".into(), "n2".into(), "n3".into()])]);
}

#[test]
fn only_the_first_of_a_queue_in_the_order_of_submission_gets_lent_nodes_back() {
    let busy = runs(work(8, "lender", 1, 60), &["n2"]);
    let borrowed = runs(work(9, "borrower", 1, 30), &["n1"]);
    let v = lending(SchedulerKind::InteractiveFifo, vec![busy, borrowed, work(1, "lender", 2, 60), work(2, "lender", 1, 20)]);
    assert_eq!(preempted(&v), [], "the first one needs the other node as well, and the second one waits for the first");
}

#[test]
fn lent_nodes_are_taken_back_before_own_work_is_preempted_however_many_have_them() {
    let mut own = runs(work(5, "lender", 1, 600), &["n2"]);
    spec_of(&mut own).preemption_class = 1;
    let borrowed = runs(work(9, "borrower", 1, 60), &["n1"]);
    let v = lent(vec![own, borrowed, work(1, "lender", 1, 60)]);
    assert_eq!(preempted(&v), [(id(1), vec![id(9)])]);
    // The lender has lent eight nodes to eight different allocations.
    let mut v = lent(
        (11..=18)
            .map(|n| runs(work(n, "borrower", 1, 60), &[["n1", "n2", "n5", "n6", "n7", "n8", "n9", "n10"][n as usize - 11]]))
            .collect(),
    );
    for n in 5..=10 {
        let more = Node { home: "lender".into(), features: vec![CHECKPOINTS.into()], ..node(n, NodeState::Ready) };
        v.alive.insert(more.id.clone());
        v.nodes.insert(more.id.clone(), more);
    }
    v.allocations.insert(id(1), work(1, "lender", 8, 60));
    assert_eq!(preempted(&v)[0].1.len(), 8);
}

#[test]
fn work_borrows_although_its_own_reservation_uses_up_the_limit_of_its_user() {
    let mut v = lent(vec![work(1, "borrower", 3, 60), runs(work(9, "borrower", 2, 10), &["n3", "n4"])]);
    v.allocations.get_mut(&id(9)).unwrap().owner.uid = 77;
    v.vclusters.get_mut("borrower").unwrap().nodes = 2;
    spec_of(v.allocations.get_mut(&id(1)).unwrap()).nodes = 2;
    v.user_running = Some(1);
    assert_eq!(placed(&v), [(id(1), vec!["n1".into(), "n2".into()])]);
}

proptest! {
    /// Whatever waits and runs: no node is borrowed while work of the lender could begin there, no node is
    /// overcommitted, and borrowing delays no reservation of the lender.
    #[test]
    fn borrowing_harms_nobody(
        lenders in prop::collection::vec((1_u32..3, 1_u64..200), 0..4),
        borrowers in prop::collection::vec((1_u32..5, 1_u64..200), 0..5),
        is_busy in any::<bool>(),
        is_down in any::<bool>(),
    ) {
        let of = |name: &'static str, first: u64, all: &[(u32, u64)]| {
            (first..).zip(all.to_vec()).map(|(n, (nodes, minutes))| work(n, name, nodes, minutes)).collect::<Vec<_>>()
        };
        let (lenders, borrowers) = (of("lender", 1, &lenders), of("borrower", 20, &borrowers));
        let busy = is_busy.then(|| runs(work(50, "lender", 1, 45), &["n1"]));
        let view = |borrowers: Vec<Allocation>| {
            let mut v = lent([lenders.clone(), borrowers, busy.clone().into_iter().collect()].concat());
            if is_down {
                let down = Node { home: "borrower".into(), ..node(3, NodeState::Down) };
                v.nodes.insert(down.id.clone(), down);
            }
            v
        };
        let of_lender = |v: &View| -> Vec<_> { placed(v).into_iter().filter(|(placed, _)| lenders.iter().any(|a| a.id == *placed)).collect() };
        let starts = |v: &View| -> Vec<(AllocationId, Option<Timestamp>)> {
            with_plan(v, NOW, |plan| plan.expected_starts().filter(|(id, _)| lenders.iter().any(|a| a.id == *id)).collect())
        };
        let (alone, with) = (view(vec![]), view(borrowers));
        prop_assert_eq!(of_lender(&alone), of_lender(&with));
        prop_assert_eq!(starts(&alone), starts(&with));
        let mut taken = std::collections::BTreeSet::new();
        for node in placed(&with).into_iter().flat_map(|(_, nodes)| nodes) {
            prop_assert!(taken.insert(node.clone()) && !(is_busy && node == "n1"), "{node} twice");
        }
    }
}

//! The choice of the work to preempt.

use crate::View;
use crate::tests::{NOW, id, pending, placed, vcluster, view, with_plan};
use lattice_model::constraint::CHECKPOINTS;
use lattice_model::test_builders::spec_of;
use lattice_model::{
    Allocation, AllocationId, AllocationState, CheckpointId, CheckpointPolicy, CheckpointRef, CheckpointSignal, EndReason, Leaving, NodeId,
    PreemptCause, Preemption, RequeuePolicy, Resources, SchedulerKind, Share, SharePhase, Timestamp,
};
use proptest::prelude::*;
use std::collections::BTreeSet;
use std::time::Duration;

const MINUTE_MS: u64 = 60_000;
const WHOLE: Resources = Resources { cores: 2, memory_bytes: 1 << 30, gpus: 0 };

/// Work of this class with a walltime of this many minutes.
fn work(n: u64, nodes: u32, class: u8, minutes: u64) -> Allocation {
    let mut allocation = pending(n, nodes, n);
    let spec = spec_of(&mut allocation);
    spec.walltime = Some(Duration::from_secs(minutes * 60));
    spec.preemption_class = class;
    (spec.requeue, spec.requeues_max) = (RequeuePolicy::Always, 3);
    allocation
}

/// The allocation has run on these nodes for this many minutes.
fn runs(mut allocation: Allocation, nodes: &[&str], minutes: u64) -> Allocation {
    let share = |node: &&str| Share { node: node.parse().unwrap(), resources: WHOLE, phase: SharePhase::Prepared };
    allocation.state = AllocationState::Running;
    allocation.shares = nodes.iter().map(share).collect();
    allocation.started_at = Some(Timestamp(NOW.0 - minutes * MINUTE_MS));
    allocation
}

fn saves(mut allocation: Allocation) -> Allocation {
    spec_of(&mut allocation).checkpoint = Some(CheckpointPolicy::by_signal(CheckpointSignal::USR1));
    allocation
}

/// The allocation is asked to give its nodes back.
fn asked(mut allocation: Allocation) -> Allocation {
    allocation.preemption = Some(Box::new(Preemption {
        id: CheckpointId(allocation.id.0),
        by: "scheduler".into(),
        reason: "x".into(),
        cause: PreemptCause::Priority,
        deadline_ms: 600_000,
        hold: false,
        failed: None,
    }));
    allocation
}

/// Changes the view as the quorum does when a victim has saved itself: it waits again, and its nodes
/// have not released their shares yet.
fn suspend(view: &mut View, victim: AllocationId) {
    let victim = view.allocations.get_mut(&victim).unwrap();
    let (id, epoch, saved) = (victim.id, victim.epoch, CheckpointId(victim.id.0));
    for share in &victim.shares {
        let leaving = Leaving { allocation: id, epoch, resources: share.resources, fenced: false, owner: None };
        view.nodes.get_mut(share.node).unwrap().leaving.push(leaving);
    }
    let reason = EndReason::Preempted { by: "scheduler".into(), why: "x".into(), saved: Ok(saved) };
    victim.close_attempt(NOW, &reason, "scheduler");
    (victim.state, victim.reason, victim.preemption) = (AllocationState::Suspended, Some(reason), None);
    victim.checkpoint = Some(Box::new(CheckpointRef { id: saved, epoch, step: None, bytes: 1 }));
}

/// The first node that has not released a share of work that has ended.
fn unreleased(view: &View) -> Option<NodeId> {
    view.nodes.values().find(|node| !node.leaving.is_empty()).map(|node| node.id.clone())
}

fn preempted(view: &View) -> Vec<(AllocationId, Vec<AllocationId>)> {
    let all = with_plan(view, NOW, |plan| plan.preemptions());
    all.into_iter().map(|(_, of)| (of.beneficiary, of.victims.into_iter().map(|(id, _)| id).collect())).collect()
}

#[test]
fn the_cheapest_work_of_a_lower_class_gives_its_nodes_back() {
    let held = |minutes| {
        vec![
            runs(work(11, 1, 1, 600), &["n1"], minutes),
            saves(runs(work(12, 1, 1, 600), &["n2"], 50)),
            runs(work(13, 1, 5, 600), &["n3"], 0),
        ]
    };
    let v = view(3, [held(5), vec![work(1, 1, 5, 60)]].concat());
    assert_eq!(preempted(&v), [(id(1), vec![id(12)])], "it loses nothing");
    let v = view(3, [held(0), vec![work(1, 1, 5, 60)]].concat());
    assert_eq!(preempted(&v), [(id(1), vec![id(11)])], "it has only begun");
    let v = view(3, [held(0), vec![work(1, 3, 5, 60)]].concat());
    assert_eq!(preempted(&v), [], "work of the same class is in the way");
    // Two waiting allocations do not get the same victim.
    let v = view(3, [held(0), vec![work(1, 1, 5, 60), work(2, 1, 5, 60), work(3, 1, 5, 60)]].concat());
    assert_eq!(preempted(&v), [(id(1), vec![id(11)]), (id(2), vec![id(12)])]);
}

#[test]
fn one_victim_that_is_enough_is_better_than_several() {
    let small = |n: u64| runs(work(10 + n, 1, 1, 600), &[["n1", "n2", "n3", "n4"][n as usize - 1]], 1);
    let large = runs(work(20, 3, 1, 600), &["n5", "n6", "n7"], 60);
    let v = view(7, vec![small(1), small(2), small(3), small(4), large, work(1, 3, 5, 60)]);
    assert_eq!(preempted(&v), [(id(1), vec![id(20)])]);
    let v = view(4, vec![small(1), small(2), small(3), small(4), work(1, 3, 5, 60)]);
    assert_eq!(preempted(&v), [(id(1), vec![id(11), id(12), id(13)])]);
    let v = view(4, vec![small(1), small(2), small(3), small(4), work(1, 4, 5, 60)]);
    assert_eq!(preempted(&v), [], "three are the most");
    let v = view(4, vec![small(1), small(2), small(3), work(1, 3, 5, 60)]);
    assert_eq!(preempted(&v), [(id(1), vec![id(11), id(12)])], "n4 is free");
}

#[test]
fn work_that_begins_soon_anyway_or_that_is_nearly_done_is_left_alone() {
    // It has 4 of 60 minutes left.
    let v = view(1, vec![runs(work(11, 1, 1, 60), &["n1"], 56), work(1, 1, 5, 60)]);
    assert_eq!(preempted(&v), []);
    // The victim would lose 20 minutes, and the beneficiary would gain 10.
    let v = view(1, vec![runs(work(11, 1, 1, 30), &["n1"], 20), work(1, 1, 5, 60)]);
    assert_eq!(preempted(&v), []);
    let v = view(1, vec![runs(work(11, 1, 1, 600), &["n1"], 20), work(1, 1, 5, 60)]);
    assert_eq!(preempted(&v), [(id(1), vec![id(11)])]);
    // The node for which it waits is being given back already.
    let held = vec![asked(runs(work(11, 1, 1, 600), &["n1"], 20)), runs(work(12, 1, 1, 600), &["n2"], 0), work(1, 1, 5, 60)];
    assert_eq!(preempted(&view(2, held.clone())), []);
    let v = view(2, [held, vec![work(2, 1, 5, 60)]].concat());
    assert_eq!(preempted(&v), [(id(2), vec![id(12)])], "the first of the two gets what is given back");
}

#[test]
fn nodes_that_are_given_back_are_kept_for_the_beneficiary_and_nothing_more_is_preempted() {
    let held = [
        saves(runs(work(11, 2, 1, 600), &["n1", "n2"], 10)),
        saves(runs(work(12, 1, 1, 600), &["n3"], 10)),
        saves(runs(work(13, 1, 1, 600), &["n4"], 10)),
    ];
    // Behind the beneficiary waits work that would end before the last node is given back.
    let waits = [work(1, 3, 5, 60), work(2, 1, 0, 1)];
    let mut v = view(4, held.into_iter().chain(waits).collect());
    v.nodes.values_mut().for_each(|node| node.features.push(CHECKPOINTS.to_owned()));
    let [(beneficiary, victims)]: [_; 1] = preempted(&v).try_into().unwrap();
    assert_eq!((beneficiary, victims.len()), (id(1), 2), "one of the three could be preempted next");
    let given_back: BTreeSet<String> = victims.iter().flat_map(|victim| v.allocations[victim].nodes()).map(ToString::to_string).collect();

    for victim in &victims {
        let running = v.allocations[victim].clone();
        v.allocations.insert(*victim, asked(running));
    }
    let assert_waits = |v: &View| assert_eq!((preempted(v), placed(v)), (vec![], vec![]), "{v:#?}");
    for victim in victims {
        assert_waits(&v);
        suspend(&mut v, victim);
        while let Some(node) = unreleased(&v) {
            assert_waits(&v);
            v.nodes.get_mut(&node).unwrap().leaving.clear();
        }
    }
    assert_eq!((preempted(&v), placed(&v)), (vec![], vec![(id(1), Vec::from_iter(given_back))]));
}

#[test]
fn services_in_their_vcluster_are_not_preempted_and_a_fifo_preempts_nothing() {
    let mut v = view(1, vec![runs(work(11, 1, 1, 600), &["n1"], 0), work(1, 1, 5, 60)]);
    v.vclusters.insert("fifo".into(), vcluster("fifo", SchedulerKind::InteractiveFifo, 0));
    v.vclusters.insert("services".into(), vcluster("services", SchedulerKind::ServiceBinPack, 0));
    let with = |victim: &str, waits: &str| {
        let mut v = v.clone();
        spec_of(v.allocations.get_mut(&id(11)).unwrap()).vcluster = victim.into();
        spec_of(v.allocations.get_mut(&id(1)).unwrap()).vcluster = waits.into();
        preempted(&v).len()
    };
    assert_eq!([with("", ""), with("fifo", ""), with("services", ""), with("", "fifo"), with("", "services")], [1, 1, 0, 0, 1]);
}

proptest! {
    /// Victims are of a lower class, at most three, and none is preempted twice.
    #[test]
    fn victims_are_few_and_of_a_lower_class(
        held in prop::collection::vec((0..=10_u8, 10..600_u64, 0..9_u64, any::<bool>()), 6),
        waits in prop::collection::vec((1..5_u32, 0..=10_u8, 1..600_u64), 1..5),
    ) {
        let nodes = ["n1", "n2", "n3", "n4", "n5", "n6"];
        let held = (11..).zip(held).zip(nodes).map(|((n, (class, minutes, ran, can_save)), node)| {
            let held = runs(work(n, 1, class, minutes), &[node], ran);
            if can_save { saves(held) } else { held }
        });
        let waits = (1..).zip(waits).map(|(n, (nodes, class, minutes))| work(n, nodes, class, minutes));
        let v = view(6, held.chain(waits).collect());
        let mut once = BTreeSet::new();
        for (beneficiary, victims) in preempted(&v) {
            let of = &v.allocations[&beneficiary];
            prop_assert!(!victims.is_empty() && victims.len() <= 3 && victims.len() <= of.spec.nodes as usize);
            for victim in victims {
                prop_assert!(v.allocations[&victim].spec.preemption_class < v.effective_class(of));
                prop_assert!(once.insert(victim), "{} is preempted twice", victim);
            }
        }
    }

    /// Work that is first in its queue begins as soon as its victims are gone, and needs each of them.
    #[test]
    fn the_first_of_a_queue_begins_once_its_victims_are_gone(
        running in prop::collection::vec((1..4_u32, 0..=4_u8, 10..600_u64, 0..9_u64, any::<bool>()), 1..9),
        behind in prop::collection::vec((1..5_u32, 0..=5_u8, 1..600_u64), 0..3),
        (wanted, minutes, is_part) in (1..7_u32, 1..600_u64, any::<bool>()),
        nodes in 3..=8_u64,
        silent in 1..=16_u64,
    ) {
        let names: Vec<String> = (1..=nodes).map(|n| format!("n{n}")).collect();
        let mut first = work(1, wanted, 5, minutes);
        spec_of(&mut first).share = is_part.then_some(Resources { cores: 1, ..Resources::default() });
        let mut all = vec![first];
        all.extend((2..).zip(behind).map(|(n, (nodes, class, minutes))| work(n, nodes, class, minutes)));
        let mut taken = 0;
        for (n, (width, class, minutes, ran, can_save)) in (11..).zip(running) {
            let Some(own) = names.get(taken..taken + width as usize) else { break };
            taken += own.len();
            let own: Vec<&str> = own.iter().map(String::as_str).collect();
            let running = runs(work(n, width, class, minutes), &own, ran);
            all.push(if can_save { saves(running) } else { running });
        }
        let mut v = view(nodes, all);
        v.alive.remove(&format!("n{silent}").parse::<NodeId>().unwrap());
        let Some((_, victims)) = preempted(&v).into_iter().find(|(beneficiary, _)| *beneficiary == id(1)) else { return Ok(()) };
        let begins_without = |gone: &[AllocationId]| {
            let mut v = v.clone();
            gone.iter().for_each(|id| drop(v.allocations.remove(id)));
            placed(&v).iter().any(|(begun, _)| *begun == id(1))
        };
        prop_assert!(begins_without(&victims), "{:?}", victims);
        for victim in &victims {
            let others: Vec<AllocationId> = victims.iter().copied().filter(|other| other != victim).collect();
            prop_assert!(!begins_without(&others), "{} is preempted in vain", victim);
        }
    }
}

//! Scenarios of allocations with many nodes: what their reports change, and what watchers get.

use super::scenarios::{SIZE, Story, id, node, prepared, released};
use crate::history::{ChangeSet, History};
use crate::{Action, Changed, Outcome};
use lattice_model::claim::ClaimShare;
use lattice_model::shares::PhaseRun;
use lattice_model::{
    Allocation, AllocationState, Claim, EndReason, Epoch, NodeReport, PhasesChange, ReportItem, RequeuePolicy, Revision, SharePhase,
    WorkUsage,
};

/// An allocation on all nodes of a cluster of this size.
fn wide(nodes: u8) -> (Story, Epoch) {
    wide_with(nodes, RequeuePolicy::Never)
}

fn wide_with(nodes: u8, requeue: RequeuePolicy) -> (Story, Epoch) {
    let mut s = Story::new(nodes);
    s.submit(1, u32::from(nodes), requeue, 3);
    let share = |number| ClaimShare {
        node: node(number),
        resources: SIZE,
        hold_revision: s.ledger.node(&node(number)).map_or(Revision(0), |known| known.hold_revision),
    };
    // Not in the order of the names.
    let shares = (0..nodes).rev().map(share).collect();
    let claim = Claim { allocation: id(1), requeue_count: 0, lease_token: s.token, shares, after: None, by: None, walltime: None };
    let Ok(Outcome::Claimed { epoch }) = s.act(Action::Claim(claim)) else { panic!("all are free") };
    (s, epoch)
}

fn report(s: &mut Story, from: u8, item: ReportItem) -> Changed {
    let known = s.ledger.node(&node(from)).unwrap();
    let report = NodeReport { node: node(from), incarnation: known.incarnation, seq: known.report_seq + 1, item };
    let applied = s.apply(Action::Report(report));
    assert_eq!(applied.result, Ok(Outcome::Done));
    applied.changed
}

fn only_phases(s: &Story, changed: Changed) -> PhasesChange {
    let set = ChangeSet::of(&s.ledger, changed);
    assert!(set.allocations.is_empty() && set.phases.len() == 1, "{set:?}");
    set.phases[0].change.clone()
}

fn record(s: &Story) -> Allocation {
    Allocation::clone(s.ledger.allocation(id(1)).unwrap())
}

#[test]
fn a_report_of_one_node_publishes_bytes_that_do_not_grow_with_the_nodes() {
    let published = |nodes: u8| {
        let (mut s, epoch) = wide(nodes);
        report(&mut s, 1, prepared(1, epoch));
        let before = record(&s);
        let changed = report(&mut s, 2, prepared(1, epoch));
        assert!(changed.desired.is_empty());
        let change = only_phases(&s, changed);
        let mut applied = before;
        change.apply(&mut applied).unwrap();
        assert_eq!(applied, record(&s));
        rmp_serde::to_vec_named(&change).unwrap().len()
    };
    let few = published(4);
    assert!(published(250) <= few + 8, "a rank and two revisions may have more digits");
}

#[test]
fn it_runs_with_the_last_report_and_is_published_whole_when_it_runs_ends_and_is_released() {
    const NODES: u8 = 40;
    let (mut s, epoch) = wide(NODES);
    let whole = |s: &Story, changed: Changed, state| {
        assert_eq!(changed.desired.len(), usize::from(NODES), "each node's list changes once");
        let set = ChangeSet::of(&s.ledger, changed);
        assert!(set.phases.is_empty() && set.allocations.len() == 1 && set.allocations[0].state == state, "{set:?}");
        for number in 0..NODES {
            let found = set.node(&node(number)).iter().map(|known| &known.id);
            assert!(found.eq(set.nodes.iter().map(|known| &known.id).filter(|id| **id == node(number))), "{number}");
        }
    };
    for number in 1..NODES {
        let changed = report(&mut s, number, prepared(1, epoch));
        only_phases(&s, changed);
        assert_eq!(s.state(1), AllocationState::Staging);
    }
    // A repeated report: later changes are still complete.
    let changed = report(&mut s, 1, prepared(1, epoch));
    only_phases(&s, changed);
    let changed = report(&mut s, 0, prepared(1, epoch));
    whole(&s, changed, AllocationState::Running);
    // Rank 0 is the last node.
    let ended = ReportItem::Ended { allocation: id(1), epoch, reason: EndReason::Exited { code: 0 } };
    let changed = report(&mut s, NODES - 1, ended);
    whole(&s, changed, AllocationState::Completed);
    let usage = |nodes| WorkUsage { nodes, memory_peak_bytes: Some(7), cpu_ms: None };
    for number in 1..NODES {
        let item = ReportItem::Released { allocation: id(1), epoch, usage: Some(usage(1)) };
        let changed = report(&mut s, number, item);
        let change = only_phases(&s, changed);
        assert_eq!((change.state, change.usage), (AllocationState::Completed, Some(usage(number.into()))));
    }
    let changed = report(&mut s, 0, released(1, epoch));
    let set = ChangeSet::of(&s.ledger, changed);
    assert!(set.phases.is_empty() && set.allocations[0].usage.as_deref() == Some(&usage(u32::from(NODES) - 1)), "{set:?}");
    assert!(set.allocations[0].shares.all_released());
}

#[test]
fn what_a_requeued_claim_used_is_published_without_its_record() {
    let (mut s, epoch) = wide_with(40, RequeuePolicy::Always);
    for number in 0..40 {
        report(&mut s, number, prepared(1, epoch));
    }
    only_whole(&mut s, epoch);
    assert_eq!((s.state(1), record(&s).shares.len()), (AllocationState::Pending, 0));
    let usage = WorkUsage { nodes: 1, memory_peak_bytes: Some(7), cpu_ms: None };
    let before = record(&s);
    let changed = report(&mut s, 5, ReportItem::Released { allocation: id(1), epoch, usage: Some(usage) });
    let change = only_phases(&s, changed);
    assert_eq!((change.phases.len(), change.usage), (0, Some(usage)));
    let mut applied = before;
    change.apply(&mut applied).unwrap();
    assert_eq!(applied, record(&s));
}

#[test]
fn the_reports_of_one_entry_are_one_change() {
    let (mut s, epoch) = wide(100);
    let before = record(&s);
    let mut changed = Changed::default();
    for number in [10, 11, 12, 50] {
        changed.merge(report(&mut s, number, prepared(1, epoch)));
    }
    let change = only_phases(&s, changed.clone());
    let run = |first, len| PhaseRun { first, len, phase: SharePhase::Prepared };
    assert_eq!((change.previous_revision, change.phases.clone()), (Some(before.revision), vec![run(49, 1), run(87, 3)]));
    let mut applied = before;
    change.apply(&mut applied).unwrap();
    assert_eq!(applied, record(&s));
    // Each node gets only its own share.
    let set = ChangeSet::of(&s.ledger, changed.clone());
    let own = |number| set.phases[0].of_node(&node(number));
    assert_eq!(own(13), None);
    assert_eq!(own(11), Some(PhasesChange { previous_revision: None, phases: vec![run(88, 1)], ..change }));
    assert!(set.phases[0].nodes().eq([50, 12, 11, 10].map(node).iter()));
    // If anything else changes in the same entry, the whole record is sent.
    let report = only_whole(&mut s, epoch);
    changed.merge(report);
    let set = ChangeSet::of(&s.ledger, changed);
    assert!(set.phases.is_empty() && set.allocations.len() == 1);
}

fn only_whole(s: &mut Story, epoch: Epoch) -> Changed {
    let lost = EndReason::NodeLost { node: node(3), why: "x".into() };
    report(s, 3, ReportItem::Ended { allocation: id(1), epoch, reason: lost })
}

#[test]
fn reports_are_kept_as_phases_and_not_as_versions_of_the_record() {
    const NODES: u8 = 200;
    let (mut s, epoch) = wide(NODES);
    let mut history = History::new(s.ledger.place());
    // The history has less memory than a version of the record for each report needs.
    history.keep(lattice_ledger_state::record_bytes::allocation_bytes(&record(&s)) * 10);
    let begins = s.ledger.place();
    for number in 1..NODES {
        let changed = report(&mut s, number, prepared(1, epoch));
        history.push(ChangeSet::of(&s.ledger, changed));
    }
    assert_eq!(history.after(begins, usize::MAX).map(|sets| sets.len()), Ok(usize::from(NODES) - 1));
}

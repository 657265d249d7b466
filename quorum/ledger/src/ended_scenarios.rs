//! Scenarios of ended allocations: which are kept, and which are dropped first.

use super::history::ChangeSet;
use super::properties::scans::invariant_indexes_equal_scans;
use super::scenarios::{Story, id, node, registration, released, spec, user};
use super::{Action, Changed, Command, ENDED_BYTES_MAX, ENDED_KEPT_MS, NodeStateChange, QuotaChange, UserLimitsChange};
use lattice_model::{AllocationSpec, AllocationState, EndReason, Entrypoint, NodeState, ReportItem, RequeuePolicy, Revision};

fn history_limit(most: QuotaChange) -> Action {
    let users = UserLimitsChange { user_history: most, ..UserLimitsChange::default() };
    Action::SetLimits { sensitive_pool_size: QuotaChange::Keep, users, budget_period_days: None, share_policy: None, by: "root".into() }
}

/// Submits an allocation of this user and cancels it.
fn end_of(s: &mut Story, number: u128, uid: u32) {
    end_with(s, number, uid, spec(1, RequeuePolicy::Never, 0));
}

fn end_with(s: &mut Story, number: u128, uid: u32, spec: AllocationSpec) {
    s.done(Action::Submit { id: id(number), spec: Box::new(spec), owner: user(uid), claim: None });
    s.done(Action::Cancel { id: id(number), by: user(uid) });
}

fn is_there(s: &Story, number: u128) -> bool {
    s.ledger.allocation(id(number)).is_some()
}

#[test]
fn a_flood_of_ends_drops_the_oldest_of_its_own_user_when_the_memory_is_full() {
    let mut s = Story::new(0);
    (0..5).for_each(|number| end_of(&mut s, number, 8));
    let mut count = 0;
    while (0..count).all(|number| is_there(&s, 1000 + number)) {
        end_of(&mut s, 1000 + count, 7);
        count += 1;
    }
    assert!(count > 1000, "{count} allocations fill {ENDED_BYTES_MAX} bytes");
    for number in count..count + 500 {
        end_of(&mut s, 1000 + number, 7);
    }
    let there = |s: &Story| (0..count + 500).filter(|number| is_there(s, 1000 + number)).collect::<Vec<u128>>();
    let kept = there(&s);
    assert_eq!(kept, (501..count + 500).collect::<Vec<u128>>(), "the newest");
    assert!((0..5).all(|number| is_there(&s, number)), "the flood is another's");
    // Large ones drop as many as they need, and a copy drops the same.
    s.ledger = s.ledger.clone();
    let argv = vec!["x".repeat(60_000)];
    end_with(&mut s, 1_000_000, 7, AllocationSpec { entrypoint: Entrypoint::Command { argv }, ..spec(1, RequeuePolicy::Never, 0) });
    assert!(there(&s).len() + 20 < kept.len());
    assert!(s.ledger.has_right_counts() && is_there(&s, 1_000_000) && (0..5).all(|number| is_there(&s, number)));
}

#[test]
fn scripts_that_only_ended_work_uses_count_once() {
    let mut s = Story::new(0);
    let with = |text: &str| {
        let entrypoint = Entrypoint::Script { text: format!("#!/bin/sh\n{text}").into(), args: vec![] };
        AllocationSpec { entrypoint, ..spec(1, RequeuePolicy::Never, 0) }
    };
    let long = "x".repeat(500_000);
    (0..100).for_each(|number| end_with(&mut s, number, 7, with(&long)));
    assert!((0..100).all(|number| is_there(&s, number)), "one text");
    (100..120).for_each(|number| end_with(&mut s, number, 7, with(&format!("{number}{long}"))));
    let kept: Vec<u128> = (0..120).filter(|number| is_there(&s, *number)).collect();
    assert_eq!(kept, (112..120).collect::<Vec<u128>>(), "eight texts fit");
}

#[test]
fn a_limit_of_a_user_takes_effect_when_the_next_allocation_ends() {
    let mut s = Story::new(0);
    (0..5).for_each(|number| end_of(&mut s, number, 8));
    end_of(&mut s, 10, 7);
    s.done(history_limit(QuotaChange::AtMost(3)));
    assert!((0..5).all(|number| is_there(&s, number)));
    end_of(&mut s, 6, 8);
    let left: Vec<u128> = (0..11).filter(|number| is_there(&s, *number)).collect();
    assert_eq!(left, [3, 4, 6, 10]);
    // Many are dropped in steps.
    s.done(history_limit(QuotaChange::Unlimited));
    (1000..1250).for_each(|number| end_of(&mut s, number, 9));
    s.done(history_limit(QuotaChange::AtMost(10)));
    let mut left = vec![];
    for number in 1250..1253 {
        end_of(&mut s, number, 9);
        left.push((1000..1253).filter(|number| is_there(&s, *number)).count());
    }
    assert_eq!(left, [151, 52, 10]);
}

/// Neither the limit of the user nor a week drops it: the record shows what the node still has.
#[test]
fn what_a_node_still_holds_is_kept() {
    let mut s = Story::new(2);
    s.done(history_limit(QuotaChange::AtMost(3)));
    let run = |s: &mut Story, number: u128, on: u8| {
        s.submit(number, 1, RequeuePolicy::Never, 0);
        let epoch = s.claimed(number, &[on]);
        s.done(Action::Cancel { id: id(number), by: user(7) });
        epoch
    };
    let first = run(&mut s, 1, 0);
    run(&mut s, 2, 1);
    s.pass(2 * ENDED_KEPT_MS);
    (10..13).for_each(|number| end_of(&mut s, number, 7));
    assert!(is_there(&s, 1) && is_there(&s, 2) && is_there(&s, 12) && !is_there(&s, 10) && s.ledger.has_right_counts());
    s.report(0, released(1, first));
    assert!(is_there(&s, 1));
    end_of(&mut s, 13, 7);
    assert!(!is_there(&s, 1) && is_there(&s, 2));
    // A reboot releases as well.
    s.done(Action::Register(registration(1, 2, 1, true)));
    assert!(s.ledger.holdings(&node(1)).is_empty() && is_there(&s, 2));
    s.ledger = s.ledger.clone();
    end_of(&mut s, 14, 7);
    assert!(!is_there(&s, 2) && s.ledger.has_right_counts());
}

/// A fenced holding keeps it as well, until its node is removed.
#[test]
fn what_a_removed_node_held_is_not_kept() {
    let mut s = Story::new(2);
    s.done(history_limit(QuotaChange::AtMost(0)));
    s.submit(1, 1, RequeuePolicy::Never, 0);
    s.claimed(1, &[1]);
    s.done(Action::Cancel { id: id(1), by: user(7) });
    for state in [NodeState::Degraded, NodeState::Down] {
        let incarnation = s.ledger.node(&node(1)).unwrap().incarnation;
        s.done(Action::NodeStates(vec![NodeStateChange { node: node(1), incarnation, state, reason: "silent".into() }]));
    }
    s.done(Action::ConfirmDead { node: node(1), by: "root".into(), reason: "no power".into() });
    end_of(&mut s, 2, 7);
    assert!(s.ledger.holdings(&node(1))[0].fenced && is_there(&s, 1) && !is_there(&s, 2));
    s.done(Action::RemoveNode { node: node(1), by: "root".into(), reason: "sold".into() });
    invariant_indexes_equal_scans(&s.ledger);
    end_of(&mut s, 3, 7);
    assert!(!is_there(&s, 1));
    invariant_indexes_equal_scans(&s.ledger);
}

#[test]
fn an_end_is_published_even_if_the_user_keeps_no_history() {
    let mut s = Story::new(1);
    s.done(history_limit(QuotaChange::AtMost(0)));
    (1..=6).for_each(|number| s.submit(number, 1, RequeuePolicy::Never, 0));
    let epoch = s.claimed(6, &[0]);
    s.report(0, ReportItem::Prepared { allocation: id(6), epoch });
    // All in one entry, which drops them again.
    let revision = Revision(s.ledger.revision().0 + 1);
    let mut changed = Changed::default();
    let cancels = (1..=5).map(|number| Action::Cancel { id: id(number), by: user(7) });
    for action in cancels {
        changed.merge(s.ledger.apply(revision, &Command { at: s.now(), action }).changed);
    }
    let set = ChangeSet::of(&s.ledger, changed);
    let states: Vec<_> = set.allocations.iter().map(|a| (a.id, a.state)).collect();
    assert_eq!(states, (1..=5).map(|number| (id(number), AllocationState::Cancelled)).collect::<Vec<_>>());
    assert!((1..=5).all(|number| !is_there(&s, number)));
    s.forward(revision);
    let reason = EndReason::Exited { code: 0 };
    s.report(0, ReportItem::Ended { allocation: id(6), epoch, reason });
    assert!(is_there(&s, 6), "its node has not released it");
}

#[test]
fn a_repeated_submission_of_ended_work_does_not_run_again_within_a_flood() {
    let mut s = Story::new(0);
    end_of(&mut s, 1, 7);
    // Of another user, more than one could keep before.
    (1000..2200).for_each(|number| end_of(&mut s, number, 8));
    let again = Action::Submit { id: id(1), spec: Box::new(spec(1, RequeuePolicy::Never, 0)), owner: user(7), claim: None };
    s.done(again);
    assert_eq!(s.state(1), AllocationState::Cancelled);
}

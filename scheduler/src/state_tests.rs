//! A state that has followed any history equals the one made from the last view, and plans the same.

mod history;

use crate::draft::Draft;
use crate::node_set::NodeSet;
use crate::quotas::Quotas;
use crate::reserve;
use crate::tests::{NOW, id, pending, running_on, shared, view};
use crate::{Plan, State, View, place_newcomer, plan};
use history::{History, steps};
use lattice_model::test_builders::spec_of;
use lattice_model::{Allocation, AllocationId, Resources, Timestamp};
use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::TestRunner;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

const MINUTE_MS: u64 = 60_000;

/// All decisions, expectations, claims and preemptions of a plan.
fn plan_text(plan: &Plan<'_>) -> String {
    let decisions: Vec<_> = plan.planned.iter().map(|p| (p.allocation.id, p.queue, p.ahead, &p.decision, plan.expected(p))).collect();
    let (claims, starts) = (plan.claims(|_| Some(1)), plan.expected_starts().collect::<Vec<_>>());
    format!("{decisions:#?}\n{claims:?}\n{:?}\n{:?}\n{starts:?}", plan.preemptions(), plan.backfilled())
}

/// The class of each waiting allocation: its candidates and its facts about nodes.
fn classes(state: &State) -> BTreeMap<AllocationId, (NodeSet, String)> {
    let of = |class: usize| (NodeSet::clone(&state.classes.all[class].candidates), state.classes.all[class].facts());
    state.waiting.iter().map(|(id, (_, class))| (*id, of(*class))).collect()
}

/// The state that followed equals one made from this view, and shares no map with it.
fn assert_same(followed: &State, view: &View, now: Timestamp) {
    let made = State::from(view.clone());
    assert_eq!(format!("{:?}", followed.view), format!("{view:?}"));
    assert!(!followed.view.nodes.shares_map(&view.nodes) && !followed.view.allocations.shares_map(&view.allocations));
    followed.columns.assert_equal(&made.columns);
    // Owners are numbered in the order in which they came: equal owners must get equal numbers.
    let renumbered = followed.held.with_owners(|by, who| {
        let record = &followed.holders[&by];
        assert_eq!(who, followed.owners.who(record));
        made.owners.who(record)
    });
    assert_eq!(renumbered, made.held);
    assert_eq!(classes(followed), classes(&made));
    let (members, in_use) = followed.classes.counts();
    let mut counted = vec![0; members.len()];
    followed.waiting.values().for_each(|(_, class)| counted[*class] += 1);
    assert_eq!((members, in_use), (&counted[..], made.classes.counts().1));
    assert_eq!(followed.backlog, made.backlog);
    let ids = |state: &State| state.holders.keys().copied().collect::<BTreeSet<_>>();
    assert_eq!(ids(followed), ids(&made));
    assert_eq!(plan_text(&plan(followed, now)), plan_text(&plan(&made, now)));
}

/// Compares, for each waiting allocation, a search for a reservation by ends with a look at all nodes,
/// both beside the work of this plan. Returns how many searches found a reservation.
fn compare_searches(plan: &Plan<'_>) -> usize {
    let state: &Draft<'_> = &plan.state;
    let search = |planned: &crate::plan::Planned<'_>, floor_ms: u64| {
        let class = &plan.classes.all[planned.class];
        let [by_end, of_all] = reserve::both_searches(state, class, &Quotas::of(state), planned.allocation, state.now_ms + floor_ms);
        if by_end.is_some() {
            assert_eq!(by_end, of_all);
        }
        usize::from(by_end.is_some())
    };
    plan.planned.iter().map(|planned| search(planned, 0) + search(planned, 45 * MINUTE_MS)).sum()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 96, ..ProptestConfig::default() })]

    #[test]
    fn a_state_that_followed_a_history_is_the_one_made_from_the_last_view(steps in steps(), every in 1_usize..4) {
        let (mut history, mut state) = (History::new(), State::default());
        for (at, step) in steps.iter().enumerate() {
            history.step(*step);
            // Some rounds have several changes.
            if at % every == 0 {
                state.apply(history.view.clone());
                assert_same(&state, &history.view, history.now);
                compare_searches(&plan(&state, history.now));
            }
        }
        state.apply(history.view.clone());
        assert_same(&state, &history.view, history.now);
        // The times of earlier plans do not matter either.
        assert_same(&state, &history.view, NOW);
    }

    #[test]
    fn a_state_that_placed_new_work_follows_as_if_it_had_not(steps in steps()) {
        let (mut history, mut state) = (History::new(), State::default());
        for step in steps {
            history.step(step);
            let newcomer = Allocation { submitted_at: history.now, ..shared(9000, 1, 0, 1) };
            let place = |state: &mut State| place_newcomer(state, history.view.clone(), newcomer.clone(), 1);
            assert_eq!(place(&mut state), place(&mut State::default()));
            state.apply(history.view.clone());
            assert_same(&state, &history.view, history.now);
        }
    }
}

#[test]
fn random_histories_have_plans_that_preempt_and_plans_that_borrow() {
    let mut runner = TestRunner::deterministic();
    let (mut preempt, mut borrow) = (0, 0);
    for _ in 0..40 {
        let mut history = History::new();
        for step in steps().new_tree(&mut runner).unwrap().current() {
            history.step(step);
            let (preemptions, claims) = history.planned(|plan| (plan.preemptions(), plan.claims(|_| Some(1))));
            preempt += usize::from(!preemptions.is_empty());
            borrow += usize::from(history.borrowed(&claims) > 0);
        }
    }
    assert!(preempt > 10 && borrow > 10, "{preempt} plans preempt, and {borrow} borrow");
}

/// Work that holds whole nodes, for 10, 20, … minutes.
fn busy(nodes: u64) -> View {
    let running = |n: u64| {
        let mut allocation = running_on(pending(100 + n, 1, 0), &format!("n{n}"), Resources { cores: 2, memory_bytes: 1 << 30, gpus: 0 });
        allocation.started_at = Some(NOW);
        spec_of(&mut allocation).walltime = Some(Duration::from_secs(600 * n));
        allocation
    };
    view(nodes, (1..=nodes).map(running).collect())
}

fn waiting(n: u64, nodes: u32) -> Allocation {
    let mut allocation = pending(n, nodes, n);
    spec_of(&mut allocation).walltime = Some(Duration::from_secs(300));
    allocation
}

#[test]
fn a_search_by_ends_finds_the_reservation_that_a_look_at_all_nodes_finds() {
    let mut v = busy(6);
    for n in 1..=4 {
        v.allocations.insert(id(n), waiting(n, n as u32));
    }
    let mut share = shared(5, 1, 5, 1);
    spec_of(&mut share).walltime = Some(Duration::from_secs(60));
    v.allocations.insert(id(5), share);
    let state = State::from(v);
    assert_eq!(compare_searches(&plan(&state, NOW)), 10, "each of them, with both floors");
    let starts: Vec<u64> = plan(&state, NOW).expected_starts().map(|(_, start)| start.unwrap().since_ms(NOW) / MINUTE_MS).collect();
    assert_eq!(starts, [10, 20, 30, 40, 45]);
}

#[test]
fn work_whose_end_is_over_is_overdue_without_a_change_of_its_record() {
    let state = State::from(busy(2));
    let ends = |now_min: u64| -> Vec<Vec<u64>> {
        let now = Timestamp(NOW.0 + now_min * MINUTE_MS);
        let minutes = |end_ms: u64| (end_ms - NOW.0) / MINUTE_MS;
        Draft::of(&state, now).spans.iter().map(|spans| spans.iter().map(|span| minutes(span.end_ms)).collect()).collect()
    };
    assert_eq!(ends(0), [[10], [20]]);
    assert_eq!(ends(10), [[11], [20]], "a minute of grace");
    assert_eq!(ends(9), [[10], [20]], "a plan changes nothing of the state");
}

#[test]
fn classes_of_work_that_is_gone_are_forgotten() {
    let mut v = view(1, vec![]);
    let mut state = State::default();
    for n in 0..3000_u64 {
        let mut one = pending(n % 7, 1, n);
        spec_of(&mut one).constraints.memory_bytes = n;
        v.allocations.insert(one.id, one);
        state.apply(v.clone());
    }
    assert!(state.classes.all.len() <= 1024, "{} are kept", state.classes.all.len());
    assert_same(&state, &v, NOW);
}

#[test]
fn the_state_is_rebuilt_if_most_allocations_have_changed() {
    let (mut v, mut state) = (view(1, vec![]), State::default());
    let mut classes_after = |changed: u64, memory_bytes: u64| {
        for n in 1..=changed {
            let mut one = pending(n, 1, n);
            spec_of(&mut one).constraints.memory_bytes = memory_bytes + n;
            v.allocations.insert(one.id, one);
        }
        state.apply(v.clone());
        assert_same(&state, &v, NOW);
        state.classes.all.len()
    };
    assert_eq!(classes_after(10, 0), 10);
    assert_eq!(classes_after(5, 100), 15, "half of them: the classes of what was there before are kept");
    assert_eq!(classes_after(6, 200), 10);
}

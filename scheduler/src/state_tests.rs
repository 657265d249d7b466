//! A state that has followed any history is the one that is made from the last view, and plans the same.

use crate::draft::Draft;
use crate::node_set::NodeSet;
use crate::quotas::Quotas;
use crate::reserve;
use crate::tests::{NOW, id, node, owned_by, pending, running_on, shared, vcluster, view};
use crate::{Plan, State, View, plan};
use lattice_model::test_builders::spec_of;
use lattice_model::{
    Allocation, AllocationId, AllocationState, CheckpointId, Conformance, Epoch, Factor, Hold, HoldKind, Leaving, Node, NodeId, NodeState,
    PreemptCause, Preemption, Profile, Resources, SchedulerKind, Share, SharePhase, SharePolicy, Tenant, Timestamp, Topology, VCluster,
    Weight, WorkOwner,
};
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

const MINUTE_MS: u64 = 60_000;
/// Nodes have numbers from 1 up to this.
const NODES: u64 = 8;

/// A change of the cluster: its kind, and two numbers that choose what it is.
type Step = (u8, u64, u64);

struct History {
    view: View,
    now: Timestamp,
    submitted: u64,
}

fn conforming(group: u64) -> Option<Conformance> {
    (group > 0).then(|| Conformance::first([("kernel".to_owned(), group.to_string())].into()))
}

impl History {
    fn new() -> Self {
        Self { view: view(4, vec![]), now: NOW, submitted: 0 }
    }

    fn step(&mut self, (kind, one, two): Step) {
        self.now = Timestamp(self.now.0 + (two % 3) * 7 * MINUTE_MS);
        let name: NodeId = format!("n{}", 1 + one % NODES).parse().unwrap();
        match kind {
            0 => self.register(1 + one % NODES, two),
            1 => drop(self.view.nodes.remove(&name)),
            2 => self.change_node(&name, |node, now| {
                if node.holds.pop().is_none() {
                    node.holds.push(hold(now));
                }
            }),
            3 => self.change_node(&name, |node, now| {
                node.state = if node.state == NodeState::Ready { NodeState::Down } else { NodeState::Ready };
                node.state_since = now;
            }),
            4 if self.view.alive.remove(&name) => {}
            4 => {
                self.view.alive.insert(name);
            }
            5..=8 => self.submit(one, two),
            9..=11 => self.claim(one, two),
            12 => self.end(one, two),
            13 => self.change_node(&name, |node, _| drop(node.leaving.pop())),
            14 => self.change_rules(one, two),
            _ => self.preempt(one, two),
        }
    }

    fn register(&mut self, n: u64, how: u64) {
        let mut new = node(n, NodeState::Ready);
        new.size.cores += (how % 2) as u32;
        new.topology_group = (!(how / 2).is_multiple_of(3)).then(|| (how / 2 % 3).to_string());
        new.conformance = conforming(how / 6 % 3);
        if let Some(known) = self.view.nodes.get(&new.id) {
            new.leaving.clone_from(&known.leaving);
        }
        self.view.alive.insert(new.id.clone());
        self.view.nodes.insert(new.id.clone(), new);
    }

    fn change_node(&mut self, name: &NodeId, change: impl FnOnce(&mut Node, Timestamp)) {
        let now = self.now;
        if let Some(node) = self.view.nodes.get_mut(name) {
            change(node, now);
        }
    }

    fn submit(&mut self, one: u64, two: u64) {
        self.submitted += 1;
        let (n, at) = (self.submitted, self.now.0 - two % 5);
        let mut new = match one % 3 {
            0 => shared(n, 1 + (one / 3 % 2) as u32, at, 1 + (two % 2) as u32),
            _ => pending(n, 1 + (one / 3 % 3) as u32, at),
        };
        new = owned_by((two % 5) as u8, new);
        let spec = spec_of(&mut new);
        spec.walltime = (!one.is_multiple_of(7)).then(|| Duration::from_secs(600 * (1 + two % 9)));
        spec.preemption_class = ((one / 9).is_multiple_of(4)).into();
        spec.constraints.conformance = (one / 36).is_multiple_of(5);
        spec.constraints.topology = if two.is_multiple_of(4) { Topology::Tight } else { Topology::Any };
        if two.is_multiple_of(6) {
            spec.vcluster = "other".to_owned();
        }
        self.view.allocations.insert(new.id, new);
    }

    /// What a plan claims begins; some of it at once.
    fn claim(&mut self, one: u64, two: u64) {
        let claims = plan(&State::from(self.view.clone()), self.now).claims(|_| Some(1));
        for claim in claims.into_iter().take(1 + (one % 3) as usize) {
            let Some(record) = self.view.allocations.get_mut(&claim.allocation) else { continue };
            let has_begun = !two.is_multiple_of(4);
            record.state = if has_begun { AllocationState::Running } else { AllocationState::Staging };
            record.started_at = has_begun.then_some(self.now);
            record.epoch = Epoch(record.epoch.0 + 1);
            record.shares =
                claim.shares.into_iter().map(|s| Share { node: s.node, resources: s.resources, phase: SharePhase::Prepared }).collect();
        }
    }

    fn with_nodes(&self, one: u64) -> Option<AllocationId> {
        let all: Vec<AllocationId> = self.view.allocations.values().filter(|a| !a.state.is_without_nodes()).map(|a| a.id).collect();
        all.get(usize::try_from(one).unwrap() % all.len().max(1)).copied()
    }

    /// It ends, and its nodes have not released their shares yet; or it is gone; or it waits again.
    fn end(&mut self, one: u64, two: u64) {
        let Some(id) = self.with_nodes(one) else { return };
        let mut record = self.view.allocations[&id].clone();
        if two.is_multiple_of(4) {
            (record.state, record.ended_at) = (AllocationState::Completed, Some(self.now));
            self.view.allocations.insert(id, record);
            return;
        }
        self.view.allocations.remove(&id);
        if two % 4 == 1 {
            return;
        }
        for share in record.shares.iter() {
            let owner = (!two.is_multiple_of(3)).then(|| WorkOwner { uid: record.owner.uid, tenant: record.spec.tenant.clone() });
            let leaving = Leaving { allocation: id, epoch: record.epoch, resources: share.resources, fenced: two % 8 == 2, owner };
            self.change_node(share.node, |node, _| node.leaving.push(leaving));
        }
        if two % 4 == 2 {
            record.shares.clear();
            (record.state, record.started_at) = (AllocationState::Pending, None);
            self.view.allocations.insert(id, record);
        }
    }

    fn change_rules(&mut self, one: u64, two: u64) {
        let mut weights = Profile::HpcBatch.weights();
        weights.set(Factor::WaitTime, Weight::new(f64::from((two % 9) as u32) / 10.0).unwrap());
        match one % 6 {
            0 => self.view.share_policy = [SharePolicy::Anyone, SharePolicy::Tenant, SharePolicy::User][(two % 3) as usize],
            1 => self.view.user_running = two.is_multiple_of(2).then_some(2),
            2 => {
                let max_nodes = two.is_multiple_of(2).then_some(3);
                let tenant = Tenant { name: "physics".into(), max_nodes, fair_share_target_ppm: Some(300_000), ..Tenant::default() };
                self.view.tenants.insert("physics".into(), tenant);
            }
            3 => {
                let (lend_ms, borrows) = (two.is_multiple_of(2).then_some(3_600_000), two.is_multiple_of(3));
                let kind = [SchedulerKind::HpcBackfill, SchedulerKind::InteractiveFifo][(two / 6 % 2) as usize];
                let other = VCluster { lend_ms, borrows, ..vcluster("other", kind, 0) };
                self.view.vclusters.insert("other".into(), other);
            }
            _ => {
                let default = VCluster { weights: Some(weights), ..vcluster("default", SchedulerKind::HpcBackfill, 0) };
                self.view.vclusters.insert("default".into(), default);
            }
        }
    }

    fn preempt(&mut self, one: u64, two: u64) {
        let Some(record) = self.with_nodes(one).and_then(|id| self.view.allocations.get_mut(&id)) else { return };
        record.preemption = (!two.is_multiple_of(4)).then(|| {
            Box::new(Preemption {
                id: CheckpointId(record.id.0),
                by: "scheduler".to_owned(),
                reason: String::new(),
                cause: PreemptCause::Priority,
                deadline_ms: 90_000,
                hold: false,
                failed: None,
            })
        });
    }
}

fn hold(since: Timestamp) -> Hold {
    Hold::new(HoldKind::Drain, "ada", "", since)
}

/// All that a plan says.
fn said(plan: &Plan<'_>) -> String {
    let decisions: Vec<_> = plan.planned.iter().map(|p| (p.allocation.id, p.queue, p.ahead, &p.decision, plan.expected(p))).collect();
    let (claims, starts) = (plan.claims(|_| Some(1)), plan.expected_starts().collect::<Vec<_>>());
    format!("{decisions:#?}\n{claims:?}\n{:?}\n{:?}\n{starts:?}", plan.preemptions(), plan.backfilled())
}

/// The classes of what waits, by what they say of nodes.
fn classes(state: &State) -> BTreeMap<AllocationId, (NodeSet, String)> {
    let of = |class: usize| (NodeSet::clone(&state.classes.all[class].candidates), state.classes.all[class].facts());
    state.waiting.iter().map(|(id, (_, class))| (*id, of(*class))).collect()
}

fn assert_same(followed: &State, now: Timestamp) {
    let made = State::from(followed.view.clone());
    followed.columns.assert_equal(&made.columns);
    // The numbers of owners are in the order in which they came: who is one owner must be the same.
    let renumbered = followed.held.with_owners(|by, number| {
        let record = &followed.holders[&by];
        assert_eq!(number, followed.owners.number(record));
        made.owners.number(record)
    });
    assert_eq!(renumbered, made.held);
    assert_eq!(classes(followed), classes(&made));
    assert_eq!(followed.backlog, made.backlog);
    let ids = |state: &State| state.holders.keys().copied().collect::<BTreeSet<_>>();
    assert_eq!(ids(followed), ids(&made));
    assert_eq!(said(&plan(followed, now)), said(&plan(&made, now)));
}

/// For each that waits: what a search for a reservation by ends finds beside what this plan has, and
/// what a look at all nodes finds. Returns how many searches found something.
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
    fn a_state_that_followed_a_history_is_the_one_made_from_the_last_view(
        steps in prop::collection::vec((0_u8..16, 0_u64..720, 0_u64..720), 1..60), every in 1_usize..4,
    ) {
        let (mut history, mut state) = (History::new(), State::default());
        for (at, step) in steps.iter().enumerate() {
            history.step(*step);
            // Some rounds have several changes.
            if at % every == 0 {
                state.apply(history.view.clone());
                assert_same(&state, history.now);
                compare_searches(&plan(&state, history.now));
            }
        }
        // Nor does the time count at which earlier plans were made.
        assert_same(&state, NOW);
    }
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
    assert_same(&state, NOW);
}

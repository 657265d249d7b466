use super::*;
use lattice_model::shares::ShareRef;
use lattice_model::test_builders::spec_of;
use lattice_model::{AllocationSpec, CheckpointPolicy, CheckpointSignal, Hold, NodeId, Resources, Share, SharePhase, test_builders};
use proptest::prelude::*;
use std::sync::Arc;

const NOW: Timestamp = Timestamp(10_000_000_000);
const SITE: Tuning = Tuning {
    storage_bytes_per_second: 1e9,
    at_once_max: 4,
    least_interval_s: 300.0,
    failures_per_node_day: 0.0065,
    storage_cost_node_s_per_gb: 0.0,
};

fn id(n: u64) -> AllocationId {
    format!("00000000-0000-4000-8000-{n:012x}").parse().unwrap()
}

fn node_id(n: u64) -> NodeId {
    format!("n{n}").parse().unwrap()
}

fn node(n: u64, state: NodeState) -> Node {
    let size = Resources { cores: 2, memory_bytes: 64 << 30, gpus: 0 };
    Node { size, ..test_builders::node(node_id(n).as_str(), state) }
}

/// Running work on the nodes `from..from + nodes` that began `for_s` seconds ago.
fn running(n: u64, from: u64, nodes: u32, for_s: u64, automatic: Automatic) -> Allocation {
    let policy = CheckpointPolicy { automatic: Some(automatic), ..CheckpointPolicy::default() };
    let spec = AllocationSpec { nodes, walltime: None, checkpoint: Some(policy), ..test_builders::spec() };
    let share = |n: u64| Share { node: node_id(n), resources: node(n, NodeState::Ready).size, phase: SharePhase::Prepared };
    Allocation {
        state: AllocationState::Running,
        started_at: Some(Timestamp(NOW.0 - for_s * 1000)),
        shares: (from..from + u64::from(nodes)).map(share).collect(),
        spec: Arc::new(spec),
        ..test_builders::allocation(id(n))
    }
}

fn saved(ago_s: u64, took_s: u64, bytes: u64) -> Known {
    let last = LastSaved { at: Timestamp(NOW.0 - ago_s * 1000), bytes, took_ms: Some(took_s * 1000) };
    Known { last: Some(last), ..Known::default() }
}

#[derive(Clone, Debug)]
struct World {
    view: View,
    known: BTreeMap<AllocationId, Known>,
    saving: BTreeSet<AllocationId>,
    storage: Storage,
    tuning: Tuning,
}

impl World {
    fn of(work: impl IntoIterator<Item = (Allocation, Known)>) -> Self {
        let (mut view, mut known) = (View::default(), BTreeMap::new());
        for (allocation, of_it) in work {
            for share in &allocation.shares {
                let n = share.node.as_str()[1..].parse().unwrap();
                view.nodes.insert(share.node.clone(), node(n, NodeState::Ready));
            }
            known.insert(allocation.id, of_it);
            view.allocations.insert(allocation.id, allocation);
        }
        Self { view, known, saving: BTreeSet::new(), storage: Storage::Reachable, tuning: SITE }
    }

    fn judged(&self) -> BTreeMap<AllocationId, Judgement> {
        let Self { view, known, saving, storage, tuning } = self;
        let view = BrokerView { cluster: view, known, saving, storage, tuning };
        should_checkpoint(&view, NOW)
    }

    fn one(&self) -> Judgement {
        self.judged().remove(&id(1)).unwrap()
    }

    fn waiting(&mut self, n: u64, class: u8, for_s: u64) {
        let mut waits = running(n, 0, 1, 0, Automatic::CostBased);
        waits.state = AllocationState::Pending;
        waits.shares.clear();
        waits.started_at = None;
        spec_of(&mut waits).preemption_class = class;
        waits.submitted_at = Timestamp(NOW.0 - for_s * 1000);
        self.view.allocations.insert(waits.id, waits);
    }
}

#[test]
fn with_failures_alone_it_is_young_s_interval() {
    // 32 nodes, 6.5 failures in a thousand node-days, a minute to write: Young's interval is nearly
    // two hours.
    let rate: f64 = 32.0 * 0.0065 / 86_400.0;
    let young_s = (2.0 * 60.0 / rate).sqrt();
    assert!((6_900.0..7_200.0).contains(&young_s), "{young_s}");
    let asked_at = (1..20_000).step_by(10).find(|s| {
        let world = World::of([(running(1, 1, 32, 50_000, Automatic::CostBased), saved(*s, 60, 1_000_000_000))]);
        world.one().verdict == Verdict::Ask
    });
    let asked_at = asked_at.unwrap() as f64;
    assert!((asked_at / young_s - 1.0).abs() < 0.02, "{asked_at} {young_s}");
    // The same for one node.
    let young_s = (2.0f64 * 60.0 * 86_400.0 / 0.0065).sqrt();
    let asked_at = (1..90_000).step_by(50).find(|s| {
        let world = World::of([(running(1, 1, 1, 500_000, Automatic::CostBased), saved(*s, 60, 1_000_000_000))]);
        world.one().verdict == Verdict::Ask
    });
    let asked_at = asked_at.unwrap() as f64;
    assert!((asked_at / young_s - 1.0).abs() < 0.02, "{asked_at} {young_s}");
}

#[test]
fn large_work_that_has_saved_nothing_yet_is_asked_within_hours() {
    // A quarter of 512 GB on each of 100 nodes takes hours at the store's bandwidth; the broker's
    // deadline limits the guess.
    let of = |for_s| {
        let mut work = running(1, 1, 100, for_s, Automatic::CostBased);
        let wide = |s: ShareRef<'_>| Share {
            node: s.node.clone(),
            resources: Resources { memory_bytes: 512 << 30, ..s.resources },
            phase: s.phase,
        };
        work.shares = work.shares.iter().map(wide).collect();
        World::of([(work, Known::default())]).one()
    };
    assert_eq!(of(10).terms.write_time_s, 600.0);
    assert_eq!(of(6 * 3600).verdict, Verdict::Ask);
    assert!(matches!(of(3600).verdict, Verdict::TooSoon { .. }));
}

#[test]
fn work_that_never_answers_keeps_no_other_from_the_store() {
    let work = |n: u64, nodes, known| (running(n, n * 100, nodes, 10_000_000, Automatic::CostBased), known);
    let deaf = |times| Known { tried: Some(Tried::UnderWay { times }), ..Known::default() };
    let mut world = World::of([work(1, 8, deaf(0)), work(2, 1, saved(5_000_000, 10, 1_000_000_000))]);
    assert_eq!(world.judged()[&id(2)].verdict, Verdict::Ask);
    // Work whose checkpoint failed comes after all other work, whatever its value, and one at a time.
    let in_vain = Known { tried: Some(Tried::InVain { at: Timestamp(0), times: 3 }), ..Known::default() };
    world = World::of([work(1, 8, in_vain), work(2, 1, saved(5_000_000, 10, 1_000_000_000)), work(3, 8, in_vain)]);
    let judged = world.judged();
    assert_eq!((&judged[&id(1)].verdict, &judged[&id(2)].verdict), (&Verdict::Ask, &Verdict::Ask));
    assert_eq!(judged[&id(3)].verdict, Verdict::Staggered { under_way: 2 });
    world.tuning.at_once_max = 1;
    assert_eq!(world.judged()[&id(2)].verdict, Verdict::Ask);
    world.tuning.at_once_max = 4;
    world.known.insert(id(1), deaf(4));
    assert_eq!(world.judged()[&id(3)].verdict, Verdict::Staggered { under_way: 2 });
}

#[test]
fn work_with_an_unread_checkpoint_is_not_work_that_never_saved() {
    let known = Known { last_is_unread: true, ..Known::default() };
    for automatic in [Automatic::CostBased, Automatic::Every { seconds: 60 }] {
        assert_eq!(World::of([(running(1, 1, 4, 9_000_000, automatic), known)]).one().verdict, Verdict::NotKnownYet);
    }
}

#[test]
fn an_unwell_node_or_waiting_work_brings_a_checkpoint_forward() {
    let quiet = World::of([(running(1, 1, 4, 90_000, Automatic::CostBased), saved(3_000, 10, 1_000_000_000))]);
    assert_eq!(quiet.one().verdict, Verdict::NotWorthIt);
    let mut unwell = quiet.clone();
    unwell.view.nodes.insert(node_id(2), node(2, NodeState::Degraded));
    assert_eq!((unwell.one().terms.unwell_nodes, unwell.one().verdict), (1, Verdict::Ask));
    let mut held = quiet.clone();
    let hold = Hold {
        kind: HoldKind::Quarantine,
        by: "op".into(),
        reason: "x".into(),
        more_reasons: Vec::new(),
        since: Timestamp(0),
        until: None,
        deadline: None,
    };
    held.view.nodes.get_mut(&node_id(3)).unwrap().holds.push(hold);
    assert_eq!(held.one().verdict, Verdict::Ask);
    let mut busy = quiet.clone();
    busy.waiting(9, 9, 36_000);
    assert_eq!(busy.one().verdict, Verdict::Ask);
    assert!(busy.one().terms.preemptability_node_s > 0.0 && busy.one().terms.backlog_relief_node_s > 0.0);
    // Waiting work preempts only work of a lower class, and no work preempts class 10.
    let mut lower = quiet.clone();
    lower.waiting(9, 5, 36_000);
    assert_eq!(lower.one().terms.preemptability_node_s, 0.0);
    spec_of(busy.view.allocations.get_mut(&id(1)).unwrap()).preemption_class = 10;
    assert_eq!(busy.one().terms.preemptability_node_s, 0.0);
}

#[test]
fn checkpoints_share_the_bandwidth_of_the_store() {
    // Each writes 600 MB/s: only one fits into the bandwidth.
    let work = |n: u64, nodes| (running(n, n * 100, nodes, 1_000_000, Automatic::CostBased), saved(500_000, 10, 6_000_000_000));
    let mut world = World::of([work(1, 1), work(2, 4), work(3, 2)]);
    let judged = world.judged();
    assert_eq!(judged[&id(2)].verdict, Verdict::Ask, "it is worth most");
    assert_eq!(judged[&id(1)].verdict, Verdict::Staggered { under_way: 1 });
    assert_eq!(judged[&id(3)].verdict, Verdict::Staggered { under_way: 1 });
    world.known.get_mut(&id(2)).unwrap().tried = Some(Tried::UnderWay { times: 0 });
    assert!(world.judged().values().all(|j| j.verdict != Verdict::Ask));
    world.tuning.storage_bytes_per_second = 1.3e9;
    assert_eq!(world.judged()[&id(3)].verdict, Verdict::Ask, "the next one by its worth");
    assert_eq!(world.judged()[&id(1)].verdict, Verdict::Staggered { under_way: 2 });
    world.tuning = Tuning { at_once_max: 1, storage_bytes_per_second: 1e15, ..world.tuning };
    assert!(world.judged().values().all(|j| j.verdict != Verdict::Ask));
}

#[test]
fn while_the_store_does_not_answer_the_cost_is_infinite_and_nothing_begins() {
    let mut world = World::of([(running(1, 1, 4, 1_000_000, Automatic::CostBased), saved(900_000, 10, 1))]);
    assert_eq!(world.one().verdict, Verdict::Ask);
    world.storage = Storage::Unreachable { why: "gone".into() };
    let judged = world.one();
    assert_eq!(judged.verdict, Verdict::StorageUnreachable { why: "gone".into() });
    assert!(judged.terms.cost_node_s().is_infinite() && judged.terms.value_node_s().is_finite());
}

#[test]
fn after_each_failure_the_next_request_is_later() {
    let mut world = World::of([(running(1, 1, 4, 1_000_000, Automatic::CostBased), saved(900_000, 10, 1))]);
    let mut tried = |ago_s: u64, times| {
        world.known.get_mut(&id(1)).unwrap().tried = Some(Tried::InVain { at: Timestamp(NOW.0 - ago_s * 1000), times });
        world.one().verdict
    };
    assert_eq!(tried(500, 1), Verdict::AfterFailure { times: 1, left_s: 100.0 });
    assert_eq!(tried(601, 1), Verdict::Ask);
    assert_eq!(tried(601, 2), Verdict::AfterFailure { times: 2, left_s: 599.0 });
    assert_eq!(tried(300 * 64 + 1, u32::MAX), Verdict::Ask);
}

#[test]
fn work_with_a_fixed_interval_is_asked_at_that_interval() {
    let every = Automatic::Every { seconds: 60 };
    let of = |ago_s| World::of([(running(1, 1, 1, 90_000, every), saved(ago_s, 1, 1))]).one().verdict;
    assert_eq!(of(59), Verdict::NotDue { every_s: 60, left_s: 1.0 });
    assert_eq!(of(60), Verdict::Ask);
    // The checkpoint is of an earlier claim: the time counts from when this claim began.
    assert_eq!(World::of([(running(1, 1, 1, 10, every), saved(500, 1, 1))]).one().verdict, Verdict::NotDue { every_s: 60, left_s: 50.0 });
}

#[test]
fn work_near_its_end_or_without_automatic_checkpoints_is_not_asked() {
    let mut near = running(1, 1, 1, 86_000, Automatic::CostBased);
    spec_of(&mut near).walltime = Some(Duration::from_secs(86_100));
    assert_eq!(World::of([(near.clone(), saved(80_000, 60, 1))]).one().verdict, Verdict::WalltimeNear { left_s: 100.0 });
    spec_of(&mut near).walltime = Some(Duration::from_secs(86_400));
    assert!(!matches!(World::of([(near, saved(80_000, 60, 1))]).one().verdict, Verdict::WalltimeNear { .. }));
    let mut manual = running(1, 1, 1, 86_000, Automatic::CostBased);
    spec_of(&mut manual).checkpoint = Some(CheckpointPolicy::by_signal(CheckpointSignal::USR1));
    assert!(World::of([(manual, Known::default())]).judged().is_empty());
}

/// An urgent drain; `failed`: why the work could not save itself for it.
fn drain(failed: Option<&str>) -> Preemption {
    Preemption {
        id: "00000000-0000-4000-8000-000000000009".parse().unwrap(),
        by: "root".into(),
        reason: "node n1 is drained: fan".into(),
        cause: lattice_model::PreemptCause::Drain,
        deadline_ms: 1000,
        hold: false,
        failed: failed.map(str::to_owned),
    }
}

#[test]
fn work_that_saves_itself_for_a_drain_uses_bandwidth() {
    let due = || (running(1, 1, 1, 1_000_000, Automatic::CostBased), saved(500_000, 10, 6_000_000_000));
    let mut goes = running(2, 100, 1, 1_000_000, Automatic::CostBased);
    spec_of(&mut goes).checkpoint = Some(CheckpointPolicy::by_signal(CheckpointSignal::USR1));
    let verdict = |goes: &Allocation| {
        let mut world = World::of([due(), (goes.clone(), saved(500_000, 10, 6_000_000_000))]);
        world.tuning.storage_bytes_per_second = 1e9;
        let judged = world.judged();
        assert_eq!(judged.contains_key(&id(2)), goes.spec.checkpoint.unwrap().automatic.is_some());
        judged[&id(1)].verdict.clone()
    };
    assert_eq!(verdict(&goes), Verdict::Ask);
    goes.preemption = Some(Box::new(drain(None)));
    assert_eq!(verdict(&goes), Verdict::Staggered { under_way: 1 });
    spec_of(&mut goes).checkpoint.as_mut().unwrap().automatic = Some(Automatic::CostBased);
    assert_eq!(verdict(&goes), Verdict::Staggered { under_way: 1 }, "once");
    goes.preemption = Some(Box::new(drain(Some("the disk is full"))));
    spec_of(&mut goes).checkpoint.as_mut().unwrap().automatic = None;
    assert_eq!(verdict(&goes), Verdict::Ask);
    goes.preemption = Some(Box::new(drain(None)));
    spec_of(&mut goes).checkpoint = None;
    let mut world = World::of([due(), (goes, Known::default())]);
    world.tuning.storage_bytes_per_second = 1e9;
    assert_eq!(world.judged()[&id(1)].verdict, Verdict::Ask, "it saves nothing");
}

#[test]
fn a_checkpoint_that_a_user_requested_uses_bandwidth_and_is_not_requested_again() {
    let work = |n: u64, nodes| (running(n, n * 100, nodes, 1_000_000, Automatic::CostBased), saved(500_000, 10, 6_000_000_000));
    let (mut others, known) = work(3, 1);
    spec_of(&mut others).checkpoint.as_mut().unwrap().automatic = None;
    let mut world = World::of([work(1, 1), work(2, 4), (others, known)]);
    world.tuning.storage_bytes_per_second = 1.3e9;
    assert_eq!([1, 2].map(|n| world.judged()[&id(n)].verdict.clone()), [Verdict::Ask, Verdict::Ask]);
    world.saving = [id(3)].into();
    assert_eq!(world.judged()[&id(2)].verdict, Verdict::Ask);
    assert_eq!(world.judged()[&id(1)].verdict, Verdict::Staggered { under_way: 2 });
    world.saving = [id(2), id(3)].into();
    assert_eq!(world.judged()[&id(2)].verdict, Verdict::UnderWay);
    assert_eq!(world.judged()[&id(1)].verdict, Verdict::Staggered { under_way: 2 });
    // The head also reports the checkpoint that the broker asked for: it counts once.
    world.known.get_mut(&id(2)).unwrap().tried = Some(Tried::UnderWay { times: 0 });
    world.saving = [id(2)].into();
    assert_eq!(world.judged()[&id(1)].verdict, Verdict::Ask);
    // Work that no longer runs does not count.
    world.saving = [id(2), id(77)].into();
    assert_eq!(world.judged()[&id(1)].verdict, Verdict::Ask);
}

#[test]
fn work_that_goes_on_after_a_failed_drain_is_asked_again() {
    let mut work = running(1, 1, 1, 86_000, Automatic::Every { seconds: 60 });
    work.preemption = Some(Box::new(drain(None)));
    assert_eq!(World::of([(work.clone(), saved(80_000, 1, 1))]).one().verdict, Verdict::Preempted);
    work.preemption = Some(Box::new(drain(Some("the disk is full"))));
    assert_eq!(World::of([(work, saved(80_000, 1, 1))]).one().verdict, Verdict::Ask);
}

#[test]
fn a_node_that_drains_and_is_not_well_counts_as_unwell() {
    let mut world = World::of([(running(1, 1, 1, 600, Automatic::CostBased), Known::default())]);
    let node = world.view.nodes.get_mut(&node_id(1)).unwrap();
    node.state = NodeState::Draining;
    assert_eq!(world.one().terms.unwell_nodes, 0);
    world.view.nodes.get_mut(&node_id(1)).unwrap().state_reason = format!("{}XID 79", lattice_model::UNWELL);
    assert_eq!(world.one().terms.unwell_nodes, 1);
}

#[test]
fn every_term_is_shown_with_its_unit() {
    let lines = World::of([(running(1, 1, 2, 600, Automatic::CostBased), Known::default())]).one().terms.lines();
    for name in ["write_time", "compute_waste", "storage_cost", "recompute_saved", "preemptability", "backlog_relief", "cost", "value"] {
        assert!(lines.iter().any(|(n, value, _)| *n == name && (value.ends_with(" s") || value.ends_with(" node-s"))), "{name} {lines:?}");
    }
    assert!(lines.iter().any(|(name, _, meaning)| *name == "checkpoint_size" && meaning.contains("nothing yet")));
    assert!(["nodes", "backlog_pressure"].iter().all(|term| lines.iter().any(|(name, ..)| name == term)), "{lines:?}");
}

prop_compose! {
    fn a_work()(
        nodes in 1..6u32,
        for_s in 0..2_000_000u64,
        last in prop::option::of((0..2_000_000u64, prop::option::of(0..100_000u64), 0..=u64::MAX)),
        unread in prop::bool::weighted(0.1),
        tried in prop::option::of(prop_oneof![(0..4u32).prop_map(|times| Tried::UnderWay { times }), (0..100_000u64, 0..=u32::MAX).prop_map(|(ago, times)| {
            Tried::InVain { at: Timestamp(NOW.0 - ago * 1000), times }
        })]),
        every in prop::option::of(1..100_000u64),
        walltime in prop::option::of(1..3_000_000u64),
    ) -> (u32, u64, Known, Automatic, Option<u64>) {
        let last = last.map(|(ago, took_ms, bytes)| LastSaved { at: Timestamp(NOW.0 - ago * 1000), bytes, took_ms });
        let automatic = every.map_or(Automatic::CostBased, |seconds| Automatic::Every { seconds });
        (nodes, for_s, Known { last, last_is_unread: unread, tried }, automatic, walltime)
    }
}

prop_compose! {
    fn a_world()(
        work in prop::collection::vec(a_work(), 0..12),
        unwell in prop::collection::vec(0..600u64, 0..4),
        waiting in prop::collection::vec((0..=10u8, 0..100_000u64), 0..4),
        unreachable in prop::bool::weighted(0.2),
        at_once_max in 1..5usize,
        budget in 1.0..1e13f64,
        failures_per_node_day in 0.0..1e6f64,
        storage_cost_node_s_per_gb in 0.0..10f64,
    ) -> World {
        let made = work.into_iter().enumerate().map(|(n, (nodes, for_s, known, automatic, walltime))| {
            let n = n as u64;
            let mut allocation = running(n + 1, n * 50, nodes, for_s, automatic);
            spec_of(&mut allocation).walltime = walltime.map(Duration::from_secs);
            (allocation, known)
        });
        let mut world = World::of(made);
        for n in unwell {
            if let Some(node) = world.view.nodes.get_mut(&node_id(n)) {
                node.state = NodeState::Degraded;
            }
        }
        for (n, (class, for_s)) in waiting.into_iter().enumerate() {
            world.waiting(1000 + n as u64, class, for_s);
        }
        if unreachable {
            world.storage = Storage::Unreachable { why: "no answer".into() };
        }
        world.tuning = Tuning { at_once_max, storage_bytes_per_second: budget, failures_per_node_day, storage_cost_node_s_per_gb, ..SITE };
        world
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    #[test]
    fn requests_are_bounded_and_the_most_valuable_come_first(world in a_world()) {
        let judged = world.judged();
        let of = |id: &AllocationId| world.known[id];
        let asked: Vec<_> = judged.iter().filter(|(_, j)| j.verdict == Verdict::Ask).collect();
        let under_way: Vec<_> = judged.iter().filter(|(_, j)| j.verdict == Verdict::UnderWay).collect();
        let waits: Vec<_> = judged.iter().filter(|(_, j)| matches!(j.verdict, Verdict::Staggered { .. })).collect();
        // No work is asked twice, or while the store does not answer.
        let begun = |id: &AllocationId| matches!(of(id).tried, Some(Tried::UnderWay { .. }));
        prop_assert!(!asked.iter().any(|(id, _)| begun(id)));
        prop_assert!(asked.is_empty() || world.storage == Storage::Reachable);
        let busy = asked.len() + under_way.len();
        prop_assert!(asked.is_empty() || busy <= world.tuning.at_once_max.max(1));
        let written: f64 = asked.iter().chain(&under_way).map(|(_, j)| j.terms.bytes_per_second(&world.tuning)).sum();
        prop_assert!(asked.is_empty() || busy == 1 || written <= world.tuning.storage_bytes_per_second * (1.0 + 1e-9));
        // Work whose checkpoint failed is asked one at a time.
        let again = |all: &[(&AllocationId, &Judgement)]| all.iter().filter(|(id, _)| of(id).failed_tries() > 0).count();
        prop_assert!(again(&asked) == 0 || again(&asked) + again(&under_way) == 1);
        // If work is due and no checkpoint is under way, one always begins: of the work with the
        // fewest failures, the most valuable.
        prop_assert!(waits.is_empty() || busy > 0);
        if under_way.is_empty() {
            let least = |all: &[(&AllocationId, &Judgement)]| all.iter().map(|(id, _)| of(id).failed_tries()).min().unwrap_or(u32::MAX);
            prop_assert!(waits.is_empty() || least(&asked) <= least(&waits));
            let first = least(&asked);
            let most = |all: &[(&AllocationId, &Judgement)]| {
                all.iter().filter(|(id, _)| of(id).failed_tries() == first).map(|(_, j)| j.terms.value_node_s()).fold(f64::MIN, f64::max)
            };
            prop_assert!(waits.is_empty() || most(&asked) >= most(&waits));
        }
    }

    #[test]
    fn weighed_work_is_asked_only_if_it_is_worth_it(world in a_world()) {
        for (id, judgement) in world.judged() {
            let terms = judgement.terms;
            let policy = world.view.allocations[&id].spec.checkpoint.unwrap();
            let weighed = policy.automatic == Some(Automatic::CostBased);
            if matches!(judgement.verdict, Verdict::Ask | Verdict::Staggered { .. }) && weighed {
                prop_assert!(terms.value_node_s() > terms.cost_node_s() && terms.unsaved_s >= terms.least_interval_s, "{terms:?}");
            }
            prop_assert!((0.0..=1.0).contains(&terms.failure_probability) && (0.0..=1.0).contains(&terms.preemption_probability));
            prop_assert!((0.0..=1.0).contains(&terms.backlog_pressure));
            prop_assert!(!terms.value_node_s().is_nan() && !terms.cost_node_s().is_nan(), "{terms:?}");
            prop_assert!(!judgement.verdict.to_string().is_empty());
        }
    }

    #[test]
    fn the_longer_it_has_not_saved_itself_the_more_it_is_worth(world in a_world(), later_s in 1..100_000u64) {
        let later = Timestamp(NOW.0 + later_s * 1000);
        let World { view, known, saving, storage, tuning } = &world;
        let view = BrokerView { cluster: view, known, saving, storage, tuning };
        let (now, then) = (should_checkpoint(&view, NOW), should_checkpoint(&view, later));
        for (id, judgement) in now {
            prop_assert!(then[&id].terms.recompute_saved_node_s >= judgement.terms.recompute_saved_node_s);
        }
    }
}

//! The order of a queue by class and score, and what would make work begin sooner.

use crate::tests::{NOW, id, node, pending, running_on, vcluster, view, with_plan};
use crate::{Explanation, Score, Sooner, View, explain, waiting_in};
use lattice_model::constraint::CHECKPOINTS;
use lattice_model::test_builders::spec_of;
use lattice_model::usage::{DailyUse, NodeUse, WHOLE_NODE};
use lattice_model::{
    Allocation, AllocationId, BudgetPeriod, Factor, LaneOf, NodeState, Profile, Resources, SchedulerKind, Tenant, Timestamp, VCluster,
    Weight, Weights,
};
use proptest::prelude::*;
use std::sync::Arc;
use std::time::Duration;

const HOUR_MS: u64 = 3_600_000;

fn of_tenant(mut allocation: Allocation, tenant: &str) -> Allocation {
    spec_of(&mut allocation).tenant = tenant.into();
    allocation
}

fn of_class(mut allocation: Allocation, class: u8) -> Allocation {
    spec_of(&mut allocation).preemption_class = class;
    allocation
}

fn lasting(mut allocation: Allocation, minutes: u64) -> Allocation {
    spec_of(&mut allocation).walltime = Some(Duration::from_secs(minutes * 60));
    allocation
}

/// The view with tenants: the share of each in millionths, and its use in node-hours.
fn with_tenants(mut view: View, tenants: &[(&str, u32, u64)]) -> View {
    for (name, fair_share_target_ppm, hours) in tenants {
        let tenant = Tenant { name: (*name).into(), fair_share_target_ppm: Some(*fair_share_target_ppm), ..Tenant::default() };
        view.tenants.insert((*name).into(), tenant);
        let mut usage = DailyUse::default();
        let nodes = NodeUse { node_millionths: hours * WHOLE_NODE, gpus: 0 };
        usage.add(nodes, Timestamp(NOW.0 - HOUR_MS), NOW, BudgetPeriod::default());
        view.usage.insert((*name).into(), Arc::new(usage));
    }
    view
}

/// The view with only these weights in the default vCluster.
fn weighed(mut view: View, weights: &[(Factor, f64)]) -> View {
    let mut all = Profile::HpcBatch.weights();
    Factor::ALL.into_iter().for_each(|factor| all.set(factor, Weight::default()));
    weights.iter().for_each(|(factor, weight)| all.set(*factor, Weight::new(*weight).unwrap()));
    let default = VCluster { weights: Some(all), ..vcluster("default", SchedulerKind::HpcBackfill, 0) };
    view.vclusters.insert("default".into(), default);
    view
}

fn order(view: &View) -> Vec<AllocationId> {
    waiting_in(view, "default", NOW).iter().map(|a| a.id).collect()
}

fn explained(view: &View, n: u64) -> Explanation {
    explain(view, &view.allocations[&id(n)], NOW)
}

fn value(score: &Score, factor: Factor) -> Option<f64> {
    score.terms.iter().find(|term| term.factor == factor).filter(|term| term.is_known).map(|term| term.value)
}

#[test]
fn the_tenant_that_is_further_below_its_share_comes_first() {
    let waiting = || vec![of_tenant(pending(1, 1, 10), "much"), of_tenant(pending(2, 1, 20), "little"), pending(3, 1, 30)];
    let v = with_tenants(view(1, waiting()), &[("much", 500_000, 90), ("little", 500_000, 10)]);
    assert_eq!(order(&v), [id(2), id(1), id(3)], "the time of waiting decides where the share does not");
    let score = explained(&v, 2).score.unwrap();
    assert_eq!([value(&score, Factor::FairShare), value(&score, Factor::Energy)], [Some(0.8), None]);
    // Both have used as much as their shares allow.
    let even = with_tenants(view(1, waiting()), &[("much", 900_000, 90), ("little", 100_000, 10)]);
    assert_eq!(order(&even), [id(1), id(2), id(3)]);
    // Running work counts, although its use is not recorded yet.
    let mut runs = with_tenants(view(2, waiting()), &[("much", 500_000, 0), ("little", 500_000, 0)]);
    let mut held = running_on(of_tenant(pending(9, 1, 1), "little"), "n2", Resources::default());
    held.started_at = Some(Timestamp(NOW.0 - HOUR_MS));
    runs.allocations.insert(held.id, held);
    assert_eq!(order(&runs), [id(1), id(2), id(3)]);
}

#[test]
fn weights_decide_what_counts() {
    let waiting = vec![of_tenant(pending(1, 1, 10), "much"), of_tenant(pending(2, 1, NOW.0), "little")];
    let v = with_tenants(view(1, waiting), &[("much", 500_000, 90), ("little", 500_000, 10)]);
    assert_eq!(order(&weighed(v.clone(), &[(Factor::WaitTime, 1.0)])), [id(1), id(2)]);
    assert_eq!(order(&weighed(v.clone(), &[(Factor::FairShare, 1.0)])), [id(2), id(1)]);
    // A share deficit of 0.8 against log 2 for an hour's wait.
    assert_eq!(order(&weighed(v.clone(), &[(Factor::FairShare, 0.5), (Factor::WaitTime, 0.5)])), [id(2), id(1)]);
    assert_eq!(order(&weighed(v.clone(), &[(Factor::FairShare, 0.4), (Factor::WaitTime, 0.6)])), [id(1), id(2)]);
    let total = |weights| explained(&weighed(v.clone(), weights), 1).score.unwrap().total();
    assert!((total(&[(Factor::WaitTime, 2.0), (Factor::Energy, 1.0)]) - (2.0 * 2_f64.ln() + 0.5)).abs() < 1e-3);
}

#[test]
fn a_class_counts_up_to_the_bound_of_its_tenant() {
    let waiting = vec![
        pending(1, 1, 10),
        of_class(pending(2, 1, 20), 9),
        of_tenant(of_class(pending(3, 1, 30), 9), "urgent"),
        of_tenant(of_class(pending(4, 1, 40), 7), "urgent"),
        of_class(pending(5, 1, 5), 4),
    ];
    let mut v = with_tenants(view(1, waiting), &[("urgent", 0, 0)]);
    v.tenants.get_mut("urgent").unwrap().class_max = Some(8);
    assert_eq!(order(&v), [id(3), id(4), id(1), id(2), id(5)]);
    assert_eq!(explained(&v, 3).score.unwrap().class, 8);
    // This holds however much the wait weighs.
    assert_eq!(order(&weighed(v, &[(Factor::WaitTime, 1000.0)])), [id(3), id(4), id(1), id(2), id(5)]);
}

#[test]
fn work_of_a_tenant_without_budget_goes_last_in_its_class() {
    let waiting = vec![of_tenant(pending(1, 1, 10), "spent"), of_tenant(pending(2, 1, 20), "thrifty"), of_class(pending(3, 1, 1), 4)];
    let mut v = with_tenants(view(1, waiting), &[("spent", 500_000, 11), ("thrifty", 500_000, 9)]);
    v.tenants.values_mut().for_each(|tenant| tenant.node_hours_budget = Some(10));
    assert_eq!(order(&v), [id(2), id(1), id(3)]);
    let factor = |n| explained(&v, n).score.unwrap().budget_factor;
    assert!(factor(2) < 0.6 && factor(2) > 0.5 && factor(1) == 0.01, "{} {}", factor(2), factor(1));
    v.budget_period = BudgetPeriod::of_days(1).unwrap();
    let v = weighed(v, &[(Factor::WaitTime, 1.0)]);
    let next_day = Timestamp(NOW.0 + 24 * HOUR_MS);
    assert_eq!((order(&v)[0], waiting_in(&v, "default", next_day)[0].id), (id(2), id(1)), "a new day, a new budget");
}

#[test]
fn work_that_saves_itself_soon_scores_higher() {
    let mut v = view(4, vec![pending(1, 4, 10), pending(2, 4, 9)]);
    v.nodes.values_mut().for_each(|node| node.features.push(CHECKPOINTS.to_owned()));
    let saves = v.allocations.get_mut(&id(1)).unwrap();
    spec_of(saves).checkpoint = Some(lattice_model::CheckpointPolicy::default());
    // A quarter of four nodes' 1 GiB in a minute.
    v.checkpoint_bytes_per_second = Some((1_u64 << 30) as f64 / 60.0);
    let values = |v: &View| [1, 2].map(|n| value(&explained(v, n).score.unwrap(), Factor::Checkpoint));
    assert_eq!((values(&v), order(&v)), ([Some(0.5), Some(0.0)], vec![id(1), id(2)]));
    v.checkpoint_bytes_per_second = None;
    assert_eq!(values(&v), [None, Some(0.0)]);
}

#[test]
fn an_explanation_says_what_would_help() {
    let held = |n, name, minutes| {
        let mut held = running_on(lasting(pending(n, 1, 1), minutes), name, Resources { cores: 2, memory_bytes: 1 << 30, gpus: 0 });
        held.started_at = Some(NOW);
        held
    };
    let waiting = vec![held(8, "n1", 120), lasting(pending(1, 3, 10), 60), lasting(pending(2, 2, 20), 240), lasting(pending(3, 9, 30), 60)];
    let mut v = view(3, waiting);
    // 1 waits for n1; 2 could use n2 and n3 until then.
    assert_eq!(explained(&v, 1).sooner, [Sooner::Nodes(2)]);
    assert_eq!(explained(&v, 2).sooner, [Sooner::Walltime(Duration::from_secs(120 * 60))]);
    assert_eq!(explained(&v, 3).sooner, [Sooner::Nodes(2)], "it could never have nine");
    let of_group = v.allocations.get_mut(&id(2)).unwrap();
    of_group.lane = Some(LaneOf { group: id(50), number: 0, queued_at: of_group.queued_at(), revocations: 0 });
    assert_eq!(
        explained(&v, 2).sooner,
        [Sooner::Walltime(Duration::from_secs(59 * 60))],
        "a lane has twice the walltime of a task and a minute"
    );
    v.allocations.get_mut(&id(2)).unwrap().lane = None;
    v.vclusters.insert("other".into(), vcluster("other", SchedulerKind::HpcBackfill, 1));
    let mut own = node(4, NodeState::Ready);
    own.home = "other".into();
    v.alive.insert(own.id.clone());
    v.nodes.insert(own.id.clone(), own);
    v.allocations.insert(id(4), lasting(pending(4, 1, 40), 240));
    let sooner = explained(&v, 4).sooner;
    assert_eq!(sooner, [Sooner::Walltime(Duration::from_secs(120 * 60)), Sooner::VCluster("other".into())]);
    let texts: Vec<String> = sooner.iter().map(ToString::to_string).collect();
    assert_eq!(texts, ["its walltime were 02:00:00", "it were in vCluster other"]);
}

/// Work of any class, width and length, for tenants with bounds and shares.
fn any_view() -> impl Strategy<Value = View> {
    let work = (0..3_u64, 1..5_u32, 0..3_600_u64, 1..300_u64, 0..=10_u8);
    let weights = prop::array::uniform9(0..=1000_u32);
    (prop::collection::vec(work, 1..30), weights, prop::collection::vec(0..300_u64, 0..4)).prop_map(|(works, weights, held)| {
        let waiting = (1..).zip(works).map(|(n, (tenant, nodes, at_s, minutes, class))| {
            let allocation = of_class(lasting(pending(n, nodes, at_s * 1000), minutes), class);
            of_tenant(allocation, ["", "a", "b"][tenant as usize])
        });
        let held = (100..).zip(held).map(|(n, minutes)| {
            let amount = Resources { cores: 2, memory_bytes: 1 << 30, gpus: 0 };
            let mut held = running_on(lasting(pending(n, 1, 1), 1 + minutes), &format!("n{}", n - 99), amount);
            held.started_at = Some(NOW);
            held
        });
        let mut v = with_tenants(view(4, waiting.chain(held).collect()), &[("a", 300_000, 7), ("b", 700_000, 3)]);
        v.tenants.get_mut("a").unwrap().class_max = Some(9);
        let weights: Vec<(Factor, f64)> = Factor::ALL.into_iter().zip(weights.map(f64::from)).collect();
        weighed(v, &weights)
    })
}

proptest! {
    /// No work begins before work of a higher class that would fit in its place.
    #[test]
    fn a_lower_class_never_goes_before_a_fitting_higher_one(v in any_view()) {
        let claims = || with_plan(&v, NOW, |plan| plan.claims(|_| Some(1)));
        let begun: Vec<AllocationId> = claims().iter().map(|claim| claim.allocation).collect();
        let class = |n: &AllocationId| v.effective_class(&v.allocations[n]);
        for waits in order(&v).iter().filter(|n| !begun.contains(n)) {
            let (nodes, walltime) = (v.allocations[waits].spec.nodes, v.allocations[waits].spec.walltime);
            for lower in begun.iter().filter(|n| class(n) < class(waits)) {
                let spec = &v.allocations[lower].spec;
                prop_assert!(spec.nodes < nodes || spec.walltime < walltime, "{} began before {}", lower, waits);
            }
        }
        prop_assert_eq!(claims(), claims(), "the same view gives the same plan");
    }
}

#[test]
fn a_queue_in_the_order_of_submission_has_no_scores() {
    let mut v = view(1, vec![pending(1, 1, 10), pending(2, 1, 20)]);
    v.vclusters.insert("fifo".into(), vcluster("fifo", SchedulerKind::InteractiveFifo, 0));
    v.allocations.values_mut().for_each(|allocation| spec_of(allocation).vcluster = "fifo".into());
    assert_eq!(explained(&v, 2).score, None);
    assert_eq!(v.weights_of("fifo"), None::<Weights>);
    for (kind, profile) in [(SchedulerKind::MlTraining, Profile::MlTraining), (SchedulerKind::ServiceBinPack, Profile::Service)] {
        v.vclusters.insert("other".into(), vcluster("other", kind, 0));
        assert_eq!(v.weights_of("other"), Some(profile.weights()));
    }
}

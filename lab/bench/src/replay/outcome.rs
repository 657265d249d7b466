//! The field's measures of a scenario's outcome.
//!
//! The use of nodes is measured between the first and the last submission, because before and after there is too little
//! work. Waits and slowdowns are measured over all work.

use super::course::{Course, Effort, Stretch};
use super::scenario::{Scenario, Work};
use super::site::Site;
use lattice_model::tenant::WHOLE_CLUSTER_PPM;
use lattice_model::usage::WHOLE_NODE;
use lattice_model::{DEFAULT_VCLUSTER, PreemptCause};
use serde::Serialize;
use std::collections::BTreeMap;

/// The shortest run time that counts for a slowdown, in seconds: otherwise work that ends at once would decide the mean.
const SLOWDOWN_RUN_S_MIN: u64 = 10;
/// The cluster is full once this percentage of its nodes is in use.
const FULL_PERCENT: u64 = 95;
/// How many points a curve has.
const POINTS: u32 = 200;
const HOUR_S: f64 = 3600.0;

/// The measures of one replay.
#[derive(Clone, Debug, Serialize)]
pub struct Outcome {
    /// The weights: a file's name, or `own` for those of the trace.
    pub weights: String,
    pub submitted: usize,
    /// Work that could never begin: no nodes of the trace can serve it, or a limit of its tenant forbids it.
    pub never_began: usize,
    pub nodes: Used,
    /// `None`: the nodes have no GPUs.
    pub gpus: Option<Used>,
    /// From the submission to the first start, in seconds; for work that never began, to the end of the replay.
    pub wait_p50_s: u64,
    pub wait_p95_s: u64,
    pub wait_p99_s: u64,
    /// The longest wait.
    pub oldest_s: u64,
    /// The mean of (end − submission) / run, at least 1, with a run of ten seconds at least: the bounded slowdown of D.
    /// Feitelson et al., "Theory and practice in parallel job scheduling", JSSPP 1997. Over work that ended.
    pub slowdown_mean: f64,
    /// Jain's index of the tenants' node-hours in proportion to their targets, (Σx)² / (n·Σx²): 1 is fair, 1/n is one
    /// tenant alone (R. Jain, D.-M. Chiu, W. Hawe, DEC-TR-301, 1984). `None`: fewer than two tenants have a target.
    pub jain: Option<f64>,
    /// The largest difference between a tenant's target and its part of the node-hours of all tenants with a record.
    pub share_deviation: Option<f64>,
    /// Work that first began while work ahead of it in its queue waited.
    pub backfilled: usize,
    pub preempted_for_priority: usize,
    pub preempted_for_reclaim: usize,
    /// The part of preemptions after which work continued where it was, instead of beginning anew. `None`: there were
    /// none.
    pub saved: Option<f64>,
    /// From the first submission until 95 % of the nodes were in use. `None`: never.
    pub ramp_up_s: Option<u64>,
    /// The longest wait in each vCluster, in seconds.
    pub oldest_of_vclusters_s: BTreeMap<String, u64>,
    pub tenants: Vec<TenantUse>,
    #[serde(skip)]
    pub curves: Curves,
    /// The only values that differ from run to run.
    pub effort: EffortShown,
}

/// An amount in use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Used {
    /// Hours of nodes or GPUs.
    pub used_hours: f64,
    pub available_hours: f64,
}

impl Used {
    /// The part in use.
    pub fn part(self) -> f64 {
        if self.available_hours > 0.0 { self.used_hours / self.available_hours } else { 0.0 }
    }
}

/// What a tenant with a target used.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct TenantUse {
    pub tenant: String,
    pub target: f64,
    pub part: f64,
}

/// Points for drawings.
#[derive(Clone, Debug, Default)]
pub struct Curves {
    /// Hours since the first submission, and the percentage of the nodes in use.
    pub in_use: Vec<(f64, f64)>,
    /// Hours of waiting, and the percentage of the work that waited no longer.
    pub waits: Vec<(f64, f64)>,
}

/// What the plans cost.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct EffortShown {
    pub plans: u64,
    pub processor_seconds: f64,
    pub longest_plan_ms: f64,
}

impl From<Effort> for EffortShown {
    fn from(Effort { plans, processor, longest }: Effort) -> Self {
        Self { plans, processor_seconds: processor.as_secs_f64(), longest_plan_ms: longest.as_secs_f64() * 1e3 }
    }
}

/// A period, in seconds.
#[derive(Clone, Copy)]
struct Window {
    from_s: u64,
    to_s: u64,
}

impl Window {
    /// From the first to the last submission; if these are at the same time, to the end of the replay.
    fn of(scenario: &Scenario, course: &Course) -> Self {
        let (from_s, last_s) = scenario.span_s();
        let to_s = if last_s > from_s { last_s } else { course.until_s.max(from_s + 1) };
        Self { from_s, to_s }
    }

    fn long_s(self) -> f64 {
        (self.to_s - self.from_s) as f64
    }

    /// How much of a stretch is inside, in seconds.
    fn inside_s(self, stretch: &Stretch) -> f64 {
        stretch.to_s.min(self.to_s).saturating_sub(stretch.from_s.max(self.from_s)) as f64
    }
}

impl Outcome {
    pub fn of(weights: &str, scenario: &Scenario, course: &Course) -> Self {
        let window = Window::of(scenario, course);
        let waits = Waits::of(scenario, course);
        let (jain, share_deviation, tenants) = fairness(&scenario.site, &hours_of_tenants(scenario, course, window));
        let preempted = |cause| course.stretches.iter().filter(|stretch| stretch.preempted == Some(cause)).count();
        Self {
            weights: weights.to_owned(),
            submitted: scenario.works.len(),
            never_began: course.lives.iter().filter(|life| life.started_s.is_none()).count(),
            nodes: nodes_used(scenario, course, window),
            gpus: gpus_used(scenario, course, window),
            wait_p50_s: waits.percentile_s(50),
            wait_p95_s: waits.percentile_s(95),
            wait_p99_s: waits.percentile_s(99),
            oldest_s: waits.percentile_s(100),
            slowdown_mean: slowdown_mean(scenario, course),
            jain,
            share_deviation,
            backfilled: course.lives.iter().filter(|life| life.is_backfill).count(),
            preempted_for_priority: preempted(PreemptCause::Priority),
            preempted_for_reclaim: preempted(PreemptCause::Reclaim),
            saved: saved(scenario, course),
            ramp_up_s: ramp_up_s(scenario, course),
            oldest_of_vclusters_s: waits.oldest_of_vclusters_s,
            tenants,
            curves: Curves { in_use: in_use_curve(scenario, course, window), waits: waits_curve(&waits.sorted_s) },
            effort: course.effort.into(),
        }
    }
}

/// The waits of all work.
struct Waits {
    sorted_s: Vec<u64>,
    oldest_of_vclusters_s: BTreeMap<String, u64>,
}

impl Waits {
    fn of(scenario: &Scenario, course: &Course) -> Self {
        let mut oldest_of_vclusters_s = BTreeMap::new();
        let mut sorted_s = Vec::with_capacity(scenario.works.len());
        for (work, life) in scenario.works.iter().zip(&course.lives) {
            let wait_s = life.started_s.unwrap_or(course.until_s).saturating_sub(work.submitted_s);
            let name = if work.request.vcluster.is_empty() { DEFAULT_VCLUSTER } else { &work.request.vcluster };
            if let Some(oldest_s) = oldest_of_vclusters_s.get_mut(name) {
                *oldest_s = wait_s.max(*oldest_s);
            } else {
                oldest_of_vclusters_s.insert(name.to_owned(), wait_s);
            }
            sorted_s.push(wait_s);
        }
        sorted_s.sort_unstable();
        Self { sorted_s, oldest_of_vclusters_s }
    }

    /// The shortest wait that `percent` percent of all waits do not exceed.
    fn percentile_s(&self, percent: usize) -> u64 {
        let place = (self.sorted_s.len() * percent).div_ceil(100);
        self.sorted_s.get(place.saturating_sub(1)).copied().unwrap_or(0)
    }
}

/// Node-seconds of a stretch inside the window.
fn node_s(stretch: &Stretch, window: Window) -> f64 {
    window.inside_s(stretch) * stretch.uses.node_millionths as f64 / WHOLE_NODE as f64
}

fn nodes_used(scenario: &Scenario, course: &Course, window: Window) -> Used {
    let used_s: f64 = course.stretches.iter().map(|stretch| node_s(stretch, window)).sum();
    Used { used_hours: used_s / HOUR_S, available_hours: scenario.site.nodes.len() as f64 * window.long_s() / HOUR_S }
}

fn gpus_used(scenario: &Scenario, course: &Course, window: Window) -> Option<Used> {
    let gpus: u64 = scenario.site.nodes.iter().map(|node| u64::from(node.size.gpus)).sum();
    let used_s: f64 = course.stretches.iter().map(|stretch| window.inside_s(stretch) * stretch.uses.gpus as f64).sum();
    (gpus > 0).then(|| Used { used_hours: used_s / HOUR_S, available_hours: gpus as f64 * window.long_s() / HOUR_S })
}

fn slowdown_mean(scenario: &Scenario, course: &Course) -> f64 {
    let slowdown = |(work, ended_s): (&Work, u64)| {
        let slowdown = ended_s.saturating_sub(work.submitted_s) as f64 / work.run_s.max(SLOWDOWN_RUN_S_MIN) as f64;
        slowdown.max(1.0)
    };
    let ended = scenario.works.iter().zip(&course.lives).filter_map(|(work, life)| Some((work, life.ended_s?)));
    let all: Vec<f64> = ended.map(slowdown).collect();
    if all.is_empty() { 0.0 } else { all.iter().sum::<f64>() / all.len() as f64 }
}

fn saved(scenario: &Scenario, course: &Course) -> Option<f64> {
    let preempted: Vec<&Stretch> = course.stretches.iter().filter(|stretch| stretch.preempted.is_some()).collect();
    let saved = preempted.iter().filter(|stretch| scenario.works[stretch.work].request.checkpoint).count();
    (!preempted.is_empty()).then(|| saved as f64 / preempted.len() as f64)
}

/// Node-hours inside the window of all tenants with a record.
fn hours_of_tenants(scenario: &Scenario, course: &Course, window: Window) -> BTreeMap<String, f64> {
    let mut hours: BTreeMap<String, f64> = scenario.site.tenants.iter().map(|tenant| (tenant.name.clone(), 0.0)).collect();
    for stretch in &course.stretches {
        if let Some(hours) = hours.get_mut(&scenario.works[stretch.work].request.tenant) {
            *hours += node_s(stretch, window) / HOUR_S;
        }
    }
    hours
}

/// Jain's index, the largest deviation, and the use of each tenant with a target.
fn fairness(site: &Site, hours: &BTreeMap<String, f64>) -> (Option<f64>, Option<f64>, Vec<TenantUse>) {
    let all_hours: f64 = hours.values().sum();
    let of_tenant = |tenant: &lattice_model::Tenant| {
        let target = f64::from(tenant.fair_share_target_ppm.filter(|ppm| *ppm > 0)?) / f64::from(WHOLE_CLUSTER_PPM);
        let used_hours = hours.get(&tenant.name).copied().unwrap_or(0.0);
        let part = if all_hours > 0.0 { used_hours / all_hours } else { 0.0 };
        Some(TenantUse { tenant: tenant.name.clone(), target, part })
    };
    let tenants: Vec<TenantUse> = site.tenants.iter().filter_map(of_tenant).collect();
    let deviation = tenants.iter().map(|of| (of.part - of.target).abs()).reduce(f64::max).filter(|_| all_hours > 0.0);
    let ratios: Vec<f64> = tenants.iter().map(|of| of.part / of.target).collect();
    let squares: f64 = ratios.iter().map(|ratio| ratio * ratio).sum();
    let jain = (ratios.len() > 1 && squares > 0.0).then(|| ratios.iter().sum::<f64>().powi(2) / (ratios.len() as f64 * squares));
    (jain, deviation, tenants)
}

/// The changes of the nodes in use, in millionths, by time.
fn changes(course: &Course) -> BTreeMap<u64, i128> {
    let mut changes: BTreeMap<u64, i128> = BTreeMap::new();
    for stretch in course.stretches.iter().filter(|stretch| stretch.to_s > stretch.from_s) {
        *changes.entry(stretch.from_s).or_insert(0) += i128::from(stretch.uses.node_millionths);
        *changes.entry(stretch.to_s).or_insert(0) -= i128::from(stretch.uses.node_millionths);
    }
    changes
}

fn ramp_up_s(scenario: &Scenario, course: &Course) -> Option<u64> {
    let full = scenario.site.nodes.len() as i128 * i128::from(WHOLE_NODE * FULL_PERCENT / 100);
    let mut in_use: i128 = 0;
    let at = changes(course).into_iter().find(|(_, change)| {
        in_use += change;
        in_use >= full
    });
    at.map(|(at_s, _)| at_s.saturating_sub(scenario.span_s().0))
}

/// The mean of each of [`POINTS`] parts of the window.
fn in_use_curve(scenario: &Scenario, course: &Course, window: Window) -> Vec<(f64, f64)> {
    let part_s = window.long_s() / f64::from(POINTS);
    let mut busy_s = vec![0.0; POINTS as usize];
    for stretch in &course.stretches {
        let from = (stretch.from_s.saturating_sub(window.from_s) as f64 / part_s) as usize;
        let (begin_s, end_s) = (stretch.from_s.max(window.from_s), stretch.to_s.min(window.to_s));
        let nodes = stretch.uses.node_millionths as f64 / WHOLE_NODE as f64;
        for (place, busy_s) in busy_s.iter_mut().enumerate().skip(from) {
            let part_from_s = window.from_s as f64 + place as f64 * part_s;
            if part_from_s >= end_s as f64 {
                break;
            }
            let inside_s = (end_s as f64).min(part_from_s + part_s) - (begin_s as f64).max(part_from_s);
            *busy_s += inside_s.max(0.0) * nodes;
        }
    }
    let all_s = scenario.site.nodes.len() as f64 * part_s;
    let point = |(place, busy_s): (usize, f64)| ((place as f64 + 0.5) * part_s / HOUR_S, 100.0 * busy_s / all_s);
    busy_s.into_iter().enumerate().map(point).collect()
}

fn waits_curve(sorted_s: &[u64]) -> Vec<(f64, f64)> {
    let Some(last) = sorted_s.len().checked_sub(1) else { return Vec::new() };
    let point = |number: u32| {
        let place = last * number as usize / POINTS as usize;
        (sorted_s[place] as f64 / HOUR_S, 100.0 * (place + 1) as f64 / sorted_s.len() as f64)
    };
    (0..=POINTS).map(point).collect()
}

#[cfg(test)]
mod tests {
    use super::super::course::Life;
    use super::super::product::id;
    use super::super::scenario::whole_nodes;
    use super::*;
    use lattice_api::trace::Request;
    use lattice_model::{NodeUse, Tenant};

    fn scenario(works: Vec<Work>) -> Scenario {
        let mut site = Site::alike(2);
        let tenant = |name: &str, ppm| Tenant { name: name.into(), fair_share_target_ppm: Some(ppm), ..Tenant::default() };
        site.tenants = vec![tenant("a", 500_000), tenant("b", 250_000)];
        Scenario { name: "t".into(), site, works, notes: vec![] }
    }

    fn work(number: usize, tenant: &str, submitted_s: u64, run_s: u64) -> Work {
        Work { id: id(number), request: Request { tenant: tenant.into(), ..whole_nodes(1) }, submitted_s, run_s }
    }

    fn stretch(work: usize, from_s: u64, to_s: u64) -> Stretch {
        Stretch { work, from_s, to_s, uses: NodeUse { node_millionths: WHOLE_NODE, gpus: 4 }, preempted: None }
    }

    fn near(got: f64, want: f64) {
        assert!((got - want).abs() < 1e-9, "{got}, not {want}");
    }

    #[test]
    fn the_measures_of_three_works() {
        let scenario = scenario(vec![work(0, "a", 0, 1000), work(1, "b", 0, 2000), work(2, "b", 4000, 100)]);
        let preempted = Stretch { preempted: Some(PreemptCause::Reclaim), ..stretch(1, 0, 1000) };
        let life = |started_s, ended_s, is_backfill| Life { started_s: Some(started_s), ended_s: Some(ended_s), is_backfill };
        let course = Course {
            lives: vec![life(0, 1000, false), life(0, 5000, false), life(4300, 4400, true)],
            stretches: vec![stretch(0, 0, 1000), preempted, stretch(1, 3000, 5000), stretch(2, 4300, 4400)],
            until_s: 5000,
            effort: Effort::default(),
        };
        let outcome = Outcome::of("own", &scenario, &course);
        // Of 4,000 s of two nodes: 1000 + 1000 + 1000.
        near(outcome.nodes.part(), 3.0 / 8.0);
        near(outcome.gpus.unwrap().used_hours, 4.0 * 3000.0 / 3600.0);
        assert_eq!((outcome.wait_p50_s, outcome.wait_p95_s, outcome.oldest_s), (0, 300, 300));
        // 1, 5000 / 2000, 400 / 100.
        near(outcome.slowdown_mean, 2.5);
        // a: a third of the use, target a half; b: two thirds, target a quarter.
        near(outcome.share_deviation.unwrap(), 2.0 / 3.0 - 0.25);
        let (x, y) = (2.0 / 3.0, 8.0 / 3.0);
        near(outcome.jain.unwrap(), (x + y) * (x + y) / (2.0 * (x * x + y * y)));
        assert_eq!((outcome.backfilled, outcome.preempted_for_priority, outcome.preempted_for_reclaim), (1, 0, 1));
        assert_eq!((outcome.saved, outcome.ramp_up_s, outcome.never_began), (Some(0.0), Some(0), 0));
        assert_eq!(outcome.oldest_of_vclusters_s, BTreeMap::from([("default".to_owned(), 300)]));
        // The curve has the same area.
        near(outcome.curves.in_use.iter().map(|(_, percent)| percent).sum::<f64>() / f64::from(POINTS), 37.5);
        assert_eq!(outcome.curves.waits.last(), Some(&(300.0 / 3600.0, 100.0)));
    }

    #[test]
    fn work_that_never_began_waited_to_the_end() {
        let scenario = scenario(vec![work(0, "a", 0, 1000), work(1, "c", 100, 10)]);
        let ran = Life { started_s: Some(0), ended_s: Some(1000), is_backfill: false };
        let lives = vec![ran, Life::default()];
        let course = Course { lives, stretches: vec![stretch(0, 0, 1000)], until_s: 1000, effort: Effort::default() };
        let outcome = Outcome::of("own", &scenario, &course);
        assert_eq!((outcome.never_began, outcome.oldest_s, outcome.saved, outcome.ramp_up_s), (1, 900, None, None));
        near(outcome.share_deviation.unwrap(), 0.5);
    }
}

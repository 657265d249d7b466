//! The six traces of the documents ("Testing strategy", the regression suite), generated from a seed. Each has a
//! criterion, which the tests check with the weights of the schedulers.
//!
//! Streams of work are paced: the next submission follows after the time for which the work before it keeps the wanted
//! number of nodes busy. So a stream has the intended load, whatever the seed.

use super::outcome::Outcome;
use super::product::id;
use super::scenario::{Scenario, Work, whole_nodes};
use super::site::{Site, node, vcluster};
use lattice_api::trace::{Amount, Request, Span};
use lattice_lab::dice::Dice;
use lattice_model::{SchedulerKind, Tenant, VCluster};

const MINUTE_S: u64 = 60;
const HOUR_S: u64 = 60 * MINUTE_S;
const DAY_S: u64 = 24 * HOUR_S;
/// Walltimes are whole multiples of this.
const WALLTIME_STEP_S: u64 = 5 * MINUTE_S;

/// A trace with a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Named {
    SteadyState,
    Burst,
    Unfair,
    SensitiveClaim,
    PreemptionHeavy,
    EmptyToFull,
}

impl Named {
    /// All of them, in the order of the documents.
    pub const ALL: [Self; 6] =
        [Self::SteadyState, Self::Burst, Self::Unfair, Self::SensitiveClaim, Self::PreemptionHeavy, Self::EmptyToFull];

    /// The documents' name, without `.trace`.
    pub fn name(self) -> &'static str {
        match self {
            Self::SteadyState => "steady-state",
            Self::Burst => "burst",
            Self::Unfair => "unfair",
            Self::SensitiveClaim => "sensitive-claim",
            Self::PreemptionHeavy => "preemption-heavy",
            Self::EmptyToFull => "empty-to-full",
        }
    }

    /// The trace with this name, with or without `.trace`.
    pub fn from_name(name: &str) -> Option<Self> {
        let name = name.strip_suffix(".trace").unwrap_or(name);
        Self::ALL.into_iter().find(|named| named.name() == name)
    }

    /// What it is, in a line.
    pub fn about(self) -> &'static str {
        match self {
            Self::SteadyState => "a normal mix of HPC, ML and services, four days",
            Self::Burst => "a sudden spike of submissions",
            Self::Unfair => "one of three tenants submits more than its share, three days",
            Self::SensitiveClaim => "claims of a vCluster that lends its idle nodes to HPC",
            Self::PreemptionHeavy => "work of the usual class again and again wants nodes of background work",
            Self::EmptyToFull => "an idle cluster gets more work than it can run",
        }
    }

    /// What must hold with the weights of the schedulers.
    pub fn criterion(self) -> &'static str {
        match self {
            Self::SteadyState => "more than 85 % of the nodes are in use",
            Self::Burst => "no starvation: 99 % of the work waits less than 4 h",
            Self::Unfair => "no tenant is 10 points or more from its share",
            Self::SensitiveClaim => "work of the vCluster `sensitive` waits ten minutes at most",
            Self::PreemptionHeavy => "there are preemptions, and more than 95 % of them save the work",
            Self::EmptyToFull => "95 % of the nodes are in use within ten minutes",
        }
    }

    /// Whether [`Self::criterion`] holds.
    pub fn is_met(self, outcome: &Outcome) -> bool {
        match self {
            Self::SteadyState => outcome.nodes.part() > 0.85,
            Self::Burst => outcome.wait_p99_s < 4 * HOUR_S,
            Self::Unfair => outcome.share_deviation.is_some_and(|deviation| deviation < 0.1),
            Self::SensitiveClaim => outcome.oldest_of_vclusters_s.get(SENSITIVE).is_some_and(|oldest_s| *oldest_s <= RECLAIM_S_MAX),
            Self::PreemptionHeavy => outcome.saved.is_some_and(|saved| saved > 0.95),
            Self::EmptyToFull => outcome.ramp_up_s.is_some_and(|ramp_up_s| ramp_up_s <= 10 * MINUTE_S),
        }
    }

    /// The trace of a seed.
    pub fn generate(self, seed: u64) -> Scenario {
        let mut making = Making { dice: Dice::new(seed, self.name()), site: Site::default(), works: Vec::new() };
        match self {
            Self::SteadyState => steady_state(&mut making),
            Self::Burst => burst(&mut making),
            Self::Unfair => unfair(&mut making),
            Self::SensitiveClaim => sensitive_claim(&mut making),
            Self::PreemptionHeavy => preemption_heavy(&mut making),
            Self::EmptyToFull => empty_to_full(&mut making),
        }
        let Making { site, mut works, .. } = making;
        works.sort_by_key(|work| work.submitted_s);
        let notes = vec![self.about().to_owned(), format!("criterion: {}", self.criterion())];
        Scenario { name: format!("{}, seed {seed}", self.name()), site, works, notes }
    }
}

/// How long work of [`SENSITIVE`] may wait. Work that ends by its walltime within five minutes is left to end, and then
/// other work may have to give nodes back, which takes 90 s.
const RECLAIM_S_MAX: u64 = 10 * MINUTE_S;
/// The vCluster of [`Named::SensitiveClaim`].
const SENSITIVE: &str = "sensitive";

/// A trace that is being made.
struct Making {
    dice: Dice,
    site: Site,
    works: Vec<Work>,
}

/// A stream of submissions.
struct Stream {
    /// The common part of all requests, of a user of this tenant and vCluster.
    request: Request,
    nodes: (u32, u32),
    run_s: (u64, u64),
    /// From when until when it submits.
    from_s: u64,
    until_s: u64,
    /// How many nodes its work would keep busy.
    load_nodes: f64,
    /// The percentage of its work that saves itself; the rest begins anew.
    saves_percent: Option<u64>,
}

impl Making {
    fn nodes(&mut self, count: u32, home: &str) {
        let first = u32::try_from(self.site.nodes.len()).unwrap_or(u32::MAX);
        self.site.nodes.extend((first..first + count).map(|number| lattice_model::Node { home: home.to_owned(), ..node(number) }));
    }

    fn tenant(&mut self, name: &str, target_ppm: u32) {
        self.site.tenants.push(Tenant { name: name.to_owned(), fair_share_target_ppm: Some(target_ppm), ..Tenant::default() });
    }

    fn vcluster(&mut self, name: &str, scheduler: SchedulerKind, nodes: u32) {
        self.site.vclusters.push(VCluster { nodes, ..vcluster(name, scheduler) });
    }

    /// Submits one work with a walltime that is up to twice as long as it runs.
    fn submit(&mut self, request: Request, submitted_s: u64, run_s: u64) {
        let spare_s = run_s * self.dice.between(5, 100) / 100;
        let walltime_s = (run_s + spare_s).div_ceil(WALLTIME_STEP_S) * WALLTIME_STEP_S;
        let request = Request { walltime: Some(Span(walltime_s)), ..request };
        self.works.push(Work { id: id(self.works.len()), request, submitted_s, run_s });
    }

    fn stream(&mut self, stream: &Stream) {
        let mut at_s = stream.from_s as f64;
        while (at_s as u64) < stream.until_s {
            let nodes = self.dice.between(stream.nodes.0.into(), stream.nodes.1.into());
            let run_s = self.dice.between(stream.run_s.0, stream.run_s.1);
            let saves = stream.saves_percent.map(|percent| self.dice.percent(percent));
            let request = Request {
                nodes: u32::try_from(nodes).unwrap_or(u32::MAX),
                checkpoint: saves == Some(true),
                requeues: if saves == Some(false) { 100 } else { 0 },
                ..stream.request.clone()
            };
            self.submit(request, at_s as u64, run_s);
            at_s += nodes as f64 * run_s as f64 / stream.load_nodes;
        }
    }
}

/// A request of a user of this tenant in this vCluster.
fn of(tenant: &str, vcluster: &str, user: u32) -> Request {
    Request { tenant: tenant.to_owned(), vcluster: vcluster.to_owned(), user, ..whole_nodes(1) }
}

/// A stream with the usual sizes.
fn stream(request: Request, load_nodes: f64, until_s: u64) -> Stream {
    Stream { request, nodes: (1, 4), run_s: (HOUR_S, 4 * HOUR_S), from_s: 0, until_s, load_nodes, saves_percent: None }
}

fn steady_state(making: &mut Making) {
    const UNTIL_S: u64 = 4 * DAY_S;
    making.nodes(48, "");
    making.vcluster("hpc", SchedulerKind::HpcBackfill, 0);
    making.vcluster("ml", SchedulerKind::MlTraining, 0);
    making.vcluster("services", SchedulerKind::ServiceBinPack, 0);
    making.tenant("physics", 600_000);
    making.tenant("vision", 350_000);
    making.tenant("web", 50_000);
    let quarter = Amount { cores: 16, memory_bytes: 64 << 30, gpus: 1 };
    for number in 0..8 {
        // Services have no walltime.
        let request = Request { share: Some(quarter), ..of("web", "services", 3) };
        making.works.push(Work { id: id(number), request, submitted_s: 0, run_s: UNTIL_S });
    }
    let hpc = Stream { nodes: (1, 8), run_s: (HOUR_S, 6 * HOUR_S), ..stream(of("physics", "hpc", 1), 28.0, UNTIL_S) };
    let ml = Stream { run_s: (2 * HOUR_S, 10 * HOUR_S), ..stream(of("vision", "ml", 2), 18.0, UNTIL_S) };
    making.stream(&hpc);
    making.stream(&ml);
}

fn burst(making: &mut Making) {
    const SPIKE_AT_S: u64 = 6 * HOUR_S;
    making.nodes(48, "");
    making.vcluster("hpc", SchedulerKind::HpcBackfill, 0);
    making.tenant("physics", 500_000);
    making.tenant("vision", 500_000);
    making.stream(&Stream { run_s: (HOUR_S / 2, 2 * HOUR_S), ..stream(of("physics", "hpc", 1), 20.0, DAY_S) });
    for number in 0..80 {
        let nodes = u32::try_from(making.dice.between(1, 2)).unwrap_or(1);
        let request = Request { nodes, ..of("vision", "hpc", 2) };
        making.submit(request, SPIKE_AT_S + number / 2, HOUR_S / 2);
    }
}

/// All tenants want more than their share, and one of them wants all nodes. If shares did not count, each would get
/// nodes in proportion to its demand.
fn unfair(making: &mut Making) {
    const UNTIL_S: u64 = 3 * DAY_S;
    const NODES: u32 = 32;
    making.nodes(NODES, "");
    making.vcluster("hpc", SchedulerKind::HpcBackfill, 0);
    for (user, tenant, target_ppm, wanted) in [(1, "greedy", 340_000, 1.0), (2, "modest", 330_000, 0.6), (3, "humble", 330_000, 0.6)] {
        making.tenant(tenant, target_ppm);
        let request = of(tenant, "hpc", user);
        making.stream(&Stream { run_s: (2 * HOUR_S, 6 * HOUR_S), ..stream(request, wanted * f64::from(NODES), UNTIL_S) });
    }
}

/// HPC wants more than its own nodes, so that it borrows those of `sensitive` whenever they are idle.
fn sensitive_claim(making: &mut Making) {
    const UNTIL_S: u64 = 3 * DAY_S;
    /// Longer than any walltime of HPC.
    const LEND_MS: u64 = DAY_S * 1000;
    const EVERY_S: u64 = 4 * HOUR_S;
    making.nodes(32, "");
    making.nodes(8, SENSITIVE);
    making.site.vclusters.push(VCluster { borrows: true, ..vcluster("hpc", SchedulerKind::HpcBackfill) });
    making.site.vclusters.push(VCluster { nodes: 8, lend_ms: Some(LEND_MS), ..vcluster(SENSITIVE, SchedulerKind::HpcBackfill) });
    making.tenant("physics", 800_000);
    making.tenant("hospital", 200_000);
    let hpc = stream(of("physics", "hpc", 1), 40.0, UNTIL_S);
    making.stream(&Stream { nodes: (1, 8), run_s: (HOUR_S, 6 * HOUR_S), saves_percent: Some(100), ..hpc });
    for number in 0..UNTIL_S / EVERY_S {
        // Two claims overlap at most, and both fit.
        let nodes = u32::try_from(making.dice.between(2, 4)).unwrap_or(2);
        let run_s = making.dice.between(HOUR_S, 6 * HOUR_S);
        making.submit(Request { nodes, ..of("hospital", SENSITIVE, 2) }, number * EVERY_S + 7, run_s);
    }
}

fn preemption_heavy(making: &mut Making) {
    const UNTIL_S: u64 = 2 * DAY_S;
    making.nodes(24, "");
    making.vcluster("hpc", SchedulerKind::HpcBackfill, 0);
    making.tenant("background", 500_000);
    making.tenant("urgent", 500_000);
    let background = Request { priority: 1, ..of("background", "hpc", 1) };
    let background = stream(background, 31.0, UNTIL_S);
    making.stream(&Stream { nodes: (2, 6), run_s: (6 * HOUR_S, 12 * HOUR_S), saves_percent: Some(95), ..background });
    let urgent = stream(of("urgent", "hpc", 2), 5.0, UNTIL_S);
    making.stream(&Stream { nodes: (4, 10), run_s: (HOUR_S / 2, 3 * HOUR_S / 2), from_s: HOUR_S, ..urgent });
}

fn empty_to_full(making: &mut Making) {
    making.nodes(64, "");
    making.vcluster("hpc", SchedulerKind::HpcBackfill, 0);
    making.tenant("physics", 1_000_000);
    for number in 0..120 {
        let nodes = u32::try_from(making.dice.between(1, 4)).unwrap_or(1);
        let run_s = making.dice.between(HOUR_S, 4 * HOUR_S);
        making.submit(Request { nodes, ..of("physics", "hpc", 1) }, number * 5, run_s);
    }
}

#[cfg(test)]
mod tests {
    use super::super::course;
    use super::super::weights::WeightFile;
    use super::*;

    fn outcome(scenario: &Scenario, site: &Site) -> Outcome {
        Outcome::of("own", scenario, &course::run(scenario, site).unwrap())
    }

    fn replayed(named: Named) -> Outcome {
        let scenario = named.generate(1);
        let outcome = outcome(&scenario, &scenario.site);
        assert_eq!(outcome.never_began, 0, "{outcome:?}");
        assert!(named.is_met(&outcome), "{}: {outcome:?}", named.criterion());
        outcome
    }

    #[test]
    fn a_steady_mix_keeps_the_nodes_in_use() {
        let outcome = replayed(Named::SteadyState);
        assert_eq!(outcome.oldest_of_vclusters_s.keys().collect::<Vec<_>>(), ["hpc", "ml", "services"]);
        assert!(outcome.gpus.is_some_and(|gpus| gpus.part() > 0.8), "{outcome:?}");
    }

    #[test]
    fn nothing_starves_in_a_burst() {
        let outcome = replayed(Named::Burst);
        assert!(outcome.oldest_s > HOUR_S, "there was no burst: {outcome:?}");
    }

    #[test]
    fn shares_are_kept_only_because_of_their_weight_and_better_with_more_of_it() {
        let default = replayed(Named::Unfair);
        let scenario = Named::Unfair.generate(1);
        let weighed = |weight: &str| {
            let file = WeightFile::parse("f.yaml", &format!("hpc:\n  fair-share: {weight}\n")).unwrap();
            outcome(&scenario, &file.apply(&scenario.site).unwrap())
        };
        let (without, more) = (weighed("0"), weighed("5"));
        assert!(!Named::Unfair.is_met(&without), "the trace is fair by itself: {without:?}");
        assert!(more.share_deviation < default.share_deviation.map(|deviation| deviation / 2.0), "{more:?}\n{default:?}");
        assert!(more.jain > default.jain && default.jain > without.jain, "{more:?}\n{default:?}\n{without:?}");
    }

    #[test]
    fn nodes_that_were_lent_are_given_back_soon() {
        let outcome = replayed(Named::SensitiveClaim);
        assert!(outcome.oldest_of_vclusters_s["hpc"] > 0, "the rest is not full: {outcome:?}");
        assert!(outcome.preempted_for_reclaim > 0 && outcome.saved == Some(1.0), "{outcome:?}");
        let mut late = outcome;
        late.oldest_of_vclusters_s.insert(SENSITIVE.to_owned(), RECLAIM_S_MAX + 1);
        assert!(!Named::SensitiveClaim.is_met(&late));
    }

    #[test]
    fn preempted_work_saves_itself() {
        let outcome = replayed(Named::PreemptionHeavy);
        assert!(outcome.preempted_for_priority >= 20 && outcome.preempted_for_reclaim == 0, "{outcome:?}");
    }

    #[test]
    fn an_empty_cluster_is_full_soon() {
        replayed(Named::EmptyToFull);
    }

    #[test]
    fn a_seed_gives_one_trace_and_one_outcome() {
        for named in Named::ALL {
            assert_eq!(named.generate(7).works, named.generate(7).works);
            assert_ne!(named.generate(7).works, named.generate(8).works);
            assert_eq!(Named::from_name(&format!("{}.trace", named.name())), Some(named));
        }
        assert_eq!(Named::from_name("lottery"), None);
        let json = || {
            let mut value = serde_json::to_value(replayed(Named::Burst)).unwrap();
            value.as_object_mut().unwrap().remove("effort");
            value.to_string()
        };
        assert_eq!(json(), json());
    }

    #[test]
    fn each_trace_fits_its_site() {
        for named in Named::ALL {
            let scenario = named.generate(3);
            for work in &scenario.works {
                work.request.spec().validate().unwrap();
                assert!(work.request.walltime.is_none_or(|walltime| walltime.0 >= work.run_s), "{work:?}");
                assert!(scenario.site.vcluster(&work.request.vcluster).is_some(), "{work:?}");
            }
        }
    }
}

//! Jobs by the model of U. Lublin and D. G. Feitelson, "The workload on parallel supercomputers: modeling the
//! characteristics of rigid jobs", J. Parallel Distrib. Comput. 63(11), 1105-1122, 2003: the parameters for jobs of all
//! kinds together, with the largest number of nodes set to that of the cluster.
//!
//! ```text
//!   nodes: 1, or 2 to the power of a two-stage uniform number, mostly rounded to a power of two
//!   run time: exp of one of two gamma variates; which one depends on the nodes
//!   gaps between submissions: exp of a gamma variate, shorter in the busy hours of the day
//! ```
//!
//! All gaps are multiplied by one number, so that the jobs ask for the wanted part of the cluster.

use super::estimates::Estimates;
use super::workload::{Job, Workload};
use lattice_lab::dice::Dice;

/// The smallest cluster for which the model has two stages of sizes.
pub const NODES_MIN: u32 = 8;
/// Jobs of one node, and of a power of two.
const SERIAL: f64 = 0.244;
const POWER_OF_TWO: f64 = 0.576;
/// The two-stage uniform number: its minimum, how far below the maximum the second stage begins, and the part of the
/// first stage.
const LOG_NODES_MIN: f64 = 0.8;
const SECOND_STAGE: f64 = 2.5;
const FIRST_STAGE_PART: f64 = 0.86;
/// The gammas of run times, and the part of the first one: `PART_BY_NODE * nodes + PART`.
const SHORT: Gamma = Gamma { shape: 4.2, scale: 0.94 };
const LONG: Gamma = Gamma { shape: 312.0, scale: 0.03 };
const PART_BY_NODE: f64 = -0.0054;
const PART: f64 = 0.78;
/// The natural logarithm of the longest run time in seconds, and of the longest gap.
const LOG_RUN_MAX: f64 = 12.0;
const LOG_GAP_MAX: f64 = 13.0;
/// The gamma of gaps: fitted to the busy hours, and corrected by a factor for the whole day.
const GAP: Gamma = Gamma { shape: 10.2303 * 1.0225, scale: 0.4871 };
/// The gamma of submissions by half hours of a day that begins at half past five.
const DAY: Gamma = Gamma { shape: 8.1737, scale: 3.9631 };
const HALF_HOURS: usize = 48;
const DAY_BEGINS: usize = 11;
const HALF_HOUR_S: f64 = 1800.0;
/// How many jobs are drawn to find the mean of the work and of the gaps.
const SAMPLES: u32 = 100_000;

/// How much is generated.
#[derive(Clone, Copy, Debug)]
pub struct Scale {
    pub nodes: u32,
    pub days: u32,
    /// The part of the cluster that the jobs ask for on average.
    pub load: f64,
}

/// The jobs of a seed.
pub fn generate(scale: Scale, estimates: Estimates, seed: u64) -> Workload {
    let until_s = f64::from(scale.days) * 86_400.0;
    let gap_factor = gap_factor(scale);
    let (mut sizes, mut gaps, mut walltimes) = (Dice::new(seed, "sizes"), Dice::new(seed, "gaps"), Dice::new(seed, "walltimes"));
    let mut clock = Clock::new();
    let mut jobs = Vec::new();
    loop {
        let at_s = clock.next(gap_s(&mut gaps) * gap_factor);
        if at_s >= until_s {
            break;
        }
        let (nodes, run_s) = size(scale.nodes, &mut sizes);
        let estimate_s = estimates.walltime_s(run_s, &mut walltimes);
        jobs.push(Job { index: jobs.len(), submitted_s: at_s as u64, nodes, run_s, estimate_s });
    }
    let Scale { nodes, days, load } = scale;
    let notes = vec![
        format!("model of Lublin and Feitelson (JPDC 63(11), 2003) for {days} days, gaps scaled to a load of {:.0} %", load * 100.0),
        estimates.sentence(),
    ];
    Workload { name: format!("lublin, seed {seed}"), nodes, jobs, notes }
}

/// By how much gaps are multiplied, so that the jobs ask for the wanted part of the cluster.
fn gap_factor(scale: Scale) -> f64 {
    let mut dice = Dice::new(0, "means");
    let (mut node_s, mut gaps_s) = (0.0, 0.0);
    for _ in 0..SAMPLES {
        let (nodes, run_s) = size(scale.nodes, &mut dice);
        node_s += f64::from(nodes) * run_s as f64;
        gaps_s += gap_s(&mut dice);
    }
    node_s / (gaps_s * f64::from(scale.nodes) * scale.load)
}

/// The nodes of a job, and its run time in seconds.
fn size(cluster: u32, dice: &mut Dice) -> (u32, u64) {
    let nodes = node_count(cluster, dice);
    let first = (PART_BY_NODE * f64::from(nodes) + PART).clamp(0.0, 1.0);
    let log_run = loop {
        let gamma = if dice.unit() <= first { SHORT } else { LONG };
        let log_run = gamma.draw(dice);
        if log_run <= LOG_RUN_MAX {
            break log_run;
        }
    };
    (nodes, log_run.exp() as u64)
}

fn node_count(cluster: u32, dice: &mut Dice) -> u32 {
    let kind = dice.unit();
    if kind <= SERIAL {
        return 1;
    }
    let largest = f64::from(cluster).log2();
    let middle = largest - SECOND_STAGE;
    let (low, high) = if dice.unit() <= FIRST_STAGE_PART { (LOG_NODES_MIN.min(middle), middle) } else { (middle, largest) };
    let drawn = low + dice.unit() * (high - low);
    let log_nodes = if kind <= SERIAL + POWER_OF_TWO { drawn.round() } else { drawn };
    (log_nodes.exp2().round() as u32).clamp(1, cluster)
}

fn gap_s(dice: &mut Dice) -> f64 {
    loop {
        let log_gap = GAP.draw(dice);
        if log_gap <= LOG_GAP_MAX {
            return log_gap.exp();
        }
    }
}

/// The time of day: an hour that gets twice as many jobs as the mean passes half as fast.
struct Clock {
    weights: [f64; HALF_HOURS],
    /// Half hours that have passed, and the part of the present one.
    passed: u64,
    part: f64,
}

impl Clock {
    fn new() -> Self {
        let mut weights = [0.0; HALF_HOURS];
        for at in DAY_BEGINS..DAY_BEGINS + HALF_HOURS {
            weights[(at - 1) % HALF_HOURS] = DAY.mass_around(at as f64);
        }
        let mean = weights.iter().sum::<f64>() / HALF_HOURS as f64;
        Self { weights: weights.map(|weight| weight / mean), passed: 0, part: 0.0 }
    }

    /// The time in seconds when a gap of this many mean seconds has passed.
    fn next(&mut self, gap_s: f64) -> f64 {
        let mut left = gap_s / HALF_HOUR_S;
        loop {
            let weight = self.weights[(self.passed % HALF_HOURS as u64) as usize];
            let rest = (1.0 - self.part) * weight;
            if left < rest {
                self.part += left / weight;
                return (self.passed as f64 + self.part) * HALF_HOUR_S;
            }
            left -= rest;
            (self.passed, self.part) = (self.passed + 1, 0.0);
        }
    }
}

/// A gamma distribution of shape 1 or more.
#[derive(Clone, Copy)]
struct Gamma {
    shape: f64,
    scale: f64,
}

impl Gamma {
    /// A variate: G. Marsaglia and W. W. Tsang, ACM TOMS 26(3), 2000.
    fn draw(self, dice: &mut Dice) -> f64 {
        let d = self.shape - 1.0 / 3.0;
        let c = 1.0 / (9.0 * d).sqrt();
        loop {
            let x = normal(dice);
            let v = (1.0 + c * x).powi(3);
            if v > 0.0 && dice.unit().ln() < x * x / 2.0 + d - d * v + d * v.ln() {
                return d * v * self.scale;
            }
        }
    }

    /// The probability of half a unit on both sides of `x`, times a constant of the distribution, by Simpson's rule.
    fn mass_around(self, x: f64) -> f64 {
        let density = |x: f64| x.powf(self.shape - 1.0) * (-x / self.scale).exp();
        (density(x - 0.5) + 4.0 * density(x) + density(x + 0.5)) / 6.0
    }
}

/// A standard normal variate, by the method of Box and Muller.
fn normal(dice: &mut Dice) -> f64 {
    (-2.0 * dice.unit().ln()).sqrt() * (std::f64::consts::TAU * dice.unit()).cos()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gamma_has_its_mean_and_variance() {
        for gamma in [SHORT, LONG, GAP, DAY] {
            let mut dice = Dice::new(1, "gamma");
            let drawn: Vec<f64> = (0..50_000).map(|_| gamma.draw(&mut dice)).collect();
            let mean = drawn.iter().sum::<f64>() / drawn.len() as f64;
            let variance = drawn.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / drawn.len() as f64;
            let (true_mean, true_variance) = (gamma.shape * gamma.scale, gamma.shape * gamma.scale.powi(2));
            assert!((mean / true_mean - 1.0).abs() < 0.02, "{mean} {true_mean}");
            assert!((variance / true_variance - 1.0).abs() < 0.05, "{variance} {true_variance}");
        }
    }

    #[test]
    fn a_day_of_the_clock_is_a_day_and_afternoons_are_busier_than_nights() {
        let mut clock = Clock::new();
        assert!((clock.next(86_400.0) - 86_400.0).abs() < 1.0);
        let by_hour = |hour: usize| clock.weights[2 * hour];
        assert!(by_hour(14) > 5.0 * by_hour(4), "{:?}", clock.weights);
    }

    #[test]
    fn a_seed_gives_the_same_jobs_of_the_wanted_load() {
        let scale = Scale { nodes: 256, days: 100, load: 0.8 };
        let (first, again) = (generate(scale, Estimates::Usual, 1), generate(scale, Estimates::Usual, 1));
        assert_eq!(first.jobs, again.jobs);
        assert_ne!(first.jobs, generate(scale, Estimates::Usual, 2).jobs);
        assert!((first.load() - 0.8).abs() < 0.1, "{}", first.load());
        let part = |is: &dyn Fn(&Job) -> bool| first.jobs.iter().filter(|job| is(job)).count() as f64 / first.jobs.len() as f64;
        assert!((0.22..0.32).contains(&part(&|job| job.nodes == 1)));
        assert!(part(&|job| job.nodes.is_power_of_two()) > 0.75);
        assert!(first.jobs.iter().all(|job| (1..=256).contains(&job.nodes) && job.run_s <= job.estimate_s && job.run_s < 162_755));
    }
}

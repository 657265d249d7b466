//! The field's measures of a schedule.

use super::simulation::Run;
use super::workload::Workload;
use std::time::Duration;

/// The shortest run time that counts for a slowdown, in seconds: otherwise jobs that end at once would decide the mean.
const SLOWDOWN_RUN_S_MIN: u64 = 10;

/// The measures of one scheduler.
#[derive(Clone, Debug)]
pub struct Measures {
    pub scheduler: &'static str,
    pub jobs: usize,
    /// The part of the nodes' time in use between the first and the last submission.
    pub utilisation: f64,
    pub wait_mean_s: f64,
    pub wait_p95_s: u64,
    pub wait_max_s: u64,
    /// The mean of (wait + run) / run, at least 1, with a run of ten seconds at least.
    pub slowdown_mean: f64,
    /// How many jobs had an expected start.
    pub expected: usize,
    /// How many began after the first start that was expected for them, and how much later at most.
    pub late: usize,
    pub late_max_s: u64,
    pub plans: u64,
    pub processor: Duration,
}

impl Measures {
    pub fn of(workload: &Workload, run: &Run) -> Self {
        let (first_s, last_s) = workload.span_s();
        let pairs = || workload.jobs.iter().zip(&run.lives);
        let in_use: u64 = pairs()
            .map(|(job, life)| {
                let end_s = (life.started_s + job.run_s).min(last_s);
                u64::from(job.nodes) * end_s.saturating_sub(life.started_s.max(first_s))
            })
            .sum();
        let mut waits: Vec<u64> = pairs().map(|(job, life)| life.started_s - job.submitted_s).collect();
        let slowdowns = pairs().zip(&waits).map(|((job, _), wait_s)| {
            let slowdown = (wait_s + job.run_s) as f64 / job.run_s.max(SLOWDOWN_RUN_S_MIN) as f64;
            slowdown.max(1.0)
        });
        let jobs = workload.jobs.len();
        let slowdown_mean = slowdowns.sum::<f64>() / jobs as f64;
        waits.sort_unstable();
        let lateness = || run.lives.iter().filter_map(|life| Some(life.started_s.saturating_sub(life.expected_s?)));
        Self {
            scheduler: run.scheduler,
            jobs,
            utilisation: in_use as f64 / (f64::from(workload.nodes) * (last_s - first_s) as f64),
            wait_mean_s: waits.iter().sum::<u64>() as f64 / jobs as f64,
            wait_p95_s: waits[(jobs * 95).div_ceil(100) - 1],
            wait_max_s: waits[jobs - 1],
            slowdown_mean,
            expected: lateness().count(),
            late: lateness().filter(|late_s| *late_s > 0).count(),
            late_max_s: lateness().max().unwrap_or(0),
            plans: run.plans,
            processor: run.processor,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::simulation::Life;
    use super::super::workload::Job;
    use super::*;

    #[test]
    fn the_measures_of_three_jobs() {
        let job = |index, submitted_s, nodes, run_s| Job { index, submitted_s, nodes, run_s, estimate_s: 1000 };
        let jobs = vec![job(0, 100, 2, 50), job(1, 100, 1, 100), job(2, 200, 1, 5)];
        let workload = Workload { name: "w".into(), nodes: 2, jobs, notes: vec![] };
        let life = |started_s, expected_s| Life { started_s, expected_s };
        let lives = vec![life(100, None), life(150, Some(150)), life(250, Some(230))];
        let run = Run { scheduler: "s", lives, plans: 5, processor: Duration::from_secs(1) };
        let measures = Measures::of(&workload, &run);
        // In 100 seconds of two nodes: 2 x 50, and 1 x 50 of the second.
        assert!((measures.utilisation - 0.75).abs() < 1e-9, "{measures:?}");
        assert!((measures.wait_mean_s - 100.0 / 3.0).abs() < 1e-9, "{measures:?}");
        assert_eq!((measures.wait_p95_s, measures.wait_max_s), (50, 50));
        // 1, 150 / 100, 55 / 10.
        assert!((measures.slowdown_mean - 8.0 / 3.0).abs() < 1e-9, "{measures:?}");
        assert_eq!((measures.expected, measures.late, measures.late_max_s), (2, 1, 20));
    }
}

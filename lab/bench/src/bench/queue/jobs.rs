//! The mixed jobs of the queue, and what follows from the times that they record.

use anyhow::{Context, Result, ensure};
use lattice_lab::dice::Dice;
use std::time::Duration;

/// The same jobs in every run of the bench.
const SEED: u64 = 1;
/// How many of 20 jobs have this many nodes: most are narrow, as in the logs of real machines.
const WIDTHS: [(u64, u32); 8] = [(8, 1), (5, 2), (1, 3), (2, 4), (1, 5), (1, 6), (1, 7), (1, 8)];
/// The shortest and the longest run time, in seconds.
const RUN_S_MIN: f64 = 0.2;
const RUN_S_MAX: f64 = 3.0;
/// The walltime is at most this many times the run time, before it is rounded up.
const OVERESTIMATE_MAX: f64 = 5.0;
/// The walltimes that users request, in minutes.
const WALLTIMES_MINUTES: [u32; 5] = [1, 2, 3, 5, 10];
const WALLTIME_MINUTES_MAX: u32 = 15;
/// The shortest run time in a slowdown, in seconds: otherwise the shortest jobs alone would decide the mean.
const SLOWDOWN_RUN_S_MIN: f64 = 1.0;

/// One job of the mixed queue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Job {
    /// The nodes that it has at once.
    pub nodes: u32,
    /// How long it sleeps.
    pub run: Duration,
    /// Its walltime, in minutes. Slurm counts limits in minutes, so a second of the run time counts as a minute here:
    /// else all jobs would have the same walltime, and no scheduler could tell short ones from long ones.
    pub walltime_minutes: u32,
}

/// The first `count` jobs; always the same.
pub fn mixed(count: usize) -> Vec<Job> {
    let mut dice = Dice::new(SEED, "queue");
    (0..count).map(|_| job(&mut dice)).collect()
}

fn job(dice: &mut Dice) -> Job {
    let nodes = dice.weighted(&WIDTHS);
    // Each doubling of the run time is as frequent as the one before.
    let run_s = RUN_S_MIN * (RUN_S_MAX / RUN_S_MIN).powf(dice.unit());
    let requested = run_s * (1.0 + (OVERESTIMATE_MAX - 1.0) * dice.unit());
    let walltime_minutes = WALLTIMES_MINUTES.into_iter().find(|minutes| requested <= f64::from(*minutes)).unwrap_or(WALLTIME_MINUTES_MAX);
    Job { nodes, run: Duration::from_secs_f64(run_s), walltime_minutes }
}

/// The shortest possible makespan on this many nodes, in seconds: no node is ever idle.
pub fn makespan_s_min(jobs: &[Job], nodes: u32) -> f64 {
    jobs.iter().map(|job| f64::from(job.nodes) * job.run.as_secs_f64()).sum::<f64>() / f64::from(nodes)
}

/// The times of one job, in seconds of the system's clock.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Times {
    submitted_s: f64,
    began_s: f64,
    ended_s: f64,
}

/// The times of all jobs. `records` has a line for each job, in any order: its number, when it began, when it ended.
/// `submitted_s` has the time of each submission, by the job's number.
pub fn times(records: &str, submitted_s: &[f64]) -> Result<Vec<Times>> {
    let mut found: Vec<Option<Times>> = vec![None; submitted_s.len()];
    for line in records.lines() {
        let (number, began_s, ended_s) = fields(line).with_context(|| format!("a job recorded {line:?}"))?;
        let (slot, submitted_s) =
            found.get_mut(number).zip(submitted_s.get(number)).with_context(|| format!("there is no job {number}"))?;
        ensure!(slot.is_none(), "job {number} ran twice");
        let times = Times { submitted_s: *submitted_s, began_s, ended_s };
        let is_in_order = times.submitted_s <= times.began_s && times.began_s <= times.ended_s;
        ensure!(is_in_order, "job {number} has impossible times; did the machine's clock change? {times:?}");
        *slot = Some(times);
    }
    found.into_iter().enumerate().map(|(number, times)| times.with_context(|| format!("job {number} recorded nothing"))).collect()
}

fn fields(line: &str) -> Option<(usize, f64, f64)> {
    let mut fields = line.split(' ');
    let all = (fields.next()?.parse().ok()?, fields.next()?.parse().ok()?, fields.next()?.parse().ok()?);
    fields.next().is_none().then_some(all)
}

/// What users notice of a schedule.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Outcome {
    /// From the first submission until the last end, in seconds.
    pub makespan_s: f64,
    /// The mean time from submission to begin, in seconds.
    pub wait_s: f64,
    /// The mean of (wait + run) / run, with runs of [`SLOWDOWN_RUN_S_MIN`] or more, and at least 1.
    pub slowdown: f64,
}

impl Outcome {
    /// The outcome of these jobs; `None` if there are none.
    pub fn of(times: &[Times]) -> Option<Self> {
        let first = times.iter().map(|job| job.submitted_s).reduce(f64::min)?;
        let last = times.iter().map(|job| job.ended_s).reduce(f64::max)?;
        let mean = |of: fn(&Times) -> f64| times.iter().map(of).sum::<f64>() / times.len() as f64;
        let slowdown = |job: &Times| {
            let run_s = (job.ended_s - job.began_s).max(SLOWDOWN_RUN_S_MIN);
            ((job.ended_s - job.submitted_s) / run_s).max(1.0)
        };
        Some(Self { makespan_s: last - first, wait_s: mean(|job| job.began_s - job.submitted_s), slowdown: mean(slowdown) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn the_jobs_are_always_the_same_and_those_of_a_shorter_queue_are_the_first() {
        assert_eq!(mixed(300)[..40], mixed(40)[..]);
    }

    #[test]
    fn the_jobs_are_mixed_and_a_walltime_is_never_shorter_than_the_run() {
        let jobs = mixed(300);
        let widths: BTreeSet<u32> = jobs.iter().map(|job| job.nodes).collect();
        assert_eq!(widths, (1..=8).collect::<BTreeSet<u32>>());
        let walltimes: BTreeSet<u32> = jobs.iter().map(|job| job.walltime_minutes).collect();
        assert_eq!(walltimes, BTreeSet::from([1, 2, 3, 5, 10, 15]));
        for job in &jobs {
            let run_s = job.run.as_secs_f64();
            assert!((0.2..=3.0).contains(&run_s), "{job:?}");
            assert!(f64::from(job.walltime_minutes) >= run_s, "{job:?}");
        }
        // A round of one system takes about two minutes.
        let least = makespan_s_min(&jobs, 8);
        assert!((90.0..120.0).contains(&least), "{least} s");
    }

    #[test]
    fn the_outcome_is_as_calculated_by_hand() {
        // Two jobs: one waits 1 s and runs 2 s, the other waits 4 s and runs 0.5 s.
        let times = times("1 105.0 105.5\n0 101.0 103.0\n", &[100.0, 101.0]).unwrap();
        let outcome = Outcome::of(&times).unwrap();
        assert_eq!((outcome.makespan_s, outcome.wait_s), (5.5, 2.5));
        // 3 / 2, and 4.5 over the shortest run that counts, 1 s.
        assert_eq!(outcome.slowdown, (1.5 + 4.5) / 2.0);
        assert_eq!(Outcome::of(&[]), None);
        let least = makespan_s_min(&[Job { nodes: 3, run: Duration::from_secs(4), walltime_minutes: 1 }], 8);
        assert_eq!(least, 1.5);
    }

    #[test]
    fn a_job_that_is_missing_twice_there_or_garbled_is_an_error() {
        let error = |records: &str| format!("{:#}", times(records, &[1.0, 1.0]).unwrap_err());
        assert_eq!(error("0 2 3\n"), "job 1 recorded nothing");
        assert_eq!(error("0 2 3\n1 2 3\n0 4 5\n"), "job 0 ran twice");
        assert_eq!(error("0 2 3\n2 2 3\n"), "there is no job 2");
        for garbled in ["0 2", "0 2 3 4", "x 2 3", "0 2 ", ""] {
            assert!(error(&format!("{garbled}\n")).starts_with("a job recorded "), "{garbled:?}");
        }
        for impossible in ["0 0.5 3", "0 3 2", "0 NaN 3"] {
            assert!(error(&format!("{impossible}\n")).starts_with("job 0 has impossible times"), "{impossible:?}");
        }
    }
}

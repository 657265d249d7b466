//! One trial: jobs are submitted to one system at once, and measured until the last of them has ended. A job that
//! fails, or that does not end in time, fails the trial.

use super::jobs::{self, Job, Outcome};
use super::systems::System;
use crate::bench::subject;
use anyhow::{Context, Result, bail, ensure};
use lattice_lab::interrupt;
use lattice_lab::process::until;
use std::fs::{self, File};
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Submitting processes that run at once, as with `xargs -P`.
pub const SUBMITTERS: usize = 4;
/// How long the mixed jobs may take: several times what they need.
const MIXED_LIMIT: Duration = Duration::from_secs(480);
/// How long small jobs may take. Less than Slurm's `MinJobAge`, after which it forgets the first of them.
const SMALL_LIMIT: Duration = Duration::from_secs(240);
/// How long nodes may take until they are free, after the last job has ended.
const FREE_LIMIT: Duration = Duration::from_secs(30);
/// The pause between two checks whether all small jobs have ended: first this time, later this part of the time so far.
/// So the checks cost little, and the time is known to 2 %.
const ASK_INTERVAL_MIN: Duration = Duration::from_millis(20);
const ASK_INTERVAL_PART: u32 = 50;
/// The work of a mixed job: `sh job.sh RECORDS NUMBER SECONDS`. The line is one write, so no two are mixed.
pub const SCRIPT: &str = "#!/bin/sh\nbegan=$(date +%s.%N)\nsleep \"$3\"\necho \"$2 $began $(date +%s.%N)\" >> \"$1\"\n";

/// Submits all mixed jobs. They write their times into a file in `dir`.
pub fn mixed(system: &dyn System, trial: &str, jobs: &[Job], script: &Path, dir: &Path) -> Result<Outcome> {
    let records = dir.join(format!("{}-{trial}.txt", system.name()));
    File::create_new(&records).with_context(|| format!("cannot make {}", records.display()))?;
    let path = |path: &Path| path.to_string_lossy().into_owned();
    let submitted_s = submit_all(jobs.len(), &|number: usize| {
        let job = &jobs[number];
        let script = [path(script), path(&records), number.to_string(), format!("{:.3}", job.run.as_secs_f64())];
        system.submit_script(trial, job, &script)
    })?;
    let mut text = String::new();
    let all_ended = until(MIXED_LIMIT, || {
        text = fs::read_to_string(&records).unwrap_or_default();
        text.matches('\n').count() >= jobs.len() || interrupt::came().is_some()
    });
    interrupt::check()?;
    let ended = text.lines().count();
    ensure!(all_ended, "{}: of {} mixed jobs, {ended} ended within {} s", system.name(), jobs.len(), MIXED_LIMIT.as_secs());
    let outcome = Outcome::of(&jobs::times(&text, &submitted_s)?).context("there are no jobs")?;
    wait_all_free(system)?;
    Ok(outcome)
}

/// The results of small jobs in the queue of one system.
#[derive(Clone, Copy, Debug)]
pub struct Small {
    /// Jobs over the time from the first submission until the last end.
    pub finished_per_second: f64,
    /// Jobs over the time from the first submission until the last was accepted.
    pub submitted_per_second: f64,
}

/// Submits `/bin/true` this many times.
pub fn small(system: &dyn System, trial: &str, count: usize) -> Result<Small> {
    let began = Instant::now();
    submit_all(count, &|_: usize| system.submit_true(trial))?;
    let submitted = began.elapsed();
    let ended = loop {
        interrupt::check()?;
        // The last job had ended when this was asked.
        let asked = began.elapsed();
        if system.is_idle()? && !system.has_unended(trial)? {
            break asked;
        }
        ensure!(asked < SMALL_LIMIT, "{}: {count} times /bin/true did not end within {} s", system.name(), SMALL_LIMIT.as_secs());
        std::thread::sleep(ASK_INTERVAL_MIN.max(asked / ASK_INTERVAL_PART));
    };
    let completed = system.completed_count(trial)?;
    ensure!(completed == count, "{}: {completed} of {count} times /bin/true ended with success", system.name());
    let per_second = |took: Duration| count as f64 / took.as_secs_f64();
    Ok(Small { finished_per_second: per_second(ended), submitted_per_second: per_second(submitted) })
}

/// Runs a submitting process for each job, several at once; returns when each of them was started, in seconds of the
/// system's clock.
fn submit_all(count: usize, command: &(dyn Fn(usize) -> Command + Sync)) -> Result<Vec<f64>> {
    let next = AtomicUsize::new(0);
    let submit = || submit_some(&next, count, command);
    let started: Vec<Vec<(usize, f64)>> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..SUBMITTERS).map(|_| scope.spawn(submit)).collect();
        threads.into_iter().map(|thread| thread.join().unwrap_or_else(|_| bail!("a submitting thread panicked"))).collect::<Result<_>>()
    })?;
    let mut started = started.concat();
    started.sort_unstable_by_key(|(number, _)| *number);
    Ok(started.into_iter().map(|(_, at_s)| at_s).collect())
}

/// Submits one job after the other, beside the other threads that take from `next`.
fn submit_some(next: &AtomicUsize, count: usize, command: &(dyn Fn(usize) -> Command + Sync)) -> Result<Vec<(usize, f64)>> {
    let mut started = Vec::new();
    loop {
        let number = next.fetch_add(1, Ordering::Relaxed);
        if number >= count {
            return Ok(started);
        }
        started.push((number, now_s()?));
        let accepted = interrupt::check().and_then(|()| subject::timed(&mut command(number)));
        if let Err(error) = accepted {
            // The other threads begin no further submission.
            next.store(count, Ordering::Relaxed);
            return Err(error.context(format!("submission {} of {count}", number + 1)));
        }
    }
}

fn now_s() -> Result<f64> {
    Ok(SystemTime::now().duration_since(UNIX_EPOCH).context("the machine's clock")?.as_secs_f64())
}

fn wait_all_free(system: &dyn System) -> Result<()> {
    let are_free = until(FREE_LIMIT, || interrupt::came().is_some() || system.is_idle().unwrap_or(false));
    interrupt::check()?;
    ensure!(are_free, "{}: nodes are not free {} s after their last job", system.name(), FREE_LIMIT.as_secs());
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;
    use std::sync::{Mutex, PoisonError};

    #[test]
    fn each_job_is_submitted_once() {
        let begun = Mutex::new(Vec::new());
        let before_s = now_s().unwrap();
        let started = submit_all(25, &|number: usize| {
            begun.lock().unwrap_or_else(PoisonError::into_inner).push(number);
            Command::new("true")
        });
        let started = started.unwrap();
        let begun = begun.into_inner().unwrap();
        assert_eq!((started.len(), begun.len()), (25, 25));
        assert_eq!(begun.into_iter().collect::<BTreeSet<usize>>(), (0..25).collect::<BTreeSet<usize>>());
        assert!(started.iter().all(|at_s| (before_s..=now_s().unwrap()).contains(at_s)), "{started:?}");
    }

    #[test]
    fn a_refused_submission_is_an_error_and_ends_the_others() {
        let begun = AtomicUsize::new(0);
        let refused = submit_all(10_000, &|number: usize| {
            begun.fetch_add(1, Ordering::Relaxed);
            Command::new(if number == 5 { "false" } else { "true" })
        });
        let error = format!("{:#}", refused.unwrap_err());
        assert!(error.starts_with("submission 6 of 10000: exit status: 1"), "{error}");
        assert!(begun.into_inner() < 10_000);
    }

    #[test]
    fn the_script_records_what_is_read() {
        let dir = std::env::temp_dir().join(format!("lattice-bench-queue-{}", std::process::id()));
        fs::create_dir_all(&dir).unwrap();
        let (script, records) = (dir.join("job.sh"), dir.join("records"));
        fs::write(&script, SCRIPT).unwrap();
        let before_s = now_s().unwrap();
        subject::timed(Command::new("sh").arg(&script).arg(&records).args(["0", "0.2"])).unwrap();
        let took_s = now_s().unwrap() - before_s;
        let text = fs::read_to_string(&records);
        fs::remove_dir_all(&dir).unwrap();
        let outcome = Outcome::of(&jobs::times(&text.unwrap(), &[before_s]).unwrap()).unwrap();
        assert!(outcome.makespan_s >= 0.2 && outcome.makespan_s <= took_s, "{outcome:?} in {took_s} s");
    }
}

//! `bench tasks --million`: a group of a million tasks is submitted, runs for a while, and is cancelled.

use super::commands::{group_of, time_of};
use crate::bench::figures::{Figure, Samples, Target};
use crate::bench::metrics;
use crate::bench::options::Options;
use crate::bench::scale::memory::Growth;
use crate::bench::surroundings::wait_all_free;
use anyhow::{Context, Result, ensure};
use lattice_lab::cluster::Cluster;
use lattice_lab::interrupt;
use lattice_lab::lattice::Lattice;
use lattice_lab::process::until;
use std::path::Path;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Members of the cluster, which has one agent.
pub const MEMBERS: u32 = 3;
const ROUNDS: usize = 3;
const TASKS: u32 = 1_000_000;
/// How long a group runs until it is cancelled.
const RUN_TIME: Duration = Duration::from_secs(30);
/// The interval at which the members' memory is read.
const LOOK_INTERVAL: Duration = Duration::from_millis(100);
/// How old a page of metrics may be.
const PAGE_AGE_MAX: Duration = Duration::from_millis(1_500);
/// How long a command may take, and how long the first task may take to begin, or a group to end.
const LIMIT: Duration = Duration::from_secs(60);
/// The submission, in milliseconds.
const SUBMIT_MS: f64 = 50.0;
/// From the submission until the first task has begun, in milliseconds.
const FIRST_TASK_MS: f64 = 30.0;
/// How much the memory of a member may grow, in megabytes.
const GROWTH_MB: f64 = 20.0;

/// What one group cost.
struct Cost {
    submit_ms: f64,
    first_ms: f64,
    ended_per_second: f64,
    ended_per_commit: f64,
    grown_mb: f64,
    cancel_ms: f64,
}

/// What a job of one program cost.
struct Job {
    submit_ms: f64,
    first_ms: f64,
}

/// Measures a group and a job in each round.
pub fn measure(cluster: &Cluster, options: &Options, notes: &mut Vec<String>) -> Result<Vec<Figure>> {
    let lattice = Lattice::to(cluster, "n1")?;
    let rounds = options.rounds.unwrap_or(ROUNDS);
    run_job(cluster, &lattice, "warm-up")?;
    let (mut jobs, mut costs) = (Vec::new(), Vec::new());
    for round in 1..=rounds {
        interrupt::check()?;
        jobs.push(run_job(cluster, &lattice, &format!("job-{round}"))?);
        costs.push(run_group(cluster, &lattice, &format!("group-{round}"))?);
        eprintln!("bench: round {round} of {rounds}");
    }
    notes.push(format!(
        "{TASKS} tasks on one node, each a shell that does nothing after the first has written the time; the group is cancelled after {} s. \
         Commits are all that the members applied from before the submission until after the end, clocks and audit among them",
        RUN_TIME.as_secs()
    ));
    let of = |value: fn(&Cost) -> f64| Samples::of(costs.iter().map(value).collect(), 0).context("no round was measured");
    let beside = |value: fn(&Job) -> f64| vec![("a job of one program", Samples::of(jobs.iter().map(value).collect(), 0))];
    let at_most = |value: f64, why: &str| Some(Target::AtMost { value, why: why.to_owned() });
    let submitted = at_most(SUBMIT_MS, "whatever the size of the group");
    let first = at_most(FIRST_TASK_MS, "whatever the size of the group");
    let grown = at_most(GROWTH_MB, "tasks are kept as ranges");
    Ok(vec![
        Figure::new("a million tasks: submitted", "ms", of(|cost| cost.submit_ms)?, beside(|job| job.submit_ms), submitted),
        Figure::new("from the submission until the first has begun", "ms", of(|cost| cost.first_ms)?, beside(|job| job.first_ms), first),
        Figure::new("tasks ended a second", "/s", of(|cost| cost.ended_per_second)?, vec![], None),
        Figure::new("tasks ended for each commit", "tasks", of(|cost| cost.ended_per_commit)?, vec![], None),
        Figure::new("memory of the member that grew most: growth", "MB", of(|cost| cost.grown_mb)?, vec![], grown),
        Figure::new("the rest cancelled", "ms", of(|cost| cost.cancel_ms)?, vec![], None),
    ])
}

/// The command of each task: the first task writes when it began.
fn body(first: &Path) -> String {
    format!("set -C; test -e {0} || {{ date +%s.%N > {0}; }} 2>/dev/null; exit 0", first.display())
}

fn run_job(cluster: &Cluster, lattice: &Lattice, name: &str) -> Result<Job> {
    let first = cluster.dir.join(name);
    let sent_s = now_s()?;
    let (submit_ms, id) = submit(lattice, &[], &first)?;
    let first_ms = (written_s(&first)? - sent_s) * 1e3;
    lattice.ended_within(&id, LIMIT)?;
    wait_all_free(lattice)?;
    Ok(Job { submit_ms, first_ms })
}

fn run_group(cluster: &Cluster, lattice: &Lattice, name: &str) -> Result<Cost> {
    let first = cluster.dir.join(name);
    std::thread::sleep(PAGE_AGE_MAX);
    let commits = applied(cluster)?;
    let mut growth = Growth::begin(cluster.members.iter().filter_map(|m| m.daemon.process.as_ref()).map(|p| p.pid).collect());
    let (group, sent_s) = (group_of(TASKS), now_s()?);
    let (submit_ms, id) = submit(lattice, &[&group], &first)?;
    let first_s = written_s(&first)?;
    let began = Instant::now();
    while began.elapsed() < RUN_TIME {
        interrupt::check()?;
        growth.look();
        std::thread::sleep(LOOK_INTERVAL);
    }
    let ran_s = now_s()? - first_s;
    let cancel_ms = time_of(&mut lattice.command(&["cancel", &id]))?.as_secs_f64() * 1e3;
    growth.look();
    let ended = lattice.ended_within(&id, LIMIT)?;
    let completed =
        ended["task_counts"]["completed"].as_u64().with_context(|| format!("a group without its number of completed tasks: {ended}"))?;
    wait_all_free(lattice)?;
    std::thread::sleep(PAGE_AGE_MAX);
    growth.look();
    let commits = applied(cluster)? - commits;
    ensure!(completed > 0 && commits > 0.0, "{completed} tasks completed with {commits} commits");
    Ok(Cost {
        submit_ms,
        first_ms: (first_s - sent_s) * 1e3,
        ended_per_second: completed as f64 / ran_s,
        ended_per_commit: completed as f64 / commits,
        grown_mb: growth.grown_mb(),
        cancel_ms,
    })
}

/// Submits work with these options; returns the command's time in milliseconds, and the id of the work.
fn submit(lattice: &Lattice, options: &[&str], first: &Path) -> Result<(f64, String)> {
    let body = body(first);
    let command = [&["submit", "-q", "-o", "name", "--cores=1"], options, &["--", "/bin/sh", "-c", &body]].concat();
    let (took, id) = lattice.timed(&command, LIMIT)?;
    Ok((took.as_secs_f64() * 1e3, id.trim().to_owned()))
}

/// The time that the first task writes, in seconds since 1970.
fn written_s(first: &Path) -> Result<f64> {
    let mut text = String::new();
    let is_written = until(LIMIT, || {
        text = std::fs::read_to_string(first).unwrap_or_default();
        text.ends_with('\n') || interrupt::came().is_some()
    });
    interrupt::check()?;
    ensure!(is_written, "no task has begun after {} s", LIMIT.as_secs());
    text.trim().parse::<f64>().with_context(|| format!("{text:?} is no time"))
}

fn now_s() -> Result<f64> {
    Ok(SystemTime::now().duration_since(UNIX_EPOCH).context("the machine's clock")?.as_secs_f64())
}

/// How many entries the member that is ahead of the others has applied.
fn applied(cluster: &Cluster) -> Result<f64> {
    let mut most = 0.0_f64;
    for member in &cluster.members {
        let page = metrics::page(&member.metrics, None)?;
        let applied = metrics::value(&page, "lattice_raft_applied_index").context("a member that does not say what it has applied")?;
        most = most.max(applied);
    }
    Ok(most)
}

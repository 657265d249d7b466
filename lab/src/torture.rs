//! `lattice-lab torture`: runs a stream of jobs of all kinds on a cluster with every fault that the lab can cause,
//! heals all faults, and then checks every promise against the records.
//!
//! ```text
//!   seed ──▶ plan: jobs, faults ──▶ driver: a thread for each ──▶ heal ──▶ collect ──▶ facts
//!        ──▶ promises ──▶ violations ──▶ story
//! ```
//!
//! | module | content |
//! |---|---|
//! | [`plan`], [`job`], [`fault`] | what will happen: a function of the seed |
//! | [`stage`] | the cluster |
//! | [`work`], [`traces`] | the work of the jobs, and its traces |
//! | [`driver`] | executes the plan |
//! | [`collect`], [`facts`] | the facts at the end |
//! | [`promises`] | pure: facts to violations |
//! | [`story`] | pure: violations to a readable account |

pub mod collect;
pub mod driver;
pub mod facts;
pub mod fault;
pub mod job;
pub mod plan;
pub mod promises;
pub mod stage;
pub mod story;
pub mod traces;
pub mod work;

use crate::down::Guard;
use crate::process::until;
use crate::{faults, interrupt};
use anyhow::{Context, Result};
use collect::Collector;
use driver::Driver;
use facts::Facts;
use plan::{Plan, Scale};
use promises::Violation;
use stage::Stage;
use std::path::{Path, PathBuf};
use std::time::Duration;
use traces::now_ms;

/// How long it may take until all daemons run again and every node is Ready.
const HEAL_MAX: Duration = Duration::from_secs(40);
/// Interval of checks whether every promise holds.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);
/// Checks between two lines about promises that do not hold yet.
const CHECKS_PER_LINE: usize = 10;
/// Mean interval between two submissions, in milliseconds; a debug build uses several times the processor time.
const JOB_INTERVAL_MS: u64 = if cfg!(debug_assertions) { 500 } else { 250 };

/// What is wanted.
#[derive(Clone, Debug, clap::Args)]
pub struct Options {
    /// The seed: the same seed gives the same jobs and faults
    #[arg(long, value_name = "N")]
    pub seed: u64,
    /// For how many minutes there are jobs and faults
    #[arg(long, value_name = "M", default_value_t = 2, value_parser = clap::value_parser!(u64).range(1..=600))]
    pub minutes: u64,
    /// Mean milliseconds between two submissions [default: 250; in a debug build 500]
    #[arg(long, value_name = "MS", default_value_t = JOB_INTERVAL_MS, hide_default_value = true, value_parser = clap::value_parser!(u64).range(10..=60_000))]
    pub job_interval_ms: u64,
    /// Seconds after healing until every promise must hold
    #[arg(long, value_name = "SECONDS", default_value_t = 60, value_parser = clap::value_parser!(u64).range(1..=3_600))]
    pub settle: u64,
    /// Only print the jobs and faults with their times
    #[arg(long)]
    pub plan: bool,
    /// Do not build the binaries first
    #[arg(long)]
    pub no_build: bool,
    /// The cluster's folder, removed afterwards [default: a temporary folder]
    #[arg(long)]
    pub dir: Option<PathBuf>,
    /// Where the logs and records are stored [default: a temporary folder, if a promise was broken]
    #[arg(long, value_name = "DIR")]
    pub keep: Option<PathBuf>,
}

/// Runs the torture; returns whether every promise held.
pub fn run(options: &Options) -> Result<bool> {
    let scale = Scale { seed: options.seed, length_ms: options.minutes * 60_000, job_interval_ms: options.job_interval_ms };
    let plan = Plan::draw(scale);
    if options.plan {
        print!("{plan}");
        return Ok(true);
    }
    interrupt::watch();
    let named = |what: &str| std::env::temp_dir().join(format!("{what}-{}-{}", options.seed, std::process::id()));
    let dir = options.dir.clone().unwrap_or_else(|| named("lat-torture"));
    let guard = Guard::new(&dir);
    let stage = Stage::make(&dir, !options.no_build)?;
    eprintln!(
        "lab: seed {}: {} jobs and {} faults in {} min, in {}",
        options.seed,
        plan.jobs.len(),
        plan.faults.len(),
        options.minutes,
        dir.display()
    );
    let (facts, violations, settled) = torture(&stage, &plan, Duration::from_secs(options.settle))?;
    interrupt::check()?;
    if violations.is_empty() {
        if let Some(keep) = &options.keep {
            keep_records(&stage, &facts, keep, &plan.to_string())?;
        }
        guard.down(Duration::ZERO)?;
        println!("seed {}: {}; every promise holds {:.0} s after healing", options.seed, counts(&facts), settled.as_secs_f64());
        return Ok(true);
    }
    let keep = options.keep.clone().unwrap_or_else(|| named("lattice-torture"));
    let story = format!("{}\n{}", counts(&facts), story::describe(&facts, &violations));
    keep_records(&stage, &facts, &keep, &format!("{plan}\n{story}"))?;
    guard.down(Duration::ZERO)?;
    print!("{story}");
    println!("seed {}: {} violations; the daemons' logs and all records are in {}", options.seed, violations.len(), keep.display());
    Ok(false)
}

/// Executes the plan; returns the facts at the end, the violations, and how long after healing they were final.
fn torture(stage: &Stage, plan: &Plan, settle: Duration) -> Result<(Facts, Vec<Violation>, Duration)> {
    let limit = Duration::from_millis(plan.scale.length_ms) + HEAL_MAX + settle;
    let driver = Driver::new(stage, u64::try_from(limit.as_millis())?);
    let began_wall_ms = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).map_or(0, |d| d.as_millis());
    let mut facts = Facts { began_ms: driver.began_ms(), began_wall_ms: u64::try_from(began_wall_ms)?, ..Facts::default() };
    let mut collector = Collector::default();
    let mut outcome = Ok((Vec::new(), Duration::ZERO));
    driver.carry_out(plan, || {
        outcome = settled(stage, &driver, &mut collector, &mut facts, settle);
    });
    let (mut violations, took) = outcome?;
    if !violations.is_empty() {
        // Commands that hung have been ended meanwhile, so their results are known now.
        (facts.asked, facts.broken) = driver.record();
        violations = promises::check(&facts);
    }
    Ok((facts, violations, took))
}

/// Heals everything, and checks until every promise holds or the time is over.
fn settled(
    stage: &Stage,
    driver: &Driver<'_>,
    collector: &mut Collector,
    facts: &mut Facts,
    limit: Duration,
) -> Result<(Vec<Violation>, Duration)> {
    collector.ended_by_themselves = driver.ended_by_themselves()?;
    heal(stage)?;
    let healed_ms = now_ms();
    let mut violations = Vec::new();
    let mut failed = None;
    let mut looks = 0;
    until(limit, || {
        if interrupt::came().is_some() {
            return true;
        }
        let looked = look(stage, driver, collector, facts);
        match looked {
            Ok(found) => violations = found,
            Err(error) => failed = Some(error),
        }
        if failed.is_some() || (violations.is_empty() && driver.is_idle()) {
            return true;
        }
        looks += 1;
        if looks % CHECKS_PER_LINE == 0 {
            eprintln!("lab: {:.0} s after healing, {}", (now_ms() - healed_ms) as f64 / 1000.0, what_is_missing(&violations));
        }
        std::thread::sleep(LOOK_INTERVAL);
        false
    });
    // Facts that were not collected yet are needed for the story.
    if let (None, false) = (&failed, violations.is_empty()) {
        collector.read(stage, facts)?;
        violations = promises::check(facts);
    }
    failed.map_or(Ok((violations, Duration::from_millis(now_ms() - healed_ms))), Err)
}

fn what_is_missing(violations: &[Violation]) -> String {
    match violations {
        [] => "commands are still running".to_owned(),
        [first, rest @ ..] => {
            let about = match &first.subject {
                promises::Subject::Allocation(id) => format!("allocation {id}"),
                promises::Subject::Daemon(name) => name.clone(),
                promises::Subject::Cluster => "the cluster".to_owned(),
            };
            format!("{about}: {} (and {} more)", first.text, rest.len())
        }
    }
}

/// The present violations. Logs and the audit log, which take long, are read only once all other promises hold.
fn look(stage: &Stage, driver: &Driver<'_>, collector: &mut Collector, facts: &mut Facts) -> Result<Vec<Violation>> {
    (facts.asked, facts.broken) = driver.record();
    collector.look(stage, facts)?;
    driver.cancel_unanswered(&facts.allocations);
    let early = [promises::is_answered, promises::answers_are_known, promises::ends_are_right, promises::nodes_are_well];
    let found: Vec<Violation> = early.iter().flat_map(|check| check(facts)).collect();
    if !found.is_empty() || !driver.is_idle() {
        return Ok(found);
    }
    collector.read(stage, facts)?;
    Ok(promises::check(facts))
}

/// Ends every fault again, even if the plan has ended it.
fn heal(stage: &Stage) -> Result<()> {
    let (dir, cluster) = (&stage.dir, stage.cluster()?);
    for member in &cluster.members {
        faults::shift_member_clock(dir, member.id, 0)?;
        faults::slow_disk(dir, member.id, Duration::ZERO)?;
    }
    for node in &cluster.nodes {
        faults::shift_clock(dir, &node.id, 0)?;
    }
    for daemon in cluster.daemons() {
        faults::heal_node(dir, &daemon.name)?;
        if let Some(process) = &daemon.process {
            process.signal(nix::sys::signal::Signal::SIGCONT)?;
        }
    }
    for daemon in plan::SMALL_DISKS {
        faults::empty_disk(dir, daemon)?;
    }
    // A separate promise checks that every node is Ready.
    if let Err(error) = faults::heal(dir, HEAL_MAX) {
        eprintln!("lab: {error:#}");
    }
    Ok(())
}

fn counts(facts: &Facts) -> String {
    let submitted = facts.asked.iter().filter(|asked| asked.submission.is_some()).count();
    let answered = facts.asked.iter().filter(|asked| asked.id.is_some()).count();
    let begins = facts.traces.iter().filter(|t| t.mark == traces::Mark::Begin).count();
    let state = |state: &str| facts.allocations.iter().filter(|a| a.state == state).count();
    format!(
        "{submitted} submissions ({answered} answered, {} left out), {} allocations ({} completed, {} failed, {} cancelled), {begins} rank runs, {} faults, {} logs, {} audit records",
        facts.asked.len() - submitted,
        facts.allocations.len(),
        state("Completed"),
        state("Failed"),
        state("Cancelled"),
        facts.broken.len(),
        facts.logs.len(),
        facts.audit.len()
    )
}

/// Copies further records to a place that outlives the cluster.
fn keep_records(stage: &Stage, facts: &Facts, keep: &Path, story: &str) -> Result<()> {
    let cannot = || format!("cannot keep logs in {}", keep.display());
    std::fs::create_dir_all(keep).with_context(cannot)?;
    for daemon in stage.cluster()?.daemons() {
        std::fs::copy(&daemon.log, keep.join(format!("{}.log", daemon.name))).with_context(cannot)?;
    }
    std::fs::write(keep.join("allocations.json"), serde_json::to_vec_pretty(&facts.allocations)?).with_context(cannot)?;
    std::fs::write(keep.join("audit.json"), serde_json::to_vec_pretty(&facts.audit)?).with_context(cannot)?;
    let _none_was_written = std::fs::copy(&stage.place.traces, keep.join("traces"));
    std::fs::write(keep.join("story"), story).with_context(cannot)
}

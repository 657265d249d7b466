//! Properties of the simulation and of each scheduler, and the plan beside EASY.

use super::estimates::Estimates;
use super::lublin::{Scale, generate};
use super::measures::Measures;
use super::references::{Conservative, Easy, Fifo};
use super::simulation::{Cluster, Decisions, Life, Scheduler, simulate};
use super::site::Site;
use super::workload::{Job, Workload};
use super::{Lattice, Named, Options, list, run, schedulers};
use anyhow::Result;
use clap::Parser;
use proptest::prelude::*;

const NODES: u32 = 6;

/// Jobs with walltimes that are up to this much longer than their run times.
fn jobs(spare_s_max: u64) -> impl Strategy<Value = Workload> {
    let job = (0..60_u64, 1..=NODES, 0..30_u64, 0..=spare_s_max);
    proptest::collection::vec(job, 1..40).prop_map(|mut jobs| {
        jobs.sort_unstable();
        let job = |(index, (submitted_s, nodes, run_s, spare_s)): (usize, (u64, u32, u64, u64))| {
            let estimate_s = (run_s + spare_s).max(1);
            Job { index, submitted_s, nodes, run_s, estimate_s }
        };
        Workload { name: "random".into(), nodes: NODES, jobs: jobs.into_iter().enumerate().map(job).collect(), notes: vec![] }
    })
}

fn lives(workload: &Workload, scheduler: &mut dyn Scheduler) -> Vec<Life> {
    simulate(workload, scheduler).unwrap().lives
}

/// The jobs that began after the start that was first expected for them.
fn late(lives: &[Life]) -> Vec<usize> {
    let is_late = |(_, life): &(usize, &Life)| life.expected_s.is_some_and(|expected_s| life.started_s > expected_s);
    lives.iter().enumerate().filter(is_late).map(|(index, _)| index).collect()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    #[test]
    fn every_job_runs_once_after_its_submission_and_never_are_more_nodes_in_use_than_there_are(workload in jobs(30)) {
        for scheduler in &mut schedulers(&workload) {
            let lives = lives(&workload, scheduler.as_mut());
            prop_assert_eq!(lives.len(), workload.jobs.len());
            for (job, life) in workload.jobs.iter().zip(&lives) {
                prop_assert!(life.started_s >= job.submitted_s);
                let runs = |(other, of): (&Job, &Life)| (of.started_s..of.started_s + other.run_s).contains(&life.started_s).then_some(other.nodes);
                let in_use: u32 = workload.jobs.iter().zip(&lives).filter_map(runs).sum();
                prop_assert!(in_use <= NODES, "{}: {in_use} at {}", scheduler.name(), life.started_s);
            }
        }
    }

    #[test]
    fn first_come_first_served_never_reorders(workload in jobs(30)) {
        let lives = lives(&workload, &mut Fifo);
        prop_assert!(lives.is_sorted_by_key(|life| life.started_s));
    }

    #[test]
    fn conservative_backfill_keeps_the_start_that_it_gives_at_submission_where_walltimes_are_exact(workload in jobs(0)) {
        for (job, life) in workload.jobs.iter().zip(lives(&workload, &mut Conservative::default())) {
            // A walltime is a second at least, so work that ends at once ends before it.
            let is_exact = workload.jobs.iter().all(|job| job.run_s > 0);
            let expected_s = life.expected_s.unwrap_or(job.submitted_s);
            prop_assert!(life.started_s <= expected_s && (life.started_s == expected_s || !is_exact));
        }
    }

    #[test]
    fn nothing_begins_later_than_was_first_expected(workload in jobs(30)) {
        for scheduler in &mut schedulers(&workload) {
            prop_assert_eq!(late(&lives(&workload, scheduler.as_mut())), Vec::<usize>::new(), "{}", scheduler.name());
        }
    }

    #[test]
    fn easy_lets_others_overtake_only_where_first_come_first_served_would_not_have_been_earlier_for_the_first(workload in jobs(0)) {
        let first_waits = |lives: &[Life]| workload.jobs.iter().zip(lives).position(|(job, life)| life.started_s > job.submitted_s);
        let (fifo, easy) = (lives(&workload, &mut Fifo), lives(&workload, &mut Easy));
        if let Some(first) = first_waits(&fifo) {
            prop_assert_eq!(fifo[first].started_s, easy[first].started_s);
        }
    }
}

/// Begins all at once, or nothing.
struct Broken {
    begins: bool,
}

impl Scheduler for Broken {
    fn name(&self) -> &'static str {
        "broken"
    }

    fn decide(&mut self, _now_s: u64, cluster: &Cluster<'_>) -> Result<Decisions> {
        let begin = cluster.waiting.iter().filter(|_| self.begins).map(|job| job.index).collect();
        Ok(Decisions { begin, expected: vec![] })
    }
}

#[test]
fn a_scheduler_that_takes_too_many_nodes_or_starves_work_is_an_error() {
    let job = |index| Job { index, submitted_s: 5, nodes: 4, run_s: 10, estimate_s: 10 };
    let workload = Workload { name: "w".into(), nodes: NODES, jobs: vec![job(0), job(1)], notes: vec![] };
    let error = |begins| format!("{:#}", simulate(&workload, &mut Broken { begins }).err().unwrap());
    assert_eq!(error(true), "broken, after 5 s: job 1 begins on 4 nodes, 2 are free");
    assert_eq!(error(false), "2 jobs wait for ever, the first is job 0");
}

#[test]
fn easy_overtakes_and_first_come_first_served_does_not() {
    let job = |index, nodes, run_s| Job { index, submitted_s: 0, nodes, run_s, estimate_s: run_s };
    // One runs on four of six nodes, the next wants all; a short one and one too long for the gap follow.
    let jobs = vec![job(0, 4, 10), job(1, 6, 10), job(2, 2, 10), job(3, 2, 11)];
    let workload = Workload { name: "w".into(), nodes: NODES, jobs, notes: vec![] };
    let starts = |scheduler: &mut dyn Scheduler| lives(&workload, scheduler).iter().map(|life| life.started_s).collect::<Vec<_>>();
    assert_eq!(starts(&mut Fifo), [0, 10, 20, 20]);
    assert_eq!(starts(&mut Easy), [0, 10, 0, 20]);
    assert_eq!(starts(&mut Conservative::default()), [0, 10, 0, 20]);
    assert_eq!(starts(&mut Lattice::new(&Site::alike(NODES))), [0, 10, 0, 20]);
}

/// With this seed the plan's mean wait is 3.4 % above EASY's, and its mean slowdown 1.1 %.
#[test]
fn the_plan_is_no_worse_than_easy_on_generated_jobs() {
    let workload = generate(Scale { nodes: 64, days: 10, load: 0.9 }, Estimates::Usual, 1);
    let of = |scheduler: &mut dyn Scheduler| Measures::of(&workload, &simulate(&workload, scheduler).unwrap());
    let (plan, easy) = (of(&mut Lattice::new(&Site::alike(workload.nodes))), of(&mut Easy));
    assert!(plan.wait_mean_s <= 1.05 * easy.wait_mean_s, "{plan:?}\n{easy:?}");
    assert!(plan.slowdown_mean <= 1.05 * easy.slowdown_mean, "{plan:?}\n{easy:?}");
    assert!(plan.utilisation >= 0.99 * easy.utilisation, "{plan:?}\n{easy:?}");
    assert_eq!(plan.late, 0, "{plan:?}");
}

#[derive(Parser)]
struct Cli {
    #[command(flatten)]
    options: Options,
}

fn parsed(line: &str) -> clap::error::Result<Options> {
    Cli::try_parse_from(std::iter::once("replay").chain(line.split_whitespace())).map(|cli| cli.options)
}

fn refused(line: &str) -> String {
    format!("{:#}", run(&parsed(line).unwrap()).unwrap_err())
}

#[test]
fn options_that_mean_nothing_for_a_trace_are_refused() {
    assert!(refused("burst --nodes 8").contains("--nodes is for files in the Standard Workload Format"));
    assert!(refused("burst.trace --load 50").contains("--load is for"));
    assert!(refused("lublin --nodes 8 --days 1 --json").contains("give --weights FILE"));
    assert!(refused("no-such-file").contains("or one of steady-state, burst"));
    assert!(refused("burst --weights no-such-file").contains("cannot read no-such-file"));
    assert!(parsed("").is_err() && parsed("--list burst").is_err() && parsed("burst --weights").is_err());
    assert!(parsed("burst --weights 1 2 3 4 5").is_err());
    assert_eq!(parsed("burst --weights a.yaml b.yaml --json").unwrap().weights.len(), 2);
}

#[test]
fn the_list_has_all_traces_in_eighty_columns() {
    let text = list();
    assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
    assert!(Named::ALL.iter().all(|named| text.contains(named.name())), "{text}");
}

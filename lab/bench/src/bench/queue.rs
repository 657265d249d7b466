//! `bench queue`: a queue of jobs of mixed width and walltime, and queues of up to 2,000 small jobs, beside Slurm with
//! its backfill.
//!
//! Two clusters, one after the other, each with a Slurm of the same nodes beside it. All nodes are on this machine:
//!
//! * *Mixed jobs*: eight nodes. A job has whole nodes, sleeps on the first of them, and records when it began and
//!   ended, so the times of both systems are taken by the same script with the same clock.
//! * *Small jobs*: `/bin/true` on one core of a single node that has the cores of this machine. A small job cannot
//!   record anything: the bench asks each system when its node is free and its queue is empty.
//!
//! The systems take turns, and alternate in who begins. A job that fails ends the bench, so no figure is about only a
//! part of the jobs.

mod jobs;
mod systems;
mod trials;

use self::jobs::Outcome;
use self::systems::System;
use self::trials::Small;
use super::figures::{Figure, Report, Samples, Target};
use super::options::Options;
use super::slurm::{self, Shape, Slurm};
use super::surroundings::{all_cores, slow_files};
use super::turns::in_turn;
use anyhow::{Context, Result};
use lattice_lab::binaries::Binaries;
use lattice_lab::cluster::Cluster;
use lattice_lab::down::{self, Guard};
use lattice_lab::interrupt;
use lattice_lab::lattice::Lattice;
use lattice_lab::machine::{self, Machine};
use lattice_lab::up;
use std::collections::BTreeSet;
use std::path::Path;
use std::time::Duration;

/// Each round of the mixed jobs takes minutes.
const ROUNDS: usize = 3;
/// One member beside Slurm's one controller.
const MEMBERS: u32 = 1;
/// The nodes of the mixed jobs, and how many jobs there are.
const MIXED_NODES: u32 = 8;
const MIXED_JOBS: usize = 300;
/// The largest makespan and mean wait, relative to Slurm's.
const MIXED_RATIO: f64 = 0.8;
/// How many small jobs are submitted at once.
const QUEUE_LENS: [usize; 4] = [100, 300, 1000, 2000];
/// How many are submitted to each system before the first that are measured.
const WARM_UP_JOBS: usize = 20;
/// The smallest number of small jobs that are finished a second, relative to Slurm's.
const SMALL_RATIO: f64 = 4.0;
/// Slurm's best configuration for these jobs: it considers every job that waits, as often as it can, with the finest
/// resolution of times, and writes no more logs than necessary. It remembers ended jobs as long as by default.
const SCHEDULING: &str = "SchedulerType=sched/backfill\n\
    SchedulerParameters=bf_interval=1,bf_resolution=1,bf_max_job_test=500,sched_interval=1,batch_sched_delay=1\n\
    MaxJobCount=100000\n\
    MinJobAge=300\n\
    SlurmctldDebug=error\n\
    SlurmdDebug=error\n";
const SLURM: &str = "Slurm";

/// Starts one cluster after the other, measures, and removes them again.
pub fn run(dir: Option<&Path>, options: &Options) -> Result<Report> {
    options.validate()?;
    let machine = Machine::look();
    let binaries = Binaries::beside_lab()?;
    if !options.no_build {
        binaries.build()?;
    }
    let own = std::env::temp_dir().join(format!("lattice-bench-queue-{}", std::process::id()));
    let dir = dir.unwrap_or(&own);
    interrupt::watch();
    let before = machine::cpu_pressure();
    let mut bench = Bench { machine, options, rounds: options.rounds.unwrap_or(ROUNDS), notes: conditions() };
    let mut figures = bench.with_cluster(MIXED_NODES, dir, Bench::mixed)?;
    figures.extend(bench.with_cluster(1, dir, Bench::small)?);
    let Bench { machine, mut notes, .. } = bench;
    let profile = binaries.profile();
    if profile == "debug" {
        notes.push("these are debug binaries: run the bench with --release before believing a miss".to_owned());
    }
    if !machine.root {
        notes.push("not root: work runs without scope and mount, which is less than in a cluster".to_owned());
    }
    // Both clusters note the same about Slurm and about the disk.
    let mut seen = BTreeSet::new();
    notes.retain(|note| seen.insert(note.clone()));
    Ok(Report { bench: "queue", profile, cpu_pressure: [before, machine::cpu_pressure()], machine, figures, notes })
}

/// The conditions that both systems have.
fn conditions() -> Vec<String> {
    let submitters = trials::SUBMITTERS;
    vec![
        format!(
            "mixed jobs: {MIXED_JOBS} of a fixed seed on {MIXED_NODES} nodes, all on this machine. A job has 1 to 8 whole nodes and sleeps \
             0.2 to 3 s on the first. A second of it counts as a minute of walltime, because Slurm counts limits in minutes; users \
             request one to five times that, rounded up to 1, 2, 3, 5, 10 or 15 minutes"
        ),
        "small jobs: /bin/true on one core, with a walltime of an hour; sbatch gets it by --wrap. The last has ended when the node is free \
         and no job of the queue is left, which each system is asked every 20 ms, later every fiftieth of the time so far"
            .to_owned(),
        format!(
            "each job is submitted by a process of its own, `lattice submit` or `sbatch`, {submitters} at once. A wait begins when that \
             process is started"
        ),
        format!(
            "Lattice: one member, and no limit of a user's submissions a second. Slurm: one slurmctld, no accounting, no cgroups; {}. Its \
             backfill looks at the queue once a second at most, which is about as long as one of these jobs lasts",
            SCHEDULING.trim_end().replace('\n', ", ")
        ),
    ]
}

/// What all parts of the bench need.
struct Bench<'a> {
    machine: Machine,
    options: &'a Options,
    rounds: usize,
    notes: Vec<String>,
}

impl Bench<'_> {
    fn with_cluster(
        &mut self,
        nodes: u32,
        dir: &Path,
        measure: impl FnOnce(&mut Self, &Cluster) -> Result<Vec<Figure>>,
    ) -> Result<Vec<Figure>> {
        let up_options = self.options.cluster_options(nodes, MEMBERS, dir);
        let guard = Guard::new(dir);
        eprintln!("bench: starting a member; agents: {nodes}");
        let cluster = up::up(&up_options)?;
        self.notes.extend(slow_files(&cluster));
        let measured = measure(self, &cluster);
        down::require_gone(&guard.down(Duration::from_secs(10))?)?;
        measured
    }

    /// The mixed jobs.
    fn mixed(&mut self, cluster: &Cluster) -> Result<Vec<Figure>> {
        let lattice = unlimited(cluster)?;
        let shape = Shape { nodes: MIXED_NODES, cpus: 1, lines: SCHEDULING };
        let slurm = slurm::start(cluster, &self.machine, self.options, &shape, &mut self.notes)?;
        let systems = systems_of(&lattice, slurm.as_ref());
        let script = cluster.dir.join("job.sh");
        std::fs::write(&script, trials::SCRIPT).with_context(|| format!("cannot write {}", script.display()))?;
        let jobs = jobs::mixed(MIXED_JOBS);
        let outcomes =
            in_turn(&systems, self.rounds, "mixed jobs", |system, trial| trials::mixed(system, trial, &jobs, &script, &cluster.dir))?;
        let target = || Some(Target::RatioTo { peer: SLURM.to_owned(), at_most: MIXED_RATIO });
        let of = |value: fn(&Outcome) -> f64| -> Vec<Vec<f64>> { each(&outcomes, value) };
        let bound = Samples::of(vec![jobs::makespan_s_min(&jobs, MIXED_NODES)], 0);
        let name = format!("{MIXED_JOBS} jobs on 1 to {MIXED_NODES} of {MIXED_NODES} nodes: first submission to last end");
        let makespan = self.compared(&name, "s", &of(|outcome| outcome.makespan_s), vec![("no node ever idle", bound)], target())?;
        let wait = self.compared("mean wait of these jobs", "s", &of(|outcome| outcome.wait_s), vec![], target())?;
        let name = "mean slowdown of these jobs, runs of 1 s or more";
        let slowdown = self.compared(name, "×", &of(|outcome| outcome.slowdown), vec![], None)?;
        Ok(vec![makespan, wait, slowdown])
    }

    /// The small jobs.
    fn small(&mut self, cluster: &Cluster) -> Result<Vec<Figure>> {
        let lattice = unlimited(cluster)?;
        let cores = all_cores(&lattice)?;
        let shape = Shape { nodes: 1, cpus: cores, lines: SCHEDULING };
        let slurm = slurm::start(cluster, &self.machine, self.options, &shape, &mut self.notes)?;
        let systems = systems_of(&lattice, slurm.as_ref());
        for system in &systems {
            trials::small(*system, "warm-up", WARM_UP_JOBS)?;
        }
        let mut figures = Vec::new();
        let shortest_name = format!("lattice, {} of them", QUEUE_LENS[0]);
        let mut shortest: Option<Samples> = None;
        for count in QUEUE_LENS {
            let what = format!("{count} times /bin/true");
            let measured: Vec<Vec<Small>> =
                in_turn(&systems, self.rounds, &what, |system, trial| trials::small(system, &format!("small-{count}-{trial}"), count))?;
            let shorter = shortest.clone().map(|samples| (shortest_name.as_str(), Some(samples)));
            let name = format!("{what} on a node of {cores} cores: finished a second");
            let target = Some(Target::RatioAtLeast { peer: SLURM.to_owned(), at_least: SMALL_RATIO });
            let finished = each(&measured, |small| small.finished_per_second);
            let figure = self.compared(&name, "/s", &finished, shorter.into_iter().collect(), target)?;
            if shortest.is_none() {
                shortest = Some(figure.samples.clone());
            }
            figures.push(figure);
            let submitted = each(&measured, |small| small.submitted_per_second);
            figures.push(self.compared(&format!("{what}: submitted a second"), "/s", &submitted, vec![], None)?);
        }
        Ok(figures)
    }

    /// A figure of Lattice's values, beside Slurm's if there are any. `values` has the values of each system, by round. The
    /// ratio in each round becomes a note.
    fn compared(
        &mut self,
        name: &str,
        unit: &'static str,
        values: &[Vec<f64>],
        mut peers: Vec<(&str, Option<Samples>)>,
        target: Option<Target>,
    ) -> Result<Figure> {
        let ours = values.first().context("Lattice was not measured")?;
        let theirs = values.get(1);
        if let Some(theirs) = theirs {
            let ratios: Vec<f64> = ours.iter().zip(theirs).map(|(ours, theirs)| ours / theirs).collect();
            let ratio = Samples::of(ratios, 0).context("no round was measured")?;
            self.notes.push(format!("{name}: {:.2} of Slurm's ({:.2}–{:.2} by round)", ratio.median, ratio.min, ratio.max));
            peers.insert(0, (SLURM, Samples::of(theirs.clone(), 0)));
        }
        let samples = Samples::of(ours.clone(), 0).context("no round was measured")?;
        // Without Slurm, a target relative to it has no meaning; a note says why Slurm is missing.
        Ok(Figure::new(name, unit, samples, peers, target.filter(|_| theirs.is_some())))
    }
}

/// Lattice, and Slurm if it runs.
fn systems_of<'a>(lattice: &'a Lattice, slurm: Option<&'a Slurm>) -> Vec<&'a dyn System> {
    let mut systems: Vec<&dyn System> = vec![lattice];
    if let Some(slurm) = slurm {
        systems.push(slurm);
    }
    systems
}

/// One value of each measurement.
fn each<T>(measured: &[Vec<T>], value: fn(&T) -> f64) -> Vec<Vec<f64>> {
    measured.iter().map(|of_system| of_system.iter().map(value).collect()).collect()
}

/// The first agent, in a cluster where a user may submit as fast as possible, as in Slurm.
fn unlimited(cluster: &Cluster) -> Result<Lattice> {
    let lattice = Lattice::to(cluster, "n1")?;
    lattice.ok(&["admin", "limits", "--user-submissions-per-second", "none"])?;
    Ok(lattice)
}

#[cfg(test)]
mod tests {
    use super::jobs::Job;
    use super::*;
    use std::process::Command;

    struct Fake(&'static str);

    impl System for Fake {
        fn name(&self) -> &'static str {
            self.0
        }

        fn submit_script(&self, _trial: &str, _job: &Job, _script: &[String]) -> Command {
            Command::new("true")
        }

        fn submit_true(&self, _trial: &str) -> Command {
            Command::new("true")
        }

        fn is_idle(&self) -> Result<bool> {
            Ok(true)
        }

        fn has_unended(&self, _trial: &str) -> Result<bool> {
            Ok(false)
        }

        fn completed_count(&self, _trial: &str) -> Result<usize> {
            Ok(0)
        }
    }

    #[test]
    fn a_system_whose_jobs_did_not_complete_is_an_error() {
        let error = trials::small(&Fake("fake"), "trial", 2).unwrap_err().to_string();
        assert_eq!(error, "fake: 0 of 2 times /bin/true ended with success");
    }
}

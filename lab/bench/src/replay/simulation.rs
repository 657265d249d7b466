//! Virtual time: submissions and ends are events, and after each event a scheduler decides what begins.

use super::progress::Progress;
use super::workload::{Job, Workload};
use anyhow::{Context, Result, ensure};
use nix::time::{ClockId, clock_gettime};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// What a scheduler sees of the cluster. All nodes are alike.
pub struct Cluster<'a> {
    pub nodes: u32,
    pub free: u32,
    /// In the order of submission.
    pub waiting: Vec<&'a Job>,
    pub running: Vec<Running<'a>>,
}

/// A job that runs.
pub struct Running<'a> {
    pub job: &'a Job,
    pub started_s: u64,
}

impl Running<'_> {
    /// When it ends by its walltime.
    pub fn end_by_estimate_s(&self) -> u64 {
        self.started_s + self.job.estimate_s
    }
}

/// Decides what begins.
pub trait Scheduler {
    fn name(&self) -> &'static str;

    /// A job was submitted.
    fn submit(&mut self, _job: &Job) {}

    /// A job has ended.
    fn end(&mut self, _job: &Job, _now_s: u64) {}

    /// The decisions at this time, after an event.
    fn decide(&mut self, now_s: u64, cluster: &Cluster<'_>) -> Result<Decisions>;
}

/// What a scheduler decides after an event.
#[derive(Debug, Default)]
pub struct Decisions {
    /// The jobs that begin now.
    pub begin: Vec<usize>,
    /// When others are expected to begin at the latest, in seconds.
    pub expected: Vec<(usize, u64)>,
}

/// The life of a job under a scheduler.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Life {
    pub started_s: u64,
    /// The first start that the scheduler expected, if it did not begin at once.
    pub expected_s: Option<u64>,
}

/// What a scheduler did with a workload.
pub struct Run {
    pub scheduler: &'static str,
    /// By job.
    pub lives: Vec<Life>,
    pub plans: u64,
    /// Processor time of all plans.
    pub processor: Duration,
}

/// Runs all jobs. An error if the scheduler uses more nodes than there are, begins a job that does not wait, or lets
/// jobs wait for ever.
pub fn simulate(workload: &Workload, scheduler: &mut dyn Scheduler) -> Result<Run> {
    let mut simulation = Simulation::new(workload);
    let mut arrivals = workload.jobs.iter().peekable();
    let (mut plans, mut processor) = (0, Duration::ZERO);
    let mut progress = Progress::of(workload.span_s());
    while let Some(now_s) = arrivals.peek().map(|job| job.submitted_s).into_iter().chain(simulation.next_end_s()).min() {
        progress.show(now_s);
        let before = processor_time()?;
        for job in simulation.end_until(now_s) {
            scheduler.end(job, now_s);
        }
        while let Some(job) = arrivals.next_if(|job| job.submitted_s <= now_s) {
            simulation.cluster.waiting.push(job);
            scheduler.submit(job);
        }
        let decisions = scheduler.decide(now_s, &simulation.cluster)?;
        processor += processor_time()?.saturating_sub(before);
        plans += 1;
        simulation.apply(now_s, decisions).with_context(|| format!("{}, after {now_s} s", scheduler.name()))?;
    }
    let lives = simulation.lives()?;
    Ok(Run { scheduler: scheduler.name(), lives, plans, processor })
}

/// The processor time of this thread.
pub fn processor_time() -> Result<Duration> {
    Ok(clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID)?.into())
}

struct Simulation<'a> {
    jobs: &'a [Job],
    cluster: Cluster<'a>,
    /// When each job that runs ends.
    ends: BTreeSet<(u64, usize)>,
    started_s: Vec<Option<u64>>,
    expected_s: BTreeMap<usize, u64>,
}

impl<'a> Simulation<'a> {
    fn new(workload: &'a Workload) -> Self {
        let cluster = Cluster { nodes: workload.nodes, free: workload.nodes, waiting: Vec::new(), running: Vec::new() };
        Self {
            jobs: &workload.jobs,
            cluster,
            ends: BTreeSet::new(),
            started_s: vec![None; workload.jobs.len()],
            expected_s: BTreeMap::new(),
        }
    }

    fn next_end_s(&self) -> Option<u64> {
        self.ends.first().map(|(end_s, _)| *end_s)
    }

    /// Ends the jobs whose run time is over.
    fn end_until(&mut self, now_s: u64) -> Vec<&'a Job> {
        let mut ended = Vec::new();
        while let Some((_, index)) = self.ends.first().copied().filter(|(end_s, _)| *end_s <= now_s) {
            self.ends.pop_first();
            self.cluster.free += self.jobs[index].nodes;
            self.cluster.running.retain(|running| running.job.index != index);
            ended.push(&self.jobs[index]);
        }
        ended
    }

    fn apply(&mut self, now_s: u64, decisions: Decisions) -> Result<()> {
        for index in decisions.begin {
            let at = self.cluster.waiting.iter().position(|job| job.index == index);
            let job = self.cluster.waiting.remove(at.with_context(|| format!("job {index} begins and does not wait"))?);
            let free = self.cluster.free.checked_sub(job.nodes);
            self.cluster.free =
                free.with_context(|| format!("job {index} begins on {} nodes, {} are free", job.nodes, self.cluster.free))?;
            self.cluster.running.push(Running { job, started_s: now_s });
            self.ends.insert((now_s + job.run_s, index));
            self.started_s[index] = Some(now_s);
        }
        for (index, start_s) in decisions.expected {
            self.expected_s.entry(index).or_insert(start_s);
        }
        Ok(())
    }

    fn lives(self) -> Result<Vec<Life>> {
        let waits = self.cluster.waiting.first();
        ensure!(
            waits.is_none(),
            "{} jobs wait for ever, the first is job {}",
            self.cluster.waiting.len(),
            waits.map_or(0, |job| job.index)
        );
        let life = |(index, started_s): (usize, &Option<u64>)| {
            let started_s = started_s.with_context(|| format!("job {index} was never submitted"))?;
            Ok(Life { started_s, expected_s: self.expected_s.get(&index).copied() })
        };
        self.started_s.iter().enumerate().map(life).collect()
    }
}

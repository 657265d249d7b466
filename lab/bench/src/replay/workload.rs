//! Jobs to schedule, and those of a trace that cannot be scheduled as they are.

use super::estimates::Estimates;
use super::swf::{Record, Trace};
use lattice_lab::dice::Dice;
use lattice_model::count::counted;
use lattice_model::spec::WALLTIME_MAX;
use std::collections::BTreeMap;

/// How many job numbers a note has.
const NUMBERS_MAX: usize = 5;

/// A rigid job. Times are in seconds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Job {
    /// Its place in [`Workload::jobs`].
    pub index: usize,
    pub submitted_s: u64,
    pub nodes: u32,
    /// How long it runs, at most as long as its estimate.
    pub run_s: u64,
    /// The walltime that its user gives, at least a second.
    pub estimate_s: u64,
}

/// What is simulated.
#[derive(Clone, Debug)]
pub struct Workload {
    pub name: String,
    /// Nodes of the cluster.
    pub nodes: u32,
    /// In the order of submission.
    pub jobs: Vec<Job>,
    /// Notes about the jobs, for the reader.
    pub notes: Vec<String>,
}

impl Workload {
    /// The first and the last submission.
    pub fn span_s(&self) -> (u64, u64) {
        let times = || self.jobs.iter().map(|job| job.submitted_s);
        (times().min().unwrap_or(0), times().max().unwrap_or(0))
    }

    /// The part of the nodes' time between the first and the last submission that the jobs ask for.
    pub fn load(&self) -> f64 {
        let (first_s, last_s) = self.span_s();
        let node_s: f64 = self.jobs.iter().map(|job| f64::from(job.nodes) * job.run_s as f64).sum();
        node_s / (f64::from(self.nodes) * (last_s - first_s) as f64)
    }
}

/// What is wrong with a job of a trace, and what happens with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Oddity {
    NoRunTime,
    NoProcessors,
    TooWide,
    PartOfJob,
    NoEstimate,
    PastEstimate,
    EstimateTooLong,
    OutOfOrder,
}

impl Oddity {
    fn sentence(self) -> &'static str {
        match self {
            Self::NoRunTime => "left out, without a run time",
            Self::NoProcessors => "left out, without a number of processors",
            Self::TooWide => "left out, with more processors than there are",
            Self::PartOfJob => "left out, status 2 to 4: parts of a job that has a line of its own",
            Self::NoEstimate => "without a walltime: it was made from the run time",
            Self::PastEstimate => "ran past the walltime: ended there",
            Self::EstimateTooLong => "with a walltime of more than 365 days: it is 365 days",
            Self::OutOfOrder => "submitted before the line above: sorted by time",
        }
    }
}

/// The odd jobs of a trace.
#[derive(Default)]
struct Oddities(BTreeMap<Oddity, (usize, Vec<i64>)>);

impl Oddities {
    fn add(&mut self, oddity: Oddity, number: i64) {
        let (count, numbers) = self.0.entry(oddity).or_default();
        *count += 1;
        if numbers.len() < NUMBERS_MAX {
            numbers.push(number);
        }
    }

    fn notes(&self) -> impl Iterator<Item = String> {
        self.0.iter().map(|(oddity, (count, numbers))| {
            let more = if *count > numbers.len() { ", ..." } else { "" };
            let numbers: Vec<String> = numbers.iter().map(i64::to_string).collect();
            format!("{} {}: {}{more}", counted(*count, "job"), oddity.sentence(), numbers.join(", "))
        })
    }
}

/// The jobs of the first `days` of a trace, on this many nodes.
pub fn of_trace(
    name: &str,
    trace: &Trace,
    nodes: u32,
    cores_per_node: u32,
    days: Option<u32>,
    estimates: Option<Estimates>,
    seed: u64,
) -> Workload {
    let mut oddities = Oddities::default();
    let mut dice = Dice::new(seed, "walltimes");
    let first_s = trace.records.iter().map(|record| record.submitted_s).min().unwrap_or(0);
    let until_s = days.map_or(u64::MAX, |days| first_s + u64::from(days) * 86_400);
    let mut above_s = 0;
    let mut jobs = Vec::new();
    for record in trace.records.iter().filter(|record| record.submitted_s < until_s) {
        if record.submitted_s < above_s {
            oddities.add(Oddity::OutOfOrder, record.number);
        }
        above_s = record.submitted_s;
        let Some((nodes, run_s)) = size(record, nodes, cores_per_node, &mut oddities) else { continue };
        let estimate_s = walltime_s(record, run_s, estimates, &mut dice, &mut oddities);
        jobs.push(Job { index: 0, submitted_s: record.submitted_s, nodes, run_s: run_s.min(estimate_s), estimate_s });
    }
    jobs.sort_by_key(|job| job.submitted_s);
    for (index, job) in jobs.iter_mut().enumerate() {
        job.index = index;
    }
    let mut notes = Vec::new();
    if cores_per_node > 1 {
        notes.push(format!("a node has {cores_per_node} processors of the file; jobs get whole nodes"));
    }
    notes.push(estimates.map_or("walltimes are those of the file".to_owned(), Estimates::sentence));
    notes.extend(oddities.notes());
    Workload { name: name.to_owned(), nodes, jobs, notes }
}

/// The nodes and the run time of a job; `None`: it cannot run.
fn size(record: &Record, nodes: u32, cores_per_node: u32, oddities: &mut Oddities) -> Option<(u32, u64)> {
    let wanted = record.processors.map(|processors| processors.div_ceil(u64::from(cores_per_node)));
    let why_not = match (record.is_part, record.run_s, wanted) {
        (true, _, _) => Oddity::PartOfJob,
        (false, None, _) => Oddity::NoRunTime,
        (false, Some(_), None) => Oddity::NoProcessors,
        (false, Some(run_s), Some(wanted)) => match u32::try_from(wanted) {
            Ok(wanted) if wanted <= nodes => return Some((wanted, run_s)),
            Ok(_) | Err(_) => Oddity::TooWide,
        },
    };
    oddities.add(why_not, record.number);
    None
}

fn walltime_s(record: &Record, run_s: u64, estimates: Option<Estimates>, dice: &mut Dice, oddities: &mut Oddities) -> u64 {
    let estimate_s = match (estimates, record.estimate_s) {
        (Some(estimates), _) => estimates.walltime_s(run_s, dice),
        (None, Some(estimate_s)) => estimate_s,
        (None, None) => {
            oddities.add(Oddity::NoEstimate, record.number);
            Estimates::Usual.walltime_s(run_s, dice)
        }
    };
    let max_s = WALLTIME_MAX.as_secs();
    if estimate_s > max_s {
        oddities.add(Oddity::EstimateTooLong, record.number);
    }
    if run_s > estimate_s {
        oddities.add(Oddity::PastEstimate, record.number);
    }
    estimate_s.min(max_s)
}

#[cfg(test)]
mod tests {
    use super::super::swf;
    use super::*;

    fn line(number: u32, submitted: i64, run: i64, allocated: i64, requested: i64, estimate: i64, status: i64) -> String {
        format!("{number} {submitted} -1 {run} {allocated} -1 -1 {requested} {estimate} -1 {status} -1 -1 -1 -1 -1 -1 -1\n")
    }

    fn workload(lines: &[String], nodes: u32, cores_per_node: u32) -> Workload {
        let trace = swf::read(lines.concat().as_bytes(), "t.swf").unwrap();
        of_trace("t.swf", &trace, nodes, cores_per_node, Some(1), None, 1)
    }

    #[test]
    fn jobs_that_cannot_be_true_are_counted_and_named() {
        let lines = [
            line(1, 0, 100, 4, -1, 200, 1),
            line(2, 5, -1, 4, 4, 200, 5),
            line(3, 6, 10, -1, 0, 200, 1),
            line(4, 7, 10, 4, 9, 200, 1),
            line(5, 8, 10, 4, 4, 200, 3),
            line(6, 9, 300, 8, 2, 200, 0),
            line(7, 10, 100, 1, 1, -1, 1),
            line(8, 9, 0, 1, 1, 40_000_000, 1),
            line(9, 86_400, 10, 1, 1, 10, 1),
        ];
        let workload = workload(&lines, 8, 1);
        let jobs: Vec<(u64, u32, u64)> = workload.jobs.iter().map(|job| (job.submitted_s, job.nodes, job.run_s)).collect();
        assert_eq!(jobs, [(0, 4, 100), (9, 2, 200), (9, 1, 0), (10, 1, 100)]);
        assert_eq!(workload.jobs.iter().map(|job| job.index).collect::<Vec<_>>(), [0, 1, 2, 3]);
        let want = [
            "walltimes are those of the file",
            "1 job left out, without a run time: 2",
            "1 job left out, without a number of processors: 3",
            "1 job left out, with more processors than there are: 4",
            "1 job left out, status 2 to 4: parts of a job that has a line of its own: 5",
            "1 job without a walltime: it was made from the run time: 7",
            "1 job ran past the walltime: ended there: 6",
            "1 job with a walltime of more than 365 days: it is 365 days: 8",
            "1 job submitted before the line above: sorted by time: 8",
        ];
        assert_eq!(workload.notes, want);
    }

    #[test]
    fn jobs_get_whole_nodes_and_a_note_has_few_numbers() {
        let lines: Vec<String> = (1..=9).map(|number| line(number, 0, 10, number.into(), -1, 20, 1)).collect();
        let workload = workload(&lines, 1, 2);
        assert_eq!(workload.jobs.iter().map(|job| job.nodes).collect::<Vec<_>>(), [1, 1]);
        assert!(workload.notes.contains(&"7 jobs left out, with more processors than there are: 3, 4, 5, 6, 7, ...".to_owned()));
    }
}

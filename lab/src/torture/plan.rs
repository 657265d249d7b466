//! The plan: jobs and faults with their times, which depend only on the seed, the length and the rate.

use super::fault::{Fault, What};
use super::job::{Job, Kind, Requeue};
use crate::dice::Dice;
use crate::networks::{Direction, From};
use std::collections::BTreeMap;
use std::fmt;

/// Agents of a torture's cluster.
pub const NODES: u64 = 4;
/// Members.
pub const MEMBERS: u64 = 3;
/// The daemons with files on a small disk: an agent and a member.
pub const SMALL_DISKS: [&str; 2] = ["n4", "member-3"];
/// Limit of the nodes that are faulty at the same time.
const FAULTY_NODES_MAX: usize = 2;
/// Interval between two faults, in milliseconds: least and greatest.
const FAULT_INTERVAL_MS: (u64, u64) = (800, 2_400);
/// How often another fault is drawn if one overlaps another on the same daemon.
const DRAWS_MAX: usize = 8;
/// Pause of a daemon between two faults, in milliseconds.
const REST_MS: u64 = 1_000;
/// Assumed duration of a fault that ends at once, in milliseconds.
const RESTART_MS: u64 = 3_000;

/// The parameters of a plan.
#[derive(Clone, Copy, Debug)]
pub struct Scale {
    pub seed: u64,
    /// For how long jobs and faults are started, in milliseconds.
    pub length_ms: u64,
    /// Mean interval between two submissions, in milliseconds; at least 2.
    pub job_interval_ms: u64,
}

/// Jobs and faults, each in the order of their times.
#[derive(Clone, Debug)]
pub struct Plan {
    pub scale: Scale,
    pub jobs: Vec<Job>,
    pub faults: Vec<Fault>,
}

impl Plan {
    /// Draws a plan.
    pub fn draw(scale: Scale) -> Self {
        Self { scale, jobs: jobs(scale), faults: faults(scale) }
    }
}

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let jobs = self.jobs.iter().map(|job| (job.at_ms, format!("job {job}")));
        let faults = self.faults.iter().map(|fault| (fault.at_ms, format!("fault {fault}")));
        let mut lines: Vec<(u64, String)> = jobs.chain(faults).collect();
        lines.sort();
        lines.iter().try_for_each(|(at_ms, line)| writeln!(f, "{:8.3} s  {line}", *at_ms as f64 / 1000.0))
    }
}

fn jobs(scale: Scale) -> Vec<Job> {
    let mut dice = Dice::new(scale.seed, "jobs");
    let mut jobs = Vec::new();
    let mut at_ms = 0;
    loop {
        at_ms += dice.between(scale.job_interval_ms / 2, scale.job_interval_ms * 3 / 2);
        if at_ms >= scale.length_ms {
            return jobs;
        }
        let number = u32::try_from(jobs.len() + 1).unwrap_or(u32::MAX);
        jobs.push(job(&mut dice, number, at_ms));
    }
}

fn job(dice: &mut Dice, number: u32, at_ms: u64) -> Job {
    let kind = dice.weighted(&[
        (46, Kind::Command),
        (10, Kind::Script),
        (12, Kind::Ring),
        (10, Kind::Image),
        (5, Kind::Walltime),
        (8, Kind::Cancelled),
        (5, Kind::Outside),
        (4, Kind::Foreground),
    ]);
    let mut job = Job {
        number,
        at_ms,
        kind,
        via: dice.between(1, NODES),
        nodes: 1,
        tasks: 1,
        whole_nodes: dice.percent(10),
        // Most jobs are short: a tenth of a second to a second.
        lines: u32::try_from(dice.between(2, 20)).unwrap_or(1),
        interval_ms: dice.between(20, 60),
        exit_code: 0,
        stops: dice.percent(30),
        requeue: dice.weighted(&[(70, Requeue::OnNodeFailure), (15, Requeue::Never), (15, Requeue::Always)]),
        walltime_s: 300,
        cancel_after_ms: None,
    };
    match kind {
        Kind::Command => command(dice, &mut job),
        Kind::Script => {
            job.nodes = dice.between(1, 2);
            job.exit_code = u8::try_from(if dice.percent(20) { dice.between(1, 60) } else { 0 }).unwrap_or(1);
        }
        Kind::Ring => {
            (job.nodes, job.tasks) = wide(dice);
            (job.lines, job.interval_ms) = (30, dice.between(20, 100));
        }
        Kind::Image => {}
        Kind::Walltime => (job.lines, job.interval_ms, job.walltime_s) = (6_000, 100, dice.between(1, 3)),
        Kind::Cancelled => {
            (job.lines, job.interval_ms) = (6_000, 100);
            job.nodes = dice.between(1, 2);
            job.cancel_after_ms = Some(dice.between(100, 6_000));
        }
        Kind::Outside => (job.lines, job.interval_ms) = (30, 200),
        Kind::Foreground => {
            // A launch that waits for its end is not requeued automatically.
            job.requeue = Requeue::Never;
            job.exit_code = u8::try_from(if dice.percent(30) { dice.between(1, 60) } else { 0 }).unwrap_or(1);
        }
    }
    job
}

/// Jobs that are short or long, have many lines, are wide, or fail.
fn command(dice: &mut Dice, job: &mut Job) {
    match dice.between(1, 100) {
        1..=45 => {}
        46..=60 => (job.lines, job.interval_ms) = (u32::try_from(dice.between(25, 60)).unwrap_or(25), 200),
        61..=75 => (job.lines, job.interval_ms) = (u32::try_from(dice.between(100, 400)).unwrap_or(100), dice.between(1, 8)),
        76..=88 => (job.nodes, job.tasks) = wide(dice),
        _ => job.exit_code = u8::try_from(dice.between(1, 60)).unwrap_or(1),
    }
}

/// Nodes, and tasks on each. A job that needs more nodes than are healthy delays all jobs behind it, so few need three
/// of the four.
fn wide(dice: &mut Dice) -> (u64, u64) {
    (dice.weighted(&[(5, 2), (1, 3)]), dice.between(1, 2))
}

fn faults(scale: Scale) -> Vec<Fault> {
    let mut dice = Dice::new(scale.seed, "faults");
    let mut faults: Vec<Fault> = Vec::new();
    // When each subject may be hit again.
    let mut busy: BTreeMap<String, u64> = BTreeMap::new();
    // The first jobs begin on a healthy cluster.
    let mut at_ms = FAULT_INTERVAL_MS.1;
    loop {
        at_ms += dice.between(FAULT_INTERVAL_MS.0, FAULT_INTERVAL_MS.1);
        busy.retain(|_, until_ms| *until_ms > at_ms);
        let drawn = (0..DRAWS_MAX).map(|_| fault(&mut dice)).find(|(what, _)| is_free(what, &busy));
        let Some((what, for_ms)) = drawn else { continue };
        if at_ms + for_ms >= scale.length_ms {
            return faults;
        }
        let until_ms = at_ms + for_ms.max(RESTART_MS) + REST_MS;
        busy.extend(what.hits().into_iter().map(|hit| (hit, until_ms)));
        let number = u32::try_from(faults.len() + 1).unwrap_or(u32::MAX);
        faults.push(Fault { number, at_ms, for_ms, what });
    }
}

fn is_free(what: &What, busy: &BTreeMap<String, u64>) -> bool {
    let hits = what.hits();
    let is_node = |hit: &&String| hit.starts_with('n');
    let faulty = busy.keys().filter(is_node).count() + hits.iter().filter(is_node).count();
    hits.iter().all(|hit| !busy.contains_key(hit)) && (faulty <= FAULTY_NODES_MAX || !hits.iter().any(|hit| hit.starts_with('n')))
}

/// One fault and its duration.
fn fault(dice: &mut Dice) -> (What, u64) {
    let node = format!("n{}", dice.between(1, NODES));
    let member = dice.between(1, MEMBERS);
    let (short, long) = (dice.between(200, 3_000), dice.between(500, 9_000));
    match dice.between(1, 100) {
        1..=14 => (What::KillAgent { node }, long),
        15..=20 => (What::StopAgent { node }, long),
        21..=27 => (What::RestartAgent { node }, 0),
        28..=35 => (What::LoseNode { node }, long),
        36..=45 => (What::KillShim { node, number: dice.between(0, 7) }, 0),
        46..=51 => (What::KillMember { id: member }, long),
        52..=58 => (What::KillLeader, long),
        59..=62 => (What::StopMember { id: member }, long),
        63..=64 => (What::KillQuorum, long),
        65..=80 => (cut(dice, node), long),
        81..=84 => (What::CutMember { id: member, direction: direction(dice) }, long),
        85..=88 => (What::AgentClock { node, seconds: jump(dice) }, long),
        89..=91 => (What::MemberClock { id: member, seconds: jump(dice) }, long),
        // Less than the election timeout: a member that needs longer to write its vote cannot be elected.
        92..=94 => (What::SlowDisk { id: member, ms: dice.between(20, 150) }, long),
        _ => (What::FullDisk { daemon: (*dice.pick(&SMALL_DISKS)).to_owned() }, short),
    }
}

fn cut(dice: &mut Dice, node: String) -> What {
    let from = match dice.between(1, 100) {
        1..=35 => From::All,
        36..=65 => From::Quorum,
        _ => {
            let others: Vec<String> = (1..=NODES).map(|n| format!("n{n}")).filter(|other| *other != node).collect();
            From::Peer(dice.pick(&others).clone())
        }
    };
    What::Cut { node, from, direction: direction(dice) }
}

fn direction(dice: &mut Dice) -> Direction {
    dice.weighted(&[(2, Direction::Both), (1, Direction::In), (1, Direction::Out)])
}

/// By how many seconds a clock is wrong.
fn jump(dice: &mut Dice) -> i64 {
    dice.weighted(&[(1, 3_600), (1, -3_600), (1, 40), (1, -40)])
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    const SCALE: Scale = Scale { seed: 3, length_ms: 600_000, job_interval_ms: 250 };

    #[test]
    fn a_plan_follows_from_its_seed() {
        assert_eq!(Plan::draw(SCALE).to_string(), Plan::draw(SCALE).to_string());
        assert_ne!(Plan::draw(SCALE).to_string(), Plan::draw(Scale { seed: 4, ..SCALE }).to_string());
    }

    #[test]
    fn every_kind_of_job_and_fault_comes() {
        let plan = Plan::draw(SCALE);
        let kinds: BTreeSet<String> = plan.jobs.iter().map(|job| format!("{:?}", job.kind)).collect();
        assert_eq!(kinds.len(), 8, "{kinds:?}");
        let first_word = |fault: &Fault| format!("{:?}", fault.what).split(' ').next().unwrap_or_default().to_owned();
        let whats: BTreeSet<String> = plan.faults.iter().map(first_word).collect();
        assert_eq!(whats.len(), 15, "{whats:?}");
        let mean_ms = SCALE.length_ms / u64::try_from(plan.faults.len()).unwrap();
        assert!((1_400..2_200).contains(&mean_ms), "a fault every {mean_ms} ms");
    }

    #[test]
    fn every_fault_ends_in_time_and_none_meets_another_on_the_same_daemon() {
        for seed in 0..20 {
            let plan = Plan::draw(Scale { seed, ..SCALE });
            let mut until: BTreeMap<String, u64> = BTreeMap::new();
            for fault in &plan.faults {
                assert!(fault.at_ms + fault.for_ms < SCALE.length_ms, "{fault}");
                for hit in fault.what.hits() {
                    let before = until.insert(hit.clone(), fault.at_ms + fault.for_ms).unwrap_or(0);
                    assert!(fault.at_ms >= before, "seed {seed}: {hit} is hit twice at once by {fault}");
                }
            }
        }
    }
}

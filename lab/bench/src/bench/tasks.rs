//! `bench tasks`: the tasks of a group that end a second, beside HyperQueue, which has no quorum, and beside bare fork
//! and exec of as many programs. With `--million`: what a group of a million tasks costs the members.
//!
//! One cluster of four agents on this machine, each of which has all processors for its tasks. The group of one agent
//! is restricted to the first; the others are idle meanwhile. The group of all agents runs once with as many tasks at
//! once as one agent has, and once with as many as four nodes would run, which share the processors of this machine.
//! Everything is measured in each round, and whatever was last in a round is first in the next.

mod commands;
mod hyperqueue;
mod million;

use self::commands::{group_of, time_of};
use self::hyperqueue::HyperQueue;
use super::figures::{Figure, Report, Target};
use super::options::Options;
use super::surroundings::{slow_files, wait_all_free};
use super::turns::{compared, in_turn};
use anyhow::{Context, Result, bail, ensure};
use lattice_lab::binaries::Binaries;
use lattice_lab::cluster::Cluster;
use lattice_lab::down::{self, Guard};
use lattice_lab::interrupt;
use lattice_lab::lattice::Lattice;
use lattice_lab::machine::{self, Machine};
use lattice_lab::up;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// A round takes about a minute.
const ROUNDS: usize = 5;
/// Tasks of each group, and of the group before the first that is measured.
const TASKS: u32 = 10_000;
const WARM_UP_TASKS: u32 = 200;
/// The agents of the cluster, and its members: one, beside HyperQueue's one server.
const AGENTS: u32 = 4;
const MEMBERS: u32 = 1;
/// The smallest number of tasks that end a second, relative to HyperQueue's.
const HYPER_QUEUE_RATIO: f64 = 1.3;
const ONE_AGENT: &str = "lattice, one agent";
const ALL_AGENTS: &str = "lattice, four agents";
const ALL_AGENTS_AS_MANY: &str = "lattice, four agents, as many tasks at once as one";
/// The smallest number of tasks that end a second on four agents, relative to one agent with as many tasks at once.
const SPREAD_RATIO: f64 = 1.0;
const HYPER_QUEUE: &str = "HyperQueue";
const BARE: &str = "bare fork and exec";

/// Starts the cluster, measures, and removes it again.
pub fn run(dir: Option<&Path>, options: &Options) -> Result<Report> {
    options.validate()?;
    let machine = Machine::look();
    let binaries = Binaries::beside_lab()?;
    if !options.no_build {
        binaries.build()?;
    }
    let own = std::env::temp_dir().join(format!("lattice-bench-tasks-{}", std::process::id()));
    let dir = dir.unwrap_or(&own);
    interrupt::watch();
    let before = machine::cpu_pressure();
    let mut notes = Vec::new();
    let figures = if options.million {
        with_cluster(1, million::MEMBERS, dir, options, &mut notes, |cluster, notes| million::measure(cluster, options, notes))?
    } else {
        with_cluster(AGENTS, MEMBERS, dir, options, &mut notes, |cluster, notes| measure(cluster, &machine, options, notes))?
    };
    let profile = binaries.profile();
    if profile == "debug" {
        notes.push("these are debug binaries: run the bench with --release before believing a miss".to_owned());
    }
    if !machine.root {
        notes.push("not root: tasks run without scope and mount, which is less than in a cluster".to_owned());
    }
    Ok(Report { bench: "tasks", profile, cpu_pressure: [before, machine::cpu_pressure()], machine, figures, notes })
}

fn with_cluster(
    nodes: u32,
    members: u32,
    dir: &Path,
    options: &Options,
    notes: &mut Vec<String>,
    measure: impl FnOnce(&Cluster, &mut Vec<String>) -> Result<Vec<Figure>>,
) -> Result<Vec<Figure>> {
    let up_options = options.cluster_options(nodes, members, dir);
    let guard = Guard::new(dir);
    eprintln!("bench: starting the cluster; members: {members}, agents: {nodes}");
    let cluster = up::up(&up_options)?;
    notes.extend(slow_files(&cluster));
    let measured = measure(&cluster, notes);
    down::require_gone(&guard.down(Duration::from_secs(10))?)?;
    measured
}

/// What is measured in each round.
struct Contender<'a> {
    name: &'static str,
    /// Runs this many tasks; returns how long they took.
    run: Box<dyn Fn(u32) -> Result<Duration> + 'a>,
}

impl<'a> Contender<'a> {
    fn new(name: &'static str, run: impl Fn(u32) -> Result<Duration> + 'a) -> Self {
        Self { name, run: Box::new(run) }
    }

    /// Runs this many tasks; returns how many of them ended a second.
    fn per_second(&self, tasks: u32) -> Result<f64> {
        let took = (self.run)(tasks).with_context(|| self.name)?;
        Ok(f64::from(tasks) / took.as_secs_f64())
    }
}

fn measure(cluster: &Cluster, machine: &Machine, options: &Options, notes: &mut Vec<String>) -> Result<Vec<Figure>> {
    let lattice = Lattice::to(cluster, "n1")?;
    let queue = HyperQueue::start(machine.cores, notes)?;
    let group = |node: Option<&'static str>, at_once: Option<usize>| {
        let lattice = &lattice;
        move |tasks: u32| run_group(lattice, tasks, node, at_once)
    };
    let mut contenders = vec![
        Contender::new(ONE_AGENT, group(Some("n1"), None)),
        Contender::new(ALL_AGENTS_AS_MANY, group(None, Some(machine.cores))),
        Contender::new(ALL_AGENTS, group(None, None)),
        Contender::new(BARE, |tasks| run_bare(tasks, machine.cores)),
    ];
    if let Some(queue) = &queue {
        contenders.push(Contender::new(HYPER_QUEUE, move |tasks| queue.run(tasks)));
    }
    for contender in &contenders {
        interrupt::check()?;
        contender.per_second(WARM_UP_TASKS)?;
    }
    let subjects: Vec<&Contender> = contenders.iter().collect();
    let rounds = options.rounds.unwrap_or(ROUNDS);
    let measured = in_turn(&subjects, rounds, "tasks", |contender, _| contender.per_second(TASKS))?;
    notes.push(format!(
        "{TASKS} times /bin/true, each task on one core, {} at once on a node. The time is that of the command that submits them and waits \
         for their end, `lattice submit --wait`, or that from the submission by HyperQueue's own client until the server, which is asked \
         every 20 ms, says that all have ended. The bare ones run one after another in {} threads",
        machine.cores, machine.cores
    ));
    let of = |name: &str| {
        let mut all = contenders.iter().zip(&measured);
        all.find(|(contender, _)| contender.name == name).map(|(_, per_second)| per_second.as_slice())
    };
    let target = Target::RatioAtLeast { peer: HYPER_QUEUE.to_owned(), at_least: HYPER_QUEUE_RATIO };
    // Without HyperQueue, a target relative to it has no meaning; a note says why it is missing.
    let target = Some(target).filter(|_| queue.is_some());
    let peers = [(HYPER_QUEUE, of(HYPER_QUEUE)), (BARE, of(BARE))];
    let ours = of(ONE_AGENT).context("no agent was measured")?;
    let one = compared(&format!("{TASKS} tasks of a group on one node: ended a second"), "/s", ours, &peers, target, notes)?;
    let not_measured = "the agents were not measured";
    let as_many = of(ALL_AGENTS_AS_MANY).context(not_measured)?;
    let name = format!("the same on {AGENTS} nodes, {} tasks at once in all", machine.cores);
    let target = Target::RatioAtLeast { peer: ONE_AGENT.to_owned(), at_least: SPREAD_RATIO };
    let as_many = compared(&name, "/s", as_many, &[(ONE_AGENT, of(ONE_AGENT))], Some(target), notes)?;
    let all = of(ALL_AGENTS).context(not_measured)?;
    let name = format!("the same on {AGENTS} nodes, {AGENTS} times as many tasks at once as this machine has cores");
    let all = compared(&name, "/s", all, &[(ONE_AGENT, of(ONE_AGENT)), (BARE, of(BARE))], None, notes)?;
    Ok(vec![one, as_many, all])
}

/// Submits a group, on this node alone if one is given, with at most `at_once` tasks at once, and waits for its end.
fn run_group(lattice: &Lattice, tasks: u32, node: Option<&str>, at_once: Option<usize>) -> Result<Duration> {
    let group = group_of(tasks) + &at_once.map_or_else(String::new, |most| format!("%{most}"));
    let node: Vec<&str> = node.iter().flat_map(|node| ["-w", *node]).collect();
    let args = [&["submit", "-q", "--wait", &group, "--cores=1"], &node[..], &["--", "/bin/true"]].concat();
    let took = time_of(&mut lattice.command(&args))?;
    // The next group must not wait for the end of these lanes.
    wait_all_free(lattice)?;
    Ok(took)
}

/// The lower bound: as many threads, each of which starts one program after another and waits for it.
fn run_bare(tasks: u32, threads: usize) -> Result<Duration> {
    let threads = u32::try_from(threads)?.max(1);
    let began = Instant::now();
    std::thread::scope(|scope| {
        let shares = (0..threads).map(|number| tasks / threads + u32::from(number < tasks % threads));
        let started: Vec<_> = shares.map(|share| scope.spawn(move || run_one_after_another(share))).collect();
        started.into_iter().try_for_each(|thread| thread.join().unwrap_or_else(|_| bail!("a thread that starts programs panicked")))
    })?;
    Ok(began.elapsed())
}

fn run_one_after_another(programs: u32) -> Result<()> {
    for _ in 0..programs {
        interrupt::check()?;
        let status = Command::new("/bin/true").stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).status()?;
        ensure!(status.success(), "/bin/true: {status}");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rate_is_that_of_the_tasks_that_were_run() {
        let contender = Contender::new("a", |tasks| Ok(Duration::from_millis(u64::from(tasks) * 4)));
        assert_eq!((contender.per_second(20).unwrap(), contender.per_second(1000).unwrap()), (250.0, 250.0));
        let failing = Contender::new("b", |_| bail!("it is away"));
        assert_eq!(format!("{:#}", failing.per_second(1).unwrap_err()), "b: it is away");
    }

    #[test]
    fn programs_run_one_after_another_in_each_thread() {
        assert!(run_bare(5, 2).unwrap() > Duration::ZERO);
    }
}

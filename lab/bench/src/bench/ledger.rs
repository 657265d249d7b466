//! `bench ledger`: what applying each kind of command costs a member of a large cluster, in this process, without log
//! and network. No command may cost the number of nodes or allocations.

mod cluster;
mod lives;
mod wide;

use super::figures::{Figure, Report, Samples, Target};
use super::options::Options;
use anyhow::{Context, Result};
use cluster::{ALLOCATIONS, Cluster, NODES};
use lattice_lab::interrupt;
use lattice_lab::machine::{self, Machine};
use std::time::Duration;

/// How often each kind of command is applied in one round.
const REPETITIONS: usize = 200;
/// Limits of the median and of the 99th percentile of one command, in microseconds.
const MEDIAN_US: f64 = 20.0;
const P99_US: f64 = 200.0;
/// Limit of applying a changed fingerprint of every node, in milliseconds.
const ROLLOUT_MS: f64 = 1000.0;
/// Limit of the memory that a member may need while one allocation of all nodes runs, in megabytes.
const WIDE_MB: f64 = 100.0;
/// Limit of the data about it that a watcher is sent for one entry of reports, in kilobytes.
const WIDE_SENT_KB: f64 = 8.0;
/// Evaluations of the leader's clocks in one round, a second apart.
const TICKS: u32 = 30;

/// Builds the cluster, and measures.
pub fn run(options: &Options) -> Result<Report> {
    options.validate()?;
    let machine = Machine::look();
    interrupt::watch();
    let before = machine::cpu_pressure();
    let mut cluster = Cluster::build().context("the cluster that is measured")?;
    let mut rollouts = Vec::new();
    let mut ticks = Vec::new();
    let mut wides = Vec::new();
    let mut kinds: Vec<Kind> = Vec::new();
    for _ in 0..options.rounds() {
        interrupt::check()?;
        let mut round = lives::Round::default();
        for _ in 0..REPETITIONS {
            lives::live(&mut cluster, &mut round)?;
        }
        for (place, (name, times)) in round.into_kinds().into_iter().enumerate() {
            if kinds.len() <= place {
                kinds.push(Kind { name, all: Vec::new(), p99: Vec::new() });
            }
            kinds[place].add(&times);
        }
        rollouts.push(lives::rollout(&mut cluster)?.as_secs_f64() * 1e3);
        wides.push(wide::run(&mut cluster).context("an allocation of all nodes")?);
        ticks.extend(lives::ticks(&cluster, TICKS).into_iter().map(microseconds));
    }
    let mut figures = Vec::new();
    for kind in kinds {
        figures.extend(kind.figures()?);
    }
    let none = "nothing was measured";
    let rollout = Samples::of(rollouts, 0).context(none)?;
    let target = Target::AtMost { value: ROLLOUT_MS, why: "members commit other work meanwhile".to_owned() };
    figures.push(Figure::new(&format!("a rollout that changes the fingerprints of {NODES} nodes"), "ms", rollout, vec![], Some(target)));
    let ticks = Samples::of(ticks, 0).context(none)?;
    figures.push(Figure::new(&format!("the leader's clocks, {NODES} nodes that send heartbeats"), "µs", ticks, vec![], None));
    figures.extend(wide_figures(&wides)?);
    let profile = if cfg!(debug_assertions) { "debug" } else { "release" };
    let mut notes = vec![format!("{NODES} nodes, {ALLOCATIONS} allocations: 4 of 10 run, 5 wait, 1 has ended")];
    if cfg!(debug_assertions) {
        notes.push("this is a debug binary: run the bench with --release before believing a miss".to_owned());
    }
    Ok(Report { bench: "ledger", machine, profile: profile.to_owned(), cpu_pressure: [before, machine::cpu_pressure()], figures, notes })
}

fn wide_figures(wides: &[wide::Wide]) -> Result<Vec<Figure>> {
    let samples = |of: &dyn Fn(&wide::Wide) -> f64| Samples::of(wides.iter().map(of).collect(), 0).context("nothing was measured");
    let ms = |of: fn(&wide::Wide) -> Duration| samples(&move |wide| of(wide).as_secs_f64() * 1e3);
    let per = wide::ENTRY_REPORTS;
    let figure = |name: &str, samples| Figure::new(&format!("an allocation of {NODES} nodes: {name}"), "ms", samples, vec![], None);
    let sent = Target::AtMost { value: WIDE_SENT_KB, why: "whatever the number of nodes".to_owned() };
    let grown = Target::AtMost { value: WIDE_MB, why: "members have other work".to_owned() };
    Ok(vec![
        figure("its claim", ms(|wide| wide.claimed)?),
        figure(&format!("all prepared, {per} reports in an entry"), ms(|wide| wide.prepared)?),
        figure("its end", ms(|wide| wide.ended)?),
        figure(&format!("all released, {per} reports in an entry"), ms(|wide| wide.released)?),
        Figure::new(
            &format!("a watcher is sent, for {per} reports"),
            "kB",
            samples(&|w| w.sent_bytes_max as f64 / 1e3)?,
            vec![],
            Some(sent),
        ),
        Figure::new("memory of a member meanwhile", "MB", samples(&|w| w.grown_bytes as f64 / 1e6)?, vec![], Some(grown)),
    ])
}

/// The times of one kind of command, in microseconds.
struct Kind {
    name: &'static str,
    all: Vec<f64>,
    /// The 99th percentile of each round.
    p99: Vec<f64>,
}

impl Kind {
    fn add(&mut self, times: &[Duration]) {
        let mut times: Vec<f64> = times.iter().copied().map(microseconds).collect();
        times.sort_by(f64::total_cmp);
        let place = (times.len() * 99).div_ceil(100).saturating_sub(1);
        self.p99.extend(times.get(place).copied());
        self.all.extend(times);
    }

    fn figures(self) -> Result<[Figure; 2]> {
        let samples = |values: Vec<f64>| Samples::of(values, 0).with_context(|| format!("{}: nothing was measured", self.name));
        let target = |value: f64| Some(Target::AtMost { value, why: "whatever the size of the cluster".to_owned() });
        let p99 = format!("{}, 99th percentile of each round", self.name);
        Ok([
            Figure::new(self.name, "µs", samples(self.all)?, vec![], target(MEDIAN_US)),
            Figure::new(&p99, "µs", samples(self.p99)?, vec![], target(P99_US)),
        ])
    }
}

fn microseconds(time: Duration) -> f64 {
    time.as_secs_f64() * 1e6
}

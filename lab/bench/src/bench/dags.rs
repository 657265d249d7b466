//! `bench dags`: what dependencies cost. The same allocations are submitted as chains, as layers, and without edges; and
//! the records of chains show how soon a step starts after the end of the one before.
//!
//! One cluster on this machine: three members, and four agents, each of which has all processors for its work. Every
//! DAG is submitted once in each round, alone, and the one that was last in a round is first in the next.
//!
//! ```text
//!   100 chains of 10:   step ─▶ step ─▶ … ─▶ step        10 layers of 100:   99 steps ─▶ step ─▶ 99 steps ─▶ step …
//!                       step ─▶ step ─▶ … ─▶ step
//!                       …                                without edges:      1,000 steps
//! ```
//!
//! A hundred chains have more steps that may run than the nodes have cores, so most steps wait for a core, and not for
//! the step before. Therefore the time from a step's end to the start of the next is judged in four chains.

mod course;
mod shape;

use self::course::{Course, Wait};
use self::shape::Shape;
use super::figures::{Figure, Report, Samples, Target};
use super::options::Options;
use super::surroundings::{all_cores, slow_files};
use super::turns::{compared, in_turn};
use anyhow::{Context, Result, bail};
use lattice_lab::binaries::Binaries;
use lattice_lab::cluster::Cluster;
use lattice_lab::down::{self, Guard};
use lattice_lab::interrupt;
use lattice_lab::lattice::Lattice;
use lattice_lab::machine::{self, Machine};
use lattice_lab::up;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// A round takes about a minute.
const ROUNDS: usize = 5;
/// The cluster.
const MEMBERS: u32 = 3;
const AGENTS: u32 = 4;
/// The same number of allocations with and without edges: the most that a DAG may have by default.
const NO_EDGES: Shape = Shape::NoEdges { steps: 1000 };
const CHAINS: Shape = Shape::Chains { chains: 100, steps: 10 };
const LAYERS: Shape = Shape::Layers { layers: 10, steps: LAYER_STEPS };
const LAYER_STEPS: usize = 100;
/// A chain for each agent, so that a step waits for no other chain.
const FEW_CHAINS: Shape = Shape::Chains { chains: AGENTS as usize, steps: 50 };
/// In the order in which they are measured in the first round.
const SHAPES: [Shape; 4] = [NO_EDGES, CHAINS, LAYERS, FEW_CHAINS];
/// What runs before the first round.
const WARM_UP: Shape = Shape::Chains { chains: 10, steps: 10 };
/// The longest time of the chains, relative to the same allocations without edges.
const CHAINS_RATIO: f64 = 1.3;
/// The longest median time from a step's end to the start of the next one, in milliseconds.
const WAIT_MS: f64 = 50.0;
const WITHOUT_EDGES: &str = "the same without edges";

/// Starts the cluster, measures, and removes it again.
pub fn run(dir: Option<&Path>, options: &Options) -> Result<Report> {
    options.validate()?;
    let machine = Machine::look();
    let binaries = Binaries::beside_lab()?;
    if !options.no_build {
        binaries.build()?;
    }
    let own = std::env::temp_dir().join(format!("lattice-bench-dags-{}", std::process::id()));
    let dir = dir.unwrap_or(&own);
    interrupt::watch();
    let before = machine::cpu_pressure();
    let up_options = options.cluster_options(AGENTS, MEMBERS, dir);
    let guard = Guard::new(dir);
    eprintln!("bench: starting the cluster; members: {MEMBERS}, agents: {AGENTS}");
    let cluster = up::up(&up_options)?;
    let mut notes = Vec::from_iter(slow_files(&cluster));
    let measured = measure(&cluster, options, &mut notes);
    down::require_gone(&guard.down(Duration::from_secs(10))?)?;
    let figures = measured?;
    let profile = binaries.profile();
    if profile == "debug" {
        notes.push("these are debug binaries: run the bench with --release before believing a miss".to_owned());
    }
    if !machine.root {
        notes.push("not root: work runs without scope and mount, which is less than in a cluster".to_owned());
    }
    Ok(Report { bench: "dags", profile, cpu_pressure: [before, machine::cpu_pressure()], machine, figures, notes })
}

/// A DAG that is measured in each round.
struct Dag {
    shape: Shape,
    file: PathBuf,
}

impl Dag {
    fn write(cluster: &Cluster, shape: Shape) -> Result<Self> {
        let file = cluster.dir.join(format!("{shape}.yaml"));
        std::fs::write(&file, shape.file()).with_context(|| format!("cannot write {}", file.display()))?;
        Ok(Self { shape, file })
    }

    fn run(&self, lattice: &Lattice) -> Result<Course> {
        course::run(lattice, &self.file, self.shape.step_count()).with_context(|| self.shape.to_string())
    }
}

fn measure(cluster: &Cluster, options: &Options, notes: &mut Vec<String>) -> Result<Vec<Figure>> {
    let lattice = Lattice::to(cluster, "n1")?;
    let cores = all_cores(&lattice)?;
    let dags = SHAPES.iter().map(|shape| Dag::write(cluster, *shape)).collect::<Result<Vec<Dag>>>()?;
    Dag::write(cluster, WARM_UP)?.run(&lattice)?;
    let subjects: Vec<&Dag> = dags.iter().collect();
    let measured = in_turn(&subjects, options.rounds.unwrap_or(ROUNDS), "DAGs", |dag, _| dag.run(&lattice))?;
    notes.push(format!(
        "each step is /bin/true on one core; the {AGENTS} nodes have {cores} cores in all, which are those of this machine {AGENTS} times. \
         In a layer, the last step depends on the {} others, and those of the next layer on it",
        LAYER_STEPS - 1
    ));
    notes.push(
        "a time ends with the last end of a step. A step's start and end are when the leader proposed the node's reports of them, by the \
         members' clock, which is this machine's"
            .to_owned(),
    );
    figures(&measured, notes)
}

/// The figures of the courses of each of [`SHAPES`], by round.
fn figures(measured: &[Vec<Course>], notes: &mut Vec<String>) -> Result<Vec<Figure>> {
    let [without, chains, layers, few_chains] = measured else { bail!("not every DAG was measured") };
    let took = |courses: &[Course]| -> Vec<f64> { courses.iter().map(|course| course.took_s).collect() };
    let submitted = |courses: &[Course]| -> Vec<f64> { courses.iter().map(|course| course.submit_ms).collect() };
    let (without_s, without_ms) = (took(without), submitted(without));
    let peer_s = [(WITHOUT_EDGES, Some(without_s.as_slice()))];
    let peer_ms = [(WITHOUT_EDGES, Some(without_ms.as_slice()))];
    let ratio = Target::RatioTo { peer: WITHOUT_EDGES.to_owned(), at_most: CHAINS_RATIO };
    let mut figures = vec![
        compared(&format!("{CHAINS}: `dag submit` to Completed"), "s", &took(chains), &peer_s, Some(ratio), notes)?,
        compared(&format!("{LAYERS}: `dag submit` to Completed"), "s", &took(layers), &peer_s, None, notes)?,
        compared(&format!("{CHAINS}: accepted"), "ms", &submitted(chains), &peer_ms, None, notes)?,
    ];
    let soon = Target::AtMost { value: WAIT_MS, why: "no step waits for another chain".to_owned() };
    figures.extend(waits(&format!("{FEW_CHAINS}: from a step's end to the start of the next"), few_chains, Some(soon), notes)?);
    figures.extend(waits(&format!("{CHAINS}: the same, with the wait for a core"), chains, None, notes)?);
    Ok(figures)
}

/// The median and the 99th percentile of the waits in each round. A note says how much of the median is the wait for a
/// node.
fn waits(what: &str, courses: &[Course], target: Option<Target>, notes: &mut Vec<String>) -> Result<[Figure; 2]> {
    let by_round = |percent: usize, value: fn(&Wait) -> f64| {
        let of_one = |course: &Course| percentile(course.waits.iter().map(value).collect(), percent);
        let values: Option<Vec<f64>> = courses.iter().map(of_one).collect();
        values.and_then(|values| Samples::of(values, 0)).with_context(|| format!("{what}: no step waited for another"))
    };
    let (median, p99) = (by_round(50, |wait| wait.until_started_ms)?, by_round(99, |wait| wait.until_started_ms)?);
    let claimed = by_round(50, |wait| wait.until_claimed_ms)?;
    notes.push(format!(
        "{what}: after {:.1} ms (median; {:.1}–{:.1} by round) a node is claimed for the step",
        claimed.median, claimed.min, claimed.max
    ));
    Ok([
        Figure::new(&format!("{what}, median of each round"), "ms", median, vec![], target),
        Figure::new(&format!("{what}, 99th percentile of each round"), "ms", p99, vec![], None),
    ])
}

/// The least value that `percent` percent of all values do not exceed; `None`: there are no values.
fn percentile(mut values: Vec<f64>, percent: usize) -> Option<f64> {
    values.sort_by(f64::total_cmp);
    let place = (values.len() * percent).div_ceil(100).checked_sub(1)?;
    values.get(place).copied()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::figures::Verdict;

    #[test]
    fn every_shape_is_a_dag_that_is_accepted_by_default() {
        assert_eq!([NO_EDGES, CHAINS, LAYERS].map(Shape::step_count), [1000; 3]);
        let most = lattice_model::dag::DagSize::default().steps() as usize;
        assert!(SHAPES.iter().all(|shape| shape.step_count() <= most));
    }

    #[test]
    fn percentiles_are_values_that_were_measured() {
        let values = || (1..=200).rev().map(f64::from).collect::<Vec<f64>>();
        assert_eq!((percentile(values(), 50), percentile(values(), 99)), (Some(100.0), Some(198.0)));
        assert_eq!((percentile(vec![7.0], 50), percentile(vec![7.0], 99), percentile(vec![], 50)), (Some(7.0), Some(7.0), None));
    }

    /// A round in which a DAG took this long, and its steps waited this long.
    fn course(took_s: f64, waits_ms: &[f64]) -> Course {
        let wait = |ms: &f64| Wait { until_claimed_ms: ms / 2.0, until_started_ms: *ms };
        Course { submit_ms: 100.0, took_s, waits: waits_ms.iter().map(wait).collect() }
    }

    #[test]
    fn the_targets_are_those_of_the_chains() {
        let of = |chains_s: f64, few_ms: f64| {
            let mut notes = Vec::new();
            let without = vec![course(10.0, &[]); 3];
            let (chains, layers) = (vec![course(chains_s, &[500.0]); 3], vec![course(30.0, &[500.0]); 3]);
            let few = vec![course(1.0, &[1.0, few_ms, 1000.0]); 3];
            let figures = figures(&[without, chains, layers, few], &mut notes).unwrap();
            (figures.iter().map(|figure| figure.verdict).collect::<Vec<Verdict>>(), notes)
        };
        let none = Verdict::NoTarget;
        let (met, notes) = of(13.0, 50.0);
        assert_eq!(met, [Verdict::Met, none, none, Verdict::Met, none, none, none]);
        assert!(notes[0].ends_with(": 1.30 of the same without edges (1.30–1.30 by round)"), "{notes:?}");
        assert!(notes[3].ends_with("after 25.0 ms (median; 25.0–25.0 by round) a node is claimed for the step"), "{notes:?}");
        assert_eq!(of(13.1, 50.1).0, [Verdict::Missed, none, none, Verdict::Missed, none, none, none]);
    }

    #[test]
    fn chains_without_waits_have_no_figure() {
        let mut notes = Vec::new();
        let error = waits("chains", &[course(1.0, &[])], None, &mut notes).unwrap_err();
        assert_eq!(error.to_string(), "chains: no step waited for another");
    }
}

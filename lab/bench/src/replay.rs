//! `lattice-lab replay`: the product's scheduler in virtual time, beside reference schedulers or under several weights.
//!
//! ```text
//!   SWF file ([`swf`]) ──────┐                             ┌─▶ lattice ([`product`]): a View, and lattice_scheduler::plan
//!   model ([`lublin`],       ├─▶ [`workload`] ─▶ [`simulation`] ─▶ FIFO, EASY, conservative ([`references`])
//!     with [`estimates`]) ───┘       │                     └─▶ [`measures`] ─▶ [`report`]
//!                                    ▼ --weights
//!   trace of a cluster ([`trace`]) ─▶ [`scenario`] ─▶ [`course`] for each file of [`weights`] ─▶ [`outcome`] ─▶ [`comparison`]
//!   trace with a name ([`traces`]) ──▶
//! ```
//!
//! Work begins and ends in whole seconds, and all that happens within a second is one event. After each event the scheduler
//! decides what begins. Starting and ending work takes no time, and no node fails.

mod comparison;
mod course;
mod estimates;
mod lublin;
mod measures;
mod outcome;
mod product;
mod progress;
mod references;
mod report;
mod scenario;
mod simulation;
mod site;
mod swf;
#[cfg(test)]
mod tests;
mod trace;
mod traces;
mod weights;
mod workload;

use crate::chart::CURVES_MAX;
use anyhow::{Context, Result, bail, ensure};
use comparison::Criterion;
use estimates::Estimates;
use lattice_model::count::counted;
use measures::Measures;
use outcome::Outcome;
use product::Lattice;
use references::{Conservative, Easy, Fifo};
use scenario::Scenario;
use simulation::{Scheduler, simulate};
use site::Site;
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use traces::Named;
use weights::WeightFile;
use workload::Workload;

/// The name of the generator.
const LUBLIN: &str = "lublin";
/// The name of the replay with the trace's own weights.
const OWN: &str = "own";
const NODES_DEFAULT: u32 = 1000;
const DAYS_DEFAULT: u32 = 30;
const LOAD_DEFAULT: u32 = 85;
const SEED_DEFAULT: u64 = 1;
/// The most files of weights: each is a curve, beside that of the trace's own weights.
const FILES_MAX: usize = CURVES_MAX - 1;

/// The options of `replay`.
#[derive(Clone, Debug, clap::Args)]
pub struct Options {
    /// A file of `lattice admin trace capture`, or in the Standard Workload Format; `lublin`, which generates jobs by the
    /// model of Lublin and Feitelson; or a trace with a name (--list)
    #[arg(required_unless_present = "list")]
    pub trace: Option<String>,
    /// List the traces with a name, and what must hold for each
    #[arg(long, exclusive = true)]
    pub list: bool,
    /// Replay the trace with its own weights, and once with those of each file, side by side. A file is YAML: for each
    /// vCluster the weights that `lattice admin vcluster set-weights` sets, such as `default: {fair-share: 0.35}`
    #[arg(long, value_name = "FILE", num_args = 1..=FILES_MAX)]
    pub weights: Vec<PathBuf>,
    /// The folder for drawings (SVG) of the nodes in use and of the waits, which is created if missing
    #[arg(long, value_name = "DIR")]
    pub svg: Option<PathBuf>,
    /// Print the measures as JSON
    #[arg(long)]
    pub json: bool,
    /// Number of nodes [default: 1000, or the processors that the file's header names]
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub nodes: Option<u32>,
    /// Processors of the file that one node has; jobs get whole nodes [default: 1]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=4096))]
    pub cores_per_node: Option<u32>,
    /// Days in which jobs are submitted [default: 30, or the whole file]
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=3650))]
    pub days: Option<u32>,
    /// The seed of all that is generated: the same seed gives the same jobs [default: 1]
    #[arg(long)]
    pub seed: Option<u64>,
    /// Percentage of the nodes' time that the generated jobs ask for on average [default: 85]
    #[arg(long, value_name = "PERCENT", value_parser = clap::value_parser!(u32).range(1..=150))]
    pub load: Option<u32>,
    /// The walltimes that users give [default: `usual`, or those of the file]
    #[arg(long, value_enum)]
    pub estimates: Option<Estimates>,
}

/// What is replayed.
enum Source {
    /// Jobs for whole nodes that are all alike.
    Jobs(Workload),
    /// The work of a cluster.
    Cluster(Scenario),
}

/// Replays the trace, and prints the result. Returns whether the criterion of a named trace was met, or there is none.
pub fn run(options: &Options) -> Result<bool> {
    if options.list {
        print!("{}", list());
        return Ok(true);
    }
    match options.source()? {
        Source::Jobs(workload) if options.weights.is_empty() => {
            let why = "without --weights, jobs are replayed beside reference schedulers";
            ensure!(!options.json && options.svg.is_none(), "--json and --svg: {why}, whose table has no such form; give --weights FILE");
            beside_references(&workload)?;
            Ok(true)
        }
        Source::Jobs(workload) => options.compare(&Scenario::of(&workload)),
        Source::Cluster(scenario) => options.compare(&scenario),
    }
}

/// The traces with a name.
fn list() -> String {
    let about = |named: Named| format!("{}\n  {}\n  must hold: {}\n", named.name(), named.about(), named.criterion());
    Named::ALL.map(about).concat()
}

/// Simulates all schedulers on the same jobs.
fn beside_references(workload: &Workload) -> Result<()> {
    print!("{}", report::header(workload));
    let mut all = Vec::new();
    for scheduler in &mut schedulers(workload) {
        eprintln!("simulating {} ...", scheduler.name());
        let run = simulate(workload, scheduler.as_mut())?;
        all.push(Measures::of(workload, &run));
    }
    print!("{}", report::table(&all));
    Ok(())
}

/// The product's scheduler, and the references.
fn schedulers(workload: &Workload) -> Vec<Box<dyn Scheduler>> {
    let lattice = Lattice::new(&Site::alike(workload.nodes));
    vec![Box::new(lattice), Box::new(Fifo), Box::new(Easy), Box::new(Conservative::default())]
}

impl Options {
    /// Replays the scenario with its own weights and with those of each file. `false`: its criterion was not met.
    fn compare(&self, scenario: &Scenario) -> Result<bool> {
        ensure!(self.weights.len() <= FILES_MAX, "--weights: {} files; at most {FILES_MAX} are compared", self.weights.len());
        // All files are read first: nothing is replayed if one of them is refused.
        let mut sites = vec![(OWN.to_owned(), scenario.site.clone())];
        for file in &self.weights {
            let file = WeightFile::read(file)?;
            sites.push((file.name.clone(), file.apply(&scenario.site)?));
        }
        let mut all = Vec::with_capacity(sites.len());
        for (name, site) in &sites {
            eprintln!("replaying with weights: {name} ...");
            let course = course::run(scenario, site).with_context(|| format!("weights: {name}"))?;
            all.push(Outcome::of(name, scenario, &course));
        }
        if let Some(folder) = &self.svg {
            comparison::draw(folder, scenario, &all)?;
        }
        // The first replay has the trace's own weights.
        let own = Named::from_name(self.trace()).zip(all.first());
        let criterion = own.map(|(named, own)| Criterion { text: named.criterion(), met: named.is_met(own) });
        let met = criterion.as_ref().is_none_or(|criterion| criterion.met);
        if self.json {
            print!("{}", comparison::json(scenario, &all, criterion)?);
            return Ok(met);
        }
        print!("{}{}", comparison::header(scenario), comparison::table(&all));
        if let Some(Criterion { text, met }) = criterion {
            let verdict = if met { "met" } else { "MISSED" };
            print!("{}", report::wrapped(&format!("With its own weights must hold: {text}: {verdict}")));
        }
        Ok(met)
    }

    fn trace(&self) -> &str {
        self.trace.as_deref().unwrap_or_default()
    }

    fn seed(&self) -> u64 {
        self.seed.unwrap_or(SEED_DEFAULT)
    }

    fn source(&self) -> Result<Source> {
        if let Some(named) = Named::from_name(self.trace()) {
            self.refuse_options_for_jobs("a trace with a name has its own nodes and work")?;
            return Ok(Source::Cluster(named.generate(self.seed())));
        }
        if self.trace() == LUBLIN {
            return checked(self.generated()?);
        }
        ensure!(
            !self.trace().contains("://"),
            "{} is a URL, and only files are replayed: fetch the object with a client of the store, such as `aws s3 cp`; in \
             `file:///PATH` it is the file `/PATH`",
            self.trace()
        );
        let open = File::open(self.trace());
        let file = open.with_context(|| {
            let names = Named::ALL.map(Named::name).join(", ");
            format!("cannot read {}: give the path of a file, `{LUBLIN}`, or one of {names}", self.trace())
        })?;
        let mut file = BufReader::new(file);
        let begins = file.fill_buf().with_context(|| format!("cannot read {}", self.trace()))?;
        if begins.iter().find(|byte| !byte.is_ascii_whitespace()) == Some(&b'{') {
            self.refuse_options_for_jobs("a captured trace has its own nodes and work")?;
            ensure!(self.seed.is_none(), "--seed: nothing of a captured trace is generated");
            return Ok(Source::Cluster(trace::read(file, self.trace())?));
        }
        checked(self.of_swf(file)?)
    }

    fn refuse_options_for_jobs(&self, why: &str) -> Result<()> {
        let given = [
            ("--nodes", self.nodes.is_some()),
            ("--cores-per-node", self.cores_per_node.is_some()),
            ("--days", self.days.is_some()),
            ("--load", self.load.is_some()),
            ("--estimates", self.estimates.is_some()),
        ];
        if let Some((name, _)) = given.iter().find(|(_, is_given)| *is_given) {
            bail!("{name} is for files in the Standard Workload Format and for `{LUBLIN}`: {why}");
        }
        Ok(())
    }

    fn generated(&self) -> Result<Workload> {
        ensure!(self.cores_per_node.is_none(), "--cores-per-node applies only to files: the model's jobs ask for nodes");
        let scale = lublin::Scale {
            nodes: self.nodes.unwrap_or(NODES_DEFAULT),
            days: self.days.unwrap_or(DAYS_DEFAULT),
            load: f64::from(self.load.unwrap_or(LOAD_DEFAULT)) / 100.0,
        };
        ensure!(scale.nodes >= lublin::NODES_MIN, "the model is for {} nodes or more", lublin::NODES_MIN);
        Ok(lublin::generate(scale, self.estimates.unwrap_or(Estimates::Usual), self.seed()))
    }

    fn of_swf(&self, file: impl BufRead) -> Result<Workload> {
        ensure!(self.load.is_none(), "--load is for generated jobs alone: a file's jobs are submitted when it says");
        let trace = swf::read(file, self.trace())?;
        let cores_per_node = self.cores_per_node.unwrap_or(1);
        let nodes = match (self.nodes, trace.processors) {
            (Some(nodes), _) => nodes,
            (None, Some(processors)) => processors.div_ceil(cores_per_node),
            (None, None) => {
                bail!("{} has no header `; MaxProcs:` or `; MaxNodes:`: say how many nodes there are with --nodes", self.trace())
            }
        };
        Ok(workload::of_trace(self.trace(), &trace, nodes, cores_per_node, self.days, self.estimates, self.seed()))
    }
}

/// The jobs, if there are any.
fn checked(workload: Workload) -> Result<Source> {
    ensure!(!workload.jobs.is_empty(), "{} has no job that can run on {}", workload.name, counted(workload.nodes, "node"));
    Ok(Source::Jobs(workload))
}

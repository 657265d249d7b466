//! `lattice-lab replay`: the product's scheduler in virtual time, beside reference schedulers.
//!
//! ```text
//!   SWF file ([`swf`]) ──────┐                             ┌─▶ lattice ([`product`]): a View, and lattice_scheduler::plan
//!   model ([`lublin`],       ├─▶ [`workload`] ─▶ [`simulation`] ─▶ FIFO, EASY, conservative ([`references`])
//!     with [`estimates`]) ───┘                             └─▶ [`measures`] ─▶ [`report`]
//! ```
//!
//! Jobs begin and end in whole seconds, and all that happens within a second is one event. After each event the scheduler
//! decides what begins. Starting and ending work takes no time, and no node fails.

mod estimates;
mod lublin;
mod measures;
mod product;
mod references;
mod report;
mod simulation;
mod swf;
#[cfg(test)]
mod tests;
mod workload;

use anyhow::{Context, Result, bail, ensure};
use estimates::Estimates;
use measures::Measures;
use product::Lattice;
use references::{Conservative, Easy, Fifo};
use simulation::{Scheduler, simulate};
use std::fs::File;
use std::io::BufReader;
use workload::Workload;

/// The name of the generator.
const LUBLIN: &str = "lublin";
const NODES_DEFAULT: u32 = 1000;
const DAYS_DEFAULT: u32 = 30;
const LOAD_DEFAULT: u32 = 85;

/// The options of `replay`.
#[derive(Clone, Debug, clap::Args)]
pub struct Options {
    /// A file in the Standard Workload Format; or `lublin`, which generates jobs by the model of Lublin and Feitelson
    pub trace: String,
    /// Number of nodes [default: 1000, or the processors that the file's header names]
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub nodes: Option<u32>,
    /// Processors of the file that one node has; jobs get whole nodes [default: 1]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=4096))]
    pub cores_per_node: Option<u32>,
    /// Days in which jobs are submitted [default: 30, or the whole file]
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=3650))]
    pub days: Option<u32>,
    /// The seed of all that is generated: the same seed gives the same jobs
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// Percentage of the nodes' time that the generated jobs ask for on average [default: 85]
    #[arg(long, value_name = "PERCENT", value_parser = clap::value_parser!(u32).range(1..=150))]
    pub load: Option<u32>,
    /// The walltimes that users give [default: `usual`, or those of the file]
    #[arg(long, value_enum)]
    pub estimates: Option<Estimates>,
}

/// Simulates all schedulers on the same jobs, and prints what came of it.
pub fn run(options: &Options) -> Result<()> {
    let workload = options.workload()?;
    print!("{}", report::header(&workload));
    let mut all = Vec::new();
    for scheduler in &mut schedulers(&workload) {
        eprintln!("simulating {} ...", scheduler.name());
        let run = simulate(&workload, scheduler.as_mut())?;
        all.push(Measures::of(&workload, &run));
    }
    print!("{}", report::table(&all));
    Ok(())
}

/// The product's scheduler, and the references.
fn schedulers(workload: &Workload) -> Vec<Box<dyn Scheduler>> {
    vec![Box::new(Lattice::new(workload.nodes)), Box::new(Fifo), Box::new(Easy), Box::new(Conservative::default())]
}

impl Options {
    fn workload(&self) -> Result<Workload> {
        let workload = if self.trace == LUBLIN { self.generated()? } else { self.read_file()? };
        ensure!(!workload.jobs.is_empty(), "{} has no job that can run on {} nodes", workload.name, workload.nodes);
        Ok(workload)
    }

    fn generated(&self) -> Result<Workload> {
        ensure!(self.cores_per_node.is_none(), "--cores-per-node is for files alone: the model's jobs ask for nodes");
        let scale = lublin::Scale {
            nodes: self.nodes.unwrap_or(NODES_DEFAULT),
            days: self.days.unwrap_or(DAYS_DEFAULT),
            load: f64::from(self.load.unwrap_or(LOAD_DEFAULT)) / 100.0,
        };
        ensure!(scale.nodes >= lublin::NODES_MIN, "the model is for {} nodes or more", lublin::NODES_MIN);
        Ok(lublin::generate(scale, self.estimates.unwrap_or(Estimates::Usual), self.seed))
    }

    fn read_file(&self) -> Result<Workload> {
        ensure!(self.load.is_none(), "--load is for generated jobs alone: a file's jobs are submitted when it says");
        let open = File::open(&self.trace);
        let file = open.with_context(|| format!("cannot read {}: give the path of a file, or `{LUBLIN}`", self.trace))?;
        let trace = swf::read(BufReader::new(file), &self.trace)?;
        let cores_per_node = self.cores_per_node.unwrap_or(1);
        let nodes = match (self.nodes, trace.processors) {
            (Some(nodes), _) => nodes,
            (None, Some(processors)) => processors.div_ceil(cores_per_node),
            (None, None) => bail!("{} has no header `; MaxProcs:` or `; MaxNodes:`: say how many nodes there are with --nodes", self.trace),
        };
        Ok(workload::of_trace(&self.trace, &trace, nodes, cores_per_node, self.days, self.estimates, self.seed))
    }
}

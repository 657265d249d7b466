//! `lattice-lab bench NAME`: figures against peers or floors of the same run, interleaved, because a machine's mood
//! changes more between runs than between systems.

mod adoption;
mod busy;
mod checkpoint;
mod fence;
mod figures;
mod launch;
mod mpi;
mod nodes;
mod quorum;
mod runtime;
mod slurm;
mod subject;
mod telemetry;

use crate::cluster::Cluster;
use crate::interrupt;
use crate::lattice::{Lattice, text};
use crate::machine::is_without_journal;
use crate::process::until;
use anyhow::{Result, bail, ensure};
use std::path::{Path, PathBuf};
use std::time::Duration;

pub use adoption::adoption;
pub use busy::{Busy, busy};
pub use figures::{Figure, Report, Samples, Verdict};
pub use telemetry::{Load, PingPong};

/// Runs the benchmark and prints it; whether every target was met.
pub fn run(name: Name, dir: Option<&Path>, options: &Options, json: bool) -> Result<bool> {
    ensure!(options.megabytes.is_none() || name == Name::Checkpoint, "--megabytes is of `bench checkpoint` alone");
    ensure!(options.nodes.is_none() || matches!(name, Name::Nodes | Name::Mpi), "--nodes is of `bench nodes` and `bench mpi` alone");
    let report = match name {
        Name::Checkpoint => checkpoint::run(dir, options)?,
        Name::Launch => launch::run(dir, options)?,
        Name::Mpi => mpi::run(dir, options)?,
        Name::Nodes => nodes::run(dir, options)?,
        Name::Quorum => quorum::run(dir, options)?,
        Name::Runtime => runtime::run(dir, options)?,
        Name::Telemetry => telemetry::run(options)?,
    };
    if json {
        println!("{}", serde_json::to_string_pretty(&report)?);
    } else {
        print!("{report}");
    }
    Ok(report.met())
}

/// What can be measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Name {
    /// Work that is asked to save itself: until it notices, until it is saved, until its nodes are free
    Checkpoint,
    /// Starting work: inside an allocation, and a whole job
    Launch,
    /// MPI programs that begin and end, beside Hydra and mpirun; launches one after another, beside srun; fences of many agents
    Mpi,
    /// Many agents with a network each: what they cost at rest, and when a killed one is Degraded and Down
    Nodes,
    /// What agreement costs, beside etcd: commits, failover, heartbeats, a large state
    Quorum,
    /// What a node's runtime costs: images, programs, output, and an agent at rest
    Runtime,
    /// What counting work in the kernel costs it, telling the agent, and measuring a full node
    Telemetry,
}

/// How much is measured.
#[derive(Clone, Debug, clap::Args)]
pub struct Options {
    /// Rounds (not of `nodes`); each measures everything once, in an order of its own.
    #[arg(long, default_value_t = 15)]
    pub rounds: usize,
    /// Agents (of `nodes`, and of the fences of `mpi`) [default: 64]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(8..=64))]
    pub nodes: Option<u32>,
    /// Size of the large checkpoints, in millions of bytes (of `checkpoint`) [default: 1000]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub megabytes: Option<u32>,
    /// Do not build the binaries first.
    #[arg(long)]
    pub no_build: bool,
    /// Where agents keep their state (of `launch`, `mpi` and `runtime`) [default: with the rest]
    #[arg(long, value_name = "DIR")]
    pub agents_dir: Option<PathBuf>,
    /// Leave Slurm out (of `launch` and `mpi`) even where it is installed.
    #[arg(long)]
    pub no_slurm: bool,
}

impl Options {
    fn validate(&self) -> Result<()> {
        ensure!((3..=1000).contains(&self.rounds), "--rounds {}: 3 to 1000 are possible", self.rounds);
        Ok(())
    }
}

/// That agents' files are slow here, and why: a launch makes two for each rank.
fn slow_files(cluster: &Cluster) -> Option<String> {
    is_without_journal(&cluster.run_dir).then(|| {
        let at = cluster.run_dir.display();
        format!("agents' files are on an ext4 without a journal ({at}), where each new one costs more the more were deleted lately: see --agents-dir")
    })
}

/// An allocation of so many nodes that is held while things are measured in it.
fn hold(lattice: &Lattice, nodes: u32) -> Result<String> {
    let nodes = nodes.to_string();
    let held =
        lattice.ok(&["submit", "-o", "name", "--name", "held", "--nodes", &nodes, "--walltime", "1h", "--", "/bin/sleep", "3600"])?;
    let held = held.trim().to_owned();
    wait_running(lattice, &held)?;
    Ok(held)
}

fn wait_running(lattice: &Lattice, id: &str) -> Result<()> {
    let mut now = serde_json::Value::Null;
    let running = until(Duration::from_secs(15), || {
        now = lattice.allocation(id).unwrap_or_default();
        text(&now, "state") == "Running" || interrupt::came().is_some()
    });
    interrupt::check()?;
    if running { Ok(()) } else { bail!("the allocation that is held for the bench does not run: {now}") }
}

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
mod options;
mod quorum;
mod runtime;
mod slurm;
mod subject;
mod surroundings;
mod telemetry;

use anyhow::{Result, ensure};
use std::path::Path;

pub use adoption::adoption;
pub use busy::{Busy, busy};
pub use figures::{Figure, Report, Samples, Verdict};
pub use options::Options;
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

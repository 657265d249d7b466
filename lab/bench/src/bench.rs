//! `lattice-lab bench NAME`: figures compared with peers or lower bounds in the same run, interleaved, because a
//! machine's speed changes more between runs than between systems.

mod adoption;
mod api;
mod busy;
mod checkpoint;
mod commands;
mod dags;
mod fence;
mod figures;
mod history;
mod launch;
mod ledger;
mod metrics;
mod mpi;
mod nodes;
mod options;
mod queue;
mod quorum;
mod runtime;
mod scale;
mod scheduler;
mod slurm;
mod subject;
mod surroundings;
mod tasks;
mod telemetry;
mod turns;

use anyhow::{Result, ensure};
use std::path::Path;

pub use adoption::adoption;
pub use busy::{Busy, busy};
pub use figures::{Figure, Report, Samples, Verdict};
pub use options::Options;
pub use telemetry::{Load, PingPong};

/// Runs the benchmark and prints it; returns whether every target was met.
pub fn run(name: Name, dir: Option<&Path>, options: &Options, json: bool) -> Result<bool> {
    ensure!(options.megabytes.is_none() || name == Name::Checkpoint, "--megabytes is of `bench checkpoint` alone");
    let has_nodes = matches!(name, Name::Nodes | Name::Mpi | Name::Scale);
    ensure!(options.nodes.is_empty() || has_nodes, "--nodes is of `bench nodes`, `bench mpi` and `bench scale` alone");
    let is_default = options.scale == options::ScaleOptions::default();
    ensure!(is_default || name == Name::Scale, "--followers, --wide, --storm, --changes and --seconds are of `bench scale` alone");
    let draws = matches!(name, Name::Scale | Name::Scheduler);
    ensure!(!options.million || name == Name::Tasks, "--million is of `bench tasks` alone");
    ensure!(options.svg.is_none() || draws, "--svg is of `bench scale` and `bench scheduler` alone");
    let report = match name {
        Name::Api => api::run(dir, options)?,
        Name::Checkpoint => checkpoint::run(dir, options)?,
        Name::Commands => commands::run(dir, options)?,
        Name::Dags => dags::run(dir, options)?,
        Name::History => history::run(dir, options)?,
        Name::Launch => launch::run(dir, options)?,
        Name::Ledger => ledger::run(options)?,
        Name::Mpi => mpi::run(dir, options)?,
        Name::Nodes => nodes::run(dir, options)?,
        Name::Queue => queue::run(dir, options)?,
        Name::Quorum => quorum::run(dir, options)?,
        Name::Runtime => runtime::run(dir, options)?,
        Name::Scale => scale::run(dir, options)?,
        Name::Scheduler => scheduler::run(options)?,
        Name::Tasks => tasks::run(dir, options)?,
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
    /// The API on the network: answers, submissions and followers over REST, beside the socket
    Api,
    /// Checkpoints: how long until work notices the request, has saved, and its nodes are free
    Checkpoint,
    /// Slurm's commands: sbatch, squeue over 10,000 jobs, and srun, compared with Slurm
    Commands,
    /// DAGs: allocations in chains and layers compared with the same without edges, and how soon a step follows another
    Dags,
    /// Questions about ended work, from a SQLite store with a million records, in this process
    History,
    /// Starting work: inside an allocation, and a whole job
    Launch,
    /// The ledger: what applying each kind of command costs at 10,000 nodes and 100,000 allocations, in this process
    Ledger,
    /// MPI programs compared with Hydra and mpirun; launches one after another compared with srun; fences of many
    /// agents
    Mpi,
    /// Many agents, each with a network: their cost at rest, and how soon a killed one is Degraded and Down
    Nodes,
    /// A queue of mixed jobs compared with Slurm's backfill, and jobs finished a second with up to 2,000 in the queue
    Queue,
    /// The cost of agreement compared with etcd: commits, failover, heartbeats, a large state
    Quorum,
    /// The cost of a node's runtime: images, programs, output, and an agent at rest
    Runtime,
    /// What members and agents cost as the cluster grows, with simulated agents: the same changes a second; or wide
    /// allocations (--wide), and members killed under all sessions (--storm)
    Scale,
    /// The scheduler: what a plan costs at 10,000 nodes, with 1,000 and with 100,000 allocations that wait, in this process
    Scheduler,
    /// Task groups: tasks finished a second compared with HyperQueue; or a group of a million (--million)
    Tasks,
    /// The cost of counting in the kernel, of reporting to the agent, and of measuring a full node
    Telemetry,
}

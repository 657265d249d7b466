//! How much is measured.

use anyhow::{Result, bail, ensure};
use lattice_lab::up::Options as UpOptions;
use std::path::{Path, PathBuf};

/// The number of rounds if none was given; `dags`, `queue` and `tasks` have their own.
const ROUNDS: usize = 15;

/// How much is measured.
#[derive(Clone, Debug, clap::Args)]
pub struct Options {
    /// Number of rounds (`nodes` and `scale` have none); each measures everything once, in a different order [default:
    /// 3 for `queue`, 5 for `dags` and `tasks` (3 with --million), 15 for the others]
    #[arg(long)]
    pub rounds: Option<usize>,
    /// Number of agents, 8 to 64 (for `nodes`, and for the fences of `mpi`) [default: 64]; or the sizes, smallest first
    /// (for `scale`) [default: 100,1000,3000,10000]
    #[arg(long, value_name = "N", value_delimiter = ',')]
    pub nodes: Vec<u32>,
    /// Size of the large checkpoints in megabytes (for `checkpoint`) [default: 1000]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub megabytes: Option<u32>,
    /// Do not build the binaries first.
    #[arg(long)]
    pub no_build: bool,
    /// The folder for the agents' state (for `api`, `commands`, `dags`, `launch`, `mpi`, `queue`, `runtime` and `tasks`) [default: in
    /// the cluster's folder]
    #[arg(long, value_name = "DIR")]
    pub agents_dir: Option<PathBuf>,
    /// Measure a group of a million tasks, in place of the comparison with HyperQueue (for `tasks`).
    #[arg(long)]
    pub million: bool,
    /// Leave Slurm out even if it is installed (for `commands`, `launch`, `mpi` and `queue`).
    #[arg(long)]
    pub no_slurm: bool,
    /// The folder for the curves as SVG, which is created if missing (for `scale` and `scheduler`) [default: none are
    /// drawn]
    #[arg(long, value_name = "DIR")]
    pub svg: Option<PathBuf>,
    #[command(flatten)]
    pub scale: ScaleOptions,
}

/// What `scale` measures, and its load.
#[derive(Clone, Debug, Default, PartialEq, Eq, clap::Args)]
pub struct ScaleOptions {
    /// How many simulated agents have role `api` and follow all allocations; the others have role `node` (for `scale`)
    /// [default: 16]
    #[arg(long, value_name = "N")]
    pub followers: Option<u32>,
    /// Measure allocations of all nodes, and a hundred of a tenth of the nodes at once, in place of the constant load
    /// (for `scale`)
    #[arg(long, conflicts_with_all = ["changes", "seconds"])]
    pub wide: bool,
    /// Measure the return of all sessions after all members were killed, and a restart of one member after the other,
    /// in place of the constant load (for `scale`)
    #[arg(long, conflicts_with_all = ["changes", "seconds"])]
    pub storm: bool,
    /// Changes of allocations a second (for `scale`) [default: 50]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(5..=5000))]
    pub changes: Option<u32>,
    /// Seconds that are measured at each size (for `scale`) [default: 30]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(2..=3600))]
    pub seconds: Option<u32>,
}

impl Options {
    /// The number of agents of `nodes` and `mpi`, if it was given.
    pub(super) fn agents(&self) -> Result<Option<u32>> {
        match self.nodes[..] {
            [] => Ok(None),
            [nodes @ 8..=64] => Ok(Some(nodes)),
            _ => bail!("--nodes {:?}: one number from 8 to 64 is possible", self.nodes),
        }
    }

    /// How the cluster of most benches is made: its binaries are built already, and its records are signed and archived as at a site.
    pub(super) fn cluster_options(&self, nodes: u32, members: u32, dir: &Path) -> UpOptions {
        UpOptions { build: false, agents_dir: self.agents_dir.clone(), grace_seconds: 2, ..UpOptions::new(nodes, members, dir) }
            .with_audit_as_documented()
    }

    /// The number of rounds of most benches.
    pub(super) fn rounds(&self) -> usize {
        self.rounds.unwrap_or(ROUNDS)
    }

    pub(super) fn validate(&self) -> Result<()> {
        if let Some(rounds) = self.rounds {
            ensure!((3..=1000).contains(&rounds), "--rounds {rounds}: 3 to 1000 are possible");
        }
        Ok(())
    }
}

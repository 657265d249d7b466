//! How much is measured.

use anyhow::{Result, ensure};
use std::path::PathBuf;

/// How much is measured.
#[derive(Clone, Debug, clap::Args)]
pub struct Options {
    /// Number of rounds (`nodes` has none); each measures everything once, in a different order.
    #[arg(long, default_value_t = 15)]
    pub rounds: usize,
    /// Number of agents (for `nodes`, and for the fences of `mpi`) [default: 64]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(8..=64))]
    pub nodes: Option<u32>,
    /// Size of the large checkpoints in megabytes (for `checkpoint`) [default: 1000]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub megabytes: Option<u32>,
    /// Do not build the binaries first.
    #[arg(long)]
    pub no_build: bool,
    /// The folder for the agents' state (for `launch`, `mpi` and `runtime`) [default: in the cluster's folder]
    #[arg(long, value_name = "DIR")]
    pub agents_dir: Option<PathBuf>,
    /// Leave Slurm out even if it is installed (for `launch` and `mpi`).
    #[arg(long)]
    pub no_slurm: bool,
}

impl Options {
    pub(super) fn validate(&self) -> Result<()> {
        ensure!((3..=1000).contains(&self.rounds), "--rounds {}: 3 to 1000 are possible", self.rounds);
        Ok(())
    }
}

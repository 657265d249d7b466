//! `lattice checkpoint …`.

use clap::{Args, Subcommand};
use std::time::Duration;

const CHECKPOINT_EXAMPLES: &str = "Examples:
  lattice submit --checkpoint=signal -- ./train
      work that saves itself when it gets SIGUSR1; --checkpoint-signal names another
  lattice submit --checkpoint=signal --checkpoint-every=auto -- ./train
      it is asked as well when that is worth more than it costs; `lattice explain` says why or why not
  lattice checkpoint create 1f0c9a4e --deadline 5m
      ask it now, and wait until the checkpoint is whole in the store
  lattice checkpoint list 1f0c9a4e; lattice checkpoint verify 1f0c9a4e
      what there is; read the last one and compare it with its manifest

What the application has to do is in docs/user.md (\"Checkpoints\"). When it runs again, it finds the files of the last whole checkpoint
in $LATTICE_RESTORE_FROM.";

#[derive(Args)]
#[command(after_help = CHECKPOINT_EXAMPLES)]
pub struct Checkpoint {
    #[command(subcommand)]
    pub what: CheckpointCommand,
}

#[derive(Subcommand)]
pub enum CheckpointCommand {
    /// Ask an allocation to save itself, and wait until that is whole
    Create(CheckpointCreate),
    /// The checkpoints of an allocation
    List(CheckpointList),
    /// One checkpoint and its files
    Show(CheckpointOne),
    /// Read a checkpoint and compare it with its manifest; says which files are not as they were saved
    Verify(CheckpointOne),
    /// Remove checkpoints
    Rm(CheckpointRemove),
}

#[derive(Args)]
pub struct CheckpointCreate {
    /// The allocation [default: the one that this process runs in]
    pub id: Option<String>,
    /// How long it may take: 30s, 5m; then half as long again, once [default: 10m]
    #[arg(long, value_name = "TIME", value_parser = super::ttl)]
    pub deadline: Option<Duration>,
}

#[derive(Args)]
pub struct CheckpointList {
    /// The allocation
    pub id: String,
}

#[derive(Args)]
pub struct CheckpointOne {
    /// The allocation
    pub id: String,
    /// The checkpoint: its id, or the beginning of it [default: the last]
    pub checkpoint: Option<String>,
}

#[derive(Args)]
pub struct CheckpointRemove {
    /// The allocation
    pub id: String,
    /// The checkpoints: their ids, or the beginnings of them
    #[arg(required = true)]
    pub checkpoints: Vec<String>,
}

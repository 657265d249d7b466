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
  lattice submit --checkpoint=shmem -- ./train; lattice submit --checkpoint=grpc -- ./train
      work that is asked through memory that it shares with the agent, or in a call in which it waits
  lattice checkpoint list 1f0c9a4e; lattice checkpoint verify 1f0c9a4e
      what there is; read the last one and compare it with its manifest

What the application has to do is in docs/reference/checkpoint-protocol.md. When it runs again, it finds the files of the last whole checkpoint
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
    /// For work submitted with --checkpoint=grpc: wait to be asked; prints a token and the directory to save into
    Await,
    /// For such work: say how far saving is
    Progress(CheckpointProgress),
    /// For such work: ask to be asked again later
    Defer(CheckpointDefer),
    /// For such work: it cannot be saved, and why
    Fail(CheckpointFail),
    /// For such work: all of this node is saved
    Done(CheckpointDone),
}

#[derive(Args)]
pub struct CheckpointProgress {
    /// What is asked for
    pub token: String,
    /// Of 100
    #[arg(value_parser = clap::value_parser!(u32).range(0..=100))]
    pub percent: u32,
    /// How long it will take yet: 30s, 5m
    #[arg(long, value_name = "TIME", value_parser = super::ttl::ttl)]
    pub left: Option<Duration>,
}

#[derive(Args)]
pub struct CheckpointDefer {
    /// What is asked for
    pub token: String,
    /// How long: 30s, 2m; five minutes at most, all deferrals of one checkpoint together
    #[arg(value_parser = super::ttl::ttl)]
    pub time: Duration,
}

#[derive(Args)]
pub struct CheckpointFail {
    /// What is asked for
    pub token: String,
    /// Why it cannot be saved
    pub why: String,
}

#[derive(Args)]
pub struct CheckpointDone {
    /// What is asked for
    pub token: String,
    /// The step that was saved, the same on all nodes
    #[arg(long, value_name = "N")]
    pub step: Option<u64>,
    /// The time of what is simulated, in seconds: 12.5
    #[arg(long, value_name = "SECONDS")]
    pub time: Option<f64>,
    /// How many files there are; compared with what lies there
    #[arg(long, value_name = "N")]
    pub files: Option<u64>,
    /// How many bytes they have; compared with what lies there
    #[arg(long, value_name = "N")]
    pub bytes: Option<u64>,
    /// One of the files, as often as there are files; all are compared with what lies there
    #[arg(long = "file", value_name = "BYTES:PATH", value_parser = saved_file)]
    pub list: Vec<(u64, String)>,
}

fn saved_file(text: &str) -> Result<(u64, String), String> {
    let (bytes, path) = text.split_once(':').ok_or("a file is told as 4096:state/weights")?;
    let bytes = bytes.parse().map_err(|e| format!("{bytes:?}: {e}"))?;
    if path.is_empty() { Err("a file is told as 4096:state/weights".to_owned()) } else { Ok((bytes, path.to_owned())) }
}

#[derive(Args)]
pub struct CheckpointCreate {
    /// The allocation [default: the one that this process runs in]
    pub id: Option<String>,
    /// How long it may take: 30s, 5m; then half as long again, once [default: 10m]
    #[arg(long, value_name = "TIME", value_parser = super::ttl::ttl)]
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

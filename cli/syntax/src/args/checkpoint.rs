//! `lattice checkpoint …`.

use clap::{Args, Subcommand};
use std::num::ParseIntError;
use std::time::Duration;
use thiserror::Error;

const CHECKPOINT_EXAMPLES: &str = "Examples:
  lattice submit --checkpoint=signal -- ./train
      work that saves its state when it gets SIGUSR1 (--checkpoint-signal:
      another)
  lattice submit --checkpoint=shmem -- ./train
  lattice submit --checkpoint=grpc -- ./train
      work that is asked through memory that it shares with the agent, or in a
      call in which it waits
  lattice submit --checkpoint=signal --checkpoint-every=auto -- ./train
      it is also asked whenever that is worth more than it costs; `lattice
      explain` says why it was asked or not
  lattice checkpoint create 1f0c9a4e --deadline 5m
      ask it now, and wait until the whole checkpoint is in the store
  lattice checkpoint list 1f0c9a4e
      the checkpoints that it has
  lattice checkpoint verify 1f0c9a4e
      read the last one, and compare it with its manifest

docs/reference/checkpoint-protocol.md says what the application has to do. When
it runs again, it finds the files of the last whole checkpoint in
$LATTICE_RESTORE_FROM.";

#[derive(Args)]
#[command(after_help = CHECKPOINT_EXAMPLES)]
pub struct Checkpoint {
    #[command(subcommand)]
    pub command: CheckpointCommand,
}

#[derive(Subcommand)]
pub enum CheckpointCommand {
    /// Ask an allocation to save its state, and wait until the whole checkpoint is in the store
    Create(CheckpointCreate),
    /// List the checkpoints of an allocation
    List(CheckpointList),
    /// Show one checkpoint and its files
    Show(CheckpointOne),
    /// Read a checkpoint, and name the files that are not as they were saved
    Verify(CheckpointOne),
    /// Remove checkpoints
    Rm(CheckpointRemove),
    /// For work with --checkpoint=grpc: wait until it is asked to save; prints a token and the directory to save into
    Await,
    /// For work with --checkpoint=grpc: report how far saving is
    Progress(CheckpointProgress),
    /// For work with --checkpoint=grpc: defer the request
    Defer(CheckpointDefer),
    /// For work with --checkpoint=grpc: report that the state cannot be saved, and why
    Fail(CheckpointFail),
    /// For work with --checkpoint=grpc: report that this node has saved all of its state
    Done(CheckpointDone),
}

#[derive(Args)]
pub struct CheckpointProgress {
    /// The token that `await` printed
    pub token: String,
    /// How much is saved, in percent
    #[arg(value_parser = clap::value_parser!(u32).range(0..=100))]
    pub percent: u32,
    /// How long saving will still take: 30s, 5m (a bare number is seconds)
    #[arg(long, value_name = "TIME", value_parser = super::ttl::parse_ttl)]
    pub left: Option<Duration>,
}

#[derive(Args)]
pub struct CheckpointDefer {
    /// The token that `await` printed
    pub token: String,
    /// For how long: 30s, 2m (a bare number is seconds); at most five minutes for all deferrals of one checkpoint
    #[arg(value_parser = super::ttl::parse_ttl)]
    pub time: Duration,
}

#[derive(Args)]
pub struct CheckpointFail {
    /// The token that `await` printed
    pub token: String,
    /// Why the state cannot be saved
    pub why: String,
}

#[derive(Args)]
pub struct CheckpointDone {
    /// The token that `await` printed
    pub token: String,
    /// The step that was saved, the same on all nodes
    #[arg(long, value_name = "N")]
    pub step: Option<u64>,
    /// The simulated time, in seconds, such as 12.5
    #[arg(long, value_name = "SECONDS")]
    pub time: Option<f64>,
    /// How many files were saved; compared with what is in the directory
    #[arg(long, value_name = "N")]
    pub files: Option<u64>,
    /// How many bytes they have; compared with what is in the directory
    #[arg(long, value_name = "N")]
    pub bytes: Option<u64>,
    /// A file that was saved; give it once for every file: all are compared with what is in the directory
    #[arg(long = "file", value_name = "BYTES:PATH", value_parser = parse_saved_file)]
    pub listed: Vec<(u64, String)>,
}

/// Why a saved file is refused.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
enum SavedFileError {
    #[error("write a file as BYTES:PATH, such as 4096:state/weights")]
    Form,
    // The parser shows this text alone, so the cause is in it.
    #[error("{0:?}: {1}")]
    Bytes(String, ParseIntError),
}

fn parse_saved_file(text: &str) -> Result<(u64, String), SavedFileError> {
    let (bytes, path) = text.split_once(':').ok_or(SavedFileError::Form)?;
    let bytes = bytes.parse().map_err(|error| SavedFileError::Bytes(bytes.to_owned(), error))?;
    if path.is_empty() { Err(SavedFileError::Form) } else { Ok((bytes, path.to_owned())) }
}

#[derive(Args)]
pub struct CheckpointCreate {
    /// The allocation [default: the one that this process runs in]
    pub id: Option<String>,
    /// How long it may take, such as 30s or 5m (a bare number is seconds); a late checkpoint gets half of that in
    /// addition, once [default: 10m]
    #[arg(long, value_name = "TIME", value_parser = super::ttl::parse_save_deadline)]
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

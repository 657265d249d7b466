//! `lattice admin trace …`.

use clap::{Args, Subcommand};
use std::path::PathBuf;

/// The most days of a trace.
const DAYS_MAX: i64 = 366;

#[derive(Args)]
pub struct Trace {
    #[command(subcommand)]
    pub command: TraceCommand,
}

#[derive(Subcommand)]
pub enum TraceCommand {
    /// Write what was submitted, when it ended, and the nodes, tenants and vClusters, for `lattice-lab replay`
    Capture(CaptureTrace),
}

const CAPTURE_EXAMPLES: &str = "Examples:
  lattice admin trace capture --days 7
      into lattice-trace-DAY.jsonl in this directory
  lattice admin trace capture --days 1 --file - | gzip > trace.jsonl.gz
  lattice admin trace capture --days 7 --store
      into the object store of the agent; its URL is printed

A trace has no names of users, programs or environments. The quorum forgets
ended work after a time, or earlier where much work ends (--ended-kept and
--ended-memory of `lattice admin limits`). The message says from when on the
trace is complete.";

#[derive(Args)]
#[command(after_help = CAPTURE_EXAMPLES)]
pub struct CaptureTrace {
    /// How many days to look back from now
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=DAYS_MAX))]
    pub days: u32,
    /// The file to write, which must not exist; `-`: stdout [default: lattice-trace-DAY.jsonl in this directory]
    #[arg(long, value_name = "FILE")]
    pub file: Option<PathBuf>,
    /// Write no file: the agent puts the trace into its object store (logs.store), below `traces/`
    #[arg(long, conflicts_with = "file")]
    pub store: bool,
}

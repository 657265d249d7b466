//! `lattice dag …`.

use clap::{Args, Subcommand};
use lattice_api::allocation::state_from_name;
use lattice_model::AllocationState;
use std::ffi::OsString;

const DAG_EXAMPLES: &str = "Examples:
  lattice dag submit workflow.yaml
      all steps of the file at once, or none
  lattice dag submit --dry-run workflow.yaml
      check the file, and show the graph
  lattice dag status 1f0c --graph
      the states of its steps, drawn as a graph

A file:
  name: training
  allocations:
    - name: preprocess
      entrypoint: \"python preprocess.py\"
      nodes: 2
      walltime: 2h
    - name: train
      entrypoint: \"python train.py\"
      nodes: 64
      depends_on:
        - preprocess: success
    - name: notify
      script: notify.sh
      depends_on:
        - train: failure

What a step depends on: NAME (its success), NAME: CONDITION, or singleton; the
conditions are those of `lattice submit --depends-on`.

A step has a name (or id), an entrypoint (a program and its arguments) or a
script, and options of `lattice submit` under their long names; --hold, --wait
and --dry-run are not among them.";

#[derive(Args)]
#[command(after_help = DAG_EXAMPLES)]
pub struct Dag {
    #[command(subcommand)]
    pub command: DagCommand,
}

#[derive(Subcommand)]
pub enum DagCommand {
    /// Submit the steps of a file, all of them or none
    Submit(SubmitDag),
    /// List your DAGs, the newest first
    List(ListDags),
    /// Show the state of a DAG, and of its steps
    Status(DagStatus),
    /// Show the steps of a DAG, and what each depends on
    Show(ShowDag),
    /// End all allocations of DAGs
    Cancel(CancelDags),
}

#[derive(Args)]
pub struct SubmitDag {
    /// The file, in YAML; - reads it from standard input
    pub file: OsString,
    /// Check the file and show the graph; submit nothing
    #[arg(long)]
    pub dry_run: bool,
}

#[derive(Args)]
pub struct ListDags {
    /// DAGs of all users, not only yours; the site may hide them
    #[arg(short, long)]
    pub all: bool,
    /// Only this user's
    #[arg(short, long, value_name = "USER")]
    pub user: Option<String>,
    /// Only those in these states (running, completed, failed, cancelled)
    #[arg(long, value_delimiter = ',', value_parser = state_from_name)]
    pub state: Vec<AllocationState>,
    /// At most this many
    #[arg(long, value_name = "N", default_value = "100", value_parser = clap::value_parser!(u32).range(1..))]
    pub limit: u32,
}

#[derive(Args)]
pub struct DagStatus {
    /// The DAG: its id, or the beginning of it
    pub id: String,
    /// Draw the graph; one that is too wide is listed by level
    #[arg(long)]
    pub graph: bool,
    /// Show the state that one member of the quorum has, which may be old; this works even without a majority
    #[arg(long)]
    pub stale: bool,
}

#[derive(Args)]
pub struct ShowDag {
    /// The DAG: its id, or the beginning of it
    pub id: String,
    /// Draw the graph; one that is too wide is listed by level. `-o dot` writes it for Graphviz
    #[arg(long)]
    pub graph: bool,
    /// Set by `-o dot`.
    #[arg(skip)]
    pub dot: bool,
}

#[derive(Args)]
pub struct CancelDags {
    /// The DAGs: their ids, or the beginnings of these
    #[arg(required = true)]
    pub ids: Vec<String>,
}

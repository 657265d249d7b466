//! `lattice retry`.

use crate::tasks::parse_group_key;
use clap::Args;
use lattice_model::TaskIndices;

const RETRY_HELP: &str = "Examples:
  lattice retry 1f0c9a4e
      the tasks that failed run again, as a new task group with the same
      indices, whose id is printed
  lattice retry @last --tasks=10-20,30
      these tasks, which must have ended

The new task group has the script and the options of the first one, which is not
changed. `lattice status ID --tasks` shows which tasks failed.";

#[derive(Args)]
#[command(after_help = RETRY_HELP)]
pub struct Retry {
    /// The task group: its id, the beginning of it, or @last
    #[arg(value_parser = parse_group_key)]
    pub id: String,
    /// All tasks that failed: the default
    #[arg(long)]
    pub failed: bool,
    /// These tasks
    #[arg(long, value_name = "LIST", value_parser = TaskIndices::parse, conflicts_with = "failed")]
    pub tasks: Option<TaskIndices>,
}

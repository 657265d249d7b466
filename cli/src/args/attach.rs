//! `lattice attach`.

use clap::Args;

const ATTACH_EXAMPLES: &str = "Examples:
  lattice attach 1f0c9a4e
      your shell on the allocation's first node, among its processes, with its image and its environment
  lattice attach 1f0c9a4e --node n7 -- htop
      a program of your choice on one of its nodes

The terminal closes with the allocation; its own end does not touch the allocation. Exit codes: the program's own
(128 + signal), 125 when no terminal could be opened, 5 when the agent or the node went away under it.";

#[derive(Args)]
#[command(after_help = ATTACH_EXAMPLES, override_usage = "lattice attach [OPTIONS] ID [-- COMMAND [ARGS...]]")]
pub struct Attach {
    /// The allocation
    pub id: String,
    /// On this one of its nodes [default: its first]
    #[arg(long, value_name = "NODE")]
    pub node: Option<String>,
    #[arg(long = "command", value_name = "LINE", hide = true, conflicts_with = "command")]
    pub command_line: Option<String>,
    /// The program and its arguments [default: your shell]
    #[arg(last = true, value_name = "COMMAND")]
    pub command: Vec<String>,
}

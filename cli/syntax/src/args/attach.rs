//! `lattice attach`.

use clap::Args;

const ATTACH_EXAMPLES: &str = "Examples:
  lattice attach 1f0c9a4e
      your shell on the allocation's first node, in its image and environment
  lattice attach 1f0c9a4e --node n7 -- htop
      a program of your choice on one of its nodes

The terminal closes when the allocation ends; the allocation continues when the
terminal closes. Exit codes: the program's own (128 + signal); 125 when no
terminal could be opened; 5 when the agent or the node was lost meanwhile.";

#[derive(Args)]
#[command(after_help = ATTACH_EXAMPLES, override_usage = "lattice attach [OPTIONS] ID [-- COMMAND [ARGS...]]")]
pub struct Attach {
    /// The allocation
    pub id: String,
    /// The node to attach to [default: the allocation's first]
    #[arg(long, value_name = "NODE")]
    pub node: Option<String>,
    #[arg(long = "command", value_name = "LINE", hide = true, conflicts_with = "command")]
    pub command_line: Option<String>,
    /// The program and its arguments [default: your shell]
    #[arg(last = true, value_name = "COMMAND")]
    pub command: Vec<String>,
}

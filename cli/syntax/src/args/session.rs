//! `lattice session`.

use crate::flags::SubmitFlags;
use clap::{Args, Subcommand};

const SESSION_EXAMPLES: &str = "Examples:
  lattice session --walltime 4h
      your shell on a node of your own, as soon as there is one
  lattice session -N 2 --walltime 8h --uenv ./env.sqfs -C gpu_type=GH200
      a shell on the first of two such nodes, in an image; `lattice launch` in
      it uses both
  lattice session list
      the sessions that are open
  lattice session delete 1f0c9a4e
      end one, named by its id or by that of its allocation

When the shell ends, the nodes are given back. While the session waits for its
nodes, Ctrl-C or hanging up cancels it. When the connection is lost later, the
programs in the terminal are hung up (use tmux or screen), and the allocation
continues until its walltime ends: `lattice attach ID` opens a new shell, and
`lattice session delete ID` ends it.";

#[derive(Args)]
#[command(after_help = SESSION_EXAMPLES, args_conflicts_with_subcommands = true)]
pub struct InteractiveSession {
    #[command(subcommand)]
    pub command: Option<SessionCommand>,
    #[command(flatten)]
    pub flags: SubmitFlags,
}

#[derive(Subcommand)]
pub enum SessionCommand {
    /// List your open sessions
    List(SessionList),
    /// End sessions, and give back their nodes
    Delete(SessionDelete),
}

#[derive(Args)]
pub struct SessionList {
    /// Sessions of all users, not only yours
    #[arg(short, long)]
    pub all: bool,
}

#[derive(Args)]
pub struct SessionDelete {
    /// The session: its id or that of its allocation, the beginning of one, or @last
    pub id: String,
}

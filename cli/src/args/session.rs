//! `lattice session`.

use crate::flags::SubmitFlags;
use clap::{Args, Subcommand};

const SESSION_EXAMPLES: &str = "Examples:
  lattice session --walltime 4h
      your shell on a node of your own, once there is one
  lattice session -N 2 --walltime 8h --uenv ./env.sqfs --constraint gpu_type=GH200 --vcluster interactive
      on the first of two such nodes, in an image; `lattice launch` in it uses both
  lattice session list; lattice session delete 1f0c9a4e
      those that are open; end one, by its id or its allocation's

When the shell ends, the nodes are given back. When the connection is lost instead, what ran in the terminal is hung up
(use tmux or screen) and the allocation goes on until its walltime: `lattice attach ID` opens a fresh shell, `lattice session
delete ID` ends it. While it still waits for its nodes, Ctrl-C or hanging up cancels it.";

#[derive(Args)]
#[command(after_help = SESSION_EXAMPLES, args_conflicts_with_subcommands = true)]
pub struct InteractiveSession {
    #[command(subcommand)]
    pub what: Option<SessionCommand>,
    #[command(flatten)]
    pub flags: SubmitFlags,
}

#[derive(Subcommand)]
pub enum SessionCommand {
    /// Your sessions that are open
    List(SessionList),
    /// End sessions, and give back their nodes
    Delete(SessionDelete),
}

#[derive(Args)]
pub struct SessionList {
    /// Everybody's, not only your own
    #[arg(short, long)]
    pub all: bool,
}

#[derive(Args)]
pub struct SessionDelete {
    /// The session: its id or its allocation's, the beginning of one, or @last
    pub id: String,
}

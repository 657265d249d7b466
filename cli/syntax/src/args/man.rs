//! `lattice man`.

use clap::Args;
use std::path::PathBuf;

const MAN_EXAMPLES: &str = "Examples:
  lattice man | man -l -
  lattice man --dir /usr/local/share/man/man1
      lattice.1, lattice-submit.1, lattice-node-drain.1, ...";

#[derive(Args)]
#[command(after_help = MAN_EXAMPLES)]
pub struct Man {
    /// Write the page of each command into this directory, which must exist [default: print the page of lattice]
    #[arg(long, value_name = "DIR")]
    pub dir: Option<PathBuf>,
}

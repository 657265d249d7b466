//! `lattice compat`.

use clap::{Args, Subcommand};
use std::path::PathBuf;

const COMPAT_EXAMPLES: &str = "Examples:
  lattice compat install --dir /usr/local/bin
      sbatch, srun, salloc, squeue, scancel, sinfo, scontrol, sacct, sstat,
      sprio, sshare, sattach, sbcast and sacctmgr, as links to this program
  lattice compat uninstall --dir /usr/local/bin
      removes those links

Called by one of these names, lattice behaves as that command of Slurm. The
names of a site (partitions, accounts, QOS) are in
/etc/lattice/lattice-compat.yaml, or in the file that LATTICE_COMPAT names.";

/// Commands under Slurm's names.
#[derive(Args)]
#[command(after_help = COMPAT_EXAMPLES)]
pub struct CompatCommands {
    #[command(subcommand)]
    pub command: CompatCommand,
}

#[derive(Subcommand)]
pub enum CompatCommand {
    /// Make links with the names of Slurm's commands
    Install(Install),
    /// Remove these links
    Uninstall(Uninstall),
}

#[derive(Args)]
pub struct Install {
    /// The directory for the links
    #[arg(long, value_name = "DIR")]
    pub dir: PathBuf,
    /// Replace files that have these names, such as Slurm's own commands
    #[arg(long)]
    pub force: bool,
}

#[derive(Args)]
pub struct Uninstall {
    /// The directory of the links
    #[arg(long, value_name = "DIR")]
    pub dir: PathBuf,
}

//! The names of Slurm's commands, and the version that they print.

/// The commands, each under its own name.
pub const COMMANDS: [&str; 14] = [
    "sbatch", "srun", "salloc", "squeue", "scancel", "sinfo", "scontrol", "sacct", "sstat", "sprio", "sshare", "sattach", "sbcast",
    "sacctmgr",
];

/// The version of Slurm whose options and formats the commands have.
pub const SLURM_VERSION: &str = "24.11.0";

/// The text of `--version`. Programs look for the three numbers after `slurm`.
pub fn version_line(lattice_version: &str) -> String {
    format!("slurm {SLURM_VERSION} (lattice {lattice_version})\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_version_begins_as_that_of_slurm() {
        assert_eq!(version_line("0.1.0"), "slurm 24.11.0 (lattice 0.1.0)\n");
    }
}

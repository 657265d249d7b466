//! Environment variables that belong to launchers.

/// Prefixes of the variables by which a launcher, ours or a foreign one, passes wire-up information
/// to ranks.
pub const RANK_WIREUP: [&str; 7] = ["PMI_", "PMIX_", "JSM_JSRUN_PORT", "SLURM_", "OMPI_MCA_ess", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"];

/// Beginnings of the names of variables that Slurm sets for a job, a step or a rank.
const SET_BY_SLURM: [&str; 26] = [
    "SLURM_ARRAY",
    "SLURM_CLUSTER",
    "SLURM_CPUS_",
    "SLURM_DIST",
    "SLURM_GPU",
    "SLURM_GTIDS",
    "SLURM_JOB",
    "SLURM_LAUNCH",
    "SLURM_LOCALID",
    "SLURM_MEM_PER",
    "SLURM_MPI",
    "SLURM_NNODES",
    "SLURM_NODE",
    "SLURM_NPROCS",
    "SLURM_NTASKS",
    "SLURM_OPEN_MODE",
    "SLURM_PMI",
    "SLURM_PRIO",
    "SLURM_PROCID",
    "SLURM_RESTART",
    "SLURM_SRUN",
    "SLURM_STEP",
    "SLURM_SUBMIT",
    "SLURM_TASK",
    "SLURM_TOPOLOGY",
    "SLURM_UMASK",
];

/// Whether a submission may set this variable of Slurm's: it is one that `srun` reads as an option, or any other name, and
/// none that describes a job, a step or a rank.
pub fn is_settable_of_slurm(name: &str) -> bool {
    name.starts_with("SLURM_") && !SET_BY_SLURM.iter().any(|beginning| name.starts_with(beginning))
}

/// Whether an environment variable belongs to a foreign launcher's wire-up and must not reach a
/// rank.
pub fn is_wireup_variable(name: &str) -> bool {
    name.starts_with("LATTICE_") || RANK_WIREUP.iter().any(|p| name.starts_with(p))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variables_of_slurm_that_describe_nothing_may_be_set() {
        for (name, may) in [("SLURM_X", true), ("SLURM_CPU_BIND", true), ("SLURM_PROCID", false), ("SLURM_JOB_ID", false), ("X", false)] {
            assert_eq!(is_settable_of_slurm(name), may, "{name}");
        }
    }
}

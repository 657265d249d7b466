//! The variables of Slurm that differ from rank to rank, or from task to task. The environment of the launch or lane has
//! those that are the same for all.

use lattice_model::{LaunchSpec, NodeRanks};

/// The variable that has the pid of a rank, a script or a task.
pub const PID_VARIABLE: &str = "SLURM_TASK_PID";

/// [`PID_VARIABLE`], if a script with this environment gets Slurm's variables.
pub fn pid_variable_of(env: &[(String, String)]) -> Option<&'static str> {
    env.iter().any(|(name, _)| name == "SLURM_PROCID").then_some(PID_VARIABLE)
}

/// The variables of one rank, if the launch requests them.
pub fn of_rank(spec: &LaunchSpec, part: &NodeRanks, rank: u32, local: u32) -> Vec<(String, String)> {
    if !spec.shape.slurm_env {
        return Vec::new();
    }
    let node = spec.nodes_with_ranks().iter().position(|n| n.node == part.node).unwrap_or(0);
    let of_node: Vec<String> = spec.ranks_on(&part.node).iter().map(ToString::to_string).collect();
    [
        ("SLURM_GTIDS", of_node.join(",")),
        ("SLURM_PROCID", rank.to_string()),
        ("SLURM_LOCALID", local.to_string()),
        ("SLURM_NODEID", node.to_string()),
        ("SLURMD_NODENAME", part.node.to_string()),
        // Slurm counts steps from 0, Lattice launches from 1.
        ("SLURM_STEP_ID", spec.number.saturating_sub(1).to_string()),
        ("SLURM_STEPID", spec.number.saturating_sub(1).to_string()),
    ]
    .map(|(name, value)| (name.to_owned(), value))
    .into()
}

/// The job number of a task. `first`: that of the first task of its group.
pub fn of_task(first: u64, ordinal: u32) -> [(String, String); 2] {
    let number = first.saturating_add(ordinal.into()).to_string();
    ["SLURM_JOB_ID", "SLURM_JOBID"].map(|name| (name.to_owned(), number.clone()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_script_has_its_pid_beside_the_other_variables_of_slurm() {
        let of = |name: &str| pid_variable_of(&[(name.to_owned(), "0".to_owned())]);
        assert_eq!((of("SLURM_PROCID"), of("LATTICE_RANK")), (Some(PID_VARIABLE), None));
    }

    #[test]
    fn each_task_has_the_number_behind_the_one_before_it() {
        let owned = |name: &str| (name.to_owned(), "15".to_owned());
        assert_eq!(of_task(12, 3), [owned("SLURM_JOB_ID"), owned("SLURM_JOBID")]);
    }
}

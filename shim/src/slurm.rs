//! The variables of `--slurm-env` that differ from rank to rank. The launch's environment has those that are the same
//! for all.

use lattice_model::{LaunchSpec, NodeRanks};

/// The variables of one rank, if the launch requests them.
pub fn of_rank(spec: &LaunchSpec, part: &NodeRanks, rank: u32, local: u32) -> Vec<(String, String)> {
    if !spec.shape.slurm_env {
        return Vec::new();
    }
    let node = spec.nodes.iter().position(|n| n.node == part.node).unwrap_or(0);
    [
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

//! What the shim needs of the submission after its start, besides what the agent's messages contain.

use crate::user_files::plan::Plan;
use lattice_model::{DesiredShare, EndWarning, Entrypoint};

/// See the module.
#[derive(Default)]
pub struct Submitted {
    /// The user's files to which its output is also written.
    pub files: Option<Plan>,
    /// The signal before its walltime ends.
    pub warning: Option<EndWarning>,
    /// Whether it runs a command, and no script.
    pub is_command: bool,
    /// Whether it is a lane: each of its tasks has a walltime.
    pub is_lane: bool,
}

impl Submitted {
    /// From the allocation's share, for the node with this name.
    pub fn of(share: &DesiredShare, node: &str) -> Self {
        Self {
            files: Plan::of(share, node),
            warning: share.spec.end_warning.as_deref().cloned(),
            is_command: matches!(share.spec.entrypoint, Entrypoint::Command { .. }),
            is_lane: share.lane.is_some(),
        }
    }
}

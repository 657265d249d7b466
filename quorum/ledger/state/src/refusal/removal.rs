//! Why a node is not removed.

use lattice_model::count::counted;
use lattice_model::{AllocationId, NodeId, NodeState};
use serde::{Deserialize, Serialize};
use thiserror::Error;

/// Why a node is not removed.
#[derive(Clone, Debug, PartialEq, Eq, Error, Serialize, Deserialize)]
pub enum RemovalRefusal {
    #[error("it is {state}, and only nodes that are Drained or Down can be")]
    InService { state: NodeState },
    /// Some of the allocations, and their total number.
    #[error("{} may still run there: {}", counted(*all, "allocation"), describe_some(some, *all))]
    HasWork { some: Vec<AllocationId>, all: u64 },
    #[error("it has not registered")]
    Admitted,
}

impl RemovalRefusal {
    pub(super) fn remedy(&self, node: &NodeId) -> String {
        match self {
            Self::InService { state: NodeState::Booting | NodeState::Failed } => {
                format!("take it out of service first: `lattice node disable {node} --reason ...`")
            }
            Self::InService { .. } => {
                format!("drain it first: `lattice node drain {node} --wait --reason ...`; a machine that is off is Down after a while")
            }
            Self::HasWork { .. } => format!(
                "wait until it has reported that nothing is left; if the machine is off: `lattice node confirm-dead {node} --reason ...`"
            ),
            Self::Admitted => format!("`lattice node admit --withdraw {node}` withdraws its admission"),
        }
    }
}

fn describe_some(some: &[AllocationId], all: u64) -> String {
    let shown: Vec<String> = some.iter().map(|id| id.short().to_string()).collect();
    let more = all.saturating_sub(some.len() as u64);
    if more == 0 { shown.join(", ") } else { format!("{} and {more} more", shown.join(", ")) }
}

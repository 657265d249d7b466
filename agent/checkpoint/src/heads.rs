//! The checkpoints of allocations whose head is this node.

use lattice_model::Epoch;
use lattice_node::{CheckpointPhase, Checkpointing};
use tokio::sync::watch;

/// An allocation's present or last checkpoint.
#[derive(Clone)]
pub(super) struct Head {
    pub epoch: Epoch,
    pub view: watch::Receiver<Checkpointing>,
}

/// Whether the checkpoint writes to the store, or soon will.
pub(super) fn is_writing(state: &Checkpointing) -> bool {
    match state.phase {
        CheckpointPhase::Asking { .. } | CheckpointPhase::Saving { .. } | CheckpointPhase::Verifying { .. } => true,
        CheckpointPhase::Deferred { .. } | CheckpointPhase::Committing { .. } | CheckpointPhase::Ended(_) => false,
    }
}

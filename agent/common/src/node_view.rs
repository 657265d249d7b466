//! The node's state as others may know it.

use lattice_model::{AllocationId, Epoch, Generation, Revision};
use lattice_node::Local;
use std::collections::BTreeMap;

/// What others may know of the node's state.
#[derive(Clone, Debug, Default)]
pub struct NodeView {
    /// The agent's life, as the quorum issued it.
    pub incarnation: u64,
    /// The last list's generation.
    pub generation: Generation,
    /// The last list's revision.
    pub revision: Revision,
    /// What is on the node.
    pub locals: Vec<Local>,
    /// Reports that wait for the quorum.
    pub reports_pending: usize,
    /// Entry points that ended by themselves with these codes, of which the quorum does not know yet.
    pub ended: BTreeMap<(AllocationId, Epoch), i32>,
}

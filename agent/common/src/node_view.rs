//! The node's state as other agents may see it.

use lattice_model::{AllocationId, Epoch, Generation, Revision};
use lattice_node::Local;
use std::collections::BTreeMap;

/// The node's state as other agents may see it.
#[derive(Clone, Debug, Default)]
pub struct NodeView {
    /// The agent's incarnation, as the quorum issued it.
    pub incarnation: u64,
    /// Generation of the last desired list.
    pub generation: Generation,
    /// Revision of the last desired list.
    pub revision: Revision,
    /// The allocations on the node.
    pub locals: Vec<Local>,
    /// Reports that the quorum has not acknowledged yet.
    pub reports_pending: usize,
    /// Exit codes of entry points that ended by themselves, unless the quorum knows their ends
    /// already.
    pub ended: BTreeMap<(AllocationId, Epoch), i32>,
}

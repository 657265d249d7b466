//! What callers name in their requests, as the handlers of more than one service read it.

use lattice_model::NodeId;
use tonic::Status;

pub(super) fn node_id(text: &str) -> Result<NodeId, Status> {
    text.parse().map_err(|e: lattice_model::ids::IdError| Status::invalid_argument(e.to_string()))
}

//! Parsing of request arguments that several services share.

use lattice_model::NodeId;
use tonic::Status;

pub(super) fn node_id(text: &str) -> Result<NodeId, Status> {
    text.parse().map_err(|e: lattice_model::ids::IdError| Status::invalid_argument(e.to_string()))
}

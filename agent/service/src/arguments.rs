//! Parsing of request arguments that several services share.

use lattice_model::ids::IdError;
use lattice_model::{AllocationId, NodeId};
use tonic::Status;

pub(super) fn node_id(text: &str) -> Result<NodeId, Status> {
    text.parse().map_err(|e: IdError| Status::invalid_argument(e.to_string()))
}

pub(super) fn allocation_id(text: &str) -> Result<AllocationId, Status> {
    text.parse().map_err(|e: IdError| Status::invalid_argument(e.to_string()))
}

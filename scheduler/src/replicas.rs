//! Replicas of one scaled service are on different nodes.

use crate::view::View;
use lattice_model::{Allocation, AllocationId};

/// The service of which it is a replica, if it is one.
pub fn service_of(allocation: &Allocation) -> Option<AllocationId> {
    allocation.replica.as_ref().map(|replica| replica.service)
}

/// The first of these holders of a node that is a replica of the same service as this allocation.
pub fn replica_there(view: &View, allocation: &Allocation, holders: impl IntoIterator<Item = AllocationId>) -> Option<AllocationId> {
    let service = service_of(allocation)?;
    holders.into_iter().find(|holder| view.allocations.get(holder).and_then(service_of) == Some(service))
}

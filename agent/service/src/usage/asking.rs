//! Limits of asking nodes for the usage of work.

use lattice_mesh::usage::UsageOpen;
use lattice_model::{Allocation, Principal, millis};
use std::time::Duration;

/// How many nodes are asked at once.
pub(super) const NODES_AT_ONCE_MAX: usize = 64;

pub(super) fn open(user: &Principal, allocation: &Allocation, duration: Duration) -> UsageOpen {
    UsageOpen {
        allocation: *allocation.id.0.as_bytes(),
        epoch: allocation.epoch.0,
        duration_ms: millis(duration),
        uid: user.uid,
        user: user.name.clone(),
    }
}

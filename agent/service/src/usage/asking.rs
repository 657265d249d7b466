//! Limits of asking nodes for the usage of work.

use lattice_mesh::usage::UsageOpen;
use lattice_model::{Allocation, Principal};
use std::time::Duration;

/// How many nodes are asked at once.
pub(super) const AT_ONCE: usize = 64;

pub(super) fn ms(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

pub(super) fn open(user: &Principal, allocation: &Allocation, duration: Duration) -> UsageOpen {
    UsageOpen {
        allocation: *allocation.id.0.as_bytes(),
        epoch: allocation.epoch.0,
        duration_ms: ms(duration),
        uid: user.uid,
        user: user.name.clone(),
    }
}

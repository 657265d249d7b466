//! The machine's wall clock.

use lattice_model::{Timestamp, millis};
use std::time::{SystemTime, UNIX_EPOCH};

/// The wall clock.
pub fn now() -> Timestamp {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Timestamp(millis(since))
}

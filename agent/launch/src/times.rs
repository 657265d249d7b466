//! How long launches are remembered, and how often they are checked.

use std::time::Duration;

/// How long a launch stays known to its nodes after its end was reported: a caller whose connection
/// broke before may ask again.
pub(super) const FORGET_AFTER: Duration = Duration::from_secs(20);
/// Interval of the checks for a waiting fence and for unreachable parts.
pub(super) const LOOK: Duration = Duration::from_millis(250);

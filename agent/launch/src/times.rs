//! How long launches are remembered, and how often they are checked.

use std::time::Duration;

/// How long the nodes remember a launch after its caller has acknowledged its end, because a caller
/// whose connection broke may ask again. Also how long a branch tries to deliver `Forget`.
pub(super) const FORGET_AFTER: Duration = Duration::from_secs(20);
/// Interval of the checks for fences that wait and for unreachable parts.
pub(super) const CHECK_INTERVAL: Duration = Duration::from_millis(250);

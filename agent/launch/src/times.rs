//! How long launches are remembered and waited for.

use std::time::Duration;

/// How long after its end was told a launch is still known to its nodes: for a caller whose connection broke before
/// it heard the end.
pub(super) const FORGET_AFTER: Duration = Duration::from_secs(20);
/// How often a waiting fence, and who is away, are looked at.
pub(super) const LOOK: Duration = Duration::from_millis(250);

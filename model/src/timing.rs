//! When work may begin, and by when it must have ended.

use crate::time::Timestamp;
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// Bounds in time that a submission sets. Times are those of the leader's clock.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Timing {
    /// It gets no nodes before this time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub begin: Option<Timestamp>,
    /// It is cancelled when it could not end by this time any more.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deadline: Option<Timestamp>,
    /// It may begin with less than its walltime, but with at least this.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub walltime_min: Option<Duration>,
}

//! When work may begin, and by when it must have ended.
//!
//! ```text
//!   submitted ──▶ not in its queue ──begin──▶ waits for nodes ──claim──▶ runs, at most until its deadline
//!                                                  │
//!                                                  ╰──now + shortest walltime > deadline──▶ Cancelled
//! ```

use crate::time::Timestamp;
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// How far ahead a beginning or a deadline may be, in milliseconds: 365 days.
pub const AHEAD_MS_MAX: u64 = 365 * 86_400_000;
/// The largest `nice`; its negative is the smallest.
pub const NICE_MAX: i32 = 10_000;
/// Largest size of a comment, in bytes.
pub const COMMENT_BYTES_MAX: usize = 1024;
/// How much waiting one unit of `nice` equals, in milliseconds.
pub const NICE_UNIT_MS: i64 = 60_000;

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

impl Timing {
    /// `None`: it sets no bound.
    pub fn unless_empty(self) -> Option<Box<Self>> {
        (self != Self::default()).then(|| Box::new(self))
    }
}

//! How long the records of ended allocations are kept, and which have been dropped.

use lattice_model::Timestamp;
use serde::{Deserialize, Serialize};

/// How long the records of ended allocations are kept, and in how much memory. The memory has
/// priority: if it is full, the oldest records are dropped before that time is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EndedLimits {
    /// How long, in milliseconds. Within [`Self::KEPT_MS`].
    pub kept_ms: u64,
    /// The memory of all records in each member, in bytes. Within [`Self::MEMORY_BYTES`].
    pub memory_bytes: u64,
}

impl EndedLimits {
    /// The default of [`Self::kept_ms`]: a week.
    pub const KEPT_MS_DEFAULT: u64 = 7 * 24 * 3_600_000;
    /// The default of [`Self::memory_bytes`]. Tests of this crate fill a smaller one.
    pub const MEMORY_BYTES_DEFAULT: u64 = if cfg!(test) { 4 } else { 256 } * 1024 * 1024;
    /// The bounds of [`Self::kept_ms`]: an hour and 366 days. In less than an hour, an agent or a
    /// script that submits again after an outage would run its work a second time.
    pub const KEPT_MS: (u64, u64) = (3_600_000, 366 * 24 * 3_600_000);
    /// The bounds of [`Self::memory_bytes`]: 1 MiB and 64 GiB.
    pub const MEMORY_BYTES: (u64, u64) = (1 << 20, 64 << 30);
}

impl Default for EndedLimits {
    fn default() -> Self {
        Self { kept_ms: Self::KEPT_MS_DEFAULT, memory_bytes: Self::MEMORY_BYTES_DEFAULT }
    }
}

/// Which records of ended allocations were dropped. The times are those of the ends; `None`: no
/// record was dropped.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Forgotten {
    /// The latest end. Every allocation that ended later has its record.
    pub until: Option<Timestamp>,
    /// The latest end of those that were dropped before [`EndedLimits::kept_ms`] was over, because
    /// the memory was full.
    pub too_early_until: Option<Timestamp>,
}

impl Forgotten {
    /// The record of an allocation that ended then was dropped.
    pub fn add(&mut self, ended_at: Timestamp, is_too_early: bool) {
        self.until = self.until.max(Some(ended_at));
        if is_too_early {
            self.too_early_until = self.too_early_until.max(Some(ended_at));
        }
    }
}

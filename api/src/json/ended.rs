//! How much ended work the quorum keeps.

use super::values::time;
use crate::v1;
use serde::Serialize;
use utoipa::ToSchema;

/// The ended work that the quorum keeps, and its limits.
#[derive(Clone, Debug, PartialEq, Serialize, ToSchema)]
#[schema(as = EndedWorkKept)]
pub struct EndedWorkJson {
    /// Limit: how long it is kept.
    kept_seconds: u64,
    /// Limit: how much memory its records may have in each member.
    memory_bytes: u64,
    count: u64,
    bytes: u64,
    oldest_ended_at: Option<String>,
    /// All work that ended later is kept.
    forgotten_until: Option<String>,
    /// Whether work was forgotten before its time, because the memory was full.
    cut_short: bool,
}

impl From<&v1::EndedWork> for EndedWorkJson {
    fn from(ended: &v1::EndedWork) -> Self {
        Self {
            kept_seconds: ended.kept_ms / 1000,
            memory_bytes: ended.memory_bytes,
            count: ended.count,
            bytes: ended.bytes,
            oldest_ended_at: time(ended.oldest_ended_at_ms),
            forgotten_until: time(ended.forgotten_until_ms),
            cut_short: ended.cut_short,
        }
    }
}

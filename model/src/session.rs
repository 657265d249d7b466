//! Interactive sessions: allocations that are held for a terminal.

use crate::ids::{AllocationId, NodeId};
use crate::time::Timestamp;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

/// What runs on the first node of a session's allocation: nothing, for longer than the longest walltime. Versions that know no
/// sessions hold it by this as well.
pub const HOLDER: &str = "#!/bin/sh\nPATH=/usr/bin:/bin:$PATH\nexec sleep 34560000\n";

/// A session as the quorum holds it, from when its terminal opens until its allocation's claim ends.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct InteractiveSession {
    /// Made by whoever opens it.
    pub id: Uuid,
    /// What it holds. An allocation has one session at most.
    pub allocation: AllocationId,
    /// Whose it is.
    pub user: String,
    /// The same as a number.
    pub uid: u32,
    /// Where its terminal is.
    pub node: NodeId,
    /// Since when.
    pub since: Timestamp,
}

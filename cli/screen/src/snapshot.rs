//! What the agent reported last, each part with the time of the report.

use lattice_api::json::UsageOf;
use lattice_api::v1;
use lattice_model::time::Timestamp;

/// The state of the cluster as far as it is known.
#[derive(Debug, Default)]
pub struct Snapshot {
    pub nodes: Dated<NodeList>,
    pub work: Dated<Work>,
    pub usage: Dated<Vec<OwnUsage>>,
}

/// A report, and when it arrived; `None`: not yet.
#[derive(Debug, Default)]
pub struct Dated<T> {
    pub at: Option<Timestamp>,
    pub value: T,
}

impl<T> Dated<T> {
    /// Replaces it.
    pub fn set(&mut self, at: Timestamp, value: T) {
        *self = Self { at: Some(at), value };
    }
}

/// The nodes, in the order of their names.
#[derive(Debug, Default)]
pub struct NodeList {
    pub nodes: Vec<v1::Node>,
    /// Why the quorum did not answer; then the states come from gossip. Empty: it did.
    pub quorum_error: String,
}

/// Work that has not ended, the queues, and the quorum.
#[derive(Debug, Default)]
pub struct Work {
    /// In the order in which `lattice status` shows them.
    pub allocations: Vec<v1::Allocation>,
    /// Whether there are more than were fetched.
    pub more: bool,
    /// Whether they are those of all users.
    pub all_users: bool,
    pub vclusters: Vec<v1::VCluster>,
    pub quorum: v1::QuorumStatusResponse,
}

/// What the user, or the tenant of the settings, has used.
#[derive(Debug)]
pub struct OwnUsage {
    pub of: UsageOf,
    pub usage: v1::Usage,
}

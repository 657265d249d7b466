//! What every stage passes on to the next.

use crate::journal::StateDir;
use lattice_agent_common::config::AgentConfig;
use lattice_model::NodeId;
use lattice_pki::credentials::Credentials;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

/// The parts that every stage has.
pub struct Base {
    pub config: AgentConfig,
    /// This node.
    pub me: NodeId,
    pub credentials: Credentials,
    /// What this node cannot do, each with its remedy.
    pub degraded: Vec<String>,
    /// Cancelled when the agent is to stop.
    pub stop: CancellationToken,
    /// The tasks that are awaited at the end.
    pub tasks: TaskTracker,
    /// Locks the state directory against other agents until this one has ended.
    pub state_dir: StateDir,
}

//! How this agent was set up, as its tasks need it.

use crate::config::work::UserImages;
use lattice_model::NodeId;
use lattice_runtime::shim::LogRoom;
use std::path::PathBuf;
use std::time::Duration;

/// Fixed when the agent starts.
pub struct Setup {
    /// This node.
    pub me: NodeId,
    /// Where allocations, journal and cache lie.
    pub state_dir: PathBuf,
    /// The shim's program.
    pub shim: PathBuf,
    /// The API's socket, as work on this node is to find it.
    pub socket: PathBuf,
    /// Whether work may run as root.
    pub allow_root: bool,
    /// Whether setuid programs give rights to work.
    pub work_may_gain_privileges: bool,
    /// Whether work may have images.
    pub images_from_users: UserImages,
    /// SIGTERM to SIGKILL.
    pub grace: Duration,
    /// How much room the log files of one running allocation may take.
    pub log_room: LogRoom,
    /// How many attached terminals one user has at most.
    pub attach_max_concurrent: usize,
}

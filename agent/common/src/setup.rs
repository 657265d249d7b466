//! The settings of this agent that its tasks need.

use crate::config::work::UserImages;
use crate::environment::slurm::SlurmSettings;
use lattice_model::NodeId;
use lattice_runtime::shim::LogLimits;
use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

/// Fixed when the agent starts.
pub struct Setup {
    /// This node.
    pub me: NodeId,
    /// The address under which other nodes reach this one.
    pub host: IpAddr,
    /// The directory of allocations, journal and cache.
    pub state_dir: PathBuf,
    /// The path of the shim's program.
    pub shim: PathBuf,
    /// The path of the API's socket for work on this node.
    pub socket: PathBuf,
    /// Whether work may run as root.
    pub allow_root: bool,
    /// Whether work may gain privileges from setuid programs.
    pub work_may_gain_privileges: bool,
    /// Whether work may use images.
    pub images_from_users: UserImages,
    /// The time between SIGTERM and SIGKILL.
    pub grace: Duration,
    /// Limits of the size of one running allocation's log files.
    pub log_limits: LogLimits,
    /// How many terminals one user may have attached at once.
    pub attach_max_concurrent: usize,
    /// The site's settings for the variables that Slurm sets.
    pub slurm: SlurmSettings,
}

//! The configuration's sections `work`, `images` and `launch`.

use super::setting::{SettingError, absolute, within};
use lattice_pmi::{FANOUT_MAX, FANOUT_MIN};
use serde::Deserialize;
use std::path::PathBuf;

/// What work on this node may do, and how it is treated.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct WorkSettings {
    /// What the work of allocations on this node may do at the agent's socket, see [`WorkMay`].
    pub may: WorkMay,
    /// Whether work may run as root. Only for `dev` and the lab.
    pub allow_root: bool,
    /// Whether setuid and setgid programs and programs with file capabilities (`sudo`, `ping`,
    /// `fusermount`) gain privileges in work. `false`: all work, including its terminals, runs with
    /// `NoNewPrivs`. In both cases no program in work can act on the whole machine (load modules,
    /// set the clock, make device files).
    pub may_gain_privileges: bool,
    /// Seconds between SIGTERM and SIGKILL when the agent ends work; 0 to 3600.
    pub grace_seconds: u64,
    /// Terminals that one user may have attached at once, on this node or through it; 1 to 1000.
    pub attach_max_concurrent: usize,
    /// Give ranks the machine's topology for hwloc (`HWLOC_XMLFILE`, version 1 of its format);
    /// otherwise MPI libraries discover it in each rank.
    pub hwloc_xml: bool,
    /// Give all work of this node the variables that Slurm sets (`SLURM_JOB_ID` and others), not only
    /// work that asks for them (`--slurm-env`) and scripts with `#SBATCH` lines. Set it alike on all
    /// nodes: the node where a launch begins decides for the launch.
    pub slurm_env: bool,
    /// The site's names of Slurm, for these variables: `lattice-compat.yaml`. Without the file, names are
    /// those of Lattice. Absolute.
    pub slurm_names: PathBuf,
}

/// What the work of an allocation may do at the agent's socket. Operators' requests are refused to
/// it in any case.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum WorkMay {
    /// Whatever its owner may: submit, and act on every allocation of that user.
    AsOwner,
    /// Act on its own allocation only.
    OwnAllocation,
}

impl Default for WorkSettings {
    fn default() -> Self {
        Self {
            may: WorkMay::AsOwner,
            allow_root: false,
            may_gain_privileges: false,
            grace_seconds: 30,
            attach_max_concurrent: 5,
            hwloc_xml: true,
            slurm_env: false,
            slurm_names: "/etc/lattice/lattice-compat.yaml".into(),
        }
    }
}

impl WorkSettings {
    /// Checks the ranges.
    pub fn validate(&self) -> Result<(), SettingError> {
        within("work.grace_seconds", self.grace_seconds, 0, 3600)?;
        within("work.attach_max_concurrent", self.attach_max_concurrent as u64, 1, 1000)?;
        absolute("work.slurm_names", &self.slurm_names)
    }
}

/// SquashFS images of software environments (`--uenv`) on this node.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ImageSettings {
    /// Whether work may use images, see [`UserImages`].
    pub from_users: UserImages,
    /// Bytes of images that stay in the cache (`images` in `state_dir`) while no work here uses
    /// them; beyond it, the least recently used are removed. 0: half of that file system. Images
    /// are also removed while less than a fifth of the file system is free, or less than 8 GiB of a
    /// large one.
    pub cache_max_bytes: u64,
}

/// Whether work may use SquashFS images (`--uenv`). The kernel mounts them, so it parses whatever
/// users bring.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum UserImages {
    /// Any image that the allocation's user may read.
    Allow,
    /// No image: this agent refuses submissions that name one, and this node starts no work with
    /// one.
    Refuse,
}

impl Default for ImageSettings {
    fn default() -> Self {
        Self { from_users: UserImages::Allow, cache_max_bytes: 0 }
    }
}

/// Launches whose head is here.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct LaunchSettings {
    /// Seconds that a fence may wait for its last node while all nodes are connected; 1 to 3600. A
    /// fence without data has no timeout.
    pub fence_timeout_seconds: u64,
    /// How many other agents each agent of a launch connects to; 2 to 64. 0: by the launch's size,
    /// 16 to 32.
    pub fanout: u32,
}

impl Default for LaunchSettings {
    fn default() -> Self {
        Self { fence_timeout_seconds: 60, fanout: 0 }
    }
}

impl LaunchSettings {
    /// Checks the ranges.
    pub fn validate(&self) -> Result<(), SettingError> {
        within("launch.fence_timeout_seconds", self.fence_timeout_seconds, 1, 3600)?;
        if self.fanout == 0 {
            return Ok(());
        }
        within("launch.fanout", self.fanout.into(), FANOUT_MIN.into(), FANOUT_MAX.into())
    }
}

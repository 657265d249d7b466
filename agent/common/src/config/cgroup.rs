//! The configuration's section `cgroup`.

use super::setting::{SettingError, within};
use lattice_runtime::cgroup::controllers::Controller;
use serde::Deserialize;
use std::path::PathBuf;

/// Where the agent's cgroups are, and what limits work in them.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct CgroupSettings {
    /// The slice for allocations, as a path below the root of the cgroup v2 tree; delegated to the
    /// agent.
    pub root: PathBuf,
    /// The directory of the cgroup v2 tree that was delegated to the agent and contains `root`. The
    /// agent enables controllers from here on down, and writes nothing above. Empty: `root` itself;
    /// `/`: the whole tree, for machines without systemd.
    pub delegated: PathBuf,
    /// Controllers that may be used from cgroup version 1 if the v2 tree lacks them: cpu, cpuset,
    /// memory, pids, io. Memory is not in the default: version 1 slows work down to count it, and
    /// cannot kill a launch as a whole.
    pub v1_controllers: Vec<Controller>,
    /// Processes and threads at once of an allocation that has the whole node; a share gets its
    /// part, by cores. 64 to 4,194,304.
    pub pids_max: u64,
    /// Bytes of main memory that are reserved for the system and not registered; at most a quarter
    /// of it is. What remains is registered in steps of 64 MiB. Work can use at most that.
    pub memory_reserved_bytes: u64,
    /// Limits of block devices for work that has the whole node; a share gets its part, by cores.
    pub io_max: Vec<IoMax>,
}

/// Limits of one block device.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct IoMax {
    /// The device, such as `/dev/nvme0n1`; not a partition.
    pub device: PathBuf,
    /// Bytes read a second, at least 1; absent: no limit.
    #[serde(default)]
    pub read_bytes_per_second: Option<u64>,
    /// Bytes written a second, at least 1; absent: no limit.
    #[serde(default)]
    pub write_bytes_per_second: Option<u64>,
}

impl Default for CgroupSettings {
    fn default() -> Self {
        Self {
            root: "workload.slice".into(),
            delegated: PathBuf::new(),
            v1_controllers: vec![Controller::Cpu, Controller::Cpuset, Controller::Pids, Controller::Io],
            pids_max: 32_768,
            memory_reserved_bytes: 512 << 20,
            io_max: Vec::new(),
        }
    }
}

impl CgroupSettings {
    /// Checks the ranges.
    pub fn validate(&self) -> Result<(), SettingError> {
        within("cgroup.pids_max", self.pids_max, 64, 4_194_304)?;
        let mut rates = self.io_max.iter().flat_map(|io| [io.read_bytes_per_second, io.write_bytes_per_second]).flatten();
        rates.try_for_each(|bytes| within("cgroup.io_max", bytes, 1, u64::MAX))
    }
}

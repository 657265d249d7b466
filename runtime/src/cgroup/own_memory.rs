//! A memory limit on this process, in its own cgroup beside the slice of all work.

use super::controllers::{Controller, Controllers};
use super::limits::{LimitError, put, whole_pages};
use super::place::Place;
use std::path::{Component, Path, PathBuf};
use thiserror::Error;

/// Why this process has no memory limit.
#[derive(Debug, Error)]
pub enum OwnMemoryError {
    /// No controller can limit memory.
    #[error("the memory controller of cgroup version 2 cannot be used here")]
    NoController,
    /// The process is in a cgroup that other processes share, or that we may not change.
    #[error(
        "this process lies in {}, which is no cgroup of its own in {} beside {}: start it with systemd's \
         DelegateSubgroup= (version 254)",
        own.display(), delegated.display(), slice.display()
    )]
    NotAlone {
        /// Its cgroup, below the tree's root.
        own: PathBuf,
        /// The directory that was delegated to us.
        delegated: PathBuf,
        /// The slice of all work.
        slice: PathBuf,
    },
    /// The kernel refused the limit.
    #[error(transparent)]
    Limit(#[from] LimitError),
}

impl Controllers {
    /// Limits the memory of this process to this many bytes, and verifies the limit. At the limit the kernel kills this
    /// process; work is in other cgroups.
    pub fn limit_own_memory(&self, bytes: u64) -> Result<(), OwnMemoryError> {
        let (Some(slice), Some(Place::V2)) = (self.slice(), self.place(Controller::Memory)) else {
            return Err(OwnMemoryError::NoController);
        };
        let (delegated, work) = self.delegated();
        let own = std::fs::read_to_string("/proc/self/cgroup").ok().and_then(|text| v2_path(&text)).unwrap_or_default();
        if !is_own(&own, delegated, work) {
            return Err(OwnMemoryError::NotAlone { own, delegated: delegated.to_owned(), slice: work.to_owned() });
        }
        Ok(put(&slice.tree().join(own).join("memory.max"), Some(whole_pages(bytes)))?)
    }
}

/// The cgroup of a process in the v2 tree, from its `/proc/PID/cgroup`, relative to the root.
fn v2_path(proc_cgroup: &str) -> Option<PathBuf> {
    let path = Path::new(proc_cgroup.lines().find_map(|line| line.strip_prefix("0::/"))?);
    // Outside of our cgroup namespace the path begins with "..".
    path.components().all(|part| matches!(part, Component::Normal(_))).then(|| path.to_owned())
}

/// Whether the cgroup is below the delegated directory, and has no work below it.
fn is_own(own: &Path, delegated: &Path, work: &Path) -> bool {
    own != delegated && own.starts_with(delegated) && !work.starts_with(own) && !own.starts_with(work)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cgroup_with_others_in_it_is_not_limited() {
        let unit = "system.slice/lattice-agent.service";
        let (delegated, work) = (Path::new(unit), PathBuf::from(format!("{unit}/workload.slice")));
        let own = |path: &str| is_own(Path::new(path), delegated, &work);
        assert!(own("system.slice/lattice-agent.service/agent"));
        for others in ["", "system.slice", unit, "system.slice/other.service", "system.slice/lattice-agent.service/workload.slice/x"] {
            assert!(!own(others), "{others}");
        }
        let whole_tree = |path: &str| is_own(Path::new(path), Path::new(""), Path::new("a/workload.slice"));
        assert!(whole_tree("agent") && !whole_tree("a") && !whole_tree(""));
    }

    #[test]
    fn the_place_in_the_v2_tree_is_found_on_hybrid_machines_too() {
        let text = "4:memory:/elsewhere\n0::/unit/agent\n";
        assert_eq!(v2_path(text), Some(PathBuf::from("unit/agent")));
        assert_eq!((v2_path("4:memory:/x\n"), v2_path("0::/../x\n")), (None, None));
    }
}

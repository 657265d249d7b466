//! Which controllers can limit work here, and in which hierarchy each of them is.
//!
//! ```text
//!   v2   <tree>/<delegated>/…/<root>/alloc-<id>.scope/work        limits are set on `work`
//!            └── enabled for children, from here down ──┘
//!   v1   <hierarchy>/<root>/alloc-<id>.scope                       one directory in each, joined by every process
//! ```
//!
//! A controller is in the v2 tree or in a hierarchy of version 1, never in both; hybrid machines have some in each.
//! Nothing above the delegated directory is written (systemd's single-writer rule).
//!
//! A controller of version 1 is used only if `cgroup.v1_controllers` names it. Memory is not among the defaults: it often
//! belongs to other software, and it cannot kill a launch as a whole.

use super::io_weight::IoWeight;
use super::place::Place;
use super::{Cgroup, CgroupError, Slice, failed, mountinfo, scope_allocation, scope_name, unescape};
use lattice_model::AllocationId;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Component, Path, PathBuf};
use std::time::{Duration, Instant};
use thiserror::Error;

/// Why a controller cannot limit work here.
#[derive(Debug, Error)]
pub(super) enum NoController {
    #[error("the kernel has no such controller, or it is mounted nowhere")]
    NotMounted,
    #[error("it is in cgroup version 1 ({}), and cgroup.v1_controllers does not name it", .mount.display())]
    VersionOne { mount: PathBuf },
    #[error("{}", with_cause(.0))]
    MakeGroup(#[from] CgroupError),
    #[error("cgroup.root {} does not lie in cgroup.delegated {}", .root.display(), .delegated.display())]
    Outside { root: PathBuf, delegated: PathBuf },
    #[error(
        "it was not delegated to {}: run the agent with systemd's Delegate=yes and put cgroup.root below its unit, or let \
         cgroup.delegated name the directory that was handed over",
        .directory.display()
    )]
    NotDelegated { directory: PathBuf },
    #[error("it cannot be enabled in {}: that cgroup itself contains processes", .file.display())]
    Occupied { file: PathBuf },
    #[error("it cannot be enabled in {}: {source}", .file.display())]
    HandDown { file: PathBuf, source: io::Error },
    #[error("it cannot be enabled in {}: the kernel accepted the write without effect", .file.display())]
    Ignored { file: PathBuf },
}

/// What the kernel can limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Controller {
    /// Processor time.
    Cpu,
    /// Which processors and memory nodes.
    Cpuset,
    /// Main memory.
    Memory,
    /// Processes and threads.
    Pids,
    /// Bytes a second of block devices; `blkio` in version 1.
    #[serde(alias = "blkio")]
    Io,
    /// Which device files; only in version 1, for machines that refuse [`super::devices`].
    Devices,
}

impl Controller {
    /// All of them.
    pub const ALL: [Self; 6] = [Self::Cpu, Self::Cpuset, Self::Memory, Self::Pids, Self::Io, Self::Devices];

    /// Its name in the v2 tree.
    pub fn name(self) -> &'static str {
        match self {
            Self::Cpu => "cpu",
            Self::Cpuset => "cpuset",
            Self::Memory => "memory",
            Self::Pids => "pids",
            Self::Io => "io",
            Self::Devices => "devices",
        }
    }

    fn v1_name(self) -> &'static str {
        match self {
            Self::Io => "blkio",
            Self::Cpu | Self::Cpuset | Self::Memory | Self::Pids | Self::Devices => self.name(),
        }
    }
}

impl fmt::Display for Controller {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// The controllers of this machine that we may use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Controllers {
    root: PathBuf,
    slice: Option<Slice>,
    delegated: PathBuf,
    used: BTreeMap<Controller, Place>,
    missing: BTreeMap<Controller, String>,
    io_weights: Vec<IoWeight>,
}

impl Controllers {
    /// Finds each controller, tries it, and records why one cannot be used.
    ///
    /// `root`: the configured slice, relative to every hierarchy. `slice`: that slice in the v2 tree, if there is a tree.
    /// `delegated`: the directory of the v2 tree, relative, that was delegated to us and contains `root`; empty: `root`
    /// itself; `/`: the tree's root, on a machine that is all ours. `v1`: the controllers that may be used in version 1
    /// if the v2 tree lacks them.
    pub fn find(root: &Path, slice: Option<&Slice>, delegated: &Path, v1: &BTreeSet<Controller>) -> Self {
        let root: PathBuf = root.components().filter(|c| matches!(c, Component::Normal(_))).collect();
        let delegated =
            if delegated.as_os_str().is_empty() { root.clone() } else { delegated.strip_prefix("/").unwrap_or(delegated).into() };
        let mut found =
            Self { root, slice: slice.cloned(), delegated, used: BTreeMap::new(), missing: BTreeMap::new(), io_weights: Vec::new() };
        let mounts = mountinfo().unwrap_or_default();
        for controller in Controller::ALL {
            match found.find_place(controller, &mounts, v1) {
                Ok(place) => drop(found.used.insert(controller, place)),
                Err(error) => drop(found.missing.insert(controller, error.to_string())),
            }
        }
        found.io_weights = found.find_io_weights();
        found
    }

    fn find_place(&self, controller: Controller, mounts: &str, v1: &BTreeSet<Controller>) -> Result<Place, NoController> {
        if let Some(slice) = &self.slice
            && is_enabled(&slice.mount.join("cgroup.controllers"), controller)
        {
            return self.enable_in_slice(slice, controller).map(|()| Place::V2);
        }
        let Some(mount) = mounts.lines().find_map(|line| v1_mount(line, controller.v1_name())) else {
            return Err(NoController::NotMounted);
        };
        if !v1.contains(&controller) {
            return Err(NoController::VersionOne { mount });
        }
        let group = V1Group { controller, mount, relative: self.root.clone() };
        group.create()?;
        Ok(Place::V1 { mount: group.mount })
    }

    fn find_io_weights(&self) -> Vec<IoWeight> {
        let Some(place) = self.place(Controller::Io) else { return Vec::new() };
        match (place, &self.slice) {
            (Place::V2, None) => Vec::new(),
            (Place::V2, Some(slice)) => IoWeight::find(place, &slice.path()),
            (Place::V1 { mount }, _) => IoWeight::find(place, &mount.join(&self.root)),
        }
    }

    /// Enables a controller in each cgroup from the delegated directory down to the slice.
    fn enable_in_slice(&self, slice: &Slice, controller: Controller) -> Result<(), NoController> {
        let below = self
            .root
            .strip_prefix(&self.delegated)
            .map_err(|_| NoController::Outside { root: self.root.clone(), delegated: self.delegated.clone() })?;
        let mut directory = slice.mount.join(&self.delegated);
        Cgroup { path: directory.clone() }.create()?;
        if !is_enabled(&directory.join("cgroup.controllers"), controller) {
            return Err(NoController::NotDelegated { directory });
        }
        enable(&directory, controller)?;
        for part in below.components() {
            directory.push(part);
            Cgroup { path: directory.clone() }.create()?;
            enable(&directory, controller)?;
        }
        Ok(())
    }

    /// The slice of all work in the v2 tree, if there is one.
    pub(super) fn slice(&self) -> Option<&Slice> {
        self.slice.as_ref()
    }

    /// The delegated directory, and the slice of all work in it; both relative to the tree.
    pub(super) fn delegated(&self) -> (&Path, &Path) {
        (&self.delegated, &self.root)
    }

    /// The hierarchy in which a controller is used; `None`: it is not used.
    pub fn place(&self, controller: Controller) -> Option<&Place> {
        self.used.get(&controller)
    }

    /// Whether allocations have directories in some hierarchy of version 1.
    pub fn has_v1(&self) -> bool {
        self.used.values().any(|place| matches!(place, Place::V1 { .. }))
    }

    /// The files that set the weight of a share at block devices.
    pub fn io_weights(&self) -> &[IoWeight] {
        &self.io_weights
    }

    /// The weight files that have disappeared since [`Self::find`]: the kernel has unloaded their I/O scheduler.
    pub fn io_weights_gone(&self) -> Vec<&'static str> {
        let present = self.find_io_weights();
        self.io_weights.iter().filter(|weight| !present.contains(weight)).map(|weight| weight.file).collect()
    }

    /// The controllers that cannot be used here, and why.
    pub fn missing(&self) -> &BTreeMap<Controller, String> {
        &self.missing
    }

    /// In one line for people: `cpu (v2), pids (v1)`.
    pub fn describe(&self) -> String {
        let each = self.used.iter().map(|(controller, place)| match place {
            Place::V2 => format!("{controller} (v2)"),
            Place::V1 { .. } => format!("{controller} (v1)"),
        });
        let files: Vec<&str> = self.io_weights.iter().map(|weight| weight.file).collect();
        let weight = (!files.is_empty()).then(|| format!("disks by weight ({})", files.join(", ")));
        each.chain(weight).collect::<Vec<_>>().join(", ")
    }

    /// Enables the controllers of the v2 tree on the scope's `work`, and memory also on each launch below it.
    pub(super) fn enable_in_scope(&self, scope: &super::Scope) -> Result<(), (Controller, NoController)> {
        let Some(slice) = &self.slice else { return Ok(()) };
        for (controller, _) in self.used.iter().filter(|(_, place)| **place == Place::V2) {
            self.enable_in_slice(slice, *controller).map_err(|why| (*controller, why))?;
            enable(scope.path(), *controller).map_err(|why| (*controller, why))?;
        }
        if self.place(Controller::Memory) == Some(&Place::V2) {
            enable(scope.work().path(), Controller::Memory).map_err(|why| (Controller::Memory, why))?;
        }
        Ok(())
    }

    /// The directories of version 1 for one allocation, one for each hierarchy that is used.
    pub fn v1_groups(&self, allocation: AllocationId) -> Vec<V1Group> {
        let relative = self.root.join(scope_name(allocation));
        let mut groups: Vec<V1Group> = Vec::new();
        for (controller, place) in &self.used {
            if let Place::V1 { mount } = place {
                groups.push(V1Group { controller: *controller, mount: mount.clone(), relative: relative.clone() });
            }
        }
        groups
    }

    /// Allocations that have a directory in some hierarchy of version 1. One that the agent does not know is a leftover.
    pub fn v1_allocations(&self) -> BTreeSet<AllocationId> {
        let mounts = self.used.values().filter_map(|place| match place {
            Place::V2 => None,
            Place::V1 { mount } => Some(mount.join(&self.root)),
        });
        let entries = mounts.flat_map(|dir| fs::read_dir(dir).into_iter().flatten().flatten());
        entries.filter_map(|e| scope_allocation(e.file_name().to_str()?)).collect()
    }

    /// Kills the processes in the allocation's directories of version 1 and removes the directories. Does nothing if they
    /// do not exist.
    pub fn remove(&self, allocation: AllocationId, at_most: Duration) -> Result<(), CgroupError> {
        self.v1_groups(allocation).iter().try_for_each(|group| group.remove(at_most))
    }

    /// Removes the slice's own directories of version 1 if they are empty. For the lab and `doctor`.
    pub fn remove_roots(&self) {
        for (controller, place) in &self.used {
            if let Place::V1 { mount } = place {
                let _ = V1Group { controller: *controller, mount: mount.clone(), relative: self.root.clone() }.remove(Duration::ZERO);
            }
        }
    }
}

fn with_cause(error: &CgroupError) -> String {
    let cause = std::error::Error::source(error).map(|s| format!(": {s}")).unwrap_or_default();
    format!("{error}{cause}")
}

/// Whether a list of controllers names this one.
fn is_enabled(file: &Path, controller: Controller) -> bool {
    fs::read_to_string(file).is_ok_and(|text| text.split_whitespace().any(|name| name == controller.name()))
}

/// Enables a controller for the children of `directory`, and checks the result.
fn enable(directory: &Path, controller: Controller) -> Result<(), NoController> {
    let file = directory.join("cgroup.subtree_control");
    if is_enabled(&file, controller) {
        return Ok(());
    }
    let written = fs::write(&file, format!("+{controller}"));
    if is_enabled(&file, controller) {
        return Ok(());
    }
    Err(match written {
        Err(error) if error.raw_os_error() == Some(libc::EBUSY) => NoController::Occupied { file },
        Err(source) => NoController::HandDown { file, source },
        Ok(()) => NoController::Ignored { file },
    })
}

/// The mount point in a line of mountinfo, if it is the v1 hierarchy with this controller.
fn v1_mount(line: &str, controller: &str) -> Option<PathBuf> {
    let (front, back) = line.split_once(" - ")?;
    let point = front.split(' ').nth(4)?;
    let mut fields = back.split(' ');
    let is_v1 = fields.next()? == "cgroup";
    let options = fields.nth(1)?;
    (is_v1 && options.split(',').any(|o| o == controller)).then(|| PathBuf::from(unescape(point)))
}

/// One directory in one hierarchy of version 1.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct V1Group {
    controller: Controller,
    mount: PathBuf,
    relative: PathBuf,
}

impl V1Group {
    /// The controller of its limits. A hierarchy may have several controllers; there is then one group for each, with
    /// one path.
    pub fn controller(&self) -> Controller {
        self.controller
    }

    /// Its absolute path.
    pub fn path(&self) -> PathBuf {
        self.mount.join(&self.relative)
    }

    /// Creates it and all missing parents. A cpuset gets its parent's processors and memory nodes first: without any it
    /// accepts no process.
    pub fn create(&self) -> Result<(), CgroupError> {
        self.create_below(&self.relative)
    }

    fn create_below(&self, relative: &Path) -> Result<(), CgroupError> {
        let directory = self.mount.join(relative);
        match (fs::create_dir(&directory), relative.parent()) {
            (Err(error), Some(above)) if error.kind() == io::ErrorKind::NotFound => {
                self.create_below(above)?;
                return self.create_below(relative);
            }
            (Err(error), _) if error.kind() == io::ErrorKind::AlreadyExists => {}
            (made, _) => made.map_err(failed(&directory, "making it"))?,
        }
        if let (Controller::Cpuset, Some(above)) = (self.controller, relative.parent()) {
            let parent = self.mount.join(above);
            for name in ["cpuset.cpus", "cpuset.mems"] {
                if !inherit(&parent, &directory, name)? {
                    // Other software made the parent and left it empty.
                    self.create_below(above)?;
                    inherit(&parent, &directory, name)?;
                }
            }
        }
        Ok(())
    }

    /// Kills the processes in it, waits for their end, and removes it. (Version 1 has no `cgroup.kill`.)
    fn remove(&self, at_most: Duration) -> Result<(), CgroupError> {
        let path = self.path();
        let until = Instant::now() + at_most;
        loop {
            match fs::remove_dir(&path) {
                Ok(()) => return Ok(()),
                Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
                Err(source) if source.raw_os_error() != Some(libc::EBUSY) || Instant::now() >= until => {
                    return Err(failed(&path, "removing it")(source));
                }
                Err(_) => {}
            }
            Cgroup { path: path.clone() }.signal(libc::SIGKILL);
            std::thread::sleep(Duration::from_millis(2));
        }
    }
}

/// Opens `tasks` of a directory of version 1, for [`crate::process::Program::v1_groups`]. A thread that moves itself
/// needs no lock on all processes of the machine; with `cgroup.procs` that lock costs an RCU grace period, 10 ms here.
pub fn open_v1_procs(directory: &Path) -> Result<OwnedFd, CgroupError> {
    let file = directory.join("tasks");
    fs::OpenOptions::new().write(true).open(&file).map(OwnedFd::from).map_err(failed(&file, "opening it"))
}

/// Copies the parent's value to a child that has none. `false`: the parent has none either.
fn inherit(parent: &Path, child: &Path, name: &str) -> Result<bool, CgroupError> {
    let file = child.join(name);
    let now = fs::read_to_string(&file).map_err(failed(&file, "reading it"))?;
    if !now.trim().is_empty() {
        return Ok(true);
    }
    let above = parent.join(name);
    let value = fs::read_to_string(&above).map_err(failed(&above, "reading it"))?;
    if value.trim().is_empty() {
        return Ok(false);
    }
    fs::write(&file, value.trim()).map_err(failed(&file, "writing it")).map(|()| true)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hierarchies_of_version_1_are_found_by_their_controllers() {
        let lines = "32 31 0:29 / /sys/fs/cgroup/cpu,cpuacct rw,relatime - cgroup cgroup rw,cpu,cpuacct\n\
                     33 31 0:30 / /sys/fs/cgroup/my\\040cpuset rw - cgroup none rw,cpuset\n\
                     41 31 0:38 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw,cpu\n\
                     37 31 0:34 / /sys/fs/cgroup/systemd rw - cgroup cgroup rw,name=systemd";
        let find = |name: &str| lines.lines().find_map(|line| v1_mount(line, name));
        assert_eq!(find("cpu"), Some(PathBuf::from("/sys/fs/cgroup/cpu,cpuacct")));
        assert_eq!(find("cpuset"), Some(PathBuf::from("/sys/fs/cgroup/my cpuset")));
        assert_eq!(find("memory"), None);
    }

    #[test]
    fn controllers_are_configured_by_name() {
        let read: Vec<Controller> = serde_json::from_str(r#"["cpu","cpuset","memory","pids","io","devices","blkio"]"#).unwrap();
        assert_eq!(read[..6], Controller::ALL);
        assert_eq!(read[6], Controller::Io);
        assert!(serde_json::from_str::<Controller>("\"net_cls\"").is_err());
    }
}

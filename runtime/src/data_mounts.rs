//! The mounts of an allocation in addition to the machine's own view: directories at another path, and scratch in
//! memory.
//!
//! ```text
//!   sources: opened with the owner's rights, and cloned    (before anything hides them)
//!   covers:  a small tmpfs over a root that is empty, or that must show nothing of others
//!   targets: looked up below their root, never through a symlink; then mounted, nosuid,nodev
//! ```
//!
//! Targets are confined to roots that the site chose: a user who could hide `/etc` or `/usr` from a set-user-id program
//! could deceive it.

use crate::image::as_user;
use crate::mounts::{MountError, ensure_mount_point};
use lattice_model::Principal;
use nix::errno::Errno;
use nix::fcntl::{OFlag, OpenHow, ResolveFlag, open, openat2};
use nix::mount::{MsFlags, mount};
use nix::sys::stat::{Mode, mkdirat};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use thiserror::Error;

/// Mount options of a cover. It has only mount points, so it may be small.
const COVER_OPTIONS: &str = "size=64k,nr_inodes=4096,mode=0755";

/// One mount of an allocation, in the shim's configuration.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Mount {
    /// What is mounted.
    pub what: Source,
    /// The site's root that the target is confined to, absolute.
    pub root: PathBuf,
    /// The target below the root; empty: the root itself.
    pub below: PathBuf,
    /// Whether the rest of the root must be hidden.
    pub alone: bool,
}

/// What is mounted at a target.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Source {
    /// A directory of the machine, opened with the owner's rights.
    Directory {
        /// Absolute.
        path: PathBuf,
        /// Whether nothing can be written through it.
        read_only: bool,
    },
    /// A tmpfs of the owner, mode 0700.
    Memory {
        /// Its size limit.
        bytes: u64,
    },
}

impl Mount {
    /// The absolute path of the target.
    pub fn target(&self) -> PathBuf {
        if self.below.as_os_str().is_empty() { self.root.clone() } else { self.root.join(&self.below) }
    }
}

/// Why a mount is not made.
#[derive(Debug, Error)]
pub enum DataMountError {
    /// The owner cannot reach the source, or it is not a directory.
    #[error("mount of {}: {user} cannot reach it on this node", path.display())]
    Source {
        /// As requested.
        path: PathBuf,
        /// The account.
        user: String,
        /// The system's error.
        #[source]
        source: io::Error,
    },
    /// The target does not exist, and its root is not empty.
    #[error(
        "mount target {} is not a directory on this node. Its root {} is not empty, so it is not hidden: an administrator must make \
         the directory, or choose an empty root in data.mount_roots",
        target.display(), root.display()
    )]
    Target {
        /// The target.
        target: PathBuf,
        /// Its root.
        root: PathBuf,
        /// The system's error.
        #[source]
        source: io::Error,
    },
    /// The root cannot be opened or made.
    #[error(transparent)]
    Root(#[from] MountError),
    /// The kernel refused it.
    #[error("mount at {}: {doing}", target.display())]
    Kernel {
        /// The target.
        target: PathBuf,
        /// What was being done.
        doing: &'static str,
        /// The system's error.
        #[source]
        source: io::Error,
    },
}

fn failed(target: &Path, doing: &'static str) -> impl FnOnce(Errno) -> DataMountError {
    let target = target.to_owned();
    move |errno| DataMountError::Kernel { target, doing, source: errno.into() }
}

/// Makes all mounts of an allocation in the caller's own mount namespace.
pub fn make(mounts: &[Mount], owner: &Principal) -> Result<(), DataMountError> {
    // A target inside another one comes after it.
    let mut mounts: Vec<&Mount> = mounts.iter().collect();
    mounts.sort_by_key(|m| m.target().components().count());
    let trees = mounts.iter().map(|m| clone_source(m, owner)).collect::<Result<Vec<_>, _>>()?;
    let mut roots: BTreeMap<&Path, Vec<&Mount>> = BTreeMap::new();
    for mount in &mounts {
        roots.entry(&mount.root).or_default().push(mount);
    }
    let mut covers = Vec::new();
    for (root, of_root) in &roots {
        ensure_mount_point(root)?;
        if is_to_be_covered(root, of_root)? {
            cover(root, of_root)?;
            covers.push(*root);
        }
    }
    for (mount, tree) in mounts.iter().zip(&trees) {
        attach(mount, tree.as_ref(), owner)?;
    }
    let sealed = MsFlags::MS_REMOUNT | MsFlags::MS_BIND | MsFlags::MS_RDONLY | MsFlags::MS_NOSUID | MsFlags::MS_NODEV;
    for root in covers {
        nix::mount::mount(None::<&str>, root, None::<&str>, sealed, None::<&str>).map_err(failed(root, "sealing its cover"))?;
    }
    Ok(())
}

/// The source as a detached mount.
fn clone_source(mount: &Mount, owner: &Principal) -> Result<Option<OwnedFd>, DataMountError> {
    let Source::Directory { path, read_only } = &mount.what else { return Ok(None) };
    let unreachable = |source| DataMountError::Source { path: path.clone(), user: owner.name.clone(), source };
    let opened = as_user(owner, || open(path, OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC, Mode::empty()));
    let opened = opened.map_err(unreachable)?.map_err(|errno| unreachable(errno.into()))?;
    let tree = open_tree(opened.as_fd()).map_err(failed(&mount.target(), "cloning its source"))?;
    let mut attributes = MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV;
    if *read_only {
        attributes |= MOUNT_ATTR_RDONLY;
    }
    set_attributes(tree.as_fd(), attributes).map_err(failed(&mount.target(), "making it nosuid,nodev"))?;
    Ok(Some(tree))
}

fn is_to_be_covered(root: &Path, mounts: &[&Mount]) -> Result<bool, DataMountError> {
    if mounts.iter().any(|m| m.alone) {
        return Ok(true);
    }
    let directory = open_root(root)?;
    let missing = mounts.iter().find_map(|m| Some((*m, look_for(directory.as_fd(), &m.below).err()?)));
    let Some((mount, errno)) = missing else { return Ok(false) };
    let empty = fs::read_dir(root).is_ok_and(|mut entries| entries.next().is_none());
    match (empty, is_inside(mount, mounts)) {
        (true, _) => Ok(true),
        (false, true) => Ok(false),
        (false, false) => Err(DataMountError::Target { target: mount.target(), root: root.to_owned(), source: errno.into() }),
    }
}

/// Whether a target is inside another target: it need not exist before that one is mounted.
fn is_inside(mount: &Mount, mounts: &[&Mount]) -> bool {
    mounts.iter().any(|m| m.below != mount.below && mount.below.starts_with(&m.below))
}

/// Hides a root behind an empty tmpfs with the targets' directories in it.
fn cover(root: &Path, mounts: &[&Mount]) -> Result<(), DataMountError> {
    let flags = MsFlags::MS_NOSUID | MsFlags::MS_NODEV;
    mount(Some("lattice"), root, Some("tmpfs"), flags, Some(COVER_OPTIONS)).map_err(failed(root, "covering it"))?;
    for mount in mounts.iter().filter(|m| !is_inside(m, mounts)) {
        let mut directory = open_root(root)?;
        for name in &mount.below {
            match mkdirat(&directory, name, Mode::from_bits_truncate(0o755)) {
                Ok(()) | Err(Errno::EEXIST) => {}
                Err(errno) => return Err(failed(&mount.target(), "making its directory")(errno)),
            }
            directory = look_for(directory.as_fd(), Path::new(name)).map_err(failed(&mount.target(), "making its directory"))?;
        }
    }
    Ok(())
}

fn attach(mount: &Mount, tree: Option<&OwnedFd>, owner: &Principal) -> Result<(), DataMountError> {
    let target = mount.target();
    let root = open_root(&mount.root)?;
    let missing = |errno: Errno| DataMountError::Target { target: target.clone(), root: mount.root.clone(), source: errno.into() };
    let place = look_for(root.as_fd(), &mount.below).map_err(missing)?;
    match (&mount.what, tree) {
        (Source::Memory { bytes }, _) => {
            let options = format!("size={bytes},mode=0700,uid={},gid={}", owner.uid, owner.gid);
            let at = format!("/proc/self/fd/{}", place.as_raw_fd());
            let flags = MsFlags::MS_NOSUID | MsFlags::MS_NODEV;
            nix::mount::mount(Some("lattice-scratch"), at.as_str(), Some("tmpfs"), flags, Some(options.as_str()))
                .map_err(failed(&target, "mounting memory"))
        }
        (Source::Directory { .. }, Some(tree)) => move_mount(tree.as_fd(), place.as_fd()).map_err(failed(&target, "mounting it")),
        (Source::Directory { .. }, None) => Ok(()),
    }
}

fn open_root(root: &Path) -> Result<OwnedFd, DataMountError> {
    open(root, OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC, Mode::empty()).map_err(failed(root, "opening its root"))
}

/// The directory at `below`, without leaving `root` and through no symlink: a user may own parts of the path.
fn look_for(root: BorrowedFd<'_>, below: &Path) -> Result<OwnedFd, Errno> {
    let path = if below.as_os_str().is_empty() { Path::new(".") } else { below };
    let how = OpenHow::new()
        .flags(OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC)
        .resolve(ResolveFlag::RESOLVE_BENEATH | ResolveFlag::RESOLVE_NO_SYMLINKS | ResolveFlag::RESOLVE_NO_MAGICLINKS);
    openat2(root, path, how)
}

// From linux/mount.h and linux/fcntl.h. (Linux 5.12 has all of them; clone3 into a cgroup needs 5.7 anyway.)
const OPEN_TREE_CLONE: libc::c_uint = 1;
const MOUNT_ATTR_RDONLY: u64 = 1;
const MOUNT_ATTR_NOSUID: u64 = 2;
const MOUNT_ATTR_NODEV: u64 = 4;
const MOVE_MOUNT_F_EMPTY_PATH: libc::c_uint = 0x4;
const MOVE_MOUNT_T_EMPTY_PATH: libc::c_uint = 0x40;
const AT_RECURSIVE: libc::c_int = 0x8000;

/// `struct mount_attr`.
#[repr(C)]
struct MountAttributes {
    set: u64,
    clear: u64,
    propagation: u64,
    user_namespace: u64,
}

/// A copy of the mounts at and below an open directory, detached.
fn open_tree(directory: BorrowedFd<'_>) -> Result<OwnedFd, Errno> {
    let flags = OPEN_TREE_CLONE | (libc::O_CLOEXEC | libc::AT_EMPTY_PATH | AT_RECURSIVE).cast_unsigned();
    // SAFETY: integers and a string that lives; the kernel makes a descriptor for us.
    unsafe {
        let fd = Errno::result(libc::syscall(libc::SYS_open_tree, directory.as_raw_fd(), c"".as_ptr(), flags))?;
        Ok(OwnedFd::from_raw_fd(i32::try_from(fd).map_err(|_| Errno::EBADF)?))
    }
}

/// Whether this kernel can add attributes to a whole tree of mounts: every mount made here needs that.
pub fn has_mount_attributes() -> bool {
    // SAFETY: a size of 0 is refused before anything is read, if the call exists.
    let done = unsafe { libc::syscall(libc::SYS_mount_setattr, -1, c"".as_ptr(), 0, std::ptr::null::<MountAttributes>(), 0usize) };
    Errno::result(done) != Err(Errno::ENOSYS)
}

/// Adds attributes to a tree; existing ones (noexec, for example) stay.
fn set_attributes(tree: BorrowedFd<'_>, set: u64) -> Result<(), Errno> {
    let attributes = MountAttributes { set, clear: 0, propagation: 0, user_namespace: 0 };
    let flags = libc::AT_EMPTY_PATH | AT_RECURSIVE;
    // SAFETY: the structure and the string live until the call returns, and its size is given.
    let done = unsafe {
        libc::syscall(libc::SYS_mount_setattr, tree.as_raw_fd(), c"".as_ptr(), flags, &raw const attributes, size_of::<MountAttributes>())
    };
    Errno::result(done).map(drop)
}

/// Attaches a tree at an open directory.
fn move_mount(tree: BorrowedFd<'_>, place: BorrowedFd<'_>) -> Result<(), Errno> {
    let flags = MOVE_MOUNT_F_EMPTY_PATH | MOVE_MOUNT_T_EMPTY_PATH;
    // SAFETY: integers and strings that live.
    let done = unsafe { libc::syscall(libc::SYS_move_mount, tree.as_raw_fd(), c"".as_ptr(), place.as_raw_fd(), c"".as_ptr(), flags) };
    Errno::result(done).map(drop)
}

//! A limit on the bytes below a directory: project quota of ext4 (`mkfs -O quota,project`, mounted with `prjquota`) and
//! XFS (`pquota`). Files that are made below a directory of a project belong to that project. An owner can move their
//! own files into another project and so escape the limit (Linux allows that outside of user namespaces): it is for
//! programs, not against attackers.
//!
//! Sources: quotactl(2), quotactl_fd(2) (Linux 5.14), and the kernel's include/uapi/linux/{quota,dqblk_xfs,fs}.h.
//!
//! Rejected: a file system in a file (seconds of mkfs at each start, and all of its space at once), and LVM (needs a
//! volume group and its tools). Project quota costs a few system calls.

use nix::errno::Errno;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};

/// The kind of quota: projects.
const PRJQUOTA: u32 = 2;
const Q_GETQUOTA: u32 = 0x80_0007;
const Q_SETQUOTA: u32 = 0x80_0008;
/// Whether quota is on.
const Q_XGETQSTATV: u32 = 0x5808;
/// In [`State::flags`]: limits of projects are enforced.
const FS_QUOTA_PDQ_ENFD: u16 = 1 << 5;
/// In [`Limit::valid`]: the block limits are valid.
const QIF_BLIMITS: u32 = 1;
/// The unit of a limit, in bytes.
const LIMIT_UNIT_BYTES: u64 = 1024;
const FS_IOC_FSGETXATTR: libc::Ioctl = 0x801c_581f;
const FS_IOC_FSSETXATTR: libc::Ioctl = 0x401c_5820;
/// In [`Attributes::flags`]: new files below are in the same project.
const FS_XFLAG_PROJINHERIT: u32 = 0x200;
/// The first of our project numbers, beyond those that sites assign by hand.
const PROJECT_FIRST: u32 = 0x4000_0000;
/// Projects that are tried before giving up.
const PROJECT_TRIES_MAX: u32 = 1024;

/// `struct if_dqblk`
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Limit {
    hard: u64,
    soft: u64,
    used_bytes: u64,
    files_hard: u64,
    files_soft: u64,
    files_used: u64,
    block_time: u64,
    file_time: u64,
    valid: u32,
}

/// `struct fs_quota_statv`
#[repr(C)]
#[derive(Clone, Copy)]
struct State {
    version: i8,
    pad: u8,
    flags: u16,
    rest: [u32; 39],
}

/// `struct fsxattr`
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Attributes {
    flags: u32,
    extent_size: u32,
    extents: u32,
    project: u32,
    cow_extent_size: u32,
    pad: [u8; 8],
}

fn quotactl<T>(directory: BorrowedFd<'_>, command: u32, project: u32, about: &mut T) -> io::Result<()> {
    let command = (command << 8) | PRJQUOTA;
    // SAFETY: an open descriptor, and for each of our commands a structure of the kernel's layout that outlives the
    // call.
    let done = unsafe { libc::syscall(libc::SYS_quotactl_fd, directory.as_raw_fd(), command, project, std::ptr::from_mut(about)) };
    Errno::result(done).map(drop).map_err(io::Error::from)
}

/// Whether a limit on this directory would be enforced.
pub fn is_enforced(directory: impl AsFd) -> bool {
    let mut state = State { version: 1, pad: 0, flags: 0, rest: [0; 39] };
    quotactl(directory.as_fd(), Q_XGETQSTATV, 0, &mut state).is_ok() && state.flags & FS_QUOTA_PDQ_ENFD != 0
}

/// The limit and usage of a project; all zero if it was never used.
fn read_limit(directory: BorrowedFd<'_>, project: u32) -> io::Result<Limit> {
    let mut limit = Limit::default();
    match quotactl(directory, Q_GETQUOTA, project, &mut limit) {
        Err(error) if error.raw_os_error() == Some(libc::ENOENT) => Ok(Limit::default()),
        done => done.map(|()| limit),
    }
}

fn write_limit(directory: BorrowedFd<'_>, project: u32, bytes: u64) -> io::Result<()> {
    let blocks = bytes.div_ceil(LIMIT_UNIT_BYTES);
    quotactl(directory, Q_SETQUOTA, project, &mut Limit { hard: blocks, soft: blocks, valid: QIF_BLIMITS, ..Limit::default() })
}

fn attributes(directory: BorrowedFd<'_>) -> io::Result<Attributes> {
    let mut attributes = Attributes::default();
    // SAFETY: an open descriptor and a structure of the kernel's layout that outlives the call.
    Errno::result(unsafe { libc::ioctl(directory.as_raw_fd(), FS_IOC_FSGETXATTR, &raw mut attributes) })?;
    Ok(attributes)
}

/// Limits what is below an empty directory to this many bytes; 0 would be no limit. Uses the first unused project
/// number from `first_tried` on. May be repeated; the directory then keeps its project.
///
/// # Errors
/// Errors of the file system; or all projects that were tried are in use.
pub fn limit(directory: impl AsFd, first_tried: u32, bytes: u64) -> io::Result<()> {
    let directory = directory.as_fd();
    let now = attributes(directory)?;
    if now.project >= PROJECT_FIRST && now.flags & FS_XFLAG_PROJINHERIT != 0 {
        return write_limit(directory, now.project, bytes);
    }
    for number in 0..PROJECT_TRIES_MAX {
        let project = PROJECT_FIRST | (first_tried.wrapping_add(number) & (PROJECT_FIRST - 1));
        let Limit { hard, used_bytes, files_used, .. } = read_limit(directory, project)?;
        if (hard, used_bytes, files_used) != (0, 0, 0) {
            continue;
        }
        // The limit first, so that each directory with a project has a limit.
        write_limit(directory, project, bytes)?;
        let then = Attributes { flags: now.flags | FS_XFLAG_PROJINHERIT, project, ..now };
        // SAFETY: as in `attributes`.
        Errno::result(unsafe { libc::ioctl(directory.as_raw_fd(), FS_IOC_FSSETXATTR, &raw const then) })?;
        return Ok(());
    }
    Err(io::Error::other(format!(
        "{PROJECT_TRIES_MAX} quota projects from {} on are in use",
        PROJECT_FIRST | (first_tried & (PROJECT_FIRST - 1))
    )))
}

/// Removes the limit of [`limit()`], if there is one. Call it before the directory is removed: the number of the
/// project is only in the directory's attributes.
pub fn lift(directory: impl AsFd) -> io::Result<()> {
    let directory = directory.as_fd();
    match attributes(directory) {
        Ok(now) if now.project >= PROJECT_FIRST => write_limit(directory, now.project, 0),
        // A file system without such attributes has no limits either.
        Ok(_) | Err(_) => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;

    #[test]
    fn the_structures_are_as_long_as_the_kernels() {
        assert_eq!((size_of::<Limit>(), size_of::<State>(), size_of::<Attributes>()), (72, 160, 28));
    }

    /// Enforcement is tested in a guest machine (lab/tests/guest): hardly any test machine has quota switched on.
    #[test]
    fn a_file_system_without_project_quota_is_reported() {
        let proc = File::open("/proc").unwrap();
        assert!(!is_enforced(&proc));
        assert!(limit(&proc, 1, 1 << 20).is_err());
        lift(&proc).unwrap();
    }
}

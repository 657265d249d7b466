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
const PROJECT: u32 = 2;
const GET: u32 = 0x80_0007;
const SET: u32 = 0x80_0008;
/// `Q_XGETQSTATV`: whether quota is on.
const STATE: u32 = 0x5808;
/// In [`State::flags`]: limits of projects are enforced.
const ENFORCED: u16 = 1 << 5;
/// In [`Limit::valid`]: the block limits are valid.
const BLOCKS: u32 = 1;
/// The unit of a limit, in bytes.
const UNIT: u64 = 1024;
const GET_ATTRIBUTES: libc::Ioctl = 0x801c_581f;
const SET_ATTRIBUTES: libc::Ioctl = 0x401c_5820;
/// In [`Attributes::flags`]: new files below are in the same project.
const INHERITED: u32 = 0x200;
/// The first of our project numbers, beyond those that sites assign by hand.
const FIRST: u32 = 0x4000_0000;
/// Projects that are tried before giving up.
const TRIES: u32 = 1024;

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
    let command = (command << 8) | PROJECT;
    // SAFETY: an open descriptor, and for each of our commands a structure of the kernel's layout that outlives the
    // call.
    let done = unsafe { libc::syscall(libc::SYS_quotactl_fd, directory.as_raw_fd(), command, project, std::ptr::from_mut(about)) };
    Errno::result(done).map(drop).map_err(io::Error::from)
}

/// Whether a limit on this directory would be enforced.
pub fn is_enforced(directory: impl AsFd) -> bool {
    let mut state = State { version: 1, pad: 0, flags: 0, rest: [0; 39] };
    quotactl(directory.as_fd(), STATE, 0, &mut state).is_ok() && state.flags & ENFORCED != 0
}

/// The limit and usage of a project; all zero if it was never used.
fn look(directory: BorrowedFd<'_>, project: u32) -> io::Result<Limit> {
    let mut limit = Limit::default();
    match quotactl(directory, GET, project, &mut limit) {
        Err(error) if error.raw_os_error() == Some(libc::ENOENT) => Ok(Limit::default()),
        done => done.map(|()| limit),
    }
}

fn set(directory: BorrowedFd<'_>, project: u32, bytes: u64) -> io::Result<()> {
    let blocks = bytes.div_ceil(UNIT);
    quotactl(directory, SET, project, &mut Limit { hard: blocks, soft: blocks, valid: BLOCKS, ..Limit::default() })
}

fn attributes(directory: BorrowedFd<'_>) -> io::Result<Attributes> {
    let mut attributes = Attributes::default();
    // SAFETY: an open descriptor and a structure of the kernel's layout that outlives the call.
    Errno::result(unsafe { libc::ioctl(directory.as_raw_fd(), GET_ATTRIBUTES, &raw mut attributes) })?;
    Ok(attributes)
}

/// Limits what is below an empty directory to this many bytes; 0 would be no limit. Uses the first unused project from
/// `like` on. May be repeated; the directory then keeps its project.
///
/// # Errors
/// Errors of the file system; or all projects that were tried are in use.
pub fn limit(directory: impl AsFd, like: u32, bytes: u64) -> io::Result<()> {
    let directory = directory.as_fd();
    let now = attributes(directory)?;
    if now.project >= FIRST && now.flags & INHERITED != 0 {
        return set(directory, now.project, bytes);
    }
    for number in 0..TRIES {
        let project = FIRST | (like.wrapping_add(number) & (FIRST - 1));
        let Limit { hard, used_bytes, files_used, .. } = look(directory, project)?;
        if (hard, used_bytes, files_used) != (0, 0, 0) {
            continue;
        }
        // The limit first, so that each directory with a project has a limit.
        set(directory, project, bytes)?;
        let then = Attributes { flags: now.flags | INHERITED, project, ..now };
        // SAFETY: as in `attributes`.
        Errno::result(unsafe { libc::ioctl(directory.as_raw_fd(), SET_ATTRIBUTES, &raw const then) })?;
        return Ok(());
    }
    Err(io::Error::other(format!("{TRIES} quota projects from {} on are in use", FIRST | (like & (FIRST - 1)))))
}

/// Removes the limit of [`limit()`], if there is one. Call it before the directory is removed: the number of the
/// project is only in the directory's attributes.
pub fn lift(directory: impl AsFd) -> io::Result<()> {
    let directory = directory.as_fd();
    match attributes(directory) {
        Ok(now) if now.project >= FIRST => set(directory, now.project, 0),
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
    fn where_there_is_none_it_is_said() {
        let proc = File::open("/proc").unwrap();
        assert!(!is_enforced(&proc));
        assert!(limit(&proc, 1, 1 << 20).is_err());
        lift(&proc).unwrap();
    }
}

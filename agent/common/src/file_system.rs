//! Which file system a directory is on, and whether other nodes may mount the same one.
//!
//! `checkpoint.dir` must belong to one node: its files (answers, a memory page) are named only by
//! the allocation, so nodes that shared it would answer for each other. File systems are recognised
//! by the kernel's name of their type, so that no server needs to answer. An unknown type counts as
//! local: a wrong refusal would exclude a node from work.

use nix::errno::Errno;
use nix::fcntl::{OFlag, open};
use nix::sys::stat::Mode;
use std::fs;
use std::io;
use std::os::fd::AsRawFd;
use std::path::Path;

/// Types of file systems that other machines may mount as well, with the names that
/// `/proc/self/mountinfo` has.
const SHARED: &[&str] = &[
    "afs", "beegfs", "ceph", "cifs", "dvs", "gfs2", "gpfs", "lustre", "nfs", "nfs4", "ocfs2", "orangefs", "panfs", "pvfs2", "smb3",
    "smbfs", "wekafs",
];
/// The same for FUSE programs, whose type is `fuse.NAME`.
const SHARED_FUSE: &[&str] = &[
    "beegfs",
    "ceph",
    "ceph-fuse",
    "cvmfs2",
    "gcsfuse",
    "glusterfs",
    "goofys",
    "juicefs",
    "lizardfs",
    "mfs",
    "rclone",
    "s3fs",
    "seaweedfs",
    "sshfs",
];

/// The type of the file system that a directory is on, or would be on once it is created. If `dir`
/// itself is below a known network mount, its server gets no request, because it may be
/// unreachable; a symbolic link to such a mount is followed, which may wait for the server.
pub fn kind_of(dir: &Path) -> io::Result<String> {
    let mounts = fs::read_to_string("/proc/self/mountinfo")?;
    if let Some(kind) = kind_by_path(&mounts, dir).filter(|kind| is_shared(kind)) {
        return Ok(kind.to_owned());
    }
    // Symbolic links in the path may lead to another mount, so the opened directory decides.
    let flags = OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
    let mut there = dir;
    let opened = loop {
        match (open(there, flags, Mode::empty()), there.parent()) {
            (Ok(opened), _) => break opened,
            (Err(Errno::ENOENT), Some(above)) => there = above,
            (Err(error), _) => return Err(error.into()),
        }
    };
    let about = fs::read_to_string(format!("/proc/self/fdinfo/{}", opened.as_raw_fd()))?;
    let id = about.lines().find_map(|line| line.strip_prefix("mnt_id:")).map(str::trim).unwrap_or_default();
    kind_of_mount(&mounts, id).ok_or_else(|| io::Error::other(format!("its mount {id:?} is not in /proc/self/mountinfo")))
}

/// The type of the mount with this id in the text of mountinfo.
fn kind_of_mount(mounts: &str, id: &str) -> Option<String> {
    let line = mounts.lines().find(|line| line.split(' ').next() == Some(id))?;
    line.split_once(" - ")?.1.split(' ').next().map(str::to_owned)
}

/// The type of the mount that contains `dir`, by path alone: the longest mount point wins, and of
/// two at the same path the later one, which lies on top.
fn kind_by_path<'a>(mounts: &'a str, dir: &Path) -> Option<&'a str> {
    let all = mounts.lines().filter_map(|line| {
        let (mount, kind) = line.split_once(" - ")?;
        Some((mount.split(' ').nth(4)?, kind.split(' ').next()?))
    });
    all.filter(|(point, _)| dir.starts_with(point)).max_by_key(|(point, _)| point.len()).map(|(_, kind)| kind)
}

/// Whether other nodes may mount a file system of this type as well.
pub fn is_shared(kind: &str) -> bool {
    SHARED.contains(&kind) || kind.strip_prefix("fuse.").is_some_and(|program| SHARED_FUSE.contains(&program))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_that_is_not_there_yet_would_be_on_the_file_system_above() {
        assert_eq!(kind_of(Path::new("/proc")).unwrap(), "proc");
        let dir = std::env::temp_dir();
        let kind = kind_of(&dir).unwrap();
        assert_eq!(kind_of(&dir.join("not/yet")).unwrap(), kind);
        assert!(!kind.is_empty() && kind_of(Path::new("/proc/self/stat")).is_err());
    }

    #[test]
    fn shared_file_systems_are_recognised_by_their_type() {
        let mounts = "22 1 8:1 / / rw - ext4 /dev/sda1 rw\n30 22 0:40 /a /home rw shared:1 - nfs4 server:/home rw\n";
        assert_eq!(
            (kind_of_mount(mounts, "30").as_deref(), kind_of_mount(mounts, "22").as_deref(), kind_of_mount(mounts, "3")),
            (Some("nfs4"), Some("ext4"), None)
        );
        assert_eq!((kind_by_path(mounts, Path::new("/home/x")), kind_by_path(mounts, Path::new("/homes"))), (Some("nfs4"), Some("ext4")));
        assert!(["nfs4", "lustre", "gpfs", "beegfs", "ceph", "cifs", "fuse.sshfs", "fuse.glusterfs"].into_iter().all(is_shared));
        assert!(!["ext4", "xfs", "tmpfs", "overlay", "zfs", "fuse", "fuse.squashfuse", "sshfs", "fuseblk"].into_iter().any(is_shared));
    }
}

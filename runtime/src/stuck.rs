//! Why a process does not end, as far as `/proc` shows it. This module reads no other file system: the one on which the
//! process hangs would hang us too.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

/// How many open files are examined.
const FILES_MAX: usize = 256;
/// How many mounts are named in the text.
const MOUNTS_MAX: usize = 3;
/// Kinds of file systems with a server that may be unreachable, by the beginning of their names.
const REMOTE: [&str; 12] = ["nfs", "fuse", "lustre", "ceph", "cifs", "smb", "9p", "gpfs", "beegfs", "afs", "autofs", "dvs"];

/// Describes a process: `pid 77, state D, in rpc_wait_bit_killable, with files on /home (nfs4)`.
pub fn describe(pid: i32) -> String {
    let process = PathBuf::from(format!("/proc/{pid}"));
    let mut text = format!("pid {pid}");
    if let Some(state) = fs::read_to_string(process.join("stat")).ok().and_then(|stat| state_in(&stat)) {
        text.push_str(&format!(", state {state}"));
    }
    // `0` if the process waits for nothing in the kernel, or if we may not read it.
    if let Some(place) = fs::read_to_string(process.join("wchan")).ok().filter(|place| !place.is_empty() && place != "0") {
        text.push_str(&format!(", in {}", place.trim()));
    }
    let mounts = fs::read_to_string(process.join("mountinfo")).unwrap_or_default();
    let links = ["cwd", "exe"].map(|link| process.join(link)).into_iter();
    let open = fs::read_dir(process.join("fd")).into_iter().flatten().flatten().take(FILES_MAX).map(|entry| entry.path());
    let files = links.chain(open).filter_map(|link| fs::read_link(link).ok());
    let on: BTreeSet<String> = files.filter_map(|file| remote_mount(&mounts, &file)).collect();
    if !on.is_empty() {
        let named: Vec<String> = on.into_iter().take(MOUNTS_MAX).collect();
        text.push_str(&format!(", with files on {}", named.join(", ")));
    }
    text
}

/// The state letter in the text of `/proc/<pid>/stat`.
fn state_in(stat: &str) -> Option<char> {
    stat.rsplit_once(") ")?.1.chars().next()
}

/// The mount with the file, from the process's own mounts, if its file system is of a kind with a server that may be
/// unreachable.
fn remote_mount(mountinfo: &str, file: &Path) -> Option<String> {
    let mounts = mountinfo.lines().filter_map(|line| {
        let (mount, kind) = line.split_once(" - ")?;
        Some((mount.split(' ').nth(4)?, kind.split(' ').next()?))
    });
    // The longest mount point is the file's mount; of two at one path, the later one is on top.
    let (point, kind) = mounts.filter(|(point, _)| file.starts_with(point)).max_by_key(|(point, _)| point.len())?;
    REMOTE.iter().any(|remote| kind.starts_with(remote)).then(|| format!("{point} ({kind})"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_is_described_with_its_state() {
        let own = describe(i32::try_from(std::process::id()).unwrap());
        // The first thread may wait for this one, or run.
        assert!(["R", "S"].iter().any(|state| own.starts_with(&format!("pid {}, state {state}", std::process::id()))), "{own}");
        assert_eq!(state_in("77 (a) D b) D 1 2"), Some('D'));
        assert_eq!(describe(i32::MAX), format!("pid {}", i32::MAX));
    }

    #[test]
    fn the_mount_of_a_file_is_named_where_its_server_may_be_away() {
        let mounts = "\
22 1 8:1 / / rw - ext4 /dev/sda1 rw
30 22 0:40 / /home rw shared:1 - nfs4 server:/home rw
31 30 0:41 / /home/scratch rw - xfs /dev/sdb rw
32 22 0:42 / /w rw - fuse.sshfs x rw
";
        let on = |file: &str| remote_mount(mounts, Path::new(file));
        assert_eq!(on("/home/ada/x"), Some("/home (nfs4)".into()));
        assert_eq!((on("/home/scratch/x"), on("/etc/passwd"), on("/homes")), (None, None, None));
        assert_eq!(on("/w"), Some("/w (fuse.sshfs)".into()));
    }
}

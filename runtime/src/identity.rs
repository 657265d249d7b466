//! Accounts of this machine, and identities of processes.

use lattice_model::{Boot, Principal};
use nix::errno::Errno;
use nix::unistd::{Gid, User, getgrouplist};
use std::ffi::CString;
use std::fs;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use thiserror::Error;

/// A principal that does not match the account with that name on this machine.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum Mismatch {
    /// No such account.
    #[error("this node knows no account {name:?}")]
    Unknown {
        /// The account's name.
        name: String,
    },
    /// The account has another uid or gid here.
    #[error("account {name:?} is uid {uid}, gid {gid} where the work was submitted, but uid {uid_here}, gid {gid_here} on this node")]
    Differs {
        /// The account's name.
        name: String,
        /// As submitted.
        uid: u32,
        /// As submitted.
        gid: u32,
        /// On this machine.
        uid_here: u32,
        /// On this machine.
        gid_here: u32,
    },
    /// Supplementary groups that the account does not have on this node.
    #[error("account {name:?} was submitted with groups that it does not have on this node (gid {})", joined(groups))]
    Groups {
        /// The account's name.
        name: String,
        /// The group ids that are claimed and that the account does not have here.
        groups: Vec<u32>,
    },
    /// The account database did not answer.
    #[error("account {name:?} cannot be looked up on this node: {errno}")]
    Lookup {
        /// The account's name.
        name: String,
        /// The lookup's error.
        errno: Errno,
    },
}

fn joined(gids: &[u32]) -> String {
    gids.iter().map(u32::to_string).collect::<Vec<_>>().join(", ")
}

/// Looks the principal's account up by its name and returns it as this machine knows it, with the groups of its own
/// name service.
///
/// # Errors
/// The account is unknown, has another uid or primary group here, or lacks a group here that the principal claims.
pub fn resolve(principal: &Principal) -> Result<Principal, Mismatch> {
    let name = principal.name.clone();
    let user = match User::from_name(&name) {
        Ok(Some(user)) => user,
        Ok(None) => return Err(Mismatch::Unknown { name }),
        Err(errno) => return Err(Mismatch::Lookup { name, errno }),
    };
    let (uid, gid) = (user.uid.as_raw(), user.gid.as_raw());
    if (uid, gid) != (principal.uid, principal.gid) {
        return Err(Mismatch::Differs { name, uid: principal.uid, gid: principal.gid, uid_here: uid, gid_here: gid });
    }
    let groups = CString::new(name.as_str()).map_err(|_| Errno::EINVAL).and_then(|c_name| getgrouplist(&c_name, user.gid));
    let groups: Vec<u32> = match groups {
        Ok(groups) => groups.into_iter().map(Gid::as_raw).collect(),
        Err(errno) => return Err(Mismatch::Lookup { name, errno }),
    };
    let not_held: Vec<u32> = principal.groups.iter().copied().filter(|claimed| !groups.contains(claimed)).collect();
    if !not_held.is_empty() {
        return Err(Mismatch::Groups { name, groups: not_held });
    }
    Ok(Principal { name, uid, gid, groups })
}

/// The kernel's boot id.
pub fn boot_id() -> io::Result<Boot> {
    let text = fs::read_to_string("/proc/sys/kernel/random/boot_id")?;
    text.trim().parse().map_err(io::Error::other)
}

/// The fields of `/proc/<pid>/stat` that are used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProcessStat {
    /// Its parent.
    pub parent: i32,
    /// Its process group.
    pub group: i32,
    /// Its session.
    pub session: i32,
    /// When it started, in clock ticks since boot.
    pub start_ticks: u64,
    /// Whether it has ended and only waits to be reaped.
    pub zombie: bool,
    /// Whether it is ending or has ended: it executes nothing any more, though the kernel may not have closed its files
    /// yet.
    pub ending: bool,
}

/// `PF_EXITING` of the kernel's `include/linux/sched.h`, in the flags of a task (field 9).
const PF_EXITING: u64 = 0x4;

/// Reads `/proc/<pid>/stat`. `NotFound` when there is no such process.
pub fn process_stat(pid: i32) -> io::Result<ProcessStat> {
    let text = fs::read(format!("/proc/{pid}/stat"))?;
    parse_stat(&String::from_utf8_lossy(&text)).ok_or_else(|| io::Error::other(format!("/proc/{pid}/stat has an unknown form")))
}

/// Field numbers as in proc_pid_stat(5). The name (2) is in brackets and may contain anything, so fields are counted
/// from the last closing bracket.
fn parse_stat(text: &str) -> Option<ProcessStat> {
    let fields: Vec<&str> = text[text.rfind(')')? + 1..].split_ascii_whitespace().collect();
    let field = |number: usize| fields.get(number - 3).copied();
    let zombie = matches!(field(3)?, "Z" | "X");
    Some(ProcessStat {
        zombie,
        ending: zombie || field(9)?.parse::<u64>().ok()? & PF_EXITING != 0,
        parent: field(4)?.parse().ok()?,
        group: field(5)?.parse().ok()?,
        session: field(6)?.parse().ok()?,
        start_ticks: field(22)?.parse().ok()?,
    })
}

/// When a process started, in clock ticks since boot. With boot id, pid and [`pidfd_inode`] this identifies a process.
pub fn start_ticks(pid: i32) -> io::Result<u64> {
    process_stat(pid).map(|s| s.start_ticks)
}

/// All living processes below `root` (children, their children, …), from one reading of `/proc`.
pub fn descendants(root: i32) -> Vec<(i32, ProcessStat)> {
    let pids = fs::read_dir("/proc").into_iter().flatten().flatten().filter_map(|e| e.file_name().to_str()?.parse::<i32>().ok());
    below(root, pids.filter_map(|pid| Some((pid, process_stat(pid).ok()?))).collect())
}

/// As [`descendants`], but a process that cannot be read is an error.
pub fn descendants_or_error(root: i32) -> io::Result<Vec<(i32, ProcessStat)>> {
    let mut all = Vec::new();
    for entry in fs::read_dir("/proc")? {
        let Some(pid) = entry?.file_name().to_str().and_then(|name| name.parse().ok()) else { continue };
        match process_stat(pid) {
            Ok(stat) => all.push((pid, stat)),
            Err(error) if error.kind() == io::ErrorKind::NotFound || error.raw_os_error() == Some(libc::ESRCH) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(below(root, all))
}

fn below(root: i32, mut left: Vec<(i32, ProcessStat)>) -> Vec<(i32, ProcessStat)> {
    let mut parents = vec![root];
    let mut found = Vec::new();
    while let Some(parent) = parents.pop() {
        let (children, rest): (Vec<_>, Vec<_>) = left.into_iter().partition(|(_, stat)| stat.parent == parent);
        left = rest;
        parents.extend(children.iter().map(|(pid, _)| *pid));
        found.extend(children.into_iter().filter(|(_, stat)| !stat.zombie));
    }
    found
}

/// A descriptor of a living process (or zombie). It never refers to another process.
pub fn pidfd_open(pid: i32) -> io::Result<OwnedFd> {
    // SAFETY: takes two integers and gives a new descriptor or -1.
    let fd = Errno::result(unsafe { libc::syscall(libc::SYS_pidfd_open, pid, 0) })?;
    // SAFETY: the kernel has just made it for us.
    Ok(unsafe { OwnedFd::from_raw_fd(i32::try_from(fd).map_err(io::Error::other)?) })
}

/// The inode of a pidfd. With pidfs (Linux 6.9) it is unique until the next boot; before, all pidfds have the same.
pub fn pidfd_inode(pidfd: BorrowedFd<'_>) -> io::Result<u64> {
    Ok(nix::sys::stat::fstat(pidfd)?.st_ino)
}

/// Sends a signal through a pidfd. `ESRCH` when the process is gone.
pub fn pidfd_signal(pidfd: BorrowedFd<'_>, signal: i32) -> io::Result<()> {
    // SAFETY: a borrowed descriptor, an integer, no siginfo, no flags.
    Errno::result(unsafe {
        libc::syscall(libc::SYS_pidfd_send_signal, pidfd.as_raw_fd(), signal, std::ptr::null::<libc::siginfo_t>(), 0)
    })?;
    Ok(())
}

/// Whether the process of a pidfd has ended, without waiting. (A pidfd is readable from then on, so an event loop can
/// wait for it.)
pub fn pidfd_ended(pidfd: BorrowedFd<'_>) -> io::Result<bool> {
    use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
    let mut fds = [PollFd::new(pidfd, PollFlags::POLLIN)];
    Ok(poll(&mut fds, PollTimeout::ZERO)? > 0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsFd;

    #[test]
    fn a_process_name_full_of_brackets_does_not_shift_fields() {
        let line = "77 (a) R 9 9 (b) S 5 77 78 0 -1 4194304 1 2 3 4 5 6 7 8 20 0 1 0 424242 9 9";
        assert_eq!(
            parse_stat(line),
            Some(ProcessStat { parent: 5, group: 77, session: 78, start_ticks: 424_242, zombie: false, ending: false })
        );
        assert_eq!(parse_stat("77 (a"), None);
        assert_eq!(parse_stat("77 (a) Z 1"), None);
    }

    #[test]
    fn an_account_is_resolved_by_name_uid_and_group() {
        let root = Principal { name: "root".into(), uid: 0, gid: 0, groups: vec![] };
        let here = resolve(&root).unwrap();
        assert!(here.uid == 0 && here.gid == 0 && here.groups.contains(&0), "the groups are this machine's: {here:?}");
        assert!(matches!(resolve(&Principal { uid: 1, ..root.clone() }), Err(Mismatch::Differs { uid: 1, uid_here: 0, .. })));
        let nobody = Principal { name: "no-such-account-here".into(), ..root.clone() };
        assert!(matches!(resolve(&nobody), Err(Mismatch::Unknown { .. })));
    }

    #[test]
    fn groups_that_the_account_does_not_have_here_are_refused() {
        let name = "daemon".to_owned();
        let account = User::from_name(&name).unwrap().unwrap();
        let (uid, gid) = (account.uid.as_raw(), account.gid.as_raw());
        let claimed = Principal { name: name.clone(), uid, gid, groups: vec![gid, 0, 4_000_000_001] };
        assert_eq!(resolve(&claimed), Err(Mismatch::Groups { name, groups: vec![0, 4_000_000_001] }));
        assert_eq!(resolve(&Principal { groups: vec![gid], ..claimed }).unwrap().groups, vec![gid]);
    }

    #[test]
    fn a_pidfd_shows_when_its_process_has_ended() {
        let mut child = std::process::Command::new("/bin/sleep").arg("1000").spawn().unwrap();
        let pid = i32::try_from(child.id()).unwrap();
        let pidfd = pidfd_open(pid).unwrap();
        assert!(!pidfd_ended(pidfd.as_fd()).unwrap());
        assert!(descendants(std::process::id().cast_signed()).iter().any(|(p, _)| *p == pid));
        assert!(start_ticks(pid).unwrap() > 0 && pidfd_inode(pidfd.as_fd()).unwrap() > 0);
        pidfd_signal(pidfd.as_fd(), libc::SIGKILL).unwrap();
        child.wait().unwrap();
        assert!(pidfd_ended(pidfd.as_fd()).unwrap());
        assert!(pidfd_signal(pidfd.as_fd(), libc::SIGKILL).is_err());
        assert!(boot_id().is_ok());
    }
}

//! The mounts of an allocation's work: how full they are, and whether they answer.

use super::fact::{fact, text_of};
use super::processes::Listed;
use lattice_machine::questions::{Asked, OF_MOUNTS, Question};
use lattice_mesh::diagnosis::WireFact;
use lattice_model::resources::bytes_text;
use nix::sys::statvfs::statvfs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// How many mounts are reported.
const MOUNTS_MAX: usize = 64;
/// Timeout of all queries together.
const ALL_TIMEOUT: Duration = Duration::from_secs(4);
/// Timeout of the query of one mount.
const TIMEOUT: Duration = Duration::from_secs(1);
/// The used share above which a file system is reported as a problem.
const FULL_SHARE: f64 = 0.95;
/// File system types without a capacity of their own.
const WITHOUT_CAPACITY: &[&str] = &[
    "autofs",
    "binfmt_misc",
    "bpf",
    "cgroup",
    "cgroup2",
    "configfs",
    "debugfs",
    "devpts",
    "devtmpfs",
    "efivarfs",
    "fusectl",
    "hugetlbfs",
    "mqueue",
    "nsfs",
    "proc",
    "pstore",
    "ramfs",
    "rpc_pipefs",
    "securityfs",
    "squashfs",
    "sysfs",
    "tracefs",
];

/// A mount, from a line of `mountinfo`.
#[derive(Debug, PartialEq, Eq)]
pub struct Mount {
    pub device: String,
    pub at: PathBuf,
    pub kind: String,
}

/// How full each mount of the work is, as one of its processes sees it.
pub fn mounts(listed: &[Listed]) -> Vec<WireFact> {
    let Some((pid, mountinfo)) = listed.iter().find_map(|one| Some((one.pid, text_of(&format!("/proc/{}/mountinfo", one.pid))?))) else {
        return vec![fact("storage", "mounts", "procfs", "the work has no process here: its mounts are unknown".to_owned(), false)];
    };
    let began = Instant::now();
    let mut facts = Vec::new();
    for mount in parse(&mountinfo).into_iter().take(MOUNTS_MAX) {
        let about = format!("{} ({})", mount.at.display(), mount.kind);
        let (text, wrong) = if began.elapsed() < ALL_TIMEOUT {
            query(pid, &mount)
        } else {
            ("not queried: the mounts before it took too long".to_owned(), true)
        };
        facts.push(fact("storage", &about, "statvfs", text, wrong));
    }
    facts
}

/// The first mount of each file system that has a capacity.
pub fn parse(mountinfo: &str) -> Vec<Mount> {
    let mount = |line: &str| {
        let (before, behind) = line.split_once(" - ")?;
        let mut words = before.split(' ');
        let (device, at) = (words.nth(2)?.to_owned(), lattice_runtime::cgroup::unescape(words.nth(1)?));
        let kind = behind.split(' ').next()?.to_owned();
        Some(Mount { device, at: at.into(), kind })
    };
    let has_capacity = |mount: &Mount| !WITHOUT_CAPACITY.contains(&mount.kind.as_str());
    let mut mounts: Vec<Mount> = mountinfo.lines().filter_map(mount).filter(has_capacity).collect();
    let mut seen = std::collections::BTreeSet::new();
    mounts.retain(|mount| seen.insert(mount.device.clone()));
    mounts
}

/// The text about a mount, and whether it is a problem.
fn query(pid: i32, mount: &Mount) -> (String, bool) {
    let question = match Question::begin(&mount.device) {
        Ok(question) => question,
        Err(since) => return (format!("has not answered for {} s", since.elapsed().as_secs()), true),
    };
    let root = PathBuf::from(format!("/proc/{pid}/root"));
    let path = root.join(mount.at.strip_prefix("/").unwrap_or(&mount.at));
    let answer = OF_MOUNTS.ask(TIMEOUT, move || {
        let _question = question;
        space(&path)
    });
    match answer {
        Asked::Answered(Ok((free, all, no_inodes))) => {
            let used = if all == 0 { 0.0 } else { 1.0 - free as f64 / all as f64 };
            let inodes = if no_inodes { "; no more files can be created" } else { "" };
            (format!("{} of {} free{inodes}", bytes_text(free), bytes_text(all)), used > FULL_SHARE || no_inodes)
        }
        Asked::Answered(Err(error)) => (format!("cannot be queried: {}", error.desc()), true),
        Asked::Silent => (format!("does not answer within {} s: processes that use it wait", TIMEOUT.as_secs()), true),
        Asked::TooMany => ("not queried: too many mounts of this node do not answer".to_owned(), true),
    }
}

/// Free bytes, total bytes, and whether no inodes are left.
pub fn space(path: &Path) -> nix::Result<(u64, u64, bool)> {
    let stat = statvfs(path)?;
    let unit = stat.fragment_size();
    Ok((stat.blocks_available().saturating_mul(unit), stat.blocks().saturating_mul(unit), stat.files() > 0 && stat.files_available() == 0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_file_system_with_a_capacity_is_listed_once() {
        let mountinfo = "21 1 8:1 / / rw - ext4 /dev/sda1 rw\n22 21 0:5 / /proc rw - proc proc rw\n\
                         23 21 0:9 / /data\\040x rw shared:1 - nfs4 s:/x rw\n24 21 8:1 /a /bind rw - ext4 /dev/sda1 rw\n";
        let mounts: Vec<_> = parse(mountinfo).into_iter().map(|m| (m.device, m.at.display().to_string(), m.kind)).collect();
        let mount = |device: &str, at: &str, kind: &str| (device.to_owned(), at.to_owned(), kind.to_owned());
        assert_eq!(mounts, [mount("8:1", "/", "ext4"), mount("0:9", "/data x", "nfs4")]);
    }

    #[test]
    fn the_mounts_of_this_process_answer() {
        let me = Listed { pid: i32::try_from(std::process::id()).unwrap(), launch: None };
        let facts = mounts(&[me]);
        assert!(facts.iter().any(|fact| fact.text.contains(" free")), "{facts:?}");
    }
}

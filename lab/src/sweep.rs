//! Finds and removes what a cluster may have left on the machine: scopes and their processes, mounts, loop devices.

use crate::machine::cgroup2_mount;
use crate::process::until;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// `LOOP_CLR_FD` of `linux/loop.h`: frees a loop device.
const LOOP_CLR_FD: libc::c_ulong = 0x4C01;

/// The root of a cluster's scopes in the cgroup v2 tree, if it exists.
pub fn scopes_root(cgroup_root: &str) -> Option<PathBuf> {
    cgroup2_mount().map(|m| m.join(cgroup_root)).filter(|p| p.is_dir())
}

/// The roots of a cluster's scopes in the hierarchies of cgroup version 1.
pub fn v1_roots(cgroup_root: &str) -> Vec<PathBuf> {
    let text = std::fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let v1 = text.lines().filter_map(|line| {
        let (left, right) = line.split_once(" - ")?;
        right.starts_with("cgroup ").then(|| left.split(' ').nth(4).map(PathBuf::from)).flatten()
    });
    v1.map(|mount| mount.join(cgroup_root)).filter(|p| p.is_dir()).collect()
}

/// The directories of allocations and of hooks below a root.
pub fn scopes_below(root: &Path) -> Vec<PathBuf> {
    let hook = |p: &Path| p.file_name().is_some_and(|n| n.to_string_lossy().starts_with("hook-"));
    tree(root).into_iter().filter(|p| p.extension().is_some_and(|e| e == "scope") || hook(p)).collect()
}

/// Every process in the tree below `root`.
pub fn processes_in(root: &Path) -> Vec<i32> {
    let mut pids: Vec<i32> = tree(root)
        .iter()
        .filter_map(|d| std::fs::read_to_string(d.join("cgroup.procs")).ok())
        .flat_map(|t| t.lines().filter_map(|l| l.parse().ok()).collect::<Vec<_>>())
        .collect();
    pids.sort_unstable();
    pids.dedup();
    pids
}

/// The directories of the tree, including `root`, deepest first.
pub fn tree(root: &Path) -> Vec<PathBuf> {
    let mut out = Vec::new();
    let children = std::fs::read_dir(root).into_iter().flatten().flatten();
    for child in children.filter(|e| e.file_type().is_ok_and(|t| t.is_dir())) {
        out.extend(tree(&child.path()));
    }
    out.push(root.to_owned());
    out
}

/// Kills the processes in the scopes (version 2) and removes the scopes. Returns what was found, a line each, and what
/// could not be removed.
pub fn scopes(cgroup_root: &str) -> (Vec<String>, Vec<String>) {
    let (mut swept, mut stuck) = (Vec::new(), Vec::new());
    if let Some(root) = scopes_root(cgroup_root) {
        scopes_v2(&root, &mut swept, &mut stuck);
    }
    for root in v1_roots(cgroup_root) {
        let scopes = scopes_below(&root).len();
        if scopes > 0 {
            swept.push(format!("{scopes} scope(s) under {}", root.display()));
        }
        remove(&root, &mut stuck);
    }
    (swept, stuck)
}

fn scopes_v2(root: &Path, swept: &mut Vec<String>, stuck: &mut Vec<String>) {
    for pid in processes_in(root) {
        let name = std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
        swept.push(format!("process {pid} ({})", name.trim()));
    }
    let scopes = scopes_below(root).len();
    if scopes > 0 {
        swept.push(format!("{scopes} scope(s) under {}", root.display()));
    }
    // Killed processes are zombies for a moment.
    let empty = until(Duration::from_secs(5), || {
        if !processes_in(root).is_empty() {
            let _ = std::fs::write(root.join("cgroup.kill"), "1");
        }
        processes_in(root).is_empty()
    });
    if !empty {
        stuck.push(format!("processes {:?} in {}", processes_in(root), root.display()));
    }
    remove(root, stuck);
}

/// Removes a root with its directories, and the directory that all labs of this machine share if no other lab uses it.
fn remove(root: &Path, stuck: &mut Vec<String>) {
    let gone = until(Duration::from_secs(2), || {
        for folder in tree(root) {
            let _ = std::fs::remove_dir(folder);
        }
        !root.exists()
    });
    if !gone {
        stuck.push(format!("the scopes under {}", root.display()));
    }
    if let Some(parent) = root.parent().filter(|p| p.ends_with("lattice-lab")) {
        let _ = std::fs::remove_dir(parent);
    }
}

/// Mount points under `dirs`, in this mount namespace, latest first.
pub fn mounts_under(dirs: &[&Path]) -> Vec<PathBuf> {
    let text = std::fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let points = text.lines().filter_map(|l| l.split(' ').nth(4)).map(|p| PathBuf::from(lattice_runtime::cgroup::unescape(p)));
    let mut found: Vec<PathBuf> = points.filter(|p| dirs.iter().any(|d| p.starts_with(d))).collect();
    found.reverse();
    found
}

/// Loop devices with a file under `dirs` (deleted or not): device and file.
pub fn loops_under(dirs: &[&Path]) -> Vec<(PathBuf, String)> {
    let entries = std::fs::read_dir("/sys/block").into_iter().flatten().flatten();
    let mut found: Vec<(PathBuf, String)> = entries
        .filter_map(|e| {
            let file = std::fs::read_to_string(e.path().join("loop/backing_file")).ok()?;
            let file = file.trim().to_owned();
            dirs.iter().any(|d| Path::new(&file).starts_with(d)).then(|| (Path::new("/dev").join(e.file_name()), file))
        })
        .collect();
    found.sort();
    found
}

/// Unmounts the mounts and frees the loop devices under `dirs`. Returns what was found, and what could not be removed.
pub fn mounts_and_loops(dirs: &[&Path]) -> (Vec<String>, Vec<String>) {
    let (mut swept, mut stuck) = (Vec::new(), Vec::new());
    for point in mounts_under(dirs) {
        swept.push(format!("the mount {}", point.display()));
        if let Err(e) = nix::mount::umount2(&point, nix::mount::MntFlags::MNT_DETACH) {
            stuck.push(format!("the mount {}: {e}", point.display()));
        }
    }
    // The kernel needs a moment to free a device after its last user is gone.
    until(Duration::from_secs(2), || loops_under(dirs).is_empty());
    for (device, file) in loops_under(dirs) {
        swept.push(format!("the loop device {} ({file})", device.display()));
        if let Ok(opened) = std::fs::File::open(&device) {
            // SAFETY: LOOP_CLR_FD takes no argument, and the descriptor is open.
            unsafe { libc::ioctl(opened.as_raw_fd(), LOOP_CLR_FD as _, 0) };
        }
    }
    if !until(Duration::from_secs(2), || loops_under(dirs).is_empty()) {
        stuck.extend(loops_under(dirs).into_iter().map(|(d, f)| format!("the loop device {} ({f})", d.display())));
    }
    (swept, stuck)
}

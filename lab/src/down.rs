//! Removes a cluster so that nothing of it is left: no process, scope, mount, loop device or file.

use crate::cluster::Cluster;
use crate::lattice::Lattice;
use crate::process::{Identity, ours_under, until};
use crate::sweep;
use anyhow::{Context, Result, bail};
use nix::sys::signal::Signal;
use std::path::Path;
use std::time::Duration;

/// What was removed.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// Living allocations that were cancelled.
    pub cancelled: Vec<String>,
    /// Daemons that had to be killed because SIGTERM did not end them.
    pub killed: Vec<String>,
    /// Remains of the product that the lab removed.
    pub swept: Vec<String>,
    /// What could not be removed.
    pub stuck: Vec<String>,
}

impl Report {
    /// Whether the product had cleaned up after itself.
    pub fn clean(&self) -> bool {
        self.killed.is_empty() && self.swept.is_empty() && self.stuck.is_empty()
    }
}

/// Stops the cluster and removes its files. `patience`: how long cancelled work may take to end by itself.
pub fn down(dir: &Path, patience: Duration) -> Result<Report> {
    removed(dir, |cluster| stop(cluster, patience))
}

/// The same without an orderly stop of the daemons, which takes seconds: they are killed.
pub fn kill(dir: &Path, patience: Duration) -> Result<Report> {
    removed(dir, |cluster| Ok(kill_all(cluster, patience)))
}

fn removed(dir: &Path, end: impl FnOnce(&Cluster) -> Result<Report>) -> Result<Report> {
    let dir = &std::path::absolute(dir)?;
    let cluster = Cluster::load(dir)?;
    let lock = Cluster::lock(dir)?;
    let mut report = end(&cluster)?;
    for folder in cluster.folders() {
        // A process that is ending may still write: the second try usually succeeds.
        let gone = until(Duration::from_secs(3), || std::fs::remove_dir_all(folder).is_ok() || !folder.exists());
        if !gone {
            report.stuck.push(format!("the folder {}", folder.display()));
        }
    }
    drop(lock);
    Ok(report)
}

/// Stops the cluster; its files stay.
pub fn stop(cluster: &Cluster, patience: Duration) -> Result<Report> {
    let mut report = Report::default();
    if !patience.is_zero() {
        cancel_all(cluster, patience, &mut report);
    }
    // Agents first: without them no new work starts, and the quorum still accepts their reports.
    terminate(cluster.nodes.iter().map(|n| &n.daemon), Duration::from_secs(5), &mut report);
    terminate(cluster.members.iter().map(|m| &m.daemon), Duration::from_secs(5), &mut report);
    remove_remains(cluster, &mut report);
    Ok(report)
}

fn kill_all(cluster: &Cluster, patience: Duration) -> Report {
    let mut report = Report::default();
    // Without a shim nothing runs that has to end.
    if !patience.is_zero() && ours_under(&cluster.folders()).iter().any(|(_, name)| name == "lattice-shim") {
        cancel_all(cluster, patience, &mut report);
    }
    let daemons: Vec<&Identity> = cluster.daemons().filter_map(|d| d.process.as_ref()).collect();
    // All at once, and only then a wait for each.
    for process in &daemons {
        let _ = process.signal(Signal::SIGKILL);
    }
    report.stuck.extend(daemons.iter().filter_map(|process| process.kill().err()).map(|e| format!("{e:#}")));
    remove_remains(cluster, &mut report);
    report
}

/// Removes what the daemons, which have ended, left on the machine.
fn remove_remains(cluster: &Cluster, report: &mut Report) {
    let folders = cluster.folders();
    if let Some(networks) = &cluster.networks
        && let Err(error) = networks.keeper.kill()
    {
        report.stuck.push(format!("{error:#}"));
    }
    let (swept, stuck) = sweep::scopes(&cluster.cgroup_root);
    report.swept.extend(swept);
    report.stuck.extend(stuck);
    sweep_strays(&folders, report);
    for disk in &cluster.small_disks {
        if let Err(error) = disk.unmount() {
            report.stuck.push(format!("{error:#}"));
        }
    }
    let (swept, stuck) = sweep::mounts_and_loops(&folders);
    report.swept.extend(swept);
    report.stuck.extend(stuck);
}

/// Cancels living allocations, if an agent answers, and waits for the end of the shims.
fn cancel_all(cluster: &Cluster, patience: Duration, report: &mut Report) {
    let Ok(lattice) = Lattice::to_any(cluster) else { return };
    let short = Duration::from_secs(3);
    let Ok(listed) = lattice.run(&["status", "--all", "--state", "pending,staging,running", "--limit", "1000", "-o", "name"], short) else {
        return;
    };
    for id in listed.out().lines().map(str::to_owned) {
        if lattice.run(&["cancel", &id], short).is_ok_and(|f| f.code() == 0) {
            report.cancelled.push(id);
        }
    }
    if report.cancelled.is_empty() {
        return;
    }
    let folders = cluster.folders();
    until(patience, || !ours_under(&folders).iter().any(|(_, name)| name == "lattice-shim"));
}

fn terminate<'a>(daemons: impl Iterator<Item = &'a crate::cluster::Daemon>, grace: Duration, report: &mut Report) {
    let running: Vec<(&str, &Identity)> =
        daemons.filter_map(|d| Some((d.name.as_str(), d.process.as_ref()?))).filter(|(_, p)| p.alive()).collect();
    for (_, process) in &running {
        let _ = process.signal(Signal::SIGTERM);
    }
    until(grace, || running.iter().all(|(_, p)| !p.alive()));
    for (name, process) in running.iter().filter(|(_, p)| p.alive()) {
        report.killed.push(format!("{name} (process {}), which SIGTERM did not end", process.pid));
        if let Err(e) = process.kill() {
            report.stuck.push(format!("{e:#}"));
        }
    }
}

/// Daemons and shims of this cluster that neither the record nor a scope knows, with all their descendants.
fn sweep_strays(folders: &[&Path], report: &mut Report) {
    for (pid, name) in ours_under(folders) {
        let family = descendants(pid);
        let Ok(process) = Identity::of(pid) else { continue };
        report.swept.push(format!("process {pid} ({name}) and {} below it", family.len()));
        if let Err(e) = process.kill() {
            report.stuck.push(format!("{e:#}"));
        }
        for child in family {
            let _ = child.kill();
        }
    }
}

fn descendants(root: i32) -> Vec<Identity> {
    let text = |pid: i32| std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap_or_default();
    let mut found = Vec::new();
    let mut open = vec![root];
    while let Some(pid) = open.pop() {
        let children: Vec<i32> = text(pid).split_ascii_whitespace().filter_map(|p| p.parse().ok()).collect();
        found.extend(children.iter().filter_map(|p| Identity::of(*p).ok()));
        open.extend(children);
    }
    found
}

/// Everything of the cluster that is on the machine now, for tests after `down` or after a job.
pub fn leftovers(cluster: &Cluster) -> Vec<String> {
    let folders = cluster.folders();
    let mut left: Vec<String> =
        ours_under(&folders).into_iter().filter(|(_, n)| n == "lattice-shim").map(|(p, n)| format!("process {p} ({n})")).collect();
    if let Some(root) = sweep::scopes_root(&cluster.cgroup_root) {
        left.extend(sweep::processes_in(&root).into_iter().map(|p| format!("process {p} in a scope")));
        left.extend(sweep::scopes_below(&root).into_iter().map(|p| format!("scope {}", p.display())));
    }
    for root in sweep::v1_roots(&cluster.cgroup_root) {
        left.extend(sweep::scopes_below(&root).into_iter().map(|p| format!("scope {}", p.display())));
    }
    let mounts = sweep::mounts_under(&folders).into_iter().filter(|p| !cluster.small_disks.iter().any(|d| d.at == *p));
    left.extend(mounts.map(|p| format!("mount {}", p.display())));
    left.extend(sweep::loops_under(&folders).into_iter().map(|(d, f)| format!("loop device {} ({f})", d.display())));
    left
}

/// The same once nothing is left, or the last result when `limit` is over. There is no later check: it could find
/// the temporary scope with which an agent that has just started tests its cgroups
/// (`doctor::probe_slice`).
pub fn leftovers_within(cluster: &Cluster, limit: Duration) -> Vec<String> {
    let mut left = Vec::new();
    until(limit, || {
        left = leftovers(cluster);
        left.is_empty()
    });
    left
}

/// For `down` on the command line: an error if something could not be removed.
pub fn require_gone(report: &Report) -> Result<()> {
    if report.stuck.is_empty() { Ok(()) } else { bail!("these could not be removed: {}", report.stuck.join("; ")) }
}

/// Removes the cluster when it goes out of scope, whatever happened.
pub struct Guard {
    dir: std::path::PathBuf,
    armed: bool,
}

impl Guard {
    /// Guards the cluster in `dir`.
    pub fn new(dir: &Path) -> Self {
        Self { dir: dir.to_owned(), armed: true }
    }

    /// Removes it now, and returns what was removed.
    pub fn down(mut self, patience: Duration) -> Result<Report> {
        self.armed = false;
        down(&self.dir, patience).context("removing the cluster")
    }

    /// The same without an orderly stop of the daemons.
    pub fn kill(mut self, patience: Duration) -> Result<Report> {
        self.armed = false;
        kill(&self.dir, patience).context("removing the cluster")
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        if self.armed && self.dir.join("cluster.json").exists() {
            match kill(&self.dir, Duration::ZERO) {
                Ok(report) if report.stuck.is_empty() => {}
                Ok(report) => eprintln!("lab: these could not be removed: {}", report.stuck.join("; ")),
                Err(e) => eprintln!("lab: {} could not be removed: {e:#}", self.dir.display()),
            }
        }
    }
}

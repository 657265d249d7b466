//! How full the node's file systems are, every half minute. A query can block for ever if a file
//! system's server does not answer, so a helper thread makes the query and may be abandoned. The
//! same file system is not queried again while that thread waits.

use lattice_machine::questions::{Asked, OF_NODE, Question};
use lattice_meshd::diagnosis::storage::{Mount, parse, space};
use lattice_telemetry::catalogue::node as family;
use lattice_telemetry::sample::{Collect, Samples, Whose};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio_util::sync::CancellationToken;

const QUERY_INTERVAL: Duration = Duration::from_secs(30);
/// How long one query may take.
const QUERY_TIMEOUT: Duration = Duration::from_secs(1);
/// How many file systems are reported.
const MOUNTS_MAX: usize = 32;
/// Where user sessions have their own file systems.
const OF_SESSIONS: &str = "/run/user";
/// Kinds of file systems that are not the node's own storage, or do not last.
const IN_MEMORY: &[&str] = &["overlay", "tmpfs"];

/// The last results. Cloneable; all clones share them.
#[derive(Clone, Default)]
pub struct Mounts(Arc<Mutex<Vec<Found>>>);

/// One file system.
struct Found {
    at: String,
    kind: String,
    /// Free and total bytes; `None`: it does not answer.
    room: Option<(u64, u64)>,
}

impl Mounts {
    /// Queries the file systems on a thread of its own until `stop`.
    pub fn begin(&self, stop: CancellationToken) -> io::Result<()> {
        let mounts = self.clone();
        let run = move || {
            let (mut next, mut left_out) = (Instant::now(), 0);
            while !stop.is_cancelled() {
                if Instant::now() < next {
                    // In short sleeps, so that it notices a stop.
                    std::thread::sleep(QUERY_TIMEOUT);
                    continue;
                }
                next = Instant::now() + QUERY_INTERVAL;
                let mountinfo = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
                let all = seen(parse(&mountinfo));
                let too_many = all.len().saturating_sub(MOUNTS_MAX);
                if too_many > left_out {
                    tracing::warn!("{too_many} mounts are not measured: only {MOUNTS_MAX} are");
                }
                left_out = too_many;
                let found: Vec<Found> = all.iter().take(MOUNTS_MAX).filter_map(ask).collect();
                *mounts.0.lock() = found;
            }
        };
        std::thread::Builder::new().name("mounts".to_owned()).spawn(run).map(drop)
    }
}

/// Keeps only the last of several mounts at one place, which covers the others. Disks and network
/// file systems come before those in memory; mounts of user sessions are left out.
fn seen(mounts: Vec<Mount>) -> Vec<Mount> {
    let last: BTreeMap<PathBuf, String> = mounts.iter().map(|mount| (mount.at.clone(), mount.device.clone())).collect();
    let is_listed = |mount: &Mount| last.get(&mount.at) == Some(&mount.device) && !mount.at.starts_with(OF_SESSIONS);
    let mut mounts: Vec<Mount> = mounts.into_iter().filter(is_listed).collect();
    mounts.sort_by_key(|mount| IN_MEMORY.contains(&mount.kind.as_str()));
    mounts
}

/// Queries one file system. `None`: the query failed, for example because another mount covers it;
/// too many queries are blocked; or it has no size, like a user's FUSE file system that gives root
/// no access.
fn ask(mount: &Mount) -> Option<Found> {
    let (at, kind) = (mount.at.to_string_lossy().into_owned(), mount.kind.clone());
    // A diagnosis of work may be waiting for the same file system.
    let Ok(question) = Question::begin(&mount.device) else { return Some(Found { at, kind, room: None }) };
    let path = mount.at.clone();
    let answer = OF_NODE.ask(QUERY_TIMEOUT, move || {
        let _question = question;
        space(&path)
    });
    match answer {
        Asked::Answered(Ok((_, 0, _))) => None,
        Asked::Answered(Ok((free, all, _))) => Some(Found { at, kind, room: Some((free, all)) }),
        Asked::Silent => Some(Found { at, kind, room: None }),
        Asked::Answered(Err(_)) | Asked::TooMany => None,
    }
}

impl Collect for Mounts {
    fn collect(&self, samples: &mut Samples, _whose: Whose) {
        for Found { at, kind, room } in &*self.0.lock() {
            samples.count(&family::MOUNT_ANSWERS, &[at, kind], u64::from(room.is_some()));
            if let Some((free, all)) = room {
                samples.count(&family::MOUNT_SIZE, &[at, kind], *all);
                samples.count(&family::MOUNT_AVAILABLE, &[at, kind], *free);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lattice_telemetry::exposition::page;
    use std::sync::mpsc;

    #[test]
    fn the_root_is_reported_and_a_mount_without_an_answer_is_reported_as_silent() {
        let mount = |device: &str| Mount { device: device.to_owned(), at: "/".into(), kind: "ext4".to_owned() };
        let root = ask(&mount("test:1")).unwrap();
        assert!(root.room.is_some_and(|(free, all)| free <= all && all > 0));
        let waits = Question::begin("test:2").unwrap();
        let silent = Found { at: "/data".to_owned(), ..ask(&mount("test:2")).unwrap() };
        assert_eq!(silent.room, None);
        drop(waits);
        let mut samples = Samples::default();
        Mounts(Arc::new(Mutex::new(vec![root, silent]))).collect(&mut samples, Whose::Ours);
        let page = page(&samples);
        assert!(page.contains("lattice_node_mount_answers{mount=\"/\",type=\"ext4\"} 1\n"), "{page}");
        assert!(page.contains("lattice_node_mount_answers{mount=\"/data\",type=\"ext4\"} 0\n"), "{page}");
        assert_eq!(page.matches("lattice_node_mount_size_bytes{").count(), 1);
        let covered = Mount { at: "/data".into(), ..mount("test:4") };
        let covers = Mount { at: "/data".into(), ..mount("test:5") };
        let left: Vec<String> = seen(vec![mount("test:1"), covered, covers]).into_iter().map(|mount| mount.device).collect();
        assert_eq!(left, ["test:1", "test:5"], "one place has one series");
        let (memory, session) =
            (Mount { kind: "tmpfs".to_owned(), ..mount("test:6") }, Mount { at: "/run/user/7/doc".into(), ..mount("test:7") });
        let disk = Mount { at: "/scratch".into(), ..mount("test:8") };
        let memory = Mount { at: "/run".into(), ..memory };
        let left: Vec<String> = seen(vec![memory, session, disk]).into_iter().map(|mount| mount.device).collect();
        assert_eq!(left, ["test:8", "test:6"], "storage comes first, and no user's own");
        assert_eq!(ask(&Mount { at: "/nowhere-at-all".into(), ..mount("test:3") }).map(|found| found.at), None);
        assert_eq!(ask(&Mount { at: "/proc".into(), ..mount("test:9") }).map(|found| found.at), None, "it has no size");
    }

    #[test]
    fn many_waiting_queries_hide_no_other_mount() {
        let held: Vec<mpsc::Sender<()>> = (0..MOUNTS_MAX)
            .map(|_| {
                let (go, wait) = mpsc::channel::<()>();
                assert_eq!(OF_NODE.ask(Duration::from_millis(1), move || wait.recv().is_err()), Asked::Silent);
                go
            })
            .collect();
        let root = ask(&Mount { device: "test:10".to_owned(), at: "/".into(), kind: "ext4".to_owned() });
        assert!(root.is_some_and(|found| found.room.is_some()));
        drop(held);
    }
}

//! Taking an allocation away: processes, scope, files. Its log files stay, within the spool's limit.

use crate::context::Context;
use crate::machine;
use lattice_model::{AllocationId, DesiredShare};
use lattice_quorum::pack::with_causes;
use lattice_runtime::failpoint::{self, Point};
use lattice_runtime::shim::ShimDir;
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

/// How long killed processes may take to be gone before it is said that they are not.
const KILL_WAIT: Duration = Duration::from_secs(3);

/// Logs of allocations that ended since then are not taken to keep the spool's limit: somebody is about to read them.
const JUST_ENDED: Duration = Duration::from_secs(3600);
/// What a directory counts in the spool, whatever is in it.
const DIRECTORY_BYTES: u64 = 4096;

/// Kills whatever is in the allocation's scope and waits until it is empty.
pub(super) fn kill_scope(context: &Context, allocation: AllocationId) -> Result<(), String> {
    let Some(slice) = &context.slice else { return Ok(()) };
    let scopes = slice.scopes().map_err(|e| with_causes(&e))?;
    let Some((_, scope)) = scopes.into_iter().find(|(id, _)| *id == allocation) else { return Ok(()) };
    scope.whole().kill().map_err(|e| with_causes(&e))?;
    if scope.whole().wait_empty(KILL_WAIT).map_err(|e| with_causes(&e))? {
        return Ok(());
    }
    let left: Vec<String> = scope.whole().processes().iter().map(ToString::to_string).collect();
    Err(format!("killed processes are still there (in a call that cannot be interrupted?): pid {}", left.join(", ")))
}

/// Takes away scope and files. Fails while processes are left.
pub(super) fn undo(context: &Context, share: &DesiredShare, dir: &ShimDir) -> Result<(), String> {
    kill_scope(context, share.allocation)?;
    failpoint::pass(Point::ScopeKilled);
    if let Some(slice) = &context.slice {
        let scopes = slice.scopes().map_err(|e| with_causes(&e))?;
        if let Some((_, scope)) = scopes.into_iter().find(|(id, _)| *id == share.allocation) {
            scope.whole().remove().map_err(|e| with_causes(&e))?;
        }
    }
    failpoint::pass(Point::ScopeRemoved);
    context.bounds.controllers.remove(share.allocation, KILL_WAIT).map_err(|e| with_causes(&e))?;
    failpoint::pass(Point::LimitsRemoved);
    let files = [
        (dir.socket(), Point::SocketRemoved),
        (dir.config(), Point::ConfigRemoved),
        (dir.exits(), Point::ExitsRemoved),
        (dir.living(), Point::IdentityRemoved),
        (dir.script(), Point::FilesRemoved),
    ];
    for (file, removed) in files {
        match fs::remove_file(&file) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(format!("{}: {error}", file.display())),
            Ok(()) | Err(_) => failpoint::pass(removed),
        }
    }
    machine::forget(&context.state_dir, share.allocation, share.epoch).map_err(|e| format!("its topology file: {e}"))?;
    if wrote_nothing(dir) {
        // Many short silent jobs would use up the inodes.
        fs::remove_dir_all(&dir.0).map_err(|e| format!("{}: {e}", dir.0.display()))?;
    }
    trim_spool(&context.state_dir, context.log_spool_bytes_max);
    Ok(())
}

/// Whether there is nothing to read: no output, and no word of the shim.
fn wrote_nothing(dir: &ShimDir) -> bool {
    let Ok(mut logs) = fs::read_dir(dir.logs()) else { return false };
    let empty =
        |path: &Path| fs::symlink_metadata(path).map_or_else(|e| e.kind() == io::ErrorKind::NotFound, |m| m.is_file() && m.len() == 0);
    logs.all(|e| e.is_ok_and(|e| empty(&e.path()))) && empty(&dir.shim_log())
}

/// An ended allocation's directory.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Ended {
    at: SystemTime,
    bytes: u64,
    path: PathBuf,
}

/// Removes the oldest ended allocations' logs until the rest fits the spool's limit.
fn trim_spool(state_dir: &Path, bytes_max: u64) {
    let Ok(entries) = fs::read_dir(state_dir.join("alloc")) else { return };
    let ended = entries
        .flatten()
        .filter(|e| !e.path().join("shim.json").exists())
        .filter_map(|e| Some(Ended { at: e.metadata().ok()?.modified().ok()?, bytes: bytes_below(&e.path()), path: e.path() }));
    for Ended { bytes, path, .. } in to_trim(ended.collect(), bytes_max, SystemTime::now(), disk_is_short(state_dir)) {
        tracing::info!(path = %path.display(), bytes, "the log spool is over its limit: the oldest logs go");
        if let Err(error) = fs::remove_dir_all(&path) {
            tracing::warn!(path = %path.display(), %error, "old logs could not be removed");
        }
    }
}

/// What is to go, oldest first. What has just ended goes only where nothing else is left and the disk needs it.
fn to_trim(mut ended: Vec<Ended>, bytes_max: u64, now: SystemTime, disk_is_short: bool) -> Vec<Ended> {
    ended.sort();
    let mut total = ended.iter().map(|e| u128::from(e.bytes)).sum::<u128>();
    let mut goes = |ended: &Ended| {
        let just_ended = now.duration_since(ended.at).is_ok_and(|ago| ago < JUST_ENDED);
        let goes = total > u128::from(bytes_max) && (disk_is_short || !just_ended);
        total = if goes { total - u128::from(ended.bytes) } else { total };
        goes
    };
    ended.retain(&mut goes);
    ended
}

/// Whether less than a tenth of the file system is free.
fn disk_is_short(path: &Path) -> bool {
    nix::sys::statvfs::statvfs(path).is_ok_and(|s| s.blocks_available() < s.blocks() / 10)
}

/// Bytes that it takes on the disk: a file's length is its owner's to choose.
fn bytes_below(path: &Path) -> u64 {
    let Ok(entries) = fs::read_dir(path) else { return DIRECTORY_BYTES };
    let size =
        |e: fs::DirEntry| e.metadata().map_or(0, |m| if m.is_dir() { bytes_below(&e.path()) } else { m.blocks().saturating_mul(512) });
    entries.flatten().map(size).fold(DIRECTORY_BYTES, u64::saturating_add)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;
    use std::io::Write;

    struct Dir(PathBuf);

    impl Dir {
        fn new(name: &str) -> Self {
            let path = std::env::temp_dir().join(format!("lattice-undo-{name}-{}", std::process::id()));
            let _ = fs::remove_dir_all(&path);
            fs::create_dir_all(path.join("logs")).unwrap();
            Self(path)
        }

        fn log(&self, name: &str, bytes: &[u8]) -> File {
            let mut file = File::create(self.0.join("logs").join(name)).unwrap();
            file.write_all(bytes).unwrap();
            file
        }
    }

    impl Drop for Dir {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    fn ended(hours_ago: u64, bytes: u64) -> Ended {
        let at = SystemTime::UNIX_EPOCH + Duration::from_secs(3600 * (1000 - hours_ago)) - Duration::from_secs(60);
        Ended { at, bytes, path: format!("{hours_ago}").into() }
    }

    fn trimmed(all: &[Ended], bytes_max: u64, disk_is_short: bool) -> Vec<String> {
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs(3600 * 1000);
        to_trim(all.to_vec(), bytes_max, now, disk_is_short).iter().map(|e| e.path.display().to_string()).collect()
    }

    #[test]
    fn the_oldest_go_until_the_rest_fits_and_what_just_ended_only_for_the_disks_sake() {
        let all = [ended(0, 500), ended(3, 10), ended(1, 10), ended(2, 10)];
        assert_eq!(trimmed(&all, 530, false), Vec::<String>::new());
        assert_eq!(trimmed(&all, 515, false), ["3", "2"]);
        assert_eq!(trimmed(&all, 5, false), ["3", "2", "1"]);
        assert_eq!(trimmed(&all, 5, true), ["3", "2", "1", "0"]);
        assert_eq!(trimmed(&[ended(2, u64::MAX), ended(1, u64::MAX)], 5, false), ["2", "1"], "no sum wraps");
    }

    #[test]
    fn a_sparse_file_counts_what_it_takes_and_a_directory_something() {
        let dir = Dir::new("sparse");
        dir.log("0.0.out", b"").set_len(1 << 40).unwrap();
        assert_eq!(bytes_below(&dir.0), 2 * DIRECTORY_BYTES);
        dir.log("0.0.err", &[1; 100_000]).sync_all().unwrap();
        assert!(bytes_below(&dir.0) >= 2 * DIRECTORY_BYTES + 100_000);
    }

    #[test]
    fn only_where_nothing_was_written_there_is_nothing_to_keep() {
        let dir = Dir::new("nothing");
        let shim = ShimDir(dir.0.clone());
        drop(dir.log("0.0.out", b""));
        fs::write(shim.shim_log(), "").unwrap();
        assert!(wrote_nothing(&shim));
        fs::write(shim.shim_log(), "why").unwrap();
        assert!(!wrote_nothing(&shim));
        fs::remove_file(shim.shim_log()).unwrap();
        assert!(wrote_nothing(&shim));
        drop(dir.log("0.0.err", b"x"));
        assert!(!wrote_nothing(&shim));
    }
}

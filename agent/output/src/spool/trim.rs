//! Enforces the spool's limit by removing logs of ended allocations. The user with the most bytes
//! loses logs first: those that the store has, then the oldest. Where somebody may still want logs
//! that exist nowhere else, the files become holes of the same length, so that readers can report
//! what is missing.

use super::files::open_log;
use nix::fcntl::{FallocateFlags, fallocate};
use std::collections::{BTreeMap, VecDeque};
use std::fs::{self, OpenOptions};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

/// Logs that the store lacks and whose allocation ended less than this ago are removed only if the
/// disk is short of space: somebody may be about to read them.
pub const RETENTION_AFTER_END: Duration = Duration::from_secs(3600);
/// At least as long as a block of any file system that stores logs.
const BLOCK_BYTES: u64 = 64 * 1024;
/// Size that a directory counts in the spool, whatever it contains.
const DIRECTORY_BYTES: u64 = 4096;

/// An ended allocation's directory.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Ended {
    /// Whether its logs are on their way into the store: they are not removed before.
    flushing: bool,
    /// Whether the store lacks some of it.
    needed: bool,
    at: SystemTime,
    bytes: u64,
    owner: u32,
    /// Whether its logs take no space: they are holes, or empty.
    emptied: bool,
    path: PathBuf,
}

/// Removes ended allocations' logs until the rest fits the spool's limit, except those that are
/// `flushing`. Blocks.
pub fn trim(state_dir: &Path, bytes_max: u64, flushing: impl Fn(&Path) -> bool) {
    let Ok(entries) = fs::read_dir(state_dir.join("alloc")) else { return };
    let ended = entries.flatten().map(|e| e.path()).filter(|p| !p.join("shim.json").exists()).filter_map(ended);
    let ended = ended.map(|e| Ended { flushing: flushing(&e.path), ..e });
    let now = SystemTime::now();
    for gone in to_trim(ended.collect(), bytes_max, now, disk_is_short(state_dir)) {
        let Ended { bytes, path, owner, .. } = &gone;
        tracing::info!(path = %path.display(), bytes, owner, "the log spool is over its limit: logs of the user with the most bytes are removed");
        let emptied = gone.is_waited_for(now) && gone.needed && empty(&path.join("logs")).is_ok_and(|all| all);
        if !emptied && let Err(error) = fs::remove_dir_all(path) {
            tracing::warn!(path = %path.display(), %error, "old logs could not be removed");
        }
    }
}

fn ended(path: PathBuf) -> Option<Ended> {
    let at = fs::metadata(&path).ok()?.modified().ok()?;
    let logs: Vec<fs::Metadata> = files(&path.join("logs")).unwrap_or_default().iter().filter_map(|f| fs::metadata(f).ok()).collect();
    let (owner, emptied) = (logs.first().map_or(0, MetadataExt::uid), logs.iter().all(|m| m.blocks() == 0));
    Some(Ended { flushing: false, needed: !path.join("flushed").exists(), emptied, at, bytes: bytes_below(&path), owner, path })
}

impl Ended {
    /// Whether it ended so recently that somebody is about to read it.
    fn is_waited_for(&self, now: SystemTime) -> bool {
        !now.duration_since(self.at).is_ok_and(|ago| ago >= RETENTION_AFTER_END)
    }
}

/// The log files in `logs`: those of each launch are in a directory of their own.
fn files(logs: &Path) -> io::Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for launch in fs::read_dir(logs)? {
        for file in fs::read_dir(launch?.path())? {
            found.push(file?.path());
        }
    }
    Ok(found)
}

/// Turns each file in `logs` into a hole of the same length. `false`: the file system keeps a part
/// of one.
fn empty(logs: &Path) -> io::Result<bool> {
    for path in files(logs)? {
        let file = open_log(&path, OpenOptions::new().write(true))?;
        // To the end of the last block: zeros in a block that stays would be read as output.
        let all = libc::off_t::try_from(file.metadata()?.len().next_multiple_of(BLOCK_BYTES)).map_err(io::Error::other)?;
        if all > 0 {
            fallocate(&file, FallocateFlags::FALLOC_FL_PUNCH_HOLE | FallocateFlags::FALLOC_FL_KEEP_SIZE, 0, all)?;
        }
        if file.metadata()?.blocks() > 0 {
            return Ok(false);
        }
    }
    Ok(true)
}

/// What to remove, in order. Logs of a recently ended allocation that exist nowhere else are
/// removed only if the disk is short of space, and after all other logs of their user.
fn to_trim(mut ended: Vec<Ended>, bytes_max: u64, now: SystemTime, disk_is_short: bool) -> Vec<Ended> {
    ended.sort();
    let mut total = ended.iter().map(|e| u128::from(e.bytes)).sum::<u128>();
    let (mut has, mut may_go) = (BTreeMap::<u32, u128>::new(), BTreeMap::<u32, VecDeque<Ended>>::new());
    for e in ended {
        *has.entry(e.owner).or_default() += u128::from(e.bytes);
        let may = !e.needed || !e.is_waited_for(now) || (disk_is_short && !e.emptied);
        if may && !e.flushing {
            may_go.entry(e.owner).or_default().push_back(e);
        }
    }
    let mut gone = Vec::new();
    while total > u128::from(bytes_max) {
        let Some((_, owner)) = may_go.iter().filter(|(_, all)| !all.is_empty()).map(|(o, _)| (has[o], *o)).max() else { break };
        let Some(next) = may_go.get_mut(&owner).and_then(VecDeque::pop_front) else { break };
        total -= u128::from(next.bytes);
        *has.entry(owner).or_default() -= u128::from(next.bytes);
        gone.push(next);
    }
    gone
}

/// Whether less than a tenth of the file system is free.
fn disk_is_short(path: &Path) -> bool {
    nix::sys::statvfs::statvfs(path).is_ok_and(|s| s.blocks_available() < s.blocks() / 10)
}

/// Bytes that a directory takes on the disk, not the files' lengths: the owner can choose those.
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

    fn ended(owner: u32, hours_ago: u64, bytes: u64) -> Ended {
        let at = SystemTime::UNIX_EPOCH + Duration::from_secs(3600 * (1000 - hours_ago)) - Duration::from_secs(60);
        Ended { flushing: false, needed: true, emptied: false, at, bytes, owner, path: format!("{owner}:{hours_ago}").into() }
    }

    fn trimmed(all: &[Ended], bytes_max: u64, disk_is_short: bool) -> Vec<String> {
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs(3600 * 1000);
        to_trim(all.to_vec(), bytes_max, now, disk_is_short).iter().map(|e| e.path.display().to_string()).collect()
    }

    #[test]
    fn the_oldest_are_removed_until_the_rest_fits_and_recent_ones_only_if_the_disk_is_short() {
        let all = [ended(1, 0, 500), ended(1, 3, 10), ended(1, 1, 10), ended(1, 2, 10)];
        assert_eq!(trimmed(&all, 530, false), Vec::<String>::new());
        assert_eq!(trimmed(&all, 515, false), ["1:3", "1:2"]);
        assert_eq!(trimmed(&all, 5, false), ["1:3", "1:2", "1:1"]);
        assert_eq!(trimmed(&all, 5, true), ["1:3", "1:2", "1:1", "1:0"]);
        assert_eq!(trimmed(&[ended(1, 2, u64::MAX), ended(1, 1, u64::MAX)], 5, false), ["1:2", "1:1"], "no sum overflows");
    }

    #[test]
    fn the_user_with_most_loses_first_and_stored_logs_are_removed_before_others() {
        let all = [ended(1, 9, 100), ended(2, 2, 300), ended(2, 3, 300), ended(2, 1, 300)];
        assert_eq!(trimmed(&all, 500, false), ["2:3", "2:2"], "the older logs of the user with less stay");
        let mut all = [ended(1, 9, 100), ended(1, 2, 100), ended(1, 0, 100)];
        all[2].needed = false;
        assert_eq!(trimmed(&all, 250, false), ["1:0"]);
        assert_eq!(trimmed(&all, 150, false), ["1:0", "1:9"]);
        all[0].flushing = true;
        assert_eq!(trimmed(&all, 5, true), ["1:0", "1:2"], "what is being flushed is not removed");
    }

    #[test]
    fn emptied_logs_stay_as_holes_until_they_are_no_longer_recent() {
        let mut all = [ended(1, 0, 500), ended(1, 0, 400), ended(1, 2, 10)];
        all[0].emptied = true;
        all[2].emptied = true;
        assert_eq!(trimmed(&all, 5, true), ["1:2", "1:0"]);
        let dir = std::env::temp_dir().join(format!("lattice-trim-empty-{}", std::process::id()));
        let _ = fs::remove_dir_all(&dir);
        fs::create_dir_all(dir.join("logs/0")).unwrap();
        fs::create_dir_all(dir.join("logs/1")).unwrap();
        for (name, bytes) in [("0/0.out", 100_001), ("1/0.out", 1), ("1/0.err", 0), ("1/1.out", 4096)] {
            fs::write(dir.join("logs").join(name), vec![b'x'; bytes]).unwrap();
        }
        assert!(!super::ended(dir.clone()).unwrap().emptied);
        assert!(empty(&dir.join("logs")).unwrap());
        assert!(super::ended(dir.clone()).unwrap().emptied);
        let shim_dir = lattice_runtime::shim::ShimDir(dir.clone());
        let seen: Vec<(u64, u64)> = super::super::files::list(&shim_dir, None).unwrap().iter().map(|s| (s.bytes, s.data_start)).collect();
        assert_eq!(seen, [(100_001, 100_001), (1, 1), (0, 0), (4096, 4096)], "the lengths stay, and the content is gone");
        fs::remove_dir_all(dir).unwrap();
    }

    #[test]
    fn a_sparse_file_counts_with_its_blocks_and_a_directory_with_a_fixed_size() {
        let dir = std::env::temp_dir().join(format!("lattice-trim-sparse-{}", std::process::id()));
        let _ = fs::remove_dir_all(&dir);
        fs::create_dir_all(dir.join("logs/0")).unwrap();
        File::create(dir.join("logs/0/0.out")).unwrap().set_len(1 << 40).unwrap();
        assert_eq!(bytes_below(&dir), 3 * DIRECTORY_BYTES);
        let mut file = File::create(dir.join("logs/0/0.err")).unwrap();
        file.write_all(&[1; 100_000]).unwrap();
        file.sync_all().unwrap();
        assert!(bytes_below(&dir) >= 3 * DIRECTORY_BYTES + 100_000);
        fs::remove_dir_all(dir).unwrap();
    }
}

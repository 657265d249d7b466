//! Small files that are replaced as a whole, and files that are set aside.

use nix::fcntl::{AT_FDCWD, RenameFlags, renameat2};
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

/// Replaces a small file that only the agent reads: after a crash it holds the old or the new
/// content, never a mixture.
pub fn replace(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let part = path.with_extension("json.part");
    write_whole(&part, bytes)?;
    fs::rename(&part, path)?;
    path.parent().map_or(Ok(()), |dir| File::open(dir).and_then(|d| d.sync_all()))
}

/// As [`replace`], for content that means nothing after a reboot: nothing is synced. If the process
/// is killed, the file holds the old or the new content as a whole. The two files are exchanged,
/// because ext4 begins writing out a file that is renamed over another one and makes the caller
/// wait for that.
pub fn replace_for_boot(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let part = path.with_extension("json.part");
    new_file(&part)?.write_all(bytes)?;
    match renameat2(AT_FDCWD, &part, AT_FDCWD, path, RenameFlags::RENAME_EXCHANGE) {
        // If the removal fails, the next call overwrites the file.
        Ok(()) => {
            let _ = fs::remove_file(&part);
            Ok(())
        }
        // There is no file at `path` yet, or the file system cannot exchange.
        Err(_) => fs::rename(&part, path),
    }
}

/// Writes a file and syncs it before returning.
pub fn write_whole(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut file = new_file(path)?;
    file.write_all(bytes)?;
    file.sync_all()
}

/// Creates or truncates a file that only its owner may read.
fn new_file(path: &Path) -> io::Result<File> {
    OpenOptions::new().create(true).write(true).truncate(true).mode(0o600).open(path)
}

/// CRC-32 of a value as compact JSON with sorted keys: the same whichever fields a version knows.
pub fn checksum(value: &serde_json::Value) -> u32 {
    crc32fast::hash(value.to_string().as_bytes())
}

/// Renames a file within its directory, out of the way; returns its new path.
pub fn set_file_aside(path: &Path) -> io::Result<PathBuf> {
    let at = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs());
    let to = free_name(path, at);
    fs::rename(path, &to).map(|()| to)
}

/// A free name beside `path`, made from its name and `at` (seconds since 1970).
fn free_name(path: &Path, at: u64) -> PathBuf {
    let named = |suffix: String| {
        let mut name = path.as_os_str().to_owned();
        name.push(suffix);
        PathBuf::from(name)
    };
    (0..).map(|n| named(if n == 0 { format!(".kept-{at}") } else { format!(".kept-{at}-{n}") })).find(|p| !p.exists()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_replaced_file_is_complete_and_leaves_no_temporary_file() {
        let dir = std::env::temp_dir().join(format!("lattice-replaced-{}", std::process::id()));
        fs::create_dir_all(&dir).unwrap();
        let path = dir.join("checkpoint.json");
        // The texts get longer and shorter; the bytes of a left-over part file must never show.
        for (text, left) in [("one", false), ("the second", false), ("3", true), ("fourth", false)] {
            if left {
                fs::write(path.with_extension("json.part"), "a long one that was half written").unwrap();
            }
            replace_for_boot(&path, text.as_bytes()).unwrap();
            assert_eq!(fs::read_to_string(&path).unwrap(), text);
            assert_eq!(fs::read_dir(&dir).unwrap().count(), 1);
        }
        fs::remove_dir_all(dir).unwrap();
    }
}

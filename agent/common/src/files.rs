//! Small files that are replaced whole, and files that are moved out of the way.

use nix::fcntl::{AT_FDCWD, RenameFlags, renameat2};
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

/// Replaces a small file that only the agent reads: after a crash there is the old one or the new one, whole.
pub fn replace(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let part = path.with_extension("json.part");
    write_whole(&part, bytes)?;
    fs::rename(&part, path)?;
    path.parent().map_or(Ok(()), |dir| File::open(dir).and_then(|d| d.sync_all()))
}

/// The same for what means nothing any more once the machine has ended: whoever is killed leaves the old one or the new one, whole, and
/// no disk is waited for: ext4 begins to write out what is put in another file's place, and has the caller wait for that. So the two
/// change places.
pub fn replace_for_boot(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let part = path.with_extension("json.part");
    new_file(&part)?.write_all(bytes)?;
    match renameat2(AT_FDCWD, &part, AT_FDCWD, path, RenameFlags::RENAME_EXCHANGE) {
        // What stays of the old one, the next one is written over.
        Ok(()) => {
            let _ = fs::remove_file(&part);
            Ok(())
        }
        // There is none yet, or the file system cannot.
        Err(_) => fs::rename(&part, path),
    }
}

/// Writes a file that is synced once this returns.
pub fn write_whole(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut file = new_file(path)?;
    file.write_all(bytes)?;
    file.sync_all()
}

/// An empty file that only its owner reads.
pub fn new_file(path: &Path) -> io::Result<File> {
    OpenOptions::new().create(true).write(true).truncate(true).mode(0o600).open(path)
}

/// Of a value as compact JSON, its keys sorted: the same whatever fields a version knows.
pub fn checksum(value: &serde_json::Value) -> u32 {
    crc32fast::hash(value.to_string().as_bytes())
}

/// Moves one file out of the way, within its directory. Where it went.
pub fn set_file_aside(path: &Path) -> io::Result<PathBuf> {
    let at = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs());
    let to = free_name(path, at);
    fs::rename(path, &to).map(|()| to)
}

/// Beside `path`: a name that nothing has yet.
pub fn free_name(path: &Path, at: u64) -> PathBuf {
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
    fn what_is_replaced_is_whole_and_nothing_stays_beside_it() {
        let dir = std::env::temp_dir().join(format!("lattice-replaced-{}", std::process::id()));
        fs::create_dir_all(&dir).unwrap();
        let path = dir.join("checkpoint.json");
        // The second one is longer, the third shorter; what a kill left beside them is no part of either.
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

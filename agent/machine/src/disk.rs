//! Checks the free space of the node's state folder. A full disk ends no running work, but keeps
//! new work from starting.

use lattice_node::image_cache::CacheDisk;
use nix::sys::statvfs::statvfs;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::time::{Duration, Instant};

/// Less free space than this, in bytes, may be too little for the next prologue. It is no shortage
/// if it is a large part of a small file system.
const LITTLE_BYTES: u64 = 64 << 20;

/// The space of the file system of `dir`, or of its nearest existing ancestor.
pub fn space(dir: &Path) -> io::Result<CacheDisk> {
    let there = dir.ancestors().find(|d| d.exists()).unwrap_or(Path::new("/"));
    let stat = statvfs(there)?;
    let bytes = |blocks: u64| blocks.saturating_mul(stat.fragment_size());
    Ok(CacheDisk { size_bytes: bytes(stat.blocks()), free_bytes: bytes(stat.blocks_available()) })
}

/// Free bytes in `dir`, or in its nearest existing ancestor.
pub fn free_bytes(dir: &Path) -> io::Result<u64> {
    space(dir).map(|disk| disk.free_bytes)
}

/// The problem for `node status`, if there is one.
pub fn shortage(dir: &Path) -> Option<String> {
    let stat = statvfs(dir).ok()?;
    let free = stat.blocks_available() * stat.fragment_size();
    let no_inodes = stat.files() > 0 && stat.files_available() == 0;
    let little = free < LITTLE_BYTES && stat.blocks_available() < stat.blocks() / 10;
    let what = match (little, no_inodes) {
        (true, _) => format!("{} KiB are free", free >> 10),
        (false, true) => "no more files can be created".to_owned(),
        (false, false) => return None,
    };
    Some(format!(
        "disk: {what} below {}: running work goes on and can be ended, new work may not start, output is lost once the disk is full; \
         make room",
        dir.display()
    ))
}

/// Writes, syncs and removes a small file in `dir`, as the journal would; returns how long that
/// took.
pub fn try_sync(dir: &Path) -> io::Result<Duration> {
    let path = dir.join(format!(".doctor-{}", std::process::id()));
    let mut file = OpenOptions::new().create_new(true).write(true).mode(0o600).open(&path)?;
    let began = Instant::now();
    let written = file.write_all(&[0; 4096]).and_then(|()| file.sync_data()).map(|()| began.elapsed());
    drop::<File>(file);
    fs::remove_file(&path)?;
    written
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_synced_and_taken_away_again() {
        let dir = std::env::temp_dir().join(format!("lattice-disk-{}", std::process::id()));
        fs::create_dir(&dir).unwrap();
        assert!(try_sync(&dir).unwrap() > Duration::ZERO);
        assert_eq!(fs::read_dir(&dir).unwrap().count(), 0);
        assert!(free_bytes(&dir.join("not/yet")).unwrap() > 0);
        fs::remove_dir(&dir).unwrap();
        assert!(try_sync(&dir).is_err());
        assert_eq!(shortage(&dir), None, "nothing can be said of what is not there");
    }
}

//! The images in the cache, and which of them are in use.
//!
//! Each user of an image has a shared lock on its file: the agent from the admission on, and the loop device that
//! mounts the image, since the lock belongs to the open file that the kernel keeps for the device. So an image that can
//! be locked exclusively has no user, not even work that an earlier agent started.
//!
//! The file's group is the number of the user for whom the image was copied. The mode 0400 gives the group no rights.

use super::error::ImageError;
use std::fs::{self, File, TryLockError};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

/// An image that stays in the cache while this lives.
#[derive(Debug)]
pub struct HeldImage {
    path: PathBuf,
    /// Closing it releases the lock.
    _locked: File,
}

impl HeldImage {
    /// Its path: `<cache>/sha256-<hex>.sqfs`, owned by root, mode 0400.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

/// An image that nobody uses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnusedImage {
    /// Its path in the cache.
    pub path: PathBuf,
    /// The user for whom it was copied.
    pub uid: u32,
    /// Bytes that its removal frees.
    pub bytes: u64,
    /// When it was last admitted, or last seen in use.
    pub last_used: SystemTime,
}

/// No space can be made for an image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NoRoom {
    /// The largest image that would fit now, in bytes.
    pub bytes_max: u64,
}

impl NoRoom {
    pub(super) fn of(self, image: &Path, cache: &Path, bytes: u64) -> ImageError {
        ImageError::NoRoom { path: image.to_owned(), cache: cache.to_owned(), bytes, bytes_max: self.bytes_max }
    }
}

/// The path of an image with this digest in the cache.
pub fn cached(cache: &Path, sha256: &str) -> PathBuf {
    cache.join(format!("sha256-{sha256}.sqfs"))
}

/// Locks an image in the cache and records that it is used; `None` if it is not there.
pub fn hold(cache: &Path, sha256: &str) -> io::Result<Option<HeldImage>> {
    let path = cached(cache, sha256);
    loop {
        let file = match File::open(&path) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error),
        };
        file.lock_shared()?;
        // It may have been removed while we waited for the lock.
        if is_at(&file, &path) {
            note_use(&file);
            return Ok(Some(HeldImage { path, _locked: file }));
        }
    }
}

/// The unused images, in no order. Removes incomplete copies of a killed agent.
pub fn unused(cache: &Path) -> io::Result<Vec<UnusedImage>> {
    let mut found = Vec::new();
    let entries = match fs::read_dir(cache) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(found),
        Err(error) => return Err(error),
    };
    for entry in entries {
        let path = entry?.path();
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        if !name.starts_with("sha256-") {
            continue;
        }
        if name.ends_with(".sqfs.part") {
            remove_unused(&path)?;
        } else if name.ends_with(".sqfs") {
            // Another process may remove it meanwhile.
            let Ok(file) = File::open(&path) else { continue };
            if is_free(&file)? {
                let metadata = file.metadata()?;
                let bytes = metadata.blocks().saturating_mul(512);
                found.push(UnusedImage { uid: metadata.gid(), bytes, last_used: metadata.modified()?, path });
            } else {
                note_use(&file);
            }
        }
    }
    Ok(found)
}

/// Removes an image, unless it is in use. Returns whether it is gone.
pub fn remove_unused(path: &Path) -> io::Result<bool> {
    let file = match File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(true),
        Err(error) => return Err(error),
    };
    if !is_free(&file)? {
        return Ok(false);
    }
    if is_at(&file, path) {
        fs::remove_file(path)?;
    }
    Ok(true)
}

/// Locks it exclusively, if nobody has a lock on it.
fn is_free(file: &File) -> io::Result<bool> {
    match file.try_lock() {
        Ok(()) => Ok(true),
        Err(TryLockError::WouldBlock) => Ok(false),
        Err(TryLockError::Error(error)) => Err(error),
    }
}

/// Whether this open file still has that name.
pub(super) fn is_at(file: &File, path: &Path) -> bool {
    let ours = file.metadata().map(|m| (m.dev(), m.ino()));
    fs::metadata(path).is_ok_and(|there| ours.is_ok_and(|ours| ours == (there.dev(), there.ino())))
}

/// The modification time records the last use, because nobody writes to the file. If it cannot be set, the image is
/// only removed earlier than it should be.
fn note_use(file: &File) {
    let _ = file.set_modified(SystemTime::now());
}

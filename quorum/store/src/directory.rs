//! A member's data directory: used by one process at a time and always by the same member; small
//! files are replaced as a whole.

use super::StoreError;
use serde::{Deserialize, Serialize};
use std::fs::{self, File, OpenOptions, Permissions};
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tokio::sync::oneshot;

/// The owner of the directory.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Whose {
    format: u32,
    cluster: String,
    member: u64,
}

const FORMAT: u32 = 2;

/// A locked directory. Everything that writes into it has a clone; the lock ends with the last one.
#[derive(Clone, Debug)]
pub struct Directory(Arc<Locked>);

#[derive(Debug)]
struct Locked {
    path: PathBuf,
    /// Closing it releases the lock.
    lock: File,
    released: Option<oneshot::Sender<()>>,
}

impl Drop for Locked {
    fn drop(&mut self) {
        // Waiting processes must find it free. If this fails, closing the file releases the lock a
        // moment later.
        let _unlocked = self.lock.unlock();
        if let Some(released) = self.released.take() {
            let _nobody_waits = released.send(());
        }
    }
}

impl Directory {
    /// Creates the directory if missing, removes access for others (the log and the snapshots
    /// contain the gossip keys), locks it and checks its owner. The receiver is notified when it is
    /// free again.
    pub fn open(path: &Path, cluster: &str, member: u64) -> Result<(Self, oneshot::Receiver<()>), StoreError> {
        fs::create_dir_all(path).map_err(StoreError::io(path, "the folder cannot be made"))?;
        close_to_others(path).map_err(StoreError::io(path, "the folder cannot be closed to others (chmod 700)"))?;
        let lock_path = path.join("lock");
        let lock = OpenOptions::new()
            .create(true)
            .truncate(false)
            .write(true)
            .open(&lock_path)
            .map_err(StoreError::io(&lock_path, "cannot be opened"))?;
        match lock.try_lock() {
            Ok(()) => {}
            Err(fs::TryLockError::WouldBlock) => return Err(StoreError::Locked { path: path.to_owned() }),
            Err(fs::TryLockError::Error(source)) => return Err(StoreError::io(&lock_path, "cannot be locked")(source)),
        }
        let (tx, rx) = oneshot::channel();
        let directory = Self(Arc::new(Locked { path: path.to_owned(), lock, released: Some(tx) }));
        directory.check_owner(cluster, member)?;
        Ok((directory, rx))
    }

    /// As [`Self::open`], but only for an existing directory of a member.
    pub fn open_present(path: &Path, cluster: &str, member: u64) -> Result<(Self, oneshot::Receiver<()>), StoreError> {
        let whose = path.join("member.json");
        if !whose.exists() {
            return Err(StoreError::corrupt(&whose, 0, "it is missing"));
        }
        Self::open(path, cluster, member)
    }

    fn check_owner(&self, cluster: &str, member: u64) -> Result<(), StoreError> {
        let path = self.path().join("member.json");
        match fs::read(&path) {
            Ok(bytes) => {
                let whose: Whose = serde_json::from_slice(&bytes).map_err(|e| StoreError::corrupt(&path, 0, e.to_string()))?;
                if whose.format > FORMAT {
                    return Err(StoreError::newer(&path, format!("format {} of its folder", whose.format)));
                }
                if whose.format != FORMAT {
                    return Err(StoreError::corrupt(&path, 0, format!("format {} is not known to this version", whose.format)));
                }
                if whose.cluster != cluster || whose.member != member {
                    return Err(StoreError::Foreign {
                        path: self.path().to_owned(),
                        member: whose.member,
                        cluster: whose.cluster,
                        wanted_member: member,
                        wanted_cluster: cluster.to_owned(),
                    });
                }
                Ok(())
            }
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                let whose = Whose { format: FORMAT, cluster: cluster.to_owned(), member };
                let text = serde_json::to_vec(&whose).map_err(|e| StoreError::io(&path, "cannot be written")(e.into()))?;
                replace(&path, &text)
            }
            Err(error) => Err(StoreError::io(&path, "cannot be read")(error)),
        }
    }

    /// The directory's path.
    pub fn path(&self) -> &Path {
        &self.0.path
    }
}

fn close_to_others(path: &Path) -> std::io::Result<()> {
    let mode = fs::metadata(path)?.permissions().mode();
    if mode & 0o077 == 0 {
        return Ok(());
    }
    fs::set_permissions(path, Permissions::from_mode(0o700))
}

/// Replaces a small file: after a crash there is either the old or the new one, complete.
pub fn replace(path: &Path, bytes: &[u8]) -> Result<(), StoreError> {
    let temporary = path.with_extension("new");
    let fail = |what| StoreError::io(path, what);
    let mut file = File::create(&temporary).map_err(fail("cannot be written"))?;
    file.write_all(bytes).map_err(fail("cannot be written"))?;
    file.sync_all().map_err(fail("cannot be synced"))?;
    fs::rename(&temporary, path).map_err(fail("cannot be replaced"))?;
    sync_parent(path)
}

/// Makes the file names in the parent directory of `path` durable.
pub fn sync_parent(path: &Path) -> Result<(), StoreError> {
    sync_folder(path.parent().unwrap_or(path))
}

/// Makes the file names in a directory durable.
pub fn sync_folder(path: &Path) -> Result<(), StoreError> {
    File::open(path).and_then(|d| d.sync_all()).map_err(StoreError::io(path, "the folder cannot be synced"))
}

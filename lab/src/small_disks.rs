//! Small file systems for the files of a daemon, which can be filled completely and emptied again.

use crate::process::until;
use anyhow::{Context, Result};
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use serde::{Deserialize, Serialize};
use std::fs::File;
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// How long a file system may be busy after the end of its last process.
const UNMOUNT_TIMEOUT: Duration = Duration::from_secs(5);

/// The file system of one daemon. It is in memory, and is removed together with the cluster.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SmallDisk {
    /// The daemon, such as `n4` or `member-3`.
    pub daemon: String,
    /// Its mount point.
    pub at: PathBuf,
}

impl SmallDisk {
    /// Mounts a file system of this many MiB on the directory of a daemon's files. Needs root.
    pub fn mount(daemon: &str, at: &Path, mib: u32) -> Result<Self> {
        let failed = || format!("cannot mount {mib} MiB for {daemon} at {} (this needs root)", at.display());
        std::fs::create_dir_all(at).with_context(failed)?;
        let options = format!("size={mib}m,mode=0700");
        mount(None::<&str>, at, Some("tmpfs"), MsFlags::empty(), Some(options.as_str())).with_context(failed)?;
        Ok(Self { daemon: daemon.to_owned(), at: at.to_owned() })
    }

    /// Writes until not a single byte fits.
    pub fn fill(&self) -> Result<()> {
        let path = self.filler();
        let file = File::options().create(true).append(true).open(&path);
        let mut file = match file {
            Ok(file) => file,
            // The disk is too full for a new file.
            Err(e) if e.kind() == ErrorKind::StorageFull => return Ok(()),
            Err(e) => return Err(e).with_context(|| format!("cannot write {}", path.display())),
        };
        for piece in [1 << 20, 4096, 1] {
            while file.write_all(&vec![1; piece]).is_ok() {}
        }
        Ok(())
    }

    /// Frees the space that [`Self::fill`] used.
    pub fn empty(&self) -> Result<()> {
        let path = self.filler();
        match std::fs::remove_file(&path) {
            Err(e) if e.kind() != ErrorKind::NotFound => Err(e).with_context(|| format!("cannot remove {}", path.display())),
            _ => Ok(()),
        }
    }

    fn filler(&self) -> PathBuf {
        self.at.join("fill")
    }

    /// Unmounts it, with everything on it.
    pub fn unmount(&self) -> Result<()> {
        let mut last = Ok(());
        until(UNMOUNT_TIMEOUT, || {
            last = match umount2(&self.at, MntFlags::empty()) {
                // It was never mounted, or is unmounted already.
                Err(nix::errno::Errno::EINVAL | nix::errno::Errno::ENOENT) => Ok(()),
                other => other,
            };
            last.is_ok()
        });
        last.with_context(|| format!("cannot unmount {}", self.at.display()))
    }
}

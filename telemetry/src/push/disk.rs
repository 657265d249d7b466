//! The disk under the buffer, so that its failures can be tried without one that fails.

use nix::sys::statvfs::statvfs;
use std::fs::{self, File};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

/// Of a disk without a bound of its own: this many bytes stay free, or a twentieth of it where that is less.
const SPARE_BYTES: u64 = 256 << 20;

/// What the buffer leaves free of its disk for who else writes there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Spare {
    /// So many bytes.
    Bytes(u64),
    /// A twentieth of the disk, at most 256 MiB.
    OfDisk,
}

impl Spare {
    pub(super) fn bytes(self, space: Space) -> u64 {
        match self {
            Self::Bytes(bytes) => bytes,
            Self::OfDisk => SPARE_BYTES.min(space.total / 20),
        }
    }
}

/// How much there is, in bytes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Space {
    pub total: u64,
    pub free: u64,
}

/// What the buffer does with its disk.
pub(super) trait Disk: Send + std::fmt::Debug {
    /// `None`: the file system does not report it.
    fn space(&self, dir: &Path) -> Option<Space>;
    /// Writes a file that its owner alone may read.
    fn write(&self, path: &Path, bytes: &[u8]) -> io::Result<()>;
    fn read(&self, path: &Path) -> io::Result<Vec<u8>>;
    fn remove(&self, path: &Path) -> io::Result<()>;
}

/// The machine's.
#[derive(Clone, Copy, Debug)]
pub(super) struct Real;

impl Disk for Real {
    fn space(&self, dir: &Path) -> Option<Space> {
        let stat = statvfs(dir).ok()?;
        let of = |blocks: u64| blocks.saturating_mul(stat.fragment_size());
        Some(Space { total: of(stat.blocks()), free: of(stat.blocks_available()) })
    }

    fn write(&self, path: &Path, bytes: &[u8]) -> io::Result<()> {
        File::options().create(true).truncate(true).write(true).mode(0o600).open(path)?.write_all(bytes)
    }

    fn read(&self, path: &Path) -> io::Result<Vec<u8>> {
        fs::read(path)
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        fs::remove_file(path)
    }
}

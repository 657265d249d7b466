//! The disk under the buffer, as a trait, so that tests can simulate its failures.

use nix::sys::statvfs::statvfs;
use std::fs::{self, File};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

/// Without a configured bound this many bytes stay free, or a twentieth of the disk if that is less.
const SPARE_BYTES: u64 = 256 << 20;

/// The space that the buffer leaves free on its disk for others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Spare {
    /// This many bytes.
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

/// Space of a file system, in bytes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Space {
    pub total: u64,
    pub free: u64,
}

/// The disk operations of the buffer.
pub(super) trait Disk: Send + std::fmt::Debug {
    /// `None`: the file system does not report it.
    fn space(&self, dir: &Path) -> Option<Space>;
    /// Writes a file that only its owner may read.
    fn write(&self, path: &Path, bytes: &[u8]) -> io::Result<()>;
    fn read(&self, path: &Path) -> io::Result<Vec<u8>>;
    fn remove(&self, path: &Path) -> io::Result<()>;
}

/// The machine's disk.
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

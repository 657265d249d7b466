//! A large file, saved by work in a checkpoint, and copied to the same file system by cp and zstd.

use super::asked::Asked;
use crate::bench::subject;
use anyhow::{Context, Result, ensure};
use lattice_lab::cluster::Cluster;
use lattice_lab::interrupt;
use std::fs::{self, File};
use std::io::{BufWriter, Read, Write};
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Block size of the files.
const BLOCK_BYTES: usize = 1 << 16;
/// One block in this many is not zero, in the file that is mostly zeros.
const FULL_PART: usize = 8;
/// Space needed at once, in multiples of the file: both files, a copy, zstd's result, two checkpoints.
const SPACE_FACTOR: u64 = 6;

/// The files, and the work that saves them.
pub(super) struct Bulk<'a> {
    asked: Asked<'a>,
    dir: PathBuf,
    zstd: PathBuf,
    /// The previous checkpoint, which is removed when there is a newer one.
    before: Mutex<Option<String>>,
}

impl<'a> Bulk<'a> {
    /// Writes the files.
    pub(super) fn new(cluster: &Cluster, zstd: &Path, megabytes: u32, asked: Asked<'a>) -> Result<Self> {
        let dir = cluster.dir.join("bulk");
        fs::create_dir(&dir)?;
        let about = nix::sys::statvfs::statvfs(&dir)?;
        let free = about.blocks_available().saturating_mul(about.fragment_size());
        let wanted = u64::from(megabytes) * 1_000_000 * SPACE_FACTOR;
        ensure!(
            free >= wanted,
            "{} has {} MB free, {} are needed: see --dir and --megabytes",
            dir.display(),
            free / 1_000_000,
            wanted / 1_000_000
        );
        eprintln!("bench: writing 2 files of {megabytes} MB");
        let bulk = Self { asked, dir, zstd: zstd.to_owned(), before: Mutex::default() };
        for (path, full_part) in [(bulk.random(), 1), (bulk.zeros(), FULL_PART)] {
            write(&path, megabytes as usize * 1_000_000, full_part).with_context(|| format!("{}", path.display()))?;
        }
        Ok(bulk)
    }

    /// The file that cannot be compressed.
    pub(super) fn random(&self) -> PathBuf {
        self.dir.join("random")
    }

    /// The file that is mostly zeros.
    pub(super) fn zeros(&self) -> PathBuf {
        self.dir.join("zeros")
    }

    /// Waits until everything that was written before is on the disk.
    fn settle(&self) -> Result<()> {
        interrupt::check()?;
        let dir = File::open(&self.dir)?;
        // SAFETY: the descriptor is open.
        ensure!(unsafe { libc::syncfs(dir.as_raw_fd()) } == 0, "syncfs: {}", std::io::Error::last_os_error());
        Ok(())
    }

    /// The time from when the work has saved the file until the checkpoint is complete.
    pub(super) fn saved(&self, file: PathBuf) -> Result<Duration> {
        fs::write(self.asked.dir.join("save"), file.to_string_lossy().as_bytes())?;
        self.settle()?;
        let done = self.asked.complete(&self.asked.here)?;
        let took = done.over_ns.checked_sub(done.times.saved_ns).context("it was complete before it was saved: the clock was set")?;
        let before = self.before.lock().unwrap_or_else(PoisonError::into_inner).replace(done.id);
        if let Some(before) = before {
            self.asked.lattice.ok(&["checkpoint", "rm", self.asked.id.as_str(), before.as_str()])?;
        }
        Ok(Duration::from_nanos(took))
    }

    fn cp(&self, file: &Path) -> Command {
        let mut command = Command::new("cp");
        // All bytes are copied, as in a checkpoint: no shared extents, no holes.
        command.args(["--reflink=never", "--sparse=never"]).arg(file).arg(self.dir.join("copy"));
        command
    }

    fn zstd(&self, file: &Path) -> Command {
        let mut command = Command::new(&self.zstd);
        command.args(["-3", "-T1", "-q", "-f", "--no-sparse"]).arg(file).arg("-o").arg(self.dir.join("copy.zst"));
        command
    }

    fn timed(&self, commands: &mut [Command]) -> Result<Duration> {
        self.settle()?;
        let took = commands.iter_mut().map(subject::timed).sum::<Result<Duration>>().and_then(|took| Ok(took + self.sync_result()?));
        for made in ["copy", "copy.zst"] {
            let _ = fs::remove_file(self.dir.join(made));
        }
        took
    }

    /// The time until the last file is on the disk, as a complete checkpoint is.
    fn sync_result(&self) -> Result<Duration> {
        let began = Instant::now();
        let last = ["copy.zst", "copy"].iter().find_map(|made| File::open(self.dir.join(made)).ok()).context("no result")?;
        last.sync_all()?;
        Ok(began.elapsed())
    }

    /// The time of cp.
    pub(super) fn copied(&self, file: PathBuf) -> Result<Duration> {
        self.timed(&mut [self.cp(&file)])
    }

    /// The time of zstd.
    pub(super) fn compressed(&self, file: PathBuf) -> Result<Duration> {
        self.timed(&mut [self.zstd(&file)])
    }

    /// The time of both, one after the other.
    pub(super) fn both(&self, file: PathBuf) -> Result<Duration> {
        self.timed(&mut [self.cp(&file), self.zstd(&self.dir.join("copy"))])
    }

    /// The time to hash the file.
    pub(super) fn hashed(&self, file: PathBuf) -> Result<Duration> {
        self.settle()?;
        let began = Instant::now();
        let (mut file, mut hasher, mut piece) = (File::open(file)?, blake3::Hasher::new(), vec![0; 1 << 20]);
        loop {
            match file.read(&mut piece)? {
                0 => break,
                read => {
                    hasher.update(&piece[..read]);
                }
            }
        }
        let hash = hasher.finalize();
        ensure!(hash.as_bytes().iter().any(|b| *b != 0), "it has no hash");
        Ok(began.elapsed())
    }
}

/// Writes a file of this many bytes, in which one block in `full_part` is random and the others are zeros.
fn write(path: &Path, bytes: usize, full_part: usize) -> Result<()> {
    let mut random = File::open("/dev/urandom")?;
    let mut file = BufWriter::with_capacity(1 << 20, File::create_new(path)?);
    let mut left = bytes;
    for block in 0.. {
        if left == 0 {
            break;
        }
        let mut piece = vec![0; BLOCK_BYTES.min(left)];
        if block % full_part == 0 {
            random.read_exact(&mut piece)?;
        }
        file.write_all(&piece)?;
        left -= piece.len();
    }
    Ok(file.into_inner()?.sync_all()?)
}

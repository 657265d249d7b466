//! The file format of snapshots.
//!
//! ```text
//!   | "LATTICE-SNAP", version: 16 bytes | length u32 | crc u32 | description, MessagePack …
//!   | ledger: zstd of MessagePack … | crc u32 | "LATTICE-SNAP-END" |
//! ```
//!
//! The last checksum covers everything before it. Writing and reading are streamed and need no
//! second copy of the ledger. A snapshot contains only the head of the audit chain.
//!
//! We use MessagePack and not rkyv, which needs the exact layout of the types that wrote the data:
//! after adding a field, neither snapshots of other versions nor last month's backup could be read.
//! With 10,000 nodes and 100,000 allocations, rkyv would save 0.16 s of the 0.75 s that a restart
//! needs to read a snapshot. Reconsider this when reading takes more than a second.

use super::StoreError;
use super::directory::sync_parent;
use crate::raft::SnapshotMeta;
use lattice_api::pack;
use lattice_ledger::{AuditHead, LEVEL_MAX, Ledger};
use lattice_model::{Generation, Revision, Timestamp, with_causes};
use serde::{Deserialize, Serialize};
use std::fs::File;
use std::io::{self, BufReader, BufWriter, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

const MAGIC: &[u8; 16] = b"LATTICE-SNAP\0\0\0\x03";
const END: &[u8; 16] = b"LATTICE-SNAP-END";
/// Largest accepted size of the description, in bytes.
const ABOUT_BYTES_MAX: u32 = 1024 * 1024;
/// Number of snapshots to keep.
pub const RETAINED_SNAPSHOTS: usize = 5;

/// The description of a snapshot.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct About {
    /// Raft's metadata: its id, the last log entry in it, the membership.
    pub meta: SnapshotMeta,
    /// The cluster's name.
    pub cluster: String,
    /// Increased by each recovery.
    pub generation: Generation,
    /// The revision of the last command in it.
    pub revision: Revision,
    /// The audit chain's head.
    pub audit: AuditHead,
    /// The checkpoint of the audit chain: records up to there are known to be archived.
    #[serde(default)]
    pub audit_checkpoint: AuditHead,
    /// Number of nodes.
    pub nodes: u64,
    /// Number of allocations, including ended ones.
    pub allocations: u64,
    /// When it was written, by the clock of the writing member.
    pub written: Timestamp,
    /// The program version that wrote it.
    pub version: String,
}

/// A snapshot read from a file.
#[derive(Debug)]
pub struct Loaded {
    /// Its description.
    pub about: About,
    /// The ledger.
    pub ledger: Ledger,
    /// The file's path.
    pub path: PathBuf,
}

impl About {
    /// The description of a ledger.
    pub fn of(meta: SnapshotMeta, ledger: &Ledger, written: Timestamp) -> Self {
        Self {
            meta,
            cluster: ledger.cluster().to_owned(),
            generation: ledger.generation(),
            revision: ledger.revision(),
            audit: ledger.audit_head().clone(),
            audit_checkpoint: ledger.audit_checkpoint().map_or_else(AuditHead::default, |checkpoint| checkpoint.signed.head()),
            nodes: ledger.nodes().count() as u64,
            allocations: ledger.allocations().count() as u64,
            written,
            version: env!("CARGO_PKG_VERSION").to_owned(),
        }
    }

    /// The log index of its last entry.
    pub fn index(&self) -> u64 {
        self.meta.last_log_id.map_or(0, |id| id.index)
    }
}

/// The path of the snapshot with this index.
pub fn path_of(dir: &Path, index: u64) -> PathBuf {
    dir.join(format!("{index:020}.snapshot"))
}

/// All snapshots in `dir`, newest first.
pub fn list(dir: &Path) -> Result<Vec<(u64, PathBuf)>, StoreError> {
    let mut found = Vec::new();
    for file in std::fs::read_dir(dir).map_err(StoreError::io(dir, "cannot be listed"))? {
        let file = file.map_err(StoreError::io(dir, "cannot be listed"))?;
        let name = file.file_name();
        if let Some(index) = name.to_string_lossy().strip_suffix(".snapshot").and_then(|n| n.parse::<u64>().ok()) {
            found.push((index, file.path()));
        }
    }
    found.sort_unstable_by(|a, b| b.cmp(a));
    Ok(found)
}

/// Writes a snapshot durably. If that fails, nothing of it is left.
pub fn write(dir: &Path, about: &About, ledger: &Ledger) -> Result<PathBuf, StoreError> {
    let path = path_of(dir, about.index());
    let temporary = Temporary::of(&path);
    let fail = |what| StoreError::io(&path, what);
    let file = File::create(&temporary.0).map_err(fail("cannot be made"))?;
    write_to(&file, about, ledger).map_err(fail("cannot be written"))?;
    file.sync_all().map_err(fail("cannot be synced"))?;
    std::fs::rename(&temporary.0, &path).map_err(fail("cannot be put in place"))?;
    sync_parent(&path)?;
    Ok(path)
}

/// The file of a snapshot that is being written. Removed on drop, unless it has been renamed to its
/// final path.
struct Temporary(PathBuf);

impl Temporary {
    fn of(path: &Path) -> Self {
        Self(path.with_extension("snapshot-new"))
    }
}

impl Drop for Temporary {
    fn drop(&mut self) {
        // If this fails, the next start removes it.
        let _ignored = std::fs::remove_file(&self.0);
    }
}

/// Writes a snapshot to `out` as a stream.
fn write_to(out: impl Write, about: &About, ledger: &Ledger) -> io::Result<()> {
    let about = pack::to_bytes(about).map_err(io::Error::other)?;
    let mut out = Summed { inner: BufWriter::with_capacity(128 * 1024, out), crc: crc32fast::Hasher::new() };
    out.write_all(MAGIC)?;
    out.write_all(&u32::try_from(about.len()).map_err(io::Error::other)?.to_le_bytes())?;
    out.write_all(&crc32fast::hash(&about).to_le_bytes())?;
    out.write_all(&about)?;
    let mut packed = Yielding { inner: zstd::Encoder::new(&mut out, zstd::DEFAULT_COMPRESSION_LEVEL)?, since: 0 };
    rmp_serde::encode::write_named(&mut packed, ledger).map_err(io::Error::other)?;
    packed.inner.finish()?;
    let crc = out.crc.clone().finalize();
    out.write_all(&crc.to_le_bytes())?;
    out.write_all(END)?;
    out.inner.flush()
}

/// Approximate number of bytes encoded in a millisecond.
const YIELD_BYTES: usize = 256 * 1024;

/// A writer that yields the processor from time to time. Without it, when a thread that commits
/// becomes runnable, Linux lets a low-priority thread continue until the end of its time slice or
/// the next clock tick: 4 ms for each of the threads that a commit passes.
struct Yielding<I> {
    inner: I,
    /// Bytes since it last yielded.
    since: usize,
}

impl<I: Write> Write for Yielding<I> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.since >= YIELD_BYTES {
            self.since = 0;
            std::thread::yield_now();
        }
        let written = self.inner.write(bytes)?;
        self.since += written;
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.inner.flush()
    }
}

struct Summed<I> {
    inner: I,
    crc: crc32fast::Hasher,
}

impl<W: Write> Write for Summed<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.inner.write(bytes)?;
        self.crc.update(&bytes[..written]);
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.inner.flush()
    }
}

impl<R: Read> Read for Summed<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.inner.read(buffer)?;
        self.crc.update(&buffer[..read]);
        Ok(read)
    }
}

/// Checks every part of a received snapshot, also with `check`, and then puts it in place durably.
pub fn take_over(
    dir: &Path,
    index: u64,
    received: &File,
    check: impl FnOnce(&Loaded) -> Result<(), StoreError>,
) -> Result<Loaded, StoreError> {
    let path = path_of(dir, index);
    let temporary = Temporary::of(&path);
    let fail = |what| StoreError::io(&path, what);
    let mut from = received;
    let mut file = File::create(&temporary.0).map_err(fail("cannot be made"))?;
    from.seek(SeekFrom::Start(0)).map_err(fail("what was received cannot be read"))?;
    io::copy(&mut from, &mut file).and_then(|_| file.sync_all()).map_err(fail("cannot be written"))?;
    let loaded = load(&temporary.0)?;
    check(&loaded)?;
    std::fs::rename(&temporary.0, &path).map_err(fail("cannot be put in place"))?;
    sync_parent(&path)?;
    Ok(Loaded { path, ..loaded })
}

/// Removes all snapshots except the newest [`RETAINED_SNAPSHOTS`].
pub fn remove_older(dir: &Path) -> Result<(), StoreError> {
    for (_, path) in list(dir)?.into_iter().skip(RETAINED_SNAPSHOTS) {
        std::fs::remove_file(&path).map_err(StoreError::io(&path, "cannot be removed"))?;
    }
    Ok(())
}

/// Reads a snapshot and checks every part of it.
pub fn load(path: &Path) -> Result<Loaded, StoreError> {
    let fail = |what| StoreError::io(path, what);
    let mut file = File::open(path).map_err(fail("cannot be opened"))?;
    let bytes = file.metadata().map_err(fail("cannot be read"))?.len();
    let mut magic = [0; MAGIC.len()];
    if file.read_exact(&mut magic).is_err() || magic != *MAGIC {
        return Err(no_snapshot(path));
    }
    let (about, ledger) = read(&mut file, bytes).map_err(|e| StoreError::corrupt(path, 0, with_causes(&e)))?;
    if (ledger.audit_head(), ledger.revision(), ledger.generation()) != (&about.audit, about.revision, about.generation) {
        return Err(StoreError::corrupt(path, MAGIC.len() as u64, "its header does not match its contents"));
    }
    if ledger.level() > LEVEL_MAX {
        return Err(StoreError::newer(path, format!("cluster level {}, which this version does not know", ledger.level())));
    }
    Ok(Loaded { about, ledger, path: path.to_owned() })
}

fn no_snapshot(path: &Path) -> StoreError {
    StoreError::corrupt(path, 0, "it does not begin as a snapshot of this version")
}

/// Reads only the description of a snapshot.
pub fn about(path: &Path) -> Result<About, StoreError> {
    let mut file = File::open(path).map_err(StoreError::io(path, "cannot be opened"))?;
    let mut magic = [0; MAGIC.len()];
    if file.read_exact(&mut magic).is_err() || magic != *MAGIC {
        return Err(no_snapshot(path));
    }
    read_about(&mut file).map_err(|e| StoreError::corrupt(path, 0, with_causes(&e)))
}

fn damaged(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what.to_owned())
}

fn read_about(from: &mut impl Read) -> io::Result<About> {
    let mut header = [0; 8];
    from.read_exact(&mut header)?;
    let length = u32::from_le_bytes([header[0], header[1], header[2], header[3]]);
    if length > ABOUT_BYTES_MAX {
        return Err(damaged("the length of its description is damaged"));
    }
    let mut about = vec![0; length as usize];
    from.read_exact(&mut about)?;
    if crc32fast::hash(&about).to_le_bytes() != header[4..] {
        return Err(damaged("its description does not have its checksum"));
    }
    pack::from_bytes(&about).map_err(io::Error::other)
}

/// Reads the whole file, and returns its content only if the checksum of the whole file is correct.
fn read(file: &mut File, bytes: u64) -> io::Result<(About, Ledger)> {
    let body = bytes.checked_sub((END.len() + 4) as u64).ok_or_else(|| damaged("it is cut short"))?;
    file.seek(SeekFrom::Start(body))?;
    let mut trailer = [0; END.len() + 4];
    file.read_exact(&mut trailer)?;
    if trailer[4..] != *END {
        return Err(damaged("it is cut short"));
    }
    file.seek(SeekFrom::Start(0))?;
    let mut from = Summed { inner: BufReader::with_capacity(128 * 1024, file.take(body)), crc: crc32fast::Hasher::new() };
    io::copy(&mut from.by_ref().take(MAGIC.len() as u64), &mut io::sink())?;
    let about = read_about(&mut from)?;
    // Damage shows as a decoding error or as a wrong checksum; the checksum is the more informative
    // error.
    let decoded =
        (|| pack::from_reader(&mut BufReader::with_capacity(128 * 1024, zstd::Decoder::new(&mut from)?)).map_err(io::Error::other))();
    io::copy(&mut from, &mut io::sink())?;
    if from.crc.finalize().to_le_bytes() != trailer[..4] {
        return Err(damaged("it does not have its checksum"));
    }
    Ok((about, decoded?))
}

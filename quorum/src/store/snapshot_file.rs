//! A snapshot in one file: a header, then two sections `| length u64 | bytes | crc u32 |`: what it is of, and the ledger.
//! Of the audit chain it has the ledger's head alone. The version before this one put the whole chain into a third section.

use super::directory::sync_parent;
use super::{StoreError, segments};
use crate::ledger::Ledger;
use crate::pack;
use crate::raft::SnapshotMeta;
use std::fs::File;
use std::io::{self, BufReader, BufWriter, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

const MAGIC: &[u8; 16] = b"LATTICE-SNAP\0\0\0\x02";
const MAGIC_BEFORE: &[u8; 16] = b"LATTICE-SNAP\0\0\0\x01";
const _: () = assert!(MAGIC.len() as u64 == segments::SEGMENT_HEADER);
/// The longest ledger that is believed.
const SECTION_BYTES_MAX: u64 = 8 * 1024 * 1024 * 1024;

/// A snapshot that was read.
#[derive(Debug)]
pub struct Loaded {
    /// What it is of.
    pub meta: SnapshotMeta,
    /// The ledger.
    pub ledger: Ledger,
    /// Where the audit chain lies in it, where the version before this one wrote it.
    pub audit: Option<Section>,
    /// Where it lies.
    pub path: PathBuf,
}

/// A part of a snapshot's file.
#[derive(Clone, Copy, Debug)]
pub struct Section {
    /// Where its bytes begin.
    pub at: u64,
    /// How many they are.
    pub length: u64,
}

/// Where the snapshot of this index lies.
pub fn path_of(dir: &Path, index: u64) -> PathBuf {
    dir.join(format!("{index:020}.snapshot"))
}

/// All snapshots in `dir`, the newest first.
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

/// Writes a snapshot, durably, and removes older ones.
pub fn write(dir: &Path, meta: &SnapshotMeta, ledger: &Ledger) -> Result<PathBuf, StoreError> {
    let index = meta.last_log_id.map_or(0, |id| id.index);
    let path = path_of(dir, index);
    let temporary = path.with_extension("snapshot-new");
    let fail = |what| StoreError::io(&path, what);
    let meta = pack::to_bytes(meta).map_err(StoreError::Encode)?;
    let ledger = pack::to_bytes(ledger).map_err(StoreError::Encode)?;
    let mut out = BufWriter::new(File::create(&temporary).map_err(fail("cannot be made"))?);
    let written = (|| {
        out.write_all(MAGIC)?;
        section(&mut out, &meta)?;
        section(&mut out, &ledger)?;
        out.flush()?;
        out.get_ref().sync_all()
    })();
    written.map_err(fail("cannot be written"))?;
    std::fs::rename(&temporary, &path).map_err(fail("cannot be put in place"))?;
    sync_parent(&path)?;
    remove_older(dir, index)?;
    Ok(path)
}

/// Puts a received snapshot in place, durably, once every part of it is checked, by `check` as well.
pub fn take_over(
    dir: &Path,
    index: u64,
    received: &File,
    check: impl FnOnce(&Loaded) -> Result<(), StoreError>,
) -> Result<Loaded, StoreError> {
    let path = path_of(dir, index);
    let temporary = path.with_extension("snapshot-new");
    let fail = |what| StoreError::io(&path, what);
    let mut from = received;
    let mut file = File::create(&temporary).map_err(fail("cannot be made"))?;
    from.seek(SeekFrom::Start(0)).map_err(fail("what was received cannot be read"))?;
    io::copy(&mut from, &mut file).and_then(|_| file.sync_all()).map_err(fail("cannot be written"))?;
    let loaded = load(&temporary)?;
    check(&loaded)?;
    std::fs::rename(&temporary, &path).map_err(fail("cannot be put in place"))?;
    sync_parent(&path)?;
    Ok(Loaded { path, ..loaded })
}

/// Removes snapshots older than this one.
pub fn remove_older(dir: &Path, index: u64) -> Result<(), StoreError> {
    for (older, path) in list(dir)? {
        if older < index {
            std::fs::remove_file(&path).map_err(StoreError::io(&path, "cannot be removed"))?;
        }
    }
    Ok(())
}

fn section(out: &mut impl Write, bytes: &[u8]) -> io::Result<()> {
    out.write_all(&(bytes.len() as u64).to_le_bytes())?;
    out.write_all(bytes)?;
    out.write_all(&crc32fast::hash(bytes).to_le_bytes())
}

/// Reads a snapshot whole and checks every part of it.
pub fn load(path: &Path) -> Result<Loaded, StoreError> {
    let file = File::open(path).map_err(StoreError::io(path, "cannot be opened"))?;
    let bytes = file.metadata().map_err(StoreError::io(path, "cannot be read"))?.len();
    let mut input = Sections { path, reader: BufReader::new(file), at: 0, bytes };
    let mut magic = [0; MAGIC.len()];
    input.exact(&mut magic)?;
    if magic != *MAGIC && magic != *MAGIC_BEFORE {
        return Err(input.corrupt("it does not begin as a snapshot of this version or the one before it"));
    }
    let meta = input.decode()?;
    let ledger: Ledger = input.decode()?;
    let audit = if magic == *MAGIC_BEFORE { Some(input.skip()?) } else { None };
    let loaded = Loaded { meta, ledger, audit, path: path.to_owned() };
    if input.at != bytes {
        return Err(input.corrupt("something follows its end"));
    }
    Ok(loaded)
}

struct Sections<'a> {
    path: &'a Path,
    reader: BufReader<File>,
    at: u64,
    bytes: u64,
}

impl Sections<'_> {
    fn corrupt(&self, what: impl Into<String>) -> StoreError {
        StoreError::corrupt(self.path, self.at, what)
    }

    fn exact(&mut self, buffer: &mut [u8]) -> Result<(), StoreError> {
        self.reader.read_exact(buffer).map_err(|e| self.corrupt(e.to_string()))?;
        self.at += buffer.len() as u64;
        Ok(())
    }

    fn number(&mut self) -> Result<u64, StoreError> {
        let mut length = [0; 8];
        self.exact(&mut length)?;
        let length = u64::from_le_bytes(length);
        if length > SECTION_BYTES_MAX || length > self.bytes.saturating_sub(self.at) {
            return Err(self.corrupt("a section's length is damaged"));
        }
        Ok(length)
    }

    fn check(&mut self, crc: u32) -> Result<(), StoreError> {
        let mut stored = [0; 4];
        self.exact(&mut stored)?;
        if u32::from_le_bytes(stored) == crc { Ok(()) } else { Err(self.corrupt("a section does not have its checksum")) }
    }

    fn decode<T: serde::de::DeserializeOwned>(&mut self) -> Result<T, StoreError> {
        let length = usize::try_from(self.number()?).map_err(|e| self.corrupt(e.to_string()))?;
        let mut bytes = vec![0; length];
        self.exact(&mut bytes)?;
        self.check(crc32fast::hash(&bytes))?;
        pack::from_bytes(&bytes).map_err(|e| self.corrupt(pack::with_causes(&e)))
    }

    /// Checks a section without keeping it.
    fn skip(&mut self) -> Result<Section, StoreError> {
        let length = self.number()?;
        let start = self.at;
        let mut crc = crc32fast::Hasher::new();
        let mut buffer = vec![0; 128 * 1024];
        while self.at < start + length {
            let want = buffer.len().min(usize::try_from(start + length - self.at).unwrap_or(usize::MAX));
            self.exact(&mut buffer[..want])?;
            crc.update(&buffer[..want]);
        }
        self.check(crc.finalize())?;
        Ok(Section { at: start, length })
    }
}

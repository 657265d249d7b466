//! The files of the log: appending, syncing, and cutting at either end. Without Raft and without
//! threads.

use super::record::{self, Ending, HEADER, KIND_ENTRY};
use super::synced_end::{self, End, SyncedEnd};
use super::{StoreError, directory::sync_parent};
use lattice_api::pack::PackError;
use lattice_model::with_causes;
use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use thiserror::Error;

const MAGIC: &[u8; 12] = b"LATTICE-LOG\0";
const VERSION: u32 = 1;
/// The offset of the first record in a segment.
pub const SEGMENT_HEADER: u64 = 16;
/// A segment that has reached this size gets no more entries: a new one begins.
const SEGMENT_BYTES: u64 = 32 * 1024 * 1024;
/// Zeros are written in advance in pieces of this size.
const AHEAD_BYTES: u64 = 1024 * 1024;

/// The location of an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// The segment's first index.
    pub segment: u64,
    /// The offset of its record.
    pub offset: u64,
    /// The length of its payload.
    pub length: u32,
}

/// The files by their segments' first indices, shared with readers.
pub type Files = BTreeMap<u64, Arc<File>>;

/// The segments, written by a single owner.
#[derive(Debug)]
pub struct Segments {
    dir: PathBuf,
    files: Files,
    /// The offset of the end of the last record in the last segment.
    end: u64,
    /// The offset up to which the last segment is on disk.
    synced: u64,
    /// The size of the last segment's file.
    allocated: u64,
    note: SyncedEnd,
}

/// An entry found at the start.
#[derive(Debug)]
pub struct Stored {
    /// Its location.
    pub place: Place,
    /// Its bytes.
    pub payload: Vec<u8>,
}

/// Why an entry with a good checksum cannot be used.
#[derive(Debug, Error)]
pub enum UnusableEntry {
    #[error(transparent)]
    Decode(#[from] PackError),
    #[error("entry {found} follows where {wanted} should")]
    Order { found: u64, wanted: u64 },
}

impl Segments {
    /// Opens the log in `dir` and cuts off a torn tail; damage to synced data is an error. Calls
    /// `each` for every entry in order.
    pub fn open(dir: &Path, mut each: impl FnMut(Stored) -> Result<(), UnusableEntry>) -> Result<Self, StoreError> {
        fs::create_dir_all(dir).map_err(StoreError::io(dir, "the folder cannot be made"))?;
        let mut firsts = Vec::new();
        for file in fs::read_dir(dir).map_err(StoreError::io(dir, "cannot be listed"))? {
            let name = file.map_err(StoreError::io(dir, "cannot be listed"))?.file_name();
            let name = name.to_string_lossy();
            if let Some(first) = name.strip_suffix(".log").and_then(|n| n.parse::<u64>().ok()) {
                firsts.push(first);
            }
        }
        firsts.sort_unstable();
        let note = SyncedEnd::open(dir)?;
        if let Some(end) = note.noted().filter(|end| !firsts.contains(&end.segment)) {
            return Err(missing(dir, end));
        }
        let mut this = Self { dir: dir.to_owned(), files: Files::new(), end: 0, synced: 0, allocated: 0, note };
        let last = firsts.last().copied();
        for first in firsts {
            this.open_segment(first, Some(first) == last, &mut each)?;
        }
        // The last writes of a killed process may be only in the kernel's memory.
        if let Ok((segment, file)) = this.last() {
            file.sync_data().map_err(StoreError::unsynced(&this.path(segment)))?;
            this.note_synced();
            this.settle();
        }
        Ok(this)
    }

    fn open_segment(
        &mut self,
        first: u64,
        is_last: bool,
        each: &mut impl FnMut(Stored) -> Result<(), UnusableEntry>,
    ) -> Result<(), StoreError> {
        let path = self.path(first);
        let bytes = fs::read(&path).map_err(StoreError::io(&path, "cannot be read"))?;
        let synced = self.note.noted().filter(|end| end.segment == first).map_or(0, |end| end.offset);
        if !has_header(&bytes) {
            if is_last && is_unused(&bytes, synced) {
                tracing::warn!(file = %path.display(), "a segment whose creation was interrupted is removed");
                fs::remove_file(&path).map_err(StoreError::io(&path, "cannot be removed"))?;
                return sync_parent(&path);
            }
            return Err(without_header(&path));
        }
        let (found, ending) = record::scan(&bytes, 16);
        let end = found.last().map_or(16, |f| f.offset + HEADER + f.length);
        reaches(&path, end, synced)?;
        for record in found {
            let damaged = |what: String| StoreError::corrupt(&path, record.offset as u64, what);
            if record.kind != KIND_ENTRY {
                return Err(damaged(format!("a record of kind {} is not known to this version", record.kind)));
            }
            let start = record.offset + HEADER;
            let length = u32::try_from(record.length).map_err(|e| damaged(e.to_string()))?;
            let place = Place { segment: first, offset: record.offset as u64, length };
            each(Stored { place, payload: bytes[start..start + record.length].to_vec() }).map_err(|e| damaged(with_causes(&e)))?;
        }
        let file = OpenOptions::new().read(true).write(true).open(&path).map_err(StoreError::io(&path, "cannot be opened"))?;
        match ending {
            Ending::Clean => {}
            Ending::Torn { offset } if is_last => {
                tracing::warn!(file = %path.display(), offset, cut = bytes.len() - offset, "a torn tail is cut off");
                file.set_len(offset as u64).and_then(|()| file.sync_all()).map_err(StoreError::io(&path, "cannot be cut"))?;
            }
            Ending::Torn { offset } | Ending::Damaged { offset } => {
                return Err(StoreError::corrupt(&path, offset as u64, "a record does not have its checksum, and it was once whole"));
            }
        }
        self.allocated = file.metadata().map_err(StoreError::io(&path, "cannot be read"))?.len();
        self.files.insert(first, Arc::new(file));
        (self.end, self.synced) = (end as u64, end as u64);
        Ok(())
    }

    fn path(&self, first: u64) -> PathBuf {
        self.dir.join(format!("{first:020}.log"))
    }

    /// The files, for readers.
    pub fn files(&self) -> &Files {
        &self.files
    }

    /// Writes entries, the first of which has the index `first`, and returns their locations. They
    /// are on disk only after [`Self::sync`]. If the disk is full, the same call may be repeated.
    pub fn append(&mut self, first: u64, payloads: &[Vec<u8>]) -> Result<Vec<Place>, StoreError> {
        if self.files.is_empty() || self.end >= SEGMENT_BYTES {
            self.begin_segment(first)?;
        }
        let (segment, file) = self.last()?;
        let mut bytes = Vec::with_capacity(payloads.iter().map(|p| p.len() + HEADER).sum());
        let mut places = Vec::with_capacity(payloads.len());
        for payload in payloads {
            let offset = self.end + bytes.len() as u64;
            record::write(&mut bytes, KIND_ENTRY, self.synced, payload);
            let length = u32::try_from(payload.len()).unwrap_or(u32::MAX);
            places.push(Place { segment, offset, length });
        }
        let path = self.path(segment);
        let end = self.end + bytes.len() as u64;
        if end > self.allocated {
            match self.extend(&file, &path, end + AHEAD_BYTES) {
                // On a nearly full disk, extend only as much as needed.
                Err(error) if error.is_full() => self.extend(&file, &path, end)?,
                extended => extended?,
            }
        }
        file.write_all_at(&bytes, self.end).map_err(StoreError::io(&path, "cannot be written"))?;
        self.end = end;
        Ok(places)
    }

    /// Writes zeros up to `end`.
    fn extend(&mut self, file: &File, path: &Path, end: u64) -> Result<(), StoreError> {
        let zeros = vec![0; usize::try_from(end - self.allocated).unwrap_or(usize::MAX)];
        file.write_all_at(&zeros, self.allocated).map_err(StoreError::io(path, "cannot be extended"))?;
        self.allocated = end;
        Ok(())
    }

    /// Waits until everything appended is on disk.
    pub fn sync(&mut self) -> Result<(), StoreError> {
        if self.synced < self.end {
            let (segment, file) = self.last()?;
            file.sync_data().map_err(StoreError::unsynced(&self.path(segment)))?;
            self.synced = self.end;
        }
        Ok(())
    }

    /// Writes to the note, for the next start, how far the log is synced. Nobody needs to wait until
    /// the note is on disk.
    pub fn note_synced(&mut self) {
        if let Some((segment, _)) = self.files.last_key_value() {
            self.note.raise(End { segment: *segment, offset: self.synced });
        }
    }

    /// Syncs the note.
    pub fn settle(&mut self) {
        self.note.settle();
    }

    /// Whether the note is synced.
    pub fn is_settled(&self) -> bool {
        self.note.is_settled()
    }

    /// Removes everything unsynced, as a power loss may.
    pub fn lose_unsynced(&self) -> Result<(), StoreError> {
        let (segment, file) = self.last()?;
        file.set_len(self.synced).map_err(StoreError::io(&self.path(segment), "cannot be cut"))
    }

    fn last(&self) -> Result<(u64, Arc<File>), StoreError> {
        self.files.last_key_value().map(|(first, file)| (*first, Arc::clone(file))).ok_or(StoreError::Stopped)
    }

    fn begin_segment(&mut self, first: u64) -> Result<(), StoreError> {
        self.sync()?;
        let path = self.path(first);
        let fail = |what| StoreError::io(&path, what);
        let file = OpenOptions::new().read(true).write(true).create(true).truncate(true).open(&path).map_err(fail("cannot be made"))?;
        let mut header = MAGIC.to_vec();
        header.extend_from_slice(&VERSION.to_le_bytes());
        file.write_all_at(&header, 0).map_err(fail("cannot be written"))?;
        file.sync_all().map_err(fail("cannot be synced"))?;
        sync_parent(&path)?;
        self.files.insert(first, Arc::new(file));
        (self.end, self.synced, self.allocated) = (SEGMENT_HEADER, SEGMENT_HEADER, SEGMENT_HEADER);
        Ok(())
    }

    /// Cuts off the entry at `place` and everything after it, durably. The last file is removed
    /// first, so that a crash leaves no gap.
    pub fn truncate(&mut self, place: Place) -> Result<(), StoreError> {
        self.note.lower(Some(End { segment: place.segment, offset: place.offset }))?;
        while let Some((&first, _)) = self.files.last_key_value()
            && first > place.segment
        {
            self.remove(first)?;
        }
        let (segment, file) = self.last()?;
        let path = self.path(segment);
        file.set_len(place.offset).and_then(|()| file.sync_all()).map_err(StoreError::io(&path, "cannot be cut"))?;
        (self.end, self.synced, self.allocated) = (place.offset, place.offset, place.offset);
        Ok(())
    }

    /// Removes the segments without entries after `upto`. The last segment stays.
    pub fn purge(&mut self, upto: u64) -> Result<(), StoreError> {
        let firsts: Vec<u64> = self.files.keys().copied().collect();
        let removed: Vec<u64> = firsts.windows(2).filter(|pair| pair[1] <= upto + 1).map(|pair| pair[0]).collect();
        if let (Some(last), false) = (firsts.last(), removed.is_empty()) {
            // The note on the disk may be older, and name one of the removed segments.
            self.note.lower(Some(End { segment: *last, offset: self.synced }))?;
        }
        removed.into_iter().try_for_each(|first| self.remove(first))
    }

    /// Removes everything, because the following entries are not contiguous with the existing ones.
    pub fn clear(&mut self) -> Result<(), StoreError> {
        self.note.lower(None)?;
        while let Some((&first, _)) = self.files.last_key_value() {
            self.remove(first)?;
        }
        (self.end, self.synced, self.allocated) = (0, 0, 0);
        Ok(())
    }

    fn remove(&mut self, first: u64) -> Result<(), StoreError> {
        let path = self.path(first);
        fs::remove_file(&path).map_err(StoreError::io(&path, "cannot be removed"))?;
        self.files.remove(&first);
        sync_parent(&path)
    }
}

fn has_header(segment: &[u8]) -> bool {
    segment.get(..12) == Some(&MAGIC[..]) && segment.get(12..16) == Some(&VERSION.to_le_bytes()[..])
}

/// Whether a segment without a header never had an entry: its header is synced before anything else
/// is written.
fn is_unused(segment: &[u8], synced: u64) -> bool {
    synced == 0 && segment.get(16..).unwrap_or_default().iter().all(|b| *b == 0)
}

fn without_header(path: &Path) -> StoreError {
    StoreError::corrupt(path, 0, "it does not begin as a log segment of this version")
}

/// Checks that the complete records of a segment reach as far as it was synced.
fn reaches(path: &Path, end: usize, synced: u64) -> Result<(), StoreError> {
    if (end as u64) >= synced {
        return Ok(());
    }
    let what =
        format!("everything up to byte {synced} was once synced and is no longer complete, so the disk has lost acknowledged entries");
    Err(StoreError::corrupt(path, end as u64, what))
}

fn missing(dir: &Path, end: End) -> StoreError {
    let path = dir.join(format!("{:020}.log", end.segment));
    StoreError::corrupt(&path, 0, format!("it is missing, and was once synced up to byte {}", end.offset))
}

/// Checks the headers and records of the segments in `dir` without changing anything. The order and
/// content of the entries are not checked. The last segment may have a torn tail, or no header yet
/// after an interrupted creation: the next start repairs both.
pub fn check(dir: &Path) -> Result<(), StoreError> {
    let mut paths = Vec::new();
    for file in fs::read_dir(dir).map_err(StoreError::io(dir, "cannot be listed"))? {
        paths.push(file.map_err(StoreError::io(dir, "cannot be listed"))?.path());
    }
    paths.retain(|p| p.extension().is_some_and(|e| e == "log"));
    paths.sort_unstable();
    let noted = synced_end::read(dir)?;
    let first_of = |path: &Path| path.file_stem().and_then(|stem| stem.to_str()).and_then(|stem| stem.parse::<u64>().ok());
    if let Some(end) = noted.filter(|end| !paths.iter().any(|path| first_of(path) == Some(end.segment))) {
        return Err(missing(dir, end));
    }
    for (at, path) in paths.iter().enumerate() {
        let bytes = fs::read(path).map_err(StoreError::io(path, "cannot be read"))?;
        let is_last = at + 1 == paths.len();
        let start = usize::try_from(SEGMENT_HEADER).unwrap_or(usize::MAX);
        let synced = noted.filter(|end| first_of(path) == Some(end.segment)).map_or(0, |end| end.offset);
        if !has_header(&bytes) {
            if is_last && is_unused(&bytes, synced) {
                continue;
            }
            return Err(without_header(path));
        }
        let (found, ending) = record::scan(&bytes, start);
        reaches(path, found.last().map_or(start, |f| f.offset + HEADER + f.length), synced)?;
        match ending {
            Ending::Clean => {}
            Ending::Torn { .. } if is_last => {}
            Ending::Torn { offset } | Ending::Damaged { offset } => {
                return Err(StoreError::corrupt(path, offset as u64, "a record does not have its checksum, and it was once whole"));
            }
        }
    }
    Ok(())
}

/// Reads one entry.
pub fn read(files: &Files, place: Place) -> Result<Vec<u8>, std::io::Error> {
    let file = files.get(&place.segment).ok_or_else(|| std::io::Error::other("its segment is gone"))?;
    let mut bytes = vec![0; HEADER + place.length as usize];
    file.read_exact_at(&mut bytes, place.offset)?;
    record::payload(&bytes).map(<[u8]>::to_vec).ok_or_else(|| std::io::Error::other("it does not have its checksum"))
}

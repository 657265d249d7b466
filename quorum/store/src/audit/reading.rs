//! Reads records one by one from the segments that existed when the reading began.

use super::layout::{START, STRIDE};
use crate::record::{self, HEADER, PAYLOAD_MAX};
use lattice_api::pack;
use lattice_model::AuditRecord;
use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, BufReader, Read, Seek, SeekFrom};
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::Arc;

/// The location of one segment's records.
#[derive(Clone, Debug)]
pub struct Extent {
    pub path: PathBuf,
    /// The number before its first record.
    pub before: u64,
    /// The number of its last record.
    pub last: u64,
    /// The offset of the end of its records.
    pub end: u64,
    /// The offset of every `STRIDE`-th record, from the first one on.
    pub places: Arc<[u64]>,
    /// Set if the segment is damaged: nothing is read from it.
    pub damage: Option<Arc<str>>,
}

/// Reads records in order. Ends after an error.
#[derive(Debug)]
pub struct Records {
    segments: VecDeque<Extent>,
    open: Option<Open>,
    /// The last record that was skipped or returned.
    at: u64,
    after: u64,
    upto: u64,
}

#[derive(Debug)]
struct Open {
    reader: BufReader<File>,
    /// Number of remaining bytes of records.
    left: u64,
}

impl Records {
    pub(super) fn new(segments: impl Iterator<Item = Extent>, after: u64, upto: u64) -> Self {
        let segments: VecDeque<Extent> = segments.filter(|s| s.last > after && s.before < upto).collect();
        Self { segments, open: None, at: after, after, upto }
    }

    fn step(&mut self) -> io::Result<Option<AuditRecord>> {
        loop {
            if self.at >= self.upto {
                return Ok(None);
            }
            let Some(open) = self.open.as_mut().filter(|o| o.left > 0) else {
                let Some(next) = self.segments.pop_front() else { return Ok(None) };
                self.begin(&next)?;
                continue;
            };
            let record = open.read()?;
            if record.seq != self.at + 1 {
                return Err(io::Error::other(format!("record {} is in the place of record {}", record.seq, self.at + 1)));
            }
            self.at = record.seq;
            if record.seq > self.after {
                return Ok(Some(record));
            }
        }
    }

    fn begin(&mut self, segment: &Extent) -> io::Result<()> {
        segment.follows(self.at)?;
        let wanted = self.after.saturating_sub(segment.before) / STRIDE;
        let place = usize::try_from(wanted).ok().and_then(|at| segment.places.get(at)).copied();
        let (at, skipped) = place.map_or((START, 0), |place| (place, wanted * STRIDE));
        let mut file = segment.open()?;
        file.seek(SeekFrom::Start(at))?;
        self.at = segment.before + skipped;
        self.open = Some(Open { reader: BufReader::new(file), left: segment.end.saturating_sub(at) });
        Ok(())
    }
}

impl Open {
    fn read(&mut self) -> io::Result<AuditRecord> {
        let mut bytes = vec![0; HEADER];
        self.reader.read_exact(&mut bytes)?;
        let length = length(&bytes, self.left)?;
        bytes.resize(HEADER + length, 0);
        self.reader.read_exact(&mut bytes[HEADER..])?;
        self.left = self.left.saturating_sub(bytes.len() as u64);
        decoded(&bytes)
    }
}

/// The length of a payload according to its header; `left`: bytes from the header to the end of the
/// records.
fn length(header: &[u8], left: u64) -> io::Result<usize> {
    let length = u32::from_le_bytes([header[0], header[1], header[2], header[3]]) as usize;
    if length > PAYLOAD_MAX || length as u64 > left {
        return Err(io::Error::other("a record's length is damaged"));
    }
    Ok(length)
}

fn decoded(bytes: &[u8]) -> io::Result<AuditRecord> {
    let payload = record::payload(bytes).ok_or_else(|| io::Error::other("a record does not have its checksum"))?;
    pack::from_bytes(payload).map_err(io::Error::other)
}

impl Extent {
    /// Checks that no record is missing between record `seq` and this segment's first record.
    pub fn follows(&self, seq: u64) -> io::Result<()> {
        if self.before <= seq {
            return Ok(());
        }
        Err(io::Error::new(io::ErrorKind::NotFound, format!("records {} to {} are not on this disk", seq + 1, self.before)))
    }

    /// Opens the segment's file, unless it is damaged.
    pub fn open(&self) -> io::Result<File> {
        match &self.damage {
            Some(damage) => Err(io::Error::other(damage.to_string())),
            None => File::open(&self.path),
        }
    }

    /// The offset at which to start so that every record after `after` is read.
    pub fn place_before(&self, after: u64) -> u64 {
        let wanted = after.saturating_sub(self.before) / STRIDE;
        usize::try_from(wanted).ok().and_then(|at| self.places.get(at)).copied().unwrap_or(START)
    }
}

/// Reads the record at `offset`; records end at `end`.
pub fn read_at(file: &File, offset: u64, end: u64) -> io::Result<AuditRecord> {
    let mut bytes = vec![0; HEADER];
    file.read_exact_at(&mut bytes, offset)?;
    let length = length(&bytes, end.saturating_sub(offset))?;
    bytes.resize(HEADER + length, 0);
    file.read_exact_at(&mut bytes[HEADER..], offset + HEADER as u64)?;
    decoded(&bytes)
}

/// All records of a segment, with their offsets.
#[derive(Debug)]
pub struct Scan {
    open: Open,
    end: u64,
}

impl Scan {
    pub fn new(segment: &Extent) -> io::Result<Self> {
        let mut file = segment.open()?;
        file.seek(SeekFrom::Start(START))?;
        Ok(Self { open: Open { reader: BufReader::new(file), left: segment.end.saturating_sub(START) }, end: segment.end })
    }
}

impl Iterator for Scan {
    type Item = io::Result<(u64, AuditRecord)>;

    fn next(&mut self) -> Option<Self::Item> {
        let offset = self.end - self.open.left;
        (self.open.left > 0).then(|| self.open.read().map(|record| (offset, record)))
    }
}

impl Iterator for Records {
    type Item = io::Result<AuditRecord>;

    fn next(&mut self) -> Option<Self::Item> {
        match self.step() {
            Ok(record) => record.map(Ok),
            Err(error) => {
                self.segments.clear();
                self.open = None;
                self.upto = self.at;
                Some(Err(error))
            }
        }
    }
}

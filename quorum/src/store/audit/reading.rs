//! Reading records, one by one, from the segments there were when it began.

use super::segment::{START, STRIDE};
use crate::pack;
use crate::store::record::{self, HEADER, PAYLOAD_MAX};
use lattice_model::AuditRecord;
use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, BufReader, Read, Seek, SeekFrom};
use std::path::PathBuf;
use std::sync::Arc;

/// The records of one segment.
#[derive(Clone, Debug)]
pub struct Extent {
    pub path: PathBuf,
    /// The number before its first record.
    pub before: u64,
    /// The number of its last record.
    pub last: u64,
    /// Where its records end.
    pub end: u64,
    pub places: Arc<[u64]>,
}

/// Reads records in order. Ends after an error.
#[derive(Debug)]
pub struct Records {
    segments: VecDeque<Extent>,
    open: Option<Open>,
    /// The last record that was passed over or given.
    at: u64,
    after: u64,
    upto: u64,
}

#[derive(Debug)]
struct Open {
    reader: BufReader<File>,
    /// Bytes of records that are left.
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
                return Err(io::Error::other(format!("record {} stands where {} should", record.seq, self.at + 1)));
            }
            self.at = record.seq;
            if record.seq > self.after {
                return Ok(Some(record));
            }
        }
    }

    fn begin(&mut self, segment: &Extent) -> io::Result<()> {
        let wanted = self.after.saturating_sub(segment.before) / STRIDE;
        let place = usize::try_from(wanted).ok().and_then(|at| segment.places.get(at)).copied();
        let (at, skipped) = place.map_or((START, 0), |place| (place, wanted * STRIDE));
        let mut file = File::open(&segment.path)?;
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
        let length = u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]) as usize;
        if length > PAYLOAD_MAX || length as u64 > self.left {
            return Err(io::Error::other("a record's length is damaged"));
        }
        bytes.resize(HEADER + length, 0);
        self.reader.read_exact(&mut bytes[HEADER..])?;
        self.left = self.left.saturating_sub(bytes.len() as u64);
        let payload = record::payload(&bytes).ok_or_else(|| io::Error::other("a record does not have its checksum"))?;
        pack::from_bytes(payload).map_err(io::Error::other)
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

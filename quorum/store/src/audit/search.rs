//! Searches records that match a filter, in the order of the chain, with the segments' indexes.

use super::index::{self, Candidates};
use super::reading::{Extent, Records, read_at};
use lattice_model::{AuditFilter, AuditRecord};
use std::collections::VecDeque;
use std::fs::File;
use std::io;
use std::vec::IntoIter;

/// A segment to search.
#[derive(Debug)]
pub struct Part {
    pub extent: Extent,
    pub how: How,
}

/// How to find a segment's candidates.
#[derive(Debug)]
pub enum How {
    /// With the index of a sealed segment. `last`: the hash of its last record.
    Sealed { last: String },
    /// Already determined.
    Known(Candidates),
}

/// One step of a search.
#[derive(Debug)]
pub enum Step {
    /// This record matches.
    Found(Box<AuditRecord>),
    /// A record was examined that does not match.
    Looked,
}

/// A search over the segments that existed at the beginning.
#[derive(Debug)]
pub struct Search {
    parts: VecDeque<Part>,
    now: Option<Now>,
    filter: AuditFilter,
    after: u64,
    upto: u64,
    reached: u64,
}

#[derive(Debug)]
struct Now {
    /// The last record to search.
    last: u64,
    reader: Reader,
}

#[derive(Debug)]
enum Reader {
    All(Records),
    At { file: File, end: u64, offsets: IntoIter<u64> },
}

impl Search {
    /// Searches after `after` up to `upto`.
    pub(super) fn new(parts: impl Iterator<Item = Part>, filter: &AuditFilter, after: u64, upto: u64) -> Self {
        let parts = parts.filter(|p| p.extent.last > after && p.extent.before < upto).collect();
        Self { parts, now: None, filter: filter.clone(), after, upto, reached: after.min(upto) }
    }

    /// The last record that was examined.
    pub fn reached(&self) -> u64 {
        self.reached
    }

    /// The next step; `None`: the search is complete. It ends after an error.
    pub fn step(&mut self) -> io::Result<Option<Step>> {
        let Some(now) = &mut self.now else {
            let Some(part) = self.parts.pop_front() else {
                self.reached = self.upto;
                return Ok(None);
            };
            self.now = Some(self.begin(&part)?);
            return Ok(Some(Step::Looked));
        };
        let next = match &mut now.reader {
            Reader::All(records) => records.next().transpose()?,
            Reader::At { file, end, offsets } => offsets.next().map(|offset| read_at(file, offset, *end)).transpose()?,
        };
        match next {
            Some(record) if record.seq <= self.after => {}
            Some(record) if record.seq <= now.last => {
                self.reached = record.seq;
                if self.filter.matches(&record) {
                    return Ok(Some(Step::Found(Box::new(record))));
                }
            }
            Some(_) | None => {
                self.reached = now.last;
                self.now = None;
            }
        }
        Ok(Some(Step::Looked))
    }

    fn begin(&self, part: &Part) -> io::Result<Now> {
        let extent = &part.extent;
        extent.follows(self.reached.max(self.after))?;
        let candidates = match &part.how {
            How::Known(candidates) => candidates.clone(),
            How::Sealed { last } => index::search(extent, last, &self.filter)?,
        };
        let reader = match candidates {
            Candidates::All => {
                let after = self.after.max(extent.before);
                Reader::All(Records::new(std::iter::once(extent.clone()), after, self.upto))
            }
            Candidates::At(mut offsets) => {
                let from = extent.place_before(self.after);
                offsets.retain(|offset| *offset >= from);
                Reader::At { file: extent.open()?, end: extent.end, offsets: offsets.into_iter() }
            }
        };
        Ok(Now { last: extent.last.min(self.upto), reader })
    }
}

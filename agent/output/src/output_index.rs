//! The index of an allocation's output on one node: how long each stream is, which part of it the
//! store has, and when it was written. PURE: lengths and times go in, chunks to cut come out.
//!
//! ```text
//!   stream (launch, rank, stdout|stderr)
//!     └ segment 0 ─ chunk ─ chunk ─ missing ─ chunk(open) ┊ not flushed ┊ end
//!     └ segment 1 ─ …            a file that shrank begins a new one
//! ```
//!
//! Positions are (segment, offset). A chunk is named by its start. The last one of a slow stream
//! stays open, and is stored again under its name, longer, until it is large enough to close: so
//! there are few objects, and storing one twice does no harm.

use lattice_model::{AllocationId, Epoch, NodeId};
use serde::{Deserialize, Serialize};

/// Version of the [`Index`] that this agent writes.
pub const VERSION: u32 = 2;
/// A chunk is cut at this many bytes.
pub const CHUNK_BYTES_MAX: u64 = 8 << 20;
/// A chunk that is cut by time is closed once it has this many bytes; a shorter one is stored
/// again, longer.
pub const CHUNK_BYTES_CLOSED: u64 = 256 << 10;
/// Time samples of one segment; beyond, every other one is dropped.
const SAMPLES_MAX: usize = 512;
/// Least distance of two samples, in milliseconds.
const SAMPLE_MS: u64 = 1000;

/// One output of one process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Stream {
    /// The launch's number; 0 is the script.
    pub launch: u32,
    pub rank: u32,
    pub stderr: bool,
}

impl Stream {
    /// `stdout` or `stderr`.
    pub fn name(self) -> &'static str {
        if self.stderr { "stderr" } else { "stdout" }
    }
}

/// A position in a stream.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Position {
    pub segment: u32,
    /// Bytes from the segment's beginning.
    pub offset: u64,
}

/// Everything about one allocation's output on one node, under one epoch. Stored in the same form
/// on the node and in the store.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Index {
    pub version: u32,
    pub allocation: AllocationId,
    pub epoch: Epoch,
    pub node: NodeId,
    /// All its nodes, the head first.
    pub nodes: Vec<NodeId>,
    pub tenant: String,
    pub project: String,
    pub owner_uid: u32,
    pub owner: String,
    /// Whether the work has ended and all of its output that could be read is in the store.
    pub complete: bool,
    pub streams: Vec<StreamIndex>,
}

/// See [`Index`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "StoredStream", into = "StoredStream")]
pub struct StreamIndex {
    pub stream: Stream,
    /// In order; never empty.
    pub segments: Vec<Segment>,
}

/// A stream in its stored form. A lane of a task group may have a million short streams, and the whole index is written
/// with each of them: so one that a single chunk has from its beginning to its end, with one sample, is a list of numbers.
#[derive(Serialize, Deserialize)]
#[serde(untagged)]
enum StoredStream {
    Short(ShortStream),
    Whole {
        #[serde(flatten)]
        stream: Stream,
        segments: Vec<Segment>,
    },
}

/// Launch, rank, whether it is stderr, length, whether its chunk is open, time of its sample, [`Segment::written_ns`],
/// [`Segment::print`].
type ShortStream = (u32, u32, bool, u64, bool, u64, u64, Option<u32>);

impl From<StreamIndex> for StoredStream {
    fn from(StreamIndex { stream, segments }: StreamIndex) -> Self {
        let Stream { launch, rank, stderr } = stream;
        if let [Segment { bytes, chunks, samples, written_ns, print, looked_ms: _ }] = &segments[..]
            && let ([Chunk { start: 0, end, open }], [(at, length)]) = (&chunks[..], &samples[..])
            && (end, length) == (bytes, bytes)
        {
            return Self::Short((launch, rank, stderr, *bytes, *open, *at, *written_ns, *print));
        }
        Self::Whole { stream, segments }
    }
}

impl From<StoredStream> for StreamIndex {
    fn from(stored: StoredStream) -> Self {
        match stored {
            StoredStream::Short((launch, rank, stderr, bytes, open, at, written_ns, print)) => {
                let (chunks, samples) = (vec![Chunk { start: 0, end: bytes, open }], vec![(at, bytes)]);
                let segment = Segment { bytes, chunks, samples, written_ns, print, looked_ms: 0 };
                Self { stream: Stream { launch, rank, stderr }, segments: vec![segment] }
            }
            StoredStream::Whole { stream, segments } => Self { stream, segments },
        }
    }
}

/// What was written between two truncations of the file.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Segment {
    /// Length as last seen, in bytes.
    pub bytes: u64,
    /// What the store has, in order.
    pub chunks: Vec<Chunk>,
    /// (milliseconds since 1970, length at that time in bytes), in order.
    pub samples: Vec<(u64, u64)>,
    /// The file's values when it was last seen: see [`Seen`].
    pub written_ns: u64,
    pub print: Option<u32>,
    /// When it was last looked at.
    #[serde(skip)]
    looked_ms: u64,
}

/// A piece in the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Chunk {
    /// Offset of its first byte, which is also its name.
    pub start: u64,
    /// Offset behind its last byte.
    pub end: u64,
    /// Whether it will be stored again, longer.
    pub open: bool,
}

/// A piece to store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cut {
    pub stream: Stream,
    pub segment: u32,
    pub chunk: Chunk,
}

/// The state of a log file at a look.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seen {
    pub stream: Stream,
    /// Its length in bytes.
    pub bytes: u64,
    /// Where its data begins: everything before was punched out.
    pub data_start: u64,
    /// When it was last written to, in nanoseconds since 1970.
    pub written_ns: u64,
    /// A checksum of its last bytes; `None`: they could not be read.
    pub print: Option<u32>,
    /// Whether the bytes at its former end have changed: it was truncated and grew again.
    pub rewritten: bool,
}

impl Index {
    /// The index of one stream.
    pub fn stream(&self, stream: Stream) -> Option<&StreamIndex> {
        self.at(stream).ok().map(|at| &self.streams[at])
    }

    fn at(&self, stream: Stream) -> Result<usize, usize> {
        self.streams.binary_search_by_key(&stream, |s| s.stream)
    }

    /// Takes the present state of a file. Returns the number of its present segment, and whether
    /// that has just begun because the file shrank.
    pub fn see(&mut self, seen: &Seen, now_ms: u64) -> (u32, bool) {
        let at = self.at(seen.stream).unwrap_or_else(|at| {
            self.streams.insert(at, StreamIndex { stream: seen.stream, segments: vec![Segment::default()] });
            at
        });
        let segments = &mut self.streams[at].segments;
        let shrank = seen.rewritten || segments.last().is_none_or(|s| seen.bytes < s.bytes);
        if shrank {
            segments.push(Segment::default());
        }
        let number = segments.len() - 1;
        let segment = &mut segments[number];
        segment.grow(seen.bytes, seen.written_ns / 1_000_000, now_ms);
        (segment.written_ns, segment.print) = (seen.written_ns, seen.print);
        (u32::try_from(number).unwrap_or(u32::MAX), shrank)
    }

    /// The piece of a stream to store now. `by_time`: even if it is less than a whole chunk.
    pub fn cut(&self, seen: &Seen, by_time: bool) -> Option<Cut> {
        let segments = &self.stream(seen.stream)?.segments;
        let segment = segments.last()?;
        let last = segment.chunks.last();
        let have = last.map_or(0, |c| c.end);
        let start = match last {
            Some(c) if c.open && c.start >= seen.data_start => c.start,
            _ => have.max(seen.data_start),
        };
        let number = u32::try_from(segments.len() - 1).ok()?;
        let whole = seen.bytes.saturating_sub(start) >= CHUNK_BYTES_MAX;
        let is_due = whole || (by_time && seen.bytes > have.max(start));
        if !is_due {
            return None;
        }
        let end = seen.bytes.min(start + CHUNK_BYTES_MAX);
        let chunk = Chunk { start, end, open: end - start < CHUNK_BYTES_CLOSED };
        Some(Cut { stream: seen.stream, segment: number, chunk })
    }

    /// Records that the store has this piece.
    pub fn put(&mut self, cut: &Cut) {
        let Ok(at) = self.at(cut.stream) else { return };
        let Some(segment) = self.streams[at].segments.get_mut(cut.segment as usize) else { return };
        segment.chunks.retain(|c| c.start < cut.chunk.start);
        if let Some(before) = segment.chunks.last_mut() {
            before.open = false;
        }
        // Most streams never get a second one.
        if segment.chunks.is_empty() {
            segment.chunks.reserve_exact(1);
        }
        segment.chunks.push(cut.chunk);
    }

    /// Takes over what `other`, which this node stored earlier, knows beyond this index.
    pub fn learn(&mut self, other: &Self) {
        let reach = |s: &StreamIndex| (s.segments.len(), s.segments.last().and_then(|s| s.chunks.last()).map_or(0, |c| c.end));
        for theirs in &other.streams {
            match self.at(theirs.stream) {
                Ok(at) if reach(&self.streams[at]) < reach(theirs) => self.streams[at] = theirs.clone(),
                Ok(_) => {}
                Err(at) => self.streams.insert(at, theirs.clone()),
            }
        }
    }

    /// Whether the store has everything that was ever seen.
    pub fn all_put(&self) -> bool {
        let mut last = self.streams.iter().filter_map(|s| s.segments.last());
        last.all(|s| s.chunks.last().map_or(0, |c| c.end) == s.bytes)
    }

    /// How far a file's present segment is in the store for good.
    pub fn flushed(&self, stream: Stream) -> Option<Position> {
        let segments = &self.stream(stream)?.segments;
        let last = segments.last()?.chunks.last();
        let offset = last.map_or(0, |c| if c.open { c.start } else { c.end });
        Some(Position { segment: u32::try_from(segments.len() - 1).ok()?, offset })
    }
}

impl Segment {
    fn grow(&mut self, bytes: u64, written_ms: u64, now_ms: u64) {
        let before = self.samples.last().copied();
        if before.is_none() {
            self.samples.reserve_exact(1);
        }
        if bytes > self.bytes || before.is_none() {
            let (since, at) = before.unwrap_or_default();
            // It had not grown at the last look, so the new bytes are younger than that.
            if before.is_some() && self.looked_ms > since + SAMPLE_MS {
                self.samples.push((self.looked_ms, at));
            }
            let when = written_ms.clamp(since.max(self.looked_ms.min(now_ms)).min(now_ms), now_ms);
            match self.samples[..] {
                [.., (before_that, _), _] if when < before_that + SAMPLE_MS && at > 0 => {
                    let last = self.samples.len() - 1;
                    self.samples[last] = (when, bytes);
                }
                _ => self.samples.push((when, bytes)),
            }
            if self.samples.len() > SAMPLES_MAX {
                let last = self.samples.len() - 1;
                let mut number = 0;
                self.samples.retain(|_| {
                    number += 1;
                    number % 2 == 1 || number - 1 == last
                });
            }
        }
        self.bytes = self.bytes.max(bytes);
        self.looked_ms = now_ms;
    }
}

impl StreamIndex {
    /// Where to begin reading everything: the first segment of which something is left.
    pub fn first(&self) -> Position {
        let last = self.segments.len() - 1;
        let segment = self.segments.iter().position(|s| !s.chunks.is_empty()).unwrap_or(last);
        Position { segment: u32::try_from(segment).unwrap_or(u32::MAX), offset: 0 }
    }

    /// Everything before this position was written by `ms`.
    pub fn since(&self, ms: u64) -> Position {
        let mut found = Position::default();
        for (number, segment) in (0..).zip(&self.segments) {
            for (at, bytes) in &segment.samples {
                if *at <= ms {
                    found = Position { segment: number, offset: *bytes };
                }
            }
        }
        found.max(self.first())
    }

    /// Everything from this position on was written after `ms`; `None`: there is nothing such yet.
    pub fn until(&self, ms: u64) -> Option<Position> {
        for (number, segment) in (0..).zip(&self.segments) {
            if let Some((_, bytes)) = segment.samples.iter().find(|(at, _)| *at >= ms) {
                return Some(Position { segment: number, offset: *bytes });
            }
        }
        None
    }
}

/// By a segment's samples: when the byte before `end` had been written, in milliseconds since 1970
/// (0: unknown), and up to which byte that time holds.
pub fn written_by(samples: &[(u64, u64)], end: u64) -> (u64, u64) {
    match samples.get(samples.partition_point(|(_, bytes)| *bytes < end)) {
        Some(sample) => *sample,
        None => (samples.last().map_or(0, |(at, _)| *at), u64::MAX),
    }
}

#[cfg(test)]
mod tests;

//! Reads a stream's next bytes from its file, or from the log store if the file no longer has them.

use super::lines::PIECE_BYTES;
use crate::log_store::{LogStore, StoreError};
use crate::output_index::{Chunk, Cut, Position, Seen, Stream};
use crate::spool::{self, Piece, Spool};
use lattice_model::with_causes;
use lattice_runtime::shim::{LogStream, ShimDir};
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use thiserror::Error;

/// What follows a position.
pub enum Next {
    Data(Vec<u8>),
    /// Bytes that cannot be read any more.
    Missing {
        bytes: u64,
        why: String,
    },
    /// The segment has ended: the program truncated the file.
    Truncated,
    /// The file is no longer as it was seen; this is its present state.
    Changed(Seen),
    /// Nothing more for now.
    End,
}

/// Why bytes that were moved to the log store cannot be read.
#[derive(Debug, Error)]
enum ChunkError {
    #[error("this agent has no log store configured (logs.store)")]
    NoStore,
    #[error("{}", with_causes(.0))]
    Get(#[from] StoreError),
}

/// One node's output of one allocation.
pub struct Source {
    pub spool: Arc<Spool>,
    /// The files; `None`: they are on another node, and only the store has the output.
    files: Option<ShimDir>,
    store: Option<LogStore>,
}

impl Source {
    pub fn new(spool: Arc<Spool>, files: Option<ShimDir>, store: Option<LogStore>) -> Self {
        Self { spool, files, store }
    }

    /// A launch's streams as they are now. Without files, these are all streams of the allocation
    /// that are in the store. With files only the launch's are examined: an allocation may have had
    /// thousands of launches.
    pub async fn list(&self, launch: u32) -> io::Result<Vec<Seen>> {
        if self.files.is_none() {
            return Ok(self.spool.as_in_store());
        }
        let spool = Arc::clone(&self.spool);
        blocking(move || spool.look(Some(launch))).await
    }

    fn path(&self, stream: Stream) -> Option<PathBuf> {
        let suffix = if stream.stderr { LogStream::Err } else { LogStream::Out };
        self.files.as_ref().map(|dir| dir.log(stream.launch, stream.rank, suffix))
    }

    /// What follows a position in a stream that was in the state `seen`.
    pub async fn next(&self, seen: &Seen, at: Position) -> io::Result<Next> {
        let present = self.spool.segment(seen.stream);
        if at.segment > present || (at.segment == present && at.offset > seen.bytes) {
            return Ok(Next::Truncated);
        }
        if at.segment < present || at.offset < seen.data_start {
            return Ok(self.archived(seen, present, at).await);
        }
        let Some(path) = self.path(seen.stream).filter(|_| at.offset < seen.bytes) else { return Ok(Next::End) };
        let most = PIECE_BYTES.min(usize::try_from(seen.bytes - at.offset).unwrap_or(PIECE_BYTES));
        match blocking(move || spool::read(&path, at.offset, most)).await? {
            Piece::Data(data) if data.is_empty() => Ok(Next::End),
            Piece::Data(data) => Ok(Next::Data(data)),
            Piece::Punched => {
                let now = self.list(seen.stream.launch).await?.into_iter().find(|s| s.stream == seen.stream);
                let now = now.ok_or(io::ErrorKind::NotFound)?;
                // The caller continues with this state: what was punched since comes from the
                // store.
                Ok(Next::Changed(now))
            }
        }
    }

    async fn archived(&self, seen: &Seen, present: u32, at: Position) -> Next {
        let known = self.spool.stream(seen.stream);
        let Some(segment) = known.as_ref().and_then(|s| s.segments.get(at.segment as usize)) else { return Next::Truncated };
        // The file's own hole may be larger than the index knows.
        let end = if at.segment == present { seen.data_start } else { segment.bytes };
        let chunk = segment.chunks.iter().find(|c| c.end > at.offset).copied();
        match chunk {
            Some(chunk) if chunk.start <= at.offset => match self.chunk(seen.stream, at.segment, chunk).await {
                Ok(mut data) => {
                    // The chunk may have been stored again, longer, since the file was looked at.
                    if at.segment == present {
                        data.truncate(usize::try_from(seen.bytes.saturating_sub(chunk.start)).unwrap_or(usize::MAX));
                    }
                    let from = usize::try_from(at.offset - chunk.start).unwrap_or(usize::MAX);
                    Next::Data(data.into_iter().skip(from).collect())
                }
                Err(error) => Next::Missing { bytes: chunk.end.min(end) - at.offset, why: error.to_string() },
            },
            _ if at.offset >= end => Next::Truncated,
            other => {
                let until = other.map_or(end, |c| c.start.min(end));
                let why = if at.segment < present {
                    "they were truncated before they were in the log store"
                } else {
                    "the node had no room for them (its disk, or logs.spool_max_bytes)"
                };
                Next::Missing { bytes: until - at.offset, why: why.to_owned() }
            }
        }
    }

    async fn chunk(&self, stream: Stream, segment: u32, chunk: Chunk) -> Result<Vec<u8>, ChunkError> {
        let store = self.store.as_ref().ok_or(ChunkError::NoStore)?;
        let (place, node) = self.spool.place();
        let mut data = store.chunk(&place, &node, &Cut { stream, segment, chunk }).await?;
        data.truncate(usize::try_from(chunk.end - chunk.start).unwrap_or(usize::MAX));
        Ok(data)
    }

    /// The position at which the last `count` lines of a stream begin: in its file, or before that
    /// in the store.
    pub async fn last_lines(&self, seen: &Seen, count: u64) -> io::Result<Position> {
        let segment = self.spool.segment(seen.stream);
        let mut search = Backwards { end: seen.bytes, want: count };
        let at = |offset| Position { segment, offset };
        if count == 0 {
            return Ok(at(seen.bytes));
        }
        let mut before = seen.bytes;
        if let Some(path) = self.path(seen.stream) {
            while before > seen.data_start {
                let from = before.saturating_sub(PIECE_BYTES as u64).max(seen.data_start);
                let (path, most) = (path.clone(), usize::try_from(before - from).unwrap_or(PIECE_BYTES));
                let Piece::Data(data) = blocking(move || spool::read(&path, from, most)).await? else { return Ok(at(before)) };
                if let Some(found) = search.look(from, &data) {
                    return Ok(at(found));
                }
                before = from;
            }
        }
        let known = self.spool.stream(seen.stream);
        let chunks = known.as_ref().and_then(|s| s.segments.get(segment as usize)).map_or(&[][..], |s| &s.chunks);
        for chunk in chunks.iter().rev().filter(|c| c.start < seen.data_start) {
            // The reader will report what cannot be read.
            let Ok(mut data) = self.chunk(seen.stream, segment, *chunk).await else { return Ok(at(chunk.start)) };
            data.truncate(usize::try_from(seen.data_start - chunk.start).unwrap_or(usize::MAX));
            if let Some(found) = search.look(chunk.start, &data) {
                return Ok(at(found));
            }
            before = chunk.start;
        }
        Ok(at(before))
    }
}

/// Counts lines from the end.
struct Backwards {
    /// The end of the stream: a newline right before it ends the last line.
    end: u64,
    want: u64,
}

impl Backwards {
    /// Counts in the bytes from `from` on, which are those before the previous call's. Returns the
    /// position of the first wanted line, if it is among them.
    fn look(&mut self, from: u64, data: &[u8]) -> Option<u64> {
        for (i, byte) in data.iter().enumerate().rev() {
            let next = from + i as u64 + 1;
            if *byte == b'\n' && next != self.end {
                self.want -= 1;
                if self.want == 0 {
                    return Some(next);
                }
            }
        }
        None
    }
}

/// Runs work on a blocking thread: the disk may be slow, and a directory long.
async fn blocking<T: Send + 'static>(work: impl FnOnce() -> io::Result<T> + Send + 'static) -> io::Result<T> {
    tokio::task::spawn_blocking(work).await.map_err(io::Error::other)?
}

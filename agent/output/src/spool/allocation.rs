//! One allocation's output on this node: its files, and which part of them the log store has.

use super::files::{self, list};
use crate::log_store::Place;
use crate::output_index::{Cut, Index, Seen, Stream, StreamIndex};
use lattice_agent_common::clock::now;
use lattice_model::NodeId;
use lattice_runtime::shim::{LogStream, ShimDir};
use parking_lot::Mutex;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use tokio_util::sync::CancellationToken;

/// The output of an allocation under one epoch.
pub struct Spool {
    pub(super) dir: ShimDir,
    index: Mutex<Index>,
    looking: Mutex<()>,
    pub(super) ended: CancellationToken,
    /// Whether a lease kept one of its files from being opened at the last attempt.
    pub(super) is_leased: AtomicBool,
}

impl Spool {
    pub(super) fn new(dir: ShimDir, index: Index) -> Arc<Self> {
        Arc::new(Self {
            dir,
            index: Mutex::new(index),
            looking: Mutex::default(),
            ended: CancellationToken::new(),
            is_leased: AtomicBool::new(false),
        })
    }

    pub(super) fn index(&self) -> parking_lot::MutexGuard<'_, Index> {
        self.index.lock()
    }

    pub(super) fn snapshot(&self) -> Index {
        self.index().clone()
    }

    /// Output that this node knows only from the store's index.
    pub fn in_store(index: Index) -> Arc<Self> {
        Spool::new(ShimDir(PathBuf::new()), index)
    }

    /// Whether the store has all of it.
    pub fn is_complete(&self) -> bool {
        self.index().complete
    }

    /// The state of the streams as it would be with files whose data was all punched out.
    pub fn as_in_store(&self) -> Vec<Seen> {
        let all = |s: &StreamIndex| {
            let bytes = s.segments.last().map_or(0, |s| s.bytes);
            Seen { stream: s.stream, bytes, data_start: bytes, written_ns: 0, print: None, rewritten: false }
        };
        self.index().streams.iter().map(all).collect()
    }

    /// Reads the state of all files, or of those of one launch. Blocks. One call at a time: if an
    /// older state were stored after a newer one, the file would seem to have shrunk.
    pub fn look(&self, launch: Option<u32>) -> io::Result<Vec<Seen>> {
        let _one = self.looking.lock();
        let mut all = list(&self.dir, launch)?;
        for seen in &mut all {
            let last = |s: &StreamIndex| s.segments.last().map(|s| (s.bytes, s.written_ns, s.print));
            let known = self.index().stream(seen.stream).and_then(last);
            if let Some((bytes, written_ns, print)) = known {
                if (bytes, written_ns) == (seen.bytes, seen.written_ns) {
                    seen.print = print;
                } else if bytes <= seen.bytes && print.is_some() {
                    let now = files::tail_checksum(&self.path(seen.stream), bytes)?;
                    seen.rewritten = now.is_some() && now != print;
                }
            }
            if seen.print.is_none() {
                seen.print = files::tail_checksum(&self.path(seen.stream), seen.bytes)?;
            }
            let mut index = self.index();
            let (_, truncated) = index.see(seen, now().0);
            if truncated {
                let (stream, allocation) = (seen.stream, index.allocation);
                tracing::info!(%allocation, launch = stream.launch, rank = stream.rank, stream = stream.name(), "a program truncated its own output");
            }
        }
        Ok(all)
    }

    /// Records that the store has this chunk.
    pub fn put(&self, cut: &Cut) {
        self.index().put(cut);
    }

    /// The index of a stream.
    pub fn stream(&self, stream: Stream) -> Option<StreamIndex> {
        self.index().stream(stream).cloned()
    }

    /// The times at which a segment was written: its
    /// [`Segment::samples`](crate::output_index::Segment::samples).
    pub fn samples(&self, stream: Stream, segment: u32) -> Vec<(u64, u64)> {
        let index = self.index();
        let segment = index.stream(stream).and_then(|s| s.segments.get(segment as usize));
        segment.map_or_else(Vec::new, |s| s.samples.clone())
    }

    /// Number of a stream's present segment.
    pub fn segment(&self, stream: Stream) -> u32 {
        self.index().stream(stream).map_or(0, |s| u32::try_from(s.segments.len() - 1).unwrap_or(u32::MAX))
    }

    /// The allocation and epoch of its keys in the store, and the node.
    pub fn place(&self) -> (Place, NodeId) {
        let index = self.index();
        (Place::of(&index), index.node.clone())
    }

    pub(super) fn path(&self, stream: Stream) -> PathBuf {
        self.dir.log(stream.launch, stream.rank, if stream.stderr { LogStream::Err } else { LogStream::Out })
    }
}

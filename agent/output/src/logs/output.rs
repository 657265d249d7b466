//! One output of a rank while it is read: its pieces wait here until all earlier pieces of the rank
//! were sent.

use super::lines::Lines;
use super::source::{Next, Source};
use crate::output_index::{Position, Seen, written_by};
use lattice_mesh::open::LogItem;
use std::collections::VecDeque;
use std::io;

/// One output, with its length when the pass began, or when its file was found changed.
pub struct Output {
    seen: Seen,
    pub lines: Lines,
    /// Pieces, each with the time at which it was written.
    ready: VecDeque<(u64, LogItem)>,
    is_over: bool,
}

impl Output {
    /// Continues with what an earlier pass has read of it.
    pub fn new(seen: Seen, lines: Lines) -> Self {
        Self { seen, lines, ready: VecDeque::new(), is_over: false }
    }

    pub fn stream(&self) -> crate::output_index::Stream {
        self.seen.stream
    }

    /// When its next piece was written, in milliseconds since 1970. `None`: there is none yet.
    pub fn next_written(&self) -> Option<u64> {
        self.ready.front().map(|(written, _)| *written)
    }

    /// Takes the next piece, with the time at which it was written.
    pub fn take(&mut self) -> Option<(u64, LogItem)> {
        self.ready.pop_front()
    }

    /// Reads until there is a next piece, or nothing more for now. `all`: also an unfinished line.
    pub async fn fill(&mut self, source: &Source, all: bool) -> io::Result<()> {
        while self.ready.is_empty() && !self.is_over {
            if self.lines.is_done() {
                self.is_over = true;
                break;
            }
            self.step(source, all).await?;
        }
        Ok(())
    }

    async fn step(&mut self, source: &Source, all: bool) -> io::Result<()> {
        let stream = self.seen.stream;
        let at = self.lines.reads_at();
        let (rank, name) = (stream.rank, stream.name());
        match source.next(&self.seen, at).await? {
            Next::Changed(now) => self.seen = now,
            Next::Data(data) => {
                self.lines.push(data);
                self.queue_lines(source);
            }
            Next::End => {
                if all {
                    self.lines.all();
                }
                self.queue_lines(source);
                self.is_over = true;
            }
            Next::Missing { bytes, why } => {
                self.lines.all();
                self.queue_lines(source);
                self.lines.skip(bytes);
                self.add_notice(source, at, format!("{bytes} bytes of rank {rank}'s {name} are missing here: {why}"));
            }
            Next::Truncated => {
                self.lines.all();
                self.queue_lines(source);
                self.lines.next_segment(source.spool.segment(stream));
                self.add_notice(source, at, format!("rank {rank} truncated its own {name}: what follows is new"));
            }
        }
        Ok(())
    }

    fn queue_lines(&mut self, source: &Source) {
        let samples = source.spool.samples(self.seen.stream, self.lines.reads_at().segment);
        self.ready.extend(self.lines.take(self.seen.stream, &samples));
    }

    /// Adds a notice about this position.
    fn add_notice(&mut self, source: &Source, at: Position, text: String) {
        let (written, _) = written_by(&source.spool.samples(self.seen.stream, at.segment), at.offset);
        self.ready.push_back((written, LogItem::Notice(text)));
    }
}

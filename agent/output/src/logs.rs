//! Reads one node's output of one launch: what is there now and, on request, what is added.
//!
//! ```text
//!   log store ── what was punched out, or is of an earlier segment ──┐
//!   log file  ── the rest, to where it is now ───────────────────────┴─▶ lines ─▶ LogItem
//! ```
//!
//! Ranks come one after the other, and the outputs of a rank in the order in which they were
//! written, which is known to about a second. A piece ends at the end of a line if the program
//! wrote one, so that lines of different ranks do not mix; an unfinished line follows when the
//! output is over. Files are read in passes, each up to the length at the pass's beginning: a rank
//! that never stops writing does not keep the others from being read.

mod lines;
mod output;
mod source;

use crate::growth::{Growth, LaunchGrowth};
use crate::log_store::LogStore;
use crate::output_index::{Position, Seen, Stream};
use crate::spool::Spool;
use lattice_mesh::open::LogItem;
use lattice_runtime::shim::ShimDir;
use lines::Lines;
use output::Output;
use source::Source;
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{mpsc, watch};

/// What readers of logs wait for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Activity {
    /// Numbers of launches that have no rank left here; 0 is the script.
    pub over: BTreeSet<u32>,
}

/// How long growth can go unnoticed if the kernel's event is lost.
const POLL_INTERVAL: Duration = Duration::from_secs(1);

/// Which output is requested, and from where on.
#[derive(Clone, Debug, Default)]
pub struct Wanted {
    /// The launch's number; 0 is the script.
    pub launch: u32,
    pub rank: Option<u32>,
    pub stdout: bool,
    pub stderr: bool,
    /// Whether unfinished lines are sent as they are written, for a person at a terminal.
    pub at_once: bool,
    /// (rank, stderr) → position from which the reader continues.
    pub positions: BTreeMap<(u32, bool), Position>,
    /// Only this many last lines of each stream that exists at the beginning.
    pub tail: Option<u64>,
    /// Only output written after this time, in milliseconds since 1970.
    pub since_ms: Option<u64>,
    /// Only output written up to this time, in milliseconds since 1970.
    pub until_ms: Option<u64>,
    /// Whether to send [`LogItem::Written`].
    pub dated: bool,
}

impl Wanted {
    fn wants(&self, stream: Stream) -> bool {
        let of_stream = if stream.stderr { self.stderr } else { self.stdout };
        stream.launch == self.launch && self.rank.is_none_or(|r| r == stream.rank) && of_stream
    }
}

/// Sends the output on this node, and from the store what was punched out here. With `follow`,
/// continues until the launch has no rank here any more. Then sends [`LogItem::End`]. Ends silently
/// if the receiver is gone.
pub async fn tail(
    dir: ShimDir,
    spool: Arc<Spool>,
    store: Option<LogStore>,
    wanted: Wanted,
    follow: Option<(watch::Receiver<Activity>, Growth)>,
    out: mpsc::Sender<LogItem>,
) {
    let launch = wanted.launch;
    let (mut growing, mut follow) = match follow {
        Some((activity, growth)) => (Some(growth.of_launch(&dir, launch)), Some(activity)),
        None => (None, None),
    };
    let mut reader = Reader::new(Source::new(spool, Some(dir), store), wanted, out);
    loop {
        if let Some(growing) = &mut growing {
            growing.look();
        }
        // Checked before the files are read, so that everything written before the end is read
        // after this.
        let over = match &follow {
            Some(activity) => activity.has_changed().is_err() || activity.borrow().over.contains(&launch),
            None => true,
        };
        if reader.pass(over).await.is_break() {
            return;
        }
        if over {
            let _ = reader.out.send(LogItem::End).await;
            return;
        }
        let Some(activity) = &mut follow else { continue };
        tokio::select! {
            () = grown(&mut growing) => {}
            _ = activity.changed() => {}
            () = reader.out.closed() => return,
            () = tokio::time::sleep(POLL_INTERVAL) => {}
        }
    }
}

/// Sends what the store has, as `spool` (made from the store's index) describes it, then
/// [`LogItem::End`].
pub async fn archived(spool: Arc<Spool>, store: LogStore, wanted: Wanted, out: mpsc::Sender<LogItem>) {
    let complete = spool.is_complete();
    let mut reader = Reader::new(Source::new(spool, None, Some(store)), wanted, out);
    if reader.pass(true).await.is_break() {
        return;
    }
    if !complete {
        let rest = "the log store has nothing that was written after that".to_owned();
        let _ = reader.out.send(LogItem::Notice(rest)).await;
    }
    let _ = reader.out.send(LogItem::End).await;
}

enum Stopped {
    Nobody,
    Io(io::Error),
}

struct Reader {
    source: Source,
    wanted: Wanted,
    streams: BTreeMap<Stream, Lines>,
    /// Streams that had output at the last look.
    held: BTreeSet<Stream>,
    first_pass: bool,
    /// The time that was sent last.
    last_written: Option<u64>,
    out: mpsc::Sender<LogItem>,
}

impl Reader {
    fn new(source: Source, wanted: Wanted, out: mpsc::Sender<LogItem>) -> Self {
        Self { source, wanted, streams: BTreeMap::new(), held: BTreeSet::new(), first_pass: true, last_written: None, out }
    }

    /// Reads every requested stream to its present end. Without `over`, an unfinished last line
    /// waits. Breaks if nothing more can be done, after saying why.
    async fn pass(&mut self, over: bool) -> std::ops::ControlFlow<()> {
        let notice = match self.read_all(over).await {
            Ok(()) => return std::ops::ControlFlow::Continue(()),
            Err(Stopped::Nobody) => return std::ops::ControlFlow::Break(()),
            // The files of an allocation without output are removed when it ends.
            Err(Stopped::Io(error)) if error.kind() == io::ErrorKind::NotFound && self.held.is_empty() => None,
            Err(Stopped::Io(error)) if error.kind() == io::ErrorKind::NotFound => {
                Some("the output was removed while it was read: the rest of it is lost".to_owned())
            }
            Err(Stopped::Io(error)) => Some(format!("the output cannot be read: {error}")),
        };
        if let Some(notice) = notice {
            let _ = self.out.send(LogItem::Notice(notice)).await;
        }
        let _ = self.out.send(LogItem::End).await;
        std::ops::ControlFlow::Break(())
    }

    async fn read_all(&mut self, over: bool) -> Result<(), Stopped> {
        let all = self.source.list(self.wanted.launch).await.map_err(Stopped::Io)?;
        let wanted: Vec<Seen> = all.into_iter().filter(|s| self.wanted.wants(s.stream)).collect();
        let vanished: Vec<Stream> = self.held.iter().filter(|h| !wanted.iter().any(|s| s.stream == **h)).copied().collect();
        for stream in vanished {
            self.forget(stream).await?;
        }
        // In the order of streams, so that both outputs of a rank are adjacent.
        for of_rank in wanted.chunk_by(|one, other| one.stream.rank == other.stream.rank) {
            self.read_rank(of_rank, over).await?;
        }
        self.first_pass = false;
        Ok(())
    }

    /// Reads the outputs of a rank in the order in which they were written, as far as that is
    /// known.
    async fn read_rank(&mut self, of_rank: &[Seen], over: bool) -> Result<(), Stopped> {
        let mut outputs = Vec::new();
        for seen in of_rank {
            if seen.bytes > 0 {
                self.held.insert(seen.stream);
            }
            let mut lines = match self.streams.remove(&seen.stream) {
                Some(lines) => lines,
                None => self.begin(seen).await?,
            };
            if let Some(ms) = self.wanted.until_ms {
                lines.until(self.source.spool.stream(seen.stream).and_then(|s| s.until(ms)));
            }
            outputs.push(Output::new(*seen, lines));
        }
        loop {
            let mut removed = None;
            for (number, output) in outputs.iter_mut().enumerate() {
                match output.fill(&self.source, over || self.wanted.at_once).await {
                    Ok(()) => {}
                    Err(error) if error.kind() == io::ErrorKind::NotFound => removed = Some(number),
                    Err(error) => return Err(Stopped::Io(error)),
                }
            }
            if let Some(removed) = removed {
                self.forget(outputs.remove(removed).stream()).await?;
                continue;
            }
            let with_next = outputs.iter_mut().filter_map(|output| Some((output.next_written()?, output)));
            let next = with_next.min_by_key(|(written, _)| *written).and_then(|(_, output)| output.take());
            let Some((written, item)) = next else { break };
            self.send_piece(written, item).await?;
        }
        for mut output in outputs {
            output.lines.rest();
            self.streams.insert(output.stream(), output.lines);
        }
        Ok(())
    }

    /// Sends a piece, preceded by its time if times are requested and it differs from the last one.
    async fn send_piece(&mut self, written: u64, item: LogItem) -> Result<(), Stopped> {
        if self.wanted.dated && self.last_written != Some(written) {
            self.last_written = Some(written);
            self.out.send(LogItem::Written(written)).await.map_err(|_| Stopped::Nobody)?;
        }
        self.out.send(item).await.map_err(|_| Stopped::Nobody)
    }

    async fn notice(&self, text: String) -> Result<(), Stopped> {
        self.out.send(LogItem::Notice(text)).await.map_err(|_| Stopped::Nobody)
    }

    /// The position at which reading a stream begins.
    async fn begin(&mut self, seen: &Seen) -> Result<Lines, Stopped> {
        let stream = seen.stream;
        if let Some(at) = self.wanted.positions.get(&(stream.rank, stream.stderr)) {
            return Ok(Lines::at(*at));
        }
        let known = self.source.spool.stream(stream);
        if let Some(count) = self.wanted.tail.filter(|_| self.first_pass) {
            let at = self.source.last_lines(seen, count).await.map_err(Stopped::Io)?;
            // Sent even before there is output, so that a reader that reconnects continues here.
            let item = LogItem::Chunk { rank: stream.rank, stderr: stream.stderr, data: Vec::new(), segment: at.segment, end: at.offset };
            self.out.send(item).await.map_err(|_| Stopped::Nobody)?;
            return Ok(Lines::at(at));
        }
        if let (Some(ms), Some(known)) = (self.wanted.since_ms, &known) {
            return Ok(Lines::behind_line_at(known.since(ms)));
        }
        let first = known.map_or_else(Position::default, |s| s.first());
        if first.segment > 0 {
            self.notice(format!("rank {} truncated its own {}: what it wrote before is lost", stream.rank, stream.name())).await?;
        }
        Ok(Lines::at(first))
    }

    /// Reports that a file was removed while it was being read.
    async fn forget(&mut self, stream: Stream) -> Result<(), Stopped> {
        self.held.remove(&stream);
        self.streams.remove(&stream);
        self.notice(format!("the {} of rank {} was removed while it was read: the rest of it is lost", stream.name(), stream.rank)).await
    }
}

async fn grown(growing: &mut Option<LaunchGrowth>) {
    match growing {
        Some(growing) => growing.grown().await,
        None => std::future::pending().await,
    }
}

#[cfg(test)]
mod tests;

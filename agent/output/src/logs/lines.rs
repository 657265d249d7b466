//! Turns bytes of one stream into pieces of whole lines. All bytes of a piece count as written at
//! the same time. A line that is too long is cut. Leaves out what was written before or after the
//! requested times. PURE.

use crate::output_index::{Position, Stream, written_by};
use lattice_mesh::open::LogItem;

/// Largest size of a piece; a longer line is cut.
pub const PIECE_BYTES: usize = 64 * 1024;

/// The state of reading one stream.
#[derive(Debug)]
pub struct Lines {
    /// The end of what was given out.
    at: Position,
    /// Bytes that were read and not yet given out.
    buffer: Vec<u8>,
    /// Whether to leave out the rest of a line that began before the requested time.
    behind_line: bool,
    /// The line with the byte before this position is the last one.
    until: Option<Position>,
    all: bool,
    done: bool,
}

impl Lines {
    /// Begins at a position.
    pub fn at(at: Position) -> Self {
        Self { at, buffer: Vec::new(), behind_line: false, until: None, all: false, done: false }
    }

    /// Begins with the first line that begins at a position or after it.
    pub fn behind_line_at(at: Position) -> Self {
        let before = Position { segment: at.segment, offset: at.offset.saturating_sub(1) };
        Self { behind_line: at.offset > 0, ..Self::at(before) }
    }

    /// Sets where reading ends, as known now.
    pub fn until(&mut self, until: Option<Position>) {
        self.until = until;
        self.done = until.is_some_and(|u| self.at >= u) || self.done;
    }

    /// Whether nothing more is wanted.
    pub fn is_done(&self) -> bool {
        self.done
    }

    /// The position from which to read on.
    pub fn reads_at(&self) -> Position {
        Position { segment: self.at.segment, offset: self.at.offset + self.buffer.len() as u64 }
    }

    /// Adds bytes that were read.
    pub fn push(&mut self, data: Vec<u8>) {
        if self.buffer.is_empty() {
            self.buffer = data;
        } else {
            self.buffer.extend(data);
        }
    }

    /// Makes the next [`Self::take`] give out everything, whole lines or not.
    pub fn all(&mut self) {
        self.all = true;
    }

    /// Skips bytes that cannot be read.
    pub fn skip(&mut self, bytes: u64) {
        self.at.offset += bytes;
        // A gap ends any line.
        self.behind_line = false;
    }

    /// Moves on to the next segment, at most to `present`, the segment that is in the file.
    pub fn next_segment(&mut self, present: u32) {
        self.at = Position { segment: (self.at.segment + 1).min(present), offset: 0 };
        self.behind_line = false;
        self.done = self.until.is_some_and(|u| self.at > u) || self.done;
    }

    /// Drops an unfinished line: it is read again when there is more of it.
    pub fn rest(&mut self) {
        self.buffer.clear();
        self.all = false;
    }

    /// The pieces that can be given out now, with the times of writing that follow from the
    /// segment's `samples`: a line counts as written at the time of its end.
    pub fn take(&mut self, stream: Stream, samples: &[(u64, u64)]) -> Vec<(u64, LogItem)> {
        if self.behind_line {
            let end = self.buffer.iter().position(|b| *b == b'\n');
            let left_out = end.map_or(self.buffer.len(), |end| end + 1);
            self.buffer.drain(..left_out);
            self.at.offset += left_out as u64;
            self.behind_line = end.is_none();
        }
        if let Some(until) = self.until.filter(|u| u.segment == self.at.segment && self.reads_at().offset >= u.offset) {
            let from = usize::try_from((until.offset.max(1) - 1).saturating_sub(self.at.offset)).unwrap_or(usize::MAX);
            let end = self.buffer.iter().skip(from).position(|b| *b == b'\n');
            if let Some(end) = end {
                self.buffer.truncate(from + end + 1);
                self.done = true;
            }
        }
        let mut items = Vec::new();
        let mut given = 0;
        while given < self.buffer.len() {
            let rest = &self.buffer[given..];
            let line = rest.iter().position(|b| *b == b'\n').map_or(rest.len(), |end| end + 1);
            let (written, upto) = written_by(samples, self.at.offset + line as u64);
            let of_that_time = usize::try_from(upto - self.at.offset).unwrap_or(usize::MAX);
            let most = rest.len().min(PIECE_BYTES).min(of_that_time);
            let whole = match rest[..most].iter().rposition(|b| *b == b'\n') {
                Some(end) => end + 1,
                None if line >= PIECE_BYTES || self.all => most,
                None => break,
            };
            let data = rest[..whole].to_vec();
            given += whole;
            self.at.offset += whole as u64;
            let (segment, end) = (self.at.segment, self.at.offset);
            items.push((written, LogItem::Chunk { rank: stream.rank, stderr: stream.stderr, data, segment, end }));
        }
        self.buffer.drain(..given);
        self.all = false;
        items
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OUT: Stream = Stream { launch: 1, rank: 0, stderr: false };

    fn at(offset: u64) -> Position {
        Position { segment: 0, offset }
    }

    fn texts(items: Vec<(u64, LogItem)>) -> Vec<(String, u64)> {
        let text = |(_, item)| match item {
            LogItem::Chunk { data, end, .. } => (String::from_utf8(data).unwrap(), end),
            other => panic!("{other:?}"),
        };
        items.into_iter().map(text).collect()
    }

    #[test]
    fn whole_lines_are_given_out_and_the_rest_when_everything_is_requested() {
        let mut l = Lines::at(at(100));
        l.push(b"one\ntwo\nthr".to_vec());
        assert_eq!(texts(l.take(OUT, &[])), [("one\ntwo\n".to_owned(), 108)]);
        assert_eq!(l.reads_at(), at(111));
        l.push(b"ee\nlast".to_vec());
        l.all();
        assert_eq!(texts(l.take(OUT, &[])), [("three\n".to_owned(), 114), ("last".to_owned(), 118)]);
    }

    #[test]
    fn a_line_without_an_end_is_cut_and_a_long_text_comes_in_pieces() {
        let mut l = Lines::at(at(0));
        l.push(vec![b'x'; PIECE_BYTES + 5]);
        assert_eq!(texts(l.take(OUT, &[])).iter().map(|(t, _)| t.len()).collect::<Vec<_>>(), [PIECE_BYTES]);
        let mut l = Lines::at(at(0));
        l.push(b"0123456\n".repeat(20_000));
        let all = texts(l.take(OUT, &[]));
        assert!(all.len() == 3 && all.iter().all(|(t, _)| t.len() <= PIECE_BYTES && t.ends_with('\n')), "{}", all.len());
        assert_eq!(all.iter().map(|(t, _)| t.len()).sum::<usize>(), 160_000);
    }

    #[test]
    fn times_cut_between_lines_and_each_line_is_on_one_side() {
        let text = b"aaa\nbbb\nccc\n";
        for place in 0..=12 {
            let mut before = Lines::at(at(0));
            before.until(Some(at(place)));
            let mut got = String::new();
            if !before.is_done() {
                before.push(text.to_vec());
                got += &texts(before.take(OUT, &[])).concat_text();
            }
            let mut after = Lines::behind_line_at(at(place));
            after.push(text[usize::try_from(after.reads_at().offset).unwrap()..].to_vec());
            got += &texts(after.take(OUT, &[])).concat_text();
            assert_eq!(got.as_bytes(), text, "{place}");
        }
    }

    #[test]
    fn a_piece_has_one_time_and_a_line_has_the_time_of_its_end() {
        // "aaa\n" by 10, half of "bbb\n" by 20, the rest and "ccc\n" by 30; nothing is known beyond
        // that.
        let samples = [(5, 0), (10, 4), (20, 6), (30, 12)];
        let mut lines = Lines::at(at(0));
        lines.push(b"aaa\nbbb\nccc\nddd\neee".to_vec());
        lines.all();
        let taken = lines.take(OUT, &samples);
        let times: Vec<u64> = taken.iter().map(|(at, _)| *at).collect();
        let texts: Vec<String> = texts(taken).into_iter().map(|(text, _)| text).collect();
        assert_eq!(texts, ["aaa\n", "bbb\nccc\n", "ddd\n", "eee"]);
        assert_eq!(times, [10, 30, 30, 30]);
    }

    trait ConcatText {
        fn concat_text(&self) -> String;
    }

    impl ConcatText for Vec<(String, u64)> {
        fn concat_text(&self) -> String {
            self.iter().map(|(t, _)| t.as_str()).collect()
        }
    }
}

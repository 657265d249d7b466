//! Prefixes lines with their time, their rank, or both.

use lattice_model::Timestamp;
use std::collections::BTreeMap;

/// Bytes of an incomplete line that are buffered; a longer line is written in pieces.
const LINE_BYTES_MAX: usize = 64 * 1024;

/// One rank's stream.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Source {
    /// The launch's number; 0 is the script.
    pub launch: u32,
    /// The rank.
    pub rank: u32,
    /// Whether it is stderr.
    pub stderr: bool,
}

/// The prefixes of each line.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Marks {
    /// The time of writing: `2026-03-05T10:00:12Z `.
    pub time: bool,
    /// `rank: `
    pub rank: bool,
}

/// Prefixes each line. An incomplete line is buffered until its end, so that ranks do not mix within a line.
#[derive(Debug)]
pub struct Labeller {
    marks: Marks,
    /// The incomplete line of each stream, with the time of its last piece.
    partial: BTreeMap<Source, (Timestamp, Vec<u8>)>,
}

impl Labeller {
    /// Without any output yet.
    pub fn new(marks: Marks) -> Self {
        Self { marks, partial: BTreeMap::new() }
    }

    /// The lines that these bytes complete; `written` is the time of the bytes.
    pub fn feed(&mut self, source: &Source, written: Timestamp, data: &[u8]) -> Vec<u8> {
        let mut out = Vec::new();
        let (last, line) = self.partial.entry(source.clone()).or_default();
        *last = written;
        for piece in data.split_inclusive(|&b| b == b'\n') {
            line.extend_from_slice(piece);
            if piece.ends_with(b"\n") {
                self.marks.put(source, written, line, &mut out);
                line.clear();
            } else if line.len() > LINE_BYTES_MAX {
                self.marks.put(source, written, line, &mut out);
                out.push(b'\n');
                line.clear();
            }
        }
        out
    }

    /// The incomplete lines, each with a line end, for stdout and stderr.
    pub fn finish(&mut self) -> (Vec<u8>, Vec<u8>) {
        let (mut stdout, mut stderr) = (Vec::new(), Vec::new());
        for (source, (written, line)) in std::mem::take(&mut self.partial) {
            if !line.is_empty() {
                let out = if source.stderr { &mut stderr } else { &mut stdout };
                self.marks.put(&source, written, &line, out);
                out.push(b'\n');
            }
        }
        (stdout, stderr)
    }
}

impl Marks {
    fn put(self, source: &Source, written: Timestamp, line: &[u8], out: &mut Vec<u8>) {
        if self.time {
            // Whole seconds: the time is not known more precisely.
            let text = written.to_string();
            out.extend_from_slice(format!("{}Z ", text.split_once('.').map_or(text.as_str(), |(seconds, _)| seconds)).as_bytes());
        }
        if self.rank {
            out.extend_from_slice(format!("{}: ", source.rank).as_bytes());
        }
        out.extend_from_slice(line);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// 2026-03-05T10:00:12.034Z
    const AT: Timestamp = Timestamp(1_772_704_812_034);
    const RANKS: Marks = Marks { time: false, rank: true };

    fn source(rank: u32) -> Source {
        Source { launch: 1, rank, stderr: false }
    }

    #[test]
    fn a_line_waits_for_its_end() {
        let mut labeller = Labeller::new(RANKS);
        assert_eq!(labeller.feed(&source(0), AT, b"a\nb"), b"0: a\n");
        assert_eq!(labeller.feed(&source(1), AT, b"\xff\n"), b"1: \xff\n");
        assert_eq!(labeller.feed(&source(0), AT, b"c\n\n"), b"0: bc\n0: \n");
        assert_eq!(labeller.feed(&source(2), AT, b"open"), b"");
        assert_eq!(labeller.finish(), (b"2: open\n".to_vec(), vec![]));
        assert_eq!(labeller.finish(), (vec![], vec![]));
    }

    #[test]
    fn an_endless_line_is_written_in_pieces() {
        let mut labeller = Labeller::new(RANKS);
        let written = (0..3).map(|_| labeller.feed(&source(7), AT, &vec![b'x'; LINE_BYTES_MAX]).len()).sum::<usize>();
        assert_eq!(written, 2 * LINE_BYTES_MAX + b"7: \n".len());
    }

    #[test]
    fn a_line_has_the_time_at_which_it_ended() {
        let mut labeller = Labeller::new(Marks { time: true, rank: false });
        assert_eq!(labeller.feed(&source(0), AT, b"a\nb"), b"2026-03-05T10:00:12Z a\n");
        assert_eq!(labeller.feed(&source(0), Timestamp(AT.0 + 1000), b"c\nd"), b"2026-03-05T10:00:13Z bc\n");
        assert_eq!(labeller.finish().0, b"2026-03-05T10:00:13Z d\n");
        let mut both = Labeller::new(Marks { time: true, rank: true });
        assert_eq!(both.feed(&source(7), AT, b"a\n"), b"2026-03-05T10:00:12Z 7: a\n");
    }
}

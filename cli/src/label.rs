//! Lines that begin with their rank.

use std::collections::BTreeMap;

/// Bytes of one line that are kept while its end is awaited; a longer one is written in pieces.
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

/// Puts `rank: ` before each line. The beginning of a line waits for its end, so that ranks do not mix within one.
#[derive(Debug, Default)]
pub struct Labeller {
    partial: BTreeMap<Source, Vec<u8>>,
}

impl Labeller {
    /// The whole lines that these bytes complete.
    pub fn feed(&mut self, source: &Source, data: &[u8]) -> Vec<u8> {
        let mut out = Vec::new();
        let line = self.partial.entry(source.clone()).or_default();
        for piece in data.split_inclusive(|&b| b == b'\n') {
            line.extend_from_slice(piece);
            if piece.ends_with(b"\n") {
                label(source, line, &mut out);
                line.clear();
            } else if line.len() > LINE_BYTES_MAX {
                label(source, line, &mut out);
                out.push(b'\n');
                line.clear();
            }
        }
        out
    }

    /// The lines that never ended, each with an end, for stdout and stderr.
    pub fn finish(&mut self) -> (Vec<u8>, Vec<u8>) {
        let (mut stdout, mut stderr) = (Vec::new(), Vec::new());
        for (source, line) in std::mem::take(&mut self.partial) {
            if !line.is_empty() {
                let out = if source.stderr { &mut stderr } else { &mut stdout };
                label(&source, &line, out);
                out.push(b'\n');
            }
        }
        (stdout, stderr)
    }
}

fn label(source: &Source, line: &[u8], out: &mut Vec<u8>) {
    out.extend_from_slice(format!("{}: ", source.rank).as_bytes());
    out.extend_from_slice(line);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn source(rank: u32) -> Source {
        Source { launch: 1, rank, stderr: false }
    }

    #[test]
    fn a_line_waits_for_its_end() {
        let mut labeller = Labeller::default();
        assert_eq!(labeller.feed(&source(0), b"a\nb"), b"0: a\n");
        assert_eq!(labeller.feed(&source(1), b"\xff\n"), b"1: \xff\n");
        assert_eq!(labeller.feed(&source(0), b"c\n\n"), b"0: bc\n0: \n");
        assert_eq!(labeller.feed(&source(2), b"open"), b"");
        assert_eq!(labeller.finish(), (b"2: open\n".to_vec(), vec![]));
        assert_eq!(labeller.finish(), (vec![], vec![]));
    }

    #[test]
    fn an_endless_line_is_written_in_pieces() {
        let mut labeller = Labeller::default();
        let written = (0..3).map(|_| labeller.feed(&source(7), &vec![b'x'; LINE_BYTES_MAX]).len()).sum::<usize>();
        assert_eq!(written, 2 * LINE_BYTES_MAX + b"7: \n".len());
    }
}

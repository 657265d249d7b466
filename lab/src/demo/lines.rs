//! Counts the lines of the ring program: none may be missing, repeated or out of order.

use anyhow::{Result, bail};
use std::collections::BTreeMap;

/// The lines received from one job's log.
#[derive(Clone, Debug, Default)]
pub struct Lines {
    first: Vec<String>,
    next: BTreeMap<u32, u32>,
    count: usize,
    wrong: Vec<String>,
}

impl Lines {
    /// Adds one line of the log, with or without a label.
    pub fn take(&mut self, line: &str) {
        if self.first.len() < 16 {
            self.first.push(line.to_owned());
        }
        // A label precedes the program's line, and may contain the word rank as well.
        let Some((rank, number)) = line.rfind("rank ").and_then(|at| parse(&line[at..])) else {
            if self.wrong.len() < 8 {
                self.wrong.push(format!("{line:?} is not a line of the program"));
            }
            return;
        };
        let next = self.next.entry(rank).or_insert(1);
        if *next != number && self.wrong.len() < 8 {
            self.wrong.push(format!("rank {rank}: line {number} came where {next} was due"));
        }
        *next = number + 1;
        self.count += 1;
    }

    /// How many lines of the program arrived.
    pub fn count(&self) -> usize {
        self.count
    }

    /// The first lines, unchanged.
    pub fn first(&self, n: usize) -> String {
        self.first.iter().take(n).map(|l| format!("{l}\n")).collect()
    }

    /// Whether each of `ranks` ranks printed its lines 1 to `lines`, in order.
    pub fn complete(&self, ranks: u32, lines: u32) -> Result<()> {
        let mut wrong = self.wrong.clone();
        for rank in 0..ranks {
            let last = self.next.get(&rank).map_or(0, |n| n - 1);
            if last != lines {
                wrong.push(format!("rank {rank} got to line {last} of {lines}"));
            }
        }
        let expected = (ranks * lines) as usize;
        if self.count != expected {
            wrong.push(format!("{} lines, not {expected}", self.count));
        }
        if wrong.is_empty() { Ok(()) } else { bail!("{}", wrong.join("; ")) }
    }
}

/// Rank and line number of `rank R of N line I on NODE`.
fn parse(text: &str) -> Option<(u32, u32)> {
    let words: Vec<&str> = text.split_ascii_whitespace().collect();
    match words.as_slice() {
        ["rank", rank, "of", _, "line", line, "on", ..] => Some((rank.parse().ok()?, line.parse().ok()?)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(lines: &[&str]) -> Lines {
        let mut all = Lines::default();
        lines.iter().for_each(|l| all.take(l));
        all
    }

    #[test]
    fn missing_doubled_and_foreign_lines_are_noticed() {
        let good = [
            "0: rank 0 of 2 line 1 on n1",
            "rank 1 of 2 line 1 on n1",
            "[n1 rank 0] rank 0 of 2 line 2 on n1",
            "1: rank 1 of 2 line 2 on n1",
        ];
        of(&good).complete(2, 2).unwrap();
        assert!(of(&good[..3]).complete(2, 2).is_err());
        assert!(of(&[good[0], good[0], good[1], good[3]]).complete(2, 2).is_err());
        assert!(of(&[good[0], good[1], good[2], good[3], "noise"]).complete(2, 2).is_err());
    }
}

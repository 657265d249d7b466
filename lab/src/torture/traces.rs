//! Traces that the work itself records: a line at the beginning, at intervals, and at the end of each rank, all
//! appended to one file.
//!
//! ```text
//!   begin ALLOCATION EPOCH PART RANK NODE PID MS
//!   beat  ALLOCATION EPOCH PART RANK NODE PID MS
//!   end   ALLOCATION EPOCH PART RANK NODE PID MS CODE
//! ```

use anyhow::{Context, Result};
use serde::Serialize;
use std::fmt;
use std::fs::File;
use std::io::Write;
use std::path::Path;
use std::str::FromStr;

/// The event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum Mark {
    Begin,
    /// The rank runs.
    Beat,
    /// It ended with this exit code.
    End(i32),
}

/// The program of an allocation that the rank belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, clap::ValueEnum)]
pub enum Part {
    /// The job's own.
    Main,
    /// Of a `lattice launch` from outside.
    Outside,
}

/// One line.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Trace {
    pub mark: Mark,
    pub allocation: String,
    pub epoch: u64,
    pub part: Part,
    pub rank: u32,
    pub node: String,
    pub pid: u32,
    /// From [`now_ms`].
    pub at_ms: u64,
}

impl Trace {
    /// Appends the line in one write, so that lines of several writers do not mix.
    pub fn append(&self, path: &Path) -> Result<()> {
        let failed = || format!("cannot append to {}", path.display());
        let mut file = File::options().append(true).create(true).open(path).with_context(failed)?;
        file.write_all(format!("{self}\n").as_bytes()).with_context(failed)
    }
}

impl fmt::Display for Trace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { mark, allocation, epoch, part, rank, node, pid, at_ms } = self;
        let (mark, code) = match mark {
            Mark::Begin => ("begin", String::new()),
            Mark::Beat => ("beat", String::new()),
            Mark::End(code) => ("end", format!(" {code}")),
        };
        let part = match part {
            Part::Main => "main",
            Part::Outside => "outside",
        };
        write!(f, "{mark} {allocation} {epoch} {part} {rank} {node} {pid} {at_ms}{code}")
    }
}

impl FromStr for Trace {
    type Err = anyhow::Error;

    fn from_str(line: &str) -> Result<Self> {
        let read = || {
            let mut words = line.split(' ');
            let mut next = || words.next();
            let (mark, allocation, epoch, part) = (next()?, next()?.to_owned(), next()?.parse().ok()?, next()?);
            let (rank, node, pid, at_ms) = (next()?.parse().ok()?, next()?.to_owned(), next()?.parse().ok()?, next()?.parse().ok()?);
            let mark = match mark {
                "begin" => Mark::Begin,
                "beat" => Mark::Beat,
                "end" => Mark::End(next()?.parse().ok()?),
                _ => return None,
            };
            let part = match part {
                "main" => Part::Main,
                "outside" => Part::Outside,
                _ => return None,
            };
            Some(Self { mark, allocation, epoch, part, rank, node, pid, at_ms })
        };
        read().with_context(|| format!("{line:?} is not a trace of work"))
    }
}

/// All recorded traces.
pub fn read(path: &Path) -> Result<Vec<Trace>> {
    let text = match std::fs::read_to_string(path) {
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => String::new(),
        other => other.with_context(|| format!("cannot read {}", path.display()))?,
    };
    // The last line may be incomplete.
    let whole = text.rsplit_once('\n').map_or("", |(whole, _)| whole);
    whole.lines().map(str::parse).collect()
}

/// Milliseconds of a clock that all processes of this machine share and that nobody can set.
pub fn now_ms() -> u64 {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: it writes one timespec, which is ours.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut now) };
    now.tv_sec.cast_unsigned() * 1000 + now.tv_nsec.cast_unsigned() / 1_000_000
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn traces_are_read_back_and_other_lines_are_refused() {
        let trace = Trace {
            mark: Mark::Begin,
            allocation: "a".to_owned(),
            epoch: 3,
            part: Part::Outside,
            rank: 1,
            node: "n2".to_owned(),
            pid: 77,
            at_ms: 12,
        };
        for mark in [Mark::Begin, Mark::Beat, Mark::End(-1)] {
            let trace = Trace { mark, ..trace.clone() };
            assert_eq!(trace.to_string().parse::<Trace>().unwrap(), trace);
        }
        for bad in ["", "begin a 3 main 1 n2 77", "end a 3 main 1 n2 77 12", "begin a x main 1 n2 77 12", "begin a 3 other 1 n2 77 12"] {
            assert!(bad.parse::<Trace>().is_err(), "{bad:?}");
        }
    }
}

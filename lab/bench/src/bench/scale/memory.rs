//! The members' memory while something is measured.

use anyhow::{Context, Result};
use lattice_lab::machine;

/// How much the memory of processes grows, without pages of files.
pub struct Growth {
    pids: Vec<i32>,
    before: Vec<u64>,
    largest: Vec<u64>,
}

impl Growth {
    /// The growth is measured from their present memory.
    pub fn begin(pids: Vec<i32>) -> Self {
        let before = read(&pids);
        Self { pids, largest: before.clone(), before }
    }

    /// Reads their memory, and keeps the largest values.
    pub fn look(&mut self) {
        for (largest, now) in self.largest.iter_mut().zip(read(&self.pids)) {
            *largest = now.max(*largest);
        }
    }

    /// The growth of the process that grew most, in MB.
    pub fn grown_mb(&self) -> f64 {
        mb(self.largest.iter().zip(&self.before).map(|(largest, before)| largest - before).max().unwrap_or(0))
    }

    /// The largest memory of a process, in MB.
    pub fn largest_mb(&self) -> f64 {
        mb(self.largest.iter().copied().max().unwrap_or(0))
    }
}

fn read(pids: &[i32]) -> Vec<u64> {
    // A process that has ended has no memory.
    pids.iter().map(|pid| machine::anonymous_memory_of(*pid).unwrap_or(0)).collect()
}

fn mb(bytes: u64) -> f64 {
    bytes as f64 / 1e6
}

/// The largest resident memory that one of these processes had since it was started, in MB.
pub fn peak_mb(pids: &[i32]) -> Result<f64> {
    let peak = |pid: &i32| {
        let path = format!("/proc/{pid}/status");
        let text = std::fs::read_to_string(&path).with_context(|| path.clone())?;
        peak_of(&text).with_context(|| format!("{path} has no VmHWM"))
    };
    let peaks = pids.iter().map(peak).collect::<Result<Vec<u64>>>()?;
    peaks.into_iter().max().map(mb).context("no member runs")
}

fn peak_of(status: &str) -> Option<u64> {
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    Some(line.split_ascii_whitespace().next()?.parse::<u64>().ok()? * 1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_growth_is_that_of_the_process_that_grew_most() {
        let growth = Growth { pids: vec![], before: vec![100_000_000, 10_000_000], largest: vec![101_000_000, 15_000_000] };
        assert_eq!((growth.grown_mb(), growth.largest_mb()), (5.0, 101.0));
        let mut own = Growth::begin(vec![std::process::id().cast_signed()]);
        let block = vec![1u8; 64_000_000];
        own.look();
        assert!(own.grown_mb() > 50.0 && block.iter().all(|byte| *byte == 1), "{}", own.grown_mb());
        drop(block);
        own.look();
        assert!(own.grown_mb() > 50.0, "the largest one counts");
    }

    #[test]
    fn the_peak_is_read_from_the_status() {
        assert_eq!(peak_of("Name:\tx\nVmPeak:\t 90 kB\nVmHWM:\t   2048 kB\nVmRSS:\t 12 kB\n"), Some(2048 * 1024));
        assert_eq!(peak_of("Name:\tx\n"), None);
        assert!(peak_mb(&[std::process::id().cast_signed()]).unwrap() > 1.0);
        assert!(peak_mb(&[]).is_err());
    }
}

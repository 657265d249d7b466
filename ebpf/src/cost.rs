//! The cost of the programs, as the kernel counts it.

use crate::loaded::Probes;
use crate::probe::said;
use aya::sys::{Stats, enable_stats};
use aya::util::online_cpus;
use std::os::fd::OwnedFd;
use std::time::Duration;

/// While this is held, the kernel sums the run time of programs: two more clock readings for each run of each program
/// on the machine.
#[derive(Debug)]
pub struct Clocked {
    _held: OwnedFd,
}

impl Clocked {
    /// Starts the count; needs Linux 5.8. An error says why that is not possible.
    pub fn begin() -> Result<Self, String> {
        enable_stats(Stats::RunTime).map(|held| Self { _held: held }).map_err(|error| said(&error))
    }
}

impl Probes {
    /// The total run time of this process's programs while it was counted.
    pub fn run_time(&self) -> Duration {
        // A program that is not loaded has no count.
        self.programs().filter_map(|program| program.info().ok()).map(|info| info.run_time()).sum()
    }
}

/// The number of processors on which programs can run now.
pub fn processors() -> usize {
    online_cpus().map_or(1, |online| online.len().max(1))
}

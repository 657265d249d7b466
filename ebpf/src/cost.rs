//! The cost of the programs, as the kernel counts it.

use crate::loaded::Probes;
use crate::probe::describe;
use aya::sys::{Stats, SyscallError, enable_stats};
use aya::util::online_cpus;
use std::os::fd::OwnedFd;
use std::time::Duration;
use thiserror::Error;

/// While this exists, the kernel sums the run time of programs. That costs two clock readings for each run of each
/// program on the machine.
#[derive(Debug)]
pub struct Clocked {
    _held: OwnedFd,
}

/// Why the kernel does not sum the run time of programs.
#[derive(Debug, Error)]
#[error("{}", describe(.0))]
pub struct ClockError(#[from] SyscallError);

impl Clocked {
    /// From Linux 5.8 on.
    pub fn begin() -> Result<Self, ClockError> {
        Ok(Self { _held: enable_stats(Stats::RunTime)? })
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

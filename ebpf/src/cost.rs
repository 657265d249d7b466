//! What the programs cost, by the kernel's own account.

use crate::loaded::Probes;
use crate::probe::said;
use aya::sys::{Stats, SyscallError, enable_stats};
use aya::util::online_cpus;
use std::os::fd::OwnedFd;
use std::time::Duration;
use thiserror::Error;

/// While this is held, the kernel adds up how long programs run: two looks at a clock more for each run of each program of the machine.
#[derive(Debug)]
pub struct Clocked {
    _held: OwnedFd,
}

/// Why the kernel does not add up how long programs run.
#[derive(Debug, Error)]
#[error("{}", said(.0))]
pub struct ClockError(#[from] SyscallError);

impl Clocked {
    /// From Linux 5.8 on.
    pub fn begin() -> Result<Self, ClockError> {
        Ok(Self { _held: enable_stats(Stats::RunTime)? })
    }
}

impl Probes {
    /// How long all programs of this process have run while somebody had that counted.
    pub fn run_time(&self) -> Duration {
        // One that is not loaded has no account.
        self.programs().filter_map(|program| program.info().ok()).map(|info| info.run_time()).sum()
    }
}

/// How many processors programs can run on now.
pub fn processors() -> usize {
    online_cpus().map_or(1, |online| online.len().max(1))
}

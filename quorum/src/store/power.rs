//! For tests: the machine loses its power between the writing of a log entry and its sync.
//!
//! `LATTICE_POWER_LOSS=<file>` in a member's environment arms it. Once that file is there, the next write to the log
//! loses what no sync has put on disk, and the member dies where it stands. Killing a process alone would lose nothing:
//! the kernel keeps what was written.

use super::segments::Segments;
use std::path::PathBuf;

/// The variable that arms it.
const VARIABLE: &str = "LATTICE_POWER_LOSS";

/// Where the power switch is, if there is one.
#[derive(Debug)]
pub struct Power(Option<PathBuf>);

impl Power {
    /// As the environment has it.
    pub fn from_environment() -> Self {
        Self(std::env::var_os(VARIABLE).map(PathBuf::from))
    }

    /// Called when entries are written and not yet synced.
    pub fn check(&self, segments: &Segments) {
        let Some(switch) = self.0.as_ref().filter(|switch| switch.exists()) else { return };
        eprintln!("lattice-quorum: {} is there: what is not synced is lost, and this member dies", switch.display());
        if let Err(error) = segments.lose_unsynced() {
            eprintln!("lattice-quorum: {error}");
        }
        std::process::abort();
    }
}

//! For tests: simulates a power loss between writing a log entry and syncing it.
//!
//! `LATTICE_POWER_LOSS=<file>` in a member's environment enables it. Once that file exists, the
//! next write to the log discards all unsynced data and aborts the process. Killing the process
//! alone would lose nothing, because the kernel keeps written data.

use super::segments::Segments;
use std::path::PathBuf;

/// The variable that enables it.
const VARIABLE: &str = "LATTICE_POWER_LOSS";

/// The path of the trigger file, if the simulation is enabled.
#[derive(Debug)]
pub struct Power(Option<PathBuf>);

impl Power {
    /// Reads the environment.
    pub fn from_environment() -> Self {
        Self(std::env::var_os(VARIABLE).map(PathBuf::from))
    }

    /// Called when entries are written and not yet synced.
    pub fn check(&self, segments: &Segments) {
        let Some(trigger) = self.0.as_ref().filter(|trigger| trigger.exists()) else { return };
        eprintln!("lattice-quorum: {} exists: unsynced data is discarded, and this member aborts", trigger.display());
        if let Err(error) = segments.lose_unsynced() {
            eprintln!("lattice-quorum: {error}");
        }
        std::process::abort();
    }
}

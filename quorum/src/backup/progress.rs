//! How far the reading of a backup is, for whoever waits for it.

use lattice_model::resources::bytes_text;
use std::fmt;
use std::sync::Arc;

/// What is being read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// The snapshot is downloaded; counted in bytes.
    Snapshot,
    /// The sealed segments of the audit log are downloaded; counted in segments.
    Segments,
    /// The links of the audit log are checked; counted in records.
    Records,
}

/// The part of a stage that is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReadProgress {
    /// The stage.
    pub stage: Stage,
    /// In the stage's unit, at most `total`.
    pub done: u64,
    /// In the stage's unit.
    pub total: u64,
}

impl fmt::Display for ReadProgress {
    /// A text for people: `reading the snapshot: 40 % of 12 MiB`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { stage, done, total } = *self;
        let percent = u128::from(done.min(total)) * 100 / u128::from(total.max(1));
        match stage {
            Stage::Snapshot => write!(f, "reading the snapshot: {percent} % of {}", bytes_text(total)),
            Stage::Segments => write!(f, "reading the audit log: {percent} %, {done} of {total} segments"),
            Stage::Records => write!(f, "checking the audit log: {percent} % of {total} records"),
        }
    }
}

/// Receives the reports. The default one drops them.
#[derive(Clone, Default)]
pub struct Reporter(Option<Arc<dyn Fn(ReadProgress) + Send + Sync>>);

impl Reporter {
    /// Calls `report` for each report, thousands of times a second: it decides which ones to show, and must not block.
    pub fn new(report: impl Fn(ReadProgress) + Send + Sync + 'static) -> Self {
        Self(Some(Arc::new(report)))
    }

    pub(super) fn report(&self, stage: Stage, done: u64, total: u64) {
        if let Some(report) = &self.0 {
            report(ReadProgress { stage, done, total });
        }
    }
}

impl fmt::Debug for Reporter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Reporter").field(&self.0.is_some()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_is_a_text_with_a_percentage() {
        for (stage, done, total, text) in [
            (Stage::Snapshot, 3 << 20, 12 << 20, "reading the snapshot: 25 % of 12 MiB"),
            (Stage::Segments, 3, 64, "reading the audit log: 4 %, 3 of 64 segments"),
            (Stage::Records, 32_768, 32_768, "checking the audit log: 100 % of 32768 records"),
            (Stage::Records, 0, 0, "checking the audit log: 0 % of 0 records"),
        ] {
            assert_eq!(ReadProgress { stage, done, total }.to_string(), text);
        }
    }
}

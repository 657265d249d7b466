//! The configuration's section `checkpoint`.

use lattice_model::checkpoint::DEADLINE_MS_DEFAULT;
use lattice_node::DEFERRAL_MS_MAX;
use lattice_scheduler::broker::Tuning;
use serde::Deserialize;
use std::path::PathBuf;
use thiserror::Error;

/// Why a configuration lets no checkpoints be made.
#[derive(Clone, Debug, Error)]
pub enum NoCheckpoints {
    #[error("neither checkpoint_store nor log_store is configured")]
    NoStore,
    #[error(
        "{setting} {url}: others can enter {} (mode {mode:o}), and would read users' checkpoints: chmod 700 it, or name another place as \
         checkpoint_store",
        .dir.display()
    )]
    OthersEnterStore { setting: &'static str, url: String, dir: PathBuf, mode: u32 },
    #[error(
        "checkpoint_dir {} is on {kind}, which other nodes may have as well, and requests and answers of two nodes would lie in one \
         place: name a directory on a disk of the node as checkpoint_dir; what nodes share is the store, as checkpoint_store: \
         file:///DIRECTORY there",
        .dir.display()
    )]
    SharedDirectory { dir: PathBuf, kind: String },
}

/// An agent that makes no checkpoints was asked for one.
#[derive(Clone, Debug, Error)]
#[error("this agent makes no checkpoints: {0}")]
pub struct CheckpointsUnavailable(#[from] pub NoCheckpoints);

/// Failures of a node in so many days.
const FAILURES_PER_DAYS: f64 = 1000.0;

/// When work is asked to save itself without anybody's request, and how long checkpoints are kept. The agent that acts by it is the one that
/// holds the scheduler's lease of the default queue, by its own file: the same on all of them.
#[derive(Clone, Copy, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct CheckpointSettings {
    /// Seconds that work has to save itself where who asks says nothing, the broker included; extended once by half of it. 1 to 86,400.
    pub timeout_seconds: u64,
    /// Seconds by which all deferrals of one checkpoint may put it off together; 0: none is granted. To 86,400.
    pub max_deferral_seconds: u64,
    /// Seconds between two rounds of the broker; 1 to 3600.
    pub evaluate_seconds: u64,
    /// What the store may be written with by all checkpoints together before the broker asks for no more, in bytes a second; at least 1.
    pub storage_bytes_per_second: u64,
    /// Checkpoints that are under way at once, whoever asked for them, before the broker asks for no more; 1 to 1000.
    pub at_once_max: usize,
    /// Seconds between two checkpoints of the same work that the broker asks for where it weighs them; 1 to 86,400.
    pub least_interval_seconds: u64,
    /// How often one well node in a thousand fails, by day; 0 to 1e9. The default is what Meta found of its research clusters (arXiv 2410.21680).
    pub node_failures_per_1000_days: f64,
    /// What a gigabyte in the store is worth, in seconds of a node; 0 to 1e9.
    pub storage_cost_node_seconds_per_gb: f64,
    /// Seconds for which checkpoints are kept after their allocation has ended, by the clocks of the agent that removes them, of the store and of
    /// the quorum; 0: until they are removed by hand. What the quorum does not know, and nobody saw end, stays.
    pub retention_seconds: u64,
    /// Checkpoints that are kept of one allocation, the last that the quorum has and those that it was made from; 0: all.
    pub keep: usize,
    /// Seconds between two looks for checkpoints that are to go; 1 to 604,800.
    pub retention_sweep_seconds: u64,
}

impl Default for CheckpointSettings {
    fn default() -> Self {
        Self {
            timeout_seconds: DEADLINE_MS_DEFAULT / 1000,
            max_deferral_seconds: DEFERRAL_MS_MAX / 1000,
            evaluate_seconds: 30,
            storage_bytes_per_second: 1_000_000_000,
            at_once_max: 4,
            least_interval_seconds: 300,
            node_failures_per_1000_days: 6.5,
            storage_cost_node_seconds_per_gb: 0.1,
            retention_seconds: 7 * 86_400,
            keep: 0,
            retention_sweep_seconds: 3600,
        }
    }
}

/// A section that makes no sense.
#[derive(Debug, Error)]
#[error("checkpoint.{field}: {value} is not within {min} and {max}")]
pub struct CheckpointSettingsError {
    field: &'static str,
    value: f64,
    min: f64,
    max: f64,
}

impl CheckpointSettings {
    /// Checks the ranges.
    pub fn validate(&self) -> Result<(), CheckpointSettingsError> {
        let within = |field, value: f64, min: f64, max: f64| {
            if (min..=max).contains(&value) { Ok(()) } else { Err(CheckpointSettingsError { field, value, min, max }) }
        };
        within("timeout_seconds", self.timeout_seconds as f64, 1.0, 86_400.0)?;
        within("max_deferral_seconds", self.max_deferral_seconds as f64, 0.0, 86_400.0)?;
        within("evaluate_seconds", self.evaluate_seconds as f64, 1.0, 3600.0)?;
        within("storage_bytes_per_second", self.storage_bytes_per_second as f64, 1.0, 1e15)?;
        within("at_once_max", self.at_once_max as f64, 1.0, 1000.0)?;
        within("least_interval_seconds", self.least_interval_seconds as f64, 1.0, 86_400.0)?;
        within("node_failures_per_1000_days", self.node_failures_per_1000_days, 0.0, 1e9)?;
        within("storage_cost_node_seconds_per_gb", self.storage_cost_node_seconds_per_gb, 0.0, 1e9)?;
        within("retention_sweep_seconds", self.retention_sweep_seconds as f64, 1.0, 604_800.0)
    }

    /// [`Self::timeout_seconds`] in milliseconds.
    pub fn timeout_ms(&self) -> u64 {
        self.timeout_seconds * 1000
    }

    /// [`Self::max_deferral_seconds`] in milliseconds.
    pub fn deferral_ms_max(&self) -> u64 {
        self.max_deferral_seconds * 1000
    }

    /// What the broker decides by.
    pub fn tuning(&self) -> Tuning {
        Tuning {
            storage_bytes_per_second: self.storage_bytes_per_second as f64,
            at_once_max: self.at_once_max,
            least_interval_s: self.least_interval_seconds as f64,
            failures_per_node_day: self.node_failures_per_1000_days / FAILURES_PER_DAYS,
            storage_cost_node_s_per_gb: self.storage_cost_node_seconds_per_gb,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_makes_no_sense_is_refused_by_its_name() {
        CheckpointSettings::default().validate().unwrap();
        let bad = [
            CheckpointSettings { timeout_seconds: 0, ..Default::default() },
            CheckpointSettings { max_deferral_seconds: 86_401, ..Default::default() },
            CheckpointSettings { evaluate_seconds: 0, ..Default::default() },
            CheckpointSettings { storage_bytes_per_second: 0, ..Default::default() },
            CheckpointSettings { at_once_max: 0, ..Default::default() },
            CheckpointSettings { node_failures_per_1000_days: f64::NAN, ..Default::default() },
            CheckpointSettings { storage_cost_node_seconds_per_gb: -1.0, ..Default::default() },
            CheckpointSettings { retention_sweep_seconds: 0, ..Default::default() },
        ];
        for settings in bad {
            assert!(settings.validate().unwrap_err().to_string().starts_with("checkpoint."), "{settings:?}");
        }
    }
}

//! The configuration's section `checkpoint`.

use super::logs::StoreSettings;
use super::setting::{SettingError, absolute};
use lattice_model::checkpoint::DEADLINE_MS_DEFAULT;
use lattice_node::DEFERRAL_MS_MAX;
use lattice_objects::SettingNames;
use lattice_scheduler::broker::Tuning;
use serde::Deserialize;
use std::path::PathBuf;
use thiserror::Error;

/// The names of [`CheckpointSettings::store`].
pub const CHECKPOINT_STORE: SettingNames =
    SettingNames { url: "checkpoint.store.url", options: "checkpoint.store.options", credentials: "checkpoint.store.credentials" };

/// Why an agent with this configuration makes no checkpoints.
#[derive(Clone, Debug, Error)]
pub enum NoCheckpoints {
    #[error("neither checkpoint.store nor logs.store is configured")]
    NoStore,
    #[error(
        "{setting} {url}: other users can enter {} (mode {mode:o}) and could read users' checkpoints: chmod 700 it, or set \
         checkpoint.store to another directory",
        .dir.display()
    )]
    OthersEnterStore { setting: &'static str, url: String, dir: PathBuf, mode: u32 },
    #[error(
        "checkpoint.dir {} is on {kind}, which other nodes may share, so files of different nodes would mix: set checkpoint.dir to a \
         directory on a disk of this node, and name a shared directory as the store (checkpoint.store.url: file:///DIRECTORY)",
        .dir.display()
    )]
    SharedDirectory { dir: PathBuf, kind: String },
}

/// The answer of an agent that makes no checkpoints when it is asked for one.
#[derive(Clone, Debug, Error)]
#[error("this agent makes no checkpoints: {0}")]
pub struct CheckpointsUnavailable(#[from] pub NoCheckpoints);

/// Node-days that [`CheckpointSettings::node_failures_per_1000_days`] refers to.
const FAILURES_PER_DAYS: f64 = 1000.0;

/// Where checkpoints are, when the broker asks work for them, and how long they are retained. The
/// broker is the agent that holds the scheduler's lease of the default queue, and it reads its own
/// file: configure all such agents alike.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct CheckpointSettings {
    /// The directory on this node into which work saves itself (`LATTICE_CHECKPOINT_DIR`), and in
    /// which it finds the checkpoint that it starts from. Absolute; owned by root and writable by
    /// nobody else; with room for the checkpoints of all that runs here. Empty: `checkpoints` in
    /// `state_dir`.
    pub dir: PathBuf,
    /// The object store for checkpoints. None: `logs.store`; if there is none either, this node
    /// takes no work that asks for checkpoints.
    pub store: StoreSettings,
    /// Seconds that work has to save itself if the request names no timeout; the broker's requests
    /// never have less. Extended once by half. 1 to 86,400.
    pub timeout_seconds: u64,
    /// Seconds by which all deferrals of one checkpoint together may delay it; 0: no deferral is
    /// granted. To 86,400.
    pub max_deferral_seconds: u64,
    /// Seconds between two rounds of the broker; 1 to 3600.
    pub evaluate_seconds: u64,
    /// Rate at which all checkpoints together may write to the store, in bytes a second: above it,
    /// the broker asks for no more; at least 1.
    pub storage_bytes_per_second: u64,
    /// Checkpoints under way at once, whoever requested them: from this number on, the broker asks
    /// for no more; 1 to 1000.
    pub at_once_max: usize,
    /// Least seconds between two checkpoints of the same work for which the broker asks because the
    /// cost model says so; 1 to 86,400.
    pub least_interval_seconds: u64,
    /// Failures of a healthy node in 1000 days; 0 to 1e9. The default is what Meta measured on its
    /// research clusters (arXiv 2410.21680).
    pub node_failures_per_1000_days: f64,
    /// Cost of a gigabyte in the store, in seconds of a node; 0 to 1e9.
    pub storage_cost_node_seconds_per_gb: f64,
    /// Seconds for which checkpoints are retained after their allocation has ended; 0: until
    /// somebody removes them. They are removed only when this time is over by the clocks of the
    /// removing agent, of the store and of the quorum. Checkpoints of an allocation that the quorum does not
    /// know, and that no agent saw end, stay.
    pub retention_seconds: u64,
    /// How many checkpoints of one allocation are retained: the last one that the quorum has, and
    /// then from each one its predecessor; 0: all.
    pub keep: usize,
    /// Seconds between two sweeps for expired checkpoints; 1 to 604,800.
    pub retention_sweep_seconds: u64,
}

impl Default for CheckpointSettings {
    fn default() -> Self {
        Self {
            dir: PathBuf::new(),
            store: StoreSettings::default(),
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

/// Why a section `checkpoint` is invalid.
#[derive(Debug, Error)]
pub enum CheckpointSettingsError {
    #[error("checkpoint.{field}: {value} is not between {min} and {max}")]
    OutOfRange { field: &'static str, value: f64, min: f64, max: f64 },
    #[error(transparent)]
    Setting(#[from] SettingError),
}

impl CheckpointSettings {
    /// Checks path and ranges.
    pub fn validate(&self) -> Result<(), CheckpointSettingsError> {
        absolute("checkpoint.dir", &self.dir)?;
        let within = |field, value: f64, min: f64, max: f64| {
            if (min..=max).contains(&value) { Ok(()) } else { Err(CheckpointSettingsError::OutOfRange { field, value, min, max }) }
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

    /// The settings as the broker's cost model takes them.
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
    fn invalid_settings_are_refused_by_name() {
        CheckpointSettings::default().validate().unwrap();
        let bad = [
            CheckpointSettings { dir: "checkpoints".into(), ..Default::default() },
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

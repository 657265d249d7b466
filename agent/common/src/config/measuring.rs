//! The configuration's section `measuring`.

use super::setting::{SettingError, absolute};
use lattice_telemetry::query::{self, QueryAddressError};
use lattice_telemetry::window::smoothing::Smoothing;
use serde::Deserialize;
use std::path::PathBuf;
use thiserror::Error;

/// How work is measured, and where commands find the measurements again. The section `telemetry`
/// says where they are served and pushed to.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct MeasuringSettings {
    /// Count in the kernel, with eBPF, what the work of each allocation does: context switches,
    /// waits for processors, block requests, packets. `false`: nothing is loaded, and the metrics
    /// that need these programs are absent.
    pub kernel_probes: bool,
    /// How windows of 30 s are exported (`/metrics` and remote write): `none`, each window
    /// unchanged as soon as it is over; `cubic`, two windows later, its mean smoothed over itself
    /// and two windows on each side. `lattice top`, `watch` and alerts are never smoothed.
    pub window_smoothing: Smoothing,
    /// Where the metrics store answers PromQL, for `lattice compare` and `lattice top`: the URL
    /// before `/api/v1/query_range`. Empty: that of `telemetry.tsdb_endpoint` (without its path),
    /// if that is VictoriaMetrics. Token and authority are those of `telemetry`.
    pub query_url: String,
    /// The folder from which NVIDIA's dcgm-exporter reads which job uses which GPU (its
    /// `--hpc-job-mapping-dir`): one file with the allocation's id for each GPU in use. Empty: no
    /// files are written.
    pub gpu_job_mapping_dir: PathBuf,
}

impl Default for MeasuringSettings {
    fn default() -> Self {
        Self { kernel_probes: true, window_smoothing: Smoothing::None, query_url: String::new(), gpu_job_mapping_dir: PathBuf::new() }
    }
}

/// Why a section `measuring` is invalid.
#[derive(Debug, Error)]
pub enum MeasuringSettingsError {
    #[error(transparent)]
    Setting(#[from] SettingError),
    #[error("measuring.query_url: {0}")]
    QueryUrl(#[from] QueryAddressError),
}

impl MeasuringSettings {
    /// Checks that the folder is absolute and that the URL can be used.
    pub fn validate(&self) -> Result<(), MeasuringSettingsError> {
        absolute("measuring.gpu_job_mapping_dir", &self.gpu_job_mapping_dir)?;
        if !self.query_url.is_empty() {
            query::check(&self.query_url)?;
        }
        Ok(())
    }
}

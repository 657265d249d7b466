//! The configuration's section `health`.

use super::setting::is_plain;
use lattice_node::device_health::{Policy, PolicyError};
use serde::Deserialize;
use std::collections::BTreeSet;
use std::path::PathBuf;
use thiserror::Error;

/// Limit of the entries of each of `checks`, `mounts` and `nics`.
const ENTRIES_MAX: usize = 32;

/// What the health checks check, and how often.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct HealthSettings {
    /// Seconds between two rounds of all checks; 1 to 86,400.
    pub period_seconds: u64,
    /// Mount points that must be mounted and must answer; absolute paths.
    pub mounts: Vec<PathBuf>,
    /// Network devices that must be up, such as `hsn0`.
    pub nics: Vec<String>,
    /// The number of errors and drops within `nic_window_seconds` that makes a network device count
    /// as unhealthy; at least 1.
    pub nic_errors_max: u64,
    /// The window for `nic_errors_max`, in seconds; 1 to 604,800.
    pub nic_window_seconds: u64,
    /// The number of corrected errors within `memory_window_seconds` that makes memory count as
    /// unhealthy; at least 1.
    pub memory_errors_max: u64,
    /// The window for `memory_errors_max`, in seconds; 1 to 604,800.
    pub memory_window_seconds: u64,
    /// What the machine must have at least; 0: not checked.
    pub expect: Expected,
    /// The action for each GPU error. Entries of the site replace those in
    /// `docs/reference/gpu-errors.md`.
    pub gpu_policy: Policy,
    /// The site's check programs.
    pub checks: Vec<SiteCheck>,
}

/// The hardware that a machine must have at least. If it has less, something is broken.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Expected {
    /// Number of online processors.
    pub cpus: u64,
    /// Bytes of main memory that the kernel manages.
    pub memory_bytes: u64,
    /// Number of GPUs that both the bus and the driver report. Each instance of a partitioned GPU
    /// counts.
    pub gpus: u64,
}

/// A check program. Exit codes as for Nagios plugins: 0 is ok, 1 a warning, 2 critical, 3 unknown.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SiteCheck {
    /// The check's name: at most 64 letters, digits, `_`, `-` and `.`, not beginning with `.`.
    pub name: String,
    /// Absolute path of the program. It runs as root, without arguments.
    pub program: PathBuf,
    /// Timeout of the program in seconds; 1 to 600.
    #[serde(default = "half_a_minute")]
    pub timeout_seconds: u64,
    /// Whether exit code 2 means that the hardware failed. The node is then Down at once, until an
    /// operator marks it as repaired.
    #[serde(default)]
    pub failure: bool,
}

fn half_a_minute() -> u64 {
    30
}

impl Default for HealthSettings {
    fn default() -> Self {
        Self {
            period_seconds: 60,
            mounts: Vec::new(),
            nics: Vec::new(),
            nic_errors_max: 1000,
            nic_window_seconds: 3600,
            memory_errors_max: 1000,
            memory_window_seconds: 3600,
            expect: Expected::default(),
            gpu_policy: Policy::default(),
            checks: Vec::new(),
        }
    }
}

/// Why a configuration is invalid.
#[derive(Debug, Error)]
pub enum HealthSettingsError {
    #[error("health.{field}: {value} is not between {min} and {max}")]
    OutOfRange { field: &'static str, value: u64, min: u64, max: u64 },
    #[error("health.{field}: at most {ENTRIES_MAX} entries are allowed")]
    TooMany { field: &'static str },
    #[error("health.{field}: {} must be an absolute path without \"..\"", path.display())]
    Path { field: &'static str, path: PathBuf },
    #[error("health.{field}: {name:?} is not a valid name: use at most 64 letters, digits, _, - and ., not beginning with .")]
    Name { field: &'static str, name: String },
    #[error("health.gpu_policy.{0}")]
    Policy(#[from] PolicyError),
    #[error("health.checks: two checks have the name {name:?}")]
    Twice { name: String },
}

impl HealthSettings {
    /// Checks the ranges and formats.
    pub fn validate(&self) -> Result<(), HealthSettingsError> {
        let within = |field, value, min, max| {
            if (min..=max).contains(&value) { Ok(()) } else { Err(HealthSettingsError::OutOfRange { field, value, min, max }) }
        };
        within("period_seconds", self.period_seconds, 1, 86_400)?;
        within("nic_errors_max", self.nic_errors_max, 1, u64::MAX)?;
        within("nic_window_seconds", self.nic_window_seconds, 1, 604_800)?;
        within("memory_errors_max", self.memory_errors_max, 1, u64::MAX)?;
        within("memory_window_seconds", self.memory_window_seconds, 1, 604_800)?;
        self.gpu_policy.validate()?;
        for (field, named) in [("mounts", self.mounts.len()), ("nics", self.nics.len()), ("checks", self.checks.len())] {
            if named > ENTRIES_MAX {
                return Err(HealthSettingsError::TooMany { field });
            }
        }
        let programs = self.checks.iter().map(|check| ("checks", &check.program));
        for (field, path) in self.mounts.iter().map(|path| ("mounts", path)).chain(programs) {
            if !is_plain(path) {
                return Err(HealthSettingsError::Path { field, path: path.clone() });
            }
        }
        let is_name = |name: &str| {
            (1..=64).contains(&name.len())
                && name.bytes().all(|b| b.is_ascii_alphanumeric() || b"_-.".contains(&b))
                && !name.starts_with('.')
        };
        let names = self.checks.iter().map(|check| ("checks", &check.name));
        for (field, name) in self.nics.iter().map(|name| ("nics", name)).chain(names) {
            if !is_name(name) {
                return Err(HealthSettingsError::Name { field, name: name.clone() });
            }
        }
        let mut seen = BTreeSet::new();
        for check in &self.checks {
            within("checks.timeout_seconds", check.timeout_seconds, 1, 600)?;
            if !seen.insert(&check.name) {
                return Err(HealthSettingsError::Twice { name: check.name.clone() });
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lattice_node::device_health::Response;

    #[test]
    fn a_gpu_policy_needs_its_version_and_unknown_keys_are_refused() {
        let parsed = |policy: &str| lattice_model::config::parse::<HealthSettings>("agent.yaml", &format!("gpu_policy: {policy}\n"));
        let well = parsed("{version: 1, xids: {74: drain, 31: none}, too_hot: replace}").unwrap();
        well.validate().unwrap();
        assert_eq!([74, 31, 79].map(|n| well.gpu_policy.xid(n).0), [Response::Drain, Response::None, Response::Drain]);
        assert_eq!(well.gpu_policy.too_hot, Response::Replace);
        for (policy, expected) in [("{version: 1, heat: drain}", "heat"), ("{version: 1, xids: {74: reboot}}", "reboot")] {
            let refused = parsed(policy).unwrap_err().to_string();
            assert!(refused.contains(expected), "{refused}");
        }
        let refused = parsed("{xids: {74: drain}}").unwrap().validate().unwrap_err().to_string();
        assert!(refused.starts_with("health.gpu_policy.version: ") && refused.contains("docs/reference/gpu-errors.md"), "{refused}");
    }
}

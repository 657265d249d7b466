//! The configuration's section `conformance`.

use lattice_model::conformance::{COMPONENTS_MAX, NAME_BYTES_MAX};
use serde::Deserialize;
use std::collections::BTreeSet;
use std::path::PathBuf;
use std::time::Duration;
use thiserror::Error;

/// Names of the components that the agent reads by itself.
pub const OWN: [&str; 7] = ["gpu driver", "nic firmware", "bios", "bmc", "kernel", "kernel parameters", "base image"];
/// How many components a site may add to the agent's own.
const SITE_MAX: usize = COMPONENTS_MAX - OWN.len();

/// Which software and firmware must match on all nodes that share an allocation.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ConformanceSettings {
    /// Seconds between two fingerprints; 1 to 604,800.
    pub period_seconds: u64,
    /// Seconds after which the last fingerprint is stale if no newer one succeeds: until one does,
    /// the node is a conformance group of its own. 1 to 2,419,200; less than two periods counts as
    /// two periods.
    pub stale_seconds: u64,
    /// Components that the site adds to the agent's own, such as firmware that the kernel cannot
    /// report.
    pub components: Vec<SiteComponent>,
    /// Kernel command line parameters that differ from node to node and are therefore ignored.
    pub parameters_ignored: Vec<String>,
}

/// A component that the site defines: the first line of a file, or the last line of a program's
/// output.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SiteComponent {
    /// The component's name: letters, digits, blanks, _, - and .; it must not be one of [`OWN`].
    pub name: String,
    /// Absolute path of the file. If there is no such file, the node lacks the component.
    #[serde(default)]
    pub file: PathBuf,
    /// Absolute path of the program, instead of a file. It runs as root, without arguments; exit
    /// code 3 means that the node lacks the component.
    #[serde(default)]
    pub program: PathBuf,
    /// Timeout of the program, or of reading the file, in seconds; 1 to 600.
    #[serde(default = "half_a_minute")]
    pub timeout_seconds: u64,
}

fn half_a_minute() -> u64 {
    30
}

impl Default for ConformanceSettings {
    fn default() -> Self {
        let ignored = ["BOOT_IMAGE", "BOOTIF", "initrd", "ip", "root", "resume"];
        Self {
            period_seconds: 6 * 3600,
            stale_seconds: 24 * 3600,
            components: Vec::new(),
            parameters_ignored: ignored.map(str::to_owned).to_vec(),
        }
    }
}

/// Why a configuration is invalid.
#[derive(Debug, Error)]
pub enum ConformanceSettingsError {
    #[error("conformance.{field}: {value} is not between {min} and {max}")]
    OutOfRange { field: &'static str, value: u64, min: u64, max: u64 },
    #[error("conformance.components: at most {SITE_MAX} can be named")]
    TooMany,
    #[error("conformance.components: {name:?} is not valid: use 1 to {NAME_BYTES_MAX} letters, digits, blanks, _, - and ., but none of {}", OWN.join(", "))]
    Name { name: String },
    #[error("conformance.components: two components have the name {name:?}")]
    Twice { name: String },
    #[error("conformance.components: {name:?} needs either a file or a program, with an absolute path")]
    Source { name: String },
}

impl ConformanceSettings {
    /// Age at which a fingerprint is stale; at least two periods, so that a punctual next one
    /// always comes first.
    pub fn stale_after(&self) -> Duration {
        Duration::from_secs(self.stale_seconds.max(2 * self.period_seconds))
    }

    /// Checks ranges and forms.
    pub fn validate(&self) -> Result<(), ConformanceSettingsError> {
        use ConformanceSettingsError as Error;
        let within = |field, value, min, max| {
            if (min..=max).contains(&value) { Ok(()) } else { Err(Error::OutOfRange { field, value, min, max }) }
        };
        within("period_seconds", self.period_seconds, 1, 604_800)?;
        within("stale_seconds", self.stale_seconds, 1, 2_419_200)?;
        if self.components.len() > SITE_MAX {
            return Err(Error::TooMany);
        }
        let mut seen = BTreeSet::new();
        for SiteComponent { name, file, program, timeout_seconds } in &self.components {
            let is_plain = name.bytes().all(|b| b.is_ascii_alphanumeric() || b" _-.".contains(&b)) && name.trim() == name;
            if !(1..=NAME_BYTES_MAX).contains(&name.len()) || !is_plain || OWN.contains(&name.as_str()) {
                return Err(Error::Name { name: name.clone() });
            }
            if !seen.insert(name) {
                return Err(Error::Twice { name: name.clone() });
            }
            if file.is_absolute() == program.is_absolute() || file.is_relative() && !file.as_os_str().is_empty() {
                return Err(Error::Source { name: name.clone() });
            }
            within("components.timeout_seconds", *timeout_seconds, 1, 600)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn components_are_stale_after_two_periods_and_a_day_at_least() {
        let after = |period_seconds| ConformanceSettings { period_seconds, ..ConformanceSettings::default() }.stale_after().as_secs();
        assert_eq!([1, 21_600, 604_800].map(after), [86_400, 86_400, 1_209_600]);
    }

    #[test]
    fn a_component_has_a_name_of_its_own_and_one_source() {
        let with = |lines: &str| {
            let text = format!("components: [{lines}]");
            lattice_model::config::parse::<ConformanceSettings>("a.yaml", &text).unwrap().validate()
        };
        assert!(with("{name: bmc firmware, file: /run/bmc}, {name: x, program: /bin/x}").is_ok());
        assert!(matches!(with("{name: kernel, file: /a}"), Err(ConformanceSettingsError::Name { .. })));
        assert!(matches!(with("{name: a, file: /a}, {name: a, file: /b}"), Err(ConformanceSettingsError::Twice { .. })));
        for bad in ["{name: a}", "{name: a, file: /a, program: /b}", "{name: a, file: b}", "{name: a, file: b, program: /b}"] {
            assert!(matches!(with(bad), Err(ConformanceSettingsError::Source { .. })), "{bad}");
        }
    }
}

//! How closely an allocation's work is measured.

use crate::time::Timestamp;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;
use thiserror::Error;
use uuid::Uuid;

/// How long work may be measured more closely, in milliseconds: a second to a day.
pub const CLOSELY_MS: (u64, u64) = (1000, 24 * 3600 * 1000);
/// How long it is where nothing is said: half an hour.
pub const CLOSELY_MS_DEFAULT: u64 = 30 * 60 * 1000;

/// What is made of measurements.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum TelemetryMode {
    /// Windows of 30 seconds.
    Prod,
    /// Beside them every single look, kept in the allocation's place in the object store.
    Debug,
}

impl TelemetryMode {
    /// As it is typed and shown.
    pub fn name(self) -> &'static str {
        match self {
            Self::Prod => "prod",
            Self::Debug => "debug",
        }
    }
}

impl fmt::Display for TelemetryMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// A text that names no mode that there is here.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum NoMode {
    /// The documents have it, and nothing here sees what it would record.
    #[error(
        "telemetry mode audit is not built: nothing on the nodes tells yet which files work opens and whom it connects to\n\
         hint: `lattice audit query --alloc ID` has what was done to an allocation; auditd on its nodes has its system calls"
    )]
    Audit,
    #[error("{0:?} is no telemetry mode; there are prod and debug")]
    Unknown(String),
}

impl FromStr for TelemetryMode {
    type Err = NoMode;

    fn from_str(text: &str) -> Result<Self, NoMode> {
        match text {
            "prod" => Ok(Self::Prod),
            "debug" => Ok(Self::Debug),
            "audit" => Err(NoMode::Audit),
            other => Err(NoMode::Unknown(other.chars().take(40).collect())),
        }
    }
}

/// That the work of a claim is measured more closely, as the quorum has it until that is over.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TelemetryOrder {
    /// Made by who asks: the key under which it may be asked twice.
    pub id: Uuid,
    /// How.
    pub mode: TelemetryMode,
    /// Who asks.
    pub by: String,
    /// When it was asked for.
    pub since: Timestamp,
    /// When the quorum ends it. A node ends it by itself when it has done it for as long.
    pub until: Timestamp,
}

impl TelemetryOrder {
    /// For how long, in milliseconds.
    pub fn duration_ms(&self) -> u64 {
        self.until.since_ms(self.since)
    }
}

impl fmt::Display for TelemetryOrder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} until {}, asked for by {}", self.mode, self.until, self.by)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modes_have_names_and_one_that_is_not_built_says_so() {
        for mode in [TelemetryMode::Prod, TelemetryMode::Debug] {
            assert_eq!(mode.to_string().parse(), Ok(mode));
        }
        assert_eq!("audit".parse::<TelemetryMode>(), Err(NoMode::Audit));
        assert!(NoMode::Audit.to_string().contains("\nhint: "));
        assert_eq!("Debug".parse::<TelemetryMode>(), Err(NoMode::Unknown("Debug".into())));
    }
}

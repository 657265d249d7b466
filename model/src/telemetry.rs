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
    /// Windows, and which files the work opens and whom it connects to, kept in the same place.
    Audit,
}

impl TelemetryMode {
    /// As it is typed and shown.
    pub fn name(self) -> &'static str {
        match self {
            Self::Prod => "prod",
            Self::Debug => "debug",
            Self::Audit => "audit",
        }
    }
}

impl fmt::Display for TelemetryMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// A text that names no mode.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{0:?} is no telemetry mode; there are prod, debug and audit")]
pub struct NoMode(String);

impl FromStr for TelemetryMode {
    type Err = NoMode;

    fn from_str(text: &str) -> Result<Self, NoMode> {
        match text {
            "prod" => Ok(Self::Prod),
            "debug" => Ok(Self::Debug),
            "audit" => Ok(Self::Audit),
            other => Err(NoMode(other.chars().take(40).collect())),
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
    /// When the quorum ends it. A node ends it by itself when it has done it for as long. `None`: with the claim.
    pub until: Option<Timestamp>,
}

impl TelemetryOrder {
    /// For how long, in milliseconds.
    pub fn duration_ms(&self) -> Option<u64> {
        self.until.map(|until| until.since_ms(self.since))
    }

    /// Whether it is over at `now`.
    pub fn is_over(&self, now: Timestamp) -> bool {
        self.until.is_some_and(|until| until <= now)
    }
}

impl fmt::Display for TelemetryOrder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.until {
            Some(until) => write!(f, "{} until {until}, asked for by {}", self.mode, self.by),
            None => write!(f, "{} until its work ends, asked for by {}", self.mode, self.by),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modes_have_names_and_what_has_no_end_says_so() {
        for mode in [TelemetryMode::Prod, TelemetryMode::Debug, TelemetryMode::Audit] {
            assert_eq!(mode.to_string().parse(), Ok(mode));
        }
        assert_eq!("Debug".parse::<TelemetryMode>(), Err(NoMode("Debug".into())));
        let (id, mode, by, since) = (Uuid::nil(), TelemetryMode::Audit, "ada".to_owned(), Timestamp(1000));
        let order = TelemetryOrder { id, mode, by, since, until: None };
        assert_eq!(order.to_string(), "audit until its work ends, asked for by ada");
        assert!(order.duration_ms().is_none() && !order.is_over(Timestamp(u64::MAX)));
        let timed = TelemetryOrder { until: Some(Timestamp(3000)), ..order };
        assert_eq!((timed.duration_ms(), timed.is_over(Timestamp(2999)), timed.is_over(Timestamp(3000))), (Some(2000), false, true));
    }
}

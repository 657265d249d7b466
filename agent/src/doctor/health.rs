//! The severity of a finding.

use serde::Serialize;
use std::fmt;

/// The severity of a finding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Health {
    Ok,
    /// Not available on such a machine, or in this version: nothing can be repaired.
    Unsupported,
    /// Work is possible, with limitations.
    Degraded,
    /// Work is not possible.
    Missing,
}

impl fmt::Display for Health {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Ok => "ok",
            Self::Unsupported => "unsupported",
            Self::Degraded => "degraded",
            Self::Missing => "missing",
        })
    }
}

//! How good a finding is.

use serde::Serialize;
use std::fmt;

/// How good it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Health {
    Ok,
    /// Not to be had on such a machine, or by this version: there is nothing to mend.
    Unsupported,
    /// Work is possible, with less.
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

//! A signal some time before the walltime ends.

use serde::{Deserialize, Serialize};
use std::time::Duration;

/// The signal, when it is sent, and to what.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EndWarning {
    /// The signal's number.
    pub signal: i32,
    /// How long before the end of the walltime it is sent.
    pub before: Duration,
    /// Whether it goes to the script's process alone; otherwise to the ranks.
    pub script_only: bool,
}

//! The ledger's state of a scaled service.

use super::amount::Amount;
use crate::time::Timestamp;
use serde::{Deserialize, Serialize};
use std::fmt;

/// How many missing values of a metric in a row are an alert.
pub const MISSING_ALERT: u32 = 3;
/// How many alternate rises and falls of the number of replicas are an alert.
pub const ALTERNATIONS_ALERT: u32 = 5;

/// The ledger's state of a scaled service.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ScalingState {
    /// How many replicas there should be.
    pub wanted: u32,
    /// How many wait for nodes.
    pub waiting: u32,
    /// How many have nodes and were not asked to leave.
    pub running: u32,
    /// How many of those that have nodes have begun to run.
    pub serving: u32,
    /// How many were asked to leave, or have ended and may still have processes.
    pub leaving: u32,
    /// The latest reading; `None`: the loop has not looked yet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reading: Option<Reading>,
    /// The last change of `wanted`; `None`: there was none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub change: Option<ScaleChange>,
    /// How many changes by the loop in a row went up and down alternately.
    #[serde(default)]
    pub alternations: u32,
    /// How many replicas in a row have ended by themselves soon after they had begun.
    #[serde(default)]
    pub early_ends: u32,
}

/// A change of the wanted number of replicas.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ScaleChange {
    /// When it was committed.
    pub at: Timestamp,
    /// The number before.
    pub from: u32,
    /// The number since.
    pub to: u32,
    /// The user who asked for it; `None`: the loop.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub by: Option<String>,
    /// The metric's value that led to it; `None`: somebody asked for it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub value: Option<Amount>,
}

/// Where the metric is, relative to its bounds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Look {
    /// Above the target.
    Above,
    /// Neither above nor below.
    Within,
    /// Below the part of the target at which there are too many replicas.
    Below,
    /// It has no value.
    Missing,
}

/// The latest finding of the loop that differed from the one before.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reading {
    /// Where the metric is. While it has lacked a value fewer than [`MISSING_ALERT`] times in a row: where
    /// it was before, if it had a value then.
    pub look: Look,
    /// Since when, without a change of the number of replicas.
    pub since: Timestamp,
    /// Its value at that time; `None`: it had none.
    pub value: Option<Amount>,
    /// Why it has no value; otherwise empty.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub why: String,
    /// How many looks in a row found no value, at most [`MISSING_ALERT`].
    #[serde(default)]
    pub missing: u32,
}

impl fmt::Display for Look {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Above => "above",
            Self::Within => "within",
            Self::Below => "below",
            Self::Missing => "missing",
        })
    }
}

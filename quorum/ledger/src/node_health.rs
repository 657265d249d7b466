//! A node's health according to its own checks.

use lattice_model::Timestamp;
use serde::{Deserialize, Serialize};

/// An agent's assessment of its node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum NodeHealth {
    Well,
    /// Its work continues, but it gets no new work.
    Unwell {
        why: String,
        /// A drain request of the node.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        drain: Option<DrainRequest>,
    },
    /// A check that the site has authorised to do so found a hardware failure.
    Failed {
        why: String,
    },
}

/// An agent's request to drain its node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DrainRequest {
    /// When it was requested, by the agent's clock. Each request has its own time, and is granted
    /// once.
    pub asked: Timestamp,
    pub why: String,
}

impl NodeHealth {
    /// Largest accepted size of a reason, in bytes.
    const WHY_BYTES_MAX: usize = 512;
    /// Largest accepted size of a reason that becomes a hold's reason.
    const FAILURE_BYTES_MAX: usize = 256;

    /// The same health, with reasons cut to their limits.
    pub fn bounded(self) -> Self {
        match self {
            Self::Well => Self::Well,
            Self::Unwell { why, drain } => {
                let drain = drain.map(|wish| DrainRequest { why: cut(wish.why, Self::FAILURE_BYTES_MAX), ..wish });
                Self::Unwell { why: cut(why, Self::WHY_BYTES_MAX), drain }
            }
            Self::Failed { why } => Self::Failed { why: cut(why, Self::FAILURE_BYTES_MAX) },
        }
    }

    /// Why it gets no work; `None`: it may.
    pub fn unwell(&self) -> Option<&str> {
        match self {
            Self::Well => None,
            Self::Unwell { why, .. } | Self::Failed { why } => Some(why),
        }
    }
}

/// The text, cut to `most` bytes.
pub fn cut(mut why: String, most: usize) -> String {
    why.retain(|c| !c.is_control());
    let end = (0..=why.len().min(most)).rev().find(|end| why.is_char_boundary(*end));
    why.truncate(end.unwrap_or_default());
    why
}

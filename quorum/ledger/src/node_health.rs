//! How a node is, as its own checks find it.

use lattice_model::Timestamp;
use serde::{Deserialize, Serialize};

/// How an agent finds its node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum NodeHealth {
    Well,
    /// Work goes on, and none comes.
    Unwell {
        why: String,
        /// That the node asks to be drained.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        drain: Option<DrainWish>,
    },
    /// A check that the site trusts with it found that the hardware failed.
    Failed {
        why: String,
    },
}

/// That an agent asks for a drain of its node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DrainWish {
    /// When it did, by its own clock. Each request has a time of its own: the same one is granted once.
    pub asked: Timestamp,
    pub why: String,
}

impl NodeHealth {
    /// Bytes that are believed of a reason.
    const WHY_BYTES_MAX: usize = 512;
    /// Of one that becomes a hold's.
    const FAILURE_BYTES_MAX: usize = 256;

    /// As far as it is believed.
    pub fn bounded(self) -> Self {
        match self {
            Self::Well => Self::Well,
            Self::Unwell { why, drain } => {
                let drain = drain.map(|wish| DrainWish { why: cut(wish.why, Self::FAILURE_BYTES_MAX), ..wish });
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

/// What others say, as long as it may be.
pub fn cut(mut why: String, most: usize) -> String {
    why.retain(|c| !c.is_control());
    let end = (0..=why.len().min(most)).rev().find(|end| why.is_char_boundary(*end));
    why.truncate(end.unwrap_or_default());
    why
}

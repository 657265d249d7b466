//! How much of a node.

use serde::{Deserialize, Serialize};

/// An amount of a node's resources: its registered size, or a share of it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Resources {
    /// Logical processors.
    pub cores: u32,
    /// Main memory in bytes.
    pub memory_bytes: u64,
    /// GPUs, whole devices.
    pub gpus: u32,
}

impl Resources {
    /// Whether `other` fits in this amount.
    pub fn holds(&self, other: &Self) -> bool {
        other.cores <= self.cores && other.memory_bytes <= self.memory_bytes && other.gpus <= self.gpus
    }

    /// The sum of both; saturates, so that a hostile amount never wraps to a small one.
    pub fn plus(&self, other: &Self) -> Self {
        Self {
            cores: self.cores.saturating_add(other.cores),
            memory_bytes: self.memory_bytes.saturating_add(other.memory_bytes),
            gpus: self.gpus.saturating_add(other.gpus),
        }
    }

    /// What is left after `other`; 0 where it is more.
    pub fn minus(&self, other: &Self) -> Self {
        Self {
            cores: self.cores.saturating_sub(other.cores),
            memory_bytes: self.memory_bytes.saturating_sub(other.memory_bytes),
            gpus: self.gpus.saturating_sub(other.gpus),
        }
    }
}

//! Amounts of a node's resources.

use crate::count::{counted, is_or_are};
use serde::{Deserialize, Serialize};
use std::fmt;

/// The memory that a node registers is a multiple of this. Equal machines differ a little by the
/// memory that firmware and kernel reserve, and the scheduler must see that they are equal.
pub const MEMORY_STEP_BYTES: u64 = 64 << 20;

/// How much of this memory a node registers.
pub fn registered_memory_bytes(bytes: u64) -> u64 {
    bytes - bytes % MEMORY_STEP_BYTES
}

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

/// What the memory of a share was given for. The share has the memory for the node in each case.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum MemoryUnit {
    #[default]
    Node,
    Core,
    Gpu,
}

impl MemoryUnit {
    /// The names in requests.
    pub const NAMES: [(&'static str, Self); 3] = [("node", Self::Node), ("core", Self::Core), ("gpu", Self::Gpu)];

    /// Whether it was given for the whole node.
    pub fn is_node(&self) -> bool {
        *self == Self::Node
    }
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

    /// Which parts of this amount exceed what is free, for people: `2 cores are wanted, 1 is free`.
    pub fn short_of(&self, free: &Self) -> String {
        let mut short = Vec::new();
        if self.cores > free.cores {
            short.push(format!("{} {} wanted, {} free", counted(self.cores, "core"), is_or_are(self.cores), free.cores));
        }
        if self.memory_bytes > free.memory_bytes {
            short.push(format!("{} of memory is wanted, {} free", bytes_text(self.memory_bytes), bytes_text(free.memory_bytes)));
        }
        if self.gpus > free.gpus {
            short.push(format!("{} {} wanted, {} free", counted(self.gpus, "GPU"), is_or_are(self.gpus), free.gpus));
        }
        short.join("; ")
    }

    /// Which parts of this amount exceed a whole node of this size, for people: `has 4 cores; 16
    /// are wanted`.
    pub fn beyond(&self, size: &Self) -> String {
        let count = |n: u32, one: &str| format!("{n} {one}{}", if n == 1 { "" } else { "s" });
        let mut beyond = Vec::new();
        if self.cores > size.cores {
            beyond.push(format!("has {}; {} are wanted", count(size.cores, "core"), self.cores));
        }
        if self.memory_bytes > size.memory_bytes {
            beyond.push(format!("has {} of memory; {} are wanted", bytes_text(size.memory_bytes), bytes_text(self.memory_bytes)));
        }
        if self.gpus > size.gpus {
            beyond.push(format!("has {}; {} are wanted", count(size.gpus, "GPU"), self.gpus));
        }
        if beyond.is_empty() { "has not registered its size".to_owned() } else { beyond.join(", ") }
    }

    /// The difference; 0 for each resource of which `other` has more.
    pub fn minus(&self, other: &Self) -> Self {
        Self {
            cores: self.cores.saturating_sub(other.cores),
            memory_bytes: self.memory_bytes.saturating_sub(other.memory_bytes),
            gpus: self.gpus.saturating_sub(other.gpus),
        }
    }
}

/// `4 cores, 16.0 GiB, 1 GPU`; resources of which there are 0 are left out.
impl fmt::Display for Resources {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let many = |n: u32, one: &str| (n > 0).then(|| counted(n, one));
        let memory = (self.memory_bytes > 0).then(|| bytes_text(self.memory_bytes));
        let parts: Vec<String> = [many(self.cores, "core"), memory, many(self.gpus, "GPU")].into_iter().flatten().collect();
        f.pad(&parts.join(", "))
    }
}

/// An amount of memory for people: `512 MiB`, `1.5 GiB`.
pub fn bytes_text(bytes: u64) -> String {
    const KIB: u64 = 1 << 10;
    const MIB: u64 = 1 << 20;
    const GIB: u64 = 1 << 30;
    match bytes {
        _ if bytes >= GIB => format!("{:.1} GiB", bytes as f64 / GIB as f64),
        _ if bytes >= MIB => format!("{} MiB", bytes / MIB),
        _ => format!("{} KiB", bytes.div_ceil(KIB)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn like_machines_register_equal_memory() {
        const MIB: u64 = 1 << 20;
        let registered = [0, 64 * MIB - 1, 515_700 * MIB, 515_700 * MIB + 3 * 1024, 515_711 * MIB].map(registered_memory_bytes);
        assert_eq!(registered, [0, 0, 515_648 * MIB, 515_648 * MIB, 515_648 * MIB]);
    }

    #[test]
    fn amounts_are_said_for_people() {
        let all = Resources { cores: 1, memory_bytes: 3 << 29, gpus: 2 };
        assert_eq!(all.to_string(), "1 core, 1.5 GiB, 2 GPUs");
        assert_eq!(Resources { memory_bytes: 512 << 20, ..Resources::default() }.to_string(), "512 MiB");
        let free = Resources { cores: 0, memory_bytes: 1 << 30, gpus: 2 };
        assert_eq!(all.short_of(&free), "1 core is wanted, 0 free; 1.5 GiB of memory is wanted, 1.0 GiB free");
        assert_eq!(
            all.beyond(&Resources { cores: 1, memory_bytes: 1 << 30, gpus: 1 }),
            "has 1.0 GiB of memory; 1.5 GiB are wanted, has 1 GPU; 2 are wanted"
        );
        assert_eq!(bytes_text(1), "1 KiB");
    }
}

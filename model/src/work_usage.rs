//! What work used of its nodes, for the summary of its end.

use serde::{Deserialize, Serialize};

/// What the work of one claim used, as its nodes measured it when all of its processes were gone. A node that cannot measure
/// something leaves it out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct WorkUsage {
    /// Nodes whose numbers are in it.
    pub nodes: u32,
    /// The most memory that it had on any of them at once, in bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_peak_bytes: Option<u64>,
    /// Processor time on all of them together, in milliseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpu_ms: Option<u64>,
}

impl WorkUsage {
    /// Both together.
    #[must_use]
    pub fn with(self, other: Self) -> Self {
        let sum = |a: Option<u64>, b: Option<u64>| match (a, b) {
            (Some(a), Some(b)) => Some(a.saturating_add(b)),
            (a, b) => a.or(b),
        };
        Self {
            nodes: self.nodes.saturating_add(other.nodes),
            memory_peak_bytes: self.memory_peak_bytes.max(other.memory_peak_bytes),
            cpu_ms: sum(self.cpu_ms, other.cpu_ms),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_the_most_of_a_node_and_time_is_of_all() {
        let node = |memory_peak_bytes, cpu_ms| WorkUsage { nodes: 1, memory_peak_bytes, cpu_ms };
        let both = node(Some(5), Some(20)).with(node(Some(7), Some(u64::MAX)));
        assert_eq!(both, WorkUsage { nodes: 2, memory_peak_bytes: Some(7), cpu_ms: Some(u64::MAX) });
        assert_eq!(node(None, Some(3)).with(node(Some(1), None)), WorkUsage { nodes: 2, memory_peak_bytes: Some(1), cpu_ms: Some(3) });
    }
}

//! The resource usage of ended work, for its final summary.

use serde::{Deserialize, Serialize};

/// The usage of one claim's work. Each node measures its part when all processes of the work are
/// gone, and leaves out what it cannot measure.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct WorkUsage {
    /// Number of nodes included.
    pub nodes: u32,
    /// Highest memory usage on any one node, in bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_peak_bytes: Option<u64>,
    /// Processor time summed over all nodes, in milliseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpu_ms: Option<u64>,
}

impl WorkUsage {
    /// The combined usage.
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

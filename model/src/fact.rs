//! The full description of a node, pulled from its agent on demand. Gossip spreads ten bytes of it
//! to all nodes, with a digest that shows whether a copy is up to date.

use crate::ids::{AllocationId, NodeId};
use crate::node::{Hold, NodeState};
use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};

/// Largest number of images listed.
pub const IMAGES_MAX: usize = 16;
/// Largest number of allocations listed.
pub const RUNNING_MAX: usize = 32;
/// Largest size of a topology group's name, in bytes.
pub const TOPOLOGY_GROUP_BYTES_MAX: usize = 64;

/// Whether this is a valid name of a topology group.
pub fn is_topology_group(text: &str) -> bool {
    (1..=TOPOLOGY_GROUP_BYTES_MAX).contains(&text.len()) && !text.chars().any(char::is_control)
}

/// The part that rarely changes. About 1 KB.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct NodeFact {
    /// The node.
    pub node: NodeId,
    /// Its state, combined from the quorum's latest report and the node's own checks.
    pub state: NodeState,
    /// The reason for the state, for people; may be empty.
    pub reason: String,
    /// Its holds, which keep new work off it, as the quorum last reported.
    pub holds: Vec<Hold>,
    /// Whether it takes work at all.
    pub schedulable: bool,
    /// Number of cores available to work.
    pub cores: u32,
    /// Bytes of memory available to work.
    pub memory_bytes: u64,
    /// Its GPUs, by model.
    pub gpus: BTreeMap<String, Gpus>,
    /// Its part of the network as named by the site: a dragonfly group, a leaf switch.
    pub topology_group: Option<String>,
    /// Features that work may request.
    pub features: Vec<String>,
    /// Fingerprint of its hardware and software, if determined: 64 hexadecimal digits.
    pub fingerprint: Option<String>,
    /// Some of the images in its cache, by SHA-256.
    pub images: Vec<String>,
    /// Number of images in its cache.
    pub images_count: u32,
}

/// GPUs of one model.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Gpus {
    /// Number that respond.
    pub healthy: u32,
    /// Number of those that work may use.
    pub allocatable: u32,
}

impl NodeFact {
    /// Distinguishes versions of this value within one run of its agent. Only that agent computes
    /// it.
    pub fn digest(&self) -> u64 {
        let mut hasher = DefaultHasher::new();
        self.hash(&mut hasher);
        hasher.finish()
    }
}

/// The part that changes all the time. Values that cannot be read are absent.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct NodePulse {
    /// Some of the allocations that run there or are about to.
    pub running: Vec<AllocationId>,
    /// Number of all of them.
    pub running_count: u32,
    /// Pressure stall values of the last ten seconds.
    pub pressure: Pressure,
    /// Its power, in watts.
    pub power_watts: Option<f64>,
}

/// Percentage of the last ten seconds in which some task waited for the resource (`some avg10` of
/// the kernel's pressure stall information).
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Pressure {
    /// For a processor.
    pub cpu: Option<f64>,
    /// For memory.
    pub memory: Option<f64>,
    /// For a disk.
    pub io: Option<f64>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_digest_changes_with_every_lasting_field() {
        let fact = NodeFact {
            node: "n1".parse().unwrap(),
            state: NodeState::Ready,
            reason: String::new(),
            holds: vec![],
            schedulable: true,
            cores: 4,
            memory_bytes: 1 << 30,
            gpus: BTreeMap::new(),
            topology_group: None,
            features: vec![],
            fingerprint: None,
            images: vec![],
            images_count: 0,
        };
        assert_eq!(fact.digest(), fact.clone().digest());
        let mut others = vec![fact.digest()];
        let changes: [fn(&mut NodeFact); 5] = [
            |f| f.state = NodeState::Degraded,
            |f| f.features = vec!["gpu".into()],
            |f| f.fingerprint = Some("a".into()),
            |f| f.topology_group = Some("a".into()),
            |f| f.gpus = [("H100".to_owned(), Gpus { healthy: 4, allocatable: 3 })].into(),
        ];
        for change in changes {
            let mut other = fact.clone();
            change(&mut other);
            assert!(!others.contains(&other.digest()), "{other:?}");
            others.push(other.digest());
        }
    }
}

//! What a node says about itself in full: pulled from its agent by whoever needs it. Ten bytes of it go to everybody over gossip, with a
//! digest that tells whether the rest is what one has already.

use crate::ids::{AllocationId, NodeId};
use crate::node::{Hold, NodeState};
use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};

/// Images that are told.
pub const IMAGES_MAX: usize = 16;
/// Allocations that are told.
pub const RUNNING_MAX: usize = 32;
/// Bytes of the name of a topology group.
pub const TOPOLOGY_GROUP_BYTES_MAX: usize = 64;

/// What lasts. About 1 KB.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct NodeFact {
    /// Whose it is.
    pub node: NodeId,
    /// Where it stands, as the quorum last said it and its own checks find it.
    pub state: NodeState,
    /// Why, for people; empty where there is nothing to say.
    pub reason: String,
    /// What keeps new work off it, as the quorum last said.
    pub holds: Vec<Hold>,
    /// Whether it takes work at all.
    pub schedulable: bool,
    /// Cores that work may have.
    pub cores: u32,
    /// Bytes of memory that work may have.
    pub memory_bytes: u64,
    /// Its GPUs, by model.
    pub gpus: BTreeMap<String, Gpus>,
    /// The part of the network that it is in, as its site names it: a dragonfly group, a leaf switch.
    pub topology_group: Option<String>,
    /// What work may ask for of it.
    pub features: Vec<String>,
    /// Of its hardware and software, where it was taken: 64 hexadecimal digits.
    pub fingerprint: Option<String>,
    /// Images in its cache: some, by their SHA-256.
    pub images: Vec<String>,
    /// How many there are in all.
    pub images_all: u32,
}

/// GPUs of one model.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Gpus {
    /// That answer.
    pub healthy: u32,
    /// Of these, that work may have.
    pub allocatable: u32,
}

impl NodeFact {
    /// Tells versions of it apart, within one life of its agent: nobody else reckons it.
    pub fn digest(&self) -> u64 {
        let mut hasher = DefaultHasher::new();
        self.hash(&mut hasher);
        hasher.finish()
    }
}

/// What changes all the time. What cannot be read is absent.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct NodePulse {
    /// What runs there, or is about to: some.
    pub running: Vec<AllocationId>,
    /// How many there are in all.
    pub running_all: u32,
    /// How much of the last ten seconds something waited.
    pub pressure: Pressure,
    /// Its power, in watts.
    pub power_watts: Option<f64>,
}

/// Per cent of the last ten seconds in which something waited (`some avg10` of the kernel's pressure stall information).
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
    fn a_digest_is_another_when_anything_that_lasts_is() {
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
            images_all: 0,
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

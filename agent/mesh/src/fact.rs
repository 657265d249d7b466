//! The wire forms of [`NodeFact`] and [`NodePulse`].

use super::frame::FrameError;
use lattice_model::constraint::{FEATURE_BYTES_MAX, FEATURES_MAX};
use lattice_model::fact::{Gpus, IMAGES_MAX, NodeFact, NodePulse, Pressure, RUNNING_MAX, TOPOLOGY_GROUP_BYTES_MAX};
use lattice_model::{AllocationId, Hold, HoldKind, NodeState, Timestamp};
use rkyv::{Archive, Deserialize, Serialize};

/// Longest accepted reason and name, in bytes.
const REASON_BYTES_MAX: usize = 2048;
const NAME_BYTES_MAX: usize = 128;
/// GPU models accepted from one node.
const MODELS_MAX: usize = 16;

/// Requests a node's fact.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Archive, Serialize, Deserialize)]
pub struct FactOpen {
    /// Digest of the fact that the caller cached since the node's agent started. The same fact is
    /// not sent again.
    pub known: Option<u64>,
}

/// The answer to [`FactOpen`].
#[derive(Clone, Debug, PartialEq, Archive, Serialize, Deserialize)]
pub struct FactAnswer {
    pub digest: u64,
    /// Absent: the caller has it already.
    pub fact: Option<WireFact>,
    pub pulse: WirePulse,
}

/// The wire form of [`NodeFact`], without the node's name: it is the node that answers.
#[derive(Clone, Debug, PartialEq, Eq, Archive, Serialize, Deserialize)]
pub struct WireFact {
    /// The state's name. The kinds of holds are names, too: a later version may have more of them.
    pub state: String,
    pub reason: String,
    pub holds: Vec<WireHold>,
    pub schedulable: bool,
    pub cores: u32,
    pub memory_bytes: u64,
    /// Model, number healthy, number allocatable.
    pub gpus: Vec<(String, u32, u32)>,
    pub topology_group: Option<String>,
    pub features: Vec<String>,
    pub fingerprint: Option<String>,
    pub images: Vec<String>,
    pub images_count: u32,
}

/// The wire form of [`Hold`]; times in milliseconds since 1970.
#[derive(Clone, Debug, PartialEq, Eq, Archive, Serialize, Deserialize)]
pub struct WireHold {
    pub kind: String,
    pub by: String,
    pub reason: String,
    pub since_ms: u64,
    pub until_ms: Option<u64>,
    pub deadline_ms: Option<u64>,
}

/// The wire form of [`NodePulse`].
#[derive(Clone, Debug, PartialEq, Archive, Serialize, Deserialize)]
pub struct WirePulse {
    pub running: Vec<[u8; 16]>,
    pub running_count: u32,
    pub pressure: [Option<f64>; 3],
    pub power_watts: Option<f64>,
}

impl From<&NodeFact> for WireFact {
    fn from(fact: &NodeFact) -> Self {
        Self {
            state: fact.state.to_string(),
            reason: fact.reason.clone(),
            holds: fact.holds.iter().map(WireHold::from).collect(),
            schedulable: fact.schedulable,
            cores: fact.cores,
            memory_bytes: fact.memory_bytes,
            gpus: fact.gpus.iter().map(|(model, gpus)| (model.clone(), gpus.healthy, gpus.allocatable)).collect(),
            topology_group: fact.topology_group.clone(),
            features: fact.features.clone(),
            fingerprint: fact.fingerprint.clone(),
            images: fact.images.clone(),
            images_count: fact.images_count,
        }
    }
}

impl From<&Hold> for WireHold {
    fn from(hold: &Hold) -> Self {
        Self {
            kind: hold.kind.to_string(),
            by: hold.by.clone(),
            reason: hold.reasons(),
            since_ms: hold.since.0,
            until_ms: hold.until.map(|at| at.0),
            deadline_ms: hold.deadline.map(|at| at.0),
        }
    }
}

impl WireFact {
    /// The fact of `node`; an error if a value is unknown or out of bounds.
    pub fn of(self, node: &lattice_model::NodeId) -> Result<NodeFact, FrameError> {
        let plain = |text: &str, most: usize| text.len() <= most && !text.chars().any(char::is_control);
        let bounded = plain(&self.reason, REASON_BYTES_MAX)
            && self.holds.len() <= HoldKind::ALL.len()
            && self.holds.iter().all(|hold| plain(&hold.by, NAME_BYTES_MAX) && plain(&hold.reason, REASON_BYTES_MAX))
            && self.gpus.len() <= MODELS_MAX
            && self.gpus.iter().all(|(model, ..)| plain(model, NAME_BYTES_MAX))
            && self.topology_group.iter().all(|group| plain(group, TOPOLOGY_GROUP_BYTES_MAX))
            && self.features.len() <= FEATURES_MAX
            && self.features.iter().all(|feature| plain(feature, FEATURE_BYTES_MAX))
            && self.images.len() <= IMAGES_MAX
            && self.fingerprint.iter().chain(&self.images).all(|digest| plain(digest, NAME_BYTES_MAX));
        if !bounded {
            return Err(FrameError::Malformed);
        }
        let hold = |hold: WireHold| {
            let known = Hold::new(HoldKind::from_name(&hold.kind)?, &hold.by, &hold.reason, Timestamp(hold.since_ms));
            Some(Hold { until: hold.until_ms.map(Timestamp), deadline: hold.deadline_ms.map(Timestamp), ..known })
        };
        let gpus = self.gpus.into_iter().map(|(model, healthy, allocatable)| (model, Gpus { healthy, allocatable }));
        Ok(NodeFact {
            node: node.clone(),
            state: NodeState::from_name(&self.state).ok_or(FrameError::Malformed)?,
            reason: self.reason,
            holds: self.holds.into_iter().map(hold).collect::<Option<_>>().ok_or(FrameError::Malformed)?,
            schedulable: self.schedulable,
            cores: self.cores,
            memory_bytes: self.memory_bytes,
            gpus: gpus.collect(),
            topology_group: self.topology_group,
            features: self.features,
            fingerprint: self.fingerprint,
            images: self.images,
            images_count: self.images_count,
        })
    }
}

impl From<&NodePulse> for WirePulse {
    fn from(pulse: &NodePulse) -> Self {
        Self {
            running: pulse.running.iter().map(|id| *id.0.as_bytes()).collect(),
            running_count: pulse.running_count,
            pressure: [pulse.pressure.cpu, pulse.pressure.memory, pulse.pressure.io],
            power_watts: pulse.power_watts,
        }
    }
}

impl From<WirePulse> for NodePulse {
    fn from(wire: WirePulse) -> Self {
        let [cpu, memory, io] = wire.pressure.map(|value| value.filter(|value| value.is_finite()));
        Self {
            running: wire.running.into_iter().take(RUNNING_MAX).map(|id| AllocationId(uuid::Uuid::from_bytes(id))).collect(),
            running_count: wire.running_count,
            pressure: Pressure { cpu, memory, io },
            power_watts: wire.power_watts.filter(|watts| watts.is_finite()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::frame;
    use lattice_model::NodeId;

    fn fact() -> NodeFact {
        NodeFact {
            node: "n7".parse().unwrap(),
            state: NodeState::Draining,
            reason: "x".repeat(200),
            holds: HoldKind::ALL
                .map(|kind| Hold {
                    kind,
                    by: "root".into(),
                    reason: "fan".into(),
                    more_reasons: Vec::new(),
                    since: Timestamp(1),
                    until: kind.may_end().then_some(Timestamp(2)),
                    deadline: None,
                })
                .to_vec(),
            schedulable: true,
            cores: 288,
            memory_bytes: 1 << 40,
            gpus: [("NVIDIA GH200 480GB".to_owned(), Gpus { healthy: 4, allocatable: 3 })].into(),
            topology_group: Some("group-12".into()),
            features: vec!["gpu".into(), "gpu_type=NVIDIA GH200 480GB".into(), "cxi".into()],
            fingerprint: Some("a".repeat(64)),
            images: vec!["b".repeat(64); 4],
            images_count: 40,
        }
    }

    #[tokio::test]
    async fn a_fact_and_a_pulse_survive_the_wire_in_less_than_two_kilobytes() {
        let pulse =
            NodePulse { running: vec![AllocationId(uuid::Uuid::nil())], running_count: 3, power_watts: Some(412.5), ..Default::default() };
        let answer = FactAnswer { digest: fact().digest(), fact: Some(WireFact::from(&fact())), pulse: WirePulse::from(&pulse) };
        let mut bytes = Vec::new();
        frame::write(&mut bytes, &answer).await.unwrap();
        assert!(bytes.len() < 2048, "{} bytes", bytes.len());
        let answer: FactAnswer = frame::read(&mut bytes.as_slice()).await.unwrap();
        let node: NodeId = "n7".parse().unwrap();
        assert_eq!((answer.fact.unwrap().of(&node).unwrap(), NodePulse::from(answer.pulse)), (fact(), pulse));
    }

    #[test]
    fn values_that_are_unknown_or_out_of_bounds_are_refused() {
        let changes: [fn(&mut WireFact); 6] = [
            |f| f.state = "Asleep".into(),
            |f| f.holds[0].kind = "wish".into(),
            |f| f.holds.extend(f.holds.clone()),
            |f| f.reason = "x".repeat(5000),
            |f| f.features = vec!["x".into(); 1000],
            |f| f.topology_group = Some("a\u{1b}[2J".into()),
        ];
        for change in changes {
            let mut wire = WireFact::from(&fact());
            change(&mut wire);
            assert!(wire.clone().of(&"n7".parse().unwrap()).is_err(), "{wire:?}");
        }
        let odd = WirePulse {
            running: vec![[0; 16]; 1000],
            running_count: 0,
            pressure: [Some(f64::NAN), None, None],
            power_watts: Some(f64::INFINITY),
        };
        let pulse = NodePulse::from(odd);
        assert_eq!((pulse.running.len(), pulse.pressure.cpu, pulse.power_watts), (RUNNING_MAX, None, None));
    }
}

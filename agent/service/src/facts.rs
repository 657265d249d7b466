//! Nodes' facts for users: one node in full, or all nodes from gossip while the quorum is
//! unreachable.

use super::Api;
use super::gossiping::liveness;
use lattice_api::v1;
use lattice_gossip::{Liveness, Member};
use lattice_model::fact::{NodeFact, NodePulse};
use lattice_model::{Node, NodeId};
use std::collections::BTreeMap;

/// The state of a node that has not published any.
const UNKNOWN: &str = "Unknown";

impl Api {
    pub(super) async fn fact_of(&self, node: &NodeId) -> v1::NodeFactResponse {
        let members = self.membership.members();
        let member = members.iter().find(|member| member.node == *node);
        let report = self.context.machine.facts.of(node, member).await;
        v1::NodeFactResponse {
            fact: report.fact.as_deref().map(fact),
            pulse: report.pulse.as_ref().map(pulse),
            error: report.error.unwrap_or_default(),
            gossip: member.map(|member| self.gossip_member(member)),
        }
    }

    /// Every node known from gossip or from the quorum, with the state that it publishes, or else
    /// the last known one.
    pub(super) fn gossiped_nodes(&self) -> Vec<v1::Node> {
        let known: Vec<Node> = self.cluster.borrow().nodes.values().cloned().collect();
        let mut nodes: BTreeMap<String, v1::Node> = self.shown(&known, &known).into_iter().map(|node| (node.id.clone(), node)).collect();
        let knows_all = self.context.work.directory.knows_all();
        for member in self.membership.members().iter() {
            // A node that was removed has left gossip, which lists it as Down for a while.
            let is_registered = nodes.contains_key(member.node.as_str()) || !knows_all;
            if member.liveness == Liveness::Down && !known.is_empty() && !is_registered {
                continue;
            }
            let unknown = || v1::Node { id: member.node.to_string(), state: UNKNOWN.to_owned(), ..Default::default() };
            apply_gossip(nodes.entry(member.node.to_string()).or_insert_with(unknown), member);
        }
        nodes.into_values().map(|node| v1::Node { from_gossip: true, ..node }).collect()
    }
}

/// The node's own state replaces the last known one; a silent node is marked as such.
fn apply_gossip(node: &mut v1::Node, member: &Member) {
    liveness(member.liveness).clone_into(&mut node.gossip);
    match (member.liveness, member.fact) {
        (Liveness::Alive | Liveness::Suspect, Some(fact)) => {
            let state = fact.state.to_string();
            if node.state != state {
                // The reason belongs to the earlier state.
                node.reason = String::new();
                node.state = state;
            }
            node.schedulable = fact.schedulable;
            if fact.held == node.holds.is_empty() {
                node.holds =
                    if fact.held { vec!["held, as it reports; `lattice node status` asks it for more".to_owned()] } else { Vec::new() };
            }
        }
        (Liveness::Alive | Liveness::Suspect, None) => {}
        (Liveness::Down, _) => node.reason = "gossip does not reach it: its state is the last that was received".to_owned(),
    }
}

fn fact(fact: &NodeFact) -> v1::NodeFact {
    let gpus = fact.gpus.iter();
    let gpus = gpus.map(|(model, gpus)| v1::GpuCount { model: model.clone(), healthy: gpus.healthy, allocatable: gpus.allocatable });
    v1::NodeFact {
        state: fact.state.to_string(),
        reason: fact.reason.clone(),
        holds: fact.holds.iter().map(ToString::to_string).collect(),
        schedulable: fact.schedulable,
        cores: fact.cores,
        memory_bytes: fact.memory_bytes,
        gpus: gpus.collect(),
        topology_group: fact.topology_group.clone().unwrap_or_default(),
        features: fact.features.clone(),
        fingerprint: fact.fingerprint.clone().unwrap_or_default(),
        images: fact.images.clone(),
        images_count: fact.images_count,
    }
}

fn pulse(pulse: &NodePulse) -> v1::NodePulse {
    v1::NodePulse {
        running: pulse.running.iter().map(ToString::to_string).collect(),
        running_count: pulse.running_count,
        pressure_cpu: pulse.pressure.cpu,
        pressure_memory: pulse.pressure.memory,
        pressure_io: pulse.pressure.io,
        power_watts: pulse.power_watts,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lattice_gossip::Fact;
    use lattice_model::NodeState;

    #[test]
    fn a_nodes_own_fact_overrides_older_reports_and_silence_is_shown() {
        let known = || v1::Node { id: "n1".into(), state: "Degraded".into(), reason: "silent for 31 s".into(), ..Default::default() };
        let fact = Some(Fact { state: NodeState::Ready, held: true, schedulable: true, digest: 1 });
        let member = |liveness| Member {
            node: "n1".parse().unwrap(),
            addr: "127.0.0.1:1".parse().unwrap(),
            mesh: "127.0.0.1:2".parse().unwrap(),
            incarnation: 1,
            liveness,
            since_ms: 0,
            accusers: 0,
            fact,
            contradicted_since_ms: None,
        };
        let mut node = known();
        apply_gossip(&mut node, &member(Liveness::Suspect));
        assert_eq!((node.state.as_str(), node.reason.as_str(), node.gossip.as_str(), node.holds.len()), ("Ready", "", "suspect", 1));
        let mut node = known();
        apply_gossip(&mut node, &member(Liveness::Down));
        assert_eq!((node.state.as_str(), node.gossip.as_str()), ("Degraded", "down"));
        assert!(node.reason.contains("the last that was received"), "{node:?}");
    }
}

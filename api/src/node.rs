//! Nodes as shown to users.

use crate::v1;
use lattice_model::conformance::fingerprint;
use lattice_model::{AllocationId, Conformance, DEFAULT_VCLUSTER, LocalDomain, Locality, Node, Resources, Wipe};

/// The node's latest conformance report; `group_nodes`: number of nodes in its conformance group.
fn conformance(conformance: &Conformance, group_nodes: u32) -> v1::Conformance {
    let drift = conformance.drift.as_ref();
    v1::Conformance {
        fingerprint: conformance.fingerprint.clone(),
        group_nodes,
        drifted_since_ms: drift.map_or(0, |drift| drift.since.0),
        drift: conformance.drifted().unwrap_or_default(),
        expected: drift.map_or_else(|| conformance.fingerprint.clone(), |drift| fingerprint(&drift.expected)),
        stale: conformance.stale,
    }
}

fn wipe(wipe: &Wipe) -> String {
    wipe.failed.as_ref().map_or_else(
        || "requested, and not confirmed by the node yet".to_owned(),
        |why| format!("failed: {why}; `lattice node wipe --force` tries it again"),
    )
}

/// One node as a message, with the allocations that own shares of it, the sum of the shares, and
/// its state in the answering agent's gossip (`alive`, `suspect`, `down`, `unknown`).
/// `group_nodes`: number of nodes in its conformance group.
pub fn to_proto(node: &Node, allocations: Vec<AllocationId>, committed: &Resources, gossip: &str, group_nodes: u32) -> v1::Node {
    let holds = node.holds.iter().map(ToString::to_string);
    v1::Node {
        id: node.id.to_string(),
        state: node.state.to_string(),
        reason: node.state_reason.clone(),
        cores: node.size.cores,
        memory_bytes: node.size.memory_bytes,
        gpus: node.size.gpus,
        allocations: allocations.iter().map(ToString::to_string).collect(),
        holds: holds.collect(),
        schedulable: node.schedulable,
        mesh_address: node.addresses.mesh.clone(),
        incarnation: node.incarnation.0,
        state_since_ms: node.state_since.0,
        gossip: gossip.to_owned(),
        from_gossip: false,
        committed: Some(crate::spec::amount(committed)),
        relay_node: node.relay_node.as_ref().map(ToString::to_string).unwrap_or_default(),
        unenforced_limits: node.unenforced_limits.clone(),
        features: node.features.clone(),
        topology_group: node.topology_group.clone().unwrap_or_default(),
        domains: node.locality.domains.iter().map(|d| v1::LocalDomain { cores: d.cores, gpus: d.gpus }).collect(),
        sockets: node.locality.sockets,
        cxl_memory_bytes: node.locality.cxl_memory_bytes,
        gpu_links_percent: node.locality.gpu_links.iter().map(|percent| u32::from(*percent)).collect(),
        conformance: node.conformance.as_ref().map(|report| conformance(report, group_nodes)),
        wipe: node.wipe.as_ref().map(wipe).unwrap_or_default(),
        vcluster: if node.home.is_empty() { DEFAULT_VCLUSTER.to_owned() } else { node.home.clone() },
    }
}

/// The summary of a node's wiring. A percentage that no agent writes counts as 100.
pub fn locality(node: &v1::Node) -> Locality {
    Locality {
        domains: node.domains.iter().map(|d| LocalDomain { cores: d.cores, gpus: d.gpus }).collect(),
        sockets: node.sockets,
        cxl_memory_bytes: node.cxl_memory_bytes,
        gpu_links: node.gpu_links_percent.iter().map(|percent| u8::try_from(*percent).unwrap_or(100).min(100)).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lattice_model::time::Timestamp;
    use lattice_model::{Hold, HoldKind, Incarnation, NodeAddresses, NodeState, Revision};

    #[test]
    fn a_node_is_shown_with_its_values_and_its_holds() {
        let locality = Locality {
            domains: vec![LocalDomain { cores: 1, gpus: 2 }, LocalDomain { cores: 1, gpus: 0 }],
            sockets: 2,
            cxl_memory_bytes: 1 << 40,
            gpu_links: vec![100, 10],
        };
        let node = Node {
            id: "n1".parse().unwrap(),
            size: lattice_model::resources::Resources { cores: 2, memory_bytes: 1 << 30, gpus: 0 },
            addresses: NodeAddresses { mesh: "h1:9401".into(), gossip: "h1:9402".into() },
            schedulable: true,
            boot: "1f0c9a4e-5b7d-4c39-9a54-0f3c2b1d7e88".parse().unwrap(),
            incarnation: Incarnation(4),
            state: NodeState::Degraded,
            state_reason: "silent for 31 s".into(),
            state_since: Timestamp(1000),
            unenforced_limits: vec!["memory".into()],
            features: vec!["nvme_scratch".into()],
            topology_group: Some("row-7".into()),
            locality: locality.clone(),
            holds: vec![
                Hold {
                    kind: HoldKind::Cordon,
                    by: "ada".into(),
                    reason: "fan".into(),
                    more_reasons: Vec::new(),
                    since: Timestamp(0),
                    until: Some(Timestamp(2000)),
                    deadline: None,
                },
                Hold {
                    kind: HoldKind::Drain,
                    by: "bob".into(),
                    reason: "disk".into(),
                    more_reasons: Vec::new(),
                    since: Timestamp(0),
                    until: None,
                    deadline: Some(Timestamp(1000)),
                },
            ],
            leaving: vec![],
            relay_node: None,
            home: "small".into(),
            conformance: None,
            has_wipe_hook: false,
            wipe: None,
            drain_requested_at: None,
            hold_revision: Revision(1),
            report_seq: 0,
            revision: Revision(1),
        };
        let committed = Resources { cores: 1, memory_bytes: 1 << 20, gpus: 0 };
        let shown = to_proto(&node, vec![], &committed, "suspect", 1);
        assert_eq!((super::locality(&shown), shown.memory_bytes), (locality, 1 << 30));
        assert_eq!((shown.unenforced_limits, shown.features), (vec!["memory".to_owned()], vec!["nvme_scratch".to_owned()]));
        assert_eq!((shown.vcluster.as_str(), shown.topology_group.as_str()), ("small", "row-7"));
        assert_eq!(shown.committed, Some(v1::Amount { cores: 1, memory_bytes: 1 << 20, gpus: 0 }));
        let holds = [
            "cordon by ada since 1970-01-01T00:00:00.000Z until 1970-01-01T00:00:02.000Z: fan",
            "drain by bob since 1970-01-01T00:00:00.000Z, work ends at 1970-01-01T00:00:01.000Z: disk",
        ];
        assert_eq!(shown.holds, holds);
        assert_eq!((shown.state.as_str(), shown.reason.as_str(), shown.gossip.as_str()), ("Degraded", "silent for 31 s", "suspect"));
        assert_eq!((shown.cores, shown.memory_bytes, shown.incarnation, shown.state_since_ms), (2, 1 << 30, 4, 1000));
    }
}

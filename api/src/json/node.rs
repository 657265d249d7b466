//! Nodes.

use super::amount::AmountJson;
use super::values::{queue, text, time};
use crate::v1;
use serde::Serialize;
use utoipa::ToSchema;

/// A node.
#[derive(Clone, Debug, PartialEq, Serialize, ToSchema)]
#[schema(as = Node)]
pub struct NodeJson {
    #[serde(flatten)]
    node: WatchedNodeJson,
    /// Null if the answering agent does not know what runs there.
    committed: Option<AmountJson>,
    allocations: Vec<String>,
    /// Its state in the answering agent's gossip: alive, suspect, down, unknown.
    gossip: String,
}

/// A node as a watch has it: what runs there changes without the node, and is not watched.
#[derive(Clone, Debug, PartialEq, Serialize, ToSchema)]
#[schema(as = WatchedNode)]
pub struct WatchedNodeJson {
    id: String,
    state: String,
    reason: Option<String>,
    state_since: Option<String>,
    cores: u32,
    memory_bytes: u64,
    gpus: u32,
    /// What the node cannot limit: cpu, cpuset, memory, pids, io, io-weight, scratch.
    unenforced_limits: Vec<String>,
    features: Vec<String>,
    topology_group: Option<String>,
    /// Its memory domains that have processors; empty if they are not known.
    domains: Vec<LocalDomainJson>,
    /// Its sockets that have processors; 0: not known.
    sockets: u32,
    cxl_memory_bytes: u64,
    /// For 2, 3, … GPUs: the slowest link between the best-connected so many, in percent of the node's fastest.
    gpu_links_percent: Vec<u32>,
    vcluster: String,
    /// Why an operator keeps new work off it.
    holds: Vec<String>,
    schedulable: bool,
    /// The node that carries its session with the quorum, if it reaches no member itself.
    relay_node: Option<String>,
    /// The quorum did not answer: the state comes from gossip.
    from_gossip: bool,
    mesh_address: String,
    incarnation: u64,
    /// Its software and firmware; null if it has sent no report.
    conformance: Option<ConformanceJson>,
    wipe: Option<String>,
}

/// A memory domain of a node.
#[derive(Clone, Debug, PartialEq, Serialize, ToSchema)]
#[schema(as = LocalDomain)]
pub struct LocalDomainJson {
    cores: u32,
    gpus: u32,
}

/// A node's report of its software and firmware.
#[derive(Clone, Debug, PartialEq, Serialize, ToSchema)]
#[schema(as = Conformance)]
pub struct ConformanceJson {
    fingerprint: String,
    group_nodes: u32,
    /// Null: it is as expected.
    drifted_since: Option<String>,
    drift: Option<String>,
    expected: String,
    stale: bool,
}

impl LocalDomainJson {
    /// The memory domains of a node; empty if they are not known.
    pub fn all_of(node: &v1::Node) -> Vec<Self> {
        node.domains.iter().map(|domain| Self { cores: domain.cores, gpus: domain.gpus }).collect()
    }
}

impl From<&v1::Conformance> for ConformanceJson {
    fn from(report: &v1::Conformance) -> Self {
        Self {
            fingerprint: report.fingerprint.clone(),
            group_nodes: report.group_nodes,
            drifted_since: time(report.drifted_since_ms),
            drift: text(&report.drift),
            expected: report.expected.clone(),
            stale: report.stale,
        }
    }
}

impl From<&v1::Node> for NodeJson {
    fn from(n: &v1::Node) -> Self {
        let committed = n.committed.as_ref().map(AmountJson::from);
        Self { node: WatchedNodeJson::from(n), committed, allocations: n.allocations.clone(), gossip: n.gossip.clone() }
    }
}

impl From<&v1::Node> for WatchedNodeJson {
    fn from(n: &v1::Node) -> Self {
        Self {
            id: n.id.clone(),
            state: n.state.clone(),
            reason: text(&n.reason),
            state_since: time(n.state_since_ms),
            cores: n.cores,
            memory_bytes: n.memory_bytes,
            gpus: n.gpus,
            unenforced_limits: n.unenforced_limits.clone(),
            features: n.features.clone(),
            topology_group: text(&n.topology_group),
            domains: LocalDomainJson::all_of(n),
            sockets: n.sockets,
            cxl_memory_bytes: n.cxl_memory_bytes,
            gpu_links_percent: n.gpu_links_percent.clone(),
            vcluster: queue(&n.vcluster).to_owned(),
            holds: n.holds.clone(),
            schedulable: n.schedulable,
            relay_node: text(&n.relay_node),
            from_gossip: n.from_gossip,
            mesh_address: n.mesh_address.clone(),
            incarnation: n.incarnation,
            conformance: n.conformance.as_ref().map(ConformanceJson::from),
            wipe: text(&n.wipe),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_has_its_memory_domains_and_its_queue() {
        let domain = v1::LocalDomain { cores: 32, gpus: 4 };
        let node = v1::Node {
            domains: vec![domain; 2],
            sockets: 2,
            cxl_memory_bytes: 2 << 40,
            gpu_links_percent: vec![100],
            ..Default::default()
        };
        let json = serde_json::to_value(NodeJson::from(&node)).unwrap();
        let domain = serde_json::json!({ "cores": 32, "gpus": 4 });
        assert_eq!((&json["domains"], &json["sockets"]), (&serde_json::json!([domain, domain]), &2.into()));
        assert_eq!((&json["cxl_memory_bytes"], &json["gpu_links_percent"]), (&(2_u64 << 40).into(), &serde_json::json!([100])));
        assert_eq!((&json["vcluster"], &json["conformance"]), (&"default".into(), &serde_json::Value::Null));
        let watched = serde_json::to_value(WatchedNodeJson::from(&node)).unwrap();
        let all = json.as_object().unwrap().keys();
        let not_watched: Vec<&String> = all.filter(|key| watched.get(key.as_str()).is_none()).collect();
        assert_eq!(not_watched, ["allocations", "committed", "gossip"]);
    }
}

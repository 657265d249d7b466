//! The details of one node.

use lattice_api::v1;
use lattice_cli_session::shown::{domains_text, queue, reasons_text, short, time};
use lattice_cli_session::table::block;
use lattice_model::resources::bytes_text;

/// The block of a node.
pub fn node_details(n: &v1::Node) -> String {
    let used = n.committed;
    let of = |used: Option<String>, size: String| format!("{} of {size} belong to work", used.unwrap_or_else(|| "?".to_owned()));
    let since = time(n.state_since_ms).map(|since| format!(" since {since}")).unwrap_or_default();
    let work: Vec<&str> = n.allocations.iter().map(|id| short(id)).collect();
    let drift = n.conformance.as_ref().filter(|report| report.drifted_since_ms != 0).map(|report| report.drift.clone());
    let pairs = [
        ("State", format!("{}{since}", n.state)),
        ("Reason", reasons_text(n)),
        ("Cores", of(used.map(|used| used.cores.to_string()), n.cores.to_string())),
        ("Memory", of(used.map(|used| bytes_text(used.memory_bytes)), bytes_text(n.memory_bytes))),
        ("GPUs", if n.gpus == 0 { String::new() } else { of(used.map(|used| used.gpus.to_string()), n.gpus.to_string()) }),
        ("Work", work.join(" ")),
        ("vCluster", queue(&n.vcluster).to_owned()),
        ("Gossip", n.gossip.clone()),
        ("Topology", n.topology_group.clone()),
        ("Features", n.features.join(" ")),
        ("Not enforced", n.unenforced_limits.join(" ")),
        ("Drift", drift.unwrap_or_default()),
        ("Wipe", n.wipe.clone()),
        ("Mesh", n.mesh_address.clone()),
    ];
    format!("{}{}\n`lattice node status {}` shows more.\n", block(&pairs), domains_text(n), n.id)
}

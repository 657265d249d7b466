//! `lattice node status`: what an agent knows of its own node, with or without a quorum.

use super::nodes;
use crate::args::Nodes;
use crate::failure::Failure;
use crate::output::{Format, print, print_json, print_names};
use crate::session::{Session, answer};
use crate::shown::{filled, short, time};
use crate::table::{Table, block};
use lattice_api::v1;
use lattice_model::NodeTopology;
use std::collections::BTreeSet;

pub async fn run(session: &Session, args: Nodes) -> Result<(), Failure> {
    let client = session.connect().await?;
    let local = answer(client.nodes().local_status(v1::LocalStatusRequest {})).await?;
    if let Some(name) = args.node.filter(|name| *name != local.node) {
        return nodes::show(session, &nodes::find(nodes::list(&client).await?, &name)?);
    }
    match session.format() {
        Format::Table => print(&text(&local)),
        Format::Json => print_json(&json(&local)),
        Format::Name => print_names([local.node.as_str()]),
    }
}

fn text(local: &v1::LocalStatusResponse) -> String {
    let quorum = if local.quorum_connected { "connected" } else { "NOT CONNECTED" };
    let quorum = if local.quorum_detail.is_empty() { quorum.to_owned() } else { format!("{quorum}: {}", local.quorum_detail) };
    let mut text = block(&[
        ("Node", local.node.clone()),
        ("Agent", format!("version {}, incarnation {}", local.version, local.incarnation)),
        ("Started", time(local.started_at_ms).unwrap_or_default()),
        ("Quorum", quorum),
        ("Desired", format!("revision {}", local.desired_revision)),
        ("Reports", format!("{} not yet acknowledged", local.reports_pending)),
    ]);
    for degraded in &local.degraded {
        text.push_str(&block(&[("Degraded", degraded.clone())]));
    }
    for refused in &local.refused {
        text.push_str(&block(&[("Refused", format!("{} {}", refused.count, refused.what))]));
    }
    text.push_str(&topology(local));
    text.push('\n');
    if local.allocations.is_empty() {
        text.push_str("No allocations on this node.\n");
        return text;
    }
    let mut table = Table::new(&["ID", "NAME", "OWNER", "PHASE", "EPOCH", "SHIM", "CPUS", "GPUS", "DETAIL"]);
    for a in &local.allocations {
        let shim = if a.shim_pid == 0 { String::new() } else { a.shim_pid.to_string() };
        table.row(vec![
            short(&a.id).to_owned(),
            a.name.clone(),
            a.owner.clone(),
            a.phase.clone(),
            a.epoch.to_string(),
            shim,
            a.cpus.clone(),
            a.gpus.join(","),
            a.detail.clone(),
        ]);
    }
    text.push_str(&table.text(&["CPUS", "GPUS", "DETAIL"]));
    text
}

/// The node in a few lines. An agent that does not tell, or tells more than this program knows, is shown without.
fn topology(local: &v1::LocalStatusResponse) -> String {
    let Ok(node) = serde_json::from_str::<NodeTopology>(&local.topology) else { return String::new() };
    let packages: BTreeSet<u32> = node.cpu.cores.iter().map(|c| c.package).collect();
    let of = |n: usize, what: &str| format!("{n} {what}{}", if n == 1 { "" } else { "s" });
    let [cores, cpus] = [of(node.cpu.cores.len(), "core"), of(node.cpu.cpus().len(), "processor")];
    let cpus = format!("{}, {cores}, {cpus}", of(packages.len(), "package"));
    let memory = format!("{} GiB in {}", node.memory.total_capacity_bytes >> 30, of(node.memory.domains.len(), "domain"));
    let mut text = block(&[("Processors", cpus), ("Memory", memory)]);
    for gpu in &node.gpu.gpus {
        let near = gpu.numa_node.map(|n| format!(", NUMA node {n}")).unwrap_or_default();
        let nic = node.gpu.nic_affinity.get(&gpu.index).map(|n| format!(", near {n}")).unwrap_or_default();
        let part = if gpu.partitioned { ", an instance" } else { "" };
        let shown = format!("{} {} {} ({} GiB{part}{near}{nic}) {}", gpu.index, gpu.vendor, gpu.model, gpu.memory_bytes >> 30, gpu.id);
        text.push_str(&block(&[("GPU", shown)]));
    }
    text
}

fn json(local: &v1::LocalStatusResponse) -> serde_json::Value {
    let allocations = local.allocations.iter().map(|a| {
        serde_json::json!({
            "id": a.id, "name": a.name, "owner": a.owner, "phase": a.phase, "epoch": a.epoch,
            "shim_pid": (a.shim_pid != 0).then_some(a.shim_pid), "detail": filled(&a.detail),
            "cpus": filled(&a.cpus), "gpus": a.gpus,
        })
    });
    let refused = local.refused.iter().map(|r| (r.what.clone(), r.count.into()));
    serde_json::json!({
        "node": local.node,
        "version": local.version,
        "incarnation": local.incarnation,
        "started_at": time(local.started_at_ms),
        "quorum_connected": local.quorum_connected,
        "quorum_detail": filled(&local.quorum_detail),
        "desired_revision": local.desired_revision,
        "reports_pending": local.reports_pending,
        "degraded": local.degraded,
        "refused": refused.collect::<serde_json::Map<_, _>>(),
        "topology": serde_json::from_str::<serde_json::Value>(&local.topology).ok(),
        "allocations": allocations.collect::<Vec<_>>(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_known_without_a_quorum_is_said() {
        let local = v1::LocalStatusResponse {
            node: "n1".into(),
            version: "0.1.0".into(),
            started_at_ms: 1_772_704_800_000,
            incarnation: 3,
            quorum_connected: false,
            quorum_detail: "lost 12 s ago; whether new work is queued cannot be known".into(),
            desired_revision: 7,
            reports_pending: 2,
            allocations: vec![v1::LocalAllocation {
                id: "1f0c9a4e-5b7d-4c39-9a54-0f3c2b1d7e88".into(),
                epoch: 4,
                phase: "running".into(),
                owner: "ada".into(),
                name: "sim".into(),
                shim_pid: 77,
                detail: String::new(),
                cpus: "0-3".into(),
                gpus: vec!["GPU-1".into()],
            }],
            degraded: vec!["no memory limits: give the agent a delegated cgroup".into()],
            refused: vec![v1::Refused { what: "gossip datagrams".into(), count: 4 }],
            topology: String::new(),
        };
        let want = "\
Node:     n1
Agent:    version 0.1.0, incarnation 3
Started:  2026-03-05T10:00:00.000Z
Quorum:   NOT CONNECTED: lost 12 s ago; whether new work is queued cannot be known
Desired:  revision 7
Reports:  2 not yet acknowledged
Degraded:  no memory limits: give the agent a delegated cgroup
Refused:  4 gossip datagrams

ID        NAME  OWNER  PHASE    EPOCH  SHIM  CPUS  GPUS
1f0c9a4e  sim   ada    running  4      77    0-3   GPU-1
";
        assert_eq!(text(&local), want);
    }
}

//! `lattice node status`: what an agent knows about its own node, with or without a quorum.

use super::{fact, fingerprint, waits};
use crate::command::nodes;
use lattice_api::client::Client;
use lattice_api::json::{ConformanceJson, LocalDomainJson};
use lattice_api::v1;
use lattice_cli_session::failure::Failure;
use lattice_cli_session::node_list;
use lattice_cli_session::output::{Format, TableSize, print, print_names};
use lattice_cli_session::session::{Session, answer};
use lattice_cli_session::shown::{NodeJson, disclosed, domains_text, filled, nodes_table, short, time, with_exit};
use lattice_cli_session::table::{Fit, Table, block};
use lattice_cli_syntax::args::node::NodeSelection;
use lattice_model::{HoldKind, NodeTopology};
use std::collections::BTreeSet;

pub async fn run(session: &Session, args: NodeSelection) -> Result<(), Failure> {
    let names = args.node.as_deref().map(nodes::expand_list).transpose()?;
    let client = session.connect().await?;
    let local = answer(client.nodes().local_status(v1::LocalStatusRequest {})).await?;
    match names {
        Some(names) if names != [local.node.clone()] => show_others(session, &client, &names, args.stale).await,
        Some(_) | None => show_own(session, &client, &local).await,
    }
}

/// Shows the agent's own node. The node's state is known only to the quorum: without one it is left out.
async fn show_own(session: &Session, client: &Client, local: &v1::LocalStatusResponse) -> Result<(), Failure> {
    let quorum_view = if local.quorum_connected {
        match answer(client.nodes().waits(v1::NodeWaitsRequest { node: local.node.clone() })).await {
            Ok(quorum_view) => Some(quorum_view),
            // There is a session but no answer, or the node is not registered yet: show what the agent knows.
            Err(failure) => {
                session.note(&format!("the state of the node is not known: {}", failure.what()));
                None
            }
        }
    } else {
        None
    };
    let response = fact::fetch(client, &local.node).await?;
    match session.format() {
        Format::Table => {
            let domains = quorum_view.as_ref().and_then(|quorum_view| quorum_view.node.as_ref()).map(domains_text);
            print(
                &(text(local, session.table_size())
                    + &quorum_view.as_ref().map(|view| state_text(view, session.table_size())).unwrap_or_default()
                    + &domains.unwrap_or_default()),
            )?;
            print(&fact::text(&response, true))
        }
        Format::Data(notation) => {
            let mut shown = json(local);
            shown["fact"] = fact::json(&response);
            if let Some(node) = quorum_view.as_ref().and_then(|quorum_view| quorum_view.node.as_ref()) {
                shown["state"] = node.state.clone().into();
                shown["state_reason"] = filled(&node.reason).into();
                shown["holds"] = node.holds.clone().into();
                shown["conformance"] = serde_json::json!(node.conformance.as_ref().map(ConformanceJson::from));
                shown["wipe"] = filled(&node.wipe).into();
                shown["domains"] = serde_json::json!(LocalDomainJson::all_of(node));
                shown["sockets"] = node.sockets.into();
                shown["cxl_memory_bytes"] = node.cxl_memory_bytes.into();
                shown["gpu_links_percent"] = node.gpu_links_percent.clone().into();
            }
            shown["waits"] = quorum_view.as_ref().map(waits::json).into();
            notation.print(&shown)
        }
        Format::Name => print_names([local.node.as_str()]),
    }
}

/// Shows nodes as the quorum knows them, or else as gossip does. A table also shows the work that drains wait for. For
/// a single node, the facts that its agent reports are shown as well.
async fn show_others(session: &Session, client: &Client, names: &[String], stale: bool) -> Result<(), Failure> {
    let all = nodes::list_or_gossip(session, client, stale).await?;
    let [name] = names else { return show_nodes(session, client, &nodes::select(all, names)?).await };
    // Includes gossip's data, in case the quorum does not know the node.
    let response = fact::fetch(client, name).await?;
    let node = match node_list::find(all, name) {
        Ok(node) => node,
        Err(_) if response.gossip.is_some() => fact::unregistered_node(name, &response),
        Err(not_found) => return Err(not_found),
    };
    match session.format() {
        Format::Data(notation) => {
            let mut shown = serde_json::json!(NodeJson::from(&node));
            shown["fact"] = fact::json(&response);
            notation.print(&shown)
        }
        Format::Table => {
            let domains = domains_text(&node);
            show_nodes(session, client, &[node]).await?;
            print(&(domains + &fact::text(&response, false)))
        }
        Format::Name => show_nodes(session, client, &[node]).await,
    }
}

async fn show_nodes(session: &Session, client: &Client, found: &[v1::Node]) -> Result<(), Failure> {
    match session.format() {
        Format::Table => {
            print(&nodes_table(found, session.table_size()))?;
            for node in found.iter().filter(|node| !node.from_gossip) {
                if nodes::is_under(node, HoldKind::Drain) {
                    let left = answer(client.nodes().waits(v1::NodeWaitsRequest { node: node.id.clone() })).await?;
                    print(&state_text(&left, session.table_size()))?;
                } else if found.len() == 1 {
                    print(&fingerprint::conformance_text(node))?;
                }
            }
            Ok(())
        }
        Format::Data(notation) => notation.print(&found.iter().map(NodeJson::from).collect::<Vec<_>>()),
        Format::Name => print_names(found.iter().map(|node| node.id.as_str())),
    }
}

/// A node's state, and what its drain waits for.
fn state_text(quorum_view: &v1::NodeWaitsResponse, size: TableSize) -> String {
    let Some(node) = &quorum_view.node else { return String::new() };
    let reason = if node.reason.is_empty() { String::new() } else { format!(", {}", node.reason) };
    let mut text = format!("\nNode {} is {}{reason}, since {}.\n", node.id, node.state, time(node.state_since_ms).unwrap_or_default());
    for hold in &node.holds {
        text.push_str(&format!("It is under {}\n", with_exit(hold)));
    }
    text.push_str(&fingerprint::conformance_text(node));
    if nodes::is_under(node, HoldKind::Drain) && !quorum_view.waits.is_empty() {
        text.push_str("The drain waits for:\n");
        text.push_str(&waits::text(quorum_view, size));
    }
    text
}

/// How the list of a node's work is fitted to a narrow terminal.
const WORK_FIT: Fit<'_> = Fit {
    left_out: &["SHIM", "EPOCH"],
    shortened: &[("NAME", 8), ("OWNER", 8)],
    wrapped: &[("CPUS", 8), ("GPUS", 8), ("DETAIL", 12)],
    left_out_last: &[],
};

fn text(local: &v1::LocalStatusResponse, size: TableSize) -> String {
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
    text.push_str(&checks(local));
    text.push_str(&local.conformance.as_ref().map(fingerprint::local_text).unwrap_or_default());
    for refused in &local.refused {
        text.push_str(&block(&[("Refused", format!("{} {}", refused.count, refused.kind))]));
    }
    text.push_str(&topology(local));
    text.push_str(&gpus(local));
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
    text.push_str(&table.on_screen(&["CPUS", "GPUS", "DETAIL"], &WORK_FIT, size));
    text
}

/// A GPU's vendor and model; the model from some drivers includes the vendor already.
fn gpu_name(vendor: &str, model: &str) -> String {
    if model.starts_with(vendor) { model.to_owned() } else { format!("{vendor} {model}") }
}

/// The node's topology in a few lines; empty if the answer has none, or one that this program cannot decode.
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
        let model = gpu_name(&gpu.vendor.to_string(), &gpu.model);
        let shown = format!("{} {model} ({} GiB{part}{near}{nic}) {}", gpu.index, gpu.memory_bytes >> 30, gpu.id);
        text.push_str(&block(&[("GPU", shown)]));
    }
    text
}

/// The health of the GPUs: how many are healthy and allocatable, and a line for each that has a problem or is not
/// offered yet.
fn gpus(local: &v1::LocalStatusResponse) -> String {
    if local.gpus.is_empty() {
        return String::new();
    }
    let count = |is: fn(&v1::GpuStatus) -> bool| local.gpus.iter().filter(|gpu| is(gpu)).count();
    let counts = format!(
        "{} healthy, {} allocatable, {} in all (policy version {})",
        count(|gpu| gpu.healthy),
        count(|gpu| gpu.allocatable),
        local.gpus.len(),
        local.gpu_policy
    );
    let mut text = block(&[("GPUs", counts)]);
    for gpu in local.gpus.iter().filter(|gpu| !gpu.detail.is_empty()) {
        text.push_str(&format!("  {}: {}\n", gpu.bus, gpu.detail));
    }
    text
}

/// The node's checks: how many have which result, and a line for each whose result is not `ok` or that keeps work
/// off.
fn checks(local: &v1::LocalStatusResponse) -> String {
    if local.checks.is_empty() {
        return String::new();
    }
    let (ok, others): (Vec<_>, Vec<_>) = local.checks.iter().partition(|c| c.finding == "ok" && !c.blocks_new_work);
    let counts = ["failure", "drain", "critical", "warning", "unsupported"]
        .map(|finding| (local.checks.iter().filter(|c| c.finding == finding).count(), finding));
    let others_text: String =
        counts.into_iter().filter(|(count, _)| *count > 0).map(|(count, finding)| format!(", {count} {finding}")).collect();
    let mut text = block(&[("Checks", format!("{} ok{others_text}", ok.len()))]);
    for check in others {
        let since = time(check.since_ms).unwrap_or_default();
        let detail = if check.detail.is_empty() { String::new() } else { format!(": {}", check.detail) };
        let effect = match (check.finding.as_str(), check.blocks_new_work) {
            ("failure", _) => " (the hardware failed: the node is Down until `lattice node repaired`)",
            ("drain", _) => " (no new work here; the node asks to be drained)",
            (_, true) => " (no new work here until two results in a row are not critical)",
            (_, false) => "",
        };
        text.push_str(&format!("  {}: {} since {since}{detail}{effect}\n", check.name, check.finding));
    }
    text
}

fn json(local: &v1::LocalStatusResponse) -> serde_json::Value {
    let allocations = local.allocations.iter().map(|a| {
        serde_json::json!({
            "id": a.id, "name": disclosed(&a.name, &a.owner), "owner": filled(&a.owner), "phase": a.phase, "epoch": a.epoch,
            "shim_pid": (a.shim_pid != 0).then_some(a.shim_pid), "detail": filled(&a.detail),
            "cpus": filled(&a.cpus), "gpus": a.gpus,
        })
    });
    let refused = local.refused.iter().map(|r| (r.kind.clone(), r.count.into()));
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
        "checks": local.checks.iter().map(|c| serde_json::json!({
            "name": c.name, "finding": c.finding, "detail": filled(&c.detail), "blocks_new_work": c.blocks_new_work, "since": time(c.since_ms),
        })).collect::<Vec<_>>(),
        "gpus": local.gpus.iter().map(|g| serde_json::json!({
            "bus": g.bus, "present": g.present, "healthy": g.healthy, "allocatable": g.allocatable, "detail": filled(&g.detail),
        })).collect::<Vec<_>>(),
        "gpu_policy": filled(&local.gpu_policy),
        "local_conformance": local.conformance.as_ref().map(fingerprint::local_json),
        "refused": refused.collect::<serde_json::Map<_, _>>(),
        "topology": serde_json::from_str::<serde_json::Value>(&local.topology).ok(),
        "allocations": allocations.collect::<Vec<_>>(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gpus_vendor_is_named_once() {
        assert_eq!(gpu_name("NVIDIA", "NVIDIA H200"), "NVIDIA H200");
        assert_eq!(gpu_name("AMD", "Instinct MI300X"), "AMD Instinct MI300X");
    }

    #[test]
    fn a_lost_quorum_and_its_consequences_are_shown() {
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
            refused: vec![v1::Refused { kind: "gossip datagrams".into(), count: 4 }],
            topology: String::new(),
            gpus: vec![
                v1::GpuStatus { bus: "0000:3b:00.0".into(), present: true, healthy: true, allocatable: true, detail: String::new() },
                v1::GpuStatus {
                    bus: "0000:5e:00.0".into(),
                    detail: "lost: the bus does not show it any more".into(),
                    ..Default::default()
                },
            ],
            gpu_policy: "1".into(),
            conformance: None,
            checks: vec![
                v1::HealthCheck { name: "disk".into(), finding: "ok".into(), ..Default::default() },
                v1::HealthCheck {
                    name: "fabric".into(),
                    finding: "critical".into(),
                    detail: "link 3 is down".into(),
                    blocks_new_work: true,
                    since_ms: 1_772_704_800_000,
                },
            ],
        };
        let want = "\
Node:     n1
Agent:    version 0.1.0, incarnation 3
Started:  2026-03-05T10:00:00.000Z
Quorum:   NOT CONNECTED: lost 12 s ago; whether new work is queued cannot be known
Desired:  revision 7
Reports:  2 not yet acknowledged
Degraded:  no memory limits: give the agent a delegated cgroup
Checks:  1 ok, 1 critical
  fabric: critical since 2026-03-05T10:00:00.000Z: link 3 is down (no new work here until two results in a row are not critical)
Refused:  4 gossip datagrams
GPUs:  1 healthy, 1 allocatable, 2 in all (policy version 1)
  0000:5e:00.0: lost: the bus does not show it any more

ID        NAME  OWNER  PHASE    EPOCH  SHIM  CPUS  GPUS
1f0c9a4e  sim   ada    running  4      77    0-3   GPU-1
";
        assert_eq!(text(&local, TableSize::default()), want);
    }
}

//! `sbatch --test-only`: whether a job would be accepted, and when it could begin.
//!
//! The agent and the quorum check the submission. What is free now is from the list of nodes. Work that waits before it may
//! get these nodes first: as in Slurm, the time is an estimate.

use crate::command::submit;
use crate::failure::Failure;
use crate::message::write_message_line;
use crate::session::{Session, answer, now};
use lattice_api::client::Client;
use lattice_api::v1;
use lattice_cli_syntax::compat::Compat;
use lattice_model::count::counted;
use lattice_model::time::Timestamp;
use lattice_model::{NodeId, hostlist};

pub async fn run(
    session: &Session,
    client: &Client,
    spec: v1::AllocationSpec,
    wait_for_nodes: bool,
    compat: &Compat,
) -> Result<u8, Failure> {
    let checked = Box::pin(submit::check(session, client, spec, wait_for_nodes)).await?.checked.unwrap_or_default();
    let nodes = answer(client.nodes().list(v1::ListNodesRequest::default())).await?.nodes;
    write_message_line(text(&checked, &nodes, now(), compat));
    Ok(0)
}

/// The line of Slurm. A job that is not submitted has no number: 0.
fn text(spec: &v1::AllocationSpec, nodes: &[v1::Node], now: Timestamp, compat: &Compat) -> String {
    let partition = compat.partition_of(&spec.vcluster);
    let asked = spec.resources.clone().unwrap_or_default();
    let begin = spec.timing.map_or(0, |timing| timing.begin_ms).max(now.0);
    match free_nodes(&asked, &spec.vcluster, nodes) {
        Some(free) => {
            let processors: u32 = free.iter().map(|node| if asked.cpus > 0 { asked.cpus } else { node.cores }).sum();
            let names: Vec<NodeId> = free.iter().filter_map(|node| node.id.parse().ok()).collect();
            let list = hostlist::fold(names.iter());
            let at = Timestamp(begin).to_string();
            let seconds = at.split('.').next().unwrap_or_default();
            format!("Job 0 to start at {seconds}Z using {processors} processors on nodes {list} in partition {partition}")
        }
        None => {
            format!("Job 0 would be accepted; {} in partition {partition} that it needs are not free now", counted(asked.nodes, "node"))
        }
    }
}

/// As many nodes as are asked for, of those that are free now; `None`: too few, or that cannot be seen in the list.
fn free_nodes<'a>(asked: &v1::ResourceRequest, vcluster: &str, nodes: &'a [v1::Node]) -> Option<Vec<&'a v1::Node>> {
    let is_free = |node: &&v1::Node| {
        let used = node.committed.unwrap_or_default();
        let is_shared = asked.cpus > 0 || asked.memory_bytes > 0 || asked.memory_gb > 0 || asked.gpus > 0;
        let memory = if asked.memory_bytes > 0 { asked.memory_bytes } else { asked.memory_gb << 30 };
        let has_amounts =
            used.cores + asked.cpus <= node.cores && used.memory_bytes + memory <= node.memory_bytes && used.gpus + asked.gpus <= node.gpus;
        let is_named = asked.nodelist.is_empty() || asked.nodelist.contains(&node.id);
        let has_features = asked.constraints.iter().all(|(name, value)| match (name.as_str(), value.parse::<u64>()) {
            ("core_count", Ok(least)) => u64::from(node.cores) >= least,
            ("gpu_count", Ok(least)) => u64::from(node.gpus) >= least,
            ("memory_gb", Ok(least)) => node.memory_bytes >> 30 >= least,
            (name, _) if value.is_empty() => node.features.iter().any(|feature| feature == name),
            (name, _) => node.features.contains(&format!("{name}={value}")),
        });
        let may_be = node.schedulable && node.vcluster == vcluster && is_named && !asked.exclude.contains(&node.id);
        may_be && has_features && if is_shared { has_amounts } else { node.allocations.is_empty() }
    };
    let wanted = usize::try_from(asked.nodes).ok()?;
    let free: Vec<&v1::Node> = nodes.iter().filter(is_free).take(wanted).collect();
    (free.len() == wanted).then_some(free)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_job_starts_now_on_what_is_free() {
        let node = |id: &str, allocations: &[&str]| v1::Node {
            id: id.into(),
            cores: 8,
            memory_bytes: 16 << 30,
            schedulable: true,
            vcluster: "batch".into(),
            allocations: allocations.iter().map(|id| (*id).to_owned()).collect(),
            ..Default::default()
        };
        let nodes = [node("n1", &["1f0c"]), node("n2", &[]), node("n3", &[])];
        let asks = |nodes, cpus| v1::AllocationSpec {
            vcluster: "batch".into(),
            resources: Some(v1::ResourceRequest { nodes, cpus, ..Default::default() }),
            ..Default::default()
        };
        let compat = Compat::parse("partition_mapping: {long: batch}\n").unwrap();
        let at = Timestamp(1_772_704_812_034);
        let line = |spec| text(&spec, &nodes, at, &compat);
        assert_eq!(line(asks(2, 0)), "Job 0 to start at 2026-03-05T10:00:12Z using 16 processors on nodes n[2-3] in partition long");
        assert_eq!(line(asks(3, 2)), "Job 0 to start at 2026-03-05T10:00:12Z using 6 processors on nodes n[1-3] in partition long");
        assert_eq!(line(asks(3, 0)), "Job 0 would be accepted; 3 nodes in partition long that it needs are not free now");
    }
}

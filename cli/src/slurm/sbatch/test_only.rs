//! `sbatch --test-only`: whether a job would be accepted, and when it could begin.
//!
//! The agent and the quorum check the submission. What is free now is from the list of nodes. Work that waits before it may
//! get these nodes first: as in Slurm, the time is an estimate.

use crate::command::submit;
use lattice_api::client::Client;
use lattice_api::v1;
use lattice_cli_session::failure::Failure;
use lattice_cli_session::message::write_message_line;
use lattice_cli_session::session::{Session, answer, now};
use lattice_cli_syntax::compat::Compat;
use lattice_model::constraint::UNIFIED_MEMORY;
use lattice_model::count::counted;
use lattice_model::feature::has;
use lattice_model::feature_choice::{Together, has_all};
use lattice_model::feature_expression;
use lattice_model::time::Timestamp;
use lattice_model::{NodeId, hostlist};
use std::collections::{BTreeMap, BTreeSet};

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
            let names: BTreeSet<NodeId> = free.iter().filter_map(|node| node.id.parse().ok()).collect();
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
    let expression = feature_expression::parse(&asked.features).ok()?;
    let is_free = |node: &&v1::Node| {
        let used = node.committed.unwrap_or_default();
        let is_shared = asked.cpus > 0 || asked.memory_bytes > 0 || asked.memory_gb > 0 || asked.gpus > 0;
        let memory = if asked.memory_bytes > 0 { asked.memory_bytes } else { asked.memory_gb << 30 };
        let has_amounts =
            used.cores + asked.cpus <= node.cores && used.memory_bytes + memory <= node.memory_bytes && used.gpus + asked.gpus <= node.gpus;
        let is_named = asked.nodelist.is_empty() || asked.nodelist.contains(&node.id);
        let has_features = asked.constraints.iter().all(|(name, value)| meets(node, name, value))
            && has_all(&node.features, &expression.features)
            && expression.choice.as_ref().is_none_or(|choice| choice.lacked_by(&node.features).is_none());
        let may_be = node.schedulable && node.vcluster == vcluster && is_named && !asked.exclude.contains(&node.id);
        may_be && has_features && if is_shared { has_amounts } else { node.allocations.is_empty() }
    };
    let wanted = usize::try_from(asked.nodes).ok()?;
    let free: Vec<&v1::Node> = nodes.iter().filter(is_free).collect();
    serving(free, expression.choice.as_ref().and_then(|choice| choice.together.as_ref()), wanted)
}

/// Whether the node meets a constraint, as far as the list shows that.
fn meets(node: &v1::Node, name: &str, value: &str) -> bool {
    let has_least = |amount: u64| value.trim_start_matches(">=").parse().is_ok_and(|least: u64| amount >= least);
    match name {
        "core_count" => has_least(node.cores.into()),
        "gpu_count" => has_least(node.gpus.into()),
        "memory_gb" => has_least(node.memory_bytes >> 30),
        "features" => value.split(',').map(str::trim).filter(|feature| !feature.is_empty()).all(|feature| has(&node.features, feature)),
        "require_unified_memory" => value == "false" || has(&node.features, UNIFIED_MEMORY),
        "allow_cxl_memory" | "memory_policy" | "prefer_local_memory" | "prefer_same_numa" | "require_conformance" => true,
        feature if value.is_empty() => has(&node.features, feature),
        key => has(&node.features, &format!("{key}={value}")),
    }
}

/// As many of these nodes as are asked for, which together have the features; `None`: there are too few.
fn serving<'a>(free: Vec<&'a v1::Node>, together: Option<&Together>, wanted: usize) -> Option<Vec<&'a v1::Node>> {
    let enough = |mut nodes: Vec<&'a v1::Node>| {
        nodes.truncate(wanted);
        (nodes.len() == wanted).then_some(nodes)
    };
    match together {
        None => enough(free),
        Some(Together::Same(sets)) => {
            sets.iter().find_map(|set| enough(free.iter().copied().filter(|node| has_all(&node.features, set)).collect()))
        }
        Some(numbers @ Together::Counted(_)) => {
            let mut counts = BTreeMap::new();
            free.iter().for_each(|node| *counts.entry(numbers.met_by(&node.features)).or_insert(0) += 1);
            let mut missing = numbers.needed(&counts);
            if missing.values().sum::<usize>() < numbers.counted_nodes() as usize {
                return None;
            }
            let is_needed = |node: &&v1::Node| match missing.get_mut(&numbers.met_by(&node.features)) {
                Some(count) if *count > 0 => {
                    *count -= 1;
                    true
                }
                Some(_) | None => false,
            };
            let (needed, others): (Vec<&v1::Node>, Vec<&v1::Node>) = free.into_iter().partition(is_needed);
            enough([needed, others].concat())
        }
    }
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

    #[test]
    fn free_nodes_have_the_features_that_are_asked_for() {
        let node = |id: &str, features: &[&str]| v1::Node {
            id: id.into(),
            cores: 8,
            memory_bytes: 16 << 30,
            schedulable: true,
            features: features.iter().map(|feature| (*feature).to_owned()).collect(),
            ..Default::default()
        };
        let nodes = [node("n1", &["a", "gpu_type=NVIDIA GH200 480GB"]), node("n2", &["b"]), node("n3", &["a", "b"]), node("n4", &["b"])];
        let free = |nodes_asked: u32, features: &str, constraint: Option<(&str, &str)>| {
            let constraints = constraint.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
            let asked = v1::ResourceRequest { nodes: nodes_asked, features: features.into(), constraints, ..Default::default() };
            free_nodes(&asked, "", &nodes).map(|free| free.iter().map(|node| node.id.as_str()).collect::<Vec<_>>().join(" "))
        };
        let found = |names: &str| Some(names.to_owned());
        assert_eq!(free(2, "b", None), found("n2 n3"));
        assert_eq!(free(3, "[a|b]", None), found("n2 n3 n4"));
        assert_eq!(free(4, "[a|b]", None), None);
        assert_eq!(free(3, "a*2", None), found("n1 n3 n2"));
        assert_eq!(free(3, "a*3", None), None);
        assert_eq!(free(1, "", Some(("gpu_type", "GH200"))), found("n1"));
        assert_eq!((free(1, "", Some(("core_count", "8"))), free(1, "", Some(("core_count", "9")))), (found("n1"), None));
        assert_eq!(free(1, "", Some(("memory_gb", "17"))), None);
        assert_eq!(free(1, "", Some(("prefer_same_numa", "true"))), found("n1"));
    }
}

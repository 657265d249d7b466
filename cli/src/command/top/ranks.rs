//! `lattice top --per-rank`: each rank, and the busiest and the least busy rank of each launch.

use crate::output::TableSize;
use crate::table::{Fit, Table};
use lattice_api::v1;
use lattice_model::resources::bytes_text;
use serde_json::{Value, json};
use std::collections::BTreeMap;

/// A rank and its node.
type NodeRank<'a> = (&'a str, &'a v1::RankUsage);

/// Sorted by launch and rank.
fn sorted(nodes: &[v1::NodeUsage]) -> Vec<NodeRank<'_>> {
    let mut all: Vec<NodeRank<'_>> = nodes.iter().flat_map(|node| node.ranks.iter().map(|rank| (node.node.as_str(), rank))).collect();
    all.sort_by_key(|(node, rank)| (rank.launch, rank.rank, *node));
    all
}

/// All ranks of one launch.
struct Launch<'a> {
    number: u32,
    ranks: u32,
    /// Of the ranks with a processor time: the one with the most, the one with the least, and the median.
    busiest: Option<(NodeRank<'a>, f64)>,
    least: Option<(NodeRank<'a>, f64)>,
    median: Option<f64>,
    states: BTreeMap<&'a str, u32>,
}

fn launches(nodes: &[v1::NodeUsage]) -> Vec<Launch<'_>> {
    let mut of: BTreeMap<u32, Vec<NodeRank<'_>>> = BTreeMap::new();
    for rank in sorted(nodes) {
        of.entry(rank.1.launch).or_default().push(rank);
    }
    of.into_iter().map(|(number, all)| launch(number, &all)).collect()
}

fn launch<'a>(number: u32, all: &[NodeRank<'a>]) -> Launch<'a> {
    let mut timed: Vec<_> = all.iter().filter_map(|rank| Some((*rank, rank.1.cpu_cores?))).collect();
    timed.sort_by(|(_, one), (_, other)| one.total_cmp(other));
    let mut states = BTreeMap::new();
    for (_, rank) in all {
        *states.entry(rank.state.as_str()).or_insert(0) += 1;
    }
    Launch {
        number,
        ranks: u32::try_from(all.len()).unwrap_or(u32::MAX),
        busiest: timed.last().copied(),
        least: timed.first().copied(),
        median: timed.get(timed.len().saturating_sub(1) / 2).map(|(_, cores)| *cores),
        states,
    }
}

fn cores(value: f64) -> String {
    format!("{value:.2} cores")
}

/// How the table is made narrower.
const FIT: Fit<'_> = Fit {
    left_out: &["PROCESSES", "THREADS", "LAUNCH"],
    shortened: &[("NAME", 8), ("NODE", 8), ("STATE", 9)],
    wrapped: &[],
    left_out_last: &[],
};

pub fn text(nodes: &[v1::NodeUsage], size: TableSize) -> String {
    let mut table = Table::new(&["LAUNCH", "RANK", "NODE", "PID", "NAME", "CPU", "MEMORY", "PROCESSES", "THREADS", "STATE"]);
    let all = sorted(nodes);
    for (node, rank) in &all {
        table.row(vec![
            rank.launch.to_string(),
            rank.rank.to_string(),
            (*node).to_owned(),
            rank.pid.to_string(),
            rank.name.clone(),
            rank.cpu_cores.map(cores).unwrap_or_default(),
            bytes_text(rank.memory_bytes),
            rank.processes.to_string(),
            rank.threads.to_string(),
            rank.state.clone(),
        ]);
    }
    if all.is_empty() {
        return String::new();
    }
    let mut text = table.on_screen(&[], &FIT, size) + "\n";
    for Launch { number, ranks, busiest, least, median, states } in launches(nodes) {
        let states: Vec<String> = states.iter().map(|(state, count)| format!("{count} {state}")).collect();
        text += &format!("launch {number}: {ranks} {}, {}", if ranks == 1 { "rank" } else { "ranks" }, states.join(", "));
        if let (Some(((node, most), cpu)), Some(((idler, fewest), little)), Some(median)) = (busiest, least, median) {
            text += &format!("; busiest rank {} on {node}, {}", most.rank, cores(cpu));
            text += &format!("; least busy rank {} on {idler}, {}; median {}", fewest.rank, cores(little), cores(median));
        }
        text.push('\n');
    }
    text
}

/// Notes on what the table does not show.
pub fn notes(nodes: &[v1::NodeUsage]) -> Vec<String> {
    let mut notes = Vec::new();
    for node in nodes {
        if !node.ranks_error.is_empty() {
            notes.push(format!("{} does not report its ranks: {}", node.node, node.ranks_error));
        }
        if node.ranks_omitted > 0 {
            notes.push(format!("{} has {} more ranks or processes, which are not shown", node.node, node.ranks_omitted));
        }
        if node.ranks_unknown > 0 {
            notes.push(format!("{} processes on {} belong to an unknown rank", node.ranks_unknown, node.node));
        }
    }
    if notes.is_empty() && nodes.iter().all(|node| node.ranks.is_empty()) {
        notes.push("no rank of a launch runs".to_owned());
    }
    notes
}

pub fn json(nodes: &[v1::NodeUsage]) -> Value {
    let over = |of: &str| nodes.iter().find(|node| node.node == of).map(|node| node.ranks_window_ms);
    let one = |(node, rank): NodeRank<'_>| {
        let v1::RankUsage { launch, rank, pid, name, processes, cpu_cores, memory_bytes, threads, state } = rank;
        json!({
            "launch": launch, "rank": rank, "node": node, "pid": pid, "name": name, "processes": processes, "cpu_cores": cpu_cores,
            "window_ms": over(node), "memory_bytes": memory_bytes, "threads": threads, "state": state,
        })
    };
    sorted(nodes).into_iter().map(one).collect()
}

pub fn launches_json(nodes: &[v1::NodeUsage]) -> Value {
    let rank_json =
        |of: Option<(NodeRank<'_>, f64)>| of.map(|((node, rank), cores)| json!({"rank": rank.rank, "node": node, "cpu_cores": cores}));
    let one = |Launch { number, ranks, busiest, least, median, states }: Launch<'_>| {
        json!({
            "launch": number, "ranks": ranks, "busiest": rank_json(busiest), "least_busy": rank_json(least), "median_cpu_cores": median,
            "states": states,
        })
    };
    launches(nodes).into_iter().map(one).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rank(rank: u32, cpu_cores: Option<f64>, state: &str) -> v1::RankUsage {
        let (name, state) = ("a.out".to_owned(), state.to_owned());
        let pid = i32::try_from(100 + rank).unwrap();
        v1::RankUsage { launch: 1, rank, pid, name, processes: 1, cpu_cores, memory_bytes: 1 << 20, threads: 2, state }
    }

    #[test]
    fn ranks_are_sorted_over_all_nodes_and_the_busiest_and_the_least_busy_are_named() {
        let node =
            |name: &str, ranks: Vec<v1::RankUsage>| v1::NodeUsage { node: name.into(), ranks, ranks_window_ms: 1002, ..Default::default() };
        let mut nodes = vec![
            node("n2", vec![rank(1, Some(0.02), "sleeping"), rank(3, None, "sleeping")]),
            node("n1", vec![rank(0, Some(0.01), "uninterruptible"), rank(2, Some(0.997), "running")]),
        ];
        let want = "\
LAUNCH  RANK  NODE  PID  NAME   CPU         MEMORY  PROCESSES  THREADS  STATE
1       0     n1    100  a.out  0.01 cores  1 MiB   1          2        uninterruptible
1       1     n2    101  a.out  0.02 cores  1 MiB   1          2        sleeping
1       2     n1    102  a.out  1.00 cores  1 MiB   1          2        running
1       3     n2    103  a.out  —           1 MiB   1          2        sleeping

launch 1: 4 ranks, 1 running, 2 sleeping, 1 uninterruptible; busiest rank 2 on n1, 1.00 cores; least busy rank 0 on n1, 0.01 cores; median 0.02 cores
";
        assert_eq!(text(&nodes, TableSize::default()), want);
        assert!(notes(&nodes).is_empty());
        let json = (json(&nodes), launches_json(&nodes));
        assert_eq!((&json.0[1]["node"], &json.0[1]["window_ms"], &json.0[3]["cpu_cores"]), (&"n2".into(), &1002.into(), &Value::Null));
        assert_eq!((&json.1[0]["busiest"]["rank"], &json.1[0]["states"]["sleeping"]), (&2.into(), &2.into()));
        nodes[0].ranks_error = "it does not answer".into();
        nodes[1].ranks_unknown = 3;
        let expected = ["n2 does not report its ranks: it does not answer", "3 processes on n1 belong to an unknown rank"];
        assert_eq!(notes(&nodes), expected);
        assert_eq!((text(&[], TableSize::default()), notes(&[])), (String::new(), vec!["no rank of a launch runs".to_owned()]));
    }
}

//! `lattice top --per-rank`: each rank, and the busiest and the least busy rank of each launch.

use lattice_api::measurements::{LaunchUsage, launches, sorted_ranks};
use lattice_api::v1;
use lattice_cli_session::output::TableSize;
use lattice_cli_session::table::{Fit, Table};
use lattice_model::resources::bytes_text;

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
    let all = sorted_ranks(nodes);
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
    for LaunchUsage { number, ranks, busiest, least, median, states } in launches(nodes) {
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
        nodes[0].ranks_error = "it does not answer".into();
        nodes[1].ranks_unknown = 3;
        let expected = ["n2 does not report its ranks: it does not answer", "3 processes on n1 belong to an unknown rank"];
        assert_eq!(notes(&nodes), expected);
        assert_eq!((text(&[], TableSize::default()), notes(&[])), (String::new(), vec!["no rank of a launch runs".to_owned()]));
    }
}

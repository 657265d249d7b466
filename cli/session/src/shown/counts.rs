//! How many nodes an allocation asks for or has, and how many tasks.

use lattice_api::v1;

/// A number of nodes: `4`, or a range such as `2-8`. `most`: 0 if it is no range.
pub fn range(least: u32, most: u32) -> String {
    if most > least { format!("{least}-{most}") } else { least.to_string() }
}

/// The number of nodes that it asks for; for a scaled service, the number of nodes that its replicas have.
pub fn nodes_wanted(a: &v1::Allocation) -> String {
    match &a.scaling_state {
        Some(state) => state.running.to_string(),
        None => range(a.nodes_requested, a.nodes_requested_max),
    }
}

/// The number of its nodes, or of those that it asks for.
pub fn node_count(a: &v1::Allocation) -> String {
    if a.nodes.is_empty() { nodes_wanted(a) } else { a.nodes.len().to_string() }
}

/// [`node_count`] as a number; the least number if it asks for a range.
pub fn node_number(a: &v1::Allocation) -> u64 {
    match (&a.scaling_state, u64::try_from(a.nodes.len()).unwrap_or(u64::MAX)) {
        (Some(state), 0) => state.running.into(),
        (None, 0) => a.nodes_requested.into(),
        (_, nodes) => nodes,
    }
}

/// The number of its tasks.
pub fn tasks_of(a: &v1::Allocation) -> String {
    let nodes = match (a.nodes.len(), a.nodes_requested_max) {
        (0, 0) => Some(u64::from(a.nodes_requested)),
        (0, _) => None,
        (nodes, _) => u64::try_from(nodes).ok(),
    };
    tasks(a.tasks_per_node, a.ranks, nodes)
}

/// `ranks`: the number that was requested; 0: `each` on each node. `nodes`: the number of nodes, if it is known.
pub fn tasks(each: u32, ranks: u32, nodes: Option<u64>) -> String {
    match (ranks, nodes) {
        (0, Some(nodes)) => format!("{each} on each node, {} in all", nodes * u64::from(each)),
        (0, None) => format!("{each} on each node"),
        (ranks, _) => format!("{ranks} in all, at most {each} on a node"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tasks_are_counted_on_the_nodes_that_it_has() {
        let waits = v1::Allocation { nodes_requested: 2, nodes_requested_max: 8, tasks_per_node: 4, ..Default::default() };
        assert_eq!((node_count(&waits), node_number(&waits), tasks_of(&waits)), ("2-8".to_owned(), 2, "4 on each node".to_owned()));
        let runs = v1::Allocation { nodes: ["n1", "n2", "n3"].map(str::to_owned).into(), ..waits.clone() };
        assert_eq!((node_count(&runs), node_number(&runs), tasks_of(&runs)), ("3".to_owned(), 3, "4 on each node, 12 in all".to_owned()));
        let counted = v1::Allocation { ranks: 7, ..runs };
        assert_eq!(tasks_of(&counted), "7 in all, at most 4 on a node");
        assert_eq!(tasks_of(&v1::Allocation { nodes_requested_max: 0, ..waits }), "4 on each node, 8 in all");
    }
}

//! How many allocations are in each state.

use super::counts::node_number;
use crate::output::TableSize;
use crate::table::{Fit, Table};
use lattice_api::allocation::{STATES, state_from_name};
use lattice_api::v1;
use lattice_model::AllocationState;
use serde::Serialize;

/// The allocations in one state.
#[derive(Debug, PartialEq, Eq, Serialize)]
pub struct StateCount {
    pub state: String,
    pub allocations: u64,
    /// The nodes that they have or wait for; `None`: they have ended.
    pub nodes: Option<u64>,
}

/// One for each state that some allocation is in, in the order of an allocation's life.
pub fn count_by_state(allocations: &[v1::Allocation]) -> Vec<StateCount> {
    let count = |state: AllocationState| {
        let is_in = |a: &&v1::Allocation| state_from_name(&a.state).ok() == Some(state);
        let (number, nodes) = allocations.iter().filter(is_in).fold((0, 0), |(number, nodes), a| (number + 1, nodes + node_number(a)));
        (number > 0).then(|| StateCount { state: state.to_string(), allocations: number, nodes: (!state.is_terminal()).then_some(nodes) })
    };
    STATES.into_iter().filter_map(count).collect()
}

/// A line for each state.
pub fn counts_table(counts: &[StateCount], size: TableSize) -> String {
    let mut table = Table::new(&["STATE", "ALLOCATIONS", "NODES"]);
    for count in counts {
        let nodes = count.nodes.map_or_else(String::new, |nodes| nodes.to_string());
        table.row(vec![count.state.clone(), count.allocations.to_string(), nodes]);
    }
    table.on_screen(&[], &Fit::default(), size)
}

#[cfg(test)]
mod tests {
    use super::*;
    use lattice_api::test_builders::{pending, running};

    #[test]
    fn each_state_has_a_line_with_its_numbers() {
        let ended = v1::Allocation { state: "Failed".into(), ..running() };
        let counts = count_by_state(&[running(), pending(), ended, pending()]);
        let want = "\
STATE    ALLOCATIONS  NODES
Pending  2            8
Running  1            3
Failed   1            —
";
        assert_eq!(counts_table(&counts, TableSize::default()), want);
        let json = serde_json::json!([
            { "state": "Pending", "allocations": 2, "nodes": 8 },
            { "state": "Running", "allocations": 1, "nodes": 3 },
            { "state": "Failed", "allocations": 1, "nodes": null },
        ]);
        assert_eq!(serde_json::json!(counts), json);
        assert!(count_by_state(&[]).is_empty());
    }
}

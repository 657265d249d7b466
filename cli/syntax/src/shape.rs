//! Completes the numbers of nodes, of ranks on each node and of all ranks from those that were given.

use lattice_model::count::{counted, is_or_are};
use thiserror::Error;

/// The number of nodes and of ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// The number of nodes.
    pub nodes: u32,
    /// The most ranks on a node.
    pub tasks_per_node: u32,
    /// The number of all ranks.
    pub ranks: u32,
}

/// The given numbers contradict each other. The text suggests numbers that fit.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum ShapeError {
    #[error(
        "{} × {} per node {} {}, not the {ranks} of -n: leave one of the three out",
        counted(*nodes, "node"),
        counted(*tasks_per_node, "task"),
        is_or_are(*most),
        counted(*most, "rank")
    )]
    TooManyRanks { ranks: u32, nodes: u32, tasks_per_node: u32, most: u64 },
    /// Only `used` nodes would have ranks.
    #[error(
        "with {}, {} of {} would have none: use -N {used}",
        counted(*ranks, "rank"),
        nodes - used,
        counted(*nodes, "node")
    )]
    IdleNodes { ranks: u32, nodes: u32, used: u32 },
}

/// Completes the given numbers of a job. `plane`: how many consecutive ranks each node gets.
pub fn complete_shape(
    ranks: Option<u32>,
    nodes: Option<u32>,
    tasks_per_node: Option<u32>,
    plane: Option<u32>,
) -> Result<Shape, ShapeError> {
    let Some(ranks) = ranks else {
        let (nodes, tasks_per_node) = (nodes.unwrap_or(1), tasks_per_node.unwrap_or(1));
        return Ok(Shape { nodes, tasks_per_node, ranks: nodes.saturating_mul(tasks_per_node) });
    };
    let plane = plane.unwrap_or(1).max(1);
    let dealt = |nodes: u32| ranks.div_ceil(nodes.saturating_mul(plane)).saturating_mul(plane).min(ranks);
    let (nodes, tasks_per_node) = match (nodes, tasks_per_node) {
        (None, None) => (1, ranks),
        (Some(nodes), None) => (nodes, dealt(nodes)),
        (None, Some(tasks_per_node)) => (ranks.div_ceil(tasks_per_node), tasks_per_node),
        (Some(nodes), Some(tasks_per_node)) => (nodes, tasks_per_node),
    };
    let most = u64::from(nodes) * u64::from(tasks_per_node);
    if u64::from(ranks) > most {
        return Err(ShapeError::TooManyRanks { ranks, nodes, tasks_per_node, most });
    }
    if ranks.div_ceil(plane) < nodes {
        return Err(ShapeError::IdleNodes { ranks, nodes, used: ranks.div_ceil(plane) });
    }
    Ok(Shape { nodes, tasks_per_node, ranks })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_numbers_give_the_third() {
        let of = |ranks, nodes, tasks| complete_shape(ranks, nodes, tasks, None).map(|s| (s.nodes, s.tasks_per_node, s.ranks));
        assert_eq!(of(None, None, None), Ok((1, 1, 1)));
        assert_eq!(of(Some(4), None, None), Ok((1, 4, 4)));
        assert_eq!(of(Some(6), Some(3), None), Ok((3, 2, 6)));
        assert_eq!(of(Some(6), None, Some(2)), Ok((3, 2, 6)));
        assert_eq!(of(None, Some(3), Some(2)), Ok((3, 2, 6)));
        assert_eq!(of(Some(6), Some(3), Some(2)), Ok((3, 2, 6)));
        assert_eq!(of(Some(7), Some(3), None), Ok((3, 3, 7)));
        assert_eq!(of(Some(5), None, Some(2)), Ok((3, 2, 5)));
        assert_eq!(of(Some(5), Some(3), Some(2)), Ok((3, 2, 5)));
        assert_eq!(complete_shape(Some(6), Some(2), None, Some(4)).map(|s| s.tasks_per_node), Ok(4));
        assert_eq!(complete_shape(Some(9), Some(2), None, Some(4)).map(|s| s.tasks_per_node), Ok(8));
    }

    #[test]
    fn numbers_that_do_not_fit_are_refused_with_numbers_that_do() {
        let refused = |ranks, nodes, tasks, plane| complete_shape(Some(ranks), nodes, tasks, plane).unwrap_err().to_string();
        assert!(refused(2, Some(3), None, None).ends_with("with 2 ranks, 1 of 3 nodes would have none: use -N 2"));
        assert!(refused(7, Some(3), Some(2), None).contains("are 6 ranks, not the 7"));
        assert!(refused(4, Some(2), None, Some(4)).ends_with("use -N 1"));
    }
}

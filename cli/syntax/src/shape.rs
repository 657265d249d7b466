//! The number of nodes, and of ranks on each, from whichever of the three numbers were given.

use lattice_model::count::{counted, is_or_are};
use thiserror::Error;

/// Nodes and the ranks on them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Nodes.
    pub nodes: u32,
    /// Ranks on each of them, at most.
    pub tasks_per_node: u32,
    /// Ranks in all.
    pub ranks: u32,
}

/// Numbers that contradict each other, with numbers that would fit.
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
    /// `used` nodes would have ranks.
    #[error(
        "with {}, {} of {} would have none: -N {used} would do",
        counted(*ranks, "rank"),
        nodes - used,
        counted(*nodes, "node")
    )]
    IdleNodes { ranks: u32, nodes: u32, used: u32 },
}

/// The shape of an own job. `plane`: how many consecutive ranks each node gets.
pub fn shape(ranks: Option<u32>, nodes: Option<u32>, tasks_per_node: Option<u32>, plane: Option<u32>) -> Result<Shape, ShapeError> {
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
        let of = |ranks, nodes, tasks| shape(ranks, nodes, tasks, None).map(|s| (s.nodes, s.tasks_per_node, s.ranks));
        assert_eq!(of(None, None, None), Ok((1, 1, 1)));
        assert_eq!(of(Some(4), None, None), Ok((1, 4, 4)));
        assert_eq!(of(Some(6), Some(3), None), Ok((3, 2, 6)));
        assert_eq!(of(Some(6), None, Some(2)), Ok((3, 2, 6)));
        assert_eq!(of(None, Some(3), Some(2)), Ok((3, 2, 6)));
        assert_eq!(of(Some(6), Some(3), Some(2)), Ok((3, 2, 6)));
        assert_eq!(of(Some(7), Some(3), None), Ok((3, 3, 7)));
        assert_eq!(of(Some(5), None, Some(2)), Ok((3, 2, 5)));
        assert_eq!(of(Some(5), Some(3), Some(2)), Ok((3, 2, 5)));
        assert_eq!(shape(Some(6), Some(2), None, Some(4)).map(|s| s.tasks_per_node), Ok(4));
        assert_eq!(shape(Some(9), Some(2), None, Some(4)).map(|s| s.tasks_per_node), Ok(8));
    }

    #[test]
    fn what_does_not_fit_is_refused_with_what_would() {
        let refused = |ranks, nodes, tasks, plane| shape(Some(ranks), nodes, tasks, plane).unwrap_err().to_string();
        assert!(refused(2, Some(3), None, None).ends_with("with 2 ranks, 1 of 3 nodes would have none: -N 2 would do"));
        assert!(refused(7, Some(3), Some(2), None).contains("are 6 ranks, not the 7"));
        assert!(refused(4, Some(2), None, Some(4)).ends_with("-N 1 would do"));
    }
}

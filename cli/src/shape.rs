//! How many nodes, and how many ranks on each, from whichever of the three numbers were given.

/// Whole nodes and the ranks on each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Nodes.
    pub nodes: u32,
    /// Ranks on each of them.
    pub tasks_per_node: u32,
}

/// The shape of a job of its own: every node carries the same number of ranks.
///
/// # Errors
/// What does not fit together, and which numbers would.
pub fn shape(ranks: Option<u32>, nodes: Option<u32>, tasks_per_node: Option<u32>) -> Result<Shape, String> {
    let Some(ranks) = ranks else { return Ok(Shape { nodes: nodes.unwrap_or(1), tasks_per_node: tasks_per_node.unwrap_or(1) }) };
    let evenly = |by: u32, what: &str| {
        if ranks.is_multiple_of(by) {
            return Ok(ranks / by);
        }
        let (below, above) = (u64::from(ranks / by * by), u64::from(ranks / by + 1) * u64::from(by));
        let near = if below == 0 { format!("-n {above}") } else { format!("-n {below} or -n {above}") };
        Err(format!("{ranks} ranks do not divide evenly by {by} {what}, and every node carries the same number: {near} would"))
    };
    match (nodes, tasks_per_node) {
        (None, None) => Ok(Shape { nodes: 1, tasks_per_node: ranks }),
        (Some(nodes), None) => Ok(Shape { nodes, tasks_per_node: evenly(nodes, "nodes")? }),
        (None, Some(tasks_per_node)) => Ok(Shape { nodes: evenly(tasks_per_node, "ranks a node")?, tasks_per_node }),
        (Some(nodes), Some(tasks_per_node)) => {
            let product = u64::from(nodes) * u64::from(tasks_per_node);
            if product == u64::from(ranks) {
                return Ok(Shape { nodes, tasks_per_node });
            }
            Err(format!(
                "{nodes} nodes × {tasks_per_node} tasks per node are {product} ranks, not the {ranks} of -n: leave one of the three out"
            ))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_numbers_give_the_third() {
        let of = |ranks, nodes, tasks| shape(ranks, nodes, tasks).map(|s| (s.nodes, s.tasks_per_node));
        assert_eq!(of(None, None, None), Ok((1, 1)));
        assert_eq!(of(Some(4), None, None), Ok((1, 4)));
        assert_eq!(of(Some(6), Some(3), None), Ok((3, 2)));
        assert_eq!(of(Some(6), None, Some(2)), Ok((3, 2)));
        assert_eq!(of(None, Some(3), Some(2)), Ok((3, 2)));
        assert_eq!(of(Some(6), Some(3), Some(2)), Ok((3, 2)));
    }

    #[test]
    fn what_does_not_fit_is_refused_with_what_would() {
        assert!(shape(Some(7), Some(3), None).unwrap_err().ends_with("-n 6 or -n 9 would"));
        assert!(shape(Some(2), Some(3), None).unwrap_err().ends_with("-n 3 would"));
        assert!(shape(Some(7), None, Some(2)).unwrap_err().contains("2 ranks a node"));
        assert!(shape(Some(7), Some(3), Some(2)).unwrap_err().contains("are 6 ranks, not the 7"));
    }
}

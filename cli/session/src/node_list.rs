//! Search in a list of nodes.

use crate::failure::{Exit, Failure};
use lattice_api::v1;
use lattice_model::config::nearest;

/// The node with this name. If there is none, the failure suggests a similar name, or `lattice nodes`.
pub fn find(mut nodes: Vec<v1::Node>, name: &str) -> Result<v1::Node, Failure> {
    if let Some(at) = nodes.iter().position(|node| node.id == name) {
        return Ok(nodes.swap_remove(at));
    }
    let failure = Failure::new(Exit::NotFound, format!("there is no node {name:?}"));
    Err(match nearest(name, nodes.iter().map(|node| node.id.as_str())) {
        Some(meant) => failure.hint(format!("did you mean {meant}?")),
        None => failure.hint("`lattice nodes` lists them"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unknown_node_is_refused_with_a_suggestion() {
        let node = |id: &str| v1::Node { id: id.into(), ..Default::default() };
        assert_eq!(find(vec![node("n1"), node("n2")], "n2").unwrap().id, "n2");
        let failure = find(vec![node("login"), node("n2")], "lgoin").unwrap_err();
        assert_eq!((failure.exit(), failure.text().as_str()), (3, "error: there is no node \"lgoin\"\nhint: did you mean login?\n"));
    }
}

//! Applies one operation to each of several nodes: prints a line for each, and names the nodes for which it failed.

use lattice_cli_session::failure::{Exit, Failure};
use lattice_cli_session::output::{Format, print, print_names};
use lattice_cli_session::session::Session;
use lattice_model::{NodeId, hostlist};
use std::collections::BTreeSet;

/// The nodes in these lists, each once.
///
/// # Errors
/// One of them is not a valid list.
pub fn expand_lists(lists: &[String]) -> Result<BTreeSet<NodeId>, Failure> {
    let mut all = BTreeSet::new();
    for list in lists {
        all.append(&mut hostlist::expand(list).map_err(|error| Failure::usage(error.to_string()))?);
    }
    Ok(all)
}

/// Adds the node's name if nobody answered; a refusal already names the node.
pub fn name_if_unavailable(node: &str, failure: Failure) -> Failure {
    if failure.exit() == Exit::Unavailable as u8 { failure.about(&format!("node {node}")) } else { failure }
}

/// The result of the operation.
pub struct Done {
    /// The nodes for which it was done.
    pub nodes: Vec<NodeId>,
    /// 0, or 4 if any node was refused, or the code of the first other failure.
    pub exit: u8,
}

/// Applies `act` to each node and continues after a failure. Without an agent or a quorum it stops, and the other nodes
/// are not tried.
pub async fn apply_to_each(
    session: &Session,
    lists: &[String],
    act: impl AsyncFn(String) -> Result<(), Failure>,
    success_text: impl Fn(&NodeId) -> String,
) -> Result<Done, Failure> {
    let nodes = expand_lists(lists)?;
    let several = nodes.len() > 1;
    let (mut done, mut not) = (Vec::new(), Vec::new());
    let mut exit = 0;
    let mut all = nodes.into_iter();
    for node in all.by_ref() {
        match act(node.to_string()).await {
            Ok(()) => {
                if session.format() == Format::Table {
                    print(&format!("{}\n", success_text(&node)))?;
                }
                done.push(node);
            }
            Err(failure) => {
                let code = failure.exit();
                let failure = if several { failure.about(&format!("node {node}")) } else { name_if_unavailable(node.as_str(), failure) };
                failure.report();
                exit = if exit == 0 || code == Exit::Refused as u8 { code } else { exit };
                not.push(node);
                if code == Exit::Unavailable as u8 {
                    break;
                }
            }
        }
    }
    not.extend(all);
    match session.format() {
        Format::Table => {}
        Format::Data(notation) => notation.print(&done)?,
        Format::Name => print_names(done.iter().map(NodeId::as_str))?,
    }
    if several && !not.is_empty() {
        session.note(&format!("{} of {} nodes are unchanged: {}", not.len(), not.len() + done.len(), hostlist::fold(&not)));
    }
    Ok(Done { nodes: done, exit })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_are_merged_and_an_invalid_one_is_a_usage_error() {
        let names = |lists: &[&str]| expand_lists(&lists.iter().map(|l| (*l).to_owned()).collect::<Vec<_>>());
        let all: Vec<String> = names(&["n[1-3]", "n2,login"]).unwrap().iter().map(ToString::to_string).collect();
        assert_eq!(all, ["login", "n1", "n2", "n3"]);
        assert_eq!(names(&["n[1-"]).unwrap_err().exit(), 2);
    }
}

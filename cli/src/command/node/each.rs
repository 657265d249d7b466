//! One thing done to each of several nodes: a line for each, and those that were refused are named.

use crate::failure::{Exit, Failure};
use crate::output::{Format, print, print_names};
use crate::session::Session;
use lattice_model::{NodeId, hostlist};
use std::collections::BTreeSet;

/// The nodes that some lists name, each once.
///
/// # Errors
/// One of them is no list.
pub fn named(lists: &[String]) -> Result<BTreeSet<NodeId>, Failure> {
    let mut all = BTreeSet::new();
    for list in lists {
        all.append(&mut hostlist::expand(list).map_err(|error| Failure::usage(error.to_string()))?);
    }
    Ok(all)
}

/// Where nobody answers, for which node nothing was done; a refusal names it itself.
pub fn unanswered(node: &str, failure: Failure) -> Failure {
    if failure.exit() == Exit::Unavailable as u8 { failure.about(&format!("node {node}")) } else { failure }
}

/// What came of it.
pub struct Done {
    /// Where it was done.
    pub nodes: Vec<NodeId>,
    /// 0, 4 where any was refused, or what else went wrong first.
    pub exit: u8,
}

/// Does it for each node and goes on after a refusal. Where nobody answers, the others are not tried.
pub async fn each(
    session: &Session,
    lists: &[String],
    act: impl AsyncFn(String) -> Result<(), Failure>,
    said: impl Fn(&NodeId) -> String,
) -> Result<Done, Failure> {
    let nodes = named(lists)?;
    let several = nodes.len() > 1;
    let (mut done, mut not) = (Vec::new(), Vec::new());
    let mut exit = 0;
    let mut all = nodes.into_iter();
    for node in all.by_ref() {
        match act(node.to_string()).await {
            Ok(()) => {
                if session.format() == Format::Table {
                    print(&format!("{}\n", said(&node)))?;
                }
                done.push(node);
            }
            Err(failure) => {
                let code = failure.exit();
                let failure = if several { failure.about(&format!("node {node}")) } else { unanswered(node.as_str(), failure) };
                failure.tell();
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
        session.note(&format!("not done for {} of {}: {}", not.len(), not.len() + done.len(), hostlist::fold(&not)));
    }
    Ok(Done { nodes: done, exit })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_are_put_together_and_what_is_none_is_wrong_usage() {
        let names = |lists: &[&str]| named(&lists.iter().map(|l| (*l).to_owned()).collect::<Vec<_>>());
        let all: Vec<String> = names(&["n[1-3]", "n2,login"]).unwrap().iter().map(ToString::to_string).collect();
        assert_eq!(all, ["login", "n1", "n2", "n3"]);
        assert_eq!(names(&["n[1-"]).unwrap_err().exit(), 2);
    }
}

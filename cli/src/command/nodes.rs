//! `lattice nodes`.

use crate::args::ListNodes;
use crate::failure::{Exit, Failure};
use crate::listing;
use crate::output::{Format, print, print_json, print_names};
use crate::session::{Session, answer};
use crate::shown::{NodeJson, nodes_table};
use crate::watch::{self, Watched};
use lattice_api::client::Client;
use lattice_api::v1;
use lattice_api::v1::watch_request::What;
use lattice_model::config::nearest;

pub async fn run(session: &Session, args: ListNodes) -> Result<(), Failure> {
    let ListNodes { nodes: args, watch, vcluster } = args;
    if watch {
        let watched = Watched::Nodes { only: args.node };
        return watch::run(session, What::Nodes(v1::WatchedNodes {}), watched).await;
    }
    let client = session.connect().await?;
    let nodes = answer(client.nodes().list(v1::ListNodesRequest { stale: args.stale })).await?;
    listing::tell_age(session, nodes.age_ms);
    let mut nodes = nodes.nodes;
    nodes.retain(|n| vcluster.as_ref().is_none_or(|name| n.vcluster == *name));
    if let Some(name) = args.node {
        return show(session, &find(nodes, &name)?);
    }
    match session.format() {
        Format::Table => print(&nodes_table(&nodes)),
        Format::Json => print_json(&nodes.iter().map(NodeJson::from).collect::<Vec<_>>()),
        Format::Name => print_names(nodes.iter().map(|n| n.id.as_str())),
    }
}

/// Every node as the quorum has it.
pub async fn list(client: &Client) -> Result<Vec<v1::Node>, Failure> {
    Ok(answer(client.nodes().list(v1::ListNodesRequest { stale: false })).await?.nodes)
}

/// The node of this name.
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

/// One node.
pub fn show(session: &Session, node: &v1::Node) -> Result<(), Failure> {
    match session.format() {
        Format::Table => print(&nodes_table(std::slice::from_ref(node))),
        Format::Json => print_json(&NodeJson::from(node)),
        Format::Name => print_names([node.id.as_str()]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unknown_node_is_told_with_what_was_meant() {
        let node = |id: &str| v1::Node { id: id.into(), ..Default::default() };
        assert_eq!(find(vec![node("n1"), node("n2")], "n2").unwrap().id, "n2");
        let failure = find(vec![node("login"), node("n2")], "lgoin").unwrap_err();
        assert_eq!((failure.exit(), failure.text().as_str()), (3, "error: there is no node \"lgoin\"\nhint: did you mean login?\n"));
    }
}

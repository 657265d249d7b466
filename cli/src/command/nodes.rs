//! `lattice nodes`.

use lattice_api::client::Client;
use lattice_api::v1;
use lattice_api::v1::watch_request::What;
use lattice_cli_session::failure::Failure;
use lattice_cli_session::listing;
use lattice_cli_session::node_list::find;
use lattice_cli_session::output::{Format, print, print_names};
use lattice_cli_session::session::{Session, answer};
use lattice_cli_session::shown::{NodeJson, nodes_table};
use lattice_cli_session::watch::{self, Watched};
use lattice_cli_syntax::args::node::ListNodes;
use lattice_model::{HoldKind, hostlist};
use std::collections::BTreeSet;

pub async fn run(session: &Session, args: ListNodes) -> Result<(), Failure> {
    let ListNodes { nodes: args, state, hold, watch, vcluster } = args;
    let named = args.node.as_deref().map(expand_list).transpose()?;
    if watch {
        if named.as_ref().is_some_and(|names| names.len() > 1) {
            return Err(
                Failure::usage("--watch is for all nodes, or for one").hint("`lattice nodes --watch` without a list shows all of them")
            );
        }
        let watched = Watched::Nodes { only: named.and_then(|mut names| names.pop()) };
        return watch::run(session, What::Nodes(v1::WatchedNodes {}), watched).await;
    }
    let client = session.connect().await?;
    let mut nodes = list_or_gossip(session, &client, args.stale).await?;
    nodes.retain(|n| vcluster.as_ref().is_none_or(|name| n.vcluster == *name));
    let alone = named.as_ref().is_some_and(|names| names.len() == 1) && state.is_empty() && hold.is_none();
    if let Some(names) = &named {
        nodes = select(nodes, names)?;
    }
    nodes.retain(|n| state.is_empty() || state.iter().any(|state| state.to_string() == n.state));
    nodes.retain(|n| hold.is_none_or(|kind| is_under(n, kind)));
    if let Some(node) = nodes.first().filter(|_| alone) {
        return show(session, node);
    }
    match session.format() {
        Format::Table => print(&nodes_table(&nodes, session.table_size())),
        Format::Data(notation) => notation.print(&nodes.iter().map(NodeJson::from).collect::<Vec<_>>()),
        Format::Name => print_names(nodes.iter().map(|n| n.id.as_str())),
    }
}

/// The nodes with these names; an error if one is unknown.
pub fn select(nodes: Vec<v1::Node>, names: &[String]) -> Result<Vec<v1::Node>, Failure> {
    let wanted: BTreeSet<&String> = names.iter().collect();
    let known: BTreeSet<&String> = nodes.iter().map(|node| &node.id).collect();
    match wanted.iter().find(|name| !known.contains(**name)) {
        Some(unknown) => find(nodes.clone(), unknown).map(|node| vec![node]),
        None => Ok(nodes.iter().filter(|node| wanted.contains(&node.id)).cloned().collect()),
    }
}

/// The names in a list, each once.
pub fn expand_list(list: &str) -> Result<Vec<String>, Failure> {
    let ids = hostlist::expand(list).map_err(|error| Failure::usage(error.to_string()))?;
    Ok(ids.iter().map(ToString::to_string).collect())
}

/// Whether the node has a hold of this kind.
pub fn is_under(node: &v1::Node, kind: HoldKind) -> bool {
    let kind = kind.to_string();
    node.holds.iter().any(|hold| hold.split(' ').next() == Some(&kind))
}

/// Every node from the quorum.
pub async fn list(client: &Client) -> Result<Vec<v1::Node>, Failure> {
    Ok(answer(client.nodes().list(v1::ListNodesRequest::default())).await?.nodes)
}

/// Every node from the quorum; if it does not answer, from gossip, with a note.
pub async fn list_or_gossip(session: &Session, client: &Client, stale: bool) -> Result<Vec<v1::Node>, Failure> {
    // Bare names cannot show that they come from gossip.
    let or_gossip = session.format() != Format::Name;
    let listed = answer(client.nodes().list(v1::ListNodesRequest { stale, or_gossip })).await?;
    listing::report_age(session, listed.age_ms);
    if !listed.quorum_error.is_empty() {
        let why = &listed.quorum_error;
        session.note(&format!(
            "the quorum does not answer ({why}): states come from gossip, everything else is what this agent last received"
        ));
    }
    Ok(listed.nodes)
}

/// One node.
pub fn show(session: &Session, node: &v1::Node) -> Result<(), Failure> {
    match session.format() {
        Format::Table => print(&nodes_table(std::slice::from_ref(node), session.table_size())),
        Format::Data(notation) => notation.print(&NodeJson::from(node)),
        Format::Name => print_names([node.id.as_str()]),
    }
}

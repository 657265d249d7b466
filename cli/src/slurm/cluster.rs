//! Asks for nodes and partitions.

use super::surroundings::Surroundings;
use lattice_api::client::Client;
use lattice_api::v1;
use lattice_cli_session::failure::Failure;
use lattice_cli_session::session::answer;
use lattice_model::{Resources, hostlist};
use lattice_slurm::partition::{Partition, partitions};
use std::rc::Rc;

/// All nodes.
///
/// # Errors
/// The agent refuses or does not answer.
pub async fn fetch_nodes(client: &Client) -> Result<Vec<Rc<v1::Node>>, Failure> {
    let listed = answer(client.nodes().list(v1::ListNodesRequest::default())).await?;
    Ok(listed.nodes.into_iter().map(Rc::new).collect())
}

/// All partitions with these nodes.
///
/// # Errors
/// As [`fetch_nodes`].
pub async fn fetch_partitions(client: &Client, nodes: &[Rc<v1::Node>], surroundings: &Surroundings) -> Result<Vec<Partition>, Failure> {
    let listed = answer(client.vclusters().list(v1::ListVClustersRequest {})).await?;
    Ok(partitions(&listed.vclusters, nodes, &surroundings.compat))
}

/// All reservations that are not over, by name.
///
/// # Errors
/// As [`fetch_nodes`].
pub async fn fetch_reservations(client: &Client) -> Result<Vec<v1::Reservation>, Failure> {
    let mut all = answer(client.reservations().list(v1::ListReservationsRequest {})).await?.reservations;
    all.retain(|reservation| reservation.state != "Over");
    Ok(all)
}

/// Asks for the sizes of all nodes.
///
/// # Errors
/// As [`fetch_nodes`].
pub async fn fetch_sizes(client: &Client, surroundings: &mut Surroundings) -> Result<(), Failure> {
    let size = |node: &Rc<v1::Node>| Resources { cores: node.cores, memory_bytes: node.memory_bytes, gpus: node.gpus };
    surroundings.nodes = fetch_nodes(client).await?.iter().map(|node| (node.id.clone(), size(node))).collect();
    Ok(())
}

/// The names in these hostlists.
///
/// # Errors
/// One of them is malformed.
pub fn expanded(hostlists: &[String]) -> Result<Vec<String>, Failure> {
    let mut names = Vec::new();
    for text in hostlists.iter().filter(|text| !text.is_empty()) {
        let nodes = hostlist::in_order(text).map_err(|error| Failure::other(format!("Invalid hostlist: {error}")))?;
        names.extend(nodes.iter().map(|node| node.as_str().to_owned()));
    }
    Ok(names)
}

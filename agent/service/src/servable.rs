//! Whether the nodes of the cluster could ever serve what is submitted.

use lattice_membership::cluster::Cluster;
use lattice_model::AllocationSpec;
use tonic::Status;

/// Refuses work that the registered nodes could never serve. If its user chose to wait for other
/// nodes (`waits`), returns a warning instead. An empty text: there is nothing to warn of.
pub(super) fn servable(cluster: &Cluster, spec: &AllocationSpec, waits: bool) -> Result<String, Status> {
    // A view that is not up to date refuses nothing; `explain` shows the reason later.
    if !cluster.fresh {
        return Ok(String::new());
    }
    let reservation = spec.reservation.as_ref().and_then(|name| cluster.reservations.get(name));
    // The quorum refuses a reservation that does not exist.
    let nodes = cluster.nodes.values().filter(|node| reservation.is_none_or(|of| of.nodes.contains(&node.id)));
    match lattice_scheduler::misfit(nodes, &cluster.vclusters, spec) {
        None => Ok(String::new()),
        Some(misfit) if waits => Ok(format!("it waits until there are other nodes: it {misfit}")),
        Some(misfit) => Err(Status::failed_precondition(format!(
            "no nodes of this cluster could ever serve it: it {misfit}\nhint: ask for what `lattice nodes -o wide` shows, or use --wait-for-nodes to have it wait for other nodes"
        ))),
    }
}

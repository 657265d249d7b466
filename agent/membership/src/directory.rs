//! Where other nodes are. An agent of role `api` has every node in its view. Every agent has by
//! gossip where the others are. The quorum is asked about a node of which neither knows, and while
//! it is unreachable, the stored list of peers is used.

use crate::cluster::Cluster;
use crate::nodes_asked;
use crate::peers::Peers;
use lattice_gossip::Member;
use lattice_model::{Allocation, AllocationState, NodeId};
use lattice_pki::identity::Role;
use lattice_quorum_client::QuorumClient;
use lattice_quorum_client::wire::{NODES_ASKED_MAX, Request};
use std::collections::BTreeSet;
use std::sync::Arc;
use tokio::sync::watch;

/// See the module documentation. All clones share it.
#[derive(Clone, Debug)]
pub struct Directory {
    quorum: QuorumClient,
    cluster: watch::Receiver<Arc<Cluster>>,
    members: watch::Receiver<Arc<Vec<Member>>>,
    peers: Peers,
}

impl Directory {
    /// `cluster`: this agent's view; `members`: gossip's, ordered by node.
    pub fn new(
        quorum: QuorumClient,
        cluster: watch::Receiver<Arc<Cluster>>,
        members: watch::Receiver<Arc<Vec<Member>>>,
        peers: Peers,
    ) -> Self {
        Self { quorum, cluster, members, peers }
    }

    /// Whether the agent's view contains every node and every allocation.
    pub fn knows_all(&self) -> bool {
        self.quorum.role() == Role::Api
    }

    /// A node's mesh address. `None`: it is not registered, or unknown here while the quorum is
    /// unreachable.
    pub async fn mesh(&self, node: &NodeId) -> Option<String> {
        let registered = self.cluster.borrow().nodes.get(node).map(|known| known.addresses.mesh.clone());
        let known = registered.or_else(|| self.gossiped(node));
        if known.is_some() || self.knows_all() {
            return known;
        }
        let asked = nodes_asked::ask(&self.quorum, Request::GetNodes { names: BTreeSet::from([node.clone()]) }).await;
        match asked {
            Some(nodes) => nodes.into_iter().next().map(|known| known.addresses.mesh),
            None => self.peers.mesh(node),
        }
    }

    fn gossiped(&self, node: &NodeId) -> Option<String> {
        let members = self.members.borrow();
        let place = members.binary_search_by(|member| member.node.cmp(node)).ok()?;
        Some(members[place].mesh.to_string())
    }

    /// The agent's view, plus the nodes of this allocation that the quorum knows. Nodes are added
    /// only while the allocation has nodes or a VNI.
    pub async fn with_nodes_of(&self, allocation: &Allocation) -> Arc<Cluster> {
        let mut cluster = Arc::clone(&self.cluster.borrow());
        let is_placed = matches!(allocation.state, AllocationState::Staging | AllocationState::Running) || allocation.vni.is_some();
        if self.knows_all() || !is_placed {
            return cluster;
        }
        let missing = allocation.nodes().filter(|name| !cluster.nodes.contains_key(*name)).take(NODES_ASKED_MAX);
        let missing: BTreeSet<NodeId> = missing.cloned().collect();
        if !missing.is_empty()
            && let Some(nodes) = nodes_asked::ask(&self.quorum, Request::GetNodes { names: missing }).await
        {
            Arc::make_mut(&mut cluster).nodes.extend(nodes.into_iter().map(|node| (node.id.clone(), node)));
        }
        cluster
    }
}

//! Where other nodes are. An agent of role `api` has every node in its view. Every agent learns the
//! others' addresses from gossip. The quorum is asked about a node that neither knows, or that
//! gossip sees Down. While the quorum is unreachable, the last address in gossip or in the stored
//! list of peers is used.

use crate::cluster::Cluster;
use crate::nodes_asked;
use crate::peers::Peers;
use lattice_gossip::{Liveness, Member};
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
        if registered.is_some() {
            return registered;
        }
        let gossiped = self.gossiped(node);
        if let Some((Liveness::Alive | Liveness::Suspect, address)) = gossiped {
            return Some(address);
        }
        if !self.knows_all()
            && let Some(nodes) = nodes_asked::ask(&self.quorum, Request::GetNodes { names: BTreeSet::from([node.clone()]) }).await
        {
            return nodes.into_iter().next().map(|known| known.addresses.mesh);
        }
        gossiped.map(|(_, address)| address).or_else(|| self.peers.mesh(node))
    }

    /// How gossip sees a node, and its mesh address there: where it was last, if it is Down.
    fn gossiped(&self, node: &NodeId) -> Option<(Liveness, String)> {
        let members = self.members.borrow();
        let place = members.binary_search_by(|member| member.node.cmp(node)).ok()?;
        Some((members[place].liveness, members[place].mesh.to_string()))
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

#[cfg(test)]
mod tests {
    use super::*;
    use lattice_pki::ca;
    use lattice_pki::credentials::Credentials;
    use lattice_pki::tls::TlsFiles;
    use std::time::Duration;

    fn member(node: &str, liveness: Liveness, port: u16) -> Member {
        let at = |port| std::net::SocketAddr::from(([127, 0, 0, 1], port));
        let (node, addr, mesh) = (node.parse().unwrap(), at(1), at(port));
        Member { node, addr, mesh, incarnation: 1, liveness, since_ms: 0, accusers: 0, fact: None, contradicted_since_ms: None }
    }

    #[tokio::test]
    async fn while_the_quorum_is_away_gossip_and_then_the_stored_peers_give_a_nodes_address() {
        let dir = std::env::temp_dir().join(format!("lattice-directory-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&dir);
        std::fs::create_dir_all(&dir).unwrap();
        std::fs::write(dir.join("peers.json"), r#"{"n4":{"gossip":"127.0.0.1:1","mesh":"127.0.0.1:40"}}"#).unwrap();
        ca::init(&dir.join("ca")).unwrap();
        let files = ca::issue(&dir.join("ca"), "n1", Role::Node, &[], &dir.join("n1"), Duration::from_secs(86_400)).unwrap();
        let files = TlsFiles { ca: dir.join("ca/ca.crt"), cert: files.cert, key: files.key };
        let quorum = QuorumClient::new(vec!["127.0.0.1:1".to_owned()], Credentials::new(files.read().unwrap()).unwrap()).unwrap();
        let members = vec![member("n2", Liveness::Suspect, 20), member("n3", Liveness::Down, 30)];
        let (_view, cluster) = watch::channel(Arc::new(Cluster::default()));
        let directory = Directory::new(quorum, cluster, watch::channel(Arc::new(members)).1, Peers::open(&dir));
        for (node, address) in [("n2", Some("127.0.0.1:20")), ("n3", Some("127.0.0.1:30")), ("n4", Some("127.0.0.1:40")), ("n5", None)] {
            assert_eq!(directory.mesh(&node.parse().unwrap()).await.as_deref(), address, "{node}");
        }
        std::fs::remove_dir_all(&dir).unwrap();
    }
}

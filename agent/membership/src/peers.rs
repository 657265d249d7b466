//! Last known addresses of other nodes, on disk: an agent that starts while it cannot reach the
//! quorum finds some peers, and through them the quorum.
//!
//! An agent of role `api` has all addresses in its view. An agent of role `node` asks the quorum
//! for nodes chosen at random, until enough nodes on its list are alive: they fill the list, or are
//! all that gossip sees alive. It joins gossip through each node of an answer.

use crate::cluster::Cluster;
use crate::{Ask, Membership, nodes_asked};
use lattice_agent_common::files;
use lattice_gossip::{Liveness, Member};
use lattice_model::{Backoff, Node, NodeId};
use lattice_pki::identity::Role;
use lattice_quorum_client::QuorumClient;
use lattice_quorum_client::wire::Request;
use parking_lot::Mutex;
use rand::seq::IteratorRandom;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use thiserror::Error;
use tokio::sync::watch;
use tokio::time::{Instant, MissedTickBehavior};
use tokio_util::sync::CancellationToken;

/// Nodes in the list at most, whatever the cluster's size.
const PEERS_MAX: usize = 32;
/// Nodes in one sample: more than the list holds, because some are not alive, and one may be this
/// node.
const SAMPLE_NODES: u32 = PEERS_MAX as u32 + PEERS_MAX as u32 / 4;
/// Upper bound of the file's size, more than `PEERS_MAX` nodes need.
const FILE_BYTES_MAX: u64 = 64 * 1024;
/// Interval between updates of the list.
const UPDATE_INTERVAL: Duration = Duration::from_secs(5);
/// Backoff between questions for nodes chosen at random.
const SAMPLE_BACKOFF: Backoff = Backoff::new(Duration::from_secs(5), Duration::from_secs(60));
/// Interval between questions for the present addresses of listed nodes.
const RENEWAL_INTERVAL: Duration = Duration::from_secs(600);

/// Addresses of one node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct PeerAddresses {
    gossip: String,
    mesh: String,
}

impl PeerAddresses {
    fn of(node: &Node) -> Self {
        Self { gossip: node.addresses.gossip.clone(), mesh: node.addresses.mesh.clone() }
    }

    /// Whether gossip still sees the node at this address. A node that has moved has another mesh
    /// address too.
    fn is_of(&self, node: &NodeId, members: &[Member]) -> bool {
        let gossiped = members.iter().find(|member| member.node == *node);
        gossiped.is_none_or(|member| self.gossip.parse().is_ok_and(|address: SocketAddr| address == member.addr))
    }
}

type PeerList = BTreeMap<NodeId, PeerAddresses>;

/// The stored list. All clones share it.
#[derive(Clone, Debug)]
pub struct Peers {
    path: Arc<PathBuf>,
    places: Arc<Mutex<PeerList>>,
}

impl Peers {
    /// Loads the stored list. An unreadable file is ignored: there are gossip's seeds and the
    /// quorum as well.
    pub fn open(state_dir: &Path) -> Self {
        let path = state_dir.join("peers.json");
        let places = match read(&path) {
            Ok(places) => places,
            Err(why) => {
                tracing::warn!(file = %path.display(), %why, "the stored list of peers cannot be used; this agent starts without it");
                PeerList::new()
            }
        };
        Self { path: Arc::new(path), places: Arc::new(Mutex::new(places)) }
    }

    /// The gossip addresses of the listed nodes.
    pub fn gossip(&self) -> Vec<String> {
        self.places.lock().values().map(|place| place.gossip.clone()).collect()
    }

    /// The mesh address of a listed node.
    pub fn mesh(&self, node: &NodeId) -> Option<String> {
        self.places.lock().get(node).map(|place| place.mesh.clone())
    }

    /// Updates the list until `stop`: nodes that are alive stay on it, others replace those that
    /// are not.
    pub async fn run(
        self,
        me: NodeId,
        quorum: QuorumClient,
        membership: Membership,
        cluster: watch::Receiver<Arc<Cluster>>,
        stop: CancellationToken,
    ) {
        let samples = (quorum.role() != Role::Api).then(|| Samples::of(quorum));
        let _stopped = stop.run_until_cancelled(self.keep_always(&me, samples, &membership, &cluster)).await;
    }

    async fn keep_always(
        &self,
        me: &NodeId,
        mut samples: Option<Samples>,
        membership: &Membership,
        cluster: &watch::Receiver<Arc<Cluster>>,
    ) {
        let mut look = tokio::time::interval(UPDATE_INTERVAL);
        look.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut sampled = PeerList::new();
        loop {
            look.tick().await;
            let before = self.places.lock().clone();
            if let Some(samples) = &mut samples {
                samples.refresh(me, &before, membership, &mut sampled).await;
            }
            let known = Arc::clone(&cluster.borrow());
            let members = membership.members();
            let there = members.iter().filter(|member| member.liveness == Liveness::Alive && member.node != *me).map(|member| &member.node);
            let registered = |node: &NodeId| match &samples {
                None => known.nodes.get(node).map(PeerAddresses::of),
                Some(_) => sampled.get(node).or_else(|| before.get(node)).filter(|place| place.is_of(node, &members)).cloned(),
            };
            let Some(next) = next_list(&before, there, registered) else { continue };
            let path = Arc::clone(&self.path);
            let bytes = serde_json::to_vec(&next).unwrap_or_default();
            // If the disk is full, the next update tries again.
            match tokio::task::spawn_blocking(move || files::replace(&path, &bytes)).await {
                Ok(Ok(())) => *self.places.lock() = next,
                Ok(Err(error)) => tracing::debug!(%error, "the list of peers cannot be written"),
                Err(_) => return,
            }
        }
    }
}

/// Questions to the quorum for nodes chosen at random.
struct Samples {
    quorum: QuorumClient,
    pauses: Backoff,
    /// No question is sent before this time.
    next: Instant,
    /// When the addresses of listed nodes are asked for again.
    renewal: Instant,
    /// How many others were alive when a sample contained the whole cluster. Until that number
    /// changes, the list cannot become better.
    all_of: Option<usize>,
}

impl Samples {
    fn of(quorum: QuorumClient) -> Self {
        let now = Instant::now();
        Self { quorum, pauses: SAMPLE_BACKOFF, next: now, renewal: now + RENEWAL_INTERVAL, all_of: None }
    }

    /// Replaces `sampled` if fewer peers on the list are alive than there could be, and joins gossip
    /// at the new ones.
    async fn refresh(&mut self, me: &NodeId, listed: &PeerList, membership: &Membership, sampled: &mut PeerList) {
        let members = membership.members();
        let alive: Vec<&NodeId> =
            members.iter().filter(|member| member.liveness == Liveness::Alive && member.node != *me).map(|member| &member.node).collect();
        let is_listed = |node: &&&NodeId| listed.get(**node).is_some_and(|place| place.is_of(node, &members));
        let have = alive.iter().filter(is_listed).count();
        // An agent that sees nobody alive may just not know the others yet.
        let now = Instant::now();
        if !alive.is_empty() && (have >= alive.len().min(PEERS_MAX) || self.all_of == Some(alive.len())) {
            self.pauses.reset();
            self.next = now;
            if now >= self.renewal {
                self.renewal = now + RENEWAL_INTERVAL.mul_f64(rand::random_range(0.5..1.0));
                let names = listed.keys().cloned().collect();
                *sampled = self.ask(me, Request::GetNodes { names }).await.unwrap_or_default();
            }
            return;
        }
        if now < self.next {
            return;
        }
        self.next = now + self.pauses.next_pause().mul_f64(rand::random_range(0.5..1.0));
        let Some(places) = self.ask(me, Request::SampleNodes { count: SAMPLE_NODES }).await else { return };
        // `+ 1`: `ask` has removed this node from the sample.
        self.all_of = (places.len() + 1 < SAMPLE_NODES as usize).then_some(alive.len());
        *sampled = places;
        for place in sampled.values().filter_map(|place| place.gossip.parse().ok()) {
            membership.ask(Ask::Join(place)).await;
        }
    }

    /// The places in the quorum's answer, without this node's.
    async fn ask(&self, me: &NodeId, question: Request) -> Option<PeerList> {
        let nodes = nodes_asked::ask(&self.quorum, question).await?;
        Some(nodes.iter().filter(|node| node.id != *me).map(|node| (node.id.clone(), PeerAddresses::of(node))).collect())
    }
}

/// Why the stored list is not used.
#[derive(Debug, Error)]
enum UnusableList {
    #[error("{0} bytes")]
    TooLong(u64),
    #[error(transparent)]
    Read(#[from] std::io::Error),
    #[error(transparent)]
    Json(#[from] serde_json::Error),
}

fn read(path: &Path) -> Result<PeerList, UnusableList> {
    match std::fs::metadata(path) {
        Ok(about) if about.len() > FILE_BYTES_MAX => return Err(UnusableList::TooLong(about.len())),
        Ok(_) => {}
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(PeerList::new()),
        Err(error) => return Err(error.into()),
    }
    Ok(serde_json::from_slice(&std::fs::read(path)?)?)
}

/// The next list, `None` if it does not change. Alive nodes come first, those that are already on
/// the list before others; places that are left go to listed nodes that are registered but not
/// alive. If no registered node is alive, the list stays as it is: then this node is the one that
/// is cut off.
fn next_list<'a>(
    before: &PeerList,
    there: impl Iterator<Item = &'a NodeId> + Clone,
    registered: impl Fn(&NodeId) -> Option<PeerAddresses>,
) -> Option<PeerList> {
    let found = |node: &NodeId| Some((node.clone(), registered(node)?));
    let room = |kept: &PeerList| PEERS_MAX.saturating_sub(kept.len());
    let mut kept: PeerList = there.clone().filter(|node| before.contains_key(*node)).filter_map(found).collect();
    if room(&kept) > 0 {
        let others = there.filter(|node| !before.contains_key(*node)).choose_multiple(&mut rand::rng(), room(&kept));
        kept.extend(others.into_iter().filter_map(found));
    }
    if kept.is_empty() {
        return None;
    }
    let away: Vec<_> = before.keys().filter(|node| !kept.contains_key(*node)).filter_map(found).take(room(&kept)).collect();
    kept.extend(away);
    (kept != *before).then_some(kept)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(i: usize) -> (NodeId, PeerAddresses) {
        (format!("n{i:03}").parse().unwrap(), PeerAddresses { gossip: format!("10.0.0.{i}:1"), mesh: format!("10.0.0.{i}:2") })
    }

    fn next(before: &PeerList, there: &[(NodeId, PeerAddresses)], registered: &[(NodeId, PeerAddresses)]) -> Option<PeerList> {
        let registered = |node: &NodeId| registered.iter().find(|(one, _)| one == node).map(|(_, place)| place.clone());
        next_list(before, there.iter().map(|(node, _)| node), registered)
    }

    #[test]
    fn present_peers_stay_and_missing_ones_are_replaced() {
        let all: Vec<_> = (0..PEERS_MAX * 2).map(place).collect();
        let first = next(&PeerList::new(), &all, &all).unwrap();
        assert_eq!(first.len(), PEERS_MAX);
        assert_eq!(next(&first, &all, &all), None, "nothing is written where nothing has changed");
        assert_eq!(next(&first, &[], &all), None, "alone");
        let (gone, _) = first.first_key_value().unwrap();
        let rest: Vec<_> = all.iter().filter(|(node, _)| node != gone).cloned().collect();
        let second = next(&first, &rest, &all).unwrap();
        assert!(second.len() == PEERS_MAX && !second.contains_key(gone));
        assert_eq!(first.keys().filter(|node| second.contains_key(*node)).count(), PEERS_MAX - 1);
        // Unreachable nodes stay as long as there is room and they are registered; their newest
        // address counts.
        let few = PeerList::from([place(3), place(4)]);
        assert_eq!(next(&few, &all[5..6], &all).unwrap(), PeerList::from([place(3), place(4), place(5)]));
        let moved = (place(3).0, place(99).1);
        assert_eq!(next(&few, &all[3..4], std::slice::from_ref(&moved)).unwrap(), PeerList::from([moved]));
    }

    #[test]
    fn a_file_that_is_no_list_counts_for_nothing() {
        let dir = std::env::temp_dir().join(format!("lattice-peers-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        assert!(Peers::open(&dir).gossip().is_empty());
        for bytes in [&b"{"[..], b"[1]", &[b' '; FILE_BYTES_MAX as usize + 1]] {
            std::fs::write(dir.join("peers.json"), bytes).unwrap();
            assert!(Peers::open(&dir).gossip().is_empty());
        }
        let list = PeerList::from([place(1), place(2)]);
        std::fs::write(dir.join("peers.json"), serde_json::to_vec(&list).unwrap()).unwrap();
        assert_eq!(Peers::open(&dir).gossip(), ["10.0.0.1:1", "10.0.0.2:1"]);
        assert_eq!(Peers::open(&dir).mesh(&place(2).0).as_deref(), Some("10.0.0.2:2"));
        std::fs::remove_dir_all(&dir).unwrap();
    }
}

//! Relayed sessions: an agent that reaches no member of the quorum sends its session through a peer
//! that does.
//!
//! ```text
//!   agent ── a stream of the mesh ──▶ peer ── TCP ──▶ the member of the peer's own session
//!     └────────────── TLS of the agent's session, from end to end ──────────────┘
//! ```
//!
//! Nobody has to trust the peer: the member sees the agent's own certificate in the handshake. TLS
//! at either end refuses whatever a peer changes or repeats, and hides the content from it.
//! Heartbeats and their acknowledgements, reports and lists all go this way. Run leases therefore
//! count as usual, from when the agent sent the heartbeat. The worst that a peer can do is to relay
//! nothing; the agent then asks another one.
//!
//! A peer connects only to the member of its own session. It relays nothing while its own session
//! is relayed, so there are no chains. It knows by name whom it relays for, and `relay_max` limits
//! how many.

use crate::Membership;
use lattice_agent_common::session_state::SessionState;
use lattice_gossip::Liveness;
use lattice_mesh::frame::{self, FrameError};
use lattice_mesh::open::{Open, RelayAnswer};
use lattice_mesh::{Mesh, MeshError, UnansweredNode};
use lattice_model::{Backoff, NodeId};
use lattice_pki::identity::Caller;
use lattice_quorum_client::wire::Up;
use lattice_quorum_client::{CallError, DownStream, QuorumClient};
use parking_lot::Mutex;
use quinn::{RecvStream, SendStream};
use rand::seq::IteratorRandom;
use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};
use thiserror::Error;
use tokio::net::TcpStream;
use tokio::sync::{mpsc, watch};
use tokio::time::timeout;

/// How long an agent tries to reach a member directly before it asks peers.
const HEAD_START: Duration = Duration::from_secs(1);
/// Peers asked in one attempt.
const PEERS_ASKED_MAX: usize = 3;
/// Timeout for one peer to begin relaying.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(4);
/// Timeout of a peer's connect to its member.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);
/// Backoff between attempts: if the whole quorum is unreachable, every agent asks its peers.
const ATTEMPT_BACKOFF: Backoff = Backoff::new(Duration::from_secs(1), Duration::from_secs(10));
/// Streams relayed for one agent at once: this end may not yet have noticed that the agent closed
/// the earlier one.
const STREAMS_PER_AGENT_MAX: usize = 2;

/// Why this agent does not relay a peer's session.
#[derive(Debug, Error)]
enum RelayRefusal {
    #[error("it relays no sessions (relay_max: 0)")]
    CarriesNobody,
    #[error("it relays {all} sessions already (relay_max: {most})")]
    Full { all: usize, most: usize },
    #[error("its own session is relayed by {peer}")]
    CarriedItself { peer: NodeId },
    #[error("it has no session itself")]
    NoSession,
    #[error("{member} does not answer it")]
    MemberSilent { member: String },
    #[error("{member}: {source}")]
    Connect { member: String, source: io::Error },
}

/// Why no peer relays this agent's session.
#[derive(Debug, Error)]
pub enum RelayError {
    #[error("peers were asked a moment ago")]
    AskedJustNow,
    #[error("no live peer is known")]
    NoPeers,
    #[error("{}", all_of(.0))]
    Peers(Vec<(NodeId, PeerError)>),
}

/// Why one peer does not relay this agent's session.
#[derive(Debug, Error)]
pub enum PeerError {
    #[error("no answer in time")]
    Timeout,
    #[error(transparent)]
    Open(#[from] MeshError),
    #[error(transparent)]
    Ask(FrameError),
    /// The peer sent no answer; the reason is text for people.
    #[error("{why}")]
    NoAnswer { why: String },
    #[error("{why}")]
    Refused { why: String },
    #[error("a session begins with a registration")]
    NoRegistration,
    #[error(transparent)]
    Session(#[from] CallError),
}

fn all_of(peers: &[(NodeId, PeerError)]) -> String {
    peers.iter().map(|(peer, error)| format!("{peer}: {error}")).collect::<Vec<_>>().join("; ")
}

/// The agents that this one relays for now.
#[derive(Clone)]
pub struct RelayedAgents {
    most: usize,
    session: watch::Receiver<SessionState>,
    of: Arc<Mutex<BTreeMap<String, usize>>>,
}

/// One agent's entry in [`RelayedAgents`], until it is dropped.
struct Place {
    name: String,
    of: Arc<Mutex<BTreeMap<String, usize>>>,
}

impl RelayedAgents {
    /// Relays for at most `most` agents, to the member of `session`.
    pub fn new(most: usize, session: watch::Receiver<SessionState>) -> Self {
        Self { most, session, of: Arc::default() }
    }

    /// Names of the agents that this one relays for, for people.
    pub fn names(&self) -> Vec<String> {
        self.of.lock().keys().cloned().collect()
    }

    fn place(&self, name: &str) -> Result<Place, RelayRefusal> {
        let mut of = self.of.lock();
        let (all, its) = (of.values().sum::<usize>(), of.get(name).copied().unwrap_or(0));
        if self.most == 0 {
            return Err(RelayRefusal::CarriesNobody);
        }
        if all >= self.most || its >= STREAMS_PER_AGENT_MAX {
            return Err(RelayRefusal::Full { all, most: self.most });
        }
        of.insert(name.to_owned(), its + 1);
        Ok(Place { name: name.to_owned(), of: Arc::clone(&self.of) })
    }

    /// The member of this agent's own session; an error if there is none, or if that session is
    /// relayed itself.
    fn member(&self) -> Result<String, RelayRefusal> {
        match &*self.session.borrow() {
            SessionState::Connected { member, relay_node: None } => Ok(member.clone()),
            SessionState::Connected { relay_node: Some(peer), .. } => Err(RelayRefusal::CarriedItself { peer: peer.clone() }),
            SessionState::Lost { .. } => Err(RelayRefusal::NoSession),
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut of = self.of.lock();
        if let Some(count) = of.get_mut(&self.name) {
            *count -= 1;
            if *count == 0 {
                of.remove(&self.name);
            }
        }
    }
}

/// Relays a peer's session until either end closes it.
pub async fn relay_session(carried: &RelayedAgents, peer: &Caller, mut send: SendStream, mut recv: RecvStream) -> Result<(), FrameError> {
    let begun = async {
        let place = carried.place(&peer.name)?;
        let member = carried.member()?;
        let connecting = timeout(CONNECT_TIMEOUT, TcpStream::connect(&member)).await;
        let failed = |source| RelayRefusal::Connect { member: member.clone(), source };
        let stream = connecting.map_err(|_| RelayRefusal::MemberSilent { member: member.clone() })?.map_err(failed)?;
        stream.set_nodelay(true).map_err(failed)?;
        Ok::<_, RelayRefusal>((place, member, stream))
    };
    let (_place, member, mut stream) = match begun.await {
        Ok(begun) => begun,
        Err(error) => return frame::write(&mut send, &RelayAnswer::Refused { why: error.to_string() }).await,
    };
    frame::write(&mut send, &RelayAnswer::Begun { member: member.clone() }).await?;
    tracing::info!(peer = %peer.name, %member, "relaying the session of a peer that reaches no member");
    let mut there = tokio::io::join(&mut recv, &mut send);
    // Both ends notice the end, whatever its cause.
    let ended = tokio::io::copy_bidirectional(&mut there, &mut stream).await;
    tracing::info!(peer = %peer.name, error = ended.err().map(|e| e.to_string()), "the session of a peer is no longer relayed");
    Ok(())
}

/// The relays of this agent's own session.
pub struct Relay {
    me: NodeId,
    membership: Membership,
    mesh: Mesh,
    /// No peer is asked before this moment.
    again: Instant,
    pauses: Backoff,
}

/// A session that a peer relays.
pub struct Through {
    pub peer: NodeId,
    pub up: mpsc::Sender<Up>,
    pub down: DownStream,
}

impl Relay {
    pub fn new(me: NodeId, membership: Membership, mesh: Mesh) -> Self {
        Self { me, membership, mesh, again: Instant::now(), pauses: ATTEMPT_BACKOFF }
    }

    /// Opens a session through a peer that gossip sees alive, after waiting `HEAD_START` for a
    /// direct connection; or says why no peer could relay it.
    pub async fn open(&mut self, quorum: &QuorumClient, register: &Up) -> Result<Through, RelayError> {
        if Instant::now() < self.again {
            return Err(RelayError::AskedJustNow);
        }
        tokio::time::sleep(HEAD_START).await;
        let mut failed = Vec::new();
        for (peer, address) in self.peers() {
            let opened = timeout(ANSWER_TIMEOUT, through(&self.mesh, quorum, register, &peer, &address)).await;
            match opened.unwrap_or(Err(PeerError::Timeout)) {
                Ok((up, down)) => {
                    self.pauses.reset();
                    return Ok(Through { peer, up, down });
                }
                Err(error) => failed.push((peer, error)),
            }
        }
        self.again = Instant::now() + self.pauses.next_pause().mul_f64(rand::random_range(0.5..1.0));
        Err(if failed.is_empty() { RelayError::NoPeers } else { RelayError::Peers(failed) })
    }

    /// Up to `PEERS_ASKED_MAX` random peers that gossip sees alive.
    fn peers(&self) -> Vec<(NodeId, String)> {
        let members = self.membership.members();
        let alive = members.iter().filter(|m| m.liveness == Liveness::Alive && m.node != self.me);
        let chosen = alive.choose_multiple(&mut rand::rng(), PEERS_ASKED_MAX);
        chosen.into_iter().map(|m| (m.node.clone(), m.mesh.to_string())).collect()
    }
}

async fn through(
    mesh: &Mesh,
    quorum: &QuorumClient,
    register: &Up,
    peer: &NodeId,
    address: &str,
) -> Result<(mpsc::Sender<Up>, DownStream), PeerError> {
    let (mut send, mut recv) = mesh.open(peer, address).await?;
    frame::write(&mut send, &Open::RelaySession).await.map_err(PeerError::Ask)?;
    match frame::read::<RelayAnswer, _>(&mut recv).await {
        Ok(RelayAnswer::Begun { member }) => {
            let Up::Register { .. } = register else { return Err(PeerError::NoRegistration) };
            let mut register = register.clone();
            if let Up::Register { relay_node, .. } = &mut register {
                *relay_node = Some(peer.clone());
            }
            Ok(quorum.session_over(Box::new(tokio::io::join(recv, send)), &member, &register).await?)
        }
        Ok(RelayAnswer::Refused { why }) => Err(PeerError::Refused { why }),
        Err(error) => Err(PeerError::NoAnswer { why: UnansweredNode::reading(error).to_string() }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn carried(most: usize, state: SessionState) -> RelayedAgents {
        RelayedAgents::new(most, watch::channel(state).1)
    }

    fn connected(relay_node: Option<&str>) -> SessionState {
        SessionState::Connected { member: "m:1".to_owned(), relay_node: relay_node.map(|peer| peer.parse().unwrap()) }
    }

    #[test]
    fn so_many_are_carried_and_places_come_back() {
        let carried = carried(3, connected(None));
        let of_one: Vec<Place> = (0..STREAMS_PER_AGENT_MAX).map(|_| carried.place("n1").unwrap()).collect();
        assert!(carried.place("n1").is_err(), "not all places for one");
        let other = carried.place("n2").unwrap();
        assert!(carried.place("n3").is_err_and(|why| why.to_string().contains("relay_max")));
        drop(of_one);
        assert_eq!(carried.names(), ["n2"]);
        drop(other);
        assert!(carried.names().is_empty());
        assert!(super::tests::carried(0, connected(None)).place("n1").is_err());
    }

    #[test]
    fn one_that_is_carried_carries_nobody() {
        assert_eq!(carried(1, connected(None)).member().unwrap(), "m:1");
        assert!(carried(1, connected(Some("n2"))).member().is_err_and(|why| why.to_string().contains("n2")));
        let lost = SessionState::Lost { since: Instant::now(), why: String::new() };
        assert!(carried(1, lost).member().is_err());
    }
}

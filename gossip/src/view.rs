//! The members that this node knows. The view follows foca's member list and reports differences as
//! [`News`].
//!
//! foca searches its whole member list for every sender and update, so gossip among many nodes on
//! one machine costs the square of their number. The core therefore answers a message that has
//! nothing new itself, with the bytes that foca would have sent; a test compares them. Both
//! alternatives, a fork of foca with an index and our own SWIM, would have to be maintained here.

use crate::fact::{Fact, FactVersion, KnownFact};
use crate::fact_book::FactBook;
use crate::peer::Peer;
use crate::rows::{Keyed, Removed, Rows};
use crate::sync::tag;
use foca::State;
use lattice_model::NodeId;
use std::net::SocketAddr;
use std::ops::Bound;
use std::sync::Arc;

/// One node of the cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Member {
    /// Its name.
    pub node: NodeId,
    /// The address at which it receives gossip.
    pub addr: SocketAddr,
    /// The address of its agent's mesh.
    pub mesh: SocketAddr,
    /// Its agent's life: see [`Identity::incarnation`](crate::Identity::incarnation).
    pub incarnation: u64,
    /// Its liveness in this node's view.
    pub liveness: Liveness,
    /// Since when it has this liveness in its present identity, on the clock of
    /// [`Core::handle`](crate::Core::handle).
    pub since_ms: u64,
    /// For a suspect: how many nodes have found it silent by their own probes, as far as this node
    /// knows.
    pub accusers: usize,
    /// The newest fact that it published in this life, as far as this node knows.
    pub fact: Option<Fact>,
    /// When this node learned, on that clock, that the node is contradicted: others have an
    /// incarnation or a fact of it that it never published. `None`: it is not contradicted.
    pub contradicted_since_ms: Option<u64>,
}

/// Whether a node is reachable in gossip.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Liveness {
    /// The node answers, as far as is known.
    Alive,
    /// A node's direct and indirect probes of it went unanswered; it may still refute. This node
    /// sees a suspicion when its own probe fails or when another's suspicion reaches it, so not
    /// every node sees every suspicion.
    Suspect,
    /// The node left, or did not refute in time. Its work may well be running.
    Down,
}

/// What changed in the view.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum News {
    /// A node appeared (`was` is `None`), refuted a suspicion, or came back from Down.
    Alive {
        /// The node.
        node: NodeId,
        /// Its liveness before.
        was: Option<Liveness>,
    },
    /// A node is suspected.
    Suspect(NodeId),
    /// One more node found a suspect silent: [`Member::accusers`].
    Confirmed(NodeId),
    /// A node is Down, or was already Down when this node first received its name.
    Down(NodeId),
    /// A node has another incarnation: its agent has restarted, or it rejoined in another life
    /// because it was contradicted. This may come before or after its old life was declared Down.
    Restarted(NodeId),
    /// A node publishes that it is contradicted: [`Member::contradicted_since_ms`].
    Contradicted(NodeId),
    /// A node's fact changed ([`Member::fact`]), or the node is not contradicted any more.
    Fact(NodeId),
    /// A node is no longer listed, having been Down for
    /// [`Config::forget_down_after_ms`](crate::Config::forget_down_after_ms).
    Forgotten(NodeId),
    /// This node is back in a new identity: others had declared it Down or contradicted it, its own
    /// life was too far ahead, or it had left.
    Rejoined,
}

impl News {
    /// The node that this is about; `None` if it is about this node alone.
    pub fn node(&self) -> Option<&NodeId> {
        match self {
            Self::Alive { node, .. }
            | Self::Suspect(node)
            | Self::Confirmed(node)
            | Self::Down(node)
            | Self::Restarted(node)
            | Self::Contradicted(node)
            | Self::Fact(node)
            | Self::Forgotten(node) => Some(node),
            Self::Rejoined => None,
        }
    }
}

/// What is stored of a node besides its life. Small, since every node has one.
pub(crate) struct Entry {
    /// foca's own incarnation of the node, which the node raises to refute.
    pub refutations: u16,
    pub liveness: Liveness,
    /// Since when it has this liveness, on the caller's clock.
    pub since_ms: u64,
    pub fact: Option<Arc<KnownFact>>,
    /// Two nodes compare these tags to find differences between their views. The tag is stored
    /// because views are compared far more often than they change.
    pub tag: u64,
}

/// A life of a node and what is stored with it.
struct Row {
    peer: Peer,
    entry: Entry,
}

impl Keyed for Row {
    fn key(&self) -> u64 {
        self.peer.key
    }
}

pub(crate) struct View {
    me: u64,
    /// The rows by [`Peer::key`]: searched for every update of every datagram, and iterated only in
    /// the order of `names`.
    rows: Rows<Row>,
    /// The positions of the rows, in order of the nodes' names.
    names: Vec<u32>,
    /// How many of the others are Alive.
    alive: usize,
    /// How many of the others are Down.
    down: usize,
    /// Since when at least one other node has been Down without interruption.
    down_since_ms: u64,
}

impl View {
    pub fn new(me: &Peer) -> Self {
        let mut rows = Rows::default();
        let at = rows.insert(Row { peer: me.clone(), entry: Entry::new(me, 0, Liveness::Alive, 0, None) });
        Self { me: me.key, rows, names: vec![at], alive: 0, down: 0, down_since_ms: 0 }
    }

    /// All nodes, this one included, in order of their names.
    pub fn all(&self) -> impl Iterator<Item = (&Peer, &Entry)> {
        self.in_order(&self.names)
    }

    /// The members whose names are within `bounds`.
    pub fn within(&self, bounds: (Bound<&NodeId>, Bound<&NodeId>)) -> impl Iterator<Item = (&Peer, &Entry)> {
        let from = match bounds.0 {
            Bound::Included(name) => self.names_before(|other| other < name),
            Bound::Excluded(name) => self.names_before(|other| other <= name),
            Bound::Unbounded => 0,
        };
        let upto = match bounds.1 {
            Bound::Included(name) => self.names_before(|other| other <= name),
            Bound::Excluded(name) => self.names_before(|other| other < name),
            Bound::Unbounded => self.names.len(),
        };
        self.in_order(self.names.get(from..upto).unwrap_or_default())
    }

    fn in_order<'a>(&'a self, names: &'a [u32]) -> impl Iterator<Item = (&'a Peer, &'a Entry)> {
        names.iter().map(|at| {
            let Row { peer, entry } = self.rows.at(*at);
            (peer, entry)
        })
    }

    /// The number of names for which `is_before` is true. It must be true for the first names, and
    /// false for all later ones.
    fn names_before(&self, is_before: impl Fn(&NodeId) -> bool) -> usize {
        self.names.partition_point(|at| is_before(&self.rows.at(*at).peer.node))
    }

    pub fn others(&self) -> impl Iterator<Item = (&Peer, &Entry)> {
        self.all().filter(|(peer, _)| peer.key != self.me)
    }

    pub fn get(&self, node: &NodeId) -> Option<(&Peer, &Entry)> {
        let at = self.names.get(self.names_before(|other| other < node))?;
        let Row { peer, entry } = self.rows.at(*at);
        (peer.node == *node).then_some((peer, entry))
    }

    /// The node with this [`Peer::key`].
    pub fn of(&self, key: u64) -> Option<(&Peer, &Entry)> {
        self.rows.get(key).map(|Row { peer, entry }| (peer, entry))
    }

    /// The number of known nodes, this one included.
    pub fn len(&self) -> usize {
        self.rows.len()
    }

    /// The number of other nodes that are Alive.
    pub fn alive(&self) -> usize {
        self.alive
    }

    /// Since when at least one other node has been Down without interruption; `None`: no node is
    /// Down. No node has been Down for longer.
    pub fn down_since_ms(&self) -> Option<u64> {
        (self.down > 0).then_some(self.down_since_ms)
    }

    /// Whether the node has exactly this identity in this view, and is not Down.
    pub fn is_active(&self, peer: &Peer) -> bool {
        self.of(peer.key).is_some_and(|(known, entry)| known == peer && entry.liveness != Liveness::Down)
    }

    /// Whether this update would change anything in foca. foca has the same members as the view.
    pub fn is_news(&self, update: &foca::Member<Peer>) -> bool {
        let Some((known, entry)) = self.of(update.id().key) else { return true };
        if known != update.id() || known.key == self.me {
            return !known.outranks(update.id());
        }
        // The precedence rules of SWIM's section 4.2, which foca follows.
        match (entry.liveness, update.state()) {
            (Liveness::Alive, State::Suspect) => update.incarnation() >= entry.refutations,
            (Liveness::Alive | Liveness::Suspect, State::Alive) | (Liveness::Suspect, State::Suspect) => {
                update.incarnation() > entry.refutations
            }
            (Liveness::Alive | Liveness::Suspect, State::Down) => true,
            (Liveness::Down, State::Alive | State::Suspect | State::Down) => false,
        }
    }

    /// Whether the peer's life is later than `newest_life`, and is not the known life of its node.
    pub fn is_ahead(&self, peer: &Peer, newest_life: u64) -> bool {
        peer.incarnation > newest_life && self.of(peer.key).is_none_or(|(known, _)| known.incarnation != peer.incarnation)
    }

    pub fn set_me(&mut self, me: &Peer, liveness: Liveness) {
        if let Some(Row { peer, entry }) = self.rows.get_mut(me.key) {
            *peer = me.clone();
            // The only known fact of this node is from its present life, and the entry shows it.
            let fact = entry.fact.take();
            let anew = Entry::new(me, 0, liveness, entry.since_ms, fact.as_ref().map(|known| known.version));
            *entry = Entry { fact, ..anew };
        }
    }

    /// Copies foca's state of another node.
    pub fn update(&mut self, now_ms: u64, seen: &foca::Member<Peer>, facts: &FactBook, news: &mut Vec<News>) {
        let peer = seen.id();
        let liveness = match seen.state() {
            State::Alive => Liveness::Alive,
            State::Suspect => Liveness::Suspect,
            State::Down => Liveness::Down,
        };
        let version = facts.get(peer.key).map(|known| known.version);
        let liveness_news = |was, node: &NodeId| match liveness {
            Liveness::Alive => News::Alive { node: node.clone(), was },
            Liveness::Suspect => News::Suspect(node.clone()),
            Liveness::Down => News::Down(node.clone()),
        };
        let Some(Row { peer: known, entry }) = self.rows.get_mut(peer.key) else {
            let before = self.names_before(|other| *other < peer.node);
            let entry = Entry::new(peer, seen.incarnation(), liveness, now_ms, version);
            let at = self.rows.insert(Row { peer: peer.clone(), entry });
            self.names.insert(before, at);
            self.count(now_ms, None, Some(liveness));
            news.push(liveness_news(None, &peer.node));
            self.show_fact(peer.key, facts.get(peer.key), news);
            return;
        };
        let was = entry.liveness;
        let restarted = known.incarnation != peer.incarnation;
        if known == peer {
            entry.refutations = seen.incarnation();
            entry.since_ms = if was == liveness { entry.since_ms } else { now_ms };
            entry.liveness = liveness;
            entry.tag = tag(peer, entry.state(), version);
        } else {
            *known = peer.clone();
            let fact = entry.fact.take().filter(|_| !restarted);
            *entry = Entry { fact, ..Entry::new(peer, seen.incarnation(), liveness, now_ms, version) };
        }
        self.count(now_ms, Some(was), Some(liveness));
        if restarted {
            news.push(News::Restarted(peer.node.clone()));
        }
        if was != liveness {
            news.push(liveness_news(Some(was), &peer.node));
        }
        if restarted {
            self.show_fact(peer.key, facts.get(peer.key), news);
        }
    }

    /// Removes one of the other nodes.
    pub fn forget(&mut self, now_ms: u64, peer: &Peer, news: &mut Vec<News>) {
        if let Some(Removed { row, at, moved }) = self.rows.remove(peer.key) {
            self.names.retain(|name| *name != at);
            if let Some(name) = self.names.iter_mut().find(|name| **name == moved) {
                *name = at;
            }
            self.count(now_ms, Some(row.entry.liveness), None);
            news.push(News::Forgotten(peer.node.clone()));
        }
    }

    /// Updates the tag of the node with this [`Peer::key`] for its newest fact, and shows the fact
    /// if it is from the life that the view has.
    pub fn show_fact(&mut self, key: u64, known: Option<&Arc<KnownFact>>, news: &mut Vec<News>) {
        let (Some(known), Some(Row { peer, entry })) = (known, self.rows.get_mut(key)) else { return };
        entry.tag = tag(peer, entry.state(), Some(known.version));
        if known.version.incarnation == peer.incarnation {
            let before = entry.fact.replace(Arc::clone(known));
            if before.is_none_or(|before| before.fact != known.fact) && key != self.me {
                news.push(News::Fact(peer.node.clone()));
            }
        }
    }

    fn count(&mut self, now_ms: u64, was: Option<Liveness>, is: Option<Liveness>) {
        let nobody_was_down = self.down == 0;
        self.alive -= usize::from(was == Some(Liveness::Alive));
        self.down -= usize::from(was == Some(Liveness::Down));
        self.alive += usize::from(is == Some(Liveness::Alive));
        self.down += usize::from(is == Some(Liveness::Down));
        if nobody_was_down && self.down > 0 {
            self.down_since_ms = now_ms;
        }
    }
}

impl Entry {
    /// `version`: of the node's known fact, whether the entry shows that fact or not.
    fn new(peer: &Peer, refutations: u16, liveness: Liveness, since_ms: u64, version: Option<FactVersion>) -> Self {
        let mut entry = Self { refutations, liveness, since_ms, fact: None, tag: 0 };
        entry.tag = tag(peer, entry.state(), version);
        entry
    }

    /// The liveness as foca's state.
    pub fn state(&self) -> State {
        match self.liveness {
            Liveness::Alive => State::Alive,
            Liveness::Suspect => State::Suspect,
            Liveness::Down => State::Down,
        }
    }

    /// The member in the form for callers of the core.
    pub fn member(&self, peer: &Peer, accusers: usize, contradicted_since_ms: Option<u64>) -> Member {
        Member {
            node: peer.node.clone(),
            addr: peer.addr,
            mesh: peer.mesh,
            incarnation: peer.incarnation,
            liveness: self.liveness,
            since_ms: self.since_ms,
            accusers,
            fact: self.fact.as_ref().map(|known| known.fact),
            contradicted_since_ms,
        }
    }
}

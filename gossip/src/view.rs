//! Who is there, as this node sees it: kept in step with foca's own list, whose differences are the news.

use crate::fact::{Fact, FactBook};
use crate::peer::Peer;
use foca::State;
use lattice_model::NodeId;
use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;

/// One node of the cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Member {
    /// Its name.
    pub node: NodeId,
    /// Where its gossip is received.
    pub addr: SocketAddr,
    /// Its agent's life: see [`Identity::incarnation`](crate::Identity::incarnation).
    pub incarnation: u64,
    /// Whether it is there.
    pub liveness: Liveness,
    /// What it last said about itself in this life, as far as it came here.
    pub fact: Option<Fact>,
}

/// Whether a node is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Liveness {
    /// It is.
    Alive,
    /// Somebody's probes, direct and through others, went unanswered; it may still refute. Seen when this node's own
    /// probe fails or when another's suspicion is gossiped to it, so not every node sees every suspicion.
    Suspect,
    /// It left, or did not refute in time. Its work may well be running.
    Down,
}

/// What changed in the view.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum News {
    /// A node appeared, came back, or refuted a suspicion.
    Alive(NodeId),
    /// A node is suspected.
    Suspect(NodeId),
    /// A node is Down (or was so already when we first heard of it).
    Down(NodeId),
    /// A node's agent has started anew, seen before or after its old life was found Down: a higher incarnation.
    Restarted(NodeId),
    /// Another node's fact changed: [`Member::fact`].
    Fact(NodeId),
    /// A node that was Down for [`Config::forget_down_after_ms`](crate::Config::forget_down_after_ms) is no longer listed.
    Forgotten(NodeId),
    /// The others had declared us Down; we are back under a renewed identity.
    Rejoined,
}

pub(crate) struct Entry {
    pub member: Member,
    pub peer: Peer,
    /// Since when it is Down, on the caller's clock.
    pub down_since_ms: Option<u64>,
}

pub(crate) struct View {
    me: NodeId,
    pub entries: BTreeMap<NodeId, Entry>,
}

impl View {
    pub fn new(me: &Peer) -> Self {
        let entries = BTreeMap::from([(me.node.clone(), entry(me, Liveness::Alive, 0))]);
        Self { me: me.node.clone(), entries }
    }

    pub fn others(&self) -> impl Iterator<Item = &Entry> {
        self.entries.values().filter(|entry| entry.member.node != self.me)
    }

    /// Whether we count this very identity among the active ones.
    pub fn is_active(&self, peer: &Peer) -> bool {
        self.entries.get(&peer.node).is_some_and(|entry| entry.peer == *peer && entry.member.liveness != Liveness::Down)
    }

    pub fn set_me(&mut self, me: &Peer, liveness: Liveness) {
        if let Some(entry) = self.entries.get_mut(&me.node) {
            entry.peer = me.clone();
            entry.member.liveness = liveness;
        }
    }

    /// Takes over the whole of foca's list, ourselves left out.
    pub fn update(&mut self, now_ms: u64, others: &[&foca::Member<Peer>], facts: &FactBook, news: &mut Vec<News>) {
        for seen in others {
            self.update_one(now_ms, seen, facts, news);
        }
        // Names are unique in foca's list and we are not on it: equal numbers mean that nobody went.
        if self.entries.len() == others.len() + 1 {
            return;
        }
        let names: BTreeSet<&NodeId> = others.iter().map(|seen| &seen.id().node).chain([&self.me]).collect();
        let gone: Vec<NodeId> = self.entries.keys().filter(|node| !names.contains(node)).cloned().collect();
        for node in gone {
            self.entries.remove(&node);
            news.push(News::Forgotten(node));
        }
    }

    fn update_one(&mut self, now_ms: u64, seen: &foca::Member<Peer>, facts: &FactBook, news: &mut Vec<News>) {
        let peer = seen.id();
        let liveness = match seen.state() {
            State::Alive => Liveness::Alive,
            State::Suspect => Liveness::Suspect,
            State::Down => Liveness::Down,
        };
        let told = |liveness, node: &NodeId| match liveness {
            Liveness::Alive => News::Alive(node.clone()),
            Liveness::Suspect => News::Suspect(node.clone()),
            Liveness::Down => News::Down(node.clone()),
        };
        let Some(known) = self.entries.get_mut(&peer.node) else {
            self.entries.insert(peer.node.clone(), entry(peer, liveness, now_ms));
            news.push(told(liveness, &peer.node));
            self.take_fact(&peer.node, facts, news);
            return;
        };
        let restarted = known.peer.incarnation != peer.incarnation;
        let changed = known.member.liveness != liveness;
        if known.peer != *peer {
            let fact = if restarted { None } else { known.member.fact };
            *known = entry(peer, liveness, now_ms);
            known.member.fact = fact;
        } else if changed {
            known.member.liveness = liveness;
            known.down_since_ms = (liveness == Liveness::Down).then_some(now_ms);
        }
        if restarted {
            news.push(News::Restarted(peer.node.clone()));
        }
        if changed {
            news.push(told(liveness, &peer.node));
        }
        if restarted {
            self.take_fact(&peer.node, facts, news);
        }
    }

    /// Shows a node's fact, once the life that it speaks of is the one that we see.
    pub fn take_fact(&mut self, node: &NodeId, facts: &FactBook, news: &mut Vec<News>) {
        if let (Some(entry), Some(known)) = (self.entries.get_mut(node), facts.get(node))
            && known.version.incarnation == entry.member.incarnation
        {
            let changed = entry.member.fact != Some(known.fact);
            entry.member.fact = Some(known.fact);
            if changed && *node != self.me {
                news.push(News::Fact(node.clone()));
            }
        }
    }
}

fn entry(peer: &Peer, liveness: Liveness, now_ms: u64) -> Entry {
    Entry {
        member: Member { node: peer.node.clone(), addr: peer.addr, incarnation: peer.incarnation, liveness, fact: None },
        peer: peer.clone(),
        down_since_ms: (liveness == Liveness::Down).then_some(now_ms),
    }
}

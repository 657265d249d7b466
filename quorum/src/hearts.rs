//! What this member heard of its agents: in memory, folded into one summary a second for the leader.

use crate::wire::HeldKeys;
use lattice_model::{Incarnation, NodeId};
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::{Mutex, PoisonError};
use std::time::Instant;
use tokio::sync::watch;

/// What was heard of a node last.
#[derive(Clone, Debug)]
pub struct Heard {
    pub incarnation: Incarnation,
    pub at: Instant,
    /// The gossip keys that it last said it has; `None`: it said nothing of them.
    pub keys: Option<HeldKeys>,
}

/// Nodes heard of since they were last handed on.
#[derive(Debug)]
pub struct Hearts {
    fresh: Mutex<HashMap<NodeId, Heard>>,
    /// Everything heard before this moment is known to the leader.
    known: watch::Sender<Instant>,
}

impl Default for Hearts {
    fn default() -> Self {
        Self { fresh: Mutex::new(HashMap::new()), known: watch::Sender::new(Instant::now()) }
    }
}

impl Heard {
    /// Something was heard besides, of the same life or of another one, and in any order.
    fn then(&mut self, other: Self) {
        if other.incarnation < self.incarnation {
            return;
        }
        let (known, at) = (self.keys.take(), self.at.max(other.at));
        let same_life = other.incarnation == self.incarnation;
        // What was said later counts; where one of the two said nothing of keys, the other's word stands.
        let keys = if !same_life || (other.at >= self.at && other.keys.is_some()) { other.keys } else { known.or(other.keys) };
        *self = Self { incarnation: other.incarnation, at, keys };
    }
}

impl Hearts {
    /// The node showed that it lives.
    pub fn heard(&self, node: NodeId, heard: Heard) {
        let mut fresh = self.fresh.lock().unwrap_or_else(PoisonError::into_inner);
        match fresh.entry(node) {
            Entry::Vacant(new) => drop(new.insert(heard)),
            Entry::Occupied(mut known) => known.get_mut().then(heard),
        }
    }

    /// Everything since the last call.
    pub fn take(&self) -> HashMap<NodeId, Heard> {
        std::mem::take(&mut *self.fresh.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// The leader knows everything that was heard before `until`.
    pub fn leader_knows(&self, until: Instant) {
        self.known.send_replace(until);
    }

    /// Up to when the leader knows.
    pub fn known(&self) -> watch::Receiver<Instant> {
        self.known.subscribe()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn what_is_said_later_counts_and_a_life_says_it_anew() {
        let (hearts, began) = (Hearts::default(), Instant::now());
        let node: NodeId = "n1".parse().unwrap();
        let hear = |incarnation, after_s, seals: Option<u32>| {
            let keys = seals.map(|seals| HeldKeys { opens: vec![seals], seals });
            let at = began + Duration::from_secs(after_s);
            hearts.heard("n1".parse().unwrap(), Heard { incarnation: Incarnation(incarnation), at, keys });
        };
        let taken = || {
            let heard = hearts.take().remove(&node).unwrap();
            (heard.incarnation.0, (heard.at - began).as_secs(), heard.keys.map(|k| k.seals))
        };
        hear(1, 5, Some(1));
        hear(1, 6, None);
        hear(1, 4, Some(0));
        assert_eq!(taken(), (1, 6, Some(1)), "a report says nothing of keys, and what is put back is older");
        hear(1, 6, None);
        hear(1, 4, Some(1));
        assert_eq!(taken(), (1, 6, Some(1)));
        hear(1, 5, Some(1));
        hear(2, 6, None);
        hear(1, 7, Some(3));
        assert_eq!(taken(), (2, 6, None));
        assert!(hearts.take().is_empty());
    }
}

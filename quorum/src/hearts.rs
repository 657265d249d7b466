//! What this member heard of its agents: in memory, folded into one summary a second for the leader.

use lattice_model::{Incarnation, NodeId};
use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::Instant;
use tokio::sync::watch;

/// Nodes heard of since they were last handed on.
#[derive(Debug)]
pub struct Hearts {
    fresh: Mutex<HashMap<NodeId, (Incarnation, Instant)>>,
    /// Everything heard before this moment is known to the leader.
    known: watch::Sender<Instant>,
}

impl Default for Hearts {
    fn default() -> Self {
        Self { fresh: Mutex::new(HashMap::new()), known: watch::Sender::new(Instant::now()) }
    }
}

impl Hearts {
    /// The node showed that it lives.
    pub fn heard(&self, node: NodeId, incarnation: Incarnation, at: Instant) {
        let mut fresh = self.fresh.lock().unwrap_or_else(PoisonError::into_inner);
        let last = fresh.entry(node).or_insert((incarnation, at));
        if incarnation >= last.0 {
            *last = (incarnation, last.1.max(at));
        }
    }

    /// Everything since the last call.
    pub fn take(&self) -> HashMap<NodeId, (Incarnation, Instant)> {
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

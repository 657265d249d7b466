//! What the applied log changed, told to those who watch.
//!
//! ```text
//!   machine ──ChangeSet──▶ history (bounded) ◀── watches read on from their place; one that it has left behind is cut off
//!           ──node──▶ that node's session wakes and reads its desired list anew (latest value, never a queue);
//!                     every session wakes for other gossip keys
//! ```

use crate::history::{ChangeSet, Compacted, History};
use crate::ledger::{Changed, Ledger};
use crate::wire::WatchPlace;
use lattice_model::NodeId;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::{Notify, watch};

/// Where changes are told.
#[derive(Debug)]
pub struct Changes {
    history: Mutex<History>,
    /// Wakes those who watch.
    newer: watch::Sender<()>,
    sessions: Mutex<HashMap<NodeId, Arc<Notify>>>,
}

impl Changes {
    /// From this state on.
    pub fn since(ledger: &Ledger) -> Self {
        let history = Mutex::new(History::new(ledger.place()));
        Self { history, newer: watch::Sender::new(()), sessions: Mutex::new(HashMap::new()) }
    }

    fn history(&self) -> MutexGuard<'_, History> {
        self.history.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Keeps about so many bytes of changes.
    pub fn keep(&self, bytes_max: usize) {
        self.history().keep(bytes_max);
    }

    /// See [`History::after`].
    pub fn after(&self, place: WatchPlace, most: usize) -> Result<Vec<Arc<ChangeSet>>, Compacted> {
        self.history().after(place, most)
    }

    /// Wakes at each change.
    pub fn newer(&self) -> watch::Receiver<()> {
        self.newer.subscribe()
    }

    /// Wakes at each change of what `node` is to do, and of the gossip keys. A newer session of the node takes an older one's place.
    pub fn session(&self, node: NodeId) -> Arc<Notify> {
        let notify = Arc::new(Notify::new());
        self.sessions.lock().unwrap_or_else(PoisonError::into_inner).insert(node, Arc::clone(&notify));
        notify
    }

    /// The session is over, unless a newer one took its place.
    pub fn session_over(&self, node: &NodeId, notify: &Arc<Notify>) {
        let mut sessions = self.sessions.lock().unwrap_or_else(PoisonError::into_inner);
        if sessions.get(node).is_some_and(|n| Arc::ptr_eq(n, notify)) {
            sessions.remove(node);
        }
    }

    /// Tells what an entry changed. Called while the ledger cannot be read, so that nobody sees one without the other.
    pub fn tell(&self, ledger: &Ledger, changed: Changed) {
        if changed.keyring {
            self.wake_sessions();
        } else if !changed.desired.is_empty() {
            let sessions = self.sessions.lock().unwrap_or_else(PoisonError::into_inner);
            for notify in changed.desired.iter().filter_map(|node| sessions.get(node)) {
                notify.notify_one();
            }
        }
        let set = ChangeSet::of(ledger, changed);
        if !set.is_empty() {
            self.history().push(set);
            self.newer.send_replace(());
        }
    }

    /// Tells that everything may have changed: this is another state. Called while the ledger cannot be read, as well.
    pub fn tell_everything(&self, ledger: &Ledger) {
        self.history().restart(ledger.place());
        self.wake_sessions();
        self.newer.send_replace(());
    }

    fn wake_sessions(&self) {
        for notify in self.sessions.lock().unwrap_or_else(PoisonError::into_inner).values() {
            notify.notify_one();
        }
    }
}

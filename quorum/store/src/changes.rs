//! Distributes the changes made by applied log entries to watchers.
//!
//! ```text
//!   machine ──ChangeSet──▶ history (bounded) ◀── each watch reads from its place; one that is too slow is ended
//!           ──node──▶ that node's session wakes and reads its desired list again (latest value, no queue);
//!                     all sessions wake for changed gossip keys and for revocations
//! ```

use lattice_ledger::history::{ChangeSet, Compacted, History};
use lattice_ledger::{Changed, Ledger, WatchPlace};
use lattice_model::NodeId;
use parking_lot::{Mutex, MutexGuard};
use std::collections::HashMap;
use std::sync::{Arc, Weak};
use tokio::sync::{Notify, watch};

/// The distributor of changes.
#[derive(Debug)]
pub struct Changes {
    history: Mutex<History>,
    /// Wakes watchers.
    newer: watch::Sender<()>,
    sessions: Mutex<HashMap<NodeId, Vec<Weak<Notify>>>>,
    revocations: watch::Sender<()>,
}

impl Changes {
    /// Starts with an empty history after this state.
    pub fn since(ledger: &Ledger) -> Self {
        let history = Mutex::new(History::new(ledger.place()));
        let sessions = Mutex::new(HashMap::new());
        Self { history, newer: watch::Sender::new(()), sessions, revocations: watch::Sender::new(()) }
    }

    fn history(&self) -> MutexGuard<'_, History> {
        self.history.lock()
    }

    /// Sets the approximate size of the history to keep, in bytes.
    pub fn keep(&self, bytes_max: usize) {
        self.history().keep(bytes_max);
    }

    /// See [`History::after`].
    pub fn after(&self, place: WatchPlace, most: usize) -> Result<Vec<Arc<ChangeSet>>, Compacted> {
        self.history().after(place, most)
    }

    /// Notifies of each change.
    pub fn newer(&self) -> watch::Receiver<()> {
        self.newer.subscribe()
    }

    /// Notifies when a name is revoked.
    pub fn revocations(&self) -> watch::Receiver<()> {
        self.revocations.subscribe()
    }

    /// Notifies of each change of the desired list of `node`, of the gossip keys and of the
    /// revocations, until it is dropped. A node may briefly have two sessions, one of them relayed
    /// by a peer: both are notified, because either may be the one that stays.
    pub fn session(&self, node: NodeId) -> Arc<Notify> {
        let notify = Arc::new(Notify::new());
        let mut sessions = self.sessions();
        let of_node = sessions.entry(node).or_default();
        of_node.retain(|session| session.strong_count() > 0);
        of_node.push(Arc::downgrade(&notify));
        notify
    }

    /// Removes the node's sessions that were dropped.
    pub fn session_over(&self, node: &NodeId) {
        let mut sessions = self.sessions();
        if let Some(of_node) = sessions.get_mut(node) {
            of_node.retain(|session| session.strong_count() > 0);
            if of_node.is_empty() {
                sessions.remove(node);
            }
        }
    }

    fn sessions(&self) -> MutexGuard<'_, HashMap<NodeId, Vec<Weak<Notify>>>> {
        self.sessions.lock()
    }

    /// Publishes the changes of an entry. Called while the ledger is locked for writing, so that
    /// nobody sees the new state without its changes.
    pub fn publish(&self, ledger: &Ledger, changed: Changed) {
        if changed.keyring || changed.revocations {
            self.wake_sessions();
        } else if !changed.desired.is_empty() {
            let sessions = self.sessions();
            wake(changed.desired.iter().filter_map(|node| sessions.get(node)));
        }
        if changed.revocations {
            self.revocations.send_replace(());
        }
        let set = ChangeSet::of(ledger, changed);
        if !set.is_empty() {
            self.history().push(set);
            self.newer.send_replace(());
        }
    }

    /// Publishes that the whole state was replaced. Also called while the ledger is locked for
    /// writing.
    pub fn publish_everything(&self, ledger: &Ledger) {
        self.history().restart(ledger.place());
        self.wake_sessions();
        self.revocations.send_replace(());
        self.newer.send_replace(());
    }

    fn wake_sessions(&self) {
        wake(self.sessions().values());
    }
}

fn wake<'a>(nodes: impl Iterator<Item = &'a Vec<Weak<Notify>>>) {
    for session in nodes.flatten().filter_map(Weak::upgrade) {
        session.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn when_one_of_a_nodes_two_sessions_is_dropped_the_other_is_woken() {
        let changes = Changes::since(&Ledger::default());
        let node: NodeId = "n1".parse().unwrap();
        let (direct, relayed) = (changes.session(node.clone()), changes.session(node.clone()));
        drop(relayed);
        changes.session_over(&node);
        changes.wake_sessions();
        assert!(futures::poll!(std::pin::pin!(direct.notified())).is_ready());
        drop(direct);
        changes.session_over(&node);
        assert!(changes.sessions().is_empty());
    }
}

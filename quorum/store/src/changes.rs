//! Distributes the changes made by applied log entries to watchers.
//!
//! ```text
//!   machine ──ChangeSet──▶ history (bounded) ◀── each watch reads from its place; one that is too slow is ended
//!           ──node, allocation──▶ wakes only the watches of that record, so that a change costs nothing for others
//!           ──node──▶ that node's session wakes and reads its desired list again (latest value, no queue);
//!                     all sessions wake for changed gossip keys and for revocations
//! ```

use lattice_ledger::history::{ChangeSet, ChangedPhases, Compacted, History};
use lattice_ledger::{Changed, Ledger, WatchCursor};
use lattice_model::{AllocationId, NodeId, Revision};
use parking_lot::{Mutex, MutexGuard};
use std::collections::HashMap;
use std::hash::Hash;
use std::sync::{Arc, Weak};
use tokio::sync::{Notify, watch};

/// The distributor of changes.
#[derive(Debug)]
pub struct Changes {
    history: Mutex<History>,
    /// Wakes the watches of more than one record.
    newer: watch::Sender<()>,
    /// Locked after the history. A watch is woken only while the history is locked.
    narrow: Mutex<NarrowWatches>,
    sessions: Mutex<HashMap<NodeId, Vec<Weak<Notify>>>>,
    revocations: watch::Sender<()>,
}

impl Changes {
    /// Starts with an empty history after this state.
    pub fn since(ledger: &Ledger) -> Self {
        let history = Mutex::new(History::new(ledger.place()));
        let (narrow, sessions) = (Mutex::default(), Mutex::default());
        Self { history, newer: watch::Sender::new(()), narrow, sessions, revocations: watch::Sender::new(()) }
    }

    fn history(&self) -> MutexGuard<'_, History> {
        self.history.lock()
    }

    /// Sets the approximate size of the history to keep, in bytes.
    pub fn keep(&self, bytes_max: usize) {
        self.history().keep(bytes_max);
    }

    /// See [`History::after`].
    pub fn after(&self, place: WatchCursor, most: usize) -> Result<Vec<Arc<ChangeSet>>, Compacted> {
        self.history().after(place, most)
    }

    /// Notifies of each change.
    pub fn newer(&self) -> watch::Receiver<()> {
        self.newer.subscribe()
    }

    /// Creates a narrow watch: until it is dropped, only changes of `topic` wake it.
    pub fn narrow(&self, topic: Topic) -> Arc<Narrow> {
        let narrow = Arc::new(Narrow::default());
        let mut all = self.narrow.lock();
        let watches = match topic {
            Topic::Node(node) => all.nodes.entry(node).or_default(),
            Topic::Allocation(id) => all.allocations.entry(id).or_default(),
        };
        watches.push(Arc::downgrade(&narrow));
        narrow
    }

    /// Removes the dropped watches of `topic`.
    pub fn narrow_over(&self, topic: &Topic) {
        let mut all = self.narrow.lock();
        match topic {
            Topic::Node(node) => remove_dropped(&mut all.nodes, node),
            Topic::Allocation(id) => remove_dropped(&mut all.allocations, id),
        }
    }

    /// The newest revision, if the watch has taken every entry up to it that concerns the watch.
    pub fn taken_up_to(&self, narrow: &Narrow) -> Option<Revision> {
        let history = self.history();
        narrow.first.lock().is_none().then(|| history.newest())
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
            let mut history = self.history();
            self.wake_narrow(&set);
            history.push(set);
            drop(history);
            self.newer.send_replace(());
        }
    }

    /// Must be called while the history is locked. Otherwise a watch could pass the entry as one that
    /// does not concern it.
    fn wake_narrow(&self, set: &ChangeSet) {
        let all = self.narrow.lock();
        let wake = |watches: Option<&Watches>| {
            watches.into_iter().flatten().filter_map(Weak::upgrade).for_each(|watch| watch.concerned_by(set.revision));
        };
        let changed = set.allocations.iter().map(|allocation| allocation.id).chain(set.phases.iter().map(|phases| phases.change.id));
        changed.for_each(|id| wake(all.allocations.get(&id)));
        if !all.nodes.is_empty() {
            let nodes = set.nodes.iter().map(|node| &node.id).chain(&set.nodes_removed);
            let of_allocations = set.allocations.iter().flat_map(|allocation| allocation.nodes());
            // A node gets only the phases of its own shares.
            let of_shares = set.phases.iter().flat_map(ChangedPhases::nodes);
            nodes.chain(of_allocations).chain(of_shares).for_each(|node| wake(all.nodes.get(node)));
            for attempt in set.allocations.iter().flat_map(|allocation| &allocation.attempts) {
                wake(all.nodes.get(&attempt.head));
                attempt.node_ids().unwrap_or_default().iter().for_each(|node| wake(all.nodes.get(node)));
            }
        }
    }

    /// Publishes that the whole state was replaced. Also called while the ledger is locked for
    /// writing.
    pub fn publish_everything(&self, ledger: &Ledger) {
        let mut history = self.history();
        history.restart(ledger.place());
        // Each watch then finds that the history no longer contains its place.
        let all = self.narrow.lock();
        let watches = all.nodes.values().chain(all.allocations.values()).flatten();
        watches.filter_map(Weak::upgrade).for_each(|watch| watch.concerned_by(Revision(0)));
        drop(all);
        drop(history);
        self.wake_sessions();
        self.revocations.send_replace(());
        self.newer.send_replace(());
    }

    fn wake_sessions(&self) {
        wake(self.sessions().values());
    }
}

/// The one record that a narrow watch is about.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Topic {
    /// A node, and the allocations that have, or had, a share on it.
    Node(NodeId),
    Allocation(AllocationId),
}

/// What wakes a narrow watch.
#[derive(Debug, Default)]
pub struct Narrow {
    /// The first entry that concerns the watch and was not taken.
    first: Mutex<Option<Revision>>,
    notify: Notify,
}

impl Narrow {
    fn concerned_by(&self, revision: Revision) {
        self.first.lock().get_or_insert(revision);
        self.notify.notify_one();
    }

    /// Takes the first entry that concerns the watch since the last call. The watch may skip the
    /// entries before it, and reads all later ones.
    pub fn take(&self) -> Option<Revision> {
        self.first.lock().take()
    }

    /// Waits until there may be such an entry.
    pub async fn notified(&self) {
        self.notify.notified().await;
    }
}

type Watches = Vec<Weak<Narrow>>;

#[derive(Debug, Default)]
struct NarrowWatches {
    nodes: HashMap<NodeId, Watches>,
    allocations: HashMap<AllocationId, Watches>,
}

fn remove_dropped<K: Eq + Hash>(all: &mut HashMap<K, Watches>, topic: &K) {
    if let Some(watches) = all.get_mut(topic) {
        watches.retain(|watch| watch.strong_count() > 0);
        if watches.is_empty() {
            all.remove(topic);
        }
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
    use lattice_ledger::{Action, Command};
    use lattice_model::Timestamp;

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

    fn changed(nodes: &[&str]) -> Changed {
        Changed { nodes: nodes.iter().map(|node| node.parse().unwrap()).collect(), ..Changed::default() }
    }

    #[tokio::test]
    async fn a_narrow_watch_is_woken_by_its_record_alone_and_by_a_new_state() {
        let mut ledger = Ledger::default();
        let changes = Changes::since(&ledger);
        let topic = Topic::Node("n1".parse().unwrap());
        let (first, second) = (changes.narrow(topic.clone()), changes.narrow(topic.clone()));
        let mut publish = |nodes: &[&str]| {
            let revision = Revision(ledger.revision().0 + 1);
            ledger.apply(revision, &Command { at: Timestamp(1), action: Action::AdvanceTime });
            // The set contains the removal of a node that is not registered.
            changes.publish(&ledger, changed(nodes));
            ledger.revision()
        };
        let other = publish(&["n2"]);
        assert_eq!((first.take(), changes.taken_up_to(&first)), (None, Some(other)));
        let own = publish(&["n1", "n2"]);
        assert_eq!(changes.taken_up_to(&first), None, "it has not taken the entry");
        for watch in [&first, &second] {
            watch.notified().await;
            assert_eq!((watch.take(), watch.take()), (Some(own), None));
        }
        changes.publish_everything(&ledger);
        assert_eq!((first.take(), second.take()), (Some(Revision(0)), Some(Revision(0))));
        drop(first);
        changes.narrow_over(&topic);
        changes.publish_everything(&ledger);
        assert_eq!(second.take(), Some(Revision(0)), "the other watch of the same node stays");
        drop(second);
        changes.narrow_over(&topic);
        assert!(changes.narrow.lock().nodes.is_empty());
    }
}

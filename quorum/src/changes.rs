//! What the applied log changed, told to those who watch.
//!
//! ```text
//!   machine ──ChangeSet──▶ broadcast (bounded) ──▶ watches: one that falls behind is cut off
//!           ──node──▶ that node's session wakes and reads its desired list anew (latest value, never a queue)
//! ```

use crate::ledger::{Changed, Ledger};
use lattice_model::{Allocation, Node, NodeId, Revision, Tenant};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use tokio::sync::{Notify, broadcast};

/// Change sets that a slow watch may lie behind.
const BEHIND_MAX: usize = 4096;

/// What one log entry changed.
#[derive(Clone, Debug)]
pub enum ChangeSet {
    /// These things.
    Entry {
        revision: Revision,
        nodes: Vec<Arc<Node>>,
        allocations: Vec<Arc<Allocation>>,
        /// `None`: deleted.
        tenants: Vec<(String, Option<Arc<Tenant>>)>,
    },
    /// Everything may have changed: a snapshot was installed.
    Everything,
}

/// Where changes are told.
#[derive(Debug)]
pub struct Changes {
    watches: broadcast::Sender<Arc<ChangeSet>>,
    sessions: Mutex<HashMap<NodeId, Arc<Notify>>>,
}

impl Default for Changes {
    fn default() -> Self {
        Self { watches: broadcast::Sender::new(BEHIND_MAX), sessions: Mutex::new(HashMap::new()) }
    }
}

impl Changes {
    /// Every change set from now on.
    pub fn subscribe(&self) -> broadcast::Receiver<Arc<ChangeSet>> {
        self.watches.subscribe()
    }

    /// Wakes at each change of what `node` is to do. A newer session of the node takes an older one's place.
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
        if !changed.desired.is_empty() {
            let sessions = self.sessions.lock().unwrap_or_else(PoisonError::into_inner);
            for notify in changed.desired.iter().filter_map(|node| sessions.get(node)) {
                notify.notify_one();
            }
        }
        if changed.nodes.is_empty() && changed.allocations.is_empty() && changed.tenants.is_empty() {
            return;
        }
        let set = ChangeSet::Entry {
            revision: ledger.revision(),
            nodes: changed.nodes.iter().filter_map(|id| ledger.node(id).cloned()).collect(),
            allocations: changed.allocations.iter().filter_map(|id| ledger.allocation(*id).cloned()).collect(),
            tenants: changed.tenants.into_iter().map(|name| (name.clone(), ledger.tenant(&name).cloned())).collect(),
        };
        // Without a watch there is nobody to tell.
        let _nobody = self.watches.send(Arc::new(set));
    }

    /// Tells that everything may have changed.
    pub fn tell_everything(&self) {
        for notify in self.sessions.lock().unwrap_or_else(PoisonError::into_inner).values() {
            notify.notify_one();
        }
        let _nobody = self.watches.send(Arc::new(ChangeSet::Everything));
    }
}

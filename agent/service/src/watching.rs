//! Following one allocation: its changes from the quorum, and before those the head's reports about
//! its entry point.

use super::Api;
use super::heads::{Entry, Head};
use lattice_membership::cluster::Cluster;
use lattice_mesh::frame;
use lattice_mesh::open::{EntryItem, EntryOpen, Open};
use lattice_meshd::entry;
use lattice_model::{Allocation, Epoch, NodeId, Principal};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{mpsc, watch};

/// The pause between two queries for an allocation that the watch lacks, while the quorum has
/// nothing newer or does not answer.
const QUERY_PAUSE: Duration = Duration::from_millis(200);

/// Follows one allocation on the agent's own watch of the cluster; while the quorum is unreachable,
/// the last known state stays.
pub(super) struct AllocationWatch {
    api: Api,
    cluster: watch::Receiver<Arc<Cluster>>,
    now: Allocation,
    /// The user for whom the head is asked.
    user: Option<Principal>,
    head: Option<Listening>,
}

/// One connection to a head's reports.
struct Listening {
    epoch: Epoch,
    _head: Arc<Head>,
    entry: watch::Receiver<Entry>,
    /// The head sends no more reports.
    silent: bool,
}

impl AllocationWatch {
    /// `user`: the user for whom the head is asked as well; it reveals no more than the quorum
    /// would.
    pub(super) fn new(api: Api, now: Allocation, user: Option<Principal>) -> Self {
        let cluster = api.cluster.clone();
        let mut watch = Self { api, cluster, now, user, head: None };
        watch.ask_head();
        watch
    }

    /// The last known state of the allocation.
    pub(super) fn now(&self) -> &Allocation {
        &self.now
    }

    /// The state of its entry point, as its head reported under the present epoch.
    pub(super) fn entry(&self) -> Entry {
        self.head.as_ref().filter(|h| h.epoch == self.now.epoch).map_or(Entry::Unknown, |h| *h.entry.borrow())
    }

    /// Waits until something newer is known. Cancel-safe.
    pub(super) async fn changed(&mut self) {
        loop {
            let newer = match self.look() {
                Seen::Newer(newer) => Some(*newer),
                // It ended and is no longer in the watch: ask the quorum how.
                Seen::Gone => match self.api.allocation_of_id(self.now.id).await {
                    Ok(ended) if ended.revision > self.now.revision => Some(ended),
                    Ok(_) | Err(_) => {
                        tokio::time::sleep(QUERY_PAUSE).await;
                        None
                    }
                },
                Seen::Nothing => tokio::select! {
                    changed = self.cluster.changed() => {
                        if changed.is_err() {
                            std::future::pending::<()>().await;
                        }
                        None
                    }
                    reported = head_reported(&mut self.head) => {
                        if reported {
                            return;
                        }
                        None
                    }
                },
            };
            if let Some(newer) = newer.filter(|a| a.revision > self.now.revision) {
                self.now = newer;
                self.ask_head();
                return;
            }
        }
    }

    fn look(&mut self) -> Seen {
        let cluster = self.cluster.borrow_and_update();
        match cluster.allocations.get(&self.now.id) {
            Some(known) if known.revision > self.now.revision => Seen::Newer(Box::new(known.clone())),
            Some(_) => Seen::Nothing,
            // The watch has every allocation up to its revision that has not ended.
            None if cluster.fresh && cluster.revision > self.now.revision && !self.now.state.is_terminal() => Seen::Gone,
            None => Seen::Nothing,
        }
    }

    /// Asks the head of each claim once.
    fn ask_head(&mut self) {
        let now = &self.now;
        let (Some(user), Some(node)) = (&self.user, now.head()) else { return };
        if now.state.is_terminal() || self.head.as_ref().is_some_and(|h| h.epoch == now.epoch) {
            return;
        }
        let head = self.api.heads.listen((now.id, now.epoch, user.uid), || {
            let open = EntryOpen { allocation: *now.id.0.as_bytes(), epoch: now.epoch.0, uid: user.uid, user: user.name.clone() };
            if node == &self.api.context.setup.me {
                entry::follow(&self.api.context, open)
            } else {
                elsewhere(&self.api, node.clone(), open)
            }
        });
        let mut entry = head.entry.clone();
        entry.mark_changed();
        self.head = Some(Listening { epoch: now.epoch, _head: head, entry, silent: false });
    }
}

/// Waits for a report of the head; `false`: there will be no more. Cancel-safe.
async fn head_reported(head: &mut Option<Listening>) -> bool {
    match head {
        Some(head) if !head.silent => {
            head.silent = head.entry.changed().await.is_err();
            !head.silent
        }
        Some(_) | None => std::future::pending().await,
    }
}

/// The reports of a head on another node. An unreachable head gives none: the quorum reports later.
fn elsewhere(api: &Api, node: NodeId, open: EntryOpen) -> mpsc::Receiver<EntryItem> {
    let (out, items) = mpsc::channel(2);
    let api = api.clone();
    api.context.clone().work.tasks.spawn(async move {
        let Some(address) = api.mesh_address(&node).await else { return };
        let mesh = &api.context.work.mesh;
        let Ok((mut send, mut recv)) = mesh.open(&node, &address).await else { return };
        if frame::write(&mut send, &Open::Entry(open)).await.is_err() {
            return;
        }
        loop {
            let item = tokio::select! {
                () = out.closed() => return,
                item = frame::read::<EntryItem, _>(&mut recv) => item,
            };
            let Ok(item) = item else { return };
            if out.send(item).await.is_err() {
                return;
            }
        }
    });
    items
}

/// The allocation's state in the cluster's watch.
enum Seen {
    Newer(Box<Allocation>),
    Gone,
    Nothing,
}

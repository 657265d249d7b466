//! Watches on the entry points of allocations, which their heads report.

use lattice_mesh::open::EntryItem;
use lattice_model::{AllocationId, Epoch};
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::{Arc, Weak};
use tokio::sync::{mpsc, watch};
use tokio_util::task::AbortOnDropHandle;

/// The state of an entry point.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Entry {
    /// Nothing has been reported.
    Unknown,
    /// It was ordered to start: its nodes have log files.
    Runs,
    /// It ended by itself with this code, and the allocation with it.
    Ended { code: i32 },
}

impl Entry {
    pub(super) fn exit_code(self) -> Option<i32> {
        match self {
            Self::Unknown | Self::Runs => None,
            Self::Ended { code } => Some(code),
        }
    }
}

/// The heads that are followed: one request to a head serves all watchers of one user. All clones
/// share them.
#[derive(Clone, Default)]
pub struct Heads(Arc<Mutex<HashMap<Asked, Weak<Head>>>>);

/// The allocation, the epoch, and the uid of the user.
type Asked = (AllocationId, Epoch, u32);

/// The reports of one head. The agent stops following it when the last holder drops this.
pub(super) struct Head {
    pub(super) entry: watch::Receiver<Entry>,
    _listening: AbortOnDropHandle<()>,
}

impl Heads {
    pub(super) fn listen(&self, asked: Asked, ask: impl FnOnce() -> mpsc::Receiver<EntryItem>) -> Arc<Head> {
        let mut heads = self.0.lock();
        if let Some(head) = heads.get(&asked).and_then(Weak::upgrade) {
            return head;
        }
        heads.retain(|_, head| head.strong_count() > 0);
        let (sender, entry) = watch::channel(Entry::Unknown);
        let mut items = ask();
        let listening = tokio::spawn(async move {
            while let Some(item) = items.recv().await {
                sender.send_replace(match item {
                    EntryItem::Runs => Entry::Runs,
                    EntryItem::Ended { code } => Entry::Ended { code },
                });
            }
        });
        let head = Arc::new(Head { entry, _listening: AbortOnDropHandle::new(listening) });
        heads.insert(asked, Arc::downgrade(&head));
        head
    }
}

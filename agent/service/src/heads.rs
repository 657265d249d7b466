//! Watches on the entry points of allocations, as their heads report them.

use lattice_mesh::open::EntryItem;
use lattice_model::{AllocationId, Epoch};
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::{Arc, Weak};
use tokio::sync::{mpsc, watch};
use tokio_util::task::AbortOnDropHandle;

/// How an entry point goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Entry {
    /// Nothing was heard of it.
    Unknown,
    /// Its nodes have files.
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

/// The heads that are listened to: each is asked once, whoever wants to know. Cloneable; all clones are one.
#[derive(Clone, Default)]
pub struct Heads(Arc<Mutex<HashMap<Asked, Weak<Head>>>>);

/// Which allocation's head, under which epoch, and for which uid.
type Asked = (AllocationId, Epoch, u32);

/// A head's word. Listening ends with the last who holds this.
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
        let (says, entry) = watch::channel(Entry::Unknown);
        let mut items = ask();
        let listening = tokio::spawn(async move {
            while let Some(item) = items.recv().await {
                says.send_replace(match item {
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

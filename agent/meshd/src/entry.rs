//! How an allocation's entry point goes, from its head to the agent of a user who waits for it.
//!
//! ```text
//!   driver ── journal, synced ──▶ NodeView ──▶ EntryItem ── here, or over the mesh ──▶ the user's agent
//!                             └─▶ report ── session ──▶ quorum
//! ```
//!
//! The head's word comes before the quorum's, and is as good (decision 0020): what the journal has is reported, whoever is
//! killed meanwhile. It is given only where the command's own end ends the allocation, whatever else happens; how all else ends, the quorum says.

use crate::context::Shared;
use lattice_mesh::open::{EntryItem, EntryOpen, vouched};
use lattice_model::{AllocationId, Epoch, RequeuePolicy};
use std::time::Duration;
use tokio::sync::mpsc;

/// How long an allocation that is not here yet is waited for: the list that brings it may be slower than the question.
const COMES_WITHIN: Duration = Duration::from_secs(10);
/// An entry point begins and ends.
const ITEMS: usize = 2;

/// Tells how the entry point of an allocation goes that is headed here, to its owner. Ends early where this node cannot tell.
pub fn follow(context: &Shared, open: EntryOpen) -> mpsc::Receiver<EntryItem> {
    let (out, items) = mpsc::channel(ITEMS);
    tokio::spawn(tell(context.clone(), open, out));
    items
}

async fn tell(context: Shared, open: EntryOpen, out: mpsc::Sender<EntryItem>) {
    let (allocation, epoch) = (AllocationId(uuid::Uuid::from_bytes(open.allocation)), Epoch(open.epoch));
    let mut view = context.work.view.clone();
    let comes = async {
        loop {
            view.mark_unchanged();
            match context.work.workers.of_epoch(allocation, epoch) {
                Some(worker) => return Some(worker),
                None => view.changed().await.ok()?,
            }
        }
    };
    let worker = tokio::select! {
        () = out.closed() => return,
        worker = tokio::time::timeout(COMES_WITHIN, comes) => worker.ok().flatten(),
    };
    let Some(worker) = worker else { return };
    let share = worker.share;
    let headed_here = share.nodes.first().is_some_and(|(node, _)| node == &context.setup.me);
    if !headed_here || !vouched(open.uid, &open.user).may_act_for(&share.owner) {
        return;
    }
    let mut standing = worker.standing;
    let mut runs = false;
    loop {
        let ended = view.borrow_and_update().ended.get(&(allocation, epoch)).copied();
        if let Some(code) = ended {
            // What may be requeued may be so before the quorum hears of this end.
            if share.spec.requeue == RequeuePolicy::Never {
                let _ = out.send(EntryItem::Ended { code }).await;
            }
            return;
        }
        if !runs && *standing.borrow_and_update() == lattice_registry::Standing::Running {
            runs = true;
            if out.send(EntryItem::Runs).await.is_err() {
                return;
            }
        }
        tokio::select! {
            () = out.closed() => return,
            changed = view.changed() => if changed.is_err() { return },
            changed = standing.changed() => if changed.is_err() { return },
        }
    }
}

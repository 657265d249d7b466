//! Progress of an allocation's entry point, from its head to the agent of a user who waits for it.
//!
//! ```text
//!   driver ── journal, synced ──▶ NodeView ──▶ EntryItem ── here, or over the mesh ──▶ the user's agent
//!                             └─▶ report ── session ──▶ quorum
//! ```
//!
//! The head's report comes before the quorum's and is as reliable (decision 0020): an end in the
//! journal will be reported to the quorum whatever is killed meanwhile. The head gives it only if
//! the command's own end ends the allocation, whatever else happens; of all other ends the quorum
//! informs.

use crate::context::Shared;
use lattice_mesh::open::{EntryItem, EntryOpen, vouched};
use lattice_model::{AllocationId, Epoch, RequeuePolicy};
use std::time::Duration;
use tokio::sync::mpsc;

/// How long to wait for an allocation that is not here yet: the list that names it may arrive later
/// than the request.
const COMES_WITHIN: Duration = Duration::from_secs(10);
/// At most two items: the entry point begins, and it ends.
const ITEMS: usize = 2;

/// Reports to the owner of an allocation with its head here how its entry point proceeds. Ends
/// early if this node cannot know.
pub fn follow(context: &Shared, open: EntryOpen) -> mpsc::Receiver<EntryItem> {
    let (out, items) = mpsc::channel(ITEMS);
    context.work.tasks.spawn(tell(context.clone(), open, out));
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
            // Work that may be requeued may be requeued before the quorum receives this end.
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

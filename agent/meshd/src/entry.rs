//! Progress of an allocation's entry point, from its head to the agent of a user who waits for it.
//!
//! ```text
//!   driver ── journal, synced ──▶ NodeView ──▶ EntryItem ── here, or over the mesh ──▶ the user's agent
//!                             └─▶ report ── session ──▶ quorum
//! ```
//!
//! The head's report comes before the quorum's and is as reliable (decision 0020): an end in the
//! journal will be reported to the quorum whatever is killed meanwhile. The head reports an end
//! only if the command ended by itself and the work is never requeued. All other ends come from
//! the quorum.

use crate::context::Shared;
use lattice_mesh::open::{EntryItem, EntryOpen, vouched};
use lattice_model::{AllocationId, Epoch, RequeuePolicy};
use std::time::Duration;
use tokio::sync::mpsc;

/// How long to wait for an allocation that is not here yet: the list that names it may arrive later
/// than the request.
const ARRIVAL_WAIT: Duration = Duration::from_secs(10);
/// At most two items: the entry point begins, and it ends.
const ITEMS_QUEUE_LEN: usize = 2;

/// Reports how the entry point of an allocation proceeds, if the head is here and the user may act
/// for the owner. The stream ends early if this node cannot know.
pub fn follow(context: &Shared, open: EntryOpen) -> mpsc::Receiver<EntryItem> {
    let (out, items) = mpsc::channel(ITEMS_QUEUE_LEN);
    context.work.tasks.spawn(send_items(context.clone(), open, out));
    items
}

async fn send_items(context: Shared, open: EntryOpen, out: mpsc::Sender<EntryItem>) {
    let (allocation, epoch) = (AllocationId(uuid::Uuid::from_bytes(open.allocation)), Epoch(open.epoch));
    let mut view = context.work.view.clone();
    let comes = async {
        loop {
            view.mark_unchanged();
            match context.work.allocations.of_epoch(allocation, epoch) {
                Some(handle) => return Some(handle),
                None => view.changed().await.ok()?,
            }
        }
    };
    let handle = tokio::select! {
        () = out.closed() => return,
        handle = tokio::time::timeout(ARRIVAL_WAIT, comes) => handle.ok().flatten(),
    };
    let Some(handle) = handle else { return };
    let share = handle.share;
    let headed_here = share.nodes.head().as_ref() == Some(&context.setup.me);
    if !headed_here || !vouched(open.uid, &open.user).may_act_for(&share.owner) {
        return;
    }
    let mut run_state = handle.run_state;
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
        if !runs && *run_state.borrow_and_update() == lattice_registry::RunState::Running {
            runs = true;
            if out.send(EntryItem::Runs).await.is_err() {
                return;
            }
        }
        tokio::select! {
            () = out.closed() => return,
            changed = view.changed() => if changed.is_err() { return },
            changed = run_state.changed() => if changed.is_err() { return },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::{Agent, id};
    use lattice_agent_common::node_view::NodeView;
    use lattice_model::DesiredShare;
    use lattice_registry::RunState;
    use std::sync::Arc;

    fn asked(agent: &Agent, uid: u32) -> mpsc::Receiver<EntryItem> {
        follow(&agent.context, EntryOpen { allocation: *id(1).0.as_bytes(), epoch: 2, uid, user: "u".into() })
    }

    /// The driver's journal has the end of this claim's entry point.
    fn ended(agent: &Agent, epoch: u64, code: i32) {
        agent.bench.view.send_modify(|view| {
            Arc::make_mut(view).ended.insert((id(1), Epoch(epoch)), code);
        });
    }

    #[tokio::test]
    async fn the_owner_gets_start_and_end_even_if_it_asks_before_the_entry_point_exists() {
        let agent = Agent::new();
        let mut items = asked(&agent, 1000);
        tokio::task::yield_now().await;
        let held = agent.holds(1, |_| {});
        agent.bench.view.send_replace(Arc::new(NodeView::default()));
        held.senders.run_state.send_replace(RunState::Running);
        assert_eq!(items.recv().await, Some(EntryItem::Runs));
        ended(&agent, 1, 9);
        // The connection to its shim breaks, and is made again.
        for run_state in [RunState::NotYet, RunState::Running] {
            held.senders.run_state.send_replace(run_state);
            tokio::task::yield_now().await;
        }
        ended(&agent, 2, 3);
        assert_eq!(items.recv().await, Some(EntryItem::Ended { code: 3 }), "of its own claim, and it began once");
        assert_eq!(items.recv().await, None);
    }

    #[tokio::test]
    async fn work_that_may_begin_again_gets_no_end_from_this_node() {
        let agent = Agent::new();
        let _held = agent.holds(1, |share| share.spec.requeue = RequeuePolicy::OnNodeFailure);
        ended(&agent, 2, 3);
        assert_eq!(asked(&agent, 1000).recv().await, None);
    }

    #[tokio::test]
    async fn others_and_nodes_that_are_not_its_head_learn_nothing() {
        let agent = Agent::new();
        ended(&agent, 2, 3);
        let swapped = |share: &mut DesiredShare| share.nodes = share.nodes.iter().rev().cloned().collect();
        let held = agent.holds(1, swapped);
        assert_eq!(asked(&agent, 1000).recv().await, None, "its head is n2");
        agent.context.work.allocations.forget(&held.handle.share);
        let _held = agent.holds(1, |_| {});
        assert_eq!(asked(&agent, 1001).recv().await, None);
        assert_eq!(asked(&agent, 1000).recv().await, Some(EntryItem::Ended { code: 3 }));
    }
}

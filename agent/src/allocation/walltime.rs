//! The end of work whose walltime is over while it is being saved.
//!
//! Walltime is not extended: the shim has sent SIGTERM, and SIGKILL follows when the grace is over. A checkpoint that is whole by then
//! makes the allocation Suspended; one that is not is discarded. Which one is waited for is written down: an agent that is killed
//! between that checkpoint's end and the allocation's finds it there, and says what it would have said.

use crate::checkpoint::owner_of;
use crate::context::Shared;
use crate::journal;
use lattice_model::{CheckpointId, CheckpointRef, DesiredShare, EndReason};
use lattice_node::{CheckpointEnd, CheckpointPhase, Checkpointing, Event};
use lattice_quorum::pack::with_causes;
use lattice_runtime::failpoint::{self, Point};
use lattice_runtime::shim::{ShimDir, boottime_ms};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;

/// How much longer than the head's grace its word is waited for on the other nodes, while they hear the quorum: cut off with it, the
/// head could not say it.
const HEAD_LATE: Duration = Duration::from_secs(10);
/// How often it is looked whether the quorum is heard.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// Between two heartbeats that the quorum acknowledged, in milliseconds, while it is heard.
const HEARD_MS: u64 = 5_000;
/// How long it may take until a checkpoint that is given up is over on all nodes that can be reached.
const GIVEN_UP: Duration = Duration::from_secs(10);

/// On the head: the checkpoint that is under way, which is waited for from now on, or the one that a former life waited for.
pub(super) async fn awaited(context: &Shared, share: &DesiredShare, dir: &ShimDir) -> Option<watch::Receiver<Checkpointing>> {
    let view = context.checkpoints.last(share.allocation, share.epoch)?;
    let (id, is_over) = {
        let state = view.borrow();
        (state.id, state.end().is_some())
    };
    let path = dir.walltime_awaits();
    if is_over {
        let noted = tokio::task::spawn_blocking(move || std::fs::read_to_string(path)).await.ok()?.ok()?;
        return (noted.parse::<CheckpointId>().ok() == Some(id)).then_some(view);
    }
    let written = tokio::task::spawn_blocking(move || journal::replace(&path, id.to_string().as_bytes())).await;
    if let Ok(Err(error)) = written {
        tracing::warn!(allocation = %share.allocation, %error, "that its walltime waits for a checkpoint is not written down");
    }
    Some(view)
}

/// On the head: waits for the checkpoint that is under way, no longer than the grace, and says how the work ended.
pub(super) async fn end(context: Shared, share: Arc<DesiredShare>, mut view: watch::Receiver<Checkpointing>) {
    context.checkpoints.counts().walltime_conflict();
    failpoint::pass(Point::WalltimeAwaitsSave);
    let _ = tokio::time::timeout(context.grace, view.wait_for(|state| state.end().is_some())).await;
    let (allocation, epoch) = (share.allocation, share.epoch);
    let (id, made) = {
        let state = view.borrow();
        (state.id, whole(&state).cloned())
    };
    let Some(checkpoint) = made else {
        tracing::warn!(%allocation, checkpoint = %id, "walltime was over before the checkpoint was whole: it is discarded");
        context.tell(Event::Ended { allocation, epoch, reason: EndReason::WalltimeExceeded }).await;
        let _ = tokio::time::timeout(GIVEN_UP, view.wait_for(|state| state.end().is_some())).await;
        return discard(&context, &share, &view).await;
    };
    // Its report goes before that of the end, whether the quorum is there or not.
    let reason = EndReason::WalltimeSaved { checkpoint: checkpoint.id };
    context.tell(Event::Checkpointed { allocation, epoch, checkpoint }).await;
    context.tell(Event::Ended { allocation, epoch, reason }).await;
}

/// On the other nodes: the head decides, and says it to the quorum, which ends the work here as well. Where it does not, walltime was over.
pub(super) async fn end_without_head(context: Shared, share: Arc<DesiredShare>) {
    tokio::time::sleep(context.grace).await;
    let mut late = Duration::ZERO;
    while late < HEAD_LATE {
        tokio::time::sleep(LOOK_EVERY).await;
        let newest = *context.acknowledged.borrow();
        if newest.is_some_and(|at| boottime_ms().saturating_sub(at) < HEARD_MS) {
            late += LOOK_EVERY;
        }
    }
    let (allocation, epoch) = (share.allocation, share.epoch);
    context.tell(Event::Ended { allocation, epoch, reason: EndReason::WalltimeExceeded }).await;
}

/// The checkpoint, where all of it is in the store.
fn whole(state: &Checkpointing) -> Option<&CheckpointRef> {
    match &state.phase {
        CheckpointPhase::Committing { checkpoint } | CheckpointPhase::Ended(CheckpointEnd::Complete { checkpoint }) => Some(checkpoint),
        CheckpointPhase::Asking { .. }
        | CheckpointPhase::Saving { .. }
        | CheckpointPhase::Deferred { .. }
        | CheckpointPhase::Verifying { .. }
        | CheckpointPhase::Ended(CheckpointEnd::Failed { .. } | CheckpointEnd::TimedOut { .. }) => None,
    }
}

/// What is left in the store of one that came to nothing. What cannot be removed now is no checkpoint, and takes room.
async fn discard(context: &Shared, share: &DesiredShare, view: &watch::Receiver<Checkpointing>) {
    let (id, over) = {
        let state = view.borrow();
        (state.id, state.end().is_some() && whole(&state).is_none())
    };
    let Ok(store) = context.checkpoints.store() else { return };
    if over && let Err(error) = store.remove(&owner_of(share), id).await {
        let allocation = share.allocation;
        tracing::warn!(%allocation, checkpoint = %id, error = with_causes(&error), "what is left of it stays in the store");
    }
}

//! The end of work whose walltime is over, where it can save itself.
//!
//! ```text
//!   begun ─────────────▶ asked to save itself ──────────▶ walltime is over ──────────▶ SIGKILL
//!                          as early as that takes           SIGTERM      whole by then: Suspended
//! ```
//!
//! Before its walltime ends the head asks it for a checkpoint, so early that it can be whole in time. Walltime is not extended: the
//! shim sends SIGTERM, and SIGKILL when the grace is over. A checkpoint that is whole by then makes the allocation Suspended; one
//! that is not is discarded. Which one is waited for is written down: an agent that is killed follows that one again, and says of the
//! allocation's end what it would have said.

use crate::checkpoint;
use crate::context::Shared;
use crate::journal;
use crate::mesh::checkpoint::{CheckpointItem, CheckpointOpen};
use lattice_model::checkpoint::{DEADLINE_MS, walltime_lead_ms};
use lattice_model::{Backoff, CheckpointId, CheckpointRef, DesiredShare, EndReason};
use lattice_node::{CheckpointEnd, CheckpointPhase, Checkpointing, Event};
use lattice_runtime::failpoint::{self, Point};
use lattice_runtime::shim::{ShimDir, boottime_ms};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use tokio_util::task::AbortOnDropHandle;
use uuid::Uuid;

/// Between two tries to ask work for its last checkpoint: the first while it is not settled yet, longer ones where it was asked in vain.
const ASK_AGAIN: Backoff = Backoff::new(Duration::from_millis(500), Duration::from_secs(60));
/// How much longer than the head's grace its word is waited for on the other nodes, while they hear the quorum: cut off with it, the
/// head could not say it.
const HEAD_LATE: Duration = Duration::from_secs(10);
/// How often it is looked whether the quorum is heard.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// Between two heartbeats that the quorum acknowledged, in milliseconds, while it is heard.
const HEARD_MS: u64 = 5_000;

/// On the head, when its processes are about to begin: since when its walltime runs, by the boot's clock, is on the disk.
pub(super) async fn begins(share: &DesiredShare, dir: &ShimDir) {
    // Told to begin again after a restart of the agent: the first time is the one that counts.
    if share.spec.checkpoint.is_none() || began_at(share, dir).await.is_some() {
        return;
    }
    let (path, text) = (dir.walltime_began(), format!("{} {}", share.epoch, boottime_ms()));
    let written = tokio::task::spawn_blocking(move || journal::replace(&path, text.as_bytes())).await;
    if let Ok(Err(error)) = written {
        tracing::warn!(allocation = %share.allocation, %error, "since when its walltime runs is not written down: it is not asked to save itself before that");
    }
}

fn walltime_ms(share: &DesiredShare) -> Option<u64> {
    share.spec.walltime.map(|time| u64::try_from(time.as_millis()).unwrap_or(u64::MAX))
}

async fn began_at(share: &DesiredShare, dir: &ShimDir) -> Option<u64> {
    let text = read(dir.walltime_began()).await?;
    let (epoch, at) = text.split_once(' ')?;
    (epoch.parse() == Ok(share.epoch.0)).then(|| at.parse().ok()).flatten()
}

async fn read(path: std::path::PathBuf) -> Option<String> {
    tokio::task::spawn_blocking(move || std::fs::read_to_string(path)).await.ok()?.ok()
}

/// The checkpoint that the end of this claim's walltime waits for, as it was written down. One that was asked for before another end
/// is not waited for at this one.
async fn noted(share: &DesiredShare, dir: &ShimDir) -> Option<CheckpointId> {
    let text = read(dir.walltime_awaits()).await?;
    let (id, end) = text.split_once(' ')?;
    // The directory may be that of a former claim.
    (end == end_name(share)).then(|| id.parse().ok()).flatten()
}

/// Tells the end of one claim's walltime from all others.
fn end_name(share: &DesiredShare) -> String {
    format!("{} {}", share.epoch, walltime_ms(share).unwrap_or(u64::MAX))
}

async fn note(share: &DesiredShare, dir: &ShimDir, id: CheckpointId) {
    let (path, text) = (dir.walltime_awaits(), format!("{id} {}", end_name(share)));
    let written = tokio::task::spawn_blocking(move || journal::replace(&path, text.as_bytes())).await;
    if let Ok(Err(error)) = &written {
        tracing::warn!(allocation = %share.allocation, %error, "that its walltime waits for a checkpoint is not written down");
    }
}

/// On the head: asks it to save itself before its walltime ends; for as long as the handle lives.
pub(super) fn warn(context: &Shared, share: &Arc<DesiredShare>, dir: &ShimDir) -> Option<AbortOnDropHandle<()>> {
    let walltime_ms = walltime_ms(share).filter(|_| share.spec.checkpoint.is_some())?;
    let warning = warning(Arc::clone(context), Arc::clone(share), dir.clone(), walltime_ms);
    Some(AbortOnDropHandle::new(tokio::spawn(warning)))
}

async fn warning(context: Shared, share: Arc<DesiredShare>, dir: ShimDir, walltime_ms: u64) {
    let Some(began_ms) = began_at(&share, &dir).await else { return };
    let ends_ms = began_ms.saturating_add(walltime_ms);
    let until = |lead_ms: u64| Duration::from_millis(ends_ms.saturating_sub(lead_ms).saturating_sub(boottime_ms()));
    // It is never asked earlier than this, and where no checkpoint was made by then, not before the second look.
    for look_ms in [walltime_ms / 2, walltime_ms / 10] {
        tokio::time::sleep(until(look_ms)).await;
        let known = context.cluster.borrow().allocations.get(&share.allocation).cloned();
        let took_ms = match known {
            Some(allocation) => checkpoint::broker::last_took_ms(&context, &allocation).await,
            None => None,
        };
        let lead_ms = walltime_lead_ms(walltime_ms, took_ms);
        if lead_ms > walltime_ms / 10 || look_ms == walltime_ms / 10 {
            tokio::time::sleep(until(lead_ms)).await;
            break;
        }
    }
    // One that a former life asked for is asked for again: it is that one.
    let mut id = noted(&share, &dir).await.unwrap_or_else(|| CheckpointId(Uuid::new_v4()));
    // Under way in the grace it is waited for as any other.
    let grace_ms = u64::try_from(context.grace.as_millis()).unwrap_or(u64::MAX);
    let length_ms = ends_ms.saturating_sub(boottime_ms()).saturating_add(grace_ms).clamp(DEADLINE_MS.0, DEADLINE_MS.1);
    let mut pauses = ASK_AGAIN;
    let mut pause = pauses.next_pause();
    while boottime_ms() < ends_ms {
        let open = CheckpointOpen {
            id: *id.0.as_bytes(),
            allocation: *share.allocation.0.as_bytes(),
            epoch: share.epoch.0,
            length_ms,
            uid: share.owner.uid,
            user: share.owner.name.clone(),
        };
        match checkpoint::begin(&context, &open).await {
            Ok(mut items) => {
                let mut noted_as = None;
                while let Some(item) = items.recv().await {
                    // Another one's, where there was one under way.
                    let (CheckpointItem::Stands { id, .. } | CheckpointItem::Ended { id, .. }) = &item else { return };
                    let made = CheckpointId(Uuid::from_bytes(*id));
                    if noted_as != Some(made) {
                        tracing::info!(allocation = %share.allocation, checkpoint = %made, "its walltime ends soon: it saves itself");
                        note(&share, &dir, made).await;
                        noted_as = Some(made);
                        failpoint::pass(Point::WalltimeWarned);
                    }
                    match item {
                        CheckpointItem::Ended { complete: true, .. } => return,
                        CheckpointItem::Ended { why, .. } => {
                            tracing::warn!(allocation = %share.allocation, %why, "asked before its walltime ends it did not save itself");
                        }
                        CheckpointItem::Stands { .. } | CheckpointItem::Refused { .. } => {}
                    }
                }
                // Its own, or another one's that was under way: there may be time for one more, by an id that was not used.
                id = CheckpointId(Uuid::new_v4());
                pause = pauses.next_pause();
            }
            Err(why) => {
                tracing::debug!(allocation = %share.allocation, %why, "it cannot be asked to save itself now; its walltime ends soon");
            }
        }
        tokio::time::sleep(pause).await;
    }
}

/// What the end of walltime has to do with checkpoints.
pub(super) enum Awaited {
    /// One is under way, or was when a former life waited for it.
    UnderWay(watch::Receiver<Checkpointing>),
    /// What it was asked for before its walltime ended is whole, and the quorum has it or its report is under way.
    Whole(CheckpointRef),
}

/// On the head: the checkpoint that is under way, which is waited for from now on, or the one that a former life waited for; or
/// what the work saved when it was asked before its walltime ended.
pub(super) async fn awaited(context: &Shared, share: &DesiredShare, dir: &ShimDir) -> Option<Awaited> {
    let view = context.checkpoints.last(share.allocation, share.epoch)?;
    let (id, is_over, made) = {
        let state = view.borrow();
        (state.id, state.end().is_some(), whole(&state).cloned())
    };
    if !is_over {
        note(share, dir, id).await;
        return Some(Awaited::UnderWay(view));
    }
    let noted = noted(share, dir).await?;
    // The one here is that one or was begun after it. Where it failed, that one may be whole all the same.
    let committed = || context.cluster.borrow().allocations.get(&share.allocation).and_then(|a| a.checkpoint.clone());
    match made.or_else(|| committed().filter(|c| (c.epoch, c.id) == (share.epoch, noted))) {
        Some(checkpoint) => Some(Awaited::Whole(checkpoint)),
        None => (noted == id).then_some(Awaited::UnderWay(view)),
    }
}

/// On the head: says that the work saved itself before its walltime was over.
pub(super) async fn end_saved(context: Shared, share: Arc<DesiredShare>, checkpoint: CheckpointRef) {
    let (allocation, epoch) = (share.allocation, share.epoch);
    let reason = EndReason::WalltimeSaved { checkpoint: checkpoint.id };
    // Its report goes before that of the end, whether the quorum is there or not. It may be told twice.
    context.tell(Event::Checkpointed { allocation, epoch, checkpoint }).await;
    context.tell(Event::Ended { allocation, epoch, reason }).await;
}

/// On the head: waits for the checkpoint that is under way, no longer than the grace, and says how the work ended.
pub(super) async fn end(context: Shared, share: Arc<DesiredShare>, mut view: watch::Receiver<Checkpointing>) {
    if view.borrow().end().is_none() {
        context.checkpoints.counts().walltime_conflict();
    }
    failpoint::pass(Point::WalltimeAwaitsSave);
    let _ = tokio::time::timeout(context.grace, view.wait_for(|state| state.end().is_some())).await;
    let (allocation, epoch) = (share.allocation, share.epoch);
    let (id, made) = {
        let state = view.borrow();
        (state.id, whole(&state).cloned())
    };
    let Some(checkpoint) = made else {
        // By who drives it, once the allocation is being ended: it knows what the quorum was told.
        tracing::warn!(%allocation, checkpoint = %id, "walltime was over before the checkpoint was whole: it is discarded");
        context.tell(Event::Ended { allocation, epoch, reason: EndReason::WalltimeExceeded }).await;
        return;
    };
    end_saved(context, share, checkpoint).await;
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

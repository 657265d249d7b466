//! The end of walltime for work that can save itself.
//!
//! ```text
//!   begun ─────────────▶ asked to save itself ──────────▶ walltime is over ──────────▶ SIGKILL
//!                          early enough to finish           SIGTERM      whole by then: Suspended
//! ```
//!
//! Before walltime ends, the head asks the work for a checkpoint, early enough for it to be whole
//! in time. Walltime is not extended: the shim sends SIGTERM, and SIGKILL after the grace. A
//! checkpoint that is whole by then makes the allocation Suspended; an incomplete one is discarded.
//! The id of the awaited checkpoint is written to the disk, so an agent that is killed waits for
//! the same one after its restart, and reports the same end.

use crate::handles::Shared;
use lattice_agent_checkpoint as checkpoint;
use lattice_agent_checkpoint::BeginError;
use lattice_agent_common::files;
use lattice_mesh::checkpoint::{CheckpointItem, CheckpointOpen};
use lattice_model::{CheckpointId, CheckpointRef, DesiredShare, EndReason, millis};
use lattice_node::walltime::{
    AwaitedCheckpoint, HeadWait, HeadWaitAction, LastSave, LastSaveAction, LastSaveEvent, awaited_checkpoint, end_of_walltime,
};
use lattice_node::{Checkpointing, Event};
use lattice_runtime::failpoint::{self, Point};
use lattice_runtime::shim::{ShimDir, boottime_ms};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{mpsc, watch};
use tokio_util::task::AbortOnDropHandle;
use uuid::Uuid;

/// On the head, just before its processes begin: writes to the disk when walltime began, in
/// milliseconds since boot.
pub(super) async fn begins(share: &DesiredShare, dir: &ShimDir) {
    // After a restart of the agent this may be called again; the first time counts.
    if share.spec.checkpoint.is_none() || began_at(share, dir).await.is_some() {
        return;
    }
    let (path, text) = (dir.walltime_began(), format!("{} {}", share.epoch, boottime_ms()));
    let written = tokio::task::spawn_blocking(move || files::replace(&path, text.as_bytes())).await;
    if let Ok(Err(error)) = written {
        tracing::warn!(allocation = %share.allocation, %error, "the start of its walltime could not be saved: the work is not asked to save itself before its walltime ends");
    }
}

fn walltime_ms(share: &DesiredShare) -> Option<u64> {
    share.spec.walltime.map(millis)
}

async fn began_at(share: &DesiredShare, dir: &ShimDir) -> Option<u64> {
    let text = read(dir.walltime_began()).await?;
    let (epoch, at) = text.split_once(' ')?;
    (epoch.parse() == Ok(share.epoch.0)).then(|| at.parse().ok()).flatten()
}

async fn read(path: std::path::PathBuf) -> Option<String> {
    tokio::task::spawn_blocking(move || std::fs::read_to_string(path)).await.ok()?.ok()
}

/// The checkpoint id that was noted for the end of this claim's walltime. An id that was noted for
/// another walltime does not count.
async fn noted(share: &DesiredShare, dir: &ShimDir) -> Option<CheckpointId> {
    let text = read(dir.walltime_awaits()).await?;
    let (id, end) = text.split_once(' ')?;
    // The walltime may have been changed since.
    (end == end_name(share)).then(|| id.parse().ok()).flatten()
}

/// Identifies the end of one claim's walltime.
fn end_name(share: &DesiredShare) -> String {
    format!("{} {}", share.epoch, walltime_ms(share).unwrap_or(u64::MAX))
}

async fn note(share: &DesiredShare, dir: &ShimDir, id: CheckpointId) {
    let (path, text) = (dir.walltime_awaits(), format!("{id} {}", end_name(share)));
    let written = tokio::task::spawn_blocking(move || files::replace(&path, text.as_bytes())).await;
    if let Ok(Err(error)) = &written {
        tracing::warn!(allocation = %share.allocation, %error, "the id of the checkpoint to make before the walltime ends could not be stored");
    }
}

/// On the head: asks the work to save itself before walltime ends, as long as the handle lives.
pub(super) fn warn(context: &Shared, share: &Arc<DesiredShare>, dir: &ShimDir) -> Option<AbortOnDropHandle<()>> {
    let walltime_ms = walltime_ms(share).filter(|_| share.spec.checkpoint.is_some())?;
    let warning = warning(Arc::clone(context), Arc::clone(share), dir.clone(), walltime_ms);
    Some(AbortOnDropHandle::new(tokio::spawn(warning)))
}

async fn warning(context: Shared, share: Arc<DesiredShare>, dir: ShimDir, walltime_ms: u64) {
    let Some(began_ms) = began_at(&share, &dir).await else { return };
    // A request of an earlier run is repeated with its id, which finds the same checkpoint.
    let id = noted(&share, &dir).await.unwrap_or_else(new_id);
    let (mut save, first) = LastSave::begin(began_ms, walltime_ms, grace_ms(&context), id);
    let (mut actions, mut answers) = (vec![first], None);
    loop {
        for action in std::mem::take(&mut actions) {
            let event = match action {
                LastSaveAction::WaitUntil { at_ms } => {
                    wait_until(at_ms).await;
                    LastSaveEvent::Due
                }
                LastSaveAction::FindCost => LastSaveEvent::CostKnown { took_ms: checkpoint_took_ms(&context, &share).await },
                LastSaveAction::Ask { id, length_ms } => match ask(&context, &share, id, length_ms).await {
                    Ok(items) => {
                        answers = Some(items);
                        continue;
                    }
                    Err(why) => {
                        tracing::debug!(allocation = %share.allocation, %why, "the work cannot be asked to save itself now; its walltime ends soon");
                        LastSaveEvent::NotAsked
                    }
                },
                LastSaveAction::Note { id } => {
                    tracing::info!(allocation = %share.allocation, checkpoint = %id, "its walltime ends soon: the work saves itself");
                    note(&share, &dir, id).await;
                    failpoint::pass(Point::WalltimeWarned);
                    continue;
                }
            };
            save.handle(boottime_ms(), event, &mut actions);
        }
        if save.is_over() {
            return;
        }
        if !actions.is_empty() {
            continue;
        }
        let Some(items) = &mut answers else { return };
        let event = match items.recv().await {
            Some(item) => answered(&share, item),
            None => {
                answers = None;
                LastSaveEvent::AnswersOver { next: new_id() }
            }
        };
        save.handle(boottime_ms(), event, &mut actions);
    }
}

fn new_id() -> CheckpointId {
    CheckpointId(Uuid::new_v4())
}

fn grace_ms(context: &Shared) -> u64 {
    millis(context.setup.grace)
}

async fn wait_until(at_ms: u64) {
    tokio::time::sleep(Duration::from_millis(at_ms.saturating_sub(boottime_ms()))).await;
}

async fn checkpoint_took_ms(context: &Shared, share: &DesiredShare) -> Option<u64> {
    let known = context.cluster.borrow().allocations.get(&share.allocation).cloned();
    checkpoint::broker::last_took_ms(&context.checkpoint, &known?).await
}

async fn ask(
    context: &Shared,
    share: &DesiredShare,
    id: CheckpointId,
    length_ms: u64,
) -> Result<mpsc::Receiver<CheckpointItem>, BeginError> {
    let open = CheckpointOpen {
        id: *id.0.as_bytes(),
        allocation: *share.allocation.0.as_bytes(),
        epoch: share.epoch.0,
        length_ms,
        uid: share.owner.uid,
        user: share.owner.name.clone(),
    };
    checkpoint::begin(&context.checkpoint, &open).await
}

/// Converts a report of the checkpoint's head. If another checkpoint was under way already, the
/// report is about that one.
fn answered(share: &DesiredShare, item: CheckpointItem) -> LastSaveEvent {
    let id_of = |id| CheckpointId(Uuid::from_bytes(id));
    match item {
        CheckpointItem::Refused { .. } => LastSaveEvent::Refused,
        CheckpointItem::Progress { id, .. } => LastSaveEvent::UnderWay { id: id_of(id) },
        CheckpointItem::Ended { id, why, complete, .. } => {
            if !complete {
                tracing::warn!(allocation = %share.allocation, %why, "the work was asked before its walltime ended, and did not save itself");
            }
            LastSaveEvent::Ended { id: id_of(id), is_whole: complete }
        }
    }
}

/// The checkpoint at the end of walltime.
pub(super) enum Awaited {
    /// A checkpoint is under way, or was when an earlier run of the agent waited for it.
    UnderWay(watch::Receiver<Checkpointing>),
    /// The checkpoint requested before the end is whole. The quorum has it, or its report is under
    /// way.
    Whole(CheckpointRef),
}

/// On the head: the checkpoint to wait for, because it is under way or an earlier run of the agent
/// waited for it; or the one that the work saved when it was asked before walltime ended.
pub(super) async fn awaited(context: &Shared, share: &DesiredShare, dir: &ShimDir) -> Option<Awaited> {
    let view = context.checkpoint.checkpoints.last(share.allocation, share.epoch)?;
    // Copied before the disk is read: a checkpoint that ends meanwhile counts as under way.
    let last = view.borrow().clone();
    let noted = noted(share, dir).await;
    let committed = context.cluster.borrow().allocations.get(&share.allocation).and_then(|a| a.checkpoint.clone());
    match awaited_checkpoint(&last, noted, share.epoch, committed.as_deref()) {
        AwaitedCheckpoint::UnderWay => {
            note(share, dir, last.id).await;
            Some(Awaited::UnderWay(view))
        }
        AwaitedCheckpoint::Again => Some(Awaited::UnderWay(view)),
        AwaitedCheckpoint::Whole(checkpoint) => Some(Awaited::Whole(checkpoint)),
        AwaitedCheckpoint::Nothing => None,
    }
}

/// On the head: reports that the work saved itself before its walltime was over.
pub(super) async fn end_saved(context: Shared, share: Arc<DesiredShare>, checkpoint: CheckpointRef) {
    let reason = EndReason::WalltimeSaved { checkpoint: checkpoint.id };
    report_end(&context, &share, Some(checkpoint), reason).await;
}

/// Reports the checkpoint before the end, whether the quorum is connected or not. May be repeated.
async fn report_end(context: &Shared, share: &DesiredShare, checkpoint: Option<CheckpointRef>, reason: EndReason) {
    let (allocation, epoch) = (share.allocation, share.epoch);
    if let Some(checkpoint) = checkpoint {
        context.driver.send(Event::Checkpointed { allocation, epoch, checkpoint }).await;
    }
    context.driver.send(Event::Ended { allocation, epoch, reason }).await;
}

/// On the head: waits for the checkpoint under way, at most for the grace, and reports how the work
/// ended.
pub(super) async fn end(context: Shared, share: Arc<DesiredShare>, mut view: watch::Receiver<Checkpointing>) {
    if view.borrow().end().is_none() {
        context.checkpoint.checkpoints.counts().walltime_conflict();
    }
    failpoint::pass(Point::WalltimeAwaitsSave);
    let _ = tokio::time::timeout(context.setup.grace, view.wait_for(|state| state.end().is_some())).await;
    let (id, (made, reason)) = {
        let state = view.borrow();
        (state.id, end_of_walltime(&state))
    };
    if made.is_none() {
        // The checkpoint's driver discards it once the allocation is being ended, because only the
        // driver knows whether the quorum was notified.
        tracing::warn!(allocation = %share.allocation, checkpoint = %id, "walltime ended before the checkpoint was complete: the checkpoint is discarded");
    }
    report_end(&context, &share, made, reason).await;
}

/// On the other nodes: the head decides and reports to the quorum, which ends the work here as
/// well. If the head does not, this node reports that walltime was exceeded.
pub(super) async fn end_without_head(context: Shared, share: Arc<DesiredShare>) {
    let (mut wait, mut action) = HeadWait::begin(boottime_ms(), grace_ms(&context));
    while let HeadWaitAction::LookAt { at_ms } = action {
        wait_until(at_ms).await;
        let acknowledged_ms = *context.acknowledged.borrow();
        action = wait.handle(boottime_ms(), acknowledged_ms);
    }
    report_end(&context, &share, None, EndReason::WalltimeExceeded).await;
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_builders::Bench;
    use lattice_model::test_builders::desired_share;
    use lattice_model::{AllocationId, CheckpointPolicy, Epoch};

    fn share() -> DesiredShare {
        let mut share = desired_share(AllocationId(Uuid::from_u128(1)));
        (share.spec.checkpoint, share.spec.walltime) = (Some(CheckpointPolicy::default()), Some(Duration::from_secs(60)));
        share
    }

    fn dir(bench: &Bench, share: &DesiredShare) -> ShimDir {
        let dir = ShimDir::of(&bench.handles.setup.state_dir, share.allocation, share.epoch);
        std::fs::create_dir_all(&dir.0).unwrap();
        dir
    }

    #[tokio::test]
    async fn walltime_begins_once_for_each_claim_of_work_that_can_save_itself() {
        let (bench, share) = (Bench::new(), share());
        let dir = dir(&bench, &share);
        let mut unable = share.clone();
        unable.spec.checkpoint = None;
        begins(&unable, &dir).await;
        assert!(!dir.walltime_began().exists());
        begins(&share, &dir).await;
        let began = began_at(&share, &dir).await.unwrap();
        std::fs::write(dir.walltime_began(), format!("{} {}", share.epoch, began - 1)).unwrap();
        begins(&share, &dir).await;
        assert_eq!(began_at(&share, &dir).await, Some(began - 1), "the first time counts");
        let next = DesiredShare { epoch: Epoch(2), ..share };
        assert_eq!(began_at(&next, &dir).await, None, "the file is of an earlier claim");
        for torn in ["", "1", "1 x", "x 5"] {
            std::fs::write(dir.walltime_began(), torn).unwrap();
            assert_eq!(began_at(&next, &dir).await, None, "{torn:?}");
        }
    }

    #[tokio::test]
    async fn a_checkpoint_is_awaited_again_only_at_the_end_for_which_it_was_noted() {
        let (bench, share, id) = (Bench::new(), share(), CheckpointId(Uuid::from_u128(7)));
        let dir = dir(&bench, &share);
        assert_eq!(noted(&share, &dir).await, None);
        note(&share, &dir, id).await;
        assert_eq!(noted(&share, &dir).await, Some(id));
        assert_eq!(noted(&DesiredShare { epoch: Epoch(2), ..share.clone() }, &dir).await, None);
        let mut longer = share.clone();
        longer.spec.walltime = Some(Duration::from_secs(61));
        assert_eq!(noted(&longer, &dir).await, None, "its walltime was changed since");
        std::fs::write(dir.walltime_awaits(), format!("x {}", end_name(&share))).unwrap();
        assert_eq!(noted(&share, &dir).await, None);
    }

    #[tokio::test]
    async fn work_without_walltime_or_without_a_policy_is_not_warned() {
        let (bench, mut share) = (Bench::new(), share());
        let dir = dir(&bench, &share);
        assert!(warn(&bench.handles, &Arc::new(share.clone()), &dir).is_some());
        share.spec.walltime = None;
        assert!(warn(&bench.handles, &Arc::new(share.clone()), &dir).is_none());
        (share.spec.checkpoint, share.spec.walltime) = (None, Some(Duration::from_secs(60)));
        assert!(warn(&bench.handles, &Arc::new(share), &dir).is_none());
    }

    #[test]
    fn a_report_is_about_the_checkpoint_that_it_names() {
        let (share, id) = (share(), CheckpointId(Uuid::from_u128(7)));
        let bytes = *id.0.as_bytes();
        let ended =
            |complete| CheckpointItem::Ended { id: bytes, state: "failed".into(), why: String::new(), complete, step: None, bytes: 0 };
        let progress = CheckpointItem::Progress { id: bytes, state: "saving".into(), detail: String::new() };
        assert_eq!(answered(&share, progress), LastSaveEvent::UnderWay { id });
        assert_eq!(answered(&share, ended(true)), LastSaveEvent::Ended { id, is_whole: true });
        assert_eq!(answered(&share, ended(false)), LastSaveEvent::Ended { id, is_whole: false });
        assert_eq!(answered(&share, CheckpointItem::Refused { why: "no".into() }), LastSaveEvent::Refused);
    }

    #[tokio::test]
    async fn a_checkpoint_is_reported_before_the_end_that_it_explains() {
        let (mut bench, share, id) = (Bench::new(), share(), CheckpointId(Uuid::from_u128(7)));
        let (allocation, epoch) = (share.allocation, share.epoch);
        let checkpoint = CheckpointRef { id, epoch, step: Some(3), bytes: 5 };
        end_saved(Arc::clone(&bench.handles), Arc::new(share), checkpoint.clone()).await;
        let events: Vec<Event> = std::iter::from_fn(|| bench.events.try_recv().ok()).collect();
        let reason = EndReason::WalltimeSaved { checkpoint: id };
        assert_eq!(events, [Event::Checkpointed { allocation, epoch, checkpoint }, Event::Ended { allocation, epoch, reason }]);
    }
}

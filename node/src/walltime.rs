//! What the end of an allocation's walltime means, where the work can save itself. Times are milliseconds of the boot's clock.
//!
//! ```text
//!   head    LastSave: looks, asks, asks again ──▶ walltime is over ──▶ AwaitedCheckpoint ──▶ saved, or exceeded
//!   others                                        walltime is over ──▶ HeadWait ──────────▶ exceeded, where the head reports nothing
//! ```

mod last_save;

pub use last_save::{LastSave, LastSaveAction, LastSaveEvent};

use crate::checkpoint::{CheckpointEnd, CheckpointPhase, Checkpointing};
use lattice_model::{CheckpointId, CheckpointRef, EndReason, Epoch};

/// How much longer than the head's grace its report is waited for on the other nodes, while they hear the quorum: cut off with it, the
/// head could not report.
const HEAD_LATE_MS: u64 = 10_000;
/// How often it is looked whether the quorum is heard.
const LOOK_INTERVAL_MS: u64 = 1000;
/// Between two heartbeats that the quorum acknowledged, while it is heard.
const HEARD_WITHIN_MS: u64 = 5_000;

/// Whether an allocation's walltime is over on this node, and whether its meaning was decided.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Walltime {
    /// It runs.
    #[default]
    Running,
    /// It is over. The head decides once the shim reported all that it has.
    Over,
    /// It was decided what that means.
    Decided,
}

/// What happens to walltime.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WalltimeEvent {
    /// The shim, or a launch's head, reports that it is over.
    Over,
    /// The shim reported all that it has.
    Synced,
}

/// What decides about the end of walltime.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WalltimeFacts {
    /// Whether the work can save itself.
    pub saves: bool,
    /// Whether this node is the allocation's head.
    pub is_head: bool,
    /// Whether the shim reported all that it has, on the present line.
    pub is_synced: bool,
}

/// What is to be done about the end of walltime.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WalltimeAction {
    /// Notify the heads of launches.
    NotifyLaunches,
    /// Look for the checkpoint that this end waits for: [`awaited_checkpoint`].
    FindCheckpoint,
    /// Let the head report the end, as long as [`HeadWait`] says.
    AwaitHead,
    /// Report that the work ended because its walltime was over.
    ReportExceeded,
}

impl Walltime {
    /// Whether it is over.
    pub fn is_over(self) -> bool {
        match self {
            Self::Running => false,
            Self::Over | Self::Decided => true,
        }
    }

    /// Takes an event, which may come again. What is to be done goes to `out`, in order, each at most once.
    pub fn handle(&mut self, event: WalltimeEvent, facts: WalltimeFacts, out: &mut Vec<WalltimeAction>) {
        match (*self, event) {
            (Self::Running, WalltimeEvent::Over) => {
                *self = Self::Over;
                out.push(WalltimeAction::NotifyLaunches);
            }
            (Self::Over, WalltimeEvent::Over | WalltimeEvent::Synced) => {}
            (Self::Running, WalltimeEvent::Synced) | (Self::Decided, WalltimeEvent::Over | WalltimeEvent::Synced) => return,
        }
        let WalltimeFacts { saves, is_head, is_synced } = facts;
        let action = match (saves, is_head) {
            (false, _) => WalltimeAction::ReportExceeded,
            (true, false) => WalltimeAction::AwaitHead,
            (true, true) if is_synced => WalltimeAction::FindCheckpoint,
            // The head knows whether the work is being saved when its shim has reported all.
            (true, true) => return,
        };
        *self = Self::Decided;
        out.push(action);
    }
}

/// What the end of walltime has to do with checkpoints.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AwaitedCheckpoint {
    /// The last one is under way: it is awaited, and that is to be noted on the disk.
    UnderWay,
    /// The last one was awaited by a former life of the agent: it is awaited again.
    Again,
    /// What the work was asked for before its walltime ended is whole.
    Whole(CheckpointRef),
    /// None: walltime was exceeded.
    Nothing,
}

/// On the head: which checkpoint the end of walltime waits for. `last`: the newest one of this claim. `noted`: the one that was noted for
/// this end, so that an agent that is killed reports what it would have reported. `committed`: what the quorum has.
pub fn awaited_checkpoint(
    last: &Checkpointing,
    noted: Option<CheckpointId>,
    epoch: Epoch,
    committed: Option<&CheckpointRef>,
) -> AwaitedCheckpoint {
    if last.end().is_none() {
        return AwaitedCheckpoint::UnderWay;
    }
    let Some(noted) = noted else { return AwaitedCheckpoint::Nothing };
    // The last one is the noted one, or was begun after it. Where it failed, the noted one may be whole all the same.
    match whole(last).or(committed.filter(|c| (c.epoch, c.id) == (epoch, noted))) {
        Some(checkpoint) => AwaitedCheckpoint::Whole(checkpoint.clone()),
        None if noted == last.id => AwaitedCheckpoint::Again,
        None => AwaitedCheckpoint::Nothing,
    }
}

/// How the work ended whose walltime waited for this checkpoint, at the end of the grace or of the checkpoint. The checkpoint, where it is
/// whole, is reported before that.
pub fn end_of_walltime(state: &Checkpointing) -> (Option<CheckpointRef>, EndReason) {
    match whole(state) {
        Some(checkpoint) => (Some(checkpoint.clone()), EndReason::WalltimeSaved { checkpoint: checkpoint.id }),
        // Who drives it discards it, once the allocation is being ended: it knows what the quorum was told.
        None => (None, EndReason::WalltimeExceeded),
    }
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

/// On the other nodes: the head decides, and reports to the quorum, which ends the work here as well. Where that does not come, walltime
/// was exceeded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HeadWait {
    /// For how long the quorum was heard, and nothing came.
    late_ms: u64,
}

/// What is to be done while the head's report is awaited.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HeadWaitAction {
    /// Look at this time when the newest heartbeat was sent that the quorum acknowledged: [`HeadWait::handle`] takes it.
    LookAt { at_ms: u64 },
    /// Report that walltime was exceeded.
    ReportExceeded,
}

impl HeadWait {
    /// From the end of walltime on; `grace_ms`: how long the head waits itself. With the first thing to be done.
    pub fn begin(now_ms: u64, grace_ms: u64) -> (Self, HeadWaitAction) {
        let at_ms = now_ms.saturating_add(grace_ms).saturating_add(LOOK_INTERVAL_MS);
        (Self::default(), HeadWaitAction::LookAt { at_ms })
    }

    /// Takes when the newest heartbeat was sent that the quorum acknowledged.
    pub fn handle(&mut self, now_ms: u64, acknowledged_ms: Option<u64>) -> HeadWaitAction {
        if acknowledged_ms.is_some_and(|at_ms| now_ms.saturating_sub(at_ms) < HEARD_WITHIN_MS) {
            self.late_ms += LOOK_INTERVAL_MS;
        }
        if self.late_ms >= HEAD_LATE_MS {
            HeadWaitAction::ReportExceeded
        } else {
            HeadWaitAction::LookAt { at_ms: now_ms.saturating_add(LOOK_INTERVAL_MS) }
        }
    }
}

#[cfg(test)]
#[path = "walltime_tests.rs"]
mod tests;

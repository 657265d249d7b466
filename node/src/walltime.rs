//! What the end of an allocation's walltime means if the work can save itself. Times are
//! milliseconds since boot.
//!
//! ```text
//!   head    LastSave: looks, asks, asks again ──▶ walltime over ──▶ AwaitedCheckpoint ──▶ saved, or exceeded
//!   others                                        walltime over ──▶ HeadWait ──▶ exceeded, unless the head reports
//! ```

mod last_save;

pub use last_save::{LastSave, LastSaveAction, LastSaveEvent};

use crate::checkpoint::{CheckpointEnd, CheckpointPhase, Checkpointing};
use lattice_model::{CheckpointId, CheckpointRef, EndReason, Epoch};

/// How much longer than the head's grace the other nodes wait for its report, in milliseconds,
/// while they are connected to the quorum: a head that is cut off together with them could not
/// report.
const HEAD_REPORT_MARGIN_MS: u64 = 10_000;
/// How often a node checks whether the quorum answers it.
const CHECK_INTERVAL_MS: u64 = 1000;
/// The longest time since an acknowledged heartbeat with which the quorum counts as connected.
const CONNECTED_WITHIN_MS: u64 = 5_000;

/// Whether an allocation's walltime is over on this node, and whether its meaning has been decided.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Walltime {
    /// Walltime is not over.
    #[default]
    Running,
    /// Walltime is over. The head decides once the shim has reported everything.
    Over,
    /// Walltime is over, and its meaning has been decided.
    Decided,
}

/// An event of walltime.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WalltimeEvent {
    /// The shim, or a launch's head, reports that walltime is over.
    Over,
    /// The shim has reported everything.
    Synced,
}

/// The facts that decide what the end of walltime means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WalltimeFacts {
    /// Whether the work can save itself.
    pub saves: bool,
    /// Whether this node is the allocation's head.
    pub is_head: bool,
    /// Whether the shim has reported everything on the present connection.
    pub is_synced: bool,
}

/// What to do about the end of walltime.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WalltimeAction {
    /// Notify the heads of launches.
    NotifyLaunches,
    /// Find the checkpoint that this end waits for: [`awaited_checkpoint`].
    FindCheckpoint,
    /// Wait for the head to report the end, as long as [`HeadWait`] says.
    AwaitHead,
    /// Report that the work ended because its walltime was over.
    ReportExceeded,
}

impl Walltime {
    /// Whether walltime is over.
    pub fn is_over(self) -> bool {
        match self {
            Self::Running => false,
            Self::Over | Self::Decided => true,
        }
    }

    /// Handles an event, which may be repeated. Appends the actions to `out`, each at most once.
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
            // Until its shim has reported everything, the head does not know whether the work is being
            // saved.
            (true, true) => return,
        };
        *self = Self::Decided;
        out.push(action);
    }
}

/// The checkpoint for which the end of walltime waits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AwaitedCheckpoint {
    /// The last checkpoint is under way: wait for it, and note that on the disk.
    UnderWay,
    /// An earlier life of the agent waited for the last checkpoint: wait for it again.
    Again,
    /// The checkpoint that the work was asked for before its walltime ended is whole.
    Whole(CheckpointRef),
    /// None: walltime was exceeded.
    Nothing,
}

/// On the head: the checkpoint for which the end of walltime waits. `last`: the newest one of this
/// claim. `noted`: the one that was noted on the disk for this end, so that an agent that is killed
/// reports the same after its restart. `committed`: the quorum's last checkpoint of the allocation.
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
    // `last` is the noted one, or was begun after it. If `last` failed, the noted one may still be
    // whole.
    match whole(last).or(committed.filter(|c| (c.epoch, c.id) == (epoch, noted))) {
        Some(checkpoint) => AwaitedCheckpoint::Whole(checkpoint.clone()),
        None if noted == last.id => AwaitedCheckpoint::Again,
        None => AwaitedCheckpoint::Nothing,
    }
}

/// How work ended whose walltime waited for this checkpoint, at the end of the grace or of the
/// checkpoint. A whole checkpoint must be reported before the end.
pub fn end_of_walltime(state: &Checkpointing) -> (Option<CheckpointRef>, EndReason) {
    match whole(state) {
        Some(checkpoint) => (Some(checkpoint.clone()), EndReason::WalltimeSaved { checkpoint: checkpoint.id }),
        // The caller discards a checkpoint that is not whole once the allocation is being ended: it
        // knows what the quorum was notified of.
        None => (None, EndReason::WalltimeExceeded),
    }
}

/// The checkpoint, if all of it is in the store.
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

/// The wait on the other nodes: the head decides and reports to the quorum, which ends the work
/// here as well. If that does not happen, walltime was exceeded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HeadWait {
    /// How long the quorum has been connected without ending the work, in milliseconds.
    late_ms: u64,
}

/// What to do while the head's report is awaited.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HeadWaitAction {
    /// At this time, read when the newest acknowledged heartbeat was sent, and pass it to
    /// [`HeadWait::handle`].
    LookAt { at_ms: u64 },
    /// Report that walltime was exceeded.
    ReportExceeded,
}

impl HeadWait {
    /// Begins at the end of walltime; `grace_ms`: how long the head itself waits. Also gives the
    /// first action.
    pub fn begin(now_ms: u64, grace_ms: u64) -> (Self, HeadWaitAction) {
        let at_ms = now_ms.saturating_add(grace_ms).saturating_add(CHECK_INTERVAL_MS);
        (Self::default(), HeadWaitAction::LookAt { at_ms })
    }

    /// `acknowledged_ms`: when the newest heartbeat was sent that the quorum acknowledged.
    pub fn handle(&mut self, now_ms: u64, acknowledged_ms: Option<u64>) -> HeadWaitAction {
        if acknowledged_ms.is_some_and(|at_ms| now_ms.saturating_sub(at_ms) < CONNECTED_WITHIN_MS) {
            self.late_ms += CHECK_INTERVAL_MS;
        }
        if self.late_ms >= HEAD_REPORT_MARGIN_MS {
            HeadWaitAction::ReportExceeded
        } else {
            HeadWaitAction::LookAt { at_ms: now_ms.saturating_add(CHECK_INTERVAL_MS) }
        }
    }
}

#[cfg(test)]
#[path = "walltime_tests.rs"]
mod tests;

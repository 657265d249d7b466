//! Checkpoints that came to nothing, or too late: what is left of them in the store.
//!
//! ```text
//!   cut off: saves itself ─▶ manifest in the store ─▶ waits for the quorum ·········▶ heard again: claimed anew since ─▶ refused, discarded
//!   elsewhere:                              begins from the last one that the quorum has ─▶ saves itself ─▶ the last one now
//! ```
//!
//! What the quorum was not told of, or refuses, is nobody's to begin from. What it was told of goes only once the quorum is seen to take
//! nothing of that claim any more, and to have something else: a report that was on its way may have been taken.

use super::handles::Handles;
use super::owner_of;
use lattice_model::{Allocation, CheckpointId, DesiredShare, with_causes};
use lattice_node::CheckpointEnd;
use std::time::Duration;

/// How long, and how often, a store that is away is tried. What stays then is no checkpoint that anything begins from, and takes room.
const TRIES: (Duration, u32) = (Duration::from_secs(5), 24);
/// How often it is removed, with the same pause between: what a node was bringing when it heard that it is over lands behind the first.
const PASSES: u32 = 2;

/// Why the quorum takes nothing of this claim any more, once it does not.
pub async fn superseded(context: &Handles, share: &DesiredShare) -> String {
    let mut cluster = context.cluster.clone();
    let mut now = None;
    let seen = cluster.wait_for(|cluster| {
        let found = cluster.allocations.get(&share.allocation).filter(|a| cluster.fresh && is_past(a, share));
        now = found.map(|a| a.epoch);
        now.is_some()
    });
    if seen.await.is_err() {
        std::future::pending::<()>().await;
    }
    let now = now.map_or_else(String::new, |epoch| format!(" (epoch {epoch})"));
    format!(
        "the quorum refuses it: allocation {} was claimed anew{now} while this node was away, and what its earlier claim (epoch {}) saves \
         counts no more",
        share.allocation.short(),
        share.epoch
    )
}

fn is_past(allocation: &Allocation, share: &DesiredShare) -> bool {
    allocation.epoch > share.epoch
}

/// Removes what is left of one. `told`: the quorum was told of it, or may have been, or one may have been made by this id before.
pub async fn discard(context: &Handles, share: &DesiredShare, id: CheckpointId, told: bool) {
    let (allocation, owner) = (share.allocation, owner_of(share));
    let Ok(store) = context.checkpoints.store() else { return };
    let ((pause, most), mut passes) = (TRIES, PASSES);
    for _ in 0..most {
        if is_wanted(context, share, id) {
            return;
        }
        let last = {
            let cluster = context.cluster.borrow();
            let known = cluster.allocations.get(&allocation);
            // Whatever is thought of it here: work begins from it.
            if known.and_then(|a| a.checkpoint.as_ref()).is_some_and(|last| last.id == id) {
                return;
            }
            let takes_none = |a: &Allocation| a.epoch == share.epoch && (a.state.is_without_nodes() || a.state.is_terminal());
            let now = known.filter(|a| cluster.fresh && (is_past(a, share) || takes_none(a)));
            now.map(|a| a.checkpoint.clone())
        };
        let refused = match &last {
            _ if !told => Ok(true),
            // It is not known that the quorum takes nothing of this claim any more.
            None => return,
            Some(None) => Ok(true),
            Some(Some(last)) => store.leads_to(&owner, (id, share.epoch), last).await.map(|leads| leads == Some(false)),
        };
        let done = match refused {
            Ok(true) => store.discard(&owner, id, share.epoch).await,
            Ok(false) => return,
            Err(error) => Err(error),
        };
        match done {
            Ok(()) => {
                tracing::info!(%allocation, checkpoint = %id, epoch = %share.epoch, "what was left of a checkpoint that came to nothing is removed");
                passes -= 1;
                if passes == 0 {
                    return;
                }
            }
            Err(error) => {
                tracing::warn!(%allocation, checkpoint = %id, error = with_causes(&error), "what is left of a checkpoint stays in the store");
            }
        }
        tokio::time::sleep(pause).await;
    }
}

/// It is under way by the same id, asked for again, or was made by it.
fn is_wanted(context: &Handles, share: &DesiredShare, id: CheckpointId) -> bool {
    let now = context.checkpoints.last(share.allocation, share.epoch);
    now.is_some_and(|now| {
        let now = now.borrow();
        now.id == id && !matches!(now.end(), Some(CheckpointEnd::Failed { .. } | CheckpointEnd::TimedOut { .. }))
    })
}

//! Removes what failed or late checkpoints left in the store.
//!
//! ```text
//!   cut off:   saves itself ─▶ manifest in the store ─▶ waits for the quorum ·····▶ back: claimed anew ─▶ discarded
//!   elsewhere: starts from the last one that the quorum has ─▶ saves itself ─▶ this is the last one now
//! ```
//!
//! A checkpoint that was never reported to the quorum, or that the quorum refused, is never a
//! restart point, so it can be removed. A reported checkpoint is removed only when the quorum
//! accepts no more reports of that claim, because a report in flight may have been accepted; and
//! only if the quorum's last checkpoint of the allocation was not made from it.

use super::handles::Handles;
use super::owner_of;
use lattice_model::{Allocation, CheckpointId, DesiredShare, with_causes};
use lattice_node::CheckpointEnd;
use std::time::Duration;

/// Pause and number of attempts while the store is unreachable. What stays after that only takes
/// space: nothing starts from it.
const RETRIES: (Duration, u32) = (Duration::from_secs(5), 24);
/// How often a checkpoint is removed, with the same pause in between: a node that was still
/// uploading when it learned of the end may store something after the first removal.
const REMOVALS_MAX: u32 = 2;

/// Waits until the allocation was claimed anew, so that the quorum accepts no more reports of this
/// claim. Returns this reason as text.
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
        "the quorum refuses it: allocation {} was claimed anew{now} while this node was unreachable; checkpoints of its earlier \
         claim (epoch {}) are no longer accepted",
        share.allocation.short(),
        share.epoch
    )
}

fn is_past(allocation: &Allocation, share: &DesiredShare) -> bool {
    allocation.epoch > share.epoch
}

/// Removes what is left of one checkpoint. `reported`: it was, or may have been, reported to the
/// quorum, or an earlier checkpoint may have the same id.
pub async fn discard(context: &Handles, share: &DesiredShare, id: CheckpointId, reported: bool) {
    let (allocation, owner) = (share.allocation, owner_of(share));
    let Ok(store) = context.checkpoints.store() else { return };
    let ((pause, most), mut passes) = (RETRIES, REMOVALS_MAX);
    for _ in 0..most {
        if is_wanted(context, share, id) {
            return;
        }
        let last = {
            let cluster = context.cluster.borrow();
            let known = cluster.allocations.get(&allocation);
            // Work starts from it, whatever this agent knows about it.
            if known.and_then(|a| a.checkpoint.as_ref()).is_some_and(|last| last.id == id) {
                return;
            }
            let takes_none = |a: &Allocation| a.epoch == share.epoch && (a.state.is_without_nodes() || a.state.is_terminal());
            let now = known.filter(|a| cluster.fresh && (is_past(a, share) || takes_none(a)));
            now.map(|a| a.checkpoint.clone())
        };
        let refused = match &last {
            _ if !reported => Ok(true),
            // The quorum may still accept a report of this claim.
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
                tracing::info!(%allocation, checkpoint = %id, epoch = %share.epoch, "the rest of a failed checkpoint is removed");
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

/// Whether this node's present checkpoint has the same id and has not failed: it may have been
/// requested again.
fn is_wanted(context: &Handles, share: &DesiredShare, id: CheckpointId) -> bool {
    let now = context.checkpoints.last(share.allocation, share.epoch);
    now.is_some_and(|now| {
        let now = now.borrow();
        now.id == id && !matches!(now.end(), Some(CheckpointEnd::Failed { .. } | CheckpointEnd::TimedOut { .. }))
    })
}

//! Work of which this node is the head is to give its nodes back: it is asked to save itself, and the driver hears how that went.
//!
//! ```text
//!   the quorum's list ──▶ driver ──Preempt──▶ [task] ──▶ checkpoint, under the request's own id
//!                           ▲                    │
//!                           └──────Saved─────────┘   then the driver ends the work, or lets it go on
//! ```
//!
//! Nothing is written down here: the list has the request until the claim ends, and the checkpoint has its own state file. The next
//! life of the agent asks for the same checkpoint again, and gets the one that there is.

use crate::allocation::Standing;
use crate::checkpoint;
use crate::context::Shared;
use crate::mesh::checkpoint::{CheckpointItem, CheckpointOpen};
use lattice_model::{CheckpointId, DesiredShare, Preemption};
use lattice_node::{DEFERRAL_MS_MAX, Event};
use lattice_runtime::failpoint::{self, Point};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::time::Instant;
use uuid::Uuid;

/// [`lattice_node::Checkpointing::word`] of one that waits for the quorum alone.
const COMMITTING: &str = "committing";
/// Between two tries to follow the checkpoint.
const AGAIN: Duration = Duration::from_millis(200);

/// Begins it, from the driver's thread. May be begun again: the driver takes one answer.
pub fn begin(context: &Shared, share: DesiredShare) {
    tokio::spawn(run(Arc::clone(context), share));
}

async fn run(context: Shared, share: DesiredShare) {
    let Some(order) = share.preempt.clone() else { return };
    failpoint::pass(Point::PreemptBegun);
    tracing::info!(allocation = %share.allocation, by = %order.by, reason = %order.reason, "to give its nodes back");
    let begun = Instant::now();
    let Some(saved) = saved(&context, &share, &order).await else { return };
    context.checkpoints.counts().preempted(&share.spec, &order, saved.is_ok(), begun.elapsed());
    if let Err(why) = &saved {
        tracing::warn!(allocation = %share.allocation, %why, "it could not save itself");
    }
    failpoint::pass(Point::PreemptSaved);
    let (allocation, epoch, request) = (share.allocation, share.epoch, order.id);
    context.tell(Event::Saved { allocation, epoch, request, saved }).await;
}

/// The checkpoint that it made, or why it made none; `None`: it is being ended for something else.
async fn saved(context: &Shared, share: &DesiredShare, order: &Preemption) -> Option<Result<CheckpointId, String>> {
    if share.spec.checkpoint.is_none() {
        return Some(Err("it was submitted without --checkpoint".to_owned()));
    }
    // All rounds of it together: what is deferred again and again is ended some time.
    let patience = Duration::from_millis(order.deadline_ms.saturating_add(order.deadline_ms / 2).saturating_add(DEFERRAL_MS_MAX));
    let over_at = Instant::now() + patience;
    let open = CheckpointOpen {
        id: *order.id.0.as_bytes(),
        allocation: *share.allocation.0.as_bytes(),
        epoch: share.epoch.0,
        length_ms: order.deadline_ms,
        uid: share.owner.uid,
        user: share.owner.name.clone(),
    };
    loop {
        let worker = context.workers.of_epoch(share.allocation, share.epoch)?;
        // After a start of the agent its shim has yet to tell what it has.
        while let Err(why) = worker.settled().await {
            if *worker.standing.borrow() == Standing::Ending {
                return None;
            }
            if Instant::now() >= over_at {
                return Some(Err(why));
            }
        }
        let ended = match checkpoint::begin(context, &open).await {
            Ok(items) => follow(items, over_at).await,
            Err(why) => return Some(Err(why)),
        };
        match ended {
            Followed::Whole(id) => return Some(Ok(id)),
            Followed::Came { of, why } if of == order.id => return Some(Err(why)),
            // Another one was under way, and came to nothing: now it is this one's turn.
            Followed::Came { .. } | Followed::Lost if Instant::now() < over_at => {}
            Followed::Came { .. } | Followed::Lost => {
                return Some(Err(format!("nothing was told of its checkpoint any more after {} s", patience.as_secs())));
            }
            Followed::TooLong => {
                return Some(Err(format!("it had not saved itself after {} s, with all that it deferred", patience.as_secs())));
            }
        }
        tokio::time::sleep(AGAIN).await;
    }
}

/// How following a checkpoint ended.
enum Followed {
    /// It is whole, and the quorum has it.
    Whole(CheckpointId),
    /// It came to nothing.
    Came { of: CheckpointId, why: String },
    /// Nothing more is told of it.
    Lost,
    /// It is not over in time.
    TooLong,
}

async fn follow(mut items: mpsc::Receiver<CheckpointItem>, over_at: Instant) -> Followed {
    let mut committing = false;
    loop {
        let item = tokio::select! {
            item = items.recv() => item,
            // One that is whole in the store waits for the quorum, as the end of the work would.
            () = tokio::time::sleep_until(over_at), if !committing => return Followed::TooLong,
        };
        match item {
            None => return Followed::Lost,
            Some(CheckpointItem::Stands { word, .. }) => committing = word == COMMITTING,
            Some(CheckpointItem::Refused { .. }) => return Followed::Lost,
            Some(CheckpointItem::Ended { id, complete, why, word, .. }) => {
                let of = CheckpointId(Uuid::from_bytes(id));
                let why = if why.is_empty() { word } else { why };
                return if complete { Followed::Whole(of) } else { Followed::Came { of, why } };
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ended(id: CheckpointId, complete: bool) -> CheckpointItem {
        let (word, why) = ("failed".to_owned(), String::new());
        CheckpointItem::Ended { id: *id.0.as_bytes(), word, why, complete, step: None, bytes: 0 }
    }

    fn stands(word: &str) -> CheckpointItem {
        CheckpointItem::Stands { id: [0; 16], word: word.to_owned(), detail: String::new() }
    }

    #[tokio::test]
    async fn what_takes_too_long_is_given_up_unless_it_is_whole_and_waits_for_the_quorum() {
        let id = CheckpointId(Uuid::from_u128(7));
        let soon = || Instant::now() + Duration::from_millis(20);
        let (send, items) = mpsc::channel(4);
        send.send(stands("saving")).await.unwrap();
        assert!(matches!(follow(items, soon()).await, Followed::TooLong));
        let (send, items) = mpsc::channel(4);
        let over = Instant::now() + Duration::from_secs(1);
        send.send(stands(COMMITTING)).await.unwrap();
        let following = tokio::spawn(follow(items, over));
        tokio::time::sleep_until(over + Duration::from_millis(50)).await;
        send.send(ended(id, true)).await.unwrap();
        assert!(matches!(following.await.unwrap(), Followed::Whole(made) if made == id));
        let (send, items) = mpsc::channel(4);
        send.send(ended(id, false)).await.unwrap();
        assert!(matches!(follow(items, soon() + Duration::from_secs(60)).await, Followed::Came { of, why } if of == id && why == "failed"));
    }
}

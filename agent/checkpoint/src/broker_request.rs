//! One request of the broker: a head is asked for a checkpoint, and the broker waits for its end.

use super::ask;
use super::handles::Shared;
use lattice_mesh::UnreachedNode;
use lattice_mesh::checkpoint::{CheckpointItem, CheckpointOpen};
use lattice_model::NodeId;
use lattice_model::checkpoint::DEADLINE_MS;
use std::time::Duration;
use thiserror::Error;
use tokio::task::JoinError;

/// Added to twice the duration of the last checkpoint, in milliseconds.
const LENGTH_MS_SPARE: u64 = 60_000;

/// Timeout of a checkpoint that the broker asks for, in milliseconds, from the duration of the
/// work's last one: at least the site's timeout.
pub fn length_ms(took_ms: Option<u64>, timeout_ms: u64) -> u64 {
    let known = took_ms.map_or(0, |took| took.saturating_mul(2).saturating_add(LENGTH_MS_SPARE));
    known.max(timeout_ms).clamp(DEADLINE_MS.0, DEADLINE_MS.1)
}

/// How long the broker waits for such a checkpoint to end: its timeout, extended once by half, all
/// deferrals, and a minute. After each deferral the checkpoint may take its whole timeout again.
/// The broker does not wait for that, because other work would wait as well; if it asks again
/// later, the head continues the same checkpoint.
pub fn wait_max(length_ms: u64, deferral_ms_max: u64) -> Duration {
    Duration::from_millis(length_ms.saturating_mul(3) / 2 + deferral_ms_max + 60_000)
}

/// Why a request of the broker led to no checkpoint.
#[derive(Debug, Error)]
pub enum BrokeredError {
    #[error(transparent)]
    Ask(#[from] UnreachedNode),
    #[error("{why}")]
    Refused { why: String },
    #[error("{why}")]
    Failed { why: String },
    #[error("its head {head} became unreachable before the checkpoint ended")]
    HeadLost { head: NodeId },
    #[error("no report of its end arrived")]
    NoEnd,
    #[error(transparent)]
    Broke(#[from] JoinError),
}

/// Asks the head and waits for the checkpoint's end.
pub async fn request_checkpoint(
    context: &Shared,
    head: &NodeId,
    address: Option<String>,
    open: &CheckpointOpen,
) -> Result<(), BrokeredError> {
    let mut items = ask(context, head, address, open).await?;
    while let Some(item) = items.recv().await {
        match item {
            CheckpointItem::Progress { .. } => {}
            CheckpointItem::Refused { why } => return Err(BrokeredError::Refused { why }),
            CheckpointItem::Ended { complete: true, .. } => return Ok(()),
            CheckpointItem::Ended { state, why, .. } => {
                return Err(BrokeredError::Failed { why: if why.is_empty() { state } else { why } });
            }
        }
    }
    // If the checkpoint had begun, it continues on its head, and the next request joins it.
    Err(BrokeredError::HeadLost { head: head.clone() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_has_as_long_as_its_last_checkpoint_needed() {
        assert_eq!((length_ms(None, 600_000), length_ms(Some(60_000), 600_000), length_ms(None, 5000)), (600_000, 600_000, 5000));
        assert_eq!(length_ms(Some(20 * 60_000), 600_000), 41 * 60_000);
        assert_eq!(length_ms(Some(u64::MAX), 600_000), DEADLINE_MS.1);
        assert!(wait_max(DEADLINE_MS.1, 0) > Duration::from_millis(DEADLINE_MS.1 * 3 / 2));
    }
}

//! The limit on concurrent diagnoses on this node.

use std::sync::Arc;
use std::time::Duration;
use thiserror::Error;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::timeout;

/// Largest number of concurrent diagnoses.
const DIAGNOSES_MAX: usize = 4;

/// The slots. All clones share them.
#[derive(Clone)]
pub struct DiagnosisSlots(Arc<Semaphore>);

impl Default for DiagnosisSlots {
    fn default() -> Self {
        Self(Arc::new(Semaphore::new(DIAGNOSES_MAX)))
    }
}

/// No slot became free in time.
#[derive(Debug, Error)]
#[error("others ask the same of this node; try again in a moment")]
pub struct NoFreeSlot;

impl DiagnosisSlots {
    /// Takes a slot; waits at most `within` for a free one.
    pub async fn take(&self, within: Duration) -> Result<OwnedSemaphorePermit, NoFreeSlot> {
        let slot = timeout(within, Arc::clone(&self.0).acquire_owned()).await;
        slot.ok().and_then(Result::ok).ok_or(NoFreeSlot)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn diagnoses_beyond_the_limit_wait_for_a_free_slot() {
        let slots = DiagnosisSlots::default();
        let mut taken = Vec::new();
        for _ in 0..DIAGNOSES_MAX {
            taken.push(slots.clone().take(Duration::ZERO).await.unwrap());
        }
        let refused = slots.take(Duration::ZERO).await.unwrap_err();
        assert_eq!(refused.to_string(), "others ask the same of this node; try again in a moment");
        let waiting = slots.take(Duration::from_secs(60));
        let (slot, ()) = tokio::join!(waiting, async { drop(taken.pop()) });
        assert!(slot.is_ok());
    }
}

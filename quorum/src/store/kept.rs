//! Which snapshots are on disk, and what the log may therefore lose.
//!
//! openraft cuts the log off as soon as it *orders* a snapshot to be installed, not when that is done. The log goes only
//! as far as this says: never past a snapshot that is not durable, and never past the one before the newest, so that a
//! newest one that turns out to be damaged costs nothing.

use super::StoreError;
use std::sync::Arc;
use tokio::sync::watch;

/// Told by the state machine, heard by the log. Clones share it.
#[derive(Clone, Debug)]
pub struct Kept(Arc<watch::Sender<State>>);

#[derive(Debug, Default)]
struct State {
    /// Log indices, the newest first.
    snapshots: Vec<u64>,
    failed: bool,
}

impl Default for Kept {
    fn default() -> Self {
        Self(Arc::new(watch::Sender::new(State::default())))
    }
}

impl Kept {
    /// These snapshots are durable, by log index, the newest first.
    pub fn are(&self, indices: Vec<u64>) {
        self.0.send_modify(|state| state.snapshots = indices);
    }

    /// A snapshot could not be installed: whoever waits for it need not.
    pub fn failed(&self) {
        self.0.send_modify(|state| state.failed = true);
    }

    /// Up to where the log is not needed: the index of the snapshot before the newest.
    pub fn spare(&self) -> Option<u64> {
        self.0.borrow().snapshots.get(1).copied()
    }

    /// Returns once a snapshot that reaches `index` is durable.
    pub async fn reach(&self, index: u64) -> Result<(), StoreError> {
        let mut kept = self.0.subscribe();
        let there = |state: &State| state.snapshots.first().is_some_and(|newest| *newest >= index);
        match kept.wait_for(|state| there(state) || state.failed).await {
            Ok(state) if there(&state) => Ok(()),
            Ok(_) | Err(_) => Err(StoreError::Stopped),
        }
    }
}

//! Which snapshots are on disk, and therefore which part of the log may be removed.
//!
//! openraft purges the log as soon as it *requests* the installation of a snapshot, not when the
//! snapshot is installed. This module limits the purge: never beyond a snapshot that is not durable,
//! and never beyond the one before the newest, so that a damaged newest snapshot causes no loss.

use super::StoreError;
use std::sync::Arc;
use tokio::sync::watch;

/// Set by the state machine, read by the log. Clones share it.
#[derive(Clone, Debug)]
pub struct RetainedSnapshots(Arc<watch::Sender<State>>);

#[derive(Debug, Default)]
struct State {
    /// Log indices, newest first.
    snapshots: Vec<u64>,
    failed: bool,
}

impl Default for RetainedSnapshots {
    fn default() -> Self {
        Self(Arc::new(watch::Sender::new(State::default())))
    }
}

impl RetainedSnapshots {
    /// Sets the durable snapshots, by log index, newest first.
    pub fn set(&self, indices: Vec<u64>) {
        self.0.send_modify(|state| state.snapshots = indices);
    }

    /// Records that a snapshot could not be installed, which ends all waits for it.
    pub fn set_failed(&self) {
        self.0.send_modify(|state| state.failed = true);
    }

    /// The log index up to which entries are not needed: the index of the snapshot before the newest.
    pub fn purgeable_upto(&self) -> Option<u64> {
        self.0.borrow().snapshots.get(1).copied()
    }

    /// Returns once a snapshot that contains the entry `index` is durable.
    pub async fn wait_until_durable(&self, index: u64) -> Result<(), StoreError> {
        let mut state = self.0.subscribe();
        let is_durable = |state: &State| state.snapshots.first().is_some_and(|newest| *newest >= index);
        match state.wait_for(|state| is_durable(state) || state.failed).await {
            Ok(state) if is_durable(&state) => Ok(()),
            Ok(_) | Err(_) => Err(StoreError::Stopped),
        }
    }
}

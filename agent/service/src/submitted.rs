//! Submissions that the agent's own watch of the cluster does not show yet.

use lattice_model::{AllocationId, Revision};
use std::collections::HashMap;
use std::time::Duration;
use tokio::sync::watch;

/// How long a caller who follows a submission waits for it to arrive.
const ARRIVAL_WAIT: Duration = Duration::from_millis(500);
/// How many submissions are noted at most; a watch that lags lets them accumulate.
const SUBMITTED_MAX: usize = 1024;

/// Submissions by this agent that are under way (no revision yet), or committed and not yet in the
/// agent's watch. Cloneable; all clones share them.
#[derive(Clone, Default)]
pub struct Submitted(watch::Sender<HashMap<AllocationId, Option<Revision>>>);

/// A submission under way; dropping this ends it, whether it was accepted or not.
pub(super) struct Submitting<'a> {
    all: &'a Submitted,
    id: AllocationId,
}

impl Submitted {
    pub(super) fn begin(&self, id: AllocationId) -> Submitting<'_> {
        self.0.send_if_modified(|all| {
            // Without a note, its followers ask the quorum.
            let room = all.len() < SUBMITTED_MAX;
            if room {
                all.entry(id).or_insert(None);
            }
            room
        });
        Submitting { all: self, id }
    }

    /// The revision that committed the allocation, if known. `being_submitted`: first wait for the
    /// submission to begin.
    pub(super) async fn at(&self, id: AllocationId, being_submitted: bool) -> Option<Revision> {
        let mut all = self.0.subscribe();
        if being_submitted {
            let began = all.wait_for(|all| all.contains_key(&id));
            tokio::time::timeout(ARRIVAL_WAIT, began).await.ok()?.ok()?;
        }
        let answered = all.wait_for(|all| all.get(&id) != Some(&None)).await.ok()?;
        answered.get(&id).copied().flatten()
    }
}

impl Submitting<'_> {
    /// The submission was committed at `revision`. Notes up to the watch's revision `shown` are
    /// removed.
    pub(super) fn done(self, revision: Revision, shown: Revision) {
        self.all.0.send_modify(|all| {
            all.entry(self.id).and_modify(|at| *at = Some(revision));
            all.retain(|_, at| at.is_none_or(|at| at > shown));
        });
    }
}

impl Drop for Submitting<'_> {
    fn drop(&mut self) {
        self.all.0.send_if_modified(|all| all.get(&self.id) == Some(&None) && all.remove(&self.id).is_some());
    }
}

//! Submissions that the agent's own watch of the cluster does not show yet.

use lattice_model::{AllocationId, Revision};
use std::collections::HashMap;
use std::time::Duration;
use tokio::sync::watch;

/// How long a submission may take to come behind those who follow it.
const ABOUT_TO_COME: Duration = Duration::from_millis(500);
/// Submissions that a watch which lags leaves noted, at most.
const SUBMITTED_MAX: usize = 1024;

/// Submissions of this agent that are under way (no revision yet), or committed and not yet in the agent's watch.
/// Cloneable; all clones are one.
#[derive(Clone, Default)]
pub struct Submitted(watch::Sender<HashMap<AllocationId, Option<Revision>>>);

/// A submission under way: over when dropped, taken or not.
pub(super) struct Submitting<'a> {
    all: &'a Submitted,
    id: AllocationId,
}

impl Submitted {
    pub(super) fn begin(&self, id: AllocationId) -> Submitting<'_> {
        self.0.send_if_modified(|all| {
            // Without a note of it, who follows it asks the quorum.
            let room = all.len() < SUBMITTED_MAX;
            if room {
                all.entry(id).or_insert(None);
            }
            room
        });
        Submitting { all: self, id }
    }

    /// The revision that committed it, if known. `being_submitted`: wait for the submission if it is under way.
    pub(super) async fn at(&self, id: AllocationId, being_submitted: bool) -> Option<Revision> {
        let mut all = self.0.subscribe();
        if being_submitted {
            let began = all.wait_for(|all| all.contains_key(&id));
            tokio::time::timeout(ABOUT_TO_COME, began).await.ok()?.ok()?;
        }
        let answered = all.wait_for(|all| all.get(&id) != Some(&None)).await.ok()?;
        answered.get(&id).copied().flatten()
    }
}

impl Submitting<'_> {
    /// It was committed at `revision`; what is as old as `told` needs no note any more.
    pub(super) fn done(self, revision: Revision, told: Revision) {
        self.all.0.send_modify(|all| {
            all.entry(self.id).and_modify(|at| *at = Some(revision));
            all.retain(|_, at| at.is_none_or(|at| at > told));
        });
    }
}

impl Drop for Submitting<'_> {
    fn drop(&mut self) {
        self.all.0.send_if_modified(|all| all.get(&self.id) == Some(&None) && all.remove(&self.id).is_some());
    }
}

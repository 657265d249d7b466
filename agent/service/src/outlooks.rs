//! What waiting work is told about its start. The answer is the same for all who ask at one moment, so
//! it is computed once for them.

use lattice_agent_common::clock;
use lattice_membership::cluster::Cluster;
use lattice_model::{NodeId, Revision};
use lattice_scheduler::Outlook;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::Mutex;

/// How long an outlook on an unchanged cluster is right: starts are counted from now.
const UNCHANGED_MAX: Duration = Duration::from_secs(1);
/// An outlook on a cluster that has changed since is used for so many times the time that it took. That
/// is noticeable in large clusters alone, which change all the time.
const CHANGED_FACTOR: u32 = 4;
/// If it took less than this, it is computed again for each change.
const COSTLY: Duration = Duration::from_millis(25);

/// See the module documentation.
#[derive(Clone, Default)]
pub struct Outlooks(Arc<Mutex<Option<Known>>>);

struct Known {
    revision: Revision,
    alive: BTreeSet<NodeId>,
    since: Instant,
    took: Duration,
    outlook: Arc<Outlook>,
}

impl Known {
    fn is_usable(&self, revision: Revision, alive: &BTreeSet<NodeId>) -> bool {
        let age = self.since.elapsed();
        let is_unchanged = self.revision == revision && self.alive == *alive && age < UNCHANGED_MAX;
        is_unchanged || (self.took >= COSTLY && age < self.took * CHANGED_FACTOR)
    }
}

impl Outlooks {
    /// The outlook on this cluster, of which these nodes are alive. Whoever asks while it is being
    /// computed waits for it.
    ///
    /// # Errors
    /// If the computation broke.
    pub async fn on(&self, cluster: &Cluster, alive: BTreeSet<NodeId>) -> Result<Arc<Outlook>, tokio::task::JoinError> {
        let mut known = self.0.lock().await;
        if let Some(known) = known.as_ref().filter(|known| known.is_usable(cluster.revision, &alive)) {
            return Ok(Arc::clone(&known.outlook));
        }
        let (view, since) = (cluster.with_alive(alive.clone()), Instant::now());
        let outlook = Arc::new(tokio::task::spawn_blocking(move || Outlook::of(&view, clock::now())).await?);
        let (revision, took) = (cluster.revision, since.elapsed());
        *known = Some(Known { revision, alive, since: Instant::now(), took, outlook: Arc::clone(&outlook) });
        Ok(outlook)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_outlook_is_used_while_it_is_right_or_for_a_while_if_it_was_costly() {
        let known = |took_ms, age_ms| Known {
            revision: Revision(7),
            alive: BTreeSet::new(),
            since: Instant::now() - Duration::from_millis(age_ms),
            took: Duration::from_millis(took_ms),
            outlook: Arc::new(Outlook::of(&Cluster::default(), clock::now())),
        };
        let (same, other) = ((Revision(7), BTreeSet::new()), (Revision(8), BTreeSet::from(["n1".parse().unwrap()])));
        let is_usable = |known: Known, (revision, alive): &(Revision, BTreeSet<NodeId>)| known.is_usable(*revision, alive);
        assert!(is_usable(known(1, 500), &same));
        assert!(!is_usable(known(1, 1500), &same), "the starts have moved on");
        assert!(!is_usable(known(1, 0), &other));
        assert!(is_usable(known(400, 800), &other));
        assert!(!is_usable(known(400, 2000), &other));
    }
}

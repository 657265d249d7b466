//! When waiting work is expected to start. The answer is the same for all who ask at one moment, so it is computed once
//! for them.

use lattice_agent_common::clock;
use lattice_membership::cluster::Cluster;
use lattice_model::{Allocation, AllocationId, NodeId, Revision};
use lattice_scheduler::{Gossiped, Outlook};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::Mutex;
use tokio::task::JoinError;

/// How long an outlook on an unchanged cluster is right: starts are counted from now.
const UNCHANGED_MAX: Duration = Duration::from_secs(1);
/// After a change of the cluster, an outlook is used for this many times the time that it took. That is noticeable only
/// in large clusters, which change all the time.
const CHANGED_FACTOR: u32 = 4;
/// If it took less than this, it is computed again for each change.
const COSTLY: Duration = Duration::from_millis(25);

/// The longest time for which it is used then.
const CHANGED_MAX: Duration = Duration::from_secs(2);

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
        is_unchanged || (self.took >= COSTLY && age < (self.took * CHANGED_FACTOR).min(CHANGED_MAX))
    }
}

impl Outlooks {
    /// The outlook on this cluster, with what gossip shows of it. It knows the work of `asked` that the cluster has. A
    /// caller that asks while an outlook is being computed waits for that one; it is computed to its end even if nobody
    /// waits any more, so there is never more than one.
    ///
    /// # Errors
    /// If the computation broke.
    pub async fn on(&self, cluster: &Cluster, gossiped: Gossiped, asked: &[AllocationId]) -> Result<Arc<Outlook>, JoinError> {
        let mut known = Arc::clone(&self.0).lock_owned().await;
        let has_all = |outlook: &Outlook| {
            let waits = |id: &AllocationId| cluster.allocations.get(id).is_some_and(Allocation::waits);
            asked.iter().all(|id| outlook.get(id).is_some() || !waits(id))
        };
        if let Some(known) = known.as_ref().filter(|known| known.is_usable(cluster.revision, &gossiped.alive) && has_all(&known.outlook)) {
            return Ok(Arc::clone(&known.outlook));
        }
        let (alive, revision) = (gossiped.alive.clone(), cluster.revision);
        let view = cluster.with_gossip(gossiped);
        let computing = tokio::task::spawn_blocking(move || {
            let begun = Instant::now();
            let outlook = Arc::new(Outlook::of(&view, clock::now()));
            let took = begun.elapsed();
            *known = Some(Known { revision, alive, since: Instant::now(), took, outlook: Arc::clone(&outlook) });
            outlook
        });
        computing.await
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
        assert!(!is_usable(known(400, 1800), &other));
        assert!(!is_usable(known(10_000, 2100), &other), "however costly it was");
    }

    #[tokio::test]
    async fn work_that_is_asked_for_is_in_the_outlook_even_if_the_last_one_was_costly() {
        let id = |number| AllocationId(uuid::Uuid::from_u128(number));
        let waiting = |number| lattice_model::test_builders::allocation(id(number));
        let mut cluster = Cluster { revision: Revision(1), ..Cluster::default() };
        cluster.allocations.insert(id(1), waiting(1));
        let outlooks = Outlooks::default();
        let gossiped = Gossiped::default;
        assert!(outlooks.on(&cluster, gossiped(), &[id(1)]).await.unwrap().get(&id(1)).is_some());
        outlooks.0.lock().await.as_mut().unwrap().took = Duration::from_secs(5);
        cluster.revision = Revision(2);
        cluster.allocations.insert(id(2), waiting(2));
        let outlook = outlooks.on(&cluster, gossiped(), &[id(1), id(3)]).await.unwrap();
        assert!(outlook.get(&id(2)).is_none(), "nobody asked for the other, and a third is not known here");
        let outlook = outlooks.on(&cluster, gossiped(), &[id(2)]).await.unwrap();
        assert!(outlook.get(&id(2)).is_some());
    }
}

//! The scheduler's state for work that is about to be submitted. It stays from one submission to the next while they come
//! often: each takes what has changed since, and does not look at all nodes and work.

use crate::kept::Kept;
use lattice_model::{Allocation, Claim};
use lattice_scheduler::{View, place_newcomer};
use std::mem;
use std::sync::Arc;
use tokio::sync::Mutex;
use tokio::task::JoinError;

/// What one submission is planned from.
pub struct Newcomer {
    pub allocation: Allocation,
    /// The token of the lease of its queue.
    pub lease_token: u64,
    pub view: View,
}

/// See the module documentation. Copies share the state.
#[derive(Clone, Default)]
pub struct Newcomers(Arc<Mutex<Recent>>);

#[derive(Default)]
struct Recent {
    kept: Kept,
    /// Whether it was used since [`Newcomers::forget_unless_used`] was called.
    is_used: bool,
}

impl Newcomers {
    /// See [`place_newcomer`]. Submissions at the same time are planned one after the other, each from the view that
    /// `newcomer` gives when its turn comes: those before it may have changed the cluster, and the watch would have to copy
    /// the maps that it shares with a view that waits. If `newcomer` gives `None`, nothing is planned.
    ///
    /// # Errors
    /// The plan broke: then nothing of the state is used again. Or the agent is stopping.
    pub async fn place(&self, newcomer: impl FnOnce() -> Option<Newcomer>) -> Result<Option<Claim>, JoinError> {
        let mut recent = self.0.lock().await;
        let Some(Newcomer { allocation, lease_token, view }) = newcomer() else { return Ok(None) };
        recent.is_used = true;
        let placing = recent.kept.with(move |state| place_newcomer(state, view, allocation, lease_token));
        let (claim, _) = placing.await?;
        Ok(claim)
    }

    /// Forgets the state if nothing was submitted since the last call: it keeps records that are gone from the cluster.
    pub fn forget_unless_used(&self) {
        // What is locked is in use.
        if let Ok(mut recent) = self.0.try_lock()
            && !mem::take(&mut recent.is_used)
        {
            recent.kept.forget();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::{cluster, id, pending};
    use futures::future::join_all;
    use lattice_model::{AllocationId, NodeId};
    use std::cell::Cell;
    use std::pin::pin;

    fn view() -> View {
        let mut view = cluster(vec![]);
        view.alive = view.nodes.keys().cloned().collect();
        view
    }

    fn newcomer(n: u64) -> Option<Newcomer> {
        Some(Newcomer { allocation: pending(n, ""), lease_token: 7, view: view() })
    }

    async fn placed(newcomers: &Newcomers, n: u64) -> Option<AllocationId> {
        newcomers.place(|| newcomer(n)).await.unwrap().map(|claim| claim.allocation)
    }

    /// The nodes that the state knows.
    async fn known(newcomers: &Newcomers) -> Vec<NodeId> {
        let mut recent = newcomers.0.lock().await;
        recent.kept.with(|state| state.view().nodes.keys().cloned().collect()).await.unwrap().0
    }

    #[tokio::test]
    async fn the_state_stays_while_it_is_used() {
        let newcomers = Newcomers::default();
        assert_eq!(placed(&newcomers, 1).await, Some(id(1)));
        assert_eq!(placed(&newcomers, 2).await, Some(id(2)), "the first was not submitted");
        newcomers.forget_unless_used();
        assert_eq!(known(&newcomers).await.len(), 1);
        newcomers.forget_unless_used();
        assert!(known(&newcomers).await.is_empty());
        assert_eq!(placed(&newcomers, 3).await, Some(id(3)));
    }

    #[tokio::test]
    async fn each_has_its_view_when_its_turn_comes() {
        let newcomers = Newcomers::default();
        let all = join_all((0..100).map(|n| placed(&newcomers, n))).await;
        assert_eq!(all, (0..100).map(|n| Some(id(n))).collect::<Vec<_>>());
        let (turn, is_asked) = (newcomers.0.lock().await, Cell::new(false));
        let mut placing = pin!(newcomers.place(|| {
            is_asked.set(true);
            None
        }));
        assert!(futures::poll!(placing.as_mut()).is_pending() && !is_asked.get());
        newcomers.forget_unless_used();
        drop(turn);
        assert_eq!((placing.await.unwrap(), is_asked.get()), (None, true));
    }

    #[tokio::test]
    async fn the_next_one_is_placed_after_a_plan_that_nobody_waits_for_any_more() {
        let newcomers = Newcomers::default();
        {
            let mut placing = pin!(newcomers.place(|| newcomer(1)));
            let _ = futures::poll!(placing.as_mut());
        }
        assert_eq!(placed(&newcomers, 2).await, Some(id(2)));
    }
}

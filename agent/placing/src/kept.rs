//! The scheduler's state, which stays from one plan to the next.

use crate::breaks::beside;
use lattice_scheduler::State;
use tokio::task::JoinError;

/// See the module documentation.
#[derive(Default)]
pub struct Kept(Option<State>);

impl Kept {
    /// Runs long work on the state, beside the other tasks. Returns the work's result and the new state. At first, and
    /// after [`Self::forget`], the state is that of an empty view.
    ///
    /// # Errors
    /// The work panicked: then nothing of the state is used again. Or the agent is stopping.
    pub async fn with<T: Send + 'static>(&mut self, work: impl FnOnce(&mut State) -> T + Send + 'static) -> Result<(T, &State), JoinError> {
        let mut state = self.0.take().unwrap_or_default();
        let working = beside(move || {
            let result = work(&mut state);
            (result, state)
        });
        let (result, state) = working.await?;
        Ok((result, self.0.insert(state)))
    }

    /// Forgets the state. Freeing that of a large cluster takes milliseconds, for which no other task waits.
    pub fn forget(&mut self) {
        if let Some(state) = self.0.take() {
            drop(tokio::task::spawn_blocking(move || drop(state)));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::planned;
    use crate::tests::{cluster, id, pending};
    use lattice_model::{DEFAULT_VCLUSTER, Revision};
    use lattice_scheduler::View;

    /// Plans this view with the lease of the default queue.
    async fn plan(kept: &mut Kept, view: &View) -> usize {
        let at = lattice_agent_common::clock::now();
        let ((claims, preemptions), of_state) = planned((view.clone(), at), &[(DEFAULT_VCLUSTER, 7)].into(), kept).await.unwrap();
        assert_eq!((of_state.revision, preemptions.len()), (view.revision, 0));
        claims.len()
    }

    async fn revision(kept: &mut Kept) -> Revision {
        kept.with(|state| state.view().revision).await.unwrap().0
    }

    fn view() -> View {
        let mut view = View { revision: Revision(5), ..cluster(vec![pending(1, "")]) };
        view.alive = view.nodes.keys().cloned().collect();
        view
    }

    #[tokio::test]
    async fn a_plan_keeps_the_state_for_the_next_one() {
        let (mut kept, mut view) = (Kept::default(), view());
        assert_eq!(plan(&mut kept, &view).await, 1);
        assert_eq!(revision(&mut kept).await, Revision(5));
        view.revision = Revision(6);
        view.allocations.remove(&id(1));
        assert_eq!(plan(&mut kept, &view).await, 0, "the state follows to the newer view");
        assert_eq!(revision(&mut kept).await, Revision(6));
    }

    #[tokio::test]
    async fn a_state_is_not_used_again_after_it_was_forgotten_or_its_plan_broke() {
        let (mut kept, view) = (Kept::default(), view());
        plan(&mut kept, &view).await;
        kept.forget();
        assert_eq!(revision(&mut kept).await, Revision(0));
        plan(&mut kept, &view).await;
        let broken = kept.with(|_| -> u64 { panic!("a bug") }).await.map(|(never, _)| never).unwrap_err();
        assert!(broken.is_panic(), "{broken}");
        assert_eq!(revision(&mut kept).await, Revision(0));
        assert_eq!(plan(&mut kept, &view).await, 1, "the next plan begins from nothing");
    }
}

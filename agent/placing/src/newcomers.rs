//! The scheduler's state for work that is about to be submitted. It stays from one submission to the next while they come
//! often: each takes what has changed since, and does not look at all nodes and work.

use lattice_model::{Allocation, Claim};
use lattice_scheduler::{State, View, place_newcomer};
use parking_lot::Mutex;
use std::mem;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::thread;

/// See the module documentation. Copies share the state.
#[derive(Clone, Default)]
pub struct Newcomers(Arc<Mutex<Recent>>);

#[derive(Default)]
struct Recent {
    state: Option<State>,
    /// Whether it was used since [`Newcomers::forget_unless_used`] was called.
    is_used: bool,
}

impl Newcomers {
    /// See [`place_newcomer`]. Submissions at the same time wait for each other.
    ///
    /// # Errors
    /// The plan broke: then nothing of the state is used again.
    pub fn place(&self, view: View, newcomer: Allocation, lease_token: u64) -> thread::Result<Option<Claim>> {
        let mut recent = self.0.lock();
        let mut state = recent.state.take().unwrap_or_default();
        let placed = catch_unwind(AssertUnwindSafe(|| place_newcomer(&mut state, view, newcomer, lease_token)))?;
        *recent = Recent { state: Some(state), is_used: true };
        Ok(placed)
    }

    /// Forgets the state if nothing was submitted since the last call: it keeps records that are gone from the cluster.
    pub fn forget_unless_used(&self) {
        let mut recent = self.0.lock();
        if !mem::take(&mut recent.is_used) {
            recent.state = None;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::{cluster, id, pending};

    impl Newcomers {
        fn has_state(&self) -> bool {
            self.0.lock().state.is_some()
        }
    }

    #[test]
    fn the_state_stays_while_it_is_used() {
        let newcomers = Newcomers::default();
        let mut view = cluster(vec![]);
        view.alive = view.nodes.keys().cloned().collect();
        let placed = |n| newcomers.place(view.clone(), pending(n, ""), 7).unwrap().map(|claim| claim.allocation);
        assert_eq!((placed(1), placed(2)), (Some(id(1)), Some(id(2))), "the first was not submitted");
        newcomers.forget_unless_used();
        assert!(newcomers.has_state());
        newcomers.forget_unless_used();
        assert!(!newcomers.has_state());
        assert_eq!(placed(3), Some(id(3)));
    }
}

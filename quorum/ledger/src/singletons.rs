//! Singletons: work that begins only when all earlier work of its user with the same name is gone.
//!
//! ```text
//!   submission, end, release, new name ──note_before──▶ the place before, in the context
//!   end of the command: another place ──▶ itself and the next one in the order of submission: if it is a
//!                                         singleton, its predecessor is looked up again
//! ```
//!
//! A singleton waits for its predecessor: the latest earlier allocation that is not gone. If the
//! predecessor goes before other earlier allocations, the latest of those is the next predecessor. So
//! a change concerns two singletons at most, however many have the same name.

use super::{ApplyContext, Ledger};
use lattice_ledger_state::names::NamePlace;
use lattice_model::{AllocationId, AllocationSpec, Principal};
use std::collections::BTreeSet;
use uuid::Uuid;

impl Ledger {
    /// The predecessor of a submission, if it is a singleton and has one.
    pub(super) fn predecessor_of(&self, spec: &AllocationSpec, owner: &Principal) -> Option<AllocationId> {
        if !spec.singleton {
            return None;
        }
        let last = NamePlace { uid: owner.uid, name: spec.name.clone(), submission: u64::MAX, id: AllocationId(Uuid::nil()) };
        self.names.before(&last)
    }

    /// The place of an allocation among those of its user and name; `None`: it is a lane
    /// or replica, or gone.
    pub(super) fn name_place(&self, id: AllocationId) -> Option<NamePlace> {
        let allocation = self.allocations.get(&id).filter(|allocation| allocation.lane.is_none() && allocation.replica.is_none())?;
        let is_there = !allocation.state.is_terminal() || self.holdings.unfenced_of(id) > 0 || self.has_lanes(id);
        let (uid, submission) = (allocation.owner.uid, allocation.submission);
        is_there.then(|| NamePlace { uid, name: allocation.spec.name.clone(), submission, id })
    }

    /// After a command: updates the places of changed allocations, and the singletons that have another
    /// predecessor now.
    pub(super) fn settle_names(&mut self, context: &mut ApplyContext) {
        let mut changed = Vec::new();
        for (id, was) in std::mem::take(&mut context.names_before) {
            let now = self.name_place(id);
            if was != now {
                was.iter().for_each(|was| self.names.remove(was));
                now.iter().for_each(|now| self.names.insert(now.clone()));
                changed.push((id, [was, now]));
            }
        }
        let mut concerned = BTreeSet::new();
        for (id, places) in changed {
            concerned.insert(id);
            concerned.extend(places.iter().flatten().filter_map(|place| self.names.after(place)));
        }
        for id in concerned {
            self.settle_singleton(context, id);
        }
    }

    fn settle_singleton(&mut self, context: &mut ApplyContext, id: AllocationId) {
        let allocation = self.allocations.get(&id).filter(|allocation| allocation.spec.singleton && !allocation.state.is_terminal());
        let (Some(allocation), Some(place)) = (allocation, self.name_place(id)) else { return };
        let predecessor = self.names.before(&place);
        if allocation.dependencies.as_ref().and_then(|all| all.predecessor) == predecessor {
            return;
        }
        let now = context.at;
        if let Some(allocation) = self.allocation_mut(context, id) {
            allocation.dependencies.get_or_insert_with(Box::default).set_predecessor(predecessor, now);
        }
    }
}

//! Updates the usage counts of users; see [`lattice_ledger_state::user_usage`].

use super::{ApplyContext, Ledger};
use lattice_ledger_state::allocation_index::AllocationFacts;
use lattice_ledger_state::user_usage::{Counted, Counts, User};
use lattice_model::{Allocation, AllocationId};
#[cfg(test)]
use std::collections::BTreeMap;

impl Ledger {
    /// Must be called before a command changes, adds or removes the allocation, one of its holdings, its
    /// tasks, its replicas, what depends on it, or what a recovery waits for before it can be placed.
    pub(super) fn note_before(&self, context: &mut ApplyContext, id: AllocationId) {
        let facts = || self.allocations.get(&id).map(|allocation| AllocationFacts::of(allocation));
        context.allocations_before.entry(id).or_insert_with(facts);
        context.names_before.entry(id).or_insert_with(|| self.name_place(id));
        if !context.parents_before.contains_key(&id)
            && self.dependents.has_any_of(id)
            && let Some(facts) = self.parent_facts(id)
        {
            context.parents_before.insert(id, facts);
        }
        if let Some(allocation) = self.allocations.get(&id) {
            if let Some(lane) = allocation.lane {
                context.lanes.insert(id, lane);
            } else if let Some(replica) = allocation.replica.as_deref() {
                context.replicas.insert(id, *replica);
            } else if allocation.is_group() {
                context.groups.insert(id);
            }
        }
        if self.user_usage.0.is_some() {
            context.before.entry(id).or_insert_with(|| self.counts_of(id));
        }
    }

    fn counts_of(&self, id: AllocationId) -> Option<Counts> {
        self.allocations.get(&id).map(|allocation| self.counts(allocation))
    }

    fn counts(&self, allocation: &Allocation) -> Counts {
        Counts::of(allocation, self.is_referred_to(allocation.id), || self.tasks_bytes(allocation.id))
    }

    /// Counts the changes made by this command so far.
    pub(super) fn count_changed(&mut self, context: &mut ApplyContext) {
        let before = std::mem::take(&mut context.before);
        for (id, was) in before {
            let now = self.counts_of(id);
            let Some(counted) = self.user_usage.0.as_mut().filter(|_| was != now) else { continue };
            was.iter().for_each(|was| counted.remove(was));
            now.iter().for_each(|now| counted.add(now));
            for uid in was.iter().chain(&now).map(|counts| counts.uid) {
                if counted.users.get(&uid).is_some_and(User::has_nothing) {
                    counted.users.remove(&uid);
                }
            }
        }
    }

    pub(super) fn counted(&mut self, context: &mut ApplyContext) -> &mut Counted {
        if self.user_usage.0.is_some() {
            self.count_changed(context);
        } else {
            context.before.clear();
            self.user_usage.0 = Some(self.count_users());
        }
        self.user_usage.0.get_or_insert_default()
    }

    pub(super) fn count_users(&self) -> Counted {
        let mut counted = Counted::default();
        for allocation in self.allocations.values() {
            counted.add(&self.counts(allocation));
        }
        counted
    }

    /// Whether the counts, if there are some, are those of the current state.
    #[cfg(test)]
    pub(super) fn has_right_counts(&self) -> bool {
        self.user_usage.0.as_ref().is_none_or(|counted| *counted == self.count_users())
    }

    /// Number of allocations of each user that hold nodes, as counted; `None`: nothing has been
    /// counted yet.
    #[cfg(test)]
    pub(super) fn running_of_users(&self) -> Option<BTreeMap<u32, u32>> {
        let running = self.user_usage.0.as_ref()?.users.iter().map(|(uid, user)| (*uid, user.running));
        Some(running.filter(|(_, running)| *running > 0).collect())
    }
}

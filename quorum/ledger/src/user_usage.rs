//! Updates the usage counts of users; see [`super::state::user_usage`].

use super::state::user_usage::{Counted, Counts, User};
use super::{ApplyContext, Ledger};
use lattice_model::AllocationId;
#[cfg(test)]
use std::collections::BTreeMap;

impl Ledger {
    /// Must be called before a command changes or adds the allocation.
    pub(super) fn note_before(&self, context: &mut ApplyContext, id: AllocationId) {
        if self.user_usage.0.is_some() {
            context.before.entry(id).or_insert_with(|| self.counts_of(id));
        }
    }

    fn counts_of(&self, id: AllocationId) -> Option<Counts> {
        let is_held = |id| self.user_usage.0.as_ref().is_some_and(|counted| counted.is_held(id));
        self.allocations.get(&id).map(|a| Counts::of(a, is_held(id) || self.may_be_found(id)))
    }

    /// Must be called together with adding a holding of the allocation, before anything else.
    pub(super) fn count_holding(&mut self, context: &mut ApplyContext, id: AllocationId) {
        self.note_before(context, id);
        if let Some(counted) = &mut self.user_usage.0 {
            counted.add_holding(id);
        }
    }

    /// Must be called together with removing a holding of the allocation, before anything else.
    pub(super) fn count_holding_removed(&mut self, context: &mut ApplyContext, id: AllocationId) {
        self.note_before(context, id);
        if let Some(counted) = &mut self.user_usage.0 {
            counted.remove_holding(id);
        }
    }

    /// All counts are made again when they are next needed.
    pub(super) fn drop_counts(&mut self, context: &mut ApplyContext) {
        context.before.clear();
        self.user_usage.0 = None;
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

    fn count_users(&self) -> Counted {
        let mut counted = Counted::default();
        self.holdings.values().flatten().for_each(|held| counted.add_holding(held.allocation));
        for (id, allocation) in &self.allocations {
            let is_referred_to = counted.is_held(*id) || self.may_be_found(*id);
            counted.add(&Counts::of(allocation, is_referred_to));
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

//! Ended allocations: how long they are shown, and which are dropped first.

use super::{ApplyContext, ENDED_KEPT_MAX, ENDED_KEPT_MS, Ledger};
use lattice_model::{AllocationId, Timestamp};
use std::collections::VecDeque;

/// How many ended allocations of a user are searched for one that its nodes have completely
/// released.
const LOOK_AT_ENDED_MAX: usize = 1000;

impl Ledger {
    /// Records that the allocation has ended: it is shown for a while, and older ones may be
    /// dropped. The audit log keeps their history.
    pub(super) fn keep_ended(&mut self, context: &mut ApplyContext, id: AllocationId) {
        self.ended.push_back(id);
        let Some(uid) = self.allocations.get(&id).map(|a| a.owner.uid) else { return };
        if self.user_usage.0.is_some() {
            self.counted(context).users.entry(uid).or_default().ended.push_back(id);
        } else {
            // This one included.
            self.counted(context);
        }
        let most = self.limits.users.user_history.map_or(usize::MAX, |most| most as usize);
        while self.counted(context).users.get(&uid).is_some_and(|user| user.ended.len() > most) && self.forget_oldest_of(context, uid) {}
        while self.ended.len() > ENDED_KEPT_MAX {
            let longest = self.counted(context).longest_history();
            if !longest.is_some_and(|uid| self.forget_oldest_of(context, uid)) {
                break;
            }
        }
        while let Some(oldest) = self.ended.front().copied().filter(|oldest| self.is_old(*oldest, context.at)) {
            self.forget(context, oldest);
        }
    }

    /// Whether it ended too long ago to be shown.
    fn is_old(&self, id: AllocationId, now: Timestamp) -> bool {
        let ended_at = self.allocations.get(&id).and_then(|a| a.ended_at);
        ended_at.is_none_or(|at| now.0.saturating_sub(at.0) > ENDED_KEPT_MS)
    }

    /// Whether a node has not released it yet.
    fn is_leaving(&self, id: AllocationId) -> bool {
        let holds = |node| self.holdings(node).iter().any(|held| held.allocation == id);
        self.allocations.get(&id).is_some_and(|a| a.nodes().any(holds))
    }

    /// Drops the user's oldest ended allocation that all nodes have released; returns whether there
    /// was one.
    pub(super) fn forget_oldest_of(&mut self, context: &mut ApplyContext, uid: u32) -> bool {
        self.counted(context);
        let user = self.user_usage.0.as_ref().and_then(|counted| counted.users.get(&uid));
        let oldest = user.and_then(|user| user.ended.iter().take(LOOK_AT_ENDED_MAX).find(|id| !self.is_leaving(**id))).copied();
        oldest.is_some_and(|oldest| {
            self.forget(context, oldest);
            true
        })
    }

    fn forget(&mut self, context: &mut ApplyContext, id: AllocationId) {
        self.note_before(context, id);
        let uid = self.allocations.remove(&id).map(|a| a.owner.uid);
        remove_from(&mut self.ended, id);
        if let Some(uid) = uid
            && let Some(user) = self.user_usage.0.as_mut().and_then(|counted| counted.users.get_mut(&uid))
        {
            remove_from(&mut user.ended, id);
        }
        self.count_changed(context);
    }
}

/// The id is usually near the front.
fn remove_from(ended: &mut VecDeque<AllocationId>, id: AllocationId) {
    if let Some(place) = ended.iter().position(|there| *there == id) {
        ended.remove(place);
    }
}

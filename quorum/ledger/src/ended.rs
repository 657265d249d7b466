//! Ended allocations: how long their records are kept, and which are dropped first.
//!
//! ```text
//!   ended ──▶ a node still holds a part of itself for it,
//!             a node of a recovered quorum may report it,
//!             or its end has not reached all that depend on it ──▶ kept
//!             otherwise ──▶ droppable, in the order of the ends:
//!                             all records have more than ENDED_BYTES_MAX ─▶ the oldest of the user with most
//!                             a user has more than `user_history`        ─▶ the oldest of that user
//!                             it ended more than ENDED_KEPT_MS ago       ─▶ dropped
//! ```
//!
//! The bound is memory and not a number: 10,000 records would be ten seconds of 1,000 ends a
//! second. 256 MiB are 150,000 plain records (1.7 KB each) or 25,000 with an environment of 8 KB; at
//! usual rates these are days. More would double a member's memory, and the time in which it starts
//! from a snapshot. A record stays whole until it is dropped: a repeated submission must find the
//! spec that it is compared with, or the work would run a second time.
//!
//! A record that is dropped in the entry that changed it is published all the same
//! ([`super::Changed::dropped`]): otherwise a watcher would never learn of the end.
//!
//! The sizes decide what is dropped, so every member must count the same: see
//! [`crate::record_bytes`].

use super::state::ended_place::EndedPlace;
use super::{ApplyContext, ENDED_BYTES_MAX, ENDED_KEPT_MS, Ledger};
use lattice_model::AllocationId;

/// Largest number of records that one end drops because of their age, and because of a lowered
/// `user_history`: a command must not take long.
const DROPPED_AT_ONCE_MAX: usize = 100;

impl Ledger {
    /// Records that the allocation has ended: it is shown for a while, and older ones may be
    /// dropped. The audit log keeps their history.
    pub(super) fn keep_ended(&mut self, context: &mut ApplyContext, id: AllocationId) {
        let Some(allocation) = self.allocations.get(&id) else { return };
        let uid = allocation.owner.uid;
        self.ended.insert(EndedPlace::of(allocation));
        while self.counted(context).history_bytes > ENDED_BYTES_MAX {
            let longest = self.counted(context).longest_history();
            if !longest.is_some_and(|uid| self.forget_oldest_of(context, uid)) {
                break;
            }
        }
        let most = self.limits.users.user_history.map_or(usize::MAX, |most| most as usize);
        for _ in 0..DROPPED_AT_ONCE_MAX {
            let is_over = self.counted(context).users.get(&uid).is_some_and(|user| user.ended > most);
            if !is_over || !self.forget_oldest_of(context, uid) {
                break;
            }
        }
        for _ in 0..DROPPED_AT_ONCE_MAX {
            let oldest = self.counted(context).droppable.first().copied();
            let is_old = |place: &EndedPlace| context.at.since_ms(place.ended_at) > ENDED_KEPT_MS;
            let Some(oldest) = oldest.filter(is_old) else { break };
            self.forget(context, oldest);
        }
    }

    /// Whether its record must be kept: a node holds a part of itself for it, or a node of a recovered
    /// quorum may still report it as running (without the record, that report would bring it back), or
    /// others that depend on it have to learn of its end.
    pub(super) fn is_referred_to(&self, id: AllocationId) -> bool {
        let may_be_reported = self.recovery.as_ref().is_some_and(|recovery| recovery.pending.contains(&id));
        self.holdings.has_any_of(id) || may_be_reported || self.dependents.has_any_of(id)
    }

    /// Drops the user's oldest ended allocation that nothing refers to; returns whether there was
    /// one.
    pub(super) fn forget_oldest_of(&mut self, context: &mut ApplyContext, uid: u32) -> bool {
        let oldest = self.counted(context).users.get(&uid).and_then(|user| user.droppable.first()).copied();
        oldest.is_some_and(|oldest| {
            self.forget(context, oldest);
            true
        })
    }

    fn forget(&mut self, context: &mut ApplyContext, place: EndedPlace) {
        self.note_before(context, place.id);
        let dropped = self.allocations.remove(&place.id).filter(|a| a.revision == context.revision);
        context.changed.dropped.extend(dropped.map(|a| (place.id, a)));
        self.ended.remove(&place);
        self.count_changed(context);
    }
}

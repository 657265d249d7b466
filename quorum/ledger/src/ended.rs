//! Ended allocations: how long their records are kept, and which are dropped first.
//!
//! ```text
//!   ended ──▶ a node still holds a part of itself for it,
//!             a node of a recovered quorum may report it,
//!             its end, or that of its tasks, has not reached all that depend on it,
//!             or it is a task group that has lanes, or a service that has replicas ──▶ kept
//!             otherwise ──▶ droppable, in the order of the ends:
//!                             all records have more than `ended_memory` ─▶ the oldest of the user with most
//!                             a user has more than `user_history`       ─▶ the oldest of that user
//!                             it ended more than `ended_kept` ago       ─▶ dropped
//! ```
//!
//! The bound is memory and not a number: 10,000 records would be ten seconds of 1,000 ends a
//! second. 256 MiB, the default, are 150,000 plain records (1.7 KB each) or 25,000 with an
//! environment of 8 KB; at usual rates these are days. With more memory, a member takes longer to start
//! from a snapshot. Where the memory cuts `ended_kept` short, [`EndedStatus`] says so. A record
//! stays whole until it is dropped: a repeated submission must find the spec that it is compared
//! with, or the work would run a second time.
//!
//! Accounting does not need these records: when an allocation ends, a record for the accounting store is
//! made (see `ended_work.rs`).
//!
//! A record that the same log entry changes and drops is still published
//! ([`super::Changed::dropped`]): otherwise a watcher would never learn of the end.
//!
//! The sizes decide what is dropped, so every member must count the same: see
//! [`lattice_ledger_state::record_bytes`].

use super::{ApplyContext, EndedLimits, Forgotten, Ledger};
use lattice_ledger_state::ended_place::EndedPlace;
use lattice_ledger_state::record_bytes::allocation_bytes;
use lattice_ledger_state::refusal::{ForgottenWork, Refusal};
use lattice_model::{AllocationId, Timestamp};
use serde::{Deserialize, Serialize};

/// Largest number of records that one end drops because of their age, and because of a lowered
/// limit: a command must not take long.
const DROPPED_AT_ONCE_MAX: usize = 100;

/// The changes of [`EndedLimits`]; `None`: no change.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct EndedLimitsChange {
    /// See [`EndedLimits::kept_ms`].
    pub kept_ms: Option<u64>,
    /// See [`EndedLimits::memory_bytes`].
    pub memory_bytes: Option<u64>,
}

impl EndedLimitsChange {
    /// Whether it changes no limit.
    pub fn is_none(&self) -> bool {
        *self == Self::default()
    }

    /// The resulting limits, and a text with the changed ones for the audit log.
    pub(super) fn over(&self, before: EndedLimits) -> Result<(EndedLimits, String), Refusal> {
        let next =
            EndedLimits { kept_ms: self.kept_ms.unwrap_or(before.kept_ms), memory_bytes: self.memory_bytes.unwrap_or(before.memory_bytes) };
        let EndedLimits { kept_ms, memory_bytes } = next;
        let malformed = |why: &str| Err(Refusal::Malformed { why: why.to_owned() });
        let (least, most) = EndedLimits::KEPT_MS;
        if !(least..=most).contains(&kept_ms) {
            return malformed("ended work is kept for 1 hour to 366 days (limit ended_kept)");
        }
        let (least, most) = EndedLimits::MEMORY_BYTES;
        if !(least..=most).contains(&memory_bytes) {
            return malformed("the records of ended work may have 1 MiB to 64 GiB in each member (limit ended_memory)");
        }
        let mut changes_text = String::new();
        if kept_ms != before.kept_ms {
            changes_text += &format!(", ended_kept_ms {kept_ms}");
        }
        if memory_bytes != before.memory_bytes {
            changes_text += &format!(", ended_memory_bytes {memory_bytes}");
        }
        Ok((next, changes_text))
    }
}

/// How much ended work is kept.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct EndedStatus {
    /// The time of this status.
    pub at: Timestamp,
    /// The limits.
    pub limits: EndedLimits,
    /// Number of ended allocations whose records are kept.
    pub count: u64,
    /// Size of these records, in bytes.
    pub bytes: u64,
    /// When the oldest of them ended; `None`: there is none.
    pub oldest: Option<Timestamp>,
    /// Which records have been dropped.
    pub forgotten: Forgotten,
}

impl EndedStatus {
    /// How long ago the oldest one ended, in milliseconds; `None`: there is none.
    pub fn oldest_ms(&self) -> Option<u64> {
        self.oldest.map(|ended_at| self.at.since_ms(ended_at))
    }

    /// Whether work was dropped that ended less than `ended_kept` ago, because the memory was full.
    pub fn is_cut_short(&self) -> bool {
        self.forgotten.too_early_until.is_some_and(|ended_at| self.at.since_ms(ended_at) < self.limits.kept_ms)
    }
}

/// Why a record is dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Cause {
    /// All records together are larger than `ended_memory`.
    Memory,
    /// Its user has more records or scripts than a limit allows.
    UserLimit,
    /// It ended more than `ended_kept` ago.
    Age,
}

impl Ledger {
    /// How much ended work is kept. `at`: the time now.
    pub fn ended_status(&self, at: Timestamp) -> EndedStatus {
        let bytes = self.user_usage.0.as_ref().map_or_else(|| self.count_users().history_bytes, |counted| counted.history_bytes);
        EndedStatus {
            at: at.max(self.time),
            limits: self.limits.ended,
            count: self.ended.len() as u64,
            bytes,
            oldest: self.ended.get_min().map(|place| place.ended_at),
            forgotten: self.forgotten,
        }
    }

    /// The refusal of a request about an allocation that is not in the ledger.
    pub(super) fn no_such_allocation(&self, id: impl ToString) -> Refusal {
        let forgotten = self.forgotten.until.map(|until| ForgottenWork { until, kept_ms: self.limits.ended.kept_ms });
        Refusal::NoSuchAllocation { key: id.to_string(), forgotten }
    }

    /// Records that the allocation has ended: it is shown for a while, and older ones may be
    /// dropped. The audit log keeps their history.
    pub(super) fn keep_ended(&mut self, context: &mut ApplyContext, id: AllocationId) {
        let Some(allocation) = self.allocations.get(&id) else { return };
        let (uid, added) = (allocation.owner.uid, (allocation_bytes(allocation) + self.tasks_bytes(id)) as u64);
        self.ended.insert(EndedPlace::of(allocation));
        self.fit_ended(context, added);
        let most = self.limits.users.user_history.map_or(usize::MAX, |most| most as usize);
        for _ in 0..DROPPED_AT_ONCE_MAX {
            let is_over = self.counted(context).users.get(&uid).is_some_and(|user| user.ended > most);
            if !is_over || !self.forget_oldest_of(context, uid, Cause::UserLimit) {
                break;
            }
        }
        let kept_ms = self.limits.ended.kept_ms;
        for _ in 0..DROPPED_AT_ONCE_MAX {
            let oldest = self.counted(context).droppable.first().copied();
            let is_old = |place: &EndedPlace| context.at.since_ms(place.ended_at) > kept_ms;
            let Some(oldest) = oldest.filter(is_old) else { break };
            self.forget(context, oldest, Cause::Age);
        }
    }

    /// Drops records until all fit in the memory for them. After the limit was lowered, one end drops
    /// only a part of the surplus: at least as many bytes as it added, so that the total never grows.
    fn fit_ended(&mut self, context: &mut ApplyContext, added: u64) {
        let most = self.limits.ended.memory_bytes;
        let begin = self.counted(context).history_bytes;
        let mut dropped = 0;
        loop {
            let counted = self.counted(context);
            let freed = begin.saturating_sub(counted.history_bytes);
            if counted.history_bytes <= most || (dropped >= DROPPED_AT_ONCE_MAX && freed >= added) {
                return;
            }
            let longest = counted.longest_history();
            if !longest.is_some_and(|uid| self.forget_oldest_of(context, uid, Cause::Memory)) {
                return;
            }
            dropped += 1;
        }
    }

    /// Whether its record must be kept: the figure of the module has the reasons. Without the record, a
    /// report after a recovery that it runs would bring it back.
    pub(super) fn is_referred_to(&self, id: AllocationId) -> bool {
        let may_be_reported = self.recovery.as_ref().is_some_and(|recovery| recovery.pending.contains(&id));
        let has_news = self.task_groups.get(&id).is_some_and(|tasks| tasks.has_news());
        self.holdings.has_any_of(id) || may_be_reported || self.dependents.has_any_of(id) || self.has_lanes(id) || has_news
    }

    /// Memory of the tasks of a group; 0 for other allocations.
    pub(super) fn tasks_bytes(&self, id: AllocationId) -> usize {
        self.task_groups.get(&id).map_or(0, |tasks| tasks.bytes())
    }

    /// Drops the user's oldest ended allocation that nothing refers to; returns whether there was
    /// one.
    pub(super) fn forget_oldest_of(&mut self, context: &mut ApplyContext, uid: u32, cause: Cause) -> bool {
        let oldest = self.counted(context).users.get(&uid).and_then(|user| user.droppable.first()).copied();
        oldest.is_some_and(|oldest| {
            self.forget(context, oldest, cause);
            true
        })
    }

    fn forget(&mut self, context: &mut ApplyContext, place: EndedPlace, cause: Cause) {
        self.note_before(context, place.id);
        let removed = self.allocations.remove(&place.id);
        if let Some(allocation) = &removed {
            self.job_numbers.remove(allocation);
        }
        if let Some(of) = removed.as_ref().and_then(|allocation| allocation.dag.as_deref()) {
            self.dags.release(of.dag);
        }
        let dropped = removed.filter(|a| a.revision == context.revision);
        context.changed.dropped.extend(dropped.map(|a| (place.id, a)));
        self.ended.remove(&place);
        self.task_groups.remove(&place.id);
        self.scaled_services.remove(&place.id);
        let is_young = context.at.since_ms(place.ended_at) <= self.limits.ended.kept_ms;
        self.forgotten.add(place.ended_at, cause == Cause::Memory && is_young);
        self.count_changed(context);
    }
}

//! Job numbers: each submitted allocation has one, as in batch systems that people come from. A task group has
//! one for each task.
//!
//! ```text
//!   jobs = 11, a group of 3 tasks is submitted ──▶ its number is 12, jobs = 14: task 0 is 12, task 1 is 13, task 2 is 14
//! ```
//!
//! No number is assigned twice. After a recovery from a backup the next one is beyond any that the lost
//! quorum can have assigned (see [`NUMBERS_STEP`]). Work that still runs on nodes keeps its number.

use super::Ledger;
use lattice_model::{Allocation, AllocationId, DesiredShare};
use std::sync::Arc;

/// After a recovery, job numbers continue from a multiple of this that is at least half of it away: the
/// ledger does not know the numbers assigned after the backup. The step is much smaller than for other
/// numbers, because people read job numbers, and programs of batch systems store them in 32 bits. Half of
/// it is enough for 50 task groups of the largest size between two backups.
pub(super) const NUMBERS_STEP: u64 = 100_000_000;

/// The first number of this text, if it is a job number: decimal digits without a leading zero.
pub(super) fn parse(key: &str) -> Option<u64> {
    let is_number = key.bytes().all(|digit| digit.is_ascii_digit()) && !key.starts_with('0');
    if is_number { key.parse().ok() } else { None }
}

/// Where numbers continue after a recovery.
pub(super) fn beyond(jobs: u64) -> u64 {
    jobs.saturating_add(NUMBERS_STEP / 2).div_ceil(NUMBERS_STEP).saturating_mul(NUMBERS_STEP)
}

impl Ledger {
    /// The allocation with this job number; for the number of a task, its group.
    pub fn find_number(&self, number: u64) -> Option<&Arc<Allocation>> {
        let allocation = self.allocations.get(&self.job_numbers.last_until(number)?)?;
        (number - allocation.number < allocation.numbers_count()).then_some(allocation)
    }

    /// The last job number that was given.
    pub fn jobs(&self) -> u64 {
        self.jobs
    }

    /// Gives the next numbers to an allocation that is about to be added.
    pub(super) fn give_number(&mut self, allocation: &mut Allocation) {
        allocation.number = self.jobs.saturating_add(1);
        self.jobs = self.jobs.saturating_add(allocation.numbers_count());
        self.job_numbers.add(allocation);
    }

    /// After a recovery: numbers an allocation of which a node reports `share`. It keeps the number in the
    /// share, unless no quorum can have assigned it or another allocation has it.
    pub(super) fn adopt_number(&mut self, allocation: &mut Allocation, share: &DesiredShare) {
        let given = self.recovery.as_ref().map_or(0, |recovery| recovery.jobs);
        let last = share.number.saturating_add(allocation.numbers_count().saturating_sub(1));
        let before = self.job_numbers.last_until(last).and_then(|id| self.allocations.get(&id));
        let is_free = before.is_none_or(|before| before.number.saturating_add(before.numbers_count()) <= share.number);
        if share.number == 0 || last > given || !is_free {
            return self.give_number(allocation);
        }
        allocation.number = share.number;
        self.job_numbers.add(allocation);
    }

    /// The number that a node shows to its work: a lane or a replica shows that of its group or service.
    pub(super) fn shown_number(&self, allocation: &Allocation) -> u64 {
        let whole: Option<AllocationId> =
            allocation.lane.map(|lane| lane.group).or_else(|| allocation.replica.as_deref().map(|replica| replica.service));
        whole.and_then(|whole| self.allocations.get(&whole)).map_or(allocation.number, |whole| whole.number)
    }
}

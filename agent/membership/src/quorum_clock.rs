//! The quorum's time, for the scheduler, the broker and the loop that scales services. The ledger
//! uses the quorum's time, and this machine's time of day may be wrong or jump. A plan with a wrong
//! time would claim nodes outside the windows of reservations: the ledger would refuse these
//! claims, and the work behind them in the queue would wait too.
//!
//! A member's time of day is read every minute. In between, this machine's `CLOCK_BOOTTIME`
//! counts, which nobody can set.

use lattice_agent_common::clock;
use lattice_model::{Timestamp, with_causes};
use lattice_quorum_client::wire::{Answer, ClockAlarm, QuorumStatus, Request};
use lattice_quorum_client::{CallError, QuorumClient};
use lattice_runtime::shim::boottime_ms;
use parking_lot::Mutex;
use std::time::Duration;
use thiserror::Error;

/// Timeout of the member's answer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);
/// How long a reading is used until the next one, in milliseconds.
const READING_AGE_MS_MAX: u64 = 60_000;

/// Why the quorum's time is unknown.
#[derive(Debug, Error)]
pub enum QuorumTimeError {
    #[error("no member reports the quorum's time: {}", with_causes(.0))]
    Ask(#[source] CallError),
    #[error("a member's answer does not contain the quorum's time")]
    OtherAnswer,
}

/// A member's time of day, and this machine's boot time when it was read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QuorumTime {
    at: Timestamp,
    boottime_ms: u64,
}

impl QuorumTime {
    /// The quorum's time now.
    pub fn now(self) -> Timestamp {
        self.when(boottime_ms())
    }

    /// The quorum's time at a boot time of this machine.
    fn when(self, boottime_ms: u64) -> Timestamp {
        Timestamp(self.at.0.saturating_add(boottime_ms.saturating_sub(self.boottime_ms)))
    }

    fn is_old(self, boottime_ms: u64) -> bool {
        boottime_ms.saturating_sub(self.boottime_ms) > READING_AGE_MS_MAX
    }

    /// The next reading, corrected by what the members know of their clocks. Time continues from
    /// the earlier reading if no majority of the clocks agrees, or if the member knows no leader
    /// and therefore no other clock.
    fn next(known: Option<Self>, status: &QuorumStatus, boottime_ms: u64) -> Self {
        if let (None, Some(known)) = (status.leader, known) {
            return known;
        }
        let ahead_ms = match (&status.clocks, known) {
            (Some(ClockAlarm::NoMajority), Some(known)) => return known,
            (Some(ClockAlarm::NoMajority) | None, _) => 0,
            (Some(ClockAlarm::Skewed(ahead_ms)), _) => ahead_ms.get(&status.member).copied().unwrap_or(0),
            (Some(ClockAlarm::LedgerTime { behind_ms }), _) => *behind_ms,
        };
        Self { at: Timestamp(status.at.0.saturating_add_signed(ahead_ms.saturating_neg())), boottime_ms }
    }
}

/// The latest reading.
#[derive(Debug, Default)]
pub struct QuorumClock(Mutex<Option<QuorumTime>>);

impl QuorumClock {
    /// The quorum's time. Asks a member if the latest reading is old; if no member answers, uses
    /// the latest reading.
    pub async fn read(&self, quorum: &QuorumClient) -> Result<QuorumTime, QuorumTimeError> {
        let known = *self.0.lock();
        if let Some(known) = known.filter(|known| !known.is_old(boottime_ms())) {
            return Ok(known);
        }
        match quorum.call(&Request::Status, ANSWER_TIMEOUT).await {
            Ok(Answer::Status(status)) => Ok(self.take(known, &status, boottime_ms())),
            Ok(_) => known.ok_or(QuorumTimeError::OtherAnswer),
            Err(error) => known.ok_or(QuorumTimeError::Ask(error)),
        }
    }

    /// Takes a member's answer. The time of a member that knows no leader is not kept: it may be wrong, and
    /// that member cannot tell.
    fn take(&self, known: Option<QuorumTime>, status: &QuorumStatus, boottime_ms: u64) -> QuorumTime {
        let time = QuorumTime::next(known, status, boottime_ms);
        if status.leader.is_some() {
            *self.0.lock() = Some(time);
        }
        time
    }

    /// The quorum's time now, for decisions that the ledger checks with its own time. Until a
    /// member has answered, this machine's time of day is used.
    pub async fn now(&self, quorum: &QuorumClient) -> Timestamp {
        match self.read(quorum).await {
            Ok(time) => time.now(),
            Err(why) => {
                tracing::info!(why = with_causes(&why), "using this machine's time of day until a member reports the quorum's time");
                clock::now()
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lattice_model::{Generation, MemberId, Revision};

    fn status(at: u64, clocks: Option<ClockAlarm>) -> QuorumStatus {
        QuorumStatus {
            cluster: String::new(),
            member: MemberId(1),
            leader: Some(MemberId(1)),
            term: 1,
            generation: Generation::default(),
            revision: Revision(1),
            members: Vec::new(),
            nodes: Vec::new(),
            allocations: Vec::new(),
            audit_records: 0,
            at: Timestamp(at),
            refused: Vec::new(),
            level: 1,
            awaited: Vec::new(),
            notified: Vec::new(),
            held_back: 0,
            clocks,
            ended: Default::default(),
        }
    }

    #[test]
    fn time_passes_as_the_boot_time_of_this_machine_until_the_next_reading() {
        let first = QuorumTime::next(None, &status(1_000_000, None), 5_000);
        assert_eq!((first.when(5_000), first.when(65_000)), (Timestamp(1_000_000), Timestamp(1_060_000)));
        assert!(!first.is_old(5_000 + READING_AGE_MS_MAX) && first.is_old(5_001 + READING_AGE_MS_MAX));
        let next = QuorumTime::next(Some(first), &status(1_700_000, None), 700_000);
        assert_eq!(next.when(700_000), Timestamp(1_700_000));
    }

    #[test]
    fn a_wrong_clock_of_a_member_changes_nothing() {
        let first = QuorumTime::next(None, &status(1_000_000, None), 5_000);
        let at = |clocks| QuorumTime::next(Some(first), &status(9_000_000, Some(clocks)), 700_000).when(700_000);
        assert_eq!(at(ClockAlarm::NoMajority), Timestamp(1_695_000));
        assert_eq!(at(ClockAlarm::Skewed([(MemberId(1), 7_300_000)].into())), Timestamp(1_700_000));
        assert_eq!(at(ClockAlarm::Skewed([(MemberId(1), -5_000)].into())), Timestamp(9_005_000));
        assert_eq!(at(ClockAlarm::Skewed([(MemberId(2), 7_300_000)].into())), Timestamp(9_000_000));
        // The ledger's time counts, not the clocks that agree.
        assert_eq!(at(ClockAlarm::LedgerTime { behind_ms: 60_000 }), Timestamp(8_940_000));
        // A member without a leader knows nothing of the other clocks.
        let alone = QuorumStatus { leader: None, ..status(9_000_000, None) };
        assert_eq!(QuorumTime::next(Some(first), &alone, 700_000), first);
        // Without an earlier reading, the member's time is used.
        let alone = QuorumTime::next(None, &status(9_000_000, Some(ClockAlarm::NoMajority)), 5_000);
        assert_eq!(alone.when(5_000), Timestamp(9_000_000));
    }

    #[test]
    fn a_time_is_kept_only_from_a_member_that_knows_the_leader() {
        let clock = QuorumClock::default();
        let alone = QuorumStatus { leader: None, ..status(9_000_000, None) };
        assert_eq!(clock.take(None, &alone, 5_000).when(5_000), Timestamp(9_000_000));
        assert_eq!(*clock.0.lock(), None);
        let read = clock.take(None, &status(1_000_000, None), 5_000);
        assert_eq!((read.when(6_000), *clock.0.lock()), (Timestamp(1_001_000), Some(read)));
    }
}

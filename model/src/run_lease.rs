//! Run leases: how long work with `--on-isolation=stop` may continue without contact to the leader.
//!
//! ```text
//!   node    sends a heartbeat at S ──────────────▶ its acknowledgement arrives: lease lasts until S + length
//!   leader               receives it at H ≥ S; H + length + margin later nothing of that work runs
//! ```
//!
//! Both count from the same heartbeat, each by its own clock: the node from when it sent it, the
//! leader from when it received it, which is never earlier. A heartbeat whose acknowledgement the
//! node has not received extends no lease. The code is pure: callers pass in the time, on the node
//! in milliseconds of CLOCK_BOOTTIME, which also advances while a machine sleeps.

use std::collections::VecDeque;

/// Largest number of unacknowledged heartbeats to remember. The oldest are dropped beyond that:
/// they extend no lease.
const UNANSWERED_MAX: usize = 64;
/// Smallest margin, in milliseconds.
const MARGIN_MS_MIN: u64 = 1000;

/// How much longer than the lease the leader waits, in milliseconds: a tenth of the lease, for
/// clocks that run at different speeds and for processes that take a moment to die.
pub fn margin_ms(lease_ms: u64) -> u64 {
    (lease_ms / 10).max(MARGIN_MS_MIN)
}

/// How long after the last heartbeat the leader assumes that work with a lease of this length has
/// ended, in milliseconds.
pub fn over_after_ms(lease_ms: u64) -> u64 {
    lease_ms.saturating_add(margin_ms(lease_ms))
}

/// When the first run lease of new work expires, in milliseconds. `sent_ms`: when the newest
/// acknowledged heartbeat was sent. `None`: less than half of the lease would be left, so the work
/// must wait for the next acknowledgement, which grants a whole lease. Work never starts under a
/// lease that would end it at once.
pub fn first_until_ms(sent_ms: u64, lease_ms: u64, now_ms: u64) -> Option<u64> {
    let until_ms = sent_ms.saturating_add(lease_ms);
    (until_ms.saturating_sub(now_ms) >= lease_ms.div_ceil(2)).then_some(until_ms)
}

/// A node's heartbeats, and which of them the leader has acknowledged.
#[derive(Clone, Debug, Default)]
pub struct Heartbeats {
    /// The unacknowledged heartbeats of this session: number and time of sending.
    unanswered: VecDeque<(u64, u64)>,
    /// When the newest acknowledged heartbeat was sent; `None`: none was acknowledged since the
    /// leases lapsed.
    acknowledged: Option<u64>,
    /// Whether leases lapsed and no heartbeat has been acknowledged since.
    is_lapsed: bool,
}

/// The leases lapsed before the acknowledgement arrived: the work under them is lost. The node must
/// register again before it starts anything, so that its next list reflects what the quorum decided
/// during its silence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lapsed;

impl Heartbeats {
    /// Starts a session: heartbeats of the previous session will not be acknowledged any more.
    /// `shortest_ms`: the shortest lease of the node's work, or of its last list. If that lease has
    /// expired, earlier acknowledgements permit no new work.
    pub fn begin(&mut self, now_ms: u64, shortest_ms: Option<u64>) {
        self.unanswered.clear();
        self.lapse_if_expired(now_ms, shortest_ms);
    }

    /// Whether leases lapsed and no heartbeat has been acknowledged since: the node must not get
    /// work yet.
    pub fn is_lapsed(&self) -> bool {
        self.is_lapsed
    }

    /// What [`Self::is_lapsed`] would return after [`Self::begin`] with these arguments.
    pub fn is_lapsed_at(&self, now_ms: u64, shortest_ms: Option<u64>) -> bool {
        self.is_lapsed || self.acknowledged.zip(shortest_ms).is_some_and(|(last, lease)| last.saturating_add(lease) <= now_ms)
    }

    /// If the shortest lease has expired, discards the earlier acknowledgements.
    fn lapse_if_expired(&mut self, now_ms: u64, shortest_ms: Option<u64>) -> bool {
        let over = self.acknowledged.is_some() && self.is_lapsed_at(now_ms, shortest_ms);
        if over {
            (self.acknowledged, self.is_lapsed) = (None, true);
        }
        over
    }

    /// Records a heartbeat that is about to be sent.
    pub fn sent(&mut self, seq: u64, at_ms: u64) {
        if self.unanswered.len() == UNANSWERED_MAX {
            self.unanswered.pop_front();
        }
        self.unanswered.push_back((seq, at_ms));
    }

    /// Records that the leader received heartbeat `seq` and so all earlier ones. `shortest_ms`: the
    /// shortest lease of the node's work.
    ///
    /// # Errors
    /// [`Lapsed`] if that lease had expired before: no lease is extended.
    pub fn acknowledged(&mut self, seq: u64, now_ms: u64, shortest_ms: Option<u64>) -> Result<(), Lapsed> {
        let mut newest = None;
        while let Some((_, at_ms)) = self.unanswered.pop_front_if(|(unanswered, _)| *unanswered <= seq) {
            newest = Some(at_ms);
        }
        let Some(sent_ms) = newest else { return Ok(()) };
        if self.lapse_if_expired(now_ms, shortest_ms) {
            return Err(Lapsed);
        }
        (self.acknowledged, self.is_lapsed) = (self.acknowledged.max(Some(sent_ms)), false);
        Ok(())
    }

    /// When the newest heartbeat that the leader acknowledged was sent.
    pub fn newest_acknowledged(&self) -> Option<u64> {
        self.acknowledged
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lease_counts_from_when_the_acknowledged_heartbeat_was_sent() {
        let mut beats = Heartbeats::default();
        beats.sent(1, 1000);
        beats.sent(2, 2000);
        assert_eq!(beats.newest_acknowledged(), None, "sending extends nothing");
        assert_eq!(beats.acknowledged(1, 9000, Some(5000)), Ok(()));
        assert_eq!(beats.newest_acknowledged(), Some(1000), "not from when the answer came");
        assert_eq!(beats.acknowledged(1, 5500, Some(5000)), Ok(()), "said twice");
        assert_eq!(beats.acknowledged(2, 5500, Some(5000)), Ok(()));
        assert_eq!(beats.newest_acknowledged(), Some(2000));
    }

    #[test]
    fn what_lapsed_is_not_extended_until_the_node_registered_anew() {
        let mut beats = Heartbeats::default();
        beats.sent(1, 1000);
        assert_eq!(beats.acknowledged(1, 1001, Some(5000)), Ok(()));
        beats.sent(2, 5999);
        assert_eq!(beats.acknowledged(2, 6000, Some(5000)), Err(Lapsed));
        assert_eq!((beats.newest_acknowledged(), beats.is_lapsed()), (None, true));
        beats.begin(6050, Some(5000));
        assert!(beats.is_lapsed(), "a session alone says nothing of the leader");
        beats.sent(1, 6100);
        assert_eq!(beats.acknowledged(1, 6200, Some(5000)), Ok(()));
        assert_eq!((beats.newest_acknowledged(), beats.is_lapsed()), (Some(6100), false));
    }

    #[test]
    fn what_was_acknowledged_before_the_leases_lapsed_grants_nothing_in_a_later_session() {
        let acknowledged = || {
            let mut beats = Heartbeats::default();
            beats.sent(1, 1000);
            assert_eq!(beats.acknowledged(1, 1001, Some(5000)), Ok(()));
            beats
        };
        let mut beats = acknowledged();
        beats.begin(5999, Some(5000));
        assert_eq!((beats.newest_acknowledged(), beats.is_lapsed()), (Some(1000), false), "it lasts, and its work runs");
        let mut beats = acknowledged();
        beats.begin(6000, Some(5000));
        assert_eq!((beats.newest_acknowledged(), beats.is_lapsed()), (None, true));
        let mut beats = acknowledged();
        beats.begin(6000, None);
        assert_eq!((beats.newest_acknowledged(), beats.is_lapsed()), (Some(1000), false), "nothing was under a lease");
        assert_eq!(first_until_ms(1000, 5000, 6000), None, "and nothing new begins under this one");
    }

    #[test]
    fn the_first_lease_of_new_work_has_half_of_its_length_left() {
        assert_eq!(first_until_ms(1000, 5000, 1000), Some(6000));
        assert_eq!((first_until_ms(1000, 5000, 3500), first_until_ms(1000, 5000, 3501)), (Some(6000), None));
        assert_eq!((first_until_ms(1000, 1, 1000), first_until_ms(1000, 1, 1001)), (Some(1001), None));
        assert_eq!(first_until_ms(u64::MAX - 1, 5, u64::MAX), None);
    }

    #[test]
    fn an_acknowledgement_of_the_session_before_says_nothing_of_this_ones_heartbeats() {
        let mut beats = Heartbeats::default();
        beats.sent(7, 1000);
        beats.begin(1500, None);
        beats.sent(1, 2000);
        assert_eq!(beats.acknowledged(0, 2100, None), Ok(()));
        assert_eq!(beats.newest_acknowledged(), None);
        (2..200).for_each(|seq| beats.sent(seq, seq * 1000));
        assert_eq!(beats.unanswered.len(), UNANSWERED_MAX);
        assert_eq!(beats.acknowledged(1, 200_000, None), Ok(()), "it is forgotten");
        assert_eq!(beats.newest_acknowledged(), None);
    }

    #[test]
    fn the_leader_waits_longer_than_the_node() {
        assert_eq!((over_after_ms(90_000), over_after_ms(3000), over_after_ms(u64::MAX)), (99_000, 4000, u64::MAX));
    }
}

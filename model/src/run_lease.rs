//! Run leases: how long work of `--on-isolation=stop` may run on without a word from the leader.
//!
//! ```text
//!   node    sends a heartbeat at S ──────────────▶ its acknowledgement comes: the lease lasts until S + length
//!   leader               hears it at H ≥ S; H + length + margin later nothing of that work runs
//! ```
//!
//! Both count from the same heartbeat, each by its own clock: the node from when it sent it, the leader from when it was heard,
//! which is never earlier. A heartbeat of which the node has no acknowledgement extends nothing. Pure: times are given, the
//! node's as milliseconds of its CLOCK_BOOTTIME, which goes on while a machine sleeps.

use std::collections::VecDeque;

/// Heartbeats that are remembered until they are acknowledged. Of more, the oldest are forgotten: they extend nothing.
const UNANSWERED_MAX: usize = 64;
/// The margin is at least this, in milliseconds.
const MARGIN_MS_MIN: u64 = 1000;

/// How much longer than a lease the leader waits, in milliseconds: a tenth of it, for clocks that do not run alike and for
/// processes that take a moment to die.
pub fn margin_ms(lease_ms: u64) -> u64 {
    (lease_ms / 10).max(MARGIN_MS_MIN)
}

/// After how long without a heartbeat the leader takes it that work under a lease of this length has ended, in milliseconds.
pub fn over_after_ms(lease_ms: u64) -> u64 {
    lease_ms.saturating_add(margin_ms(lease_ms))
}

/// Until when the first run lease of new work lasts, in milliseconds, where one can be granted now. `sent_ms`: when the newest
/// acknowledged heartbeat was sent. `None`: less than half of the lease is left, and the next acknowledgement grants a whole one:
/// work is never begun under a lease that would end it at once.
pub fn first_until_ms(sent_ms: u64, lease_ms: u64, now_ms: u64) -> Option<u64> {
    let until_ms = sent_ms.saturating_add(lease_ms);
    (until_ms.saturating_sub(now_ms) >= lease_ms.div_ceil(2)).then_some(until_ms)
}

/// A node's heartbeats: which of them the leader is known to have.
#[derive(Clone, Debug, Default)]
pub struct Heartbeats {
    /// Of this session, by number, each with when it was sent.
    unanswered: VecDeque<(u64, u64)>,
    /// When the newest one was sent that the leader acknowledged; `None`: none was since the leases lapsed.
    acknowledged: Option<u64>,
    /// Whether leases lapsed, and no heartbeat was acknowledged since.
    is_lapsed: bool,
}

/// Leases lapsed before the acknowledgement came: what ran under them counts no more. The node registers anew before it
/// begins anything: the list that it gets then is of after whatever the quorum made of its silence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lapsed;

impl Heartbeats {
    /// A session begins: what was sent in the one before is acknowledged by nobody any more. `shortest_ms`: the shortest lease of
    /// what the node has, or had by its last list: where it is over, nothing is begun under what was acknowledged before.
    pub fn begin(&mut self, now_ms: u64, shortest_ms: Option<u64>) {
        self.unanswered.clear();
        self.lapse_where_over(now_ms, shortest_ms);
    }

    /// Whether leases lapsed, and no heartbeat was acknowledged since: the node is to get no work yet.
    pub fn is_lapsed(&self) -> bool {
        self.is_lapsed
    }

    /// The same as it will be for a session that begins now.
    pub fn is_lapsed_at(&self, now_ms: u64, shortest_ms: Option<u64>) -> bool {
        self.is_lapsed || self.acknowledged.zip(shortest_ms).is_some_and(|(last, lease)| last.saturating_add(lease) <= now_ms)
    }

    /// Whether that lease is over: what was acknowledged counts no more then.
    fn lapse_where_over(&mut self, now_ms: u64, shortest_ms: Option<u64>) -> bool {
        let over = self.acknowledged.is_some() && self.is_lapsed_at(now_ms, shortest_ms);
        if over {
            (self.acknowledged, self.is_lapsed) = (None, true);
        }
        over
    }

    /// A heartbeat is about to be sent.
    pub fn sent(&mut self, seq: u64, at_ms: u64) {
        if self.unanswered.len() == UNANSWERED_MAX {
            self.unanswered.pop_front();
        }
        self.unanswered.push_back((seq, at_ms));
    }

    /// The leader has the heartbeat `seq`, and so those before it. `shortest_ms`: the shortest lease of what the node has.
    ///
    /// # Errors
    /// [`Lapsed`], where that lease was over before: nothing is extended.
    pub fn acknowledged(&mut self, seq: u64, now_ms: u64, shortest_ms: Option<u64>) -> Result<(), Lapsed> {
        let mut newest = None;
        while let Some((_, at_ms)) = self.unanswered.pop_front_if(|(unanswered, _)| *unanswered <= seq) {
            newest = Some(at_ms);
        }
        let Some(sent_ms) = newest else { return Ok(()) };
        if self.lapse_where_over(now_ms, shortest_ms) {
            return Err(Lapsed);
        }
        (self.acknowledged, self.is_lapsed) = (self.acknowledged.max(Some(sent_ms)), false);
        Ok(())
    }

    /// When the newest heartbeat was sent that the leader acknowledged.
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

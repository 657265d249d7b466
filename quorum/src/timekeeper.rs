//! Reads this member's clocks for [`ClusterClock`], and detects problems with the members' clocks.

use crate::clock::{now, uptime};
use crate::cluster_clock::{APART_MS_MAX, ClusterClock, Comparison, Reading, compare};
use crate::network::Peers;
use lattice_model::{MemberId, Timestamp};
use lattice_quorum_client::wire::ClockAlarm;
use lattice_store::machine::Agreed;
use lattice_store::raft::Raft;
use lattice_store::roster::Roster;
use parking_lot::{Mutex, MutexGuard};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

/// How long the leader's clock may differ from the majority's before the leadership is handed over.
const WRONG_MAX: Duration = Duration::from_secs(5);
/// Pause before a failed hand-over is tried again.
const RETRY_PAUSE: Duration = Duration::from_secs(30);

/// The time of entries, and the comparison of the members' clocks.
pub struct Timekeeper {
    this: u64,
    raft: Raft,
    agreed: Arc<Agreed>,
    peers: Peers,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    clock: ClusterClock,
    alarm: Option<ClockAlarm>,
    /// Since when this member's own clock has been wrong, and when the last hand-over was
    /// attempted.
    wrong_since: Option<Duration>,
    tried: Option<Duration>,
}

impl Timekeeper {
    /// For the member `this`.
    pub fn new(this: u64, raft: Raft, agreed: Arc<Agreed>, peers: Peers) -> Self {
        Self { this, raft, agreed, peers, state: Mutex::default() }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    /// Advances the time to now.
    fn advance(&self) -> (MutexGuard<'_, State>, Comparison, Duration) {
        let (term, roster) = {
            let metrics = self.raft.metrics();
            let metrics = metrics.borrow();
            (metrics.current_term, Roster::of(&metrics.membership_config))
        };
        let readings: BTreeMap<u64, Reading> = self.peers.clocks();
        let last = self.agreed.ledger().time();
        let mut state = self.state();
        let (uptime, shown) = (uptime(), now());
        let comparison = compare(&roster.votes, (self.this, shown), &readings, uptime);
        state.clock.begin(term, last, shown, uptime);
        state.clock.advance(comparison.agreed, uptime);
        if !comparison.apart.contains_key(&self.this) {
            state.wrong_since = None;
        }
        (state, comparison, uptime)
    }

    /// The time for a command that is proposed now, and the number of milliseconds since the
    /// previous one.
    pub fn stamp(&self) -> (Timestamp, u64) {
        self.advance().0.clock.stamp()
    }

    /// The time that a command would have now. For the leader.
    pub fn time(&self) -> Timestamp {
        self.advance().0.clock.time()
    }

    /// Checks whether the clocks agree. Returns the member that should become the leader if this
    /// member's own clock has been wrong for too long.
    pub fn check_clocks(&self) -> Option<u64> {
        let (mut state, comparison, uptime) = self.advance();
        let alarm = alarm(&comparison, state.clock.time());
        set_alarm(&mut state, alarm);
        if !comparison.apart.contains_key(&self.this) {
            return None;
        }
        let since = *state.wrong_since.get_or_insert(uptime);
        let is_tried = state.tried.is_some_and(|tried| uptime.saturating_sub(tried) < RETRY_PAUSE);
        if uptime.saturating_sub(since) < WRONG_MAX || is_tried {
            return None;
        }
        let metrics = self.raft.metrics();
        let metrics = metrics.borrow();
        let roster = Roster::of(&metrics.membership_config);
        let is_right = |id: &u64| roster.has_vote(*id) && comparison.read.contains(id) && !comparison.apart.contains_key(id);
        let matched = |id: &u64| metrics.replication.as_ref().and_then(|all| all.get(id)).copied().flatten().map(|at| at.index);
        // The one with the most complete log.
        let next = roster.members.keys().copied().filter(is_right).max_by_key(matched)?;
        state.tried = Some(uptime);
        Some(next)
    }

    /// On a follower: adopts the leader's assessment of the clocks.
    pub fn follow(&self, alarm: Option<ClockAlarm>) {
        let mut state = self.state();
        state.alarm = alarm;
        (state.wrong_since, state.tried) = (None, None);
    }

    /// The problem with the members' clocks, as far as this member knows.
    pub fn alarm(&self) -> Option<ClockAlarm> {
        self.state().alarm.clone()
    }
}

fn set_alarm(state: &mut State, alarm: Option<ClockAlarm>) {
    match (&state.alarm, &alarm) {
        (was, Some(alarm)) if was.as_ref().is_none_or(|was| !was.is_like(alarm)) => {
            tracing::error!("the members' clocks: {alarm}");
        }
        (Some(_), None) => tracing::info!("the members' clocks agree again"),
        (Some(_) | None, Some(_)) | (None, None) => {}
    }
    state.alarm = alarm;
}

fn alarm(comparison: &Comparison, time: Timestamp) -> Option<ClockAlarm> {
    let Some(agreed) = comparison.agreed else { return Some(ClockAlarm::NoMajority) };
    if !comparison.apart.is_empty() {
        let apart = comparison.apart.iter().map(|(id, ahead_ms)| (MemberId(*id), *ahead_ms));
        return Some(ClockAlarm::Skewed(apart.collect()));
    }
    let behind_ms = i64::try_from(i128::from(agreed.0) - i128::from(time.0)).unwrap_or(i64::MAX);
    (behind_ms.unsigned_abs() > APART_MS_MAX).then_some(ClockAlarm::LedgerTime { behind_ms })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_alarm_names_the_members_and_their_differences() {
        let mut comparison = Comparison { agreed: Some(Timestamp(100_000)), ..Comparison::default() };
        assert_eq!(alarm(&comparison, Timestamp(95_000)), None);
        assert_eq!(alarm(&comparison, Timestamp(94_999)), Some(ClockAlarm::LedgerTime { behind_ms: 5_001 }));
        assert_eq!(alarm(&comparison, Timestamp(160_000)), Some(ClockAlarm::LedgerTime { behind_ms: -60_000 }));
        comparison.apart.insert(2, -7_000);
        let apart = alarm(&comparison, Timestamp(100_000)).unwrap();
        assert_eq!(apart.to_string(), "the clock of member 2 is 7 s behind those of the majority: set it right (NTP)");
        assert!(apart.is_like(&ClockAlarm::Skewed([(MemberId(2), -8_000)].into())));
        assert!(!apart.is_like(&ClockAlarm::Skewed([(MemberId(1), -7_000)].into())) && !apart.is_like(&ClockAlarm::NoMajority));
        comparison.agreed = None;
        assert_eq!(alarm(&comparison, Timestamp(0)), Some(ClockAlarm::NoMajority));
    }
}

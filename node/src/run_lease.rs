//! The agent's view of an allocation's run lease. The shim holds the lease, and kills the work when
//! the lease lapses.
//!
//! ```text
//!   NotNeeded
//!   Ungranted ──recently acknowledged, or granted before──▶ Due ──take_due──▶ Granted
//!       ╰────────────────────────────────────────────────────┴───────────────────┴──lapsed──▶ Lapsed
//! ```

use lattice_model::DesiredShare;
use lattice_model::run_lease::first_until_ms;
use std::time::Duration;

/// See the module.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RunLease {
    /// The work runs without a lease.
    NotNeeded,
    /// The lease was never granted: nothing may begin.
    Ungranted {
        length_ms: u64,
        /// What to start once it is granted.
        waiting: Option<Box<DesiredShare>>,
    },
    /// The lease was just granted: work that waited for it must begin.
    Due { length_ms: u64, waiting: Option<Box<DesiredShare>> },
    /// The lease is granted: work may begin.
    Granted { length_ms: u64 },
    /// The lease lapsed: the shim killed the work, and starts none again.
    Lapsed,
}

/// An event of a run lease.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RunLeaseEvent {
    /// The work must start.
    Start(Box<DesiredShare>),
    /// The work has another walltime from now on.
    WalltimeChanged(Option<Duration>),
    /// The work is being stopped: a share that waits is not started any more.
    Stopping,
    /// The leader acknowledged a heartbeat that was sent at this time since boot. Given only while
    /// the shim is connected.
    Acknowledged { sent_ms: u64 },
    /// The shim reports until when its lease lasts. An earlier run of the agent may have granted
    /// it.
    Reported { until_ms: Option<u64> },
    /// The shim reports that the lease lapsed.
    Lapsed,
    /// The shim is gone, and left a record that the lease lapsed. The code that reads the shim's
    /// records reports the lapse.
    LapseRecorded,
}

/// What to do about a run lease at once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RunLeaseAction {
    /// Start the work.
    Start(Box<DesiredShare>),
    /// Publish that the work waits for its lease.
    PublishWait,
    /// Extend the shim's lease until this time since boot.
    Extend { until_ms: u64 },
    /// Report that the work ended because its lease lapsed.
    ReportLapse,
}

/// What can start because a run lease was granted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Due {
    /// The share to start now, if one waited.
    pub waiting: Option<Box<DesiredShare>>,
}

/// Why work is not started: the lease lapsed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("its run lease lapsed: its shim starts no work again")]
pub struct LeaseLapsed;

impl RunLease {
    /// The lease of new work; `length_ms`: how long a grant lasts, `None` if the work needs no
    /// lease.
    pub fn of(length_ms: Option<u64>) -> Self {
        length_ms.map_or(Self::NotNeeded, |length_ms| Self::Ungranted { length_ms, waiting: None })
    }

    /// Handles an event at `now_ms` since boot and appends the actions to `out`, in order.
    ///
    /// # Errors
    /// [`LeaseLapsed`] if the work must start after the lease lapsed; nothing changes.
    pub fn handle(&mut self, now_ms: u64, event: RunLeaseEvent, out: &mut Vec<RunLeaseAction>) -> Result<(), LeaseLapsed> {
        match event {
            RunLeaseEvent::Start(share) => match self {
                Self::NotNeeded | Self::Granted { .. } => out.push(RunLeaseAction::Start(share)),
                Self::Due { waiting, .. } => {
                    *waiting = None;
                    out.push(RunLeaseAction::Start(share));
                }
                Self::Ungranted { waiting, .. } => {
                    *waiting = Some(share);
                    out.push(RunLeaseAction::PublishWait);
                }
                Self::Lapsed => return Err(LeaseLapsed),
            },
            RunLeaseEvent::WalltimeChanged(walltime) => {
                if let Some(share) = self.waiting() {
                    share.spec.walltime = walltime;
                }
            }
            RunLeaseEvent::Stopping => match self {
                Self::Ungranted { waiting, .. } | Self::Due { waiting, .. } => *waiting = None,
                Self::NotNeeded | Self::Granted { .. } | Self::Lapsed => {}
            },
            RunLeaseEvent::Acknowledged { sent_ms } => {
                let until_ms = match self {
                    // Work that has not begun waits for a recently acknowledged heartbeat.
                    Self::Ungranted { length_ms, .. } => first_until_ms(sent_ms, *length_ms, now_ms),
                    Self::Due { length_ms, .. } | Self::Granted { length_ms } => Some(sent_ms.saturating_add(*length_ms)),
                    Self::NotNeeded | Self::Lapsed => None,
                };
                if let Some(until_ms) = until_ms {
                    out.push(RunLeaseAction::Extend { until_ms });
                    self.grant();
                }
            }
            RunLeaseEvent::Reported { until_ms } => {
                if until_ms.is_some() {
                    self.grant();
                }
            }
            RunLeaseEvent::LapseRecorded => *self = Self::Lapsed,
            RunLeaseEvent::Lapsed => {
                if *self != Self::Lapsed {
                    *self = Self::Lapsed;
                    out.push(RunLeaseAction::ReportLapse);
                }
            }
        }
        Ok(())
    }

    /// Returns, once after the grant, what can start now.
    pub fn take_due(&mut self) -> Option<Due> {
        match self {
            Self::Due { length_ms, waiting } => {
                let due = Due { waiting: waiting.take() };
                *self = Self::Granted { length_ms: *length_ms };
                Some(due)
            }
            Self::NotNeeded | Self::Ungranted { .. } | Self::Granted { .. } | Self::Lapsed => None,
        }
    }

    /// Whether work may begin.
    pub fn may_begin(&self) -> bool {
        match self {
            Self::NotNeeded | Self::Due { .. } | Self::Granted { .. } => true,
            Self::Ungranted { .. } | Self::Lapsed => false,
        }
    }

    /// Whether work may begin, and no share waits to be started first.
    pub fn is_open(&self) -> bool {
        match self {
            Self::NotNeeded | Self::Due { waiting: None, .. } | Self::Granted { .. } => true,
            Self::Ungranted { .. } | Self::Due { waiting: Some(_), .. } | Self::Lapsed => false,
        }
    }

    /// Whether the shim killed the work because its lease lapsed.
    pub fn is_lapsed(&self) -> bool {
        *self == Self::Lapsed
    }

    fn waiting(&mut self) -> Option<&mut DesiredShare> {
        match self {
            Self::Ungranted { waiting, .. } | Self::Due { waiting, .. } => waiting.as_deref_mut(),
            Self::NotNeeded | Self::Granted { .. } | Self::Lapsed => None,
        }
    }

    fn grant(&mut self) {
        if let Self::Ungranted { length_ms, waiting } = self {
            *self = Self::Due { length_ms: *length_ms, waiting: waiting.take() };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::brain::tests::share;
    use RunLeaseAction::{Extend, PublishWait, ReportLapse, Start};
    use lattice_model::AllocationState;

    const LENGTH_MS: u64 = 5000;

    fn work(walltime_s: u64) -> Box<DesiredShare> {
        let mut share = share(1, 1, AllocationState::Running, 1);
        share.spec.walltime = Some(Duration::from_secs(walltime_s));
        Box::new(share)
    }

    fn step(lease: &mut RunLease, now_ms: u64, event: RunLeaseEvent) -> Vec<RunLeaseAction> {
        let mut out = Vec::new();
        assert_eq!(lease.handle(now_ms, event, &mut out), Ok(()));
        out
    }

    #[test]
    fn work_waits_for_a_recently_acknowledged_heartbeat_and_begins_once() {
        let mut lease = RunLease::of(Some(LENGTH_MS));
        assert_eq!(step(&mut lease, 4000, RunLeaseEvent::Start(work(60))), [PublishWait]);
        assert_eq!((lease.may_begin(), lease.is_open(), lease.take_due()), (false, false, None));
        // Less than half of the lease is left.
        assert_eq!(step(&mut lease, 4000, RunLeaseEvent::Acknowledged { sent_ms: 1000 }), []);
        assert_eq!(step(&mut lease, 4000, RunLeaseEvent::WalltimeChanged(Some(Duration::from_secs(9)))), []);
        assert_eq!(step(&mut lease, 4000, RunLeaseEvent::Acknowledged { sent_ms: 2000 }), [Extend { until_ms: 7000 }]);
        assert_eq!((lease.may_begin(), lease.is_open()), (true, false), "the share that waited goes first");
        assert_eq!(lease.take_due(), Some(Due { waiting: Some(work(9)) }));
        assert_eq!((lease.may_begin(), lease.is_open(), lease.take_due()), (true, true, None));
        // An older heartbeat gives an earlier end: the shim keeps the later one.
        assert_eq!(step(&mut lease, 6000, RunLeaseEvent::Acknowledged { sent_ms: 1000 }), [Extend { until_ms: 6000 }]);
        assert_eq!(step(&mut lease, 6000, RunLeaseEvent::Start(work(9))), [Start(work(9))], "a second start is passed on");
    }

    #[test]
    fn a_share_that_starts_between_the_grant_and_take_due_does_not_start_again() {
        let mut lease = RunLease::of(Some(LENGTH_MS));
        step(&mut lease, 0, RunLeaseEvent::Start(work(60)));
        step(&mut lease, 0, RunLeaseEvent::Acknowledged { sent_ms: 0 });
        assert_eq!(step(&mut lease, 0, RunLeaseEvent::Start(work(9))), [Start(work(9))]);
        assert_eq!(lease.take_due(), Some(Due { waiting: None }));
    }

    #[test]
    fn a_share_that_is_stopped_while_it_waits_is_not_started() {
        for acknowledged in [false, true] {
            let mut lease = RunLease::of(Some(LENGTH_MS));
            step(&mut lease, 0, RunLeaseEvent::Start(work(60)));
            if acknowledged {
                step(&mut lease, 0, RunLeaseEvent::Acknowledged { sent_ms: 0 });
            }
            assert_eq!(step(&mut lease, 0, RunLeaseEvent::Stopping), []);
            step(&mut lease, 0, RunLeaseEvent::Acknowledged { sent_ms: 0 });
            assert_eq!(lease.take_due(), Some(Due { waiting: None }));
        }
    }

    #[test]
    fn a_lease_of_an_earlier_run_of_the_agent_lets_work_begin() {
        let mut lease = RunLease::of(Some(LENGTH_MS));
        assert_eq!(step(&mut lease, 0, RunLeaseEvent::Reported { until_ms: None }), []);
        assert!(!lease.may_begin());
        assert_eq!(step(&mut lease, 0, RunLeaseEvent::Reported { until_ms: Some(9) }), []);
        assert_eq!((lease.may_begin(), lease.take_due()), (true, Some(Due { waiting: None })));
    }

    #[test]
    fn a_lapse_is_reported_once_and_nothing_begins_after_it() {
        let mut granted = RunLease::of(Some(LENGTH_MS));
        step(&mut granted, 0, RunLeaseEvent::Acknowledged { sent_ms: 0 });
        let mut waits = RunLease::of(Some(LENGTH_MS));
        step(&mut waits, 0, RunLeaseEvent::Start(work(60)));
        for mut lease in [granted, waits] {
            assert_eq!(step(&mut lease, 5000, RunLeaseEvent::Lapsed), [ReportLapse]);
            assert_eq!(step(&mut lease, 5000, RunLeaseEvent::Lapsed), []);
            assert_eq!(step(&mut lease, 5000, RunLeaseEvent::Acknowledged { sent_ms: 5000 }), []);
            assert_eq!(step(&mut lease, 5000, RunLeaseEvent::Reported { until_ms: Some(9000) }), []);
            assert_eq!(step(&mut lease, 5000, RunLeaseEvent::LapseRecorded), []);
            let mut out = Vec::new();
            assert_eq!(lease.handle(5000, RunLeaseEvent::Start(work(60)), &mut out), Err(LeaseLapsed));
            assert_eq!((lease, out), (RunLease::Lapsed, vec![]));
        }
    }

    #[test]
    fn work_without_a_lease_begins_at_once_and_no_lease_is_extended() {
        let mut lease = RunLease::of(None);
        assert_eq!(step(&mut lease, 0, RunLeaseEvent::Start(work(60))), [Start(work(60))]);
        assert_eq!(step(&mut lease, 0, RunLeaseEvent::Acknowledged { sent_ms: 0 }), []);
        assert_eq!(step(&mut lease, 0, RunLeaseEvent::Reported { until_ms: Some(9) }), []);
        assert_eq!((lease.is_open(), lease.take_due()), (true, None));
    }
}

//! Counts over all simulated agents of a process.

use super::shares::Acknowledged;
use lattice_pki::identity::Role;
use nix::time::{ClockId, clock_gettime};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

/// Nanoseconds of the clock that all processes of this machine share.
pub fn monotonic_ns() -> u64 {
    let now = clock_gettime(ClockId::CLOCK_MONOTONIC).map(Duration::from).expect("Linux has CLOCK_MONOTONIC");
    u64::try_from(now.as_nanos()).unwrap_or(u64::MAX)
}

/// What the agents received and did so far.
#[derive(Debug)]
pub struct Counts {
    /// Bytes of the messages that each agent received.
    received: Vec<AtomicU64>,
    registered: AtomicUsize,
    listed: AtomicUsize,
    acknowledged_heartbeats: AtomicU64,
    acknowledged_reports: AtomicU64,
    lost_sessions: AtomicU64,
    lost_watches: AtomicU64,
    unanswered_leases: AtomicU64,
    opened_sessions: Events,
    /// Watches that are open now.
    watches: AtomicU64,
    opened_watches: Events,
    shares: Events,
    releases: Events,
    followed_bytes: AtomicU64,
    own_bytes: AtomicU64,
}

/// A number of events, and when the last one was.
#[derive(Debug, Default)]
struct Events {
    count: AtomicU64,
    last_ns: AtomicU64,
}

impl Events {
    fn add(&self, events: u64) {
        if events > 0 {
            // The time first: whoever reads the number also reads the time.
            self.last_ns.fetch_max(monotonic_ns(), Ordering::AcqRel);
            self.count.fetch_add(events, Ordering::AcqRel);
        }
    }

    fn read(&self) -> Marked {
        let count = self.count.load(Ordering::Acquire);
        Marked { count, last_ns: self.last_ns.load(Ordering::Acquire) }
    }
}

/// A number, and when it last grew: nanoseconds of [`monotonic_ns`], 0 if never.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Marked {
    /// The number.
    pub count: u64,
    /// When it last grew.
    pub last_ns: u64,
}

impl Marked {
    fn plus(self, other: Self) -> Self {
        Self { count: self.count + other.count, last_ns: self.last_ns.max(other.last_ns) }
    }
}

/// The course of shares, sessions and watches: a small answer that can be asked for many times a second.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Progress {
    /// Sessions that are open now; when the last one was opened.
    pub sessions: Marked,
    /// Sessions that ended so far.
    pub lost_sessions: u64,
    /// Watches that are open now; when the last one was opened.
    pub watches: Marked,
    /// Shares that have appeared in the list of their agent so far.
    pub shares: Marked,
    /// Reports of releases that were committed so far.
    pub releases: Marked,
    /// Reports of all kinds that were committed so far.
    pub acknowledged_reports: u64,
    /// Bytes that agents of role api received over their watches so far, and those of role node.
    pub followed_bytes: u64,
    pub own_bytes: u64,
}

impl Progress {
    /// The progress of two groups of agents together.
    #[must_use]
    pub fn plus(self, other: Self) -> Self {
        Self {
            sessions: self.sessions.plus(other.sessions),
            lost_sessions: self.lost_sessions + other.lost_sessions,
            watches: self.watches.plus(other.watches),
            shares: self.shares.plus(other.shares),
            releases: self.releases.plus(other.releases),
            acknowledged_reports: self.acknowledged_reports + other.acknowledged_reports,
            followed_bytes: self.followed_bytes + other.followed_bytes,
            own_bytes: self.own_bytes + other.own_bytes,
        }
    }
}

/// A watch that is open; it is counted until this is dropped.
pub(super) struct OpenWatch<'a>(&'a Counts);

impl Drop for OpenWatch<'_> {
    fn drop(&mut self) {
        self.0.watches.fetch_sub(1, Ordering::AcqRel);
    }
}

/// The values at one moment.
#[derive(Clone, Debug, Default, serde::Serialize, serde::Deserialize)]
pub struct Totals {
    /// Bytes of the messages that each agent received, as encoded: without gRPC, HTTP/2 and TLS.
    pub received: Vec<u64>,
    /// Agents that have registered at least once.
    pub registered: usize,
    /// Agents whose watch has delivered a complete list at least once.
    pub listed: usize,
    /// Heartbeats that the leader acknowledged.
    pub acknowledged_heartbeats: u64,
    /// Reports that were committed.
    pub acknowledged_reports: u64,
    /// Sessions that ended. Their agents register again.
    pub lost_sessions: u64,
    /// Watches that ended. They are opened again.
    pub lost_watches: u64,
    /// Requests for the scheduler's lease without an answer in time.
    pub unanswered_leases: u64,
}

impl Counts {
    pub(super) fn new(agents: usize) -> Self {
        Self {
            received: std::iter::repeat_with(AtomicU64::default).take(agents).collect(),
            registered: AtomicUsize::default(),
            listed: AtomicUsize::default(),
            acknowledged_heartbeats: AtomicU64::default(),
            acknowledged_reports: AtomicU64::default(),
            lost_sessions: AtomicU64::default(),
            lost_watches: AtomicU64::default(),
            unanswered_leases: AtomicU64::default(),
            opened_sessions: Events::default(),
            watches: AtomicU64::default(),
            opened_watches: Events::default(),
            shares: Events::default(),
            releases: Events::default(),
            followed_bytes: AtomicU64::default(),
            own_bytes: AtomicU64::default(),
        }
    }

    pub(super) fn add_received(&self, agent: usize, bytes: u64) {
        self.received[agent].fetch_add(bytes, Ordering::Relaxed);
    }

    /// Bytes of a watch of an agent of this role.
    pub(super) fn add_watched(&self, role: Role, bytes: u64) {
        let of_role = if role == Role::Api { &self.followed_bytes } else { &self.own_bytes };
        of_role.fetch_add(bytes, Ordering::Relaxed);
    }

    pub(super) fn count_session(&self) {
        self.opened_sessions.add(1);
    }

    pub(super) fn count_watch(&self) -> OpenWatch<'_> {
        self.watches.fetch_add(1, Ordering::AcqRel);
        self.opened_watches.add(1);
        OpenWatch(self)
    }

    pub(super) fn add_shares(&self, shares: u64) {
        self.shares.add(shares);
    }

    pub(super) fn count_registered(&self) {
        self.registered.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn count_listed(&self) {
        self.listed.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn count_heartbeat(&self) {
        self.acknowledged_heartbeats.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn add_reports(&self, acknowledged: Acknowledged) {
        self.acknowledged_reports.fetch_add(acknowledged.reports, Ordering::Relaxed);
        self.releases.add(acknowledged.releases);
    }

    pub(super) fn count_lost_session(&self) {
        self.lost_sessions.fetch_add(1, Ordering::AcqRel);
    }

    pub(super) fn count_lost_watch(&self) {
        self.lost_watches.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn count_unanswered_lease(&self) {
        self.unanswered_leases.fetch_add(1, Ordering::Relaxed);
    }

    /// The progress now.
    pub fn progress(&self) -> Progress {
        // Lost sessions are read first: each is counted as opened before it is lost, so the difference is never negative.
        let lost_sessions = self.lost_sessions.load(Ordering::Acquire);
        let opened = self.opened_sessions.read();
        let watches = Marked { count: self.watches.load(Ordering::Acquire), ..self.opened_watches.read() };
        Progress {
            sessions: Marked { count: opened.count - lost_sessions, ..opened },
            lost_sessions,
            watches,
            shares: self.shares.read(),
            releases: self.releases.read(),
            acknowledged_reports: self.acknowledged_reports.load(Ordering::Relaxed),
            followed_bytes: self.followed_bytes.load(Ordering::Relaxed),
            own_bytes: self.own_bytes.load(Ordering::Relaxed),
        }
    }

    /// The values now.
    pub fn totals(&self) -> Totals {
        Totals {
            received: self.received.iter().map(|bytes| bytes.load(Ordering::Relaxed)).collect(),
            registered: self.registered.load(Ordering::Relaxed),
            listed: self.listed.load(Ordering::Relaxed),
            acknowledged_heartbeats: self.acknowledged_heartbeats.load(Ordering::Relaxed),
            acknowledged_reports: self.acknowledged_reports.load(Ordering::Relaxed),
            lost_sessions: self.lost_sessions.load(Ordering::Relaxed),
            lost_watches: self.lost_watches.load(Ordering::Relaxed),
            unanswered_leases: self.unanswered_leases.load(Ordering::Relaxed),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lost_session_and_a_closed_watch_are_not_open() {
        let counts = Counts::new(2);
        assert_eq!(counts.progress(), Progress::default());
        let began = monotonic_ns();
        (0..3).for_each(|_| counts.count_session());
        counts.count_lost_session();
        let (first, second) = (counts.count_watch(), counts.count_watch());
        drop(first);
        let now = counts.progress();
        assert_eq!((now.sessions.count, now.lost_sessions, now.watches.count), (2, 1, 1));
        assert!(now.sessions.last_ns >= began && now.watches.last_ns >= now.sessions.last_ns);
        drop(second);
        assert_eq!(counts.progress().watches.count, 0);
    }

    #[test]
    fn nothing_acknowledged_moves_no_time() {
        let counts = Counts::new(1);
        counts.add_reports(Acknowledged { reports: 2, releases: 0 });
        counts.add_shares(0);
        let now = counts.progress();
        assert_eq!((now.acknowledged_reports, now.releases, now.shares), (2, Marked::default(), Marked::default()));
    }

    #[test]
    fn the_progress_of_two_processes_is_the_sum_and_the_later_time() {
        let one = Progress { shares: Marked { count: 3, last_ns: 9 }, followed_bytes: 5, ..Progress::default() };
        let other = Progress { shares: Marked { count: 4, last_ns: 7 }, lost_sessions: 1, ..Progress::default() };
        let both = one.plus(other);
        assert_eq!((both.shares, both.followed_bytes, both.lost_sessions), (Marked { count: 7, last_ns: 9 }, 5, 1));
    }
}

//! Counts over all simulated agents of a process.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

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
        }
    }

    pub(super) fn add_received(&self, agent: usize, bytes: u64) {
        self.received[agent].fetch_add(bytes, Ordering::Relaxed);
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

    pub(super) fn add_reports(&self, reports: u64) {
        self.acknowledged_reports.fetch_add(reports, Ordering::Relaxed);
    }

    pub(super) fn count_lost_session(&self) {
        self.lost_sessions.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn count_lost_watch(&self) {
        self.lost_watches.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn count_unanswered_lease(&self) {
        self.unanswered_leases.fetch_add(1, Ordering::Relaxed);
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

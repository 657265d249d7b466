//! The expiry of leases, in the leader's memory like heartbeats. A renewal needs a leadership check
//! but no log entry. A new leader restarts every clock, so a lease lasts at least as long as
//! promised.
//!
//! ```text
//!   renewal ──▶ still the leader? (reads) ──▶ still held, and no hold on the holder? (ledger) ──▶ clock restarted
//!   tick ──▶ expired clocks ──▶ ExpireLease, and from then on no renewal of that grant
//! ```
//!
//! Correctness does not depend on time: the token increases with every grant, and of two holders the
//! one with the higher token is valid.

use lattice_ledger::{Action, Lease};
use lattice_model::Revision;
use std::collections::HashMap;
use std::time::{Duration, Instant};

/// The lease clocks of one term.
#[derive(Debug, Default)]
pub struct LeaseClocks(HashMap<String, LeaseClock>);

#[derive(Clone, Copy, Debug)]
struct LeaseClock {
    token: u64,
    renewed: Revision,
    ends: Instant,
    /// Its expiry was proposed, so it must not be renewed any more.
    is_expiring: bool,
}

impl LeaseClock {
    fn new(lease: &Lease, now: Instant) -> Self {
        Self { token: lease.token, renewed: lease.renewed, ends: now + Duration::from_millis(lease.ttl_ms), is_expiring: false }
    }

    fn is_of(&self, lease: &Lease) -> bool {
        (self.token, self.renewed) == (lease.token, lease.renewed)
    }
}

impl LeaseClocks {
    /// Restarts the lease's clock at `now`. Returns false if its expiry was already proposed.
    pub fn renew(&mut self, name: &str, lease: &Lease, now: Instant) -> bool {
        if self.0.get(name).is_some_and(|c| c.is_of(lease) && c.is_expiring) {
            return false;
        }
        self.0.insert(name.to_owned(), LeaseClock::new(lease, now));
        true
    }

    /// The remaining time at `now`. `None`: the lease's clock has not started.
    pub fn left(&self, name: &str, lease: &Lease, now: Instant) -> Option<Duration> {
        self.0.get(name).filter(|c| c.is_of(lease)).map(|c| c.ends.saturating_duration_since(now))
    }

    /// The actions that end the expired leases. Starts the clocks of new leases, and removes those of
    /// leases that no longer exist.
    pub fn expiries<'a>(&mut self, leases: impl Iterator<Item = (&'a str, &'a Lease)>, now: Instant) -> Vec<Action> {
        let mut clocks = HashMap::new();
        let mut expiries = Vec::new();
        for (name, lease) in leases {
            let known = self.0.get(name).filter(|c| c.is_of(lease)).copied();
            let mut clock = known.unwrap_or_else(|| LeaseClock::new(lease, now));
            if now > clock.ends {
                clock.is_expiring = true;
                expiries.push(Action::ExpireLease { name: name.to_owned(), token: lease.token, renewed: lease.renewed });
            }
            clocks.insert(name.to_owned(), clock);
        }
        self.0 = clocks;
        expiries
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lease(renewed: u64) -> Lease {
        Lease { holder: "n1".parse().unwrap(), token: 1, ttl_ms: 10_000, renewed: Revision(renewed), user: None }
    }

    #[test]
    fn a_lease_expires_when_it_is_not_renewed_in_time() {
        let (mut c, start) = (LeaseClocks::default(), Instant::now());
        let s = |seconds| start + Duration::from_secs(seconds);
        let first = lease(5);
        assert_eq!(c.left("a", &first, s(0)), None);
        assert_eq!(c.expiries([("a", &first)].into_iter(), s(0)), []);
        assert_eq!(c.left("a", &first, s(4)), Some(Duration::from_secs(6)));
        assert!(c.renew("a", &first, s(9)), "it has not expired");
        assert_eq!(c.expiries([("a", &first)].into_iter(), s(19)), []);
        // The lease was granted again.
        let again = lease(6);
        assert_eq!(c.expiries([("a", &again)].into_iter(), s(19)), []);
        let want = [Action::ExpireLease { name: "a".to_owned(), token: 1, renewed: Revision(6) }];
        assert_eq!(c.expiries([("a", &again)].into_iter(), s(30)), want);
        // The expiry is proposed again until it is in the log.
        assert!(!c.renew("a", &again, s(30)));
        assert_eq!(c.expiries([("a", &again)].into_iter(), s(31)), want);
        assert!(c.renew("a", &lease(7), s(31)), "a later grant has its own clock");
    }
}

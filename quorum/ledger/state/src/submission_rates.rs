//! The submission rates of users.
//!
//! The limit is a token bucket, stored as one number per user: when the bucket will be full again
//! (the "theoretical arrival time" of the generic cell rate algorithm, ITU-T I.371). Users with a
//! full bucket need no entry: from `BUCKETS_SWEEP_AT` entries on, their entries are removed, so the
//! number of recent submissions bounds the map. The clock is the ledger's time.

use lattice_model::Timestamp;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// A burst may contain this many seconds' worth of submissions.
const BURST_SECONDS: u64 = 100;
/// From this many entries on, the entries of full buckets are removed.
const BUCKETS_SWEEP_AT: usize = 256;

/// When each user's bucket is full again, in microseconds. Users without an entry have a full
/// bucket.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SubmissionRates(BTreeMap<u32, u64>);

impl SubmissionRates {
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// How long this user must wait before the next submission is accepted, in milliseconds;
    /// `None`: not at all.
    pub fn wait_ms(&self, uid: u32, now: Timestamp, per_second: u32) -> Option<u64> {
        let now_us = now.0.saturating_mul(1000);
        let full_us = self.0.get(&uid).copied().unwrap_or_default().max(now_us);
        let next_us = full_us.saturating_add(interval_us(per_second));
        let over_us = next_us.saturating_sub(now_us.saturating_add(BURST_SECONDS * 1_000_000));
        (over_us > 0).then(|| over_us.div_ceil(1000))
    }

    pub fn add(&mut self, uid: u32, now: Timestamp, per_second: u32) {
        let now_us = now.0.saturating_mul(1000);
        if self.0.len() >= BUCKETS_SWEEP_AT {
            self.0.retain(|_, full_us| *full_us > now_us);
        }
        let full_us = self.0.entry(uid).or_default();
        *full_us = (*full_us).max(now_us).saturating_add(interval_us(per_second));
    }
}

fn interval_us(per_second: u32) -> u64 {
    1_000_000 / u64::from(per_second.max(1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_burst_is_accepted_and_the_next_submission_has_to_wait() {
        let mut rates = SubmissionRates::default();
        let now = Timestamp(1_000_000);
        for _ in 0..BURST_SECONDS * 10 {
            assert_eq!(rates.wait_ms(7, now, 10), None);
            rates.add(7, now, 10);
        }
        assert_eq!(rates.wait_ms(7, now, 10), Some(100));
        assert_eq!(rates.wait_ms(8, now, 10), None);
        assert_eq!(rates.wait_ms(7, Timestamp(now.0 + 100), 10), None);
        // Users whose bucket is full again use no memory.
        for uid in 100..1_000_000 {
            rates.add(uid, Timestamp(now.0 + u64::from(uid)), 1000);
        }
        assert!(rates.0.len() <= BUCKETS_SWEEP_AT + 1, "{}", rates.0.len());
    }
}

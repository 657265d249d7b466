//! Token buckets: how often something may happen, with a burst.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// A rate: one token each `interval`, and at most `burst` at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rate {
    /// How long it takes until there is one more token.
    pub interval: Duration,
    /// How many tokens a full bucket has; at least 1.
    pub burst: u32,
}

impl Rate {
    /// `per_second` tokens a second, at least 1; `burst` at once.
    pub fn per_second(per_second: u32, burst: u32) -> Self {
        Self { interval: Duration::from_secs(1) / per_second.max(1), burst: burst.max(1) }
    }

    /// `per_minute` tokens a minute, at least 1, and all of them at once.
    pub fn per_minute(per_minute: u32) -> Self {
        Self { interval: Duration::from_secs(60) / per_minute.max(1), burst: per_minute.max(1) }
    }
}

/// One bucket. A new one is full.
#[derive(Clone, Copy, Debug)]
pub struct TokenBucket {
    full_at: Instant,
}

impl TokenBucket {
    /// A full bucket.
    pub fn new(now: Instant) -> Self {
        Self { full_at: now }
    }

    /// Takes a token. The error is how long it takes until there is one.
    pub fn take(&mut self, rate: Rate, now: Instant) -> Result<(), Duration> {
        let missing = self.full_at.saturating_duration_since(now);
        let most = rate.interval * rate.burst.saturating_sub(1);
        if missing > most {
            return Err(missing - most);
        }
        self.full_at = self.full_at.max(now) + rate.interval;
        Ok(())
    }

    /// Checks for a token without taking it.
    pub fn check(&self, rate: Rate, now: Instant) -> Result<(), Duration> {
        let mut copy = *self;
        copy.take(rate, now)
    }

    /// When the bucket is full again: from then on it is like a new one.
    pub fn full_at(&self) -> Instant {
        self.full_at
    }
}

/// A bucket for each key. Full buckets are not stored; beyond `keys_max`, the longest unused bucket is dropped.
#[derive(Debug)]
pub struct TokenBuckets<K> {
    rate: Rate,
    keys_max: usize,
    buckets: BTreeMap<K, TokenBucket>,
}

impl<K: Ord + Clone> TokenBuckets<K> {
    /// For at most `keys_max` keys at once, at least 1.
    pub fn new(rate: Rate, keys_max: usize) -> Self {
        Self { rate, keys_max: keys_max.max(1), buckets: BTreeMap::new() }
    }

    /// Takes a token of this key. The error is how long it takes until there is one.
    pub fn take(&mut self, key: &K, now: Instant) -> Result<(), Duration> {
        if !self.buckets.contains_key(key) {
            self.make_space(now);
            self.buckets.insert(key.clone(), TokenBucket::new(now));
        }
        let rate = self.rate;
        self.buckets.get_mut(key).map_or(Ok(()), |bucket| bucket.take(rate, now))
    }

    /// Checks whether this key has a token, without taking it.
    pub fn check(&self, key: &K, now: Instant) -> Result<(), Duration> {
        self.buckets.get(key).map_or(Ok(()), |bucket| bucket.check(self.rate, now))
    }

    fn make_space(&mut self, now: Instant) {
        if self.buckets.len() < self.keys_max {
            return;
        }
        self.buckets.retain(|_, bucket| bucket.full_at > now);
        if self.buckets.len() >= self.keys_max {
            let oldest = self.buckets.iter().min_by_key(|(_, bucket)| bucket.full_at).map(|(key, _)| key.clone());
            oldest.and_then(|key| self.buckets.remove(&key));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_burst_is_allowed_then_one_each_interval() {
        let (rate, began) = (Rate::per_second(10, 3), Instant::now());
        let mut bucket = TokenBucket::new(began);
        let after = |ms| began + Duration::from_millis(ms);
        assert!((0..3).all(|_| bucket.take(rate, began) == Ok(())));
        assert_eq!(bucket.take(rate, began), Err(Duration::from_millis(100)));
        assert_eq!(bucket.take(rate, after(60)), Err(Duration::from_millis(40)));
        assert_eq!([bucket.check(rate, after(100)), bucket.take(rate, after(100))], [Ok(()), Ok(())]);
        assert_eq!(bucket.check(rate, after(100)), Err(Duration::from_millis(100)));
        // Tokens gather up to the burst.
        let later: Vec<_> = (0..4).map(|_| bucket.take(rate, after(60_000)).is_ok()).collect();
        assert_eq!(later, [true, true, true, false]);
    }

    #[test]
    fn rates_are_read_in_seconds_and_minutes() {
        assert_eq!(Rate::per_second(50, 200), Rate { interval: Duration::from_millis(20), burst: 200 });
        assert_eq!(Rate::per_minute(600), Rate { interval: Duration::from_millis(100), burst: 600 });
        assert_eq!(Rate::per_second(0, 0), Rate { interval: Duration::from_secs(1), burst: 1 });
    }

    #[test]
    fn keys_do_not_affect_each_other_and_their_number_is_limited() {
        let (mut buckets, began) = (TokenBuckets::new(Rate::per_second(1, 1), 2), Instant::now());
        assert_eq!([buckets.take(&1, began), buckets.take(&2, began + Duration::from_millis(1))], [Ok(()), Ok(())]);
        assert!(buckets.take(&1, began).is_err() && buckets.check(&2, began).is_err() && buckets.check(&3, began).is_ok());
        // The bucket that was unused longest is dropped.
        assert_eq!(buckets.take(&3, began + Duration::from_millis(2)), Ok(()));
        assert_eq!(buckets.buckets.keys().copied().collect::<Vec<_>>(), [2, 3]);
        // Full buckets are dropped first.
        assert_eq!(buckets.take(&4, began + Duration::from_secs(5)), Ok(()));
        assert_eq!(buckets.buckets.keys().copied().collect::<Vec<_>>(), [4]);
    }
}

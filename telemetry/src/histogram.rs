//! A histogram of durations. Counting takes no lock.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Counts durations by range.
#[derive(Debug)]
pub struct Histogram {
    bounds: &'static [f64],
    /// One for each bound, and one for values beyond the last.
    buckets: Box<[AtomicU64]>,
    nanoseconds: AtomicU64,
}

/// The counts of a histogram at one moment.
#[derive(Clone, Debug, PartialEq)]
pub struct Counts {
    pub bounds: &'static [f64],
    /// How many were at most this bound, and above the one before.
    pub buckets: Vec<u64>,
    pub sum: f64,
}

impl Histogram {
    /// `bounds`: the upper ends of its ranges in seconds, ascending.
    pub fn new(bounds: &'static [f64]) -> Self {
        Self { bounds, buckets: (0..=bounds.len()).map(|_| AtomicU64::new(0)).collect(), nanoseconds: AtomicU64::new(0) }
    }

    /// Counts one duration.
    pub fn observe(&self, took: Duration) {
        let seconds = took.as_secs_f64();
        let at = self.bounds.partition_point(|bound| *bound < seconds);
        self.buckets[at].fetch_add(1, Ordering::Relaxed);
        self.nanoseconds.fetch_add(u64::try_from(took.as_nanos()).unwrap_or(u64::MAX), Ordering::Relaxed);
    }

    /// The present counts. A value that is counted meanwhile may be in one number and not yet in another.
    pub fn counts(&self) -> Counts {
        let buckets = self.buckets.iter().map(|bucket| bucket.load(Ordering::Relaxed)).collect();
        Counts { bounds: self.bounds, buckets, sum: self.nanoseconds.load(Ordering::Relaxed) as f64 / 1e9 }
    }
}

impl Counts {
    /// The counts since `before`, which must be of the same histogram; `None`: it is not.
    pub fn since(&self, before: &Self) -> Option<Self> {
        if self.bounds != before.bounds || self.buckets.len() != before.buckets.len() {
            return None;
        }
        let buckets: Option<Vec<u64>> = self.buckets.iter().zip(&before.buckets).map(|(now, then)| now.checked_sub(*then)).collect();
        Some(Self { bounds: self.bounds, buckets: buckets?, sum: (self.sum - before.sum).max(0.0) })
    }

    /// The sum of both; `None`: they have different ranges.
    pub fn and(&self, other: &Self) -> Option<Self> {
        if self.bounds != other.bounds || self.buckets.len() != other.buckets.len() {
            return None;
        }
        let buckets = self.buckets.iter().zip(&other.buckets).map(|(one, other)| one + other).collect();
        Some(Self { bounds: self.bounds, buckets, sum: self.sum + other.sum })
    }

    /// The least bound that at least `percent` of the values do not exceed; `None`: there are no values, or it is
    /// beyond the last bound.
    pub fn percentile(&self, percent: u64) -> Option<f64> {
        let wanted = self.count().checked_mul(percent)?.div_ceil(100).max(1);
        let (bound, _) = self.cumulative().find(|(_, count)| *count >= wanted)?;
        bound.is_finite().then_some(bound)
    }

    /// The number of values.
    pub fn count(&self) -> u64 {
        self.buckets.iter().sum()
    }

    /// Upper bounds with the number of values at most that, as in Prometheus; the last one is infinity.
    pub fn cumulative(&self) -> impl Iterator<Item = (f64, u64)> {
        let bounds = self.bounds.iter().copied().chain([f64::INFINITY]);
        bounds.zip(self.buckets.iter().scan(0, |sum, count| {
            *sum += count;
            Some(*sum)
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_is_counted_once_and_a_bound_belongs_to_the_range_below() {
        let histogram = Histogram::new(&[0.001, 0.01]);
        for micros in [1, 1000, 1001, 10_000, 10_001, 5_000_000] {
            histogram.observe(Duration::from_micros(micros));
        }
        let counts = histogram.counts();
        assert_eq!(counts.buckets, [2, 2, 2]);
        assert_eq!(counts.cumulative().collect::<Vec<_>>(), [(0.001, 2), (0.01, 4), (f64::INFINITY, 6)]);
        assert_eq!(counts.count(), 6);
        assert!((counts.sum - 5.022_003).abs() < 1e-9, "{}", counts.sum);
        assert_eq!((counts.percentile(33), counts.percentile(34), counts.percentile(99)), (Some(0.001), Some(0.01), None));
        let twice = counts.and(&counts).unwrap();
        assert_eq!((twice.buckets.as_slice(), twice.sum), (&[4, 4, 4][..], counts.sum * 2.0));
        assert_eq!(counts.and(&Counts { bounds: &[], buckets: vec![1], sum: 0.0 }), None);
        histogram.observe(Duration::from_micros(7));
        let since = histogram.counts().since(&counts).unwrap();
        assert_eq!((since.buckets.as_slice(), since.percentile(50)), (&[1, 0, 0][..], Some(0.001)));
        assert_eq!((counts.since(&histogram.counts()), counts.since(&counts).unwrap().percentile(50)), (None, None));
    }
}

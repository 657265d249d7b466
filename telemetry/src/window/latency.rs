//! Windows over the counts of a histogram of durations. Pure.
//!
//! Percentiles and the maximum are the upper bounds of their ranges; the last range has none, so its lower bound is
//! used.

use super::smoothing::Smoothing;
use super::{Summary, Whole};
use crate::histogram::Counts;

/// The open window, and the complete ones before it.
#[derive(Clone, Debug)]
pub struct LatencyHistory {
    length_ms: u64,
    from_ms: u64,
    /// Counts at the beginning of the open window, and at the last measurement.
    began: Option<Counts>,
    newest: Option<Counts>,
    whole: Whole,
}

impl LatencyHistory {
    /// A history of at most `whole_max` complete windows.
    ///
    /// # Panics
    /// With a length of 0.
    pub fn new(length_ms: u64, whole_max: usize) -> Self {
        assert!(length_ms > 0, "a window has a length");
        Self { length_ms, from_ms: 0, began: None, newest: None, whole: Whole::new(length_ms, whole_max) }
    }

    /// Adds the counts of a measurement. Durations since the last measurement belong to the window of this one. Counts
    /// that fell, or that have other ranges, restart the open window: what it had is lost. Complete windows stay.
    pub fn push(&mut self, at_ms: u64, counts: Counts) {
        let from_ms = at_ms - at_ms % self.length_ms;
        if from_ms > self.from_ms {
            if self.newest.is_some() {
                let window = self.window();
                self.whole.keep(window);
            }
            (self.from_ms, self.began) = (from_ms, self.newest.take());
        }
        if self.began.as_ref().is_none_or(|began| counts.since(began).is_none()) {
            self.began = Some(counts.clone());
        }
        self.newest = Some(counts);
    }

    /// The durations in the open window; `None`: there are none.
    fn window(&self) -> Option<Summary> {
        let counts = self.newest.as_ref()?.since(self.began.as_ref()?)?;
        let count = counts.count();
        if count == 0 {
            return None;
        }
        let last = counts.bounds.last().copied().unwrap_or(0.0);
        let percentile = |percent| counts.percentile(percent).unwrap_or(last);
        Some(Summary {
            from_ms: self.from_ms,
            count,
            mean: counts.sum / count as f64,
            p50: percentile(50),
            p95: percentile(95),
            p99: percentile(99),
            max: percentile(100),
        })
    }

    /// See [`super::History::close`].
    pub fn close(&mut self, smoothing: Smoothing) {
        let last = self.window();
        (self.began, self.newest) = (None, None);
        self.whole.close(last, smoothing);
    }

    /// The complete windows.
    pub fn whole(&self) -> &Whole {
        &self.whole
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BOUNDS: &[f64] = &[0.001, 0.01, 0.1];

    fn counts(buckets: [u64; 4], sum: f64) -> Counts {
        Counts { bounds: BOUNDS, buckets: buckets.to_vec(), sum }
    }

    fn last(history: &LatencyHistory) -> Option<Summary> {
        history.whole().exported(Smoothing::None, None)
    }

    #[test]
    fn a_window_has_what_came_within_it() {
        let mut history = LatencyHistory::new(100, 5);
        // Durations before the first measurement belong to no window.
        history.push(110, counts([1000, 0, 0, 0], 1.0));
        history.push(150, counts([1049, 40, 0, 0], 1.5));
        history.push(190, counts([1049, 49, 1, 0], 2.0));
        assert_eq!(last(&history), None);
        history.push(200, counts([1049, 49, 1, 1], 9.0));
        let want = Summary { from_ms: 100, count: 99, mean: 1.0 / 99.0, p50: 0.01, p95: 0.01, p99: 0.1, max: 0.1 };
        assert_eq!(last(&history), Some(want));
        history.push(290, counts([1049, 49, 1, 1], 9.0));
        history.push(300, counts([1049, 49, 1, 1], 9.0));
        // The value is beyond the last bound.
        assert_eq!(last(&history), Some(Summary { from_ms: 200, count: 1, mean: 7.0, p50: 0.1, p95: 0.1, p99: 0.1, max: 0.1 }));
    }

    #[test]
    fn a_window_without_durations_has_no_summary_and_an_end_closes_the_open_one() {
        let mut history = LatencyHistory::new(100, 5);
        for (at, n) in [(100, 0), (150, 3), (200, 3), (250, 3)] {
            history.push(at, counts([n, 0, 0, 0], 0.0));
        }
        assert_eq!(last(&history).map(|w| w.count), Some(3));
        history.push(300, counts([3, 0, 0, 0], 0.0));
        assert_eq!(last(&history), None, "what was measured before is not of this window");
        history.push(310, counts([7, 0, 0, 0], 0.0));
        history.close(Smoothing::None);
        assert_eq!(last(&history).map(|w| (w.from_ms, w.count)), Some((300, 4)));
    }

    #[test]
    fn counts_that_fell_begin_anew() {
        let mut history = LatencyHistory::new(100, 5);
        for (at, n) in [(100, 5), (150, 9), (160, 1), (170, 3), (200, 3)] {
            history.push(at, counts([n, 0, 0, 0], 0.0));
        }
        assert_eq!(last(&history).map(|w| w.count), Some(2));
    }
}

//! Summarises all samples of a time window in a few numbers. Pure: the caller gives the time.
//!
//! Windows begin at whole multiples of their length, so the windows of all nodes coincide. Percentiles are nearest
//! rank: each is a measured value; for values counted by range ([`latency`]) it is a bound of the range.

pub mod latency;
pub mod smoothing;

use smoothing::Smoothing;
use std::collections::VecDeque;

/// The window length of mode prod, from the requirement.
pub const PROD_MS: u64 = 30_000;
/// Percentiles use at most this many values of a window, the first ones. Count, mean and max use all.
pub const VALUES_MAX: usize = 1024;

/// One complete window.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Summary {
    /// When it began, in milliseconds on the caller's clock.
    pub from_ms: u64,
    pub count: u64,
    pub mean: f64,
    pub p50: f64,
    pub p95: f64,
    pub p99: f64,
    pub max: f64,
}

/// The open window.
#[derive(Clone, Debug)]
pub struct Window {
    length_ms: u64,
    from_ms: u64,
    values: Vec<f64>,
    count: u64,
    sum: f64,
    max: f64,
}

impl Window {
    /// # Panics
    /// With a length of 0.
    pub fn new(length_ms: u64) -> Self {
        assert!(length_ms > 0, "a window has a length");
        Self { length_ms, from_ms: 0, values: Vec::new(), count: 0, sum: 0.0, max: f64::NEG_INFINITY }
    }

    /// Adds a value; returns the previous window if this value is the first of a later one. NaN is ignored; a late
    /// value, or one from a clock that was set back, counts in the open window.
    pub fn push(&mut self, at_ms: u64, value: f64) -> Option<Summary> {
        if !value.is_finite() {
            return None;
        }
        let from_ms = at_ms - at_ms % self.length_ms;
        let closed = if from_ms > self.from_ms { self.close(from_ms) } else { None };
        if self.values.len() < VALUES_MAX {
            self.values.push(value);
        }
        self.count += 1;
        self.sum += value;
        self.max = self.max.max(value);
        closed
    }

    /// Its summary; `None`: it has no value yet.
    pub fn so_far(&self) -> Option<Summary> {
        if self.count == 0 {
            return None;
        }
        let mut sorted = self.values.clone();
        sorted.sort_unstable_by(f64::total_cmp);
        Some(Summary {
            from_ms: self.from_ms,
            count: self.count,
            mean: self.sum / self.count as f64,
            p50: nearest_rank(&sorted, 50),
            p95: nearest_rank(&sorted, 95),
            p99: nearest_rank(&sorted, 99),
            max: self.max,
        })
    }

    fn close(&mut self, next_ms: u64) -> Option<Summary> {
        let closed = self.so_far();
        self.from_ms = next_ms;
        self.values.clear();
        (self.count, self.sum, self.max) = (0, 0.0, f64::NEG_INFINITY);
        closed
    }
}

/// The least of these ascending values such that at least `percent` of them do not exceed it.
fn nearest_rank(sorted: &[f64], percent: usize) -> f64 {
    let rank = (sorted.len() * percent).div_ceil(100).max(1);
    sorted[rank - 1]
}

/// The open window, and the complete ones before it.
#[derive(Clone, Debug)]
pub struct History {
    open: Window,
    whole: Whole,
}

impl History {
    /// Keeps at most `whole_max` complete windows.
    pub fn new(length_ms: u64, whole_max: usize) -> Self {
        Self { open: Window::new(length_ms), whole: Whole::new(length_ms, whole_max) }
    }

    /// Adds a value, see [`Window::push`].
    pub fn push(&mut self, at_ms: u64, value: f64) {
        if let Some(summary) = self.open.push(at_ms, value) {
            self.whole.keep(Some(summary));
        }
    }

    /// Closes the open window early: no more values follow, and only the windows still to be exported are stored.
    pub fn close(&mut self, smoothing: Smoothing) {
        let last = self.open.close(self.open.from_ms);
        self.whole.close(last, smoothing);
        self.open.values = Vec::new();
    }

    /// The complete windows.
    pub fn whole(&self) -> &Whole {
        &self.whole
    }

    /// Mean and max of all values since `since_ms`, rounded to windows: a window that ends after that time counts
    /// entirely.
    pub fn since(&self, since_ms: u64) -> Option<(f64, f64)> {
        let open = self.open.so_far();
        let length_ms = self.open.length_ms;
        let whole = self.whole.windows.iter().flatten().copied();
        let wanted = whole.filter(|window| window.from_ms + length_ms > since_ms).chain(open);
        let (count, sum, max) = wanted.fold((0, 0.0, f64::NEG_INFINITY), |(count, sum, max), window| {
            (count + window.count, window.count as f64 * window.mean + sum, window.max.max(max))
        });
        (count > 0).then(|| (sum / count as f64, max))
    }
}

/// Complete windows, the newest last.
#[derive(Clone, Debug)]
pub struct Whole {
    length_ms: u64,
    max: usize,
    /// `None`: a window without values.
    windows: VecDeque<Option<Summary>>,
}

impl Whole {
    /// Keeps at most `max` windows.
    fn new(length_ms: u64, max: usize) -> Self {
        Self { length_ms, max: max.max(1), windows: VecDeque::new() }
    }

    fn keep(&mut self, window: Option<Summary>) {
        while self.windows.len() >= self.max {
            self.windows.pop_front();
        }
        self.windows.push_back(window);
    }

    /// No more values follow; `last`: the open window.
    fn close(&mut self, last: Option<Summary>, smoothing: Smoothing) {
        if last.is_some() {
            self.keep(last);
        }
        self.max = self.max.min(smoothing.windows());
        self.windows.drain(..self.windows.len().saturating_sub(self.max));
        self.windows.shrink_to_fit();
    }

    /// The window to export now. `ended_ms`: how long ago the work ended, if it has. A smoothed window is exported two
    /// lengths after its own time, also for ended work.
    pub fn exported(&self, smoothing: Smoothing, ended_ms: Option<u64>) -> Option<Summary> {
        let (count, later) = (self.windows.len(), smoothing.later());
        let since_end = usize::try_from(ended_ms.unwrap_or(0) / self.length_ms).unwrap_or(usize::MAX);
        let at = count.saturating_add(since_end).checked_sub(1 + later);
        let at = if ended_ms.is_some() { at.unwrap_or(0) } else { at? }.min(count.checked_sub(1)?);
        let window = self.windows[at]?;
        let mean = match smoothing {
            Smoothing::None => window.mean,
            Smoothing::Cubic => self.around(at).map_or(window.mean, smoothing::cubic),
        };
        Some(Summary { mean, ..window })
    }

    /// The means of a window and of the two on each side of it, if all of them exist.
    fn around(&self, at: usize) -> Option<[f64; 5]> {
        let first = at.checked_sub(2)?;
        let mut means = [0.0; 5];
        let mut from_ms = self.windows.get(first).copied()??.from_ms;
        for (n, mean) in means.iter_mut().enumerate() {
            let window = self.windows.get(first + n).copied()??;
            // A gap without measurements: the series has no equal steps.
            if window.from_ms != from_ms {
                return None;
            }
            (*mean, from_ms) = (window.mean, from_ms + self.length_ms);
        }
        Some(means)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The summary of a window, directly from the definition.
    fn naive(from_ms: u64, values: &[f64]) -> Summary {
        let at_most = |bound: f64| values.iter().filter(|value| **value <= bound).count();
        let percentile = |percent: usize| {
            let enough = values.iter().copied().filter(|value| at_most(*value) * 100 >= percent * values.len());
            enough.fold(f64::INFINITY, f64::min)
        };
        Summary {
            from_ms,
            count: values.len() as u64,
            mean: values.iter().sum::<f64>() / values.len() as f64,
            p50: percentile(50),
            p95: percentile(95),
            p99: percentile(99),
            max: values.iter().copied().fold(f64::NEG_INFINITY, f64::max),
        }
    }

    proptest! {
        #[test]
        fn windows_are_what_the_definition_says(
            length in 1..40_000u64,
            steps in proptest::collection::vec((0..20_000u64, -1e6..1e6f64), 1..300),
        ) {
            let mut window = Window::new(length);
            let (mut closed, mut expected) = (Vec::new(), Vec::new());
            let (mut at, mut held): (u64, Vec<f64>) = (0, Vec::new());
            let mut from = 0;
            for (step, value) in steps {
                at += step;
                if at / length * length > from {
                    if !held.is_empty() {
                        expected.push(naive(from, &held));
                    }
                    held.clear();
                    from = at / length * length;
                }
                held.push(value);
                closed.extend(window.push(at, value));
            }
            prop_assert_eq!(&closed, &expected);
            prop_assert_eq!(window.so_far(), Some(naive(from, &held)));
            for summary in closed {
                prop_assert!(summary.p50 <= summary.p95 && summary.p95 <= summary.p99 && summary.p99 <= summary.max);
            }
        }

        #[test]
        fn a_history_keeps_the_newest_and_its_mean_is_of_all_values(
            values in proptest::collection::vec(0.0..1e6f64, 1..200), keep in 1..20usize,
        ) {
            let mut history = History::new(10, keep);
            for (n, value) in values.iter().enumerate() {
                history.push(n as u64 * 3, *value);
            }
            prop_assert!(history.whole.windows.len() <= keep);
            let first = history.whole.windows.front().copied().flatten().map_or(history.open.from_ms, |window| window.from_ms);
            let kept: Vec<f64> =
                values.iter().enumerate().filter(|(n, _)| *n as u64 * 3 >= first).map(|(_, value)| *value).collect();
            let (mean, max) = history.since(0).unwrap();
            prop_assert!((mean - kept.iter().sum::<f64>() / kept.len() as f64).abs() < 1e-6 * mean.abs().max(1.0));
            prop_assert_eq!(max, kept.iter().copied().fold(f64::NEG_INFINITY, f64::max));
        }
    }

    #[test]
    fn nan_is_ignored_and_values_beyond_the_limit_are_counted() {
        let mut window = Window::new(PROD_MS);
        assert_eq!((window.push(0, f64::NAN), window.push(0, f64::INFINITY), window.so_far()), (None, None, None));
        for n in 0..VALUES_MAX + 10 {
            window.push(n as u64, n as f64);
        }
        let so_far = window.so_far().unwrap();
        assert_eq!((so_far.count, so_far.max), (VALUES_MAX as u64 + 10, (VALUES_MAX + 9) as f64));
        assert_eq!(window.values.len(), VALUES_MAX);
    }

    fn last(history: &History) -> Option<Summary> {
        history.whole().exported(Smoothing::None, None)
    }

    #[test]
    fn a_history_that_ends_has_its_last_window_whole() {
        let mut history = History::new(100, 2);
        history.close(Smoothing::None);
        assert_eq!(last(&history), None, "nothing came");
        let mut history = History::new(100, 2);
        history.push(50, 7.0);
        history.push(250, 1.0);
        history.push(260, 3.0);
        history.close(Smoothing::None);
        history.close(Smoothing::None);
        assert_eq!(last(&history).map(|w| (w.from_ms, w.count, w.mean)), Some((200, 2, 2.0)));
        assert_eq!((history.whole.windows.len(), history.since(0)), (1, Some((2.0, 3.0))));
    }

    #[test]
    fn a_clock_that_was_set_back_closes_nothing() {
        let mut window = Window::new(100);
        assert_eq!(window.push(250, 1.0), None);
        assert_eq!(window.push(10, 2.0), None);
        assert_eq!(window.push(300, 3.0).map(|w| (w.from_ms, w.count)), Some((200, 2)));
    }
}

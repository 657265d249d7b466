//! Smoothing of exported windows. Pure.
//!
//! The requirement says bicubic interpolation, which is for a plane; a series over time is a line, for which that
//! becomes cubic. The mean of a window becomes the middle of the cubic that fits it and the two windows on each side
//! best (least squares): weights of A. Savitzky and M. J. E. Golay, Anal. Chem. 36 (1964) 1627. A trend (up to the
//! third power of time) is not changed. Noise from window to window is damped, which a store compresses better. The
//! result is never outside the range of the five means.
//!
//! A window is exported two lengths later, when the two windows after it are complete. Percentiles and the maximum are
//! measured values and are not smoothed. The mean is not smoothed either if one of the five windows is missing (at the
//! beginning, at the end, or while no agent ran).

use serde::{Deserialize, Serialize};

/// How complete windows are exported.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Smoothing {
    /// The last one, unchanged.
    #[default]
    None,
    /// The window two before the last, with its mean smoothed.
    Cubic,
}

impl Smoothing {
    /// How many windows later a window is exported.
    pub const fn later(self) -> usize {
        match self {
            Self::None => 0,
            Self::Cubic => 2,
        }
    }

    /// How many windows smoothing needs.
    pub const fn windows(self) -> usize {
        1 + 2 * self.later()
    }
}

/// The weights, in 35ths.
const WEIGHTS: [f64; 5] = [-3.0, 12.0, 17.0, 12.0, -3.0];

/// The smoothed middle value of five at equal steps.
pub(super) fn cubic(around: [f64; 5]) -> f64 {
    let sum: f64 = around.iter().zip(WEIGHTS).map(|(value, weight)| value * weight).sum();
    let (least, most) = around.iter().fold((f64::INFINITY, f64::NEG_INFINITY), |(least, most), v| (v.min(least), v.max(most)));
    (sum / 35.0).clamp(least, most)
}

#[cfg(test)]
mod tests {
    use super::super::{History, Summary};
    use super::*;
    use proptest::prelude::*;

    const LENGTH: u64 = 100;

    /// A history with one value in each of these windows.
    fn of(windows: impl IntoIterator<Item = (u64, f64)>) -> History {
        let mut history = History::new(LENGTH, 10);
        windows.into_iter().for_each(|(n, value)| history.push(n * LENGTH, value));
        history
    }

    fn exported(history: &History, ended_ms: Option<u64>) -> Option<(u64, f64)> {
        history.whole().exported(Smoothing::Cubic, ended_ms).map(|window| (window.from_ms / LENGTH, window.mean))
    }

    proptest! {
        #[test]
        fn a_trend_stays_what_it_is_and_nothing_is_beyond_what_was(
            [a, b, c, d] in proptest::array::uniform4(-1e3..1e3f64), noise in proptest::array::uniform5(-1.0..1.0f64),
        ) {
            let trend: [f64; 5] = std::array::from_fn(|n| {
                let x = n as f64 - 2.0;
                a + b * x + c * x * x + d * x * x * x
            });
            prop_assert!((cubic(trend) - a).abs() < 1e-9 * (1.0 + a.abs() + b.abs() + c.abs() + d.abs()));
            let smoothed = cubic(noise);
            prop_assert!(noise.iter().any(|v| *v <= smoothed) && noise.iter().any(|v| *v >= smoothed));
        }

        #[test]
        fn noise_is_damped(seed in proptest::collection::vec(-1.0..1.0f64, 400)) {
            let power = |values: &mut dyn Iterator<Item = f64>| values.map(|v| v * v).sum::<f64>();
            let smoothed = power(&mut seed.windows(5).map(|five| cubic(five.try_into().unwrap())));
            // The weights leave 17/35 of the noise; four hundred values differ a little from the formula.
            prop_assert!(smoothed < 0.65 * power(&mut seed[2..398].iter().copied()));
        }
    }

    #[test]
    fn a_window_is_exported_two_later_with_its_own_percentiles() {
        // The sixth window is open.
        let mut history = of([(0, 0.0), (1, 0.0), (2, 35.0), (3, 0.0), (4, 0.0), (5, 1.0)]);
        assert_eq!(exported(&history, None), Some((2, 17.0)));
        let window = history.whole().exported(Smoothing::Cubic, None).unwrap();
        assert_eq!((window.count, window.p50, window.p99, window.max), (1, 35.0, 35.0, 35.0));
        assert_eq!(history.whole().exported(Smoothing::None, None).map(|Summary { from_ms, mean, .. }| (from_ms, mean)), Some((400, 0.0)));
        history.push(6 * LENGTH, 1.0);
        assert_eq!(exported(&history, None), Some((3, (12.0 * 35.0 - 3.0) / 35.0)));
    }

    #[test]
    fn without_five_windows_the_mean_is_not_smoothed() {
        assert_eq!(exported(&of([(0, 1.0), (1, 9.0), (2, 0.0)]), None), None);
        assert_eq!(exported(&of([(0, 1.0), (1, 9.0), (2, 0.0), (3, 0.0)]), None), Some((0, 1.0)));
        // Windows 3 and 4 have no measurements.
        let gap = of([(0, 1.0), (1, 9.0), (2, 5.0), (5, 9.0), (6, 0.0), (7, 0.0)]);
        assert_eq!(exported(&gap, None), Some((2, 5.0)));
    }

    #[test]
    fn each_window_of_ended_work_is_exported_in_order() {
        let mut history = of((0..9).map(|n| (n, if n == 6 { 35.0 } else { 0.0 })));
        assert_eq!(exported(&history, None), Some((5, 12.0)));
        history.close(Smoothing::Cubic);
        let after = [0, 99, 100, 199, 200, 10_000].map(|ms| exported(&history, Some(ms)).unwrap());
        assert_eq!(after, [(6, 17.0), (6, 17.0), (7, 0.0), (7, 0.0), (8, 0.0), (8, 0.0)]);
        let mut short = of([(0, 1.0), (1, 2.0)]);
        short.close(Smoothing::Cubic);
        assert_eq!([0, 100, 200].map(|ms| exported(&short, Some(ms)).unwrap().0), [0, 0, 1]);
    }
}

//! Simulated time, which an application reports with a step or instead of one.

use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

/// Greatest value in seconds: some twenty billion times the age of the universe.
const SECONDS_MAX: f64 = 1e28;

/// Seconds of simulated time: not negative, and bounded.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "f64", into = "f64")]
pub struct SimulatedTime(f64);

// No value is NaN.
impl Eq for SimulatedTime {}

/// The number or text is not a valid simulated time.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[error("time is {0} s, and must be 0 to 1e28")]
pub struct NoTime(String);

impl SimulatedTime {
    /// Seconds.
    pub fn seconds(self) -> f64 {
        self.0
    }
}

impl TryFrom<f64> for SimulatedTime {
    type Error = NoTime;

    fn try_from(seconds: f64) -> Result<Self, NoTime> {
        // Negative zero becomes zero.
        if (0.0..=SECONDS_MAX).contains(&seconds) { Ok(Self(seconds.abs())) } else { Err(NoTime(seconds.to_string())) }
    }
}

impl From<SimulatedTime> for f64 {
    fn from(time: SimulatedTime) -> Self {
        time.0
    }
}

impl FromStr for SimulatedTime {
    type Err = NoTime;

    fn from_str(text: &str) -> Result<Self, NoTime> {
        let seconds: f64 = text.parse().map_err(|_| NoTime(format!("{:?}", text.chars().take(40).collect::<String>())))?;
        Self::try_from(seconds)
    }
}

impl fmt::Display for SimulatedTime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn simulated_time_is_a_decimal_within_bounds() {
        let of = |text: &str| text.parse::<SimulatedTime>().map(SimulatedTime::seconds);
        assert_eq!((of("12.5"), of("0"), of("1e-15"), of("-0.0")), (Ok(12.5), Ok(0.0), Ok(1e-15), Ok(0.0)));
        for odd in ["-1", "NaN", "inf", "1e29", "", "12,5", "5 s"] {
            assert!(of(odd).is_err(), "{odd}");
        }
        let time: SimulatedTime = serde_json::from_str("0.1").unwrap();
        assert_eq!((time.to_string(), serde_json::to_string(&time).unwrap()), ("0.1".to_owned(), "0.1".to_owned()));
        assert!(serde_json::from_str::<SimulatedTime>("-3").is_err());
    }
}

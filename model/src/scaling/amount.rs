//! Numbers of scaling: values and targets.

use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;
use thiserror::Error;

/// Millionths in one.
const SCALE: u64 = 1_000_000;

/// A number without sign, in millionths: exact, so specifications can be compared.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Amount(pub u64);

/// The text or number is no [`Amount`].
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{0:?} is no number from 0 to 1000000000000 with at most 6 decimals, such as 0.8 or 100")]
pub struct NoAmount(pub String);

impl Amount {
    /// The largest one: a million millions.
    pub const MAX: Self = Self(SCALE * SCALE * SCALE);

    /// The nearest one to a number; a larger number is [`Self::MAX`]. `None`: it is negative, or no number.
    pub fn of(number: f64) -> Option<Self> {
        if !number.is_finite() || number < 0.0 {
            return None;
        }
        let millionths = number * SCALE as f64;
        Some(if millionths >= Self::MAX.0 as f64 { Self::MAX } else { Self(millionths.round() as u64) })
    }

    /// As a number.
    pub fn as_f64(self) -> f64 {
        self.0 as f64 / SCALE as f64
    }

    /// The product of both.
    #[must_use]
    pub fn times(self, other: Self) -> Self {
        let product = u128::from(self.0) * u128::from(other.0) / u128::from(SCALE);
        Self(u64::try_from(product).unwrap_or(u64::MAX).min(Self::MAX.0))
    }
}

impl FromStr for Amount {
    type Err = NoAmount;

    fn from_str(text: &str) -> Result<Self, NoAmount> {
        let refuse = || NoAmount(text.chars().take(40).collect());
        let (whole, decimals) = text.split_once('.').unwrap_or((text, "0"));
        let is_number = |digits: &str| !digits.is_empty() && digits.bytes().all(|b| b.is_ascii_digit());
        if !is_number(whole) || !is_number(decimals) || decimals.len() > 6 {
            return Err(refuse());
        }
        let decimals: u64 = format!("{decimals:0<6}").parse().map_err(|_| refuse())?;
        let whole: u64 = whole.parse().map_err(|_| refuse())?;
        let millionths = whole.checked_mul(SCALE).and_then(|whole| whole.checked_add(decimals));
        millionths.map(Self).filter(|amount| *amount <= Self::MAX).ok_or_else(refuse)
    }
}

impl fmt::Display for Amount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = format!("{}.{:06}", self.0 / SCALE, self.0 % SCALE);
        f.pad(text.trim_end_matches('0').trim_end_matches('.'))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn amounts_are_exact_and_read_as_they_are_written() {
        for text in ["0", "0.8", "100", "0.000001", "1000000000000", "12.5"] {
            assert_eq!(text.parse::<Amount>().unwrap().to_string(), text);
        }
        for bad in ["", ".5", "5.", "-1", "1e3", "0.1234567", "1000000000001", "NaN", "1,5", "99999999999999999999"] {
            assert!(bad.parse::<Amount>().is_err(), "{bad}");
        }
        assert_eq!((Amount::of(0.8), Amount::of(f64::NAN), Amount::of(-0.1)), (Some(Amount(800_000)), None, None));
        assert_eq!((Amount::of(1e300), Amount::of(f64::INFINITY)), (Some(Amount::MAX), None));
        assert_eq!(Amount(800_000).times(Amount(500_000)), Amount(400_000));
        assert_eq!(Amount::MAX.times(Amount::MAX), Amount::MAX);
    }
}

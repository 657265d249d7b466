//! Durations; a bare number is seconds.

use lattice_model::checkpoint::DEADLINE_MS;
use lattice_model::duration::{self, BareNumber, DurationError};
use std::ops::RangeInclusive;
use std::time::Duration;
use thiserror::Error;

pub fn ttl(text: &str) -> Result<Duration, DurationError> {
    duration::parse(text, BareNumber::Seconds)
}

/// Why a duration with bounds is refused.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum BoundedTimeError {
    #[error(transparent)]
    Duration(#[from] DurationError),
    /// The bounds, for people.
    #[error("{0} are possible")]
    OutOfBounds(&'static str),
}

/// A duration within `bounds`. `shown`: the bounds as text for people.
pub fn bounded(text: &str, bounds: RangeInclusive<Duration>, shown: &'static str) -> Result<Duration, BoundedTimeError> {
    let time = ttl(text)?;
    if bounds.contains(&time) { Ok(time) } else { Err(BoundedTimeError::OutOfBounds(shown)) }
}

/// How long work may take to save its state. Zero is refused here: to an agent it means the site's default.
pub fn saving(text: &str) -> Result<Duration, BoundedTimeError> {
    bounded(text, Duration::from_millis(DEADLINE_MS.0)..=Duration::from_millis(DEADLINE_MS.1), "1s to 24h")
}

//! Durations; a bare number is seconds.

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

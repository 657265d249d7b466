//! Durations; a bare number is seconds.

use lattice_model::checkpoint::DEADLINE_MS;
use lattice_model::duration::{self, BareNumber, DurationError};
use std::ops::RangeInclusive;
use std::time::Duration;
use thiserror::Error;

pub fn parse_ttl(text: &str) -> Result<Duration, DurationError> {
    duration::parse(text, BareNumber::Seconds)
}

/// Why a duration with bounds is refused.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum BoundedTimeError {
    #[error(transparent)]
    Duration(#[from] DurationError),
    /// The bounds, for people.
    #[error("it must be {0}")]
    OutOfBounds(&'static str),
}

/// Parses a duration within `bounds`. `shown`: the bounds as text for people.
pub fn parse_bounded(text: &str, bounds: RangeInclusive<Duration>, shown: &'static str) -> Result<Duration, BoundedTimeError> {
    let time = parse_ttl(text)?;
    if bounds.contains(&time) { Ok(time) } else { Err(BoundedTimeError::OutOfBounds(shown)) }
}

/// Parses how long work may take to save its state. Zero is refused here, because it means the default in the API.
pub fn parse_save_deadline(text: &str) -> Result<Duration, BoundedTimeError> {
    parse_bounded(text, Duration::from_millis(DEADLINE_MS.0)..=Duration::from_millis(DEADLINE_MS.1), "1s to 24h")
}

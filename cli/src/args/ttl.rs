//! A time that is seconds where it has no unit.

use lattice_model::duration::{self, BareNumber};
use std::time::Duration;

pub fn ttl(text: &str) -> Result<Duration, String> {
    duration::parse(text, BareNumber::Seconds).map_err(|error| error.to_string())
}

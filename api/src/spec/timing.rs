//! Bounds in time. 0 means none.

use crate::v1;
use lattice_model::{Timestamp, Timing, millis};
use std::time::Duration;

pub(super) fn to_model(timing: Option<&v1::Timing>) -> Option<Box<Timing>> {
    let v1::Timing { begin_ms, deadline_ms, walltime_min_seconds } = timing?;
    let at = |ms: u64| (ms > 0).then_some(Timestamp(ms));
    let walltime_min = (*walltime_min_seconds > 0).then(|| Duration::from_secs(*walltime_min_seconds));
    Timing { begin: at(*begin_ms), deadline: at(*deadline_ms), walltime_min }.unless_empty()
}

/// A least walltime is in whole seconds.
pub(crate) fn from_model(timing: &Timing) -> v1::Timing {
    let Timing { begin, deadline, walltime_min } = timing;
    let ms = |at: &Option<Timestamp>| at.map_or(0, |at| at.0);
    let walltime_min_seconds = walltime_min.map_or(0, |least| millis(least) / 1000);
    v1::Timing { begin_ms: ms(begin), deadline_ms: ms(deadline), walltime_min_seconds }
}

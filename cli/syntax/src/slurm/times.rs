//! Times: how long a job may run, and when.

use super::option::{Around, Meaning};
use super::value_error::ValueError;
use lattice_model::duration::{self, BareNumber};

const NO_END: &str = "give a time: work without an end is a service, `lattice submit --service`";

/// `--time`: a bare number is minutes.
pub(super) fn walltime(value: &str, _: Around<'_>) -> Result<Meaning, ValueError> {
    Ok(Meaning::word(format!("--walltime={}s", seconds(value)?)))
}

/// `--time-min`.
pub(super) fn walltime_min(value: &str, _: Around<'_>) -> Result<Meaning, ValueError> {
    Ok(Meaning::word(format!("--walltime-min={}s", seconds(value)?)))
}

fn seconds(value: &str) -> Result<u64, ValueError> {
    if ["UNLIMITED", "INFINITE", "-1"].iter().any(|endless| value.eq_ignore_ascii_case(endless)) {
        return Err(ValueError::not_honoured(value, NO_END));
    }
    match duration::parse(value, BareNumber::Minutes)?.as_secs() {
        0 => Err(ValueError::not_honoured(value, NO_END)),
        seconds => Ok(seconds),
    }
}

/// `--begin`: now, or a time that the parser of `lattice submit` reads.
pub(super) fn begin(value: &str, _: Around<'_>) -> Result<Meaning, ValueError> {
    if value == "now" {
        return Ok(Meaning::default());
    }
    Ok(Meaning::word(format!("--begin={value}")))
}

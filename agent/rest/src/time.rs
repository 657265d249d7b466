//! The present time, and times in the past, as parameters have them.

use super::problem::Problem;
use lattice_cli_syntax::time::parse_past;
use lattice_model::millis;
use lattice_model::time::Timestamp;
use std::time::{SystemTime, UNIX_EPOCH};

/// A time in milliseconds since 1970: RFC 3339, a day (its beginning in UTC), or how long ago, such as `7d`.
pub(crate) fn past(parameter: &str, text: Option<&str>) -> Result<Option<u64>, Problem> {
    text.map(|text| parse_past(parameter, text, now())).transpose().map_err(Problem::from)
}

/// The present time.
pub(crate) fn now() -> Timestamp {
    Timestamp(SystemTime::now().duration_since(UNIX_EPOCH).map(millis).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_is_a_day_or_how_long_ago() {
        assert_eq!(past("since", Some("2026-03-05")), Ok(Some(1_772_668_800_000)));
        assert!(past("since", Some("2h")).unwrap() < past("since", Some("1h")).unwrap());
        assert_eq!(past("since", None), Ok(None));
        assert!(format!("{:?}", past("until", Some("soon")).unwrap_err()).contains("until: "));
    }
}

//! Parses times as users write them: RFC 3339, a day, a time ago, a time of day, a duration.

use crate::UsageError;
use lattice_api::v1;
use lattice_api::v1::hold_time::Time;
use lattice_model::duration::{self, BareNumber, DurationError};
use lattice_model::millis;
use lattice_model::time::Timestamp;

/// Parses a time in the past, and returns milliseconds since 1970. It is `2026-03-01T10:00:00Z`, also with a fraction
/// or another offset; `2026-03-01`, the beginning of that day in UTC; or `10m`, ten minutes before `now`.
pub fn parse_past(flag: &str, text: &str, now: Timestamp) -> Result<u64, UsageError> {
    let wrong = || {
        UsageError::new(format!("{flag}: {text:?} is not a time"))
            .with_hint("write 2026-03-01T10:00:00Z (or +01:00 for another zone), 2026-03-01, or how long ago: 90s, 10m, 2h")
    };
    if text.starts_with(|c: char| c.is_ascii_digit()) && text.contains('-') {
        return Timestamp::from_rfc_3339(text).map(|at| at.0).ok_or_else(wrong);
    }
    let ago = duration::parse(text, BareNumber::Seconds).map_err(|_| wrong())?;
    Ok(now.0.saturating_sub(millis(ago)))
}

/// Parses a time in the future: RFC 3339, a day (its beginning in UTC), or `18:00` for the next 18:00 in UTC. Does not
/// check that an RFC 3339 time or a day is in the future.
pub fn parse_future(flag: &str, text: &str, now: Timestamp) -> Result<v1::HoldTime, UsageError> {
    let at = if text.contains('-') { Timestamp::from_rfc_3339(text).map(|at| at.0) } else { next_time_of_day(text, now) };
    let wrong = || {
        UsageError::new(format!("{flag}: {text:?} is not a time")).with_hint("write 2026-03-01T18:00:00Z, 2026-03-01, or 18:00 (in UTC)")
    };
    Ok(v1::HoldTime { time: Some(Time::AtMs(at.ok_or_else(wrong)?)) })
}

/// Parses a duration, which begins when the quorum executes the command.
pub fn parse_duration(flag: &str, text: &str) -> Result<v1::HoldTime, UsageError> {
    let long = duration::parse(text, BareNumber::Seconds).map_err(|error| UsageError::new(format!("{flag}: {error}")))?;
    Ok(v1::HoldTime { time: Some(Time::AfterMs(millis(long))) })
}

/// Parses the time between two rounds of a scheduler, and returns milliseconds.
pub fn parse_cycle_interval(text: &str) -> Result<u64, DurationError> {
    duration::parse(text, BareNumber::Seconds).map(millis)
}

/// Parses a time as [`parse_future`] or a duration as [`parse_duration`]. `18:00` is a time of day, not a duration.
pub fn parse_future_or_duration(flag: &str, text: &str, now: Timestamp) -> Result<v1::HoldTime, UsageError> {
    if text.contains(['-', ':']) { parse_future(flag, text, now) } else { parse_duration(flag, text) }
}

/// The next time that it is `HH:MM` in UTC.
fn next_time_of_day(text: &str, now: Timestamp) -> Option<u64> {
    const DAY_MS: u64 = 86_400_000;
    let (hours, minutes) = text.split_once(':')?;
    let number = |text: &str| (text.len() == 2 && text.bytes().all(|b| b.is_ascii_digit())).then(|| text.parse::<u64>().ok()).flatten();
    let (hours, minutes) = (number(hours)?, number(minutes)?);
    if hours >= 24 || minutes >= 60 {
        return None;
    }
    let today = now.0 - now.0 % DAY_MS + (hours * 60 + minutes) * 60_000;
    Some(if today > now.0 { today } else { today + DAY_MS })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn past_times_are_parsed_in_every_form() {
        let now = Timestamp(1_772_704_812_034);
        let ms = |text: &str| parse_past("--since", text, now).ok();
        for at in [0, 951_782_400_000, now.0] {
            assert_eq!(ms(&Timestamp(at).to_string()), Some(at));
        }
        assert_eq!(ms("2026-03-05T10:00:12Z"), Some(1_772_704_812_000));
        assert_eq!(ms("2026-03-05 11:00:12.5+01:00"), Some(1_772_704_812_500));
        assert_eq!(ms("2026-03-05"), Some(1_772_668_800_000));
        assert_eq!(ms("10m"), Some(now.0 - 600_000));
        assert_eq!(ms("90"), Some(now.0 - 90_000));
        assert_eq!(ms("2028-02-29"), Some(1_835_395_200_000));
        for wrong in [
            "2026-02-29",
            "2026-04-31",
            "2026-03-05T10:00:12+24:00",
            "",
            "yesterday",
            "2026-13-05T10:00:12Z",
            "2026-03-05T10:00:12",
            "2026-03-05T10:00Z",
            "2026-03-05T1é:00:00Z",
            "-5m",
        ] {
            assert_eq!(ms(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn future_times_are_parsed_in_every_form() {
        // 2026-03-05T10:00:12.034Z
        let now = Timestamp(1_772_704_812_034);
        let time = |text: &str| parse_future_or_duration("--deadline", text, now).ok().and_then(|when| when.time);
        assert_eq!(time("2026-03-05T18:00:00Z"), Some(Time::AtMs(1_772_733_600_000)));
        assert_eq!(time("18:00"), Some(Time::AtMs(1_772_733_600_000)));
        assert_eq!(time("10:00"), Some(Time::AtMs(1_772_704_800_000 + 86_400_000)));
        assert_eq!(time("4h"), Some(Time::AfterMs(14_400_000)));
        for wrong in ["", "24:00", "1:00", "soon", "10:00:00"] {
            assert_eq!(time(wrong), None, "{wrong}");
        }
        assert!(parse_future("--until", "4h", now).is_err());
    }
}

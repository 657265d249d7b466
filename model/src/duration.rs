//! Durations as people write them (`24h`, `1h30m`, `90s`, `2:00:00`, `1-12:00:00`) and in
//! milliseconds.

use crate::count::counted;
use std::time::Duration;
use thiserror::Error;

/// The text is not a duration.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("{0:?} is not a duration: write 90s, 30m, 24h, 2d, 1h30m, MM:SS, HH:MM:SS, D-HH, D-HH:MM or D-HH:MM:SS")]
pub struct DurationError(pub String);

/// How to read a number without unit: minutes for a walltime, as in Slurm; seconds elsewhere.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BareNumber {
    Seconds,
    Minutes,
}

/// Parses a duration. As in Slurm, `A:B` is minutes:seconds and `D-H` is days and hours.
pub fn parse(text: &str, bare: BareNumber) -> Result<Duration, DurationError> {
    let refuse = || DurationError(text.chars().take(40).collect());
    let seconds = if text.contains(':') || text.contains('-') { clock(text) } else { units(text, bare) };
    seconds.map(Duration::from_secs).ok_or_else(refuse)
}

/// Whole milliseconds; a longer time is `u64::MAX`.
pub fn millis(duration: Duration) -> u64 {
    duration.as_secs().saturating_mul(1000).saturating_add(duration.subsec_millis().into())
}

fn clock(text: &str) -> Option<u64> {
    let (days, rest) = match text.split_once('-') {
        Some((days, rest)) => (Some(number(days)?), rest),
        None => (None, text),
    };
    let parts = rest.split(':').map(number).collect::<Option<Vec<_>>>()?;
    let (hours, minutes, seconds) = match (days, parts.as_slice()) {
        (_, [h, m, s]) => (*h, *m, *s),
        (None, [m, s]) => (0, *m, *s),
        (Some(_), [h, m]) => (*h, *m, 0),
        (Some(_), [h]) => (*h, 0, 0),
        _ => return None,
    };
    let total = days.unwrap_or(0).checked_mul(86_400)?.checked_add(hours.checked_mul(3600)?)?;
    total.checked_add(minutes.checked_mul(60)?)?.checked_add(seconds)
}

fn units(text: &str, bare: BareNumber) -> Option<u64> {
    if let Some(n) = number(text) {
        return match bare {
            BareNumber::Seconds => Some(n),
            BareNumber::Minutes => n.checked_mul(60),
        };
    }
    let mut rest = text;
    let mut total = 0u64;
    while !rest.is_empty() {
        let digits = rest.bytes().take_while(u8::is_ascii_digit).count();
        let n = number(&rest[..digits])?;
        let unit = rest[digits..].chars().next()?;
        let scale = match unit {
            's' => 1,
            'm' => 60,
            'h' => 3600,
            'd' => 86_400,
            _ => return None,
        };
        total = total.checked_add(n.checked_mul(scale)?)?;
        rest = &rest[digits + 1..];
    }
    (!text.is_empty()).then_some(total)
}

fn number(text: &str) -> Option<u64> {
    (!text.is_empty() && text.bytes().all(|b| b.is_ascii_digit())).then(|| text.parse().ok()).flatten()
}

/// `HH:MM:SS`; hours are not limited to 24.
pub fn clock_text(duration: Duration) -> String {
    let s = duration.as_secs();
    format!("{:02}:{:02}:{:02}", s / 3600, s / 60 % 60, s % 60)
}

/// The shortest form that [`parse`] reads: `2d`, `36h`, `90m`, `61s`. Fractions of a second are left out.
pub fn short_text(duration: Duration) -> String {
    const UNITS: [(u64, char); 3] = [(86_400, 'd'), (3600, 'h'), (60, 'm')];
    let seconds = duration.as_secs();
    let largest = UNITS.into_iter().find(|(unit, _)| seconds > 0 && seconds.is_multiple_of(*unit));
    largest.map_or_else(|| format!("{seconds}s"), |(unit, letter)| format!("{}{letter}", seconds / unit))
}

/// The number of the largest unit of which it is a whole number: `7 days`, `36 hours`, `90 minutes`,
/// `61 seconds`. Fractions of a second are left out.
pub fn units_text(duration: Duration) -> String {
    const UNITS: [(u64, &str); 3] = [(86_400, "day"), (3600, "hour"), (60, "minute")];
    let seconds = duration.as_secs();
    let largest = UNITS.into_iter().find(|(unit, _)| seconds > 0 && seconds.is_multiple_of(*unit));
    largest.map_or_else(|| counted(seconds, "second"), |(unit, noun)| counted(seconds / unit, noun))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_duration_is_a_whole_number_of_its_largest_unit() {
        let text = |seconds| units_text(Duration::from_secs(seconds));
        assert_eq!([text(604_800), text(86_400), text(129_600)], ["7 days", "1 day", "36 hours"]);
        assert_eq!([text(3600), text(5400), text(61), text(0)], ["1 hour", "90 minutes", "61 seconds", "0 seconds"]);
        assert_eq!(units_text(Duration::from_millis(1999)), "1 second");
    }

    #[test]
    fn a_short_duration_is_read_as_the_same() {
        for (seconds, short) in [(172_800, "2d"), (129_600, "36h"), (5400, "90m"), (61, "61s"), (0, "0s")] {
            let duration = Duration::from_secs(seconds);
            assert_eq!(short_text(duration), short);
            assert_eq!(parse(short, BareNumber::Minutes), Ok(duration));
        }
    }

    #[test]
    fn what_people_write_is_read() {
        let secs = |t, bare| parse(t, bare).map(|d| d.as_secs());
        for (text, want) in [
            ("24h", 86_400),
            ("1h30m", 5400),
            ("90s", 90),
            ("90", 90),
            ("2:00:00", 7200),
            ("05:30", 330),
            ("1-12:00:00", 129_600),
            ("2d", 172_800),
        ] {
            assert_eq!(secs(text, BareNumber::Seconds), Ok(want), "{text}");
        }
        assert_eq!(secs("90", BareNumber::Minutes), Ok(5400));
        assert_eq!(secs("1-12", BareNumber::Minutes), Ok(129_600));
        for bad in ["", "h", "1x", "-1", "1:2:3:4", "1h30", "ä", "99999999999999999999h", "1::2"] {
            assert!(secs(bad, BareNumber::Seconds).is_err(), "{bad:?}");
        }
    }
}

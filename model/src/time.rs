//! Wall-clock times, read by the callers of this crate.

use serde::{Deserialize, Serialize};
use std::fmt;

/// Milliseconds since 1970-01-01T00:00:00Z.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Timestamp(pub u64);

impl Timestamp {
    /// Milliseconds from `earlier` to this time; 0 if the clock went back.
    pub fn since_ms(self, earlier: Self) -> u64 {
        self.0.saturating_sub(earlier.0)
    }

    /// Parses RFC 3339, also with a fraction or another offset. A day alone is its beginning in UTC. `None`: the text is no
    /// such time, or one before 1970.
    pub fn from_rfc_3339(text: &str) -> Option<Self> {
        let (date, clock) = text.split_once(['T', 't', ' ']).unwrap_or((text, "00:00:00Z"));
        let number = |text: &str, digits: usize| {
            (text.len() == digits && text.bytes().all(|b| b.is_ascii_digit())).then(|| text.parse::<i64>().ok()).flatten()
        };
        let mut date = date.split('-');
        let (year, month, day) = (number(date.next()?, 4)?, number(date.next()?, 2)?, number(date.next()?, 2)?);
        let zone = clock.find(['Z', 'z', '+', '-'])?;
        let (clock, zone) = clock.split_at(zone);
        let (clock, fraction) = clock.split_once('.').unwrap_or((clock, "0"));
        let mut clock = clock.split(':');
        let (hour, minute, second) = (number(clock.next()?, 2)?, number(clock.next()?, 2)?, number(clock.next()?, 2)?);
        let milli = number(fraction.get(..fraction.len().min(9))?, fraction.len().min(9))? * 1000
            / 10i64.pow(u32::try_from(fraction.len().min(9)).ok()?);
        let offset = match zone.split_at(1) {
            ("Z" | "z", "") => 0,
            (sign, zone) => {
                let (hours, minutes) = zone.split_once(':')?;
                let (hours, minutes) = (number(hours, 2)?, number(minutes, 2)?);
                if hours > 23 || minutes > 59 {
                    return None;
                }
                let offset = hours * 60 + minutes;
                if sign == "-" { -offset } else { offset }
            }
        };
        let is_leap = year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
        let month_days = match month {
            2 => 28 + i64::from(is_leap),
            4 | 6 | 9 | 11 => 30,
            _ => 31,
        };
        let within =
            (1..=12).contains(&month) && (1..=month_days).contains(&day) && hour < 24 && minute < 60 && second <= 60 && year >= 1970;
        if !within || date.next().is_some() || clock.next().is_some() {
            return None;
        }
        // Days since 1970-01-01, with years that begin in March (H. Hinnant, "days_from_civil").
        let (y, m) = if month > 2 { (year, month - 3) } else { (year - 1, month + 9) };
        let days = y * 365 + y / 4 - y / 100 + y / 400 + (153 * m + 2) / 5 + day - 1 - 719_468;
        u64::try_from((((days * 24 + hour) * 60 + minute - offset) * 60 + second) * 1000 + milli).ok().map(Self)
    }
}

impl fmt::Display for Timestamp {
    /// RFC 3339 in UTC with milliseconds: `2026-03-05T10:00:12.034Z`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (days, ms) = (self.0 / 86_400_000, self.0 % 86_400_000);
        let (year, month, day) = civil_from_days(days);
        let (hour, minute, second, milli) = (ms / 3_600_000, ms / 60_000 % 60, ms / 1000 % 60, ms % 1000);
        write!(f, "{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{milli:03}Z")
    }
}

/// Year, month and day of a day number counted from 1970-01-01 (H. Hinnant, "chrono-compatible
/// low-level date algorithms").
fn civil_from_days(days: u64) -> (u64, u64, u64) {
    let z = days + 719_468;
    let era = z / 146_097;
    let day_of_era = z % 146_097;
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted_month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * shifted_month + 2) / 5 + 1;
    let month = if shifted_month < 10 { shifted_month + 3 } else { shifted_month - 9 };
    (year_of_era + era * 400 + u64::from(month <= 2), month, day)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_shown_as_rfc_3339() {
        assert_eq!(Timestamp(0).to_string(), "1970-01-01T00:00:00.000Z");
        assert_eq!(Timestamp(951_782_400_000).to_string(), "2000-02-29T00:00:00.000Z");
        assert_eq!(Timestamp(1_772_704_812_034).to_string(), "2026-03-05T10:00:12.034Z");
        for at in [0, 951_782_400_000, 1_772_704_812_034] {
            assert_eq!(Timestamp::from_rfc_3339(&Timestamp(at).to_string()), Some(Timestamp(at)));
        }
    }
}

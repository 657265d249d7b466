//! Reads times as Slurm's commands take them.

use super::Clock;
use super::civil::{days_of, is_date};

/// Whether a time of day without a date is before or after now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// The last moment with this time of day.
    Past,
    /// The next moment with this time of day.
    Future,
}

const DAY: i64 = 86_400;

impl Clock<'_> {
    /// Milliseconds since 1970 of a time such as `2026-11-29T11:41`, `1129`, `11/29-11:41`, `11:41`, `noon` or
    /// `now-7days`. `None`: it has another form.
    pub fn parse(&self, text: &str, side: Side) -> Option<u64> {
        let text = text.trim().to_ascii_lowercase();
        let now = self.civil(self.now_ms);
        if let Some(rest) = text.strip_prefix("now") {
            return self.relative_to_now(rest);
        }
        if let Some(unix) = text.strip_prefix("uts") {
            return number(unix).and_then(ms);
        }
        let at_of_day = |seconds: i64| {
            let today = self.unix_of(now.days * DAY + seconds);
            let now_seconds = i64::try_from(self.now_ms / 1000).ok()?;
            ms(match side {
                Side::Past if today > now_seconds => self.unix_of((now.days - 1) * DAY + seconds),
                Side::Future if today <= now_seconds => self.unix_of((now.days + 1) * DAY + seconds),
                Side::Past | Side::Future => today,
            })
        };
        match text.as_str() {
            "today" => return ms(self.unix_of(now.days * DAY)),
            "tomorrow" => return ms(self.unix_of((now.days + 1) * DAY)),
            "midnight" => return at_of_day(0),
            "noon" => return at_of_day(12 * 3600),
            "fika" => return at_of_day(15 * 3600),
            "teatime" => return at_of_day(16 * 3600),
            _ => {}
        }
        if text.contains(':') && !text.contains(['-', 't', '/', '.']) {
            return at_of_day(time_of_day(&text)?);
        }
        let (year, month, day, clock) = date(&text, now.year)?;
        let seconds = clock.map_or(Some(0), time_of_day)?;
        is_date(year, month, day).then(|| ms(self.unix_of(days_of(year, month, day) * DAY + seconds))).flatten()
    }

    /// `""`, `+7days`, `-3600`.
    fn relative_to_now(&self, rest: &str) -> Option<u64> {
        let Some(sign) = rest.chars().next() else { return Some(self.now_ms) };
        let rest = rest.get(1..)?;
        let unit_at = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
        let (count, unit) = rest.split_at(unit_at);
        let unit_seconds: u64 = match unit {
            "" => 1,
            unit if "seconds".starts_with(unit) => 1,
            unit if "minutes".starts_with(unit) => 60,
            unit if "hours".starts_with(unit) => 3600,
            unit if "days".starts_with(unit) => 86_400,
            unit if "weeks".starts_with(unit) => 604_800,
            _ => return None,
        };
        let more = u64::try_from(number(count)?).ok()?.checked_mul(unit_seconds)?.checked_mul(1000)?;
        match sign {
            '+' => self.now_ms.checked_add(more),
            '-' => Some(self.now_ms.saturating_sub(more)),
            _ => None,
        }
    }
}

fn ms(unix: i64) -> Option<u64> {
    u64::try_from(unix).ok()?.checked_mul(1000)
}

fn number(text: &str) -> Option<i64> {
    (!text.is_empty() && text.bytes().all(|b| b.is_ascii_digit())).then(|| text.parse().ok()).flatten()
}

/// Year, month, day, and the time of day if it is given.
fn date(text: &str, this_year: i64) -> Option<(i64, i64, i64, Option<&str>)> {
    let is_year_first = text.len() >= 10 && text.as_bytes().get(4) == Some(&b'-');
    if is_year_first {
        let (date, clock) = text.split_once(['t', ' ']).map_or((text, None), |(date, clock)| (date, Some(clock)));
        let mut parts = date.splitn(3, '-');
        return Some((number(parts.next()?)?, number(parts.next()?)?, number(parts.next()?)?, clock));
    }
    let (date, clock) = text.split_once('-').map_or((text, None), |(date, clock)| (date, Some(clock)));
    let parts: Vec<&str> = match date.find(['/', '.']).and_then(|at| date.get(at..=at)) {
        Some(separator) => date.split(separator).collect(),
        None if matches!(date.len(), 4 | 6) && date.is_ascii() => {
            let (month, rest) = date.split_at(2);
            let (day, year) = rest.split_at(2);
            [month, day, year].into_iter().filter(|part| !part.is_empty()).collect()
        }
        None => return None,
    };
    let year = match parts.get(2) {
        Some(year) => 2000 + number(year).filter(|year| *year < 100)?,
        None => this_year,
    };
    Some((year, number(parts.first()?)?, number(parts.get(1)?)?, clock)).filter(|_| parts.len() <= 3)
}

/// Seconds since midnight of `11:41`, `11:41:42`, `11:41pm`.
fn time_of_day(text: &str) -> Option<i64> {
    let (text, half) = match text.strip_suffix("am").map(|text| (text, 0)).or(text.strip_suffix("pm").map(|text| (text, 12))) {
        Some((text, half)) => (text.trim_end(), Some(half)),
        None => (text, None),
    };
    let mut parts = text.split(':');
    let (hour, minute) = (number(parts.next()?)?, number(parts.next()?)?);
    let second = parts.next().map_or(Some(0), number)?;
    let hour = match half {
        Some(half) if (1..=12).contains(&hour) => hour % 12 + half,
        Some(_) => return None,
        None => hour,
    };
    let is_time = hour < 24 && minute < 60 && second < 60 && parts.next().is_none();
    is_time.then_some((hour * 60 + minute) * 60 + second)
}

#[cfg(test)]
mod tests {
    use super::super::{Clock, Utc};
    use super::*;

    #[test]
    fn times_are_read_in_every_form() {
        // 2026-03-05T10:00:12.034Z
        let clock = Clock::new(1_772_704_812_034, &Utc, None);
        let read = |text: &str| clock.parse(text, Side::Past).map(|at| clock.text(at));
        for (text, want) in [
            ("2026-03-05", "2026-03-05T00:00:00"),
            ("2026-03-05T09:30", "2026-03-05T09:30:00"),
            ("2026-03-05T09:30:15", "2026-03-05T09:30:15"),
            ("0304", "2026-03-04T00:00:00"),
            ("030425-08:00", "2025-03-04T08:00:00"),
            ("03/04", "2026-03-04T00:00:00"),
            ("03.04.25", "2025-03-04T00:00:00"),
            ("09:00", "2026-03-05T09:00:00"),
            ("09:00PM", "2026-03-04T21:00:00"),
            ("today", "2026-03-05T00:00:00"),
            ("midnight", "2026-03-05T00:00:00"),
            ("noon", "2026-03-04T12:00:00"),
            ("teatime", "2026-03-04T16:00:00"),
            ("now", "2026-03-05T10:00:12"),
            ("now-7days", "2026-02-26T10:00:12"),
            ("now-2hours", "2026-03-05T08:00:12"),
            ("now+60", "2026-03-05T10:01:12"),
            ("now-1week", "2026-02-26T10:00:12"),
        ] {
            assert_eq!(read(text).as_deref(), Some(want), "{text}");
        }
        assert_eq!(clock.parse("noon", Side::Future).map(|at| clock.text(at)).as_deref(), Some("2026-03-05T12:00:00"));
        for wrong in ["", "soon", "2026-13-01", "2026-02-30", "25:00", "now*3", "now-3fortnights", "13:00pm", "é"] {
            assert_eq!(read(wrong), None, "{wrong}");
        }
    }
}

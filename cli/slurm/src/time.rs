//! Times and durations as Slurm's commands write and read them.

mod civil;
mod parse;

pub use parse::Side;

use civil::Civil;

/// How local time differs from UTC.
pub trait Zone {
    /// Seconds that local time is ahead of UTC at this second since 1970.
    fn offset_seconds(&self, unix_seconds: i64) -> i64;
}

/// UTC.
#[derive(Clone, Copy, Debug)]
pub struct Utc;

impl Zone for Utc {
    fn offset_seconds(&self, _unix_seconds: i64) -> i64 {
        0
    }
}

/// How times are written: `SLURM_TIME_FORMAT`.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Style {
    Standard,
    Relative,
    /// A format of strftime(3).
    Given(String),
}

/// The present time, and how times are written.
pub struct Clock<'a> {
    /// Milliseconds since 1970.
    pub now_ms: u64,
    zone: &'a dyn Zone,
    style: Style,
}

/// Shown for a time that is not known.
pub const UNKNOWN: &str = "Unknown";

impl<'a> Clock<'a> {
    /// With the value of `SLURM_TIME_FORMAT`, if it is set.
    pub fn new(now_ms: u64, zone: &'a dyn Zone, time_format: Option<&str>) -> Self {
        let style = match time_format {
            None | Some("" | "standard") => Style::Standard,
            Some("relative") => Style::Relative,
            Some(format) => Style::Given(format.to_owned()),
        };
        Self { now_ms, zone, style }
    }

    /// A time in milliseconds since 1970, such as `2026-11-29T11:41:42`.
    pub fn text(&self, ms: u64) -> String {
        let at = self.civil(ms);
        match &self.style {
            Style::Standard => at.formatted("%Y-%m-%dT%H:%M:%S"),
            Style::Given(format) => at.formatted(format),
            Style::Relative => {
                let now = self.civil(self.now_ms);
                at.formatted(match at.days - now.days {
                    0 => "%H:%M:%S",
                    1 => "Tomorr %H:%M",
                    -1 => "Ystday %H:%M",
                    2..=6 => "%a %H:%M",
                    _ if at.year == now.year => "%e %b %H:%M",
                    _ => "%e %b %Y",
                })
            }
        }
    }

    /// The same, or `otherwise` if there is no such time.
    pub fn text_or(&self, ms: Option<u64>, otherwise: &str) -> String {
        ms.map_or_else(|| otherwise.to_owned(), |ms| self.text(ms))
    }

    fn civil(&self, ms: u64) -> Civil {
        let unix = i64::try_from(ms / 1000).unwrap_or(i64::MAX / 2);
        Civil::new(unix, self.zone.offset_seconds(unix))
    }

    /// The second since 1970 at which local time shows this.
    fn unix_of(&self, local_seconds: i64) -> i64 {
        let guess = local_seconds - self.zone.offset_seconds(local_seconds);
        local_seconds - self.zone.offset_seconds(guess)
    }
}

/// Days, hours, minutes and seconds.
fn parts(seconds: u64) -> (u64, u64, u64, u64) {
    (seconds / 86_400, seconds / 3600 % 24, seconds / 60 % 60, seconds % 60)
}

/// As squeue and sinfo write durations: `0:05`, `1:02:03`, `2-00:00:00`.
pub fn short_duration(seconds: u64) -> String {
    match parts(seconds) {
        (0, 0, minutes, seconds) => format!("{minutes}:{seconds:02}"),
        (0, hours, minutes, seconds) => format!("{hours}:{minutes:02}:{seconds:02}"),
        (days, hours, minutes, seconds) => format!("{days}-{hours:02}:{minutes:02}:{seconds:02}"),
    }
}

/// As sacct and scontrol write durations: `00:00:05`, `2-00:00:00`.
pub fn long_duration(seconds: u64) -> String {
    match parts(seconds) {
        (0, hours, minutes, seconds) => format!("{hours:02}:{minutes:02}:{seconds:02}"),
        (days, hours, minutes, seconds) => format!("{days}-{hours:02}:{minutes:02}:{seconds:02}"),
    }
}

/// As sacct writes processor time: `00:05.120`, `01:02:03`, `2-00:00:00`.
pub fn cpu_duration(ms: u64) -> String {
    match parts(ms / 1000) {
        (0, 0, minutes, seconds) => format!("{minutes:02}:{seconds:02}.{:03}", ms % 1000),
        _ => long_duration(ms / 1000),
    }
}

/// A time limit, in seconds: minutes, `MM:SS`, `HH:MM:SS`, `D-HH`, `D-HH:MM` or `D-HH:MM:SS`. `None`: it has another form.
pub fn parse_limit(text: &str) -> Option<u64> {
    let number = |text: &str| (!text.is_empty() && text.bytes().all(|b| b.is_ascii_digit())).then(|| text.parse::<u64>().ok()).flatten();
    let seconds = match text.split_once('-') {
        Some((days, rest)) => {
            let rest: Vec<u64> = rest.split(':').map(number).collect::<Option<_>>()?;
            let [hours, minutes, seconds] = match rest[..] {
                [hours] => [hours, 0, 0],
                [hours, minutes] => [hours, minutes, 0],
                [hours, minutes, seconds] => [hours, minutes, seconds],
                _ => return None,
            };
            (((number(days)?.checked_mul(24)?).checked_add(hours)?.checked_mul(60)?).checked_add(minutes)?.checked_mul(60)?)
                .checked_add(seconds)?
        }
        None => {
            let rest: Vec<u64> = text.split(':').map(number).collect::<Option<_>>()?;
            match rest[..] {
                [minutes] => minutes.checked_mul(60)?,
                [minutes, seconds] => minutes.checked_mul(60)?.checked_add(seconds)?,
                [hours, minutes, seconds] => hours.checked_mul(60)?.checked_add(minutes)?.checked_mul(60)?.checked_add(seconds)?,
                _ => return None,
            }
        }
    };
    Some(seconds)
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Ahead(i64);

    impl Zone for Ahead {
        fn offset_seconds(&self, _: i64) -> i64 {
            self.0
        }
    }

    /// 2026-03-05T10:00:12.034Z
    const NOW: u64 = 1_772_704_812_034;

    #[test]
    fn times_are_local_and_of_the_wanted_form() {
        assert_eq!(Clock::new(NOW, &Utc, None).text(NOW), "2026-03-05T10:00:12");
        assert_eq!(Clock::new(NOW, &Ahead(-36_000), Some("standard")).text(NOW), "2026-03-05T00:00:12");
        assert_eq!(Clock::new(NOW, &Ahead(3600), Some("%s")).text(NOW), "1772704812");
        assert_eq!(Clock::new(NOW, &Utc, Some("%a %d %b %Y %T %j %%")).text(NOW), "Thu 05 Mar 2026 10:00:12 064 %");
        let relative = Clock::new(NOW, &Utc, Some("relative"));
        let day = 86_400_000;
        let texts = [0, day, 3 * day].map(|more| relative.text(NOW + more));
        assert_eq!(texts, ["10:00:12", "Tomorr 10:00", "Sun 10:00"]);
        assert_eq!(
            [NOW - day, NOW - 30 * day, NOW - 400 * day].map(|at| relative.text(at)),
            ["Ystday 10:00", " 3 Feb 10:00", "29 Jan 2025"]
        );
        assert_eq!(relative.text_or(None, UNKNOWN), "Unknown");
    }

    #[test]
    fn durations_are_those_of_slurm() {
        assert_eq!([5, 65, 3723, 172_800].map(short_duration), ["0:05", "1:05", "1:02:03", "2-00:00:00"]);
        assert_eq!([5, 3723, 172_805].map(long_duration), ["00:00:05", "01:02:03", "2-00:00:05"]);
        assert_eq!([5120, 3_723_000].map(cpu_duration), ["00:05.120", "01:02:03"]);
    }

    #[test]
    fn limits_are_read_in_every_form() {
        let limits = ["30", "1:30", "1:00:00", "1-2", "1-2:03", "1-2:03:04"].map(parse_limit);
        assert_eq!(limits, [1800, 90, 3600, 93_600, 93_780, 93_784].map(Some));
        assert_eq!(["", "x", "1:2:3:4", "1-", "-5", "UNLIMITED"].map(parse_limit), [None; 6]);
    }
}

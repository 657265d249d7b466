//! Days and times as calendars and clocks show them, and their conversion to UTC.

use lattice_model::time::Timestamp;

/// A day and a time of day, in some time zone.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Civil {
    /// Of the Gregorian calendar.
    pub year: i32,
    /// From 1.
    pub month: u32,
    /// From 1.
    pub day: u32,
    pub hour: u32,
    pub minute: u32,
    pub second: u32,
}

impl Civil {
    /// The beginning of a day.
    pub fn day(year: i32, month: u32, day: u32) -> Self {
        Self { year, month, day, ..Self::default() }
    }

    /// The beginning of the day that is this many days later.
    pub fn after_days(self, days: u32) -> Self {
        let noon = Self { hour: 12, minute: 0, second: 0, ..self };
        let later = utc(&noon).map(|at| of_utc(Timestamp(at.0.saturating_add(u64::from(days) * DAY_MS))));
        later.map_or(self, |later| Self { hour: 0, minute: 0, second: 0, ..later })
    }

    /// As text, in the form that [`Timestamp::from_rfc_3339`] reads.
    fn rfc_3339(&self) -> String {
        let Self { year, month, day, hour, minute, second } = self;
        format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}Z")
    }
}

const DAY_MS: u64 = 86_400_000;

/// The time in UTC; `None`: there is no such day or time.
pub fn utc(civil: &Civil) -> Option<Timestamp> {
    Timestamp::from_rfc_3339(&civil.rfc_3339())
}

/// What calendars and clocks show at this time in UTC.
pub fn of_utc(at: Timestamp) -> Civil {
    let text = at.to_string();
    let part = |from: usize, to: usize| text.get(from..to).and_then(|digits| digits.parse::<u32>().ok()).unwrap_or_default();
    let year = i32::try_from(part(0, 4)).unwrap_or_default();
    Civil { year, month: part(5, 7), day: part(8, 10), hour: part(11, 13), minute: part(14, 16), second: part(17, 19) }
}

/// The present time, and the time zone of the user.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    /// The present time.
    pub now: Timestamp,
    /// The time at which clocks of the zone show this; `None`: they never do.
    pub to_utc: fn(&Civil) -> Option<Timestamp>,
    /// What clocks of the zone show at this time.
    pub to_local: fn(Timestamp) -> Civil,
}

impl Default for Clock {
    /// 1970, in UTC.
    fn default() -> Self {
        Self { now: Timestamp(0), to_utc: utc, to_local: of_utc }
    }
}

impl Clock {
    /// The beginning of the present day.
    pub fn today(&self) -> Civil {
        Civil { hour: 0, minute: 0, second: 0, ..(self.to_local)(self.now) }
    }

    /// The time at which clocks of the zone show this; `None`: there is no such day or time.
    pub fn utc(&self, civil: &Civil) -> Option<Timestamp> {
        // Checks the day: time zones may accept the 30th of February as another day.
        utc(civil).and_then(|_| (self.to_utc)(civil))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn days_follow_each_other_across_months_and_years() {
        let after = |year, month, day, days| Civil::day(year, month, day).after_days(days);
        assert_eq!(after(2026, 2, 28, 1), Civil::day(2026, 3, 1));
        assert_eq!(after(2028, 2, 28, 1), Civil::day(2028, 2, 29));
        assert_eq!(after(2026, 12, 31, 1), Civil::day(2027, 1, 1));
        let now = Timestamp(1_772_704_812_034);
        assert_eq!(utc(&of_utc(now)), Some(Timestamp(1_772_704_812_000)));
        assert_eq!(Clock { now, ..Clock::default() }.today(), Civil::day(2026, 3, 5));
        assert_eq!(Clock::default().utc(&Civil::day(2026, 2, 30)), None);
    }
}

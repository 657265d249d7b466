//! A moment as a calendar and a clock show it.

const MONTHS: [&str; 12] =
    ["January", "February", "March", "April", "May", "June", "July", "August", "September", "October", "November", "December"];
const WEEKDAYS: [&str; 7] = ["Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday"];

/// A moment in local time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Civil {
    pub year: i64,
    /// 1 to 12.
    pub month: i64,
    /// 1 to 31.
    pub day: i64,
    pub hour: i64,
    pub minute: i64,
    pub second: i64,
    /// Local days since 1970-01-01.
    pub days: i64,
    unix: i64,
    offset: i64,
}

impl Civil {
    /// A second since 1970, in a zone that is `offset` seconds ahead of UTC.
    pub fn new(unix: i64, offset: i64) -> Self {
        let local = unix + offset;
        let (days, seconds) = (local.div_euclid(86_400), local.rem_euclid(86_400));
        let (year, month, day) = date_of(days);
        Self { year, month, day, hour: seconds / 3600, minute: seconds / 60 % 60, second: seconds % 60, days, unix, offset }
    }

    fn weekday(&self) -> &'static str {
        // 1970-01-01 was a Thursday.
        usize::try_from((self.days + 4).rem_euclid(7)).ok().and_then(|at| WEEKDAYS.get(at)).copied().unwrap_or_default()
    }

    fn month_name(&self) -> &'static str {
        usize::try_from(self.month - 1).ok().and_then(|at| MONTHS.get(at)).copied().unwrap_or_default()
    }

    /// The text of a format of strftime(3). A conversion that is not known stays as it is.
    pub fn formatted(&self, format: &str) -> String {
        let mut text = String::with_capacity(format.len() + 16);
        let mut rest = format.chars();
        while let Some(c) = rest.next() {
            if c != '%' {
                text.push(c);
                continue;
            }
            let Some(conversion) = rest.next() else {
                text.push('%');
                break;
            };
            let hour_12 = if self.hour % 12 == 0 { 12 } else { self.hour % 12 };
            text.push_str(&match conversion {
                'Y' => self.year.to_string(),
                'y' => format!("{:02}", self.year.rem_euclid(100)),
                'm' => format!("{:02}", self.month),
                'd' => format!("{:02}", self.day),
                'e' => format!("{:2}", self.day),
                'j' => format!("{:03}", self.days - days_of(self.year, 1, 1) + 1),
                'H' => format!("{:02}", self.hour),
                'I' => format!("{hour_12:02}"),
                'p' => String::from(if self.hour < 12 { "AM" } else { "PM" }),
                'M' => format!("{:02}", self.minute),
                'S' => format!("{:02}", self.second),
                's' => self.unix.to_string(),
                'a' => self.weekday().get(..3).unwrap_or_default().to_owned(),
                'A' => self.weekday().to_owned(),
                'b' | 'h' => self.month_name().get(..3).unwrap_or_default().to_owned(),
                'B' => self.month_name().to_owned(),
                'T' => self.formatted("%H:%M:%S"),
                'R' => self.formatted("%H:%M"),
                'F' => self.formatted("%Y-%m-%d"),
                'D' => self.formatted("%m/%d/%y"),
                'c' => self.formatted("%a %b %e %H:%M:%S %Y"),
                'x' => self.formatted("%m/%d/%y"),
                'X' => self.formatted("%H:%M:%S"),
                'z' => {
                    let (sign, minutes) = (if self.offset < 0 { '-' } else { '+' }, self.offset.abs() / 60);
                    format!("{sign}{:02}{:02}", minutes / 60, minutes % 60)
                }
                'n' => "\n".to_owned(),
                't' => "\t".to_owned(),
                '%' => "%".to_owned(),
                other => format!("%{other}"),
            });
        }
        text
    }
}

/// Days since 1970-01-01, with years that begin in March (H. Hinnant, "days_from_civil").
pub fn days_of(year: i64, month: i64, day: i64) -> i64 {
    let (y, m) = if month > 2 { (year, month - 3) } else { (year - 1, month + 9) };
    let era = y.div_euclid(400);
    let year_of_era = y.rem_euclid(400);
    let day_of_year = (153 * m + 2) / 5 + day - 1;
    era * 146_097 + year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + day_of_year - 719_468
}

/// Year, month and day of a day since 1970-01-01 (H. Hinnant, "civil_from_days").
fn date_of(days: i64) -> (i64, i64, i64) {
    let shifted = days + 719_468;
    let (era, day_of_era) = (shifted.div_euclid(146_097), shifted.rem_euclid(146_097));
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let m = (5 * day_of_year + 2) / 153;
    let (day, month) = (day_of_year - (153 * m + 2) / 5 + 1, if m < 10 { m + 3 } else { m - 9 });
    (year_of_era + era * 400 + i64::from(month <= 2), month, day)
}

/// Whether a month has this day.
pub fn is_date(year: i64, month: i64, day: i64) -> bool {
    (1..=12).contains(&month) && day >= 1 && date_of(days_of(year, month, day)) == (year, month, day)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn days_and_dates_are_inverse() {
        for days in (-800_000..800_000).step_by(97) {
            let (year, month, day) = date_of(days);
            assert_eq!(days_of(year, month, day), days);
        }
        assert_eq!(date_of(0), (1970, 1, 1));
        assert!(is_date(2028, 2, 29) && !is_date(2026, 2, 29) && !is_date(2026, 4, 31) && !is_date(2026, 13, 1));
    }
}

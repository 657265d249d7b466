//! The present time, and the user's time zone: that of this process (TZ, else /etc/localtime).

use lattice_cli_syntax::civil::{Civil, Clock, of_utc};
use lattice_model::millis;
use lattice_model::time::Timestamp;
use std::time::{SystemTime, UNIX_EPOCH};

/// The user's clock.
pub fn local_clock() -> Clock {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Clock { now: Timestamp(millis(now)), to_utc, to_local }
}

fn empty() -> libc::tm {
    // SAFETY: `tm` has numbers and a pointer, all of which may be zero.
    unsafe { std::mem::zeroed() }
}

fn to_utc(civil: &Civil) -> Option<Timestamp> {
    let of = |number: u32| i32::try_from(number).ok();
    let mut tm = empty();
    tm.tm_year = civil.year - 1900;
    tm.tm_mon = of(civil.month)? - 1;
    tm.tm_mday = of(civil.day)?;
    (tm.tm_hour, tm.tm_min, tm.tm_sec) = (of(civil.hour)?, of(civil.minute)?, of(civil.second)?);
    // The library finds out whether it is summer time.
    tm.tm_isdst = -1;
    // SAFETY: `tm` is valid for reading and writing.
    let seconds = unsafe { libc::mktime(&raw mut tm) };
    u64::try_from(seconds).ok()?.checked_mul(1000).map(Timestamp)
}

fn to_local(at: Timestamp) -> Civil {
    let Ok(seconds) = libc::time_t::try_from(at.0 / 1000) else { return of_utc(at) };
    let mut tm = empty();
    // SAFETY: both are valid, the second one for writing.
    let found = unsafe { libc::localtime_r(&raw const seconds, &raw mut tm) };
    if found.is_null() {
        return of_utc(at);
    }
    let of = |number: i32| u32::try_from(number).unwrap_or_default();
    Civil {
        year: tm.tm_year.saturating_add(1900),
        month: of(tm.tm_mon) + 1,
        day: of(tm.tm_mday),
        hour: of(tm.tm_hour),
        minute: of(tm.tm_min),
        second: of(tm.tm_sec),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// This holds in any zone in which the test runs, in summer time and in winter time.
    #[test]
    fn the_time_of_a_zone_is_found_again() {
        for at in [1_772_704_812_000, 1_782_704_812_000].map(Timestamp) {
            assert_eq!(to_utc(&to_local(at)), Some(at));
        }
    }
}

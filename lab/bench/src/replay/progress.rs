//! How far a replay has come: a line on a terminal, which is overwritten.

use std::io::{IsTerminal, Write, stderr};
use std::time::{Duration, Instant};

/// The least time between two lines.
const INTERVAL: Duration = Duration::from_secs(1);
const DAY_S: u64 = 86_400;
/// Clears the line.
const CLEAR: &str = "\r\x1b[K";

/// See the module documentation. When dropped, it clears its line. Without a terminal it writes nothing.
pub struct Progress {
    /// The first and the last submission, in seconds.
    span_s: (u64, u64),
    /// When the latest line was written, or the replay began; `None`: stderr is no terminal.
    latest: Option<Instant>,
    has_line: bool,
}

impl Progress {
    /// `span_s`: the first and the last submission, in seconds.
    pub fn of(span_s: (u64, u64)) -> Self {
        Self { span_s, latest: stderr().is_terminal().then(Instant::now), has_line: false }
    }

    /// Shows that the replay has reached this second.
    pub fn show(&mut self, now_s: u64) {
        if self.latest.is_some_and(|latest| latest.elapsed() >= INTERVAL) {
            write(&format!("{CLEAR}{}", line(self.span_s, now_s)));
            (self.latest, self.has_line) = (Some(Instant::now()), true);
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if self.has_line {
            write(CLEAR);
        }
    }
}

/// A terminal that is gone does not end a replay.
fn write(text: &str) {
    let mut out = stderr().lock();
    let _ = out.write_all(text.as_bytes()).and_then(|()| out.flush());
}

fn line((first_s, last_s): (u64, u64), now_s: u64) -> String {
    let day = now_s.saturating_sub(first_s) / DAY_S + 1;
    let days = last_s.saturating_sub(first_s) / DAY_S + 1;
    if day > days { format!("day {day}, after the last submission") } else { format!("day {day} of {days}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn days_are_counted_from_the_first_submission() {
        let span_s = (1_000_000, 1_000_000 + 3 * DAY_S);
        assert_eq!(line(span_s, 1_000_000), "day 1 of 4");
        assert_eq!(line(span_s, 1_000_000 + 2 * DAY_S - 1), "day 2 of 4");
        assert_eq!(line(span_s, 1_000_000 + 4 * DAY_S), "day 5, after the last submission");
    }
}

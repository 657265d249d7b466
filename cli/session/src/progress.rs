//! A line on a terminal's stderr while the command waits for something long. It is redrawn, and removed before anything
//! else is written.

use crate::message::{clear_progress, show_progress};
use crate::session::Session;
use crate::table::shortened;
use crate::terminal;
use lattice_model::duration::clock_text;
use std::future::Future;
use std::io::{self, IsTerminal};
use std::pin::pin;
use std::time::Duration;
use tokio::time::{Instant, sleep};

/// A shorter wait shows no line.
const SHOWN_AFTER: Duration = Duration::from_secs(2);
/// The time between two drawings.
const REDRAW_INTERVAL: Duration = Duration::from_secs(1);
/// Characters of a bar.
const BAR_COLUMNS: usize = 20;

/// The line, from the beginning of the wait to its end.
pub struct Progress {
    begun: Instant,
    is_wanted: bool,
}

impl Progress {
    /// Begins the wait. With `-q`, or if stderr is no terminal, nothing is ever shown.
    pub fn new(session: &Session) -> Self {
        let is_terminal = io::stderr().is_terminal() && std::env::var("TERM").is_ok_and(|term| !term.is_empty() && term != "dumb");
        Self { begun: Instant::now(), is_wanted: is_terminal && !session.is_quiet() }
    }

    /// Draws the line: the text, and how long the command has waited.
    pub fn show(&self, text: &str) {
        let waited = self.begun.elapsed();
        if self.is_wanted && waited >= SHOWN_AFTER {
            let columns = terminal::size().map_or(usize::MAX, |(_, columns)| columns as usize);
            show_progress(&line(text, waited, columns));
        }
    }

    /// Waits for `work`, and draws the line meanwhile.
    pub async fn during<T>(&self, text: &str, work: impl Future<Output = T>) -> T {
        let mut work = pin!(work);
        loop {
            tokio::select! {
                done = &mut work => {
                    clear_progress();
                    return done;
                }
                () = sleep(REDRAW_INTERVAL) => self.show(text),
            }
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        clear_progress();
    }
}

/// A line that is shorter than the terminal: a full one would move the cursor to the next line.
fn line(text: &str, waited: Duration, columns: usize) -> String {
    let time = format!(", {}", clock_text(waited));
    shortened(text, columns.saturating_sub(time.len() + 1)) + &time
}

/// A bar with its numbers: `[##########          ] 50 %, 1 of 2 allocations ended`.
pub fn bar(done: u64, total: u64, what: &str) -> String {
    let filled = usize::try_from(u128::from(done.min(total)) * BAR_COLUMNS as u128 / u128::from(total.max(1))).unwrap_or(BAR_COLUMNS);
    let percent = u128::from(done.min(total)) * 100 / u128::from(total.max(1));
    format!("[{:BAR_COLUMNS$}] {percent} %, {done} of {total} {what}", "#".repeat(filled))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bar_has_its_numbers() {
        assert_eq!(bar(1, 2, "allocations ended"), "[##########          ] 50 %, 1 of 2 allocations ended");
        assert_eq!(bar(0, 0, "nodes"), "[                    ] 0 %, 0 of 0 nodes");
        assert_eq!(bar(u64::MAX, u64::MAX, "bytes").matches('#').count(), BAR_COLUMNS);
    }

    #[test]
    fn a_line_is_shorter_than_the_terminal() {
        let waited = Duration::from_secs(72);
        assert_eq!(line("waiting for the agent", waited, 80), "waiting for the agent, 00:01:12");
        let cut = line("waiting for the agent", waited, 20);
        assert!(cut.chars().count() < 20 && cut.ends_with("…, 00:01:12"), "{cut}");
    }
}

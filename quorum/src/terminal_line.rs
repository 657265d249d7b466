//! A line on a terminal's stderr while a command waits for something long. It is redrawn, and removed before anything
//! else is written.

use lattice_model::duration::clock_text;
use lattice_quorum::backup::progress::{ReadProgress, Reporter};
use parking_lot::Mutex;
use std::fmt::Display;
use std::future::Future;
use std::io::{self, IsTerminal, Write};
use std::pin::pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// A shorter wait shows no line.
const SHOWN_AFTER: Duration = Duration::from_secs(2);
/// The time between two drawings.
const REDRAW_INTERVAL: Duration = Duration::from_secs(1);
/// Moves to the first column and erases the line.
const ERASE: &str = "\r\x1b[K";

/// The line. All clones share it.
#[derive(Clone)]
pub struct TerminalLine(Arc<Inner>);

struct Inner {
    begun: Instant,
    is_wanted: bool,
    /// The last report about the reading of a backup.
    report: Mutex<Option<ReadProgress>>,
    /// When it was last drawn; `None`: nothing is there.
    drawn_at: Mutex<Option<Instant>>,
}

impl TerminalLine {
    /// Begins the wait. If stderr is no terminal, nothing is ever shown.
    pub fn new() -> Self {
        let is_wanted = io::stderr().is_terminal() && std::env::var("TERM").is_ok_and(|term| !term.is_empty() && term != "dumb");
        Self(Arc::new(Inner { begun: Instant::now(), is_wanted, report: Mutex::new(None), drawn_at: Mutex::new(None) }))
    }

    /// Draws the line, at most once a second: the text, and how long the command has waited.
    fn show(&self, text: &impl Display) {
        let waited = self.0.begun.elapsed();
        if !self.0.is_wanted || waited < SHOWN_AFTER {
            return;
        }
        let mut drawn_at = self.0.drawn_at.lock();
        if drawn_at.is_none_or(|at| at.elapsed() >= REDRAW_INTERVAL) {
            *drawn_at = Some(Instant::now());
            // A terminal that has gone needs no line.
            let _gone = write!(io::stderr(), "{ERASE}{text}, {}", clock_text(waited));
        }
    }

    /// Removes the line.
    fn clear(&self) {
        if self.0.drawn_at.lock().take().is_some() {
            let _gone = write!(io::stderr(), "{ERASE}");
        }
    }

    /// Takes the reports about the reading of a backup. It draws them too, because work that computes lets nothing else run.
    pub fn reporter(&self) -> Reporter {
        let line = self.clone();
        Reporter::new(move |progress| {
            *line.0.report.lock() = Some(progress);
            line.show(&progress);
        })
    }

    /// Waits for `work`, and removes the line at the end. Meanwhile draws it each second, also if no report comes: the last
    /// report, or `text` before the first one.
    pub async fn during<T>(&self, text: &str, work: impl Future<Output = T>) -> T {
        let mut work = pin!(work);
        loop {
            tokio::select! {
                done = &mut work => {
                    self.clear();
                    return done;
                }
                () = tokio::time::sleep(REDRAW_INTERVAL) => {
                    let report = *self.0.report.lock();
                    match report {
                        Some(report) => self.show(&report),
                        None => self.show(&text),
                    }
                }
            }
        }
    }
}

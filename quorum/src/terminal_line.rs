//! A line on a terminal's stderr while a command waits for something long. It is redrawn, and removed before anything
//! else is written.

use lattice_model::duration::clock_text;
use lattice_quorum::backup::progress::Reporter;
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
    /// When it was last drawn; `None`: nothing is there.
    drawn_at: Mutex<Option<Instant>>,
}

impl TerminalLine {
    /// Begins the wait. If stderr is no terminal, nothing is ever shown.
    pub fn new() -> Self {
        let is_wanted = io::stderr().is_terminal() && std::env::var("TERM").is_ok_and(|term| !term.is_empty() && term != "dumb");
        Self(Arc::new(Inner { begun: Instant::now(), is_wanted, drawn_at: Mutex::new(None) }))
    }

    /// Draws the line, at most once a second: the text, and how long the command has waited.
    pub fn show(&self, text: &impl Display) {
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
    pub fn clear(&self) {
        if self.0.drawn_at.lock().take().is_some() {
            let _gone = write!(io::stderr(), "{ERASE}");
        }
    }

    /// Draws each report about the reading of a backup.
    pub fn reporter(&self) -> Reporter {
        let line = self.clone();
        Reporter::new(move |progress| line.show(&progress))
    }

    /// Waits for `work`, draws the line meanwhile, and removes it.
    pub async fn during<T>(&self, text: &str, work: impl Future<Output = T>) -> T {
        let mut work = pin!(work);
        loop {
            tokio::select! {
                done = &mut work => {
                    self.clear();
                    return done;
                }
                () = tokio::time::sleep(REDRAW_INTERVAL) => self.show(&text),
            }
        }
    }
}

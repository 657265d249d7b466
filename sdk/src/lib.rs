//! For applications under Lattice: receive requests to save themselves, through shared memory (`--checkpoint=shmem`).
//!
//! ```text
//!   agent ──number──▶ page ──asked(), wait()──▶ application ──▶ files in request.directory
//!     ▲                │ ◀──done(), failed(), defer(), progress()──┘
//!     └────────────────┘
//! ```
//!
//! ```no_run
//! # fn save(_: &std::path::Path) -> std::io::Result<()> { Ok(()) }
//! let listener = lattice_checkpoint::Listener::from_env()?;
//! for step in 0..1000 {
//!     // … compute …
//!     if let Some(request) = listener.as_ref().and_then(|listener| listener.asked()) {
//!         match save(&request.directory) {
//!             Ok(()) => request.done(lattice_checkpoint::Done { step: Some(step), ..Default::default() }),
//!             Err(error) => request.failed(&error.to_string()),
//!         }
//!     }
//! }
//! # Ok::<(), std::io::Error>(())
//! ```
//!
//! A check costs two loads from memory and no system call. When it runs again, the program finds its saved files in the
//! directory that `$LATTICE_RESTORE_FROM` names. [`layout`] documents the page, for other languages;
//! `include/lattice_checkpoint.h` is the same for C, and `python/lattice_checkpoint.py` for Python.

pub mod layout;

mod ffi;
mod page;

use layout::{
    AT_ANSWER, AT_ANSWERED, AT_DEADLINE, AT_DEFERRAL, AT_FILES, AT_LEFT, AT_OF_REQUEST, AT_PERCENT, AT_REASON, AT_REQUEST, AT_SAVED_BYTES,
    AT_STEP, AT_TAKEN, AT_TIME, AT_TIME_SET, AT_TOKEN, DEFERRED, DONE, FAILED, REASON_BYTES, TOKEN_BYTES, UNREPORTED, UNREPORTED_32,
};
use page::Page;
use std::env;
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Receives requests for as long as it lives: the agent asks only if an application listens.
#[derive(Debug)]
pub struct Listener {
    page: Page,
    directory: PathBuf,
}

/// A request to save. If it is not answered, it is returned again.
#[derive(Debug)]
pub struct Request<'a> {
    /// The name of the directory, new for each request.
    pub token: String,
    /// The existing directory into which everything must be saved. One for each node.
    pub directory: PathBuf,
    /// The deadline, in milliseconds since 1970; the agent waits half as long again.
    pub deadline_ms: u64,
    number: u32,
    listener: &'a Listener,
}

/// What was saved. The given values are compared with the files; a difference makes the checkpoint fail.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Done {
    /// The step, the same on all nodes.
    pub step: Option<u64>,
    /// The simulated time, in seconds, 0 to 1e28: together with the step or instead of it.
    pub time_seconds: Option<f64>,
    /// The number of files.
    pub files: Option<u64>,
    /// Their bytes in total.
    pub bytes: Option<u64>,
}

impl Listener {
    /// Opens the page that the environment names; `None` if the environment names none: outside of Lattice, for
    /// example.
    ///
    /// # Errors
    /// The page cannot be opened, or has another layout than this library knows.
    pub fn from_env() -> io::Result<Option<Self>> {
        match (env::var_os("LATTICE_CHECKPOINT_SHM"), env::var_os("LATTICE_CHECKPOINT_DIR")) {
            (Some(page), Some(directory)) => Self::open(Path::new(&page), Path::new(&directory)).map(Some),
            (None, _) | (_, None) => Ok(None),
        }
    }

    /// Opens the page and shows the agent that somebody listens.
    ///
    /// # Errors
    /// As [`Self::from_env`].
    pub fn open(page: &Path, directory: &Path) -> io::Result<Self> {
        Ok(Self { page: Page::open(page)?, directory: directory.to_owned() })
    }

    /// The pending request, if there is one. Two loads if there is none.
    pub fn asked(&self) -> Option<Request<'_>> {
        let number = self.page.load(AT_REQUEST);
        if number == 0 || number == self.page.load(AT_ANSWERED) {
            return None;
        }
        // The numbers differ while the agent writes the next request: a later check finds it.
        let of = self.page.load(AT_OF_REQUEST);
        let deadline_ms = self.page.load_long(AT_DEADLINE);
        let token = self.page.text(AT_TOKEN, TOKEN_BYTES);
        if of != number || self.page.load(AT_OF_REQUEST) != number || self.page.load(AT_REQUEST) != number {
            return None;
        }
        // A plain name that cannot leave the directory, whatever was written there.
        let token = token.filter(|token| !token.is_empty() && token.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-'))?;
        self.acknowledge(number);
        Some(Request { directory: self.directory.join(&token), token, deadline_ms, number, listener: self })
    }

    /// Waits for a request, for at most `at_most`.
    pub fn wait(&self, at_most: Duration) -> Option<Request<'_>> {
        let until = Instant::now().checked_add(at_most);
        loop {
            let seen = self.page.load(AT_REQUEST);
            if let Some(request) = self.asked() {
                return Some(request);
            }
            let left = until.map_or(at_most, |until| until.saturating_duration_since(Instant::now()));
            if left.is_zero() {
                return None;
            }
            // A request that is being written shows only by its number: check again soon. A withdrawn one returns under
            // another number.
            let written = seen != 0 && seen != self.page.load(AT_ANSWERED) && self.page.load(AT_OF_REQUEST) != 0;
            self.page.sleep(AT_REQUEST, seen, if written { left.min(Duration::from_millis(1)) } else { left });
        }
    }

    /// Shows that a request was accepted, while there is no progress to report yet.
    fn acknowledge(&self, number: u32) {
        if self.page.load(AT_TAKEN) != number {
            self.page.store(AT_PERCENT, UNREPORTED_32);
            self.page.store_long(AT_LEFT, UNREPORTED);
            self.page.store(AT_TAKEN, number);
        }
    }

    fn answer(&self, number: u32, answer: u32) {
        self.page.store(AT_ANSWER, answer);
        // Written last: from here on the agent reads the rest.
        self.page.store(AT_ANSWERED, number);
        self.page.wake(AT_ANSWERED);
    }
}

impl Request<'_> {
    /// Reports the progress in percent, and the remaining time. Only for people: the deadline does not change.
    pub fn progress(&self, percent: u32, left: Option<Duration>) {
        let page = &self.listener.page;
        let left = left.map_or(UNREPORTED, |left| u64::try_from(left.as_millis()).unwrap_or(UNREPORTED));
        page.store(AT_PERCENT, if percent <= 100 { percent } else { UNREPORTED_32 });
        page.store_long(AT_LEFT, left);
        page.store(AT_TAKEN, self.number);
    }

    /// Reports that everything of this node is written.
    pub fn done(self, what: Done) {
        let page = &self.listener.page;
        page.store_long(AT_STEP, what.step.unwrap_or(UNREPORTED));
        page.store_long(AT_FILES, what.files.unwrap_or(UNREPORTED));
        page.store_long(AT_SAVED_BYTES, what.bytes.unwrap_or(UNREPORTED));
        page.store_long(AT_TIME, what.time_seconds.unwrap_or_default().to_bits());
        page.store(AT_TIME_SET, what.time_seconds.is_some().into());
        self.listener.answer(self.number, DONE);
    }

    /// Reports that the work cannot be saved: the previous checkpoint stays, and the work continues.
    pub fn failed(self, why: &str) {
        self.listener.page.put_text(AT_REASON, REASON_BYTES, why);
        self.listener.answer(self.number, FAILED);
    }

    /// Requests to be asked again after this time: five minutes at most for all deferrals of one checkpoint together.
    pub fn defer(self, time: Duration) {
        self.listener.page.store_long(AT_DEFERRAL, u64::try_from(time.as_millis()).unwrap_or(UNREPORTED));
        self.listener.answer(self.number, DEFERRED);
    }
}

#[cfg(test)]
mod tests;

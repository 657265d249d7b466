//! For applications that run under Lattice: being asked to save themselves, through shared memory (`--checkpoint=shmem`).
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
//! Asking costs two loads from memory and no call of the system. Run again, the program finds what it saved in the directory that
//! `$LATTICE_RESTORE_FROM` names. [`layout`] has the page itself, for other languages; `include/lattice_checkpoint.h` is the same for
//! C, and `python/lattice_checkpoint.py` for Python.

pub mod layout;

mod ffi;
mod page;

use layout::{
    AT_ANSWER, AT_ANSWERED, AT_DEADLINE, AT_DEFERRAL, AT_FILES, AT_LEFT, AT_OF_REQUEST, AT_PERCENT, AT_REASON, AT_REQUEST, AT_SAVED_BYTES,
    AT_STEP, AT_TAKEN, AT_TIME, AT_TIME_TOLD, AT_TOKEN, DEFERRED, DONE, FAILED, REASON_BYTES, TOKEN_BYTES, UNSAID, UNSAID_32,
};
use page::Page;
use std::env;
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Hears requests for as long as it lives: the agent asks only where somebody does.
#[derive(Debug)]
pub struct Listener {
    page: Page,
    directory: PathBuf,
}

/// What is asked for. Not answered, it is asked for again.
#[derive(Debug)]
pub struct Request<'a> {
    /// The name of the directory, new with each request.
    pub token: String,
    /// Into which all is to be saved: it is there. One for each node.
    pub directory: PathBuf,
    /// By when, in milliseconds since 1970; the agent waits half as long again.
    pub deadline_ms: u64,
    number: u32,
    listener: &'a Listener,
}

/// What was saved. What is told is compared with what lies there, and makes the checkpoint fail where it differs.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Done {
    /// The step, the same on all nodes.
    pub step: Option<u64>,
    /// The time of what is simulated, in seconds, 0 to 1e28: beside the step or instead of it.
    pub time_seconds: Option<f64>,
    /// How many files.
    pub files: Option<u64>,
    /// How many bytes they have together.
    pub bytes: Option<u64>,
}

impl Listener {
    /// As the environment says; `None` where nothing there asks for checkpoints in shared memory: outside of Lattice, for one.
    ///
    /// # Errors
    /// Where the page cannot be opened, or has another layout than this library knows.
    pub fn from_env() -> io::Result<Option<Self>> {
        match (env::var_os("LATTICE_CHECKPOINT_SHM"), env::var_os("LATTICE_CHECKPOINT_DIR")) {
            (Some(page), Some(directory)) => Self::open(Path::new(&page), Path::new(&directory)).map(Some),
            (None, _) | (_, None) => Ok(None),
        }
    }

    /// Opens the page and says to the agent that somebody listens.
    ///
    /// # Errors
    /// As [`Self::from_env`].
    pub fn open(page: &Path, directory: &Path) -> io::Result<Self> {
        Ok(Self { page: Page::open(page)?, directory: directory.to_owned() })
    }

    /// The request that stands, if one does. Two loads where none does.
    pub fn asked(&self) -> Option<Request<'_>> {
        let number = self.page.load(AT_REQUEST);
        if number == 0 || number == self.page.load(AT_ANSWERED) {
            return None;
        }
        // While the agent writes the next one the numbers differ: it is found a moment later.
        let of = self.page.load(AT_OF_REQUEST);
        let deadline_ms = self.page.load_long(AT_DEADLINE);
        let token = self.page.text(AT_TOKEN, TOKEN_BYTES);
        if of != number || self.page.load(AT_OF_REQUEST) != number || self.page.load(AT_REQUEST) != number {
            return None;
        }
        // A name, and no way out of the directory, whatever somebody wrote there.
        let token = token.filter(|token| !token.is_empty() && token.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-'))?;
        self.acknowledge(number);
        Some(Request { directory: self.directory.join(&token), token, deadline_ms, number, listener: self })
    }

    /// Waits for one, so long at most.
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
            // One that is being written shows by its number only: it is looked for again soon. One that was withdrawn comes back under
            // another number.
            let written = seen != 0 && seen != self.page.load(AT_ANSWERED) && self.page.load(AT_OF_REQUEST) != 0;
            self.page.sleep(AT_REQUEST, seen, if written { left.min(Duration::from_millis(1)) } else { left });
        }
    }

    /// Says that a request was heard, where it says no more of it yet.
    fn acknowledge(&self, number: u32) {
        if self.page.load(AT_TAKEN) != number {
            self.page.store(AT_PERCENT, UNSAID_32);
            self.page.store_long(AT_LEFT, UNSAID);
            self.page.store(AT_TAKEN, number);
        }
    }

    fn answer(&self, number: u32, answer: u32) {
        self.page.store(AT_ANSWER, answer);
        // Last: from here on the agent reads the rest.
        self.page.store(AT_ANSWERED, number);
        self.page.wake(AT_ANSWERED);
    }
}

impl Request<'_> {
    /// Says how far it is, of 100, and how long it will take yet. For people: the deadline stays.
    pub fn progress(&self, percent: u32, left: Option<Duration>) {
        let page = &self.listener.page;
        let left = left.map_or(UNSAID, |left| u64::try_from(left.as_millis()).unwrap_or(UNSAID));
        page.store(AT_PERCENT, if percent <= 100 { percent } else { UNSAID_32 });
        page.store_long(AT_LEFT, left);
        page.store(AT_TAKEN, self.number);
    }

    /// All of this node is written.
    pub fn done(self, what: Done) {
        let page = &self.listener.page;
        page.store_long(AT_STEP, what.step.unwrap_or(UNSAID));
        page.store_long(AT_FILES, what.files.unwrap_or(UNSAID));
        page.store_long(AT_SAVED_BYTES, what.bytes.unwrap_or(UNSAID));
        page.store_long(AT_TIME, what.time_seconds.unwrap_or_default().to_bits());
        page.store(AT_TIME_TOLD, what.time_seconds.is_some().into());
        self.listener.answer(self.number, DONE);
    }

    /// It cannot be saved: the checkpoint before this one stays, and the work runs on.
    pub fn failed(self, why: &str) {
        self.listener.page.put_text(AT_REASON, REASON_BYTES, why);
        self.listener.answer(self.number, FAILED);
    }

    /// Asks to be asked again after so long: five minutes at most, all deferrals of one checkpoint together.
    pub fn defer(self, time: Duration) {
        self.listener.page.store_long(AT_DEFERRAL, u64::try_from(time.as_millis()).unwrap_or(UNSAID));
        self.listener.answer(self.number, DEFERRED);
    }
}

#[cfg(test)]
mod tests;

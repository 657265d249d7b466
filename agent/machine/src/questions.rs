//! Asks questions that may never be answered, on helper threads.

use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;
use std::time::{Duration, Instant};

/// Helpers left behind at once: while this many have not returned, no new one is started.
const LEFT_BEHIND_MAX: usize = 8;
/// The same for helpers that ask on behalf of the node: more than the node has subjects, and each
/// subject has at most one helper. So one unreachable server with many mounts hides no other
/// problem.
const OF_NODE_MAX: usize = 64;

/// Helpers of this process for ranks, for mounts of work, for the node's own mounts, its InfiniBand
/// adapters, and GPU drivers: each kind has its own limit, so that hanging helpers of one kind do
/// not block the others.
pub static OF_RANKS: Helpers = Helpers::new(LEFT_BEHIND_MAX);
pub static OF_MOUNTS: Helpers = Helpers::new(LEFT_BEHIND_MAX);
pub static OF_NODE: Helpers = Helpers::new(OF_NODE_MAX);
pub static OF_ADAPTERS: Helpers = Helpers::new(OF_NODE_MAX);
pub static OF_GPUS: Helpers = Helpers::new(LEFT_BEHIND_MAX);

/// Number of helpers that are asking, those left behind included, and its limit.
#[derive(Debug)]
pub struct Helpers {
    asking: AtomicUsize,
    max: usize,
}

/// How a question ended.
#[derive(Debug, PartialEq, Eq)]
pub enum Asked<T> {
    Answered(T),
    /// No answer in time. The helper keeps waiting, and ends when the answer comes.
    Silent,
    /// Too many helpers wait already.
    TooMany,
}

/// Counts one helper, until it is dropped.
struct Asking(&'static Helpers);

impl Drop for Asking {
    fn drop(&mut self) {
        self.0.asking.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Helpers {
    const fn new(max: usize) -> Self {
        Self { asking: AtomicUsize::new(0), max }
    }

    /// Asks on a thread of its own, and waits for the answer at most `within`.
    pub fn ask<T: Send + 'static>(&'static self, within: Duration, question: impl FnOnce() -> T + Send + 'static) -> Asked<T> {
        let before = self.asking.fetch_add(1, Ordering::Relaxed);
        let asking = Asking(self);
        if before >= self.max {
            return Asked::TooMany;
        }
        let (out, answer) = mpsc::sync_channel(1);
        let thread = std::thread::Builder::new().name("diagnosis".to_owned()).spawn(move || {
            let _asking = asking;
            // The caller may be gone.
            let _gone = out.send(question());
        });
        match thread {
            Ok(_) => answer.recv_timeout(within).map_or(Asked::Silent, Asked::Answered),
            Err(_) => Asked::TooMany,
        }
    }
}

/// How long a question waits for an earlier one to the same device.
const QUESTION_WAIT_MAX: Duration = Duration::from_secs(1);
/// Interval of the checks whether the earlier question was answered.
const POLL_INTERVAL: Duration = Duration::from_millis(10);

/// Devices with an outstanding question, and since when: they are not asked again meanwhile.
static ASKED: Mutex<BTreeMap<String, Instant>> = Mutex::new(BTreeMap::new());

/// An entry in [`ASKED`], until it is dropped.
pub struct Question(String);

impl Question {
    /// Waits for an earlier question to the same device; after `QUESTION_WAIT_MAX`, the error
    /// is the time at which the earlier question began.
    pub fn begin(device: &str) -> Result<Self, Instant> {
        loop {
            match ASKED.lock().entry(device.to_owned()) {
                Entry::Vacant(entry) => {
                    entry.insert(Instant::now());
                    return Ok(Self(device.to_owned()));
                }
                Entry::Occupied(entry) if entry.get().elapsed() >= QUESTION_WAIT_MAX => return Err(*entry.get()),
                Entry::Occupied(_) => {}
            }
            std::thread::sleep(POLL_INTERVAL);
        }
    }
}

impl Drop for Question {
    fn drop(&mut self) {
        ASKED.lock().remove(&self.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    static OWN: Helpers = Helpers::new(LEFT_BEHIND_MAX);

    #[test]
    fn a_silent_question_delays_nobody_and_waiting_ones_are_bounded() {
        assert_eq!(OWN.ask(Duration::from_secs(10), || 7), Asked::Answered(7));
        // The answer arrives a moment before the helper is counted out.
        while OWN.asking.load(Ordering::Relaxed) > 0 {
            std::thread::yield_now();
        }
        let mut hold = Vec::new();
        for _ in 0..LEFT_BEHIND_MAX {
            let (go, wait) = mpsc::channel::<()>();
            hold.push(go);
            assert_eq!(OWN.ask(Duration::from_millis(1), move || wait.recv().is_err()), Asked::Silent);
        }
        assert_eq!(OWN.ask(Duration::from_secs(10), || 7), Asked::TooMany);
        drop(hold);
        while OWN.asking.load(Ordering::Relaxed) > 0 {
            std::thread::yield_now();
        }
        assert_eq!(OWN.ask(Duration::from_secs(10), || 7), Asked::Answered(7));
    }

    #[test]
    fn a_second_question_to_one_mount_waits_for_the_first_and_gives_up_in_time() {
        let waits = || {
            let first = Question::begin("0:test").unwrap();
            let second = std::thread::spawn(|| Question::begin("0:test").is_ok());
            drop(first);
            second.join().unwrap()
        };
        // A machine that stalls may make the first one last too long.
        assert!((0..20).any(|_| waits()), "the second one does not wait");
        let silent = Question::begin("0:test").unwrap();
        assert!(Question::begin("0:test").is_err_and(|since| since.elapsed() >= QUESTION_WAIT_MAX));
        drop(silent);
    }
}

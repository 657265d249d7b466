//! Asking what may never answer.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;
use std::time::Duration;

/// Helpers that may be left behind at once: while so many have not come back, nobody new is sent.
const LEFT_BEHIND_MAX: usize = 8;

/// Those of this process that ask for ranks, for mounts of work, for the node's own mounts, and GPUs' drivers: who hangs in one takes no
/// place of another's.
pub static OF_RANKS: Helpers = Helpers(AtomicUsize::new(0));
pub static OF_MOUNTS: Helpers = Helpers(AtomicUsize::new(0));
pub static OF_NODE: Helpers = Helpers(AtomicUsize::new(0));
pub static OF_GPUS: Helpers = Helpers(AtomicUsize::new(0));

/// How many are asking, those left behind among them.
#[derive(Debug)]
pub struct Helpers(AtomicUsize);

/// How a question ended.
#[derive(Debug, PartialEq, Eq)]
pub enum Asked<T> {
    Answered(T),
    /// It did not answer in time. Whoever asked waits on, and ends when it does.
    Silent,
    /// Too many wait already.
    TooMany,
}

/// Counts one that asks, until it is dropped.
struct Asking(&'static Helpers);

impl Drop for Asking {
    fn drop(&mut self) {
        self.0.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Helpers {
    /// Asks on a thread of its own, and waits so long for it.
    pub fn ask<T: Send + 'static>(&'static self, within: Duration, question: impl FnOnce() -> T + Send + 'static) -> Asked<T> {
        let before = self.0.fetch_add(1, Ordering::Relaxed);
        let asking = Asking(self);
        if before >= LEFT_BEHIND_MAX {
            return Asked::TooMany;
        }
        let (out, answer) = mpsc::sync_channel(1);
        let thread = std::thread::Builder::new().name("diagnosis".to_owned()).spawn(move || {
            let _asking = asking;
            // Nobody may be there any more.
            let _gone = out.send(question());
        });
        match thread {
            Ok(_) => answer.recv_timeout(within).map_or(Asked::Silent, Asked::Answered),
            Err(_) => Asked::TooMany,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    static OWN: Helpers = Helpers(AtomicUsize::new(0));

    #[test]
    fn who_does_not_answer_holds_nobody_up_and_only_so_many_wait() {
        assert_eq!(OWN.ask(Duration::from_secs(10), || 7), Asked::Answered(7));
        // It answers a moment before it is gone.
        while OWN.0.load(Ordering::Relaxed) > 0 {
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
        while OWN.0.load(Ordering::Relaxed) > 0 {
            std::thread::yield_now();
        }
        assert_eq!(OWN.ask(Duration::from_secs(10), || 7), Asked::Answered(7));
    }
}

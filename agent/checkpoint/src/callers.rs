//! Calls in which the work waits for a checkpoint request (`--checkpoint=grpc`), and its answers.
//!
//! None of this outlives the agent: the work calls again, and an answer is written to the
//! allocation's directory before the work gets its acknowledgement.

use lattice_model::{AllocationId, Epoch};
use lattice_node::Progress;
use parking_lot::{Mutex, MutexGuard};
use std::collections::BTreeMap;
use std::sync::Arc;
use thiserror::Error;
use tokio::sync::{OwnedMutexGuard, watch};

/// Largest number of waiting calls of one allocation on this node.
const WAITING_MAX: usize = 64;

/// Largest number of answers of one allocation on this node that are being written, or wait for that.
const ANSWERS_MAX: usize = 8;

/// A request to the work.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Asked {
    pub token: String,
    pub deadline_ms: u64,
}

/// An allocation under one claim.
type Key = (AllocationId, Epoch);

/// The callers of all allocations on this node. All clones share them.
#[derive(Clone, Default)]
pub struct Callers(Arc<Mutex<BTreeMap<Key, Called>>>);

/// The calls of one allocation.
struct Called {
    /// Number of waiting calls.
    waiting: watch::Sender<usize>,
    /// The present request.
    asked: watch::Sender<Option<Asked>>,
    /// The work's progress with it.
    progress: Option<Progress>,
    /// The token of the last request, if it was withdrawn without an answer.
    given_up: Option<String>,
    /// Lock: one answer is written at a time.
    turn: Arc<tokio::sync::Mutex<()>>,
}

impl Default for Called {
    fn default() -> Self {
        Self { waiting: watch::channel(0).0, asked: watch::channel(None).0, progress: None, given_up: None, turn: Arc::default() }
    }
}

impl Callers {
    fn of(&self) -> MutexGuard<'_, BTreeMap<Key, Called>> {
        self.0.lock()
    }

    /// Registers a waiting call, until the result is dropped; `None`: too many calls wait already.
    pub fn wait(&self, key: Key) -> Option<Waiting> {
        let mut all = self.of();
        let called = all.entry(key).or_default();
        if *called.waiting.borrow() >= WAITING_MAX {
            return None;
        }
        called.waiting.send_modify(|number| *number += 1);
        Some(Waiting { callers: self.clone(), key, asked: called.asked.subscribe() })
    }

    /// Waits until this answer may be written; `None`: too many answers wait already.
    pub async fn lock_answers(&self, key: Key) -> Option<OwnedMutexGuard<()>> {
        let turn = Arc::clone(&self.of().entry(key).or_default().turn);
        // The map has one reference, this call one, and each other call one.
        if Arc::strong_count(&turn) > ANSWERS_MAX + 1 {
            return None;
        }
        Some(turn.lock_owned().await)
    }

    /// The number of waiting calls, as a watch.
    pub fn waiting(&self, key: Key) -> watch::Receiver<usize> {
        self.of().entry(key).or_default().waiting.subscribe()
    }

    /// Sends the request to all calls that wait now or later, until the result is dropped.
    pub fn ask(&self, key: Key, asked: Asked) -> Asking {
        let mut all = self.of();
        let called = all.entry(key).or_default();
        (called.progress, called.given_up) = (None, None);
        called.asked.send_replace(Some(asked.clone()));
        Asking { callers: self.clone(), key, asked }
    }

    /// The refusal of an answer to a withdrawn request; `None`: the request was not withdrawn.
    pub fn given_up(&self, key: Key, token: &str) -> Option<Unasked> {
        let all = self.of();
        let over = all.get(&key).is_some_and(|called| called.given_up.as_deref() == Some(token));
        over.then(|| Unasked::of(token))
    }

    /// The answer to this token has been written: the token is no longer asked for.
    pub fn answered(&self, key: Key, token: &str) {
        if let Some(called) = self.of().get(&key) {
            called.asked.send_if_modified(|now| now.as_ref().is_some_and(|asked| asked.token == token) && now.take().is_some());
        }
    }

    /// Stores the work's progress with this token.
    pub fn progresses(&self, key: Key, token: &str, progress: Progress) -> Result<(), Unasked> {
        present(self.of().get_mut(&key), token)?.progress = Some(progress);
        Ok(())
    }

    /// The work's last progress.
    pub fn progress(&self, key: Key) -> Option<Progress> {
        self.of().get(&key).and_then(|called| called.progress)
    }

    /// Forgets an allocation that has ended here.
    pub fn forget(&self, key: Key) {
        self.of().remove(&key);
    }

    /// Removes an entry without waiting calls, a request, a withdrawn request or a pending answer.
    fn tidy(&self, key: Key) {
        let mut all = self.of();
        let idle = |called: &Called| {
            let waited_for = *called.waiting.borrow() > 0 || called.waiting.receiver_count() > 0;
            !waited_for && Arc::strong_count(&called.turn) == 1 && called.asked.borrow().is_none() && called.given_up.is_none()
        };
        if all.get(&key).is_some_and(idle) {
            all.remove(&key);
        }
    }
}

fn present<'a>(called: Option<&'a mut Called>, token: &str) -> Result<&'a mut Called, Unasked> {
    let asks = |called: &Called| called.asked.borrow().as_ref().is_some_and(|asked| asked.token == token);
    called.filter(|called| asks(called)).ok_or_else(|| Unasked::of(token))
}

/// An answer or progress is refused, because there is no request with this token.
#[derive(Debug, PartialEq, Eq, Error)]
#[error("there is no request {token:?} now: it was answered or given up, or belongs to another round")]
pub struct Unasked {
    token: String,
}

impl Unasked {
    /// `token`: as the caller sent it, of any length; only its first 80 characters are kept.
    pub fn of(token: &str) -> Self {
        Self { token: token.chars().take(80).collect() }
    }
}

/// A registered waiting call.
pub struct Waiting {
    callers: Callers,
    key: Key,
    /// The present request, as a watch.
    pub asked: watch::Receiver<Option<Asked>>,
}

impl Drop for Waiting {
    fn drop(&mut self) {
        if let Some(called) = self.callers.of().get(&self.key) {
            called.waiting.send_modify(|number| *number = number.saturating_sub(1));
        }
        self.callers.tidy(self.key);
    }
}

/// A request to the waiting calls; dropping it withdraws the request.
pub struct Asking {
    callers: Callers,
    key: Key,
    asked: Asked,
}

impl Drop for Asking {
    fn drop(&mut self) {
        if let Some(called) = self.callers.of().get_mut(&self.key)
            && called.asked.send_if_modified(|now| now.as_ref() == Some(&self.asked) && now.take().is_some())
        {
            called.given_up = Some(self.asked.token.clone());
        }
        self.callers.tidy(self.key);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key() -> Key {
        ("1f0c9a4e-5b7d-4c39-9a54-0f3c2b1d7e88".parse().unwrap(), Epoch(3))
    }

    fn asked(token: &str) -> Asked {
        Asked { token: token.to_owned(), deadline_ms: 1 }
    }

    #[test]
    fn a_withdrawn_request_accepts_no_answer() {
        let callers = Callers::default();
        let progress = Progress { percent: Some(5), left_ms: None };
        assert!(callers.progresses(key(), "a", progress).is_err());
        let asking = callers.ask(key(), asked("a"));
        callers.progresses(key(), "a", progress).unwrap();
        assert_eq!((callers.progress(key()), callers.given_up(key(), "a")), (Some(progress), None));
        let later = callers.ask(key(), asked("b"));
        drop(asking);
        assert!(callers.progresses(key(), "b", progress).is_ok(), "dropping an earlier request does not withdraw a later one");
        drop(later);
        assert!(callers.given_up(key(), "b").is_some());
        let answered = callers.ask(key(), asked("c"));
        callers.answered(key(), "c");
        drop(answered);
        assert!(callers.given_up(key(), "c").is_none() && callers.of().is_empty());
    }

    #[tokio::test]
    async fn answers_of_one_allocation_are_limited_and_do_not_delay_another() {
        let callers = Callers::default();
        let first = callers.lock_answers(key()).await.unwrap();
        let mut others: Vec<_> = (1..ANSWERS_MAX).map(|_| Box::pin(callers.lock_answers(key()))).collect();
        for other in &mut others {
            assert!(tokio::time::timeout(std::time::Duration::ZERO, other.as_mut()).await.is_err());
        }
        assert!(callers.lock_answers(key()).await.is_none());
        assert!(callers.lock_answers((key().0, Epoch(4))).await.is_some());
        drop(first);
        assert!(others.remove(0).await.is_some());
    }

    #[test]
    fn waiting_and_later_calls_get_the_request() {
        let callers = Callers::default();
        let counted = callers.waiting(key());
        let first = callers.wait(key()).unwrap();
        assert_eq!(*counted.borrow(), 1);
        let asking = callers.ask(key(), asked("a"));
        let second = callers.wait(key()).unwrap();
        assert!([&first, &second].iter().all(|w| *w.asked.borrow() == Some(asked("a"))));
        let more: Vec<Waiting> = (2..WAITING_MAX).map(|_| callers.wait(key()).unwrap()).collect();
        assert!(callers.wait(key()).is_none());
        drop((first, second, more, asking));
        assert_eq!(*counted.borrow(), 0);
    }
}

//! Reads of single allocations, several in one request.
//!
//! ```text
//!   read ──▶ fewer than FLIGHTS_MAX flights ──▶ a flight for it, at once ──▶ member ──▶ outcome of each read
//!        └─▶ else it waits ──▶ a flight comes back ──▶ the next request of that flight, with all that wait ─┘
//! ```
//!
//! An outcome is used only for a read that waited before the request was sent, so each read is as
//! linearizable as one alone. A flight is a task of its own: a reader that is dropped stops nothing.

use super::attempts::{CallError, NO_ANSWER};
use crate::wire::{ALLOCATIONS_ASKED_MAX, Refusal};
use lattice_model::Allocation;
use parking_lot::Mutex;
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::oneshot;
use tokio::time::{Instant, timeout_at};

/// Timeout of a read, from its call on.
const READ_TIMEOUT: Duration = Duration::from_secs(3);
/// The attempts of a request end this long before its last reader gives up, who so gets their
/// error. Also the shortest time for a request.
const ERROR_MARGIN: Duration = Duration::from_millis(50);
/// Largest number of requests under way.
const FLIGHTS_MAX: usize = 2;
/// Largest size of the keys in one request, in bytes. A longer key goes alone.
const KEYS_BYTES_MAX: usize = 64 * 1024;

/// The outcomes of the first reads in a request.
pub(super) type Outcomes = Vec<Result<Arc<Allocation>, Refusal>>;

/// The point reads of a client and its clones.
#[derive(Debug, Default)]
pub(super) struct PointReads(Mutex<Queue>);

#[derive(Debug, Default)]
struct Queue {
    /// The oldest first. Some flight takes each of them.
    waiting: VecDeque<Read>,
    /// How many flights there are, at most [`FLIGHTS_MAX`].
    flights: usize,
    /// Why the latest request got no answer; `None`: it got one.
    failure: Option<CallError>,
}

#[derive(Debug)]
struct Read {
    key: String,
    deadline: Instant,
    reader: oneshot::Sender<Result<Arc<Allocation>, CallError>>,
}

impl Read {
    fn answer(self, outcome: Result<Arc<Allocation>, CallError>) {
        // The reader may be gone.
        let _gone = self.reader.send(outcome);
    }
}

impl PointReads {
    /// The allocation that `key` names. `ask` requests the allocations with these keys, and retries
    /// for this long.
    pub(super) async fn find<F, Asked>(self: Arc<Self>, key: String, ask: F) -> Result<Arc<Allocation>, CallError>
    where
        F: Fn(Vec<String>, Duration) -> Asked + Send + Sync + 'static,
        Asked: Future<Output = Result<Outcomes, CallError>> + Send + 'static,
    {
        let (reader, outcome) = oneshot::channel();
        let deadline = Instant::now() + READ_TIMEOUT;
        if self.add(Read { key, deadline, reader }) {
            tokio::spawn(Arc::clone(&self).fly(ask));
        }
        match timeout_at(deadline, outcome).await {
            Ok(Ok(outcome)) => outcome,
            Ok(Err(_)) => Err(unanswered("this process is stopping")),
            Err(_) => Err(self.0.lock().failure.clone().unwrap_or_else(|| unanswered(NO_ANSWER))),
        }
    }

    /// Returns whether the caller starts a flight.
    fn add(&self, read: Read) -> bool {
        let mut queue = self.0.lock();
        queue.waiting.push_back(read);
        let starts = queue.flights < FLIGHTS_MAX;
        queue.flights += usize::from(starts);
        starts
    }

    /// Sends one request after another until no read waits.
    async fn fly<F, Asked>(self: Arc<Self>, ask: F)
    where
        F: Fn(Vec<String>, Duration) -> Asked + Send + Sync + 'static,
        Asked: Future<Output = Result<Outcomes, CallError>> + Send + 'static,
    {
        while let Some(batch) = self.next_batch() {
            let keys = batch.iter().map(|read| read.key.clone()).collect();
            let now = Instant::now();
            let left = batch.iter().map(|read| read.deadline.saturating_duration_since(now)).max().unwrap_or_default();
            let outcomes = ask(keys, left.saturating_sub(ERROR_MARGIN).max(ERROR_MARGIN)).await;
            self.settle(batch, outcomes);
        }
    }

    /// The reads of a flight's next request; `None`: none waits, and the flight is over.
    fn next_batch(&self) -> Option<Vec<Read>> {
        let mut queue = self.0.lock();
        let (mut batch, mut bytes) = (Vec::new(), 0);
        while let Some(read) = queue.waiting.pop_front() {
            if read.reader.is_closed() {
                continue;
            }
            bytes += read.key.len();
            if !batch.is_empty() && (bytes > KEYS_BYTES_MAX || batch.len() == ALLOCATIONS_ASKED_MAX) {
                queue.waiting.push_front(read);
                break;
            }
            batch.push(read);
        }
        if batch.is_empty() {
            queue.flights -= 1;
            return None;
        }
        Some(batch)
    }

    /// Answers the reads of a request. Those that the answer does not contain wait again.
    fn settle(&self, batch: Vec<Read>, outcomes: Result<Outcomes, CallError>) {
        let outcomes = match outcomes {
            // It would be asked again for ever.
            Ok(outcomes) if outcomes.is_empty() => Err(unanswered("a member answered something else")),
            outcomes => outcomes,
        };
        let mut reads = batch.into_iter();
        let failure = match outcomes {
            Ok(outcomes) => {
                // The outcomes come first in each pair, so that no read is lost where they end.
                for (outcome, read) in outcomes.into_iter().zip(reads.by_ref()) {
                    read.answer(outcome.map_err(CallError::from));
                }
                None
            }
            Err(error) => {
                reads.by_ref().for_each(|read| read.answer(Err(error.clone())));
                Some(error).filter(|error| matches!(error, CallError::Unavailable { .. }))
            }
        };
        let mut queue = self.0.lock();
        queue.failure = failure;
        reads.rev().for_each(|read| queue.waiting.push_front(read));
    }
}

fn unanswered(why: &str) -> CallError {
    CallError::Unavailable { why: why.to_owned() }
}

#[cfg(test)]
mod tests;

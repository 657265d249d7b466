//! Reads of single allocations, several in one request.
//!
//! ```text
//!   read ──▶ fewer than REQUESTS_AT_ONCE under way ──▶ a request for it, at once ──▶ member ──▶ outcome of each read
//!        ├─▶ else it waits ──▶ a request comes back ──▶ the next request, with all reads that wait ──┘
//!        └─▶ none comes back for WAIT_BEHIND_MAX ──▶ one request more, up to REQUESTS_IN_FLIGHT_MAX ──┘
//! ```
//!
//! An outcome is used only for reads that waited before the request was sent, so each read is as
//! linearizable as one alone. Reads of the same key are one key in a request. Tasks of their own send
//! the requests: a reader that is dropped stops nothing.
//!
//! Limitation: reads of a request fail together. If one record cannot be decoded here, the attempts of
//! its request use up the time of the other reads, so these are not repeated alone.

use super::attempts::{CallError, NO_ANSWER};
use crate::wire::{ALLOCATIONS_ASKED_MAX, Refusal};
use lattice_model::Allocation;
use parking_lot::Mutex;
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::oneshot;
use tokio::time::{Instant, timeout_at};

/// Timeout of a read, from its call on.
pub(super) const READ_TIMEOUT: Duration = Duration::from_secs(3);
/// The attempts of a request end this long before its last reader gives up, so that this reader gets
/// the error of the attempts. Also the shortest time for a request.
const ERROR_MARGIN: Duration = Duration::from_millis(50);
/// Number of requests under way above which reads wait.
const REQUESTS_AT_ONCE: usize = 2;
/// Longest wait of a read behind other requests, until one more is sent.
const WAIT_BEHIND_MAX: Duration = Duration::from_millis(250);
/// Largest number of requests under way. If none is answered, one more per [`WAIT_BEHIND_MAX`] makes
/// 14 within [`READ_TIMEOUT`].
const REQUESTS_IN_FLIGHT_MAX: usize = 16;
/// Largest number of reads that wait.
const READS_WAITING_MAX: usize = 16 * 1024;
/// Largest size of a key, in bytes. No job number or usual form of an id is longer.
const KEY_BYTES_MAX: usize = 64;

/// The outcomes of the first keys in a request.
pub(super) type Outcomes = Vec<Result<Arc<Allocation>, Refusal>>;

/// The keys of a request, each with its reads.
type Batch = Vec<(String, Vec<Read>)>;

/// The point reads of a client and its clones.
#[derive(Debug, Default)]
pub(super) struct PointReads(Mutex<Queue>);

#[derive(Debug, Default)]
struct Queue {
    /// The oldest first. A task that sends requests takes each of them.
    waiting: VecDeque<Read>,
    /// How many tasks send requests, each one at a time.
    in_flight: usize,
    /// Why the latest request got no answer; `None`: it got one.
    failure: Option<CallError>,
}

impl Queue {
    /// Returns whether the caller starts one more [`PointReads::send_requests`]: not above `most`.
    fn reserve_request(&mut self, most: usize) -> bool {
        let is_free = self.in_flight < most;
        self.in_flight += usize::from(is_free);
        is_free
    }
}

#[derive(Debug)]
struct Read {
    key: String,
    since: Instant,
    deadline: Instant,
    reply: oneshot::Sender<Result<Arc<Allocation>, CallError>>,
}

impl Read {
    fn answer(self, outcome: Result<Arc<Allocation>, CallError>) {
        // The reader may be gone.
        let _gone = self.reply.send(outcome);
    }
}

impl PointReads {
    /// The allocation that `key` names, within `limit`. `ask` requests the allocations with these
    /// keys, and retries for this long.
    pub(super) async fn find<F, Asked>(self: Arc<Self>, key: String, limit: Duration, ask: F) -> Result<Arc<Allocation>, CallError>
    where
        F: Fn(Vec<String>, Duration) -> Asked + Clone + Send + Sync + 'static,
        Asked: Future<Output = Result<Outcomes, CallError>> + Send + 'static,
    {
        if key.len() > KEY_BYTES_MAX {
            return Err(Refusal::NoSuchAllocation { key: key.chars().take(64).collect(), forgotten: None }.into());
        }
        let (reply, mut outcome) = oneshot::channel();
        let since = Instant::now();
        let deadline = since + limit;
        if self.add(Read { key, since, deadline, reply })? {
            tokio::spawn(Arc::clone(&self).send_requests(ask.clone()));
        }
        let mut answered = timeout_at(deadline.min(since + WAIT_BEHIND_MAX), &mut outcome).await;
        if answered.is_err() {
            if self.add_request() {
                tokio::spawn(Arc::clone(&self).send_requests(ask));
            }
            answered = timeout_at(deadline, outcome).await;
        }
        match answered {
            Ok(Ok(outcome)) => outcome,
            Ok(Err(_)) => Err(unanswered("this process is stopping")),
            Err(_) => Err(self.0.lock().failure.clone().unwrap_or_else(|| unanswered(NO_ANSWER))),
        }
    }

    /// Returns whether the caller starts [`Self::send_requests`] for this read.
    fn add(&self, read: Read) -> Result<bool, CallError> {
        let mut queue = self.0.lock();
        if queue.waiting.len() >= READS_WAITING_MAX {
            return Err(unanswered("too many reads are waiting"));
        }
        queue.waiting.push_back(read);
        Ok(queue.reserve_request(REQUESTS_AT_ONCE))
    }

    /// Returns whether the caller starts [`Self::send_requests`] because a read waits too long. A read
    /// in a request starts none for newer ones: requests without an answer would soon be
    /// [`REQUESTS_IN_FLIGHT_MAX`].
    fn add_request(&self) -> bool {
        let mut queue = self.0.lock();
        let waits_too_long = queue.waiting.front().is_some_and(|oldest| oldest.since.elapsed() >= WAIT_BEHIND_MAX);
        waits_too_long && queue.reserve_request(REQUESTS_IN_FLIGHT_MAX)
    }

    /// Sends one request after another until no read waits.
    async fn send_requests<F, Asked>(self: Arc<Self>, ask: F)
    where
        F: Fn(Vec<String>, Duration) -> Asked + Send + Sync + 'static,
        Asked: Future<Output = Result<Outcomes, CallError>> + Send + 'static,
    {
        while let Some(batch) = self.next_batch() {
            let keys = batch.iter().map(|(key, _)| key.clone()).collect();
            let now = Instant::now();
            let deadlines = batch.iter().flat_map(|(_, reads)| reads).map(|read| read.deadline);
            let left = deadlines.max().unwrap_or(now).saturating_duration_since(now);
            let outcomes = ask(keys, left.saturating_sub(ERROR_MARGIN).max(ERROR_MARGIN)).await;
            self.settle(batch, outcomes);
        }
    }

    /// The reads of the next request; `None`: none waits, and the task that sends requests ends.
    fn next_batch(&self) -> Option<Batch> {
        let mut queue = self.0.lock();
        let mut batch = Batch::new();
        let mut places = HashMap::new();
        while batch.len() < ALLOCATIONS_ASKED_MAX
            && let Some(read) = queue.waiting.pop_front()
        {
            if read.reply.is_closed() {
                continue;
            }
            let place = *places.entry(read.key.clone()).or_insert(batch.len());
            match batch.get_mut(place) {
                Some((_, reads)) => reads.push(read),
                None => batch.push((read.key.clone(), vec![read])),
            }
        }
        if batch.is_empty() {
            queue.in_flight -= 1;
            return None;
        }
        Some(batch)
    }

    /// Answers the reads of a request. Those that the answer does not contain wait again.
    fn settle(&self, batch: Batch, outcomes: Result<Outcomes, CallError>) {
        let outcomes = match outcomes {
            // An empty answer would repeat the request without end.
            Ok(outcomes) if outcomes.is_empty() => Err(unanswered("a member answered something else")),
            outcomes => outcomes,
        };
        let mut keys = batch.into_iter();
        let failure = match outcomes {
            Ok(outcomes) => {
                // The outcomes come first in each pair, so that no read is lost where they end.
                for (outcome, (_, reads)) in outcomes.into_iter().zip(keys.by_ref()) {
                    let outcome = outcome.map_err(CallError::from);
                    reads.into_iter().for_each(|read| read.answer(outcome.clone()));
                }
                None
            }
            Err(error) => {
                keys.by_ref().flat_map(|(_, reads)| reads).for_each(|read| read.answer(Err(error.clone())));
                Some(error).filter(|error| matches!(error, CallError::Unavailable { .. }))
            }
        };
        let mut queue = self.0.lock();
        queue.failure = failure;
        keys.rev().flat_map(|(_, reads)| reads.into_iter().rev()).for_each(|read| queue.waiting.push_front(read));
    }
}

fn unanswered(why: &str) -> CallError {
    CallError::Unavailable { why: why.to_owned() }
}

#[cfg(test)]
mod tests;

//! Sinks: each gets every record of the store, in order, at its own pace.
//!
//! ```text
//!   position ◀──store            the store's position counts, not what this agent remembers
//!      └──▶ the batch after it ◀──store
//!             └──▶ "this batch is being sent" ──▶ store, so that a repetition is the same batch
//!                    └──▶ batch ──▶ server or file, until it is accepted
//!                           └──▶ position after it ──▶ store
//! ```
//!
//! The agent with the lease `accounting` delivers. After a crash between two steps, the same batch is sent again with the
//! same identity. Each record has an identity too, so that a receiver can keep each record once. No record is skipped,
//! whatever the receiver answers.

mod file;
mod http;
mod record;

use crate::accounting::Accounting;
use crate::sink_progress::{SinkPosition, SinkStatus};
use crate::store::{Store, StoreError};
use file::FileSinkError;
use http::{HttpSink, HttpSinkError};
use lattice_agent_common::clock;
use lattice_agent_common::config::accounting::{AccountingSettings, FileSinkSettings};
use lattice_agent_common::node_problems::NodeProblems;
use lattice_model::ended_work::EndedWork;
use lattice_model::history::PAGE_LEN_MAX;
use lattice_model::{Backoff, Timestamp, with_causes};
use std::time::Duration;
use thiserror::Error;
use tokio_util::sync::CancellationToken;

/// How often the store is polled while there are no records.
const POLL_INTERVAL: Duration = Duration::from_secs(1);
/// Pauses after failures.
const PAUSES: Backoff = Backoff::new(Duration::from_secs(1), Duration::from_secs(60));

/// Why a batch was not delivered.
#[derive(Debug, Error)]
enum Failed {
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error(transparent)]
    Http(#[from] HttpSinkError),
    #[error(transparent)]
    File(#[from] FileSinkError),
    #[error("the task that writes the file ended early")]
    Writer(#[source] tokio::task::JoinError),
}

/// What follows a pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Next {
    /// More may be waiting.
    AtOnce,
    After(Duration),
}

enum Receiver {
    Http(HttpSink),
    File(FileSinkSettings),
}

impl Receiver {
    /// Its name in the store, in metrics and for people.
    fn kind(&self) -> &'static str {
        match self {
            Self::Http(_) => "http",
            Self::File(_) => "file",
        }
    }

    /// The subject of the node's problems.
    fn subject(&self) -> &'static str {
        match self {
            Self::Http(_) => "accounting.http_sink",
            Self::File(_) => "accounting.file_sink",
        }
    }

    fn target(&self) -> String {
        match self {
            Self::Http(sink) => sink.target(),
            Self::File(settings) => settings.path.display().to_string(),
        }
    }

    fn batch_records(&self) -> u32 {
        match self {
            Self::Http(sink) => sink.batch_records(),
            Self::File(_) => PAGE_LEN_MAX,
        }
    }

    /// `until`: the last number of the batch. Some of its records may have been corrected since.
    async fn deliver(&mut self, store: &Store, work: Vec<EndedWork>, until: u64) -> Result<(), Failed> {
        match self {
            Self::Http(sink) => Ok(sink.deliver(store.id(), &work).await?),
            Self::File(settings) => {
                let (path, rotate_bytes) = (settings.path.clone(), settings.rotate_mib << 20);
                let writing = tokio::task::spawn_blocking(move || file::append(&path, rotate_bytes, &work, until));
                Ok(writing.await.map_err(Failed::Writer)??)
            }
        }
    }
}

/// Delivers to one sink.
pub(crate) struct SinkTask {
    receiver: Receiver,
    accounting: Accounting,
    problems: NodeProblems,
    status: SinkStatus,
    /// The first waiting record if it is a correction: its number, and when this agent first saw it.
    waiting_correction: Option<(u64, Timestamp)>,
}

/// The sinks of these settings.
pub(crate) fn sinks(settings: &AccountingSettings, accounting: &Accounting, problems: &NodeProblems) -> Vec<SinkTask> {
    let http = (!settings.http_sink.url.is_empty()).then(|| Receiver::Http(HttpSink::new(settings.http_sink.clone())));
    let file = (!settings.file_sink.path.as_os_str().is_empty()).then(|| Receiver::File(settings.file_sink.clone()));
    let task = |receiver: Receiver| {
        let status = SinkStatus { kind: receiver.kind().to_owned(), target: receiver.target(), ..SinkStatus::default() };
        SinkTask { receiver, accounting: accounting.clone(), problems: problems.clone(), status, waiting_correction: None }
    };
    http.into_iter().chain(file).map(task).collect()
}

impl SinkTask {
    /// Delivers until `stop`, while this agent has the lease.
    pub(crate) async fn run(mut self, stop: CancellationToken) {
        let mut pauses = PAUSES;
        loop {
            let pause = match stop.run_until_cancelled(Box::pin(self.pass())).await {
                None => return,
                Some(Ok(next)) => {
                    pauses.reset();
                    match next {
                        Next::AtOnce => Duration::ZERO,
                        Next::After(pause) => pause,
                    }
                }
                Some(Err(failed)) => {
                    self.fail(&failed);
                    pauses.next_pause()
                }
            };
            if stop.run_until_cancelled(tokio::time::sleep(pause)).await.is_none() {
                return;
            }
        }
    }

    /// Delivers at most one batch.
    async fn pass(&mut self) -> Result<Next, Failed> {
        let kind = self.receiver.kind();
        let Some(store) = self.accounting.store().filter(|_| self.accounting.has_lease()) else {
            // Another agent has the lease, or no agent has it.
            self.accounting.set_sink(kind, None);
            self.problems.clear(self.receiver.subject());
            return Ok(Next::After(POLL_INTERVAL));
        };
        // Read before the records: a number up to this position without a record never gets one.
        let stored = store.position().await?;
        let position = store.sink_position(kind).await?;
        let is_repeated = position.sending > position.delivered;
        let (until, limit) = if is_repeated { (position.sending, PAGE_LEN_MAX) } else { (u64::MAX, self.receiver.batch_records()) };
        let work = store.work_after(position.delivered, until, limit).await?;
        let Some((since, last)) = work.first().map(|first| self.waits_since(first)).zip(work.last().map(|work| work.sequence)) else {
            let reached = if is_repeated { position.sending } else { stored.max(position.delivered) };
            let passed = SinkPosition { delivered: reached, sending: reached };
            if passed != position {
                store.move_sink(kind, position, passed).await?;
            }
            self.succeed(reached, stored, 0);
            return Ok(if is_repeated { Next::AtOnce } else { Next::After(POLL_INTERVAL) });
        };
        let sending = SinkPosition { sending: position.sending.max(last), ..position };
        if sending != position {
            store.move_sink(kind, position, sending).await?;
        }
        let lag_ms = clock::now().since_ms(since);
        self.show(position.delivered, stored, lag_ms);
        let count = work.len() as u64;
        self.receiver.deliver(&store, work, sending.sending).await?;
        store.move_sink(kind, sending, SinkPosition { delivered: last, ..sending }).await?;
        self.accounting.counts().record_delivered(kind, count);
        self.succeed(last, stored, lag_ms);
        Ok(Next::AtOnce)
    }

    /// Since when a record waits: since the end of its work. A correction, whose work may have ended long ago, waits since
    /// this agent first saw it.
    fn waits_since(&mut self, work: &EndedWork) -> Timestamp {
        if work.corrects.is_none() {
            return work.ended_at;
        }
        let known = self.waiting_correction.filter(|(sequence, _)| *sequence == work.sequence);
        self.waiting_correction.insert(known.unwrap_or_else(|| (work.sequence, clock::now()))).1
    }

    /// Publishes the progress of the sink. `lag_ms`: the age of the oldest record that it does not have.
    fn show(&mut self, delivered: u64, stored: u64, lag_ms: u64) {
        self.status.delivered = delivered;
        self.status.waiting = stored.saturating_sub(delivered);
        self.status.lag_ms = if self.status.waiting == 0 { 0 } else { lag_ms };
        self.accounting.set_sink(self.receiver.kind(), Some(self.status.clone()));
    }

    fn succeed(&mut self, delivered: u64, stored: u64, lag_ms: u64) {
        self.status.problem.clear();
        self.problems.clear(self.receiver.subject());
        self.show(delivered, stored, lag_ms);
    }

    fn fail(&mut self, failed: &Failed) {
        // Another agent delivered the batch at the same time: the next pass reads the position again.
        if let Failed::Store(StoreError::OtherWriter { .. }) = failed {
            return;
        }
        self.accounting.counts().record_undelivered(self.receiver.kind());
        let why = with_causes(failed);
        if self.status.problem != why {
            tracing::warn!(sink = self.receiver.kind(), %why, "records of ended work are not delivered; retrying");
        }
        self.problems.set(self.receiver.subject(), format!("records of ended work are not delivered, and wait in the store: {why}"));
        self.status.problem = why;
        self.accounting.set_sink(self.receiver.kind(), Some(self.status.clone()));
    }
}

#[cfg(test)]
mod tests;

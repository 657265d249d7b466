//! The handle on this agent's store, through which questions are asked.

use crate::counts::AccountingCounts;
use crate::sink_progress::SinkStatus;
use crate::statement::READERS_MAX;
use crate::store::{Store, StoreError};
use lattice_model::history::{HistoryPage, HistoryQuery};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use thiserror::Error;
use tokio::sync::Semaphore;
use tokio::time::{Instant, timeout};

/// How many questions are answered at once: one by each connection that reads. Each may hold a page of 2 MiB.
const QUESTIONS_MAX: usize = READERS_MAX as usize;
/// How long further questions wait for them.
const WAIT_MAX: Duration = Duration::from_secs(2);

/// Why a question is not answered by this agent.
#[derive(Debug, Error)]
pub enum NoHistory {
    /// The agent has no store.
    #[error("this agent has no store of ended work: it lacks the role accounting")]
    NotHere,
    /// The store could not be opened yet.
    #[error("the store of ended work is not open: {why}")]
    NotOpen { why: String },
    /// Too many questions at once.
    #[error("{QUESTIONS_MAX} long queries of ended work are running, which is the limit; try again later")]
    Busy,
    /// The database did not answer.
    #[error("the store of ended work does not answer: {0}")]
    Store(#[from] StoreError),
}

/// This agent's part of accounting. All clones share it. By default there is no store.
#[derive(Clone, Debug)]
pub struct Accounting {
    state: Arc<Mutex<State>>,
    questions: Arc<Semaphore>,
    counts: AccountingCounts,
}

#[derive(Debug, Default)]
struct State {
    has_role: bool,
    store: Option<Store>,
    problem: Option<String>,
    /// Until when this agent has the lease; `None`: it does not have it.
    lease_until: Option<Instant>,
    /// The sinks to which this agent delivers, by kind.
    sinks: BTreeMap<&'static str, SinkStatus>,
}

impl Default for Accounting {
    fn default() -> Self {
        let questions = Arc::new(Semaphore::new(QUESTIONS_MAX));
        Self { state: Arc::default(), questions, counts: AccountingCounts::default() }
    }
}

impl Accounting {
    /// The metrics of the role.
    pub fn counts(&self) -> &AccountingCounts {
        &self.counts
    }

    /// `sqlite` or `postgresql`; `None`: there is no store, or it was not opened yet.
    pub fn kind(&self) -> Option<&'static str> {
        self.state.lock().store.as_ref().map(Store::kind)
    }

    /// Why nothing is stored at present; `None`: nothing is wrong.
    pub fn problem(&self) -> Option<String> {
        self.state.lock().problem.clone()
    }

    /// The sinks to which this agent delivers.
    pub fn sinks(&self) -> Vec<SinkStatus> {
        self.state.lock().sinks.values().cloned().collect()
    }

    /// Answers a question with one page.
    ///
    /// # Errors
    /// [`NoHistory`]: this agent cannot answer it now.
    pub async fn query(&self, query: &HistoryQuery) -> Result<HistoryPage, NoHistory> {
        let store = {
            let state = self.state.lock();
            match &state.store {
                Some(store) => store.clone(),
                None if state.has_role => {
                    let why = state.problem.clone().unwrap_or_else(|| "its agent has just started".to_owned());
                    return Err(NoHistory::NotOpen { why });
                }
                None => return Err(NoHistory::NotHere),
            }
        };
        // The semaphore is never closed.
        let Ok(Ok(_permit)) = timeout(WAIT_MAX, self.questions.acquire()).await else { return Err(NoHistory::Busy) };
        Ok(store.query(query).await?)
    }

    /// This agent has the role from now on.
    pub(crate) fn begin(&self) {
        self.state.lock().has_role = true;
        self.counts.begin();
    }

    pub(crate) fn store(&self) -> Option<Store> {
        self.state.lock().store.clone()
    }

    pub(crate) fn set_store(&self, store: &Store) {
        self.state.lock().store = Some(store.clone());
    }

    /// `until`: when the lease ends unless it is renewed; `None`: this agent does not have it.
    pub(crate) fn set_lease(&self, until: Option<Instant>) {
        self.state.lock().lease_until = until;
    }

    pub(crate) fn has_lease(&self) -> bool {
        self.state.lock().lease_until.is_some_and(|until| Instant::now() < until)
    }

    /// Sets the status of a sink; `None`: another agent delivers.
    pub(crate) fn set_sink(&self, kind: &'static str, status: Option<SinkStatus>) {
        self.counts.set_lag(kind, status.as_ref().map(|status| status.lag_ms));
        let mut state = self.state.lock();
        match status {
            Some(status) => state.sinks.insert(kind, status),
            None => state.sinks.remove(kind),
        };
    }

    pub(crate) fn set_problem(&self, problem: Option<String>) {
        self.state.lock().problem = problem;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::question::tests::query;
    use crate::store::tests::Directory;

    #[tokio::test]
    async fn a_question_waits_while_others_are_being_answered() {
        let directory = Directory::new();
        let accounting = Accounting::default();
        accounting.set_store(&directory.open().await.unwrap());
        let taken = accounting.questions.clone().acquire_many_owned(READERS_MAX).await.unwrap();
        let another = accounting.clone();
        let waiting = tokio::spawn(async move { another.query(&query()).await });
        tokio::task::yield_now().await;
        assert!(!waiting.is_finished());
        drop(taken);
        assert_eq!(waiting.await.unwrap().unwrap().work, []);
    }
}

//! Copies ended work from the ledger into the store, in one pass after another.
//!
//! ```text
//!   position ◀──store              what the store has decides, not what this agent remembers
//!      └──▶ ended work after it ◀──ledger
//!             └──▶ batch and position, one transaction ──▶ store
//!                    └──▶ Account: up to here ──▶ ledger, which forgets it
//! ```
//!
//! After a crash between two steps, the next pass reads the position again and continues there. If the answer to a batch
//! is lost, the position is read again, and the records that the store has are confirmed before more is written.

use crate::accounting::Accounting;
use crate::ledger::{LEASE_TTL, Ledger};
use crate::store::{Store, StoreError};
use lattice_agent_common::config::accounting::{AccountingSettings, AccountingSettingsError};
use lattice_agent_common::node_problems::NodeProblems;
use lattice_model::Backoff;
use lattice_model::ended_work::AccountedUntil;
use lattice_quorum_client::CallError;
use lattice_quorum_client::wire::{EndedWorkPage, Refusal};
use std::time::Duration;
use thiserror::Error;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

/// How often the ledger is polled while there is no ended work.
const POLL_INTERVAL: Duration = Duration::from_secs(1);
/// How often an agent without the lease requests it, and an agent with another store checks again.
const STANDBY_INTERVAL: Duration = Duration::from_secs(5);
/// The interval between renewals of the lease.
const RENEW_INTERVAL: Duration = Duration::from_secs(5);
/// After this many failures of the store in a row, and each time that their number has doubled, the agent releases the
/// lease for [`HANDOVER`], because another agent may reach the store.
const HANDOVER_FAILURES: u32 = 4;
/// How long a released lease is left to others, who request it every [`STANDBY_INTERVAL`].
const HANDOVER: Duration = Duration::from_secs(12);
/// Pauses after failures.
const PAUSES: Backoff = Backoff::new(Duration::from_secs(1), Duration::from_secs(60));
/// The subjects of the node's problems.
const PROBLEM: &str = "accounting";
const OLD_COPY: &str = "accounting store";

/// Why a pass failed.
#[derive(Debug, Error)]
enum Failed {
    #[error(transparent)]
    Settings(#[from] AccountingSettingsError),
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error(transparent)]
    Quorum(#[from] CallError),
}

/// A lease of this agent.
#[derive(Clone, Copy, Debug)]
struct Lease {
    token: u64,
    renew_at: Instant,
    /// When it ends without a renewal, counted from when it was requested.
    until: Instant,
}

/// What follows a pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Next {
    /// More is waiting.
    AtOnce,
    After(Duration),
}

pub(crate) struct Follower<L> {
    ledger: L,
    settings: AccountingSettings,
    accounting: Accounting,
    problems: NodeProblems,
    lease: Option<Lease>,
    /// The store's position; `None`: it must be read.
    position: Option<u64>,
    /// Whether the store failed and must be opened again.
    has_failed: bool,
    /// Whether the ledger refused the store, which must then be opened again before the lease is requested.
    is_refused: bool,
    /// How often in a row the store failed.
    store_failures: u32,
}

impl<L: Ledger> Follower<L> {
    pub(crate) fn new(ledger: L, settings: AccountingSettings, accounting: Accounting, problems: NodeProblems) -> Self {
        accounting.begin();
        Self {
            ledger,
            settings,
            accounting,
            problems,
            lease: None,
            position: None,
            has_failed: false,
            is_refused: false,
            store_failures: 0,
        }
    }

    /// Runs until `stop`, then releases the lease.
    pub(crate) async fn run(mut self, stop: CancellationToken) {
        let mut pauses = PAUSES;
        loop {
            let pause = match stop.run_until_cancelled(self.pass()).await {
                None => break,
                Some(Ok(next)) => {
                    pauses.reset();
                    self.store_failures = 0;
                    self.report(None);
                    match next {
                        Next::AtOnce => Duration::ZERO,
                        Next::After(pause) => pause,
                    }
                }
                Some(Err(failed)) => self.fail(&failed).await.max(pauses.next_pause()),
            };
            if stop.run_until_cancelled(self.wait(pause)).await.is_none() {
                break;
            }
        }
        self.release().await;
    }

    /// Waits, and keeps the lease: people ask its holder about problems.
    async fn wait(&mut self, pause: Duration) {
        let end = Instant::now() + pause;
        while let Some(lease) = self.lease.filter(|lease| lease.renew_at < end) {
            tokio::time::sleep_until(lease.renew_at).await;
            if self.hold_lease().await.is_err() {
                break;
            }
        }
        tokio::time::sleep_until(end).await;
    }

    /// One pass.
    async fn pass(&mut self) -> Result<Next, Failed> {
        let mut store = match self.accounting.store() {
            Some(store) if !self.is_refused => store,
            Some(_) | None => self.open().await?,
        };
        let now = Instant::now();
        if self.lease.is_none_or(|lease| lease.until <= now) {
            // An agent with another store does not take the lease from the one with the right store.
            let known = self.ledger.ended_work(u64::MAX).await?.accounted;
            if let Some(other) = known.filter(|until| until.store != store.id()) {
                return Err(CallError::Refused(Refusal::OtherStore { store: other.store }).into());
            }
        }
        if self.lease.is_none_or(|lease| lease.renew_at <= now) {
            self.hold_lease().await?;
        }
        let Some(lease) = self.lease else { return Ok(Next::After(STANDBY_INTERVAL)) };
        if self.has_failed {
            store = self.open().await?;
        }
        let position = match self.position {
            Some(position) => position,
            None => store.position().await?,
        };
        self.position = Some(position);
        let page = self.ledger.ended_work(position).await?;
        let Some(mut accounted) = page.accounted.filter(|until| until.store == store.id()) else {
            // From now on the ledger keeps ended work. It refuses another store here.
            let until = AccountedUntil { store: store.id(), sequence: position };
            self.ledger.account(until, lease.token).await?;
            tracing::info!(store = %store.id(), sequence = position, "ended work goes into this store from now on");
            return Ok(Next::AtOnce);
        };
        if position > accounted.sequence {
            // Confirmed before the next batch, which may outlast the lease: otherwise a slow database is never confirmed.
            accounted.sequence = position;
            self.ledger.account(accounted, lease.token).await?;
        } else if position < accounted.sequence {
            // The page may be newer than the position: another agent with this store had the lease in between.
            let now = store.position().await?;
            if now != position {
                self.position = Some(now);
                return Ok(Next::AtOnce);
            }
            self.report_old_copy(position, accounted.sequence);
        }
        let reached = self.append(&store, position, &page).await?;
        if reached > accounted.sequence {
            self.ledger.account(AccountedUntil { store: store.id(), sequence: reached }, lease.token).await?;
        }
        Ok(if reached < page.ended { Next::AtOnce } else { Next::After(POLL_INTERVAL) })
    }

    /// Writes a page; returns the store's position after it.
    async fn append(&mut self, store: &Store, position: u64, page: &EndedWorkPage) -> Result<u64, Failed> {
        // A number that is neither in the page nor in the store has no record, because its work ended before there was a
        // store, or the ledger dropped it.
        let reached = page.work.last().map_or(page.ended, |last| last.sequence);
        if reached > position {
            store.append(position, &page.work, reached).await?;
            self.position = Some(reached);
            self.accounting.counts().record_stored(page.work.len() as u64);
        }
        Ok(reached.max(position))
    }

    /// Opens the store. Until that succeeds, the store that was open before answers queries.
    async fn open(&mut self) -> Result<Store, Failed> {
        let store = Box::pin(Store::open(&self.settings.address()?, &self.settings.password_file)).await?;
        self.accounting.set_store(&store);
        (self.has_failed, self.is_refused) = (false, false);
        tracing::info!(store = %store.id(), kind = store.kind(), "the accounting store is open");
        Ok(store)
    }

    async fn hold_lease(&mut self) -> Result<(), CallError> {
        let asked_at = Instant::now();
        let held = self.lease.filter(|lease| asked_at < lease.until).map(|lease| lease.token);
        let token = self.ledger.hold_lease(held).await?;
        if token != held {
            // Another agent may have written since.
            self.position = None;
        }
        self.set_lease(token.map(|token| Lease { token, renew_at: asked_at + RENEW_INTERVAL, until: asked_at + LEASE_TTL }));
        Ok(())
    }

    fn set_lease(&mut self, lease: Option<Lease>) {
        self.lease = lease;
        self.accounting.set_lease(lease.map(|lease| lease.until));
    }

    async fn release(&mut self) {
        if let Some(lease) = self.lease {
            self.set_lease(None);
            self.ledger.release_lease(lease.token).await;
        }
    }

    /// Reports a failure; returns how long to pause at least. An agent whose store is refused releases the lease, because
    /// another agent may have the right store.
    async fn fail(&mut self, failed: &Failed) -> Duration {
        self.position = None;
        self.accounting.counts().record_failure();
        let mut pause = Duration::ZERO;
        match failed {
            // `Malformed`: the store belongs to another cluster.
            Failed::Quorum(CallError::Refused(Refusal::OtherStore { .. } | Refusal::FormerStore { .. } | Refusal::Malformed { .. })) => {
                self.is_refused = true;
                self.release().await;
            }
            Failed::Quorum(CallError::Refused(Refusal::StaleLease { .. })) => self.set_lease(None),
            // The other agent has stored the batch.
            Failed::Store(StoreError::OtherWriter { .. }) => {}
            Failed::Store(_) => {
                self.has_failed = true;
                self.store_failures = self.store_failures.saturating_add(1);
                if self.store_failures >= HANDOVER_FAILURES && self.store_failures.is_power_of_two() {
                    self.release().await;
                    pause = HANDOVER;
                }
            }
            Failed::Quorum(_) | Failed::Settings(_) => {}
        }
        let text = match failed {
            Failed::Quorum(CallError::Refused(refusal)) => match refusal.remedy() {
                Some(remedy) => format!("{refusal}: {remedy}"),
                None => refusal.to_string(),
            },
            other => other.to_string(),
        };
        let why = format!("ended work is not stored, and waits in the quorum: {text}");
        if self.accounting.problem().as_ref() != Some(&why) {
            tracing::warn!(%why, "ended work cannot be stored at present");
        }
        self.report(Some(why));
        pause
    }

    fn report(&self, problem: Option<String>) {
        match &problem {
            Some(problem) => self.problems.set(PROBLEM, problem.clone()),
            None => self.problems.clear(PROBLEM),
        }
        self.accounting.set_problem(problem);
    }

    fn report_old_copy(&self, position: u64, confirmed: u64) {
        let why = format!(
            "the database lacks ended work {} to {confirmed}, which it had before: it was restored from an older copy. New ended work is \
             stored in it; copy the missing part into it from a newer copy",
            position + 1
        );
        tracing::error!(%why, "the accounting store lacks ended work");
        self.problems.set(OLD_COPY, why);
    }
}

#[cfg(test)]
mod tests;

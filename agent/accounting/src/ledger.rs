//! What the role asks of the quorum, as a trait: tests have a ledger of their own.

use lattice_model::NodeId;
use lattice_model::ended_work::AccountedUntil;
use lattice_quorum_client::wire::{ACCOUNTING_LEASE, Action, Answer, ENDED_WORK_MAX, EndedWorkPage, Refusal, Request};
use lattice_quorum_client::{CallError, QuorumClient};
use std::time::Duration;

/// How long the lease lives without renewal. Another agent replaces a dead one after this time.
pub(crate) const LEASE_TTL: Duration = Duration::from_secs(15);
/// Timeout of a request, so that a lease can be renewed twice before it ends.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(4);

/// The quorum's part of accounting.
pub(crate) trait Ledger: Send + Sync {
    /// Waiting ended work after this number. With the largest number, the page only shows how far accounting is.
    fn ended_work(&self, after: u64) -> impl Future<Output = Result<EndedWorkPage, CallError>> + Send;

    /// Confirms the ended work that the store has.
    fn account(&self, until: AccountedUntil, lease_token: u64) -> impl Future<Output = Result<(), CallError>> + Send;

    /// Renews the lease with this token, or acquires it; `None`: another agent has it.
    fn hold_lease(&self, held: Option<u64>) -> impl Future<Output = Result<Option<u64>, CallError>> + Send;

    /// Gives the lease back; if that fails, it ends by itself.
    fn release_lease(&self, token: u64) -> impl Future<Output = ()> + Send;
}

/// The quorum, for the agent of this node.
pub(crate) struct OfQuorum {
    pub(crate) quorum: QuorumClient,
    pub(crate) me: NodeId,
}

impl OfQuorum {
    async fn lease(&self, request: &Request) -> Result<Option<u64>, CallError> {
        match self.quorum.call(request, REQUEST_TIMEOUT).await {
            Ok(Answer::Lease { token, .. }) => Ok(Some(token)),
            Ok(other) => Err(unexpected(&other)),
            // Under a hold, a node gets no lease.
            Err(CallError::Refused(Refusal::LeaseHeld { .. } | Refusal::Held { .. })) => Ok(None),
            Err(error) => Err(error),
        }
    }
}

impl Ledger for OfQuorum {
    async fn ended_work(&self, after: u64) -> Result<EndedWorkPage, CallError> {
        match self.quorum.call(&Request::EndedWork { after, limit: ENDED_WORK_MAX }, REQUEST_TIMEOUT).await? {
            Answer::EndedWork(page) => Ok(*page),
            other => Err(unexpected(&other)),
        }
    }

    async fn account(&self, until: AccountedUntil, lease_token: u64) -> Result<(), CallError> {
        let action = Action::Account { until, node: self.me.clone(), lease_token };
        self.quorum.call(&Request::from(action), REQUEST_TIMEOUT).await.map(|_| ())
    }

    async fn hold_lease(&self, held: Option<u64>) -> Result<Option<u64>, CallError> {
        let name = ACCOUNTING_LEASE.to_owned();
        if let Some(token) = held {
            let renewal = Request::RenewLease { name: name.clone(), token, holder: self.me.clone(), user: None };
            match self.lease(&renewal).await {
                // The lease has ended: it is acquired again.
                Err(CallError::Refused(_)) => {}
                answer => return answer,
            }
        }
        let ttl_ms = lattice_model::millis(LEASE_TTL);
        self.lease(&Request::AcquireLease { name, holder: self.me.clone(), ttl_ms, user: None }).await
    }

    async fn release_lease(&self, token: u64) {
        let release = Action::ReleaseLease { name: ACCOUNTING_LEASE.to_owned(), token, holder: self.me.clone(), user: None };
        let _ = self.quorum.call(&Request::from(release), Duration::from_millis(500)).await;
    }
}

fn unexpected(answer: &Answer) -> CallError {
    let why = format!("the quorum answered with something else: {answer:?}").chars().take(300).collect();
    CallError::Refused(Refusal::Unavailable { why })
}

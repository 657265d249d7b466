//! The tenants of accounts, for limits of their requests. The quorum knows them; an agent caches them for a minute.

use crate::recent::Recent;
use futures::FutureExt;
use futures::future::BoxFuture;
use lattice_model::Principal;
use lattice_quorum_client::QuorumClient;
use lattice_quorum_client::wire::{Answer, Request};
use parking_lot::Mutex;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::time::timeout;

/// How long an answer is used.
const CACHE_TIME: Duration = Duration::from_secs(60);
/// How long an account counts to no tenant after the quorum did not answer.
const FAILURE_CACHE_TIME: Duration = Duration::from_secs(5);
/// Number of accounts that are cached.
const ACCOUNTS_MAX: usize = 10_000;
/// Number of questions to the quorum at a time.
const LANES: usize = 64;
/// Timeout of one question to the quorum.
const ANSWER_TIME_MAX: Duration = Duration::from_secs(2);
/// Timeout of a caller, who may wait for others' questions as well.
const LOOKUP_TIME_MAX: Duration = Duration::from_secs(3);

/// Asks for the tenants of an account; `None`: the quorum does not answer.
pub(crate) type AskTenants = Box<dyn Fn(Principal) -> BoxFuture<'static, Option<BTreeSet<String>>> + Send + Sync>;

/// The names of an account's tenants.
type Tenants = Arc<BTreeSet<String>>;

/// The tenants of accounts, by uid and name.
pub(crate) struct Memberships {
    ask: AskTenants,
    known: Mutex<Recent<(u32, String), Tenants>>,
    lanes: [tokio::sync::Mutex<()>; LANES],
}

impl Memberships {
    pub(crate) fn of_quorum(quorum: QuorumClient) -> Self {
        Self::new(Box::new(move |by| {
            let quorum = quorum.clone();
            async move {
                let ask = Request::StandingOf { by, login_tenants: BTreeSet::new(), about: BTreeSet::new() };
                match quorum.call(&ask, ANSWER_TIME_MAX).await {
                    Ok(Answer::Standing(standing)) => {
                        let as_member = standing.member_of.difference(&standing.by_role).cloned();
                        let tenants: BTreeSet<String> = as_member.chain(standing.default_tenant.clone()).collect();
                        Some(tenants)
                    }
                    Ok(_) | Err(_) => None,
                }
            }
            .boxed()
        }))
    }

    pub(crate) fn new(ask: AskTenants) -> Self {
        let known = Mutex::new(Recent::new(ACCOUNTS_MAX));
        Self { ask, known, lanes: std::array::from_fn(|_| tokio::sync::Mutex::new(())) }
    }

    /// The tenants that have the account as a member, and its default tenant. Empty while the quorum does not answer: a
    /// limit must not lock everybody out.
    pub(crate) async fn of(&self, account: &Principal) -> Arc<BTreeSet<String>> {
        let key = (account.uid, account.name.clone());
        match self.cached(&key) {
            Some(known) => known,
            None => timeout(LOOKUP_TIME_MAX, self.look_up(key, account)).await.unwrap_or_default(),
        }
    }

    fn cached(&self, key: &(u32, String)) -> Option<Arc<BTreeSet<String>>> {
        self.known.lock().get(key, Instant::now())
    }

    async fn look_up(&self, key: (u32, String), account: &Principal) -> Arc<BTreeSet<String>> {
        let lane = usize::try_from(account.uid).unwrap_or_default() % LANES;
        let _lane = self.lanes[lane].lock().await;
        // Whoever had the lane before may have asked about the same account.
        if let Some(known) = self.cached(&key) {
            return known;
        }
        let (found, time) = match (self.ask)(account.clone()).await {
            Some(found) => (Arc::new(found), CACHE_TIME),
            None => (Arc::default(), FAILURE_CACHE_TIME),
        };
        let now = Instant::now();
        self.known.lock().insert(key, Arc::clone(&found), now + time, now);
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering};

    fn account(uid: u32) -> Principal {
        Principal { name: format!("u{uid}"), uid, gid: uid, groups: vec![] }
    }

    #[tokio::test]
    async fn many_requests_of_an_account_ask_once_and_no_answer_is_no_tenant() {
        let asked = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&asked);
        let memberships = Memberships::new(Box::new(move |by: Principal| {
            count.fetch_add(1, Ordering::Relaxed);
            async move {
                tokio::task::yield_now().await;
                (by.uid == 7).then(|| BTreeSet::from(["physics".to_owned()]))
            }
            .boxed()
        }));
        let alice = account(7);
        let found = futures::future::join_all((0..100).map(|_| memberships.of(&alice))).await;
        assert!(found.iter().all(|tenants| tenants.iter().eq(["physics"])), "{found:?}");
        assert_eq!(asked.load(Ordering::Relaxed), 1);
        for _ in 0..2 {
            assert!(memberships.of(&account(8)).await.is_empty());
        }
        assert_eq!(asked.load(Ordering::Relaxed), 2);
    }
}

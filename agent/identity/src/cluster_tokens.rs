//! Tokens of the cluster: their records are in the quorum. An agent caches a record for 10 s, so a
//! revocation takes effect everywhere within 10 s.

use crate::identified::{Identified, IdentifiedBy, Refused};
use crate::recent::Recent;
use futures::FutureExt;
use futures::future::BoxFuture;
use lattice_model::access::Subject;
use lattice_model::access_token::{AccessToken, Token, TokenId};
use lattice_model::{Timestamp, with_causes};
use lattice_quorum_client::QuorumClient;
use lattice_quorum_client::wire::{Answer, Request};
use parking_lot::Mutex;
use ring::digest::{SHA256, digest};
use ring::hmac;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::time::timeout;

/// How long a record is used without asking the quorum again, from when the quorum was asked.
const RECORD_TIME: Duration = Duration::from_secs(10);
/// Number of cached records.
const RECORDS_MAX: usize = 10_000;
/// Number of cached ids without a record, so that a revoked token does not cost a request to the
/// quorum each time. Somebody who guesses ids cannot displace records, which have another cache.
const UNKNOWN_MAX: usize = 1_000;
/// Number of questions to the quorum at a time. Callers with the same token wait for the first one
/// and use its answer.
const LANES: usize = 64;
/// Timeout of one question to the quorum.
const ANSWER_TIME_MAX: Duration = Duration::from_secs(4);
/// Timeout of a caller, who may wait for others' questions as well.
const LOOKUP_TIME_MAX: Duration = Duration::from_secs(5);

/// Asks for a token's record; `None`: there is none.
pub(crate) type AskRecord = Box<dyn Fn(TokenId) -> BoxFuture<'static, Result<Option<AccessToken>, String>> + Send + Sync>;

/// The checker of the cluster's tokens.
pub(crate) struct ClusterTokens {
    ask: AskRecord,
    cache: Mutex<Cache>,
    lanes: [tokio::sync::Mutex<()>; LANES],
}

struct Cache {
    records: Recent<TokenId, Arc<AccessToken>>,
    unknown: Recent<TokenId, ()>,
}

impl ClusterTokens {
    pub(crate) fn of_quorum(quorum: QuorumClient) -> Self {
        Self::new(Box::new(move |id| {
            let quorum = quorum.clone();
            async move {
                match quorum.call(&Request::TokenRecord { id }, ANSWER_TIME_MAX).await {
                    Ok(Answer::TokenRecord(record)) => Ok(record.map(|record| *record)),
                    Ok(_) => Err("the quorum answered something else".to_owned()),
                    Err(error) => Err(with_causes(&error)),
                }
            }
            .boxed()
        }))
    }

    pub(crate) fn new(ask: AskRecord) -> Self {
        let cache = Mutex::new(Cache { records: Recent::new(RECORDS_MAX), unknown: Recent::new(UNKNOWN_MAX) });
        Self { ask, cache, lanes: std::array::from_fn(|_| tokio::sync::Mutex::new(())) }
    }

    pub(crate) async fn identify(&self, token: &Token, now: Timestamp) -> Result<Identified, Refused> {
        let record = match self.cached(token.id) {
            Some(record) => record,
            None => match timeout(LOOKUP_TIME_MAX, self.look_up(token.id)).await {
                Ok(record) => record?,
                Err(_) => return Err(Refused::Unavailable("the quorum does not answer in time".to_owned())),
            },
        };
        let record = record.ok_or(Refused::Revoked)?;
        check(&record, token, now)
    }

    /// `None`: the quorum has to be asked. `Some(None)`: there is no such token.
    fn cached(&self, id: TokenId) -> Option<Option<Arc<AccessToken>>> {
        let (cache, now) = (self.cache.lock(), Instant::now());
        match cache.records.get(&id, now) {
            Some(record) => Some(Some(record)),
            None => cache.unknown.get(&id, now).map(|()| None),
        }
    }

    async fn look_up(&self, id: TokenId) -> Result<Option<Arc<AccessToken>>, Refused> {
        let lane = usize::try_from(id.0 % LANES as u64).unwrap_or_default();
        let _lane = self.lanes[lane].lock().await;
        // Whoever had the lane before may have asked for the same token.
        if let Some(record) = self.cached(id) {
            return Ok(record);
        }
        // The record may be revoked while the answer is under way, so its time in the cache counts
        // from the question.
        let asked_at = Instant::now();
        let record = (self.ask)(id).await.map_err(Refused::Unavailable)?.map(Arc::new);
        let (mut cache, now) = (self.cache.lock(), Instant::now());
        match &record {
            Some(record) => cache.records.insert(id, Arc::clone(record), asked_at + RECORD_TIME, now),
            None => {
                cache.records.remove(&id);
                cache.unknown.insert(id, (), asked_at + RECORD_TIME, now);
            }
        }
        Ok(record)
    }
}

/// Whether this is the token with that record, and whom it identifies.
fn check(record: &AccessToken, token: &Token, now: Timestamp) -> Result<Identified, Refused> {
    if record.id != token.id || !is_same(digest(&SHA256, &token.secret).as_ref(), &record.secret_sha256) {
        return Err(Refused::Revoked);
    }
    if now >= record.expires_at {
        return Err(Refused::Expired);
    }
    match &record.account {
        Subject::User { name, uid } if *uid != 0 => Ok(Identified {
            account: name.clone(),
            uid: Some(*uid),
            scopes: record.scopes.clone(),
            tenants: BTreeSet::new(),
            kind: IdentifiedBy::Token { id: record.id, name: record.name.clone() },
            expires_at: record.expires_at,
        }),
        Subject::User { .. } | Subject::Group { .. } => Err(Refused::NoAccount),
    }
}

/// Compares two hashes in constant time, as ring compares codes (HMAC).
fn is_same(one: &[u8], other: &[u8]) -> bool {
    let key = hmac::Key::new(hmac::HMAC_SHA256, b"lattice: equality of two hashes");
    hmac::verify(&key, one, hmac::sign(&key, other).as_ref()).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering};

    const SECRET: [u8; 32] = [7; 32];

    fn record(id: u64) -> AccessToken {
        AccessToken {
            id: TokenId(id),
            name: "ci".to_owned(),
            account: Subject::User { name: "alice".to_owned(), uid: 1000 },
            scopes: "read,work".parse().unwrap(),
            secret_sha256: digest(&SHA256, &SECRET).as_ref().try_into().unwrap(),
            issued_at: Timestamp(0),
            issued_by: "root".to_owned(),
            expires_at: Timestamp(1_000),
        }
    }

    fn token(id: u64) -> Token {
        Token { id: TokenId(id), secret: SECRET }
    }

    /// A checker whose quorum answers by this function, and the number of questions.
    fn asking(answer: fn(TokenId) -> Result<Option<AccessToken>, String>) -> (ClusterTokens, Arc<AtomicUsize>) {
        let asked = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&asked);
        let tokens = ClusterTokens::new(Box::new(move |id| {
            count.fetch_add(1, Ordering::Relaxed);
            async move {
                tokio::task::yield_now().await;
                answer(id)
            }
            .boxed()
        }));
        (tokens, asked)
    }

    #[test]
    fn a_token_is_its_secret_and_acts_for_an_account_that_is_not_root() {
        let identified = check(&record(1), &token(1), Timestamp(999)).unwrap();
        assert_eq!((identified.account.as_str(), identified.uid), ("alice", Some(1000)));
        assert_eq!((identified.scopes.to_string().as_str(), identified.expires_at), ("read,work", Timestamp(1_000)));
        assert_eq!(identified.kind, IdentifiedBy::Token { id: TokenId(1), name: "ci".to_owned() });
        assert_eq!(check(&record(1), &token(1), Timestamp(1_000)), Err(Refused::Expired));
        for byte in 0..32 {
            let mut secret = SECRET;
            secret[byte] ^= 1;
            assert_eq!(check(&record(1), &Token { id: TokenId(1), secret }, Timestamp(0)), Err(Refused::Revoked));
        }
        assert_eq!(check(&record(2), &token(1), Timestamp(0)), Err(Refused::Revoked));
        let root = AccessToken { account: Subject::User { name: "root".to_owned(), uid: 0 }, ..record(1) };
        let group = AccessToken { account: Subject::Group { name: "staff".to_owned(), gid: 50 }, ..record(1) };
        for record in [root, group] {
            assert_eq!(check(&record, &token(1), Timestamp(0)), Err(Refused::NoAccount));
        }
    }

    #[tokio::test]
    async fn many_callers_with_one_token_ask_once_and_a_revoked_one_is_cached_too() {
        let (tokens, asked) = asking(|id| Ok((id == TokenId(1)).then(|| record(1))));
        let (known, unknown) = (token(1), token(2));
        let results = futures::future::join_all((0..100).map(|_| tokens.identify(&known, Timestamp(0)))).await;
        assert!(results.iter().all(Result::is_ok), "{results:?}");
        assert_eq!(asked.load(Ordering::Relaxed), 1);
        let results = futures::future::join_all((0..100).map(|_| tokens.identify(&unknown, Timestamp(0)))).await;
        assert!(results.iter().all(|result| *result == Err(Refused::Revoked)), "{results:?}");
        assert_eq!(asked.load(Ordering::Relaxed), 2);
        // The cached record does not make a wrong secret right.
        let guessed = Token { secret: [8; 32], ..known };
        assert_eq!(tokens.identify(&guessed, Timestamp(0)).await, Err(Refused::Revoked));
    }

    #[tokio::test]
    async fn without_an_answer_nobody_is_let_in_or_refused_and_the_next_caller_asks_again() {
        let (tokens, asked) = asking(|_| Err("no member answers".to_owned()));
        for _ in 0..2 {
            let refused = tokens.identify(&token(1), Timestamp(0)).await;
            assert_eq!(refused, Err(Refused::Unavailable("no member answers".to_owned())));
        }
        assert_eq!(asked.load(Ordering::Relaxed), 2);
    }
}

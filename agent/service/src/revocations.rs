//! Tokens of the cluster whose bearers have streams open here: the quorum is asked whether each still exists, so a revoked
//! token ends its streams, too.
//!
//! All streams of one token wait for one question after the other. There is no task: the streams themselves ask, and the
//! questions end with the last stream.

use super::api::QUORUM_TIMEOUT;
use futures::FutureExt;
use futures::future::{BoxFuture, Shared, WeakShared};
use lattice_model::access_token::TokenId;
use lattice_quorum_client::QuorumClient;
use lattice_quorum_client::wire::{Answer, Request as Ask};
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::sleep;

/// How long after a token's first stream the first question is asked. Most streams have ended by then.
const FIRST_PAUSE: Duration = Duration::from_millis(200);
/// The pause between two questions: with the time of an answer, at most the 10 s after which a revoked token opens nothing.
const PAUSE: Duration = Duration::from_secs(8);

/// The questions about one token.
type Asking = BoxFuture<'static, ()>;

/// Completes when a token was revoked.
pub(super) type Revoked = Shared<Asking>;

/// Asks whether a token exists; `None`: nobody knows at present.
type AskExists = Box<dyn Fn(TokenId) -> BoxFuture<'static, Option<bool>> + Send + Sync>;

/// The tokens with open streams. Cloneable; all clones share them.
#[derive(Clone)]
pub(super) struct Revocations(Arc<Inner>);

struct Inner {
    exists: AskExists,
    first_pause: Duration,
    pause: Duration,
    /// At most as many as there are streams.
    watched: Mutex<HashMap<TokenId, WeakShared<Asking>>>,
}

impl Revocations {
    pub(super) fn of_quorum(quorum: QuorumClient) -> Self {
        let exists: AskExists = Box::new(move |id| {
            let quorum = quorum.clone();
            async move {
                match quorum.call(&Ask::TokenRecord { id }, QUORUM_TIMEOUT).await {
                    Ok(Answer::TokenRecord(record)) => Some(record.is_some()),
                    Ok(_) | Err(_) => None,
                }
            }
            .boxed()
        });
        Self::new(exists, FIRST_PAUSE, PAUSE)
    }

    pub(super) fn new(exists: AskExists, first_pause: Duration, pause: Duration) -> Self {
        Self(Arc::new(Inner { exists, first_pause, pause, watched: Mutex::default() }))
    }

    /// A future that completes when this token was revoked. While the quorum does not answer, nothing is revoked.
    pub(super) fn of(&self, id: TokenId) -> Revoked {
        let mut watched = self.0.watched.lock();
        if let Some(known) = watched.get(&id).and_then(WeakShared::upgrade) {
            return known;
        }
        watched.retain(|_, others| others.upgrade().is_some());
        let inner = Arc::clone(&self.0);
        let asking = async move {
            sleep(inner.first_pause).await;
            while (inner.exists)(id).await != Some(false) {
                sleep(inner.pause).await;
            }
        };
        let revoked = asking.boxed().shared();
        if let Some(weak) = revoked.downgrade() {
            watched.insert(id, weak);
        }
        revoked
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering};

    /// Revocations with these answers in turn, the last one for ever, and the number of questions.
    fn answering(answers: &'static [Option<bool>]) -> (Revocations, Arc<AtomicUsize>) {
        let asked = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&asked);
        let exists: AskExists = Box::new(move |_| {
            let number = count.fetch_add(1, Ordering::SeqCst);
            let answer = answers.get(number).or(answers.last()).copied().flatten();
            async move { answer }.boxed()
        });
        (Revocations::new(exists, Duration::ZERO, Duration::from_millis(1)), asked)
    }

    #[tokio::test]
    async fn a_token_is_revoked_once_the_quorum_has_no_record_and_not_while_it_is_silent() {
        let (revocations, asked) = answering(&[Some(true), None, Some(true), Some(false)]);
        let (one, two) = (revocations.of(TokenId(1)), revocations.of(TokenId(1)));
        tokio::join!(one, two);
        assert_eq!(asked.load(Ordering::SeqCst), 4, "both streams share the questions");
        let (revocations, _) = answering(&[None]);
        let waited = tokio::time::timeout(Duration::from_millis(30), revocations.of(TokenId(1))).await;
        assert!(waited.is_err(), "without an answer nothing is revoked");
    }

    #[tokio::test]
    async fn the_questions_end_with_the_last_stream_and_nothing_is_left() {
        let (revocations, asked) = answering(&[Some(true)]);
        let (first, second) = (revocations.of(TokenId(1)), revocations.of(TokenId(1)));
        // The stream that sent the request ends: the other one sends it again.
        assert!(tokio::time::timeout(Duration::from_millis(10), first).await.is_err());
        let before = asked.load(Ordering::SeqCst);
        assert!(tokio::time::timeout(Duration::from_millis(30), second).await.is_err());
        let after = asked.load(Ordering::SeqCst);
        assert!(after > before, "{before} and then {after} questions");
        let _other = revocations.of(TokenId(2));
        assert_eq!(revocations.0.watched.lock().keys().copied().collect::<Vec<_>>(), [TokenId(2)]);
    }
}

//! Tokens that were valid lately. Their bearers are served even if others at the same address, such as users of the same
//! portal or login machine, present too many wrong tokens.

use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::hash::{BuildHasher, RandomState};
use std::time::{Duration, Instant};

/// How long a token is remembered after it was last presented.
const REMEMBERED_TIME: Duration = Duration::from_secs(300);
/// How many tokens are remembered.
const TOKENS_MAX: usize = 4096;

/// The remembered tokens, by hashes with a random key: memory that is read out contains no tokens.
#[derive(Default)]
pub(super) struct KnownTokens {
    hasher: RandomState,
    until: Mutex<BTreeMap<u64, Instant>>,
}

impl KnownTokens {
    pub(super) fn contains(&self, token: &str, now: Instant) -> bool {
        self.until.lock().get(&self.hasher.hash_one(token)).is_some_and(|until| now < *until)
    }

    /// Remembers a token that was valid.
    pub(super) fn insert(&self, token: &str, now: Instant) {
        let (hash, mut until) = (self.hasher.hash_one(token), self.until.lock());
        if until.len() >= TOKENS_MAX && !until.contains_key(&hash) {
            until.retain(|_, until| now < *until);
            let oldest = until.iter().min_by_key(|(_, until)| **until).map(|(hash, _)| *hash);
            if let Some(oldest) = oldest.filter(|_| until.len() >= TOKENS_MAX) {
                until.remove(&oldest);
            }
        }
        until.insert(hash, now + REMEMBERED_TIME);
    }

    /// Forgets a token that was refused.
    pub(super) fn remove(&self, token: &str) {
        self.until.lock().remove(&self.hasher.hash_one(token));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_remembered_for_a_while_unless_it_is_refused() {
        let (known, now) = (KnownTokens::default(), Instant::now());
        known.insert("a", now);
        assert!(known.contains("a", now) && !known.contains("b", now));
        assert!(!known.contains("a", now + REMEMBERED_TIME));
        known.remove("a");
        assert!(!known.contains("a", now));
    }

    #[test]
    fn if_there_are_too_many_the_longest_unused_token_is_forgotten() {
        let (known, began) = (KnownTokens::default(), Instant::now());
        let after = |ms: usize| began + Duration::from_millis(ms as u64);
        (0..=TOKENS_MAX).for_each(|number| known.insert(&number.to_string(), after(number)));
        assert_eq!(known.until.lock().len(), TOKENS_MAX);
        assert!(!known.contains("0", began) && known.contains("1", began));
        // All expired tokens are removed together.
        known.insert("new", after(TOKENS_MAX) + REMEMBERED_TIME);
        assert_eq!(known.until.lock().len(), 1);
    }
}

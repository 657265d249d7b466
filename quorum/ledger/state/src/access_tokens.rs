//! The records of the tokens with which programs call the API over the network.
//!
//! Serialised as the records and the ids that were revoked last. The order in which tokens expire is derived.

use imbl::{OrdMap, OrdSet};
use lattice_model::Timestamp;
use lattice_model::access_token::{AccessToken, TokenId};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::collections::VecDeque;
use std::sync::Arc;

/// How many ids of revoked tokens are kept, so that a repeated command does not issue one of them again.
const REVOKED_LEN_MAX: usize = 1000;

/// The tokens that are not revoked, including expired ones that are not forgotten yet.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AccessTokens {
    records: OrdMap<TokenId, Arc<AccessToken>>,
    /// When each expires.
    ends: OrdSet<(Timestamp, TokenId)>,
    /// The ids that were revoked last, the latest at the end.
    revoked: VecDeque<TokenId>,
}

impl AccessTokens {
    /// Whether there is neither a token nor a revoked id.
    pub fn is_empty(&self) -> bool {
        self.records.is_empty() && self.revoked.is_empty()
    }

    /// The number of tokens.
    pub fn len(&self) -> usize {
        self.records.len()
    }

    /// One token.
    pub fn get(&self, id: TokenId) -> Option<&AccessToken> {
        self.records.get(&id).map(Arc::as_ref)
    }

    /// All tokens, by id.
    pub fn all(&self) -> impl Iterator<Item = &AccessToken> {
        self.records.values().map(Arc::as_ref)
    }

    /// The token that expires first, and when.
    pub fn first_end(&self) -> Option<(Timestamp, TokenId)> {
        self.ends.get_min().copied()
    }

    /// Whether this token was among the last that were revoked.
    pub fn is_revoked(&self, id: TokenId) -> bool {
        self.revoked.contains(&id)
    }

    /// Adds a token that is not there yet.
    pub fn insert(&mut self, token: AccessToken) {
        self.ends.insert((token.expires_at, token.id));
        self.records.insert(token.id, Arc::new(token));
    }

    /// Removes a token that has expired.
    pub fn forget(&mut self, id: TokenId) {
        if let Some(token) = self.records.remove(&id) {
            self.ends.remove(&(token.expires_at, id));
        }
    }

    /// Removes all tokens; returns how many there were. The revoked ids stay known.
    pub fn drop_all(&mut self) -> usize {
        self.ends = OrdSet::new();
        std::mem::take(&mut self.records).len()
    }

    /// Removes a token, and remembers that it was revoked.
    pub fn revoke(&mut self, id: TokenId) {
        self.forget(id);
        if self.revoked.len() >= REVOKED_LEN_MAX {
            self.revoked.pop_front();
        }
        self.revoked.push_back(id);
    }
}

impl Serialize for AccessTokens {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        (self.all().collect::<Vec<_>>(), &self.revoked).serialize(to)
    }
}

impl<'de> Deserialize<'de> for AccessTokens {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let (tokens, revoked) = <(Vec<AccessToken>, VecDeque<TokenId>)>::deserialize(from)?;
        let mut all = Self { revoked, ..Self::default() };
        // No member writes two records with one id; if there are two, the last one counts.
        for token in tokens {
            all.forget(token.id);
            all.insert(token);
        }
        Ok(all)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lattice_model::access::{Scopes, Subject};

    fn token(id: u64, expires_at: u64) -> AccessToken {
        AccessToken {
            id: TokenId(id),
            name: "ci".into(),
            account: Subject::User { name: "u7".into(), uid: 7 },
            scopes: Scopes::all(),
            secret_sha256: [7; 32],
            issued_at: Timestamp(1),
            issued_by: "anna@n1".into(),
            expires_at: Timestamp(expires_at),
        }
    }

    fn restored(tokens: &AccessTokens) -> AccessTokens {
        rmp_serde::from_slice(&rmp_serde::to_vec_named(tokens).unwrap()).unwrap()
    }

    #[test]
    fn the_first_end_is_that_of_the_tokens_that_are_left_and_a_snapshot_has_everything() {
        let mut tokens = AccessTokens::default();
        for (id, end) in [(1, 30), (2, 10), (3, 20)] {
            tokens.insert(token(id, end));
        }
        assert_eq!(tokens.first_end(), Some((Timestamp(10), TokenId(2))));
        tokens.revoke(TokenId(2));
        tokens.forget(TokenId(3));
        assert_eq!(tokens.first_end(), Some((Timestamp(30), TokenId(1))));
        assert!(tokens.is_revoked(TokenId(2)) && !tokens.is_revoked(TokenId(3)), "it expired");
        assert_eq!(restored(&tokens), tokens);
        tokens.revoke(TokenId(1));
        assert_eq!((tokens.len(), tokens.first_end(), tokens.is_empty()), (0, None, false));
        assert_eq!(restored(&tokens), tokens);
    }

    #[test]
    fn only_so_many_revoked_ids_are_kept() {
        let mut tokens = AccessTokens::default();
        for id in 0..=REVOKED_LEN_MAX as u64 {
            tokens.revoke(TokenId(id));
        }
        assert!(!tokens.is_revoked(TokenId(0)) && tokens.is_revoked(TokenId(1)) && tokens.is_revoked(TokenId(REVOKED_LEN_MAX as u64)));
    }
}

//! The public keys of a provider (JWKS, RFC 7517).

use jsonwebtoken::jwk::{AlgorithmParameters, EllipticCurve, Jwk, KeyAlgorithm, KeyOperations, PublicKeyUse};
use jsonwebtoken::{Algorithm, DecodingKey};
use serde::Deserialize;
use serde_json::Value;
use std::sync::Arc;
use thiserror::Error;

/// The keys that may sign tokens.
pub(crate) struct KeySet(Vec<(Jwk, Arc<DecodingKey>)>);

/// Which key a token's header names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct WantedKey {
    /// `kid`.
    pub id: Option<String>,
    pub algorithm: Algorithm,
}

/// Why an answer is not a usable key set.
#[derive(Debug, Error)]
pub(crate) enum KeySetError {
    #[error("its keys (jwks_uri) are not a JSON Web Key Set: {0}")]
    Json(serde_json::Error),
    #[error("its key set (jwks_uri) has no key that can verify a signature")]
    NoKey,
}

impl KeySet {
    /// Reads a key set. Leaves out keys of unknown kinds, which a provider may also have.
    pub(crate) fn parse(text: &[u8]) -> Result<Self, KeySetError> {
        #[derive(Deserialize)]
        struct Document {
            keys: Vec<Value>,
        }
        let document: Document = serde_json::from_slice(text).map_err(KeySetError::Json)?;
        let keys = document.keys.into_iter().filter_map(|key| {
            let key = serde_json::from_value::<Jwk>(key).ok().filter(may_sign)?;
            let decoding = DecodingKey::from_jwk(&key).ok()?;
            Some((key, Arc::new(decoding)))
        });
        let keys: Vec<_> = keys.collect();
        if keys.is_empty() { Err(KeySetError::NoKey) } else { Ok(Self(keys)) }
    }

    /// The key that a token names. For a token without a key id: the only key that fits, if just
    /// one fits.
    pub(crate) fn find(&self, wanted: &WantedKey) -> Option<Arc<DecodingKey>> {
        let is_wanted = |key: &Jwk| wanted.id.is_none() || key.common.key_id == wanted.id;
        let mut fitting = self.0.iter().filter(|(key, _)| is_wanted(key) && fits(key, wanted.algorithm));
        let (_, found) = fitting.next()?;
        (wanted.id.is_some() || fitting.next().is_none()).then(|| Arc::clone(found))
    }
}

/// Whether the key is the public key of a pair for signatures.
fn may_sign(key: &Jwk) -> bool {
    let is_for_signatures = matches!(key.common.public_key_use, None | Some(PublicKeyUse::Signature));
    let verifies = key.common.key_operations.as_ref().is_none_or(|operations| operations.contains(&KeyOperations::Verify));
    // Excludes shared secrets and unknown kinds of keys.
    let is_pair =
        matches!(key.algorithm, AlgorithmParameters::RSA(_) | AlgorithmParameters::EllipticCurve(_) | AlgorithmParameters::OctetKeyPair(_));
    is_for_signatures && verifies && is_pair
}

/// Whether this key verifies signatures of this algorithm: a key is used for its own algorithm
/// only.
fn fits(key: &Jwk, algorithm: Algorithm) -> bool {
    let is_its_own = key.common.key_algorithm.is_none_or(|own| own == KeyAlgorithm::from(algorithm));
    let is_of_kind = match (&key.algorithm, algorithm) {
        (
            AlgorithmParameters::RSA(_),
            Algorithm::RS256 | Algorithm::RS384 | Algorithm::RS512 | Algorithm::PS256 | Algorithm::PS384 | Algorithm::PS512,
        ) => true,
        (AlgorithmParameters::EllipticCurve(key), Algorithm::ES256) => key.curve == EllipticCurve::P256,
        (AlgorithmParameters::EllipticCurve(key), Algorithm::ES384) => key.curve == EllipticCurve::P384,
        (AlgorithmParameters::OctetKeyPair(key), Algorithm::EdDSA) => key.curve == EllipticCurve::Ed25519,
        _ => false,
    };
    is_its_own && is_of_kind
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_provider::Signer;
    use serde_json::json;

    fn wanted(id: Option<&str>, algorithm: Algorithm) -> WantedKey {
        WantedKey { id: id.map(str::to_owned), algorithm }
    }

    fn parsed(keys: &[Value]) -> Result<KeySet, KeySetError> {
        KeySet::parse(json!({ "keys": keys }).to_string().as_bytes())
    }

    #[test]
    fn a_key_is_found_by_its_id_and_for_its_own_algorithm() {
        let (a, b) = (Signer::new(Algorithm::ES256, "a"), Signer::new(Algorithm::ES384, "b"));
        let keys = parsed(&[a.jwk(), b.jwk()]).unwrap();
        let finds = |id, algorithm| keys.find(&wanted(id, algorithm)).is_some();
        assert!(finds(Some("a"), Algorithm::ES256) && finds(Some("b"), Algorithm::ES384));
        assert!(!finds(Some("a"), Algorithm::ES384) && !finds(Some("c"), Algorithm::ES256) && !finds(Some("a"), Algorithm::HS256));
        // Only one key fits.
        assert!(finds(None, Algorithm::ES256));
        let keys = parsed(&[a.jwk(), Signer::new(Algorithm::ES256, "c").jwk()]).unwrap();
        assert!(keys.find(&wanted(None, Algorithm::ES256)).is_none(), "two fit");
    }

    #[test]
    fn keys_for_something_else_are_left_out() {
        let key = Signer::new(Algorithm::ES256, "a").jwk();
        let with = |name: &str, value: Value| {
            let mut key = key.clone();
            key[name] = value;
            key
        };
        let secret = json!({"kty": "oct", "k": "c2VjcmV0", "kid": "a"});
        let unknown = json!({"kty": "AKP", "pub": "AA", "kid": "a"});
        for left_out in [with("use", json!("enc")), with("key_ops", json!(["sign"])), with("crv", json!("P-521x")), secret, unknown] {
            assert!(matches!(parsed(std::slice::from_ref(&left_out)), Err(KeySetError::NoKey)), "{left_out}");
            assert!(parsed(&[left_out, key.clone()]).unwrap().find(&wanted(Some("a"), Algorithm::ES256)).is_some());
        }
        for taken in [with("use", json!("sig")), with("key_ops", json!(["verify"])), with("x5t", json!("AA"))] {
            assert!(parsed(&[taken]).is_ok());
        }
        let other_use = parsed(&[with("alg", json!("ES384"))]).unwrap();
        assert!(other_use.find(&wanted(Some("a"), Algorithm::ES256)).is_none());
        for text in ["", "[]", "{}", "{\"keys\": {}}"] {
            assert!(matches!(KeySet::parse(text.as_bytes()), Err(KeySetError::Json(_))), "{text}");
        }
    }
}

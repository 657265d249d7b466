//! `Idempotency-Key`: a request that is repeated with the same key is made once.
//!
//! The quorum makes each request with an id once. The key is that id, if it is a UUID. Any other text becomes one: the
//! first 16 bytes of the SHA-256 of the account, of what is requested and for what, and of the text, as a UUID of
//! version 4. So the same text gives two accounts, two kinds of requests, or two allocations different ids.

use super::calls::{Calls, Grpc};
use super::problem::Problem;
use axum::extract::FromRequestParts;
use axum::http::request::Parts;
use lattice_api::v1;
use ring::digest::{Context, SHA256};
use uuid::{Builder, Uuid};

/// The header.
const HEADER: &str = "idempotency-key";
/// Largest size of a key, in bytes.
const KEY_BYTES_MAX: usize = 255;

/// The key of this request, if it has one.
pub(crate) struct IdempotencyKey(Option<String>);

impl FromRequestParts<Grpc> for IdempotencyKey {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, _: &Grpc) -> Result<Self, Problem> {
        let mut given = parts.headers.get_all(HEADER).iter();
        let Some(key) = given.next() else { return Ok(Self(None)) };
        let is_one = given.next().is_none();
        match key.to_str() {
            Ok(text) if is_one && (1..=KEY_BYTES_MAX).contains(&text.len()) => Ok(Self(Some(text.to_owned()))),
            Ok(_) | Err(_) => {
                Err(Problem::invalid(format!("Idempotency-Key: one text of 1 to {KEY_BYTES_MAX} visible ASCII characters is expected"))
                    .with_hint("send a UUID, or a name of the request that no other request of yours has"))
            }
        }
    }
}

impl IdempotencyKey {
    /// The id of this request. `what`: what is requested, and of what. A text that is no UUID needs the account, which the
    /// agent is asked for.
    pub(crate) async fn id(&self, what: &[&str], calls: &Calls) -> Result<Uuid, Problem> {
        let Some(key) = &self.0 else { return Ok(Uuid::new_v4()) };
        if let Ok(id) = Uuid::try_parse(key) {
            return Ok(id);
        }
        let me = calls.admin().who_am_i(v1::WhoAmIRequest {}).await?.into_inner();
        let texts: Vec<&str> = std::iter::once(me.account.as_str()).chain(what.iter().copied()).chain([key.as_str()]).collect();
        Ok(hashed(&texts))
    }
}

/// A UUID of version 4 that only these texts give.
pub(crate) fn hashed(texts: &[&str]) -> Uuid {
    let mut hash = Context::new(&SHA256);
    for text in texts {
        // With their lengths: "ab", "c" is not "a", "bc".
        hash.update(&(text.len() as u64).to_be_bytes());
        hash.update(text.as_bytes());
    }
    let mut bytes = [0; 16];
    for (byte, of_hash) in bytes.iter_mut().zip(hash.finish().as_ref()) {
        *byte = *of_hash;
    }
    Builder::from_random_bytes(bytes).into_uuid()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_texts_are_the_same_id_and_no_others_are() {
        let id = hashed(&["ada", "allocation", "night run"]);
        assert_eq!(id, hashed(&["ada", "allocation", "night run"]));
        assert_eq!(id.get_version_num(), 4);
        for other in [["bob", "allocation", "night run"], ["ada", "dag", "night run"], ["adaa", "llocation", "night run"]] {
            assert_ne!(id, hashed(&other));
        }
    }
}

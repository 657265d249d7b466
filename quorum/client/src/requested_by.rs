//! The token of the cluster with which a caller on the network made the request that an agent serves. The records of what
//! the request changes name it.
//!
//! A request may need several calls, in functions that do not know who asks. So the token is in the task, and each call
//! that is made while the request is served has it in its header.

use lattice_model::access_token::TokenId;
use tonic::Request;
use tonic::metadata::MetadataValue;

/// Header of a call: the id of that token. Members heed it from agents with the role `api` alone.
pub const TOKEN_HEADER: &str = "lattice-token";

tokio::task_local! {
    static TOKEN: Option<TokenId>;
}

/// Does this work on behalf of a caller with this token; `None`: with none of the cluster. What it spawns is not part of
/// it, unless it is spawned with [`for_same_caller`].
pub async fn with_token<F: Future>(token: Option<TokenId>, work: F) -> F::Output {
    TOKEN.scope(token, work).await
}

/// Does this work on behalf of the caller for whom this task works: for what a task spawns and waits for.
pub fn for_same_caller<F: Future>(work: F) -> impl Future<Output = F::Output> {
    with_token(token(), work)
}

/// The token for which this task works.
fn token() -> Option<TokenId> {
    TOKEN.try_with(|token| *token).ok().flatten()
}

/// The message with the token for which this task works.
pub(crate) fn request_of<T>(message: T) -> Request<T> {
    let mut request = Request::new(message);
    if let Some(id) = token().and_then(|token| MetadataValue::try_from(token.to_string()).ok()) {
        request.metadata_mut().insert(TOKEN_HEADER, id);
    }
    request
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_call_has_the_token_of_the_request_that_is_served_and_no_other() {
        let header = || request_of(()).metadata().get(TOKEN_HEADER).map(|value| value.to_str().unwrap().to_owned());
        assert_eq!(header(), None);
        let both = with_token(Some(TokenId(0xab)), async { (header(), with_token(None, async { header() }).await) }).await;
        assert_eq!(both, (Some("00000000000000ab".to_owned()), None));
        let spawned = |carried: bool| {
            let task = async move { request_of(()).metadata().contains_key(TOKEN_HEADER) };
            if carried { tokio::spawn(for_same_caller(task)) } else { tokio::spawn(task) }
        };
        let both = with_token(Some(TokenId(0xab)), async { (spawned(true).await.unwrap(), spawned(false).await.unwrap()) }).await;
        assert_eq!(both, (true, false));
        assert_eq!(header(), None, "it is over");
    }
}

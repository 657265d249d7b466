//! The inputs of a request: its path, its query, its body. Unknown names in them are refused, as a problem.

use super::calls::Grpc;
use super::problem::Problem;
use axum::Json;
use axum::body::Bytes;
use axum::extract::{FromRequest, FromRequestParts, Path, Query, Request};
use axum::http::request::Parts;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Deserializer};
use utoipa::IntoParams;

/// The parts of the path in braces, decoded.
pub(crate) struct Segments<T>(pub(crate) T);

/// The parameters of the query.
pub(crate) struct Params<T>(pub(crate) T);

/// The body, which is JSON.
pub(crate) struct Body<T>(pub(crate) T);

/// The body, which is JSON, or nothing: then it is the default.
pub(crate) struct OptionalBody<T>(pub(crate) T);

/// For requests that have no parameters.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct NoParams {}

#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct DryRunParams {
    /// Check the submission, and submit nothing.
    #[serde(default)]
    pub(crate) dry_run: bool,
}

#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct StaleParams {
    /// Accept the state of one member, which may be old.
    #[serde(default)]
    pub(crate) stale: bool,
}

impl<T: DeserializeOwned + Send> FromRequestParts<Grpc> for Segments<T> {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &Grpc) -> Result<Self, Problem> {
        let Path(segments) = Path::<T>::from_request_parts(parts, state).await?;
        Ok(Self(segments))
    }
}

impl<T: DeserializeOwned> FromRequestParts<Grpc> for Params<T> {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, _: &Grpc) -> Result<Self, Problem> {
        let Query(params) = Query::<T>::try_from_uri(&parts.uri)?;
        Ok(Self(params))
    }
}

impl<T: DeserializeOwned> FromRequest<Grpc> for Body<T> {
    type Rejection = Problem;

    async fn from_request(request: Request, state: &Grpc) -> Result<Self, Problem> {
        let Json(body) = Json::<T>::from_request(request, state).await?;
        Ok(Self(body))
    }
}

impl<T: DeserializeOwned + Default> FromRequest<Grpc> for OptionalBody<T> {
    type Rejection = Problem;

    async fn from_request(request: Request, state: &Grpc) -> Result<Self, Problem> {
        let (parts, body) = request.into_parts();
        let bytes = Bytes::from_request(Request::from_parts(parts.clone(), body), state).await?;
        if bytes.is_empty() {
            return Ok(Self(T::default()));
        }
        // As any other body: it needs its type.
        let Json(body) = Json::<T>::from_request(Request::from_parts(parts, bytes.into()), state).await?;
        Ok(Self(body))
    }
}

/// A field that is present, even if it is null; an absent field has the default.
pub(crate) fn given<'de, D: Deserializer<'de>, T: Deserialize<'de>>(from: D) -> Result<Option<Option<T>>, D::Error> {
    Option::<T>::deserialize(from).map(Some)
}

/// The parts of a list with commas.
pub(crate) fn list(text: Option<&str>) -> Vec<String> {
    let parts = text.unwrap_or_default().split(',').map(str::trim);
    parts.filter(|part| !part.is_empty()).map(str::to_owned).collect()
}

/// The pairs of a list such as `a=1,b=2`.
pub(crate) fn pairs<C: FromIterator<(String, String)>>(parameter: &str, text: Option<&str>) -> Result<C, Problem> {
    let wrong = |part: &str| Problem::invalid(format!("{parameter}: {part:?} is not a pair")).with_hint("write NAME=VALUE");
    let pair = |part: String| match part.split_once('=') {
        Some((name, value)) if !name.is_empty() => Ok((name.to_owned(), value.to_owned())),
        Some(_) | None => Err(wrong(&part)),
    };
    list(text).into_iter().map(pair).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    #[test]
    fn lists_have_commas_and_pairs_have_names() {
        assert_eq!(list(Some("Running, Pending,")), ["Running", "Pending"]);
        assert!(list(None).is_empty());
        let tags: BTreeMap<_, _> = pairs("tag", Some("a=1,b==")).unwrap();
        assert_eq!(tags, [("a", "1"), ("b", "=")].map(|(name, value)| (name.to_owned(), value.to_owned())).into());
        assert!(pairs::<BTreeMap<_, _>>("tag", Some("a")).is_err());
    }
}
